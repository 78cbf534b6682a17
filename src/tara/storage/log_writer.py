"""Writes the decided log of one executor. One thread uses it; `tara.storage.log` brings it what was executed.

Runs come encoded, and are written as they are, in blocks, to the end of the tail. At a checkpoint the tail gets a block
that says so, is synced, and becomes a segment by its name: everything is written once. A checkpoint is announced when
its segment is durable. So what an executor comes back to is in its log, and what it executes again after that is passed
over as far as the log has it already.
"""

import contextlib
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.protocol.tuples import DECODE_ERRORS
from tara.storage.disk import LOCAL, Disk, File
from tara.storage.files import remove_if_there, remove_leftovers, temporary_name, write_whole
from tara.storage.log_format import (
    BLOCK_BYTES,
    CHECKPOINT,
    CorruptLog,
    LogFile,
    LogIdentity,
    SegmentEnd,
    blocks,
    identity_of,
    list_segments,
    list_tails,
    pack_block,
    pack_end,
    pack_header,
    read_block,
    segment_name,
    tail_name,
)
from tara.storage.pacer import UNSYNCED_BYTES_MAX
from tara.storage.peer_segments import PeerSegments
from tara.storage.segments import Segments, set_all_aside


class LogSettings(Struct, frozen=True, kw_only=True):
    """What a log must know of its cluster."""

    identity: LogIdentity
    partitions: int
    checkpoint_interval: int
    #: Segments beyond this are dropped, oldest first, as soon as no base needs them.
    retention_bytes: int


class RowsLost(TaraError):
    """What the tail had cannot be made durable."""


class EncodedRun(NamedTuple):
    """A run as the container hands it over."""

    #: The execution number of its first request, and the one behind its last.
    first: int
    position: int
    #: The command counter before and after it.
    counter: int
    end: int
    #: A `tara.storage.log_format.Run`, encoded.
    data: bytes


class Tail:
    """The file that grows. Invariant: its blocks hold the requests up to execution number `position` without a gap,
    from the checkpoint on that it begins with."""

    def __init__(self, file: LogFile, position: int, size: int, checksum: int, disk: Disk) -> None:
        self.number = file.number
        self.path = file.path
        self.first = file.first
        #: The last command, and the execution number behind the last request.
        self.last = file.last
        self.position = position
        #: Whether it has the checkpoint at its end.
        self.ended = False
        self._size = size
        self._checksum = checksum
        self._disk = disk
        self._unsynced = 0
        #: Whether there is something behind the last block that is not one; and whether a sync has failed: what was
        #: written since the one before may never be on the disk, whatever the next one says.
        self._torn = self._unsure = False

    @classmethod
    def create(
        cls, directory: Path, number: int, header: bytes, block: bytes, runs: list[EncodedRun], disk: Disk
    ) -> "Tail":
        """With its first block: readers never see one without."""
        first, last = runs[0].counter + 1, runs[-1].end
        path = directory / tail_name(number, first)
        temporary = temporary_name(path)
        try:
            file = disk.create(temporary)
            try:
                file.append(header + block)
            finally:
                file.close()
            disk.rename(temporary, path)
        except OSError:
            remove_if_there(temporary, disk)
            raise
        checksum = zlib.crc32(block, zlib.crc32(header))
        found = LogFile(number, first, last, False, path)
        return cls(found, runs[-1].position, len(header) + len(block), checksum, disk)

    @classmethod
    def open(cls, found: LogFile, begin: int, disk: Disk) -> "Tail | None":
        """What a former life left, as far as it is intact; None if it has nothing from execution number `begin` on."""
        last, end, position, ended = found.first - 1, 0, begin, False
        data = b""
        # What the disk cannot read is executed again, like what a crash has cut off.
        with contextlib.suppress(CorruptLog, OSError, *DECODE_ERRORS):
            data = disk.read(found.path)
            file = io.BytesIO(data)
            for block in blocks(file, found.path):
                if block.kind == CHECKPOINT:
                    end, ended = block.end, True
                    break
                runs = read_block(file, found.path, block)
                if not runs or runs[0].first > position or block.first > last + 1:
                    break
                position, last, end = max(runs[-1].end, position), max(block.last, last), block.end
        if position == begin:
            return None
        tail = cls(found._replace(last=last), position, end, zlib.crc32(memoryview(data)[:end]), disk)
        tail.ended = ended
        # Whether it is durable, nobody knows: the last sync of a former life may have failed.
        tail._unsynced, tail._unsure = end, True
        if end < len(data):
            # Readers would take it for damage.
            tail._torn = True
            with tail._open():
                pass
        return tail

    def append(self, last: int, position: int, block: bytes) -> None:
        """What is there of a block if this fails is no block, and gives way to the next one."""
        with self._open() as file:
            self._torn = True
            file.append(block)
            self._torn = False
        self._size += len(block)
        self._unsynced += len(block)
        self._checksum = zlib.crc32(block, self._checksum)
        self.last, self.position = last, position
        if self._unsynced >= UNSYNCED_BYTES_MAX:
            # In pieces: the journal's next record would have to wait behind it.
            self._sync()

    def seal(self, end: SegmentEnd) -> LogFile:
        """Make a segment of it, durably. Can be called again after it has failed: it may have its new name by then."""
        if not self.ended:
            self.append(self.last, self.position, pack_end(end))
            self.ended = True
        path = self.path.with_name(segment_name(self.number, self.first, self.last, self._checksum))
        if self.path != path:
            self._sync()
            self._disk.rename(self.path, path)
            self.path = path
        self._disk.sync_directory(path.parent)
        return LogFile(self.number, self.first, self.last, True, path)

    def _sync(self) -> None:
        if self._unsure:
            self._write_again()
        with self._open() as file:
            try:
                file.sync()
            except OSError:
                self._unsure = True
                raise
        self._unsynced = 0

    def _write_again(self) -> None:
        """As another file, while what was written can still be read."""
        data = self._disk.read(self.path, 0, self._size)
        if zlib.crc32(data) != self._checksum:
            raise RowsLost(f"{self.path}: a sync has failed, and what was written is not there any more")
        write_whole(self.path, (data,), self._disk)
        self._torn = self._unsure = False

    @contextlib.contextmanager
    def _open(self) -> Iterator[File]:
        file = self._disk.open(self.path)
        try:
            if self._torn:
                file.truncate(self._size)
                self._torn = False
            yield file
        finally:
            file.close()


class Part:
    """One segment on its way into a file. Invariant: its tail and `_pending` have the requests from the checkpoint
    before it up to execution number `position`, without a gap."""

    def __init__(self, directory: Path, number: int, header: bytes, position: int, last: int, disk: Disk) -> None:
        self.number = number
        self.tail: Tail | None = None
        #: The execution number behind its last request; and the last command that is known there.
        self.position = position
        self.last = last
        self._directory = directory
        self._header = header
        self._disk = disk
        #: Runs that follow each other and are in no file yet, and their bytes.
        self._pending: list[EncodedRun] = []
        self._pending_bytes = 0

    def go_on_with(self, tail: Tail) -> None:
        """With what a former life has left."""
        self.tail, self.position, self.last = tail, tail.position, tail.last

    @property
    def first(self) -> int | None:
        """Its first command; None: it has none yet."""
        firsts = [run.counter + 1 for run in self._pending[:1]]
        return min([*firsts, *([] if self.tail is None else [self.tail.first])], default=None)

    def take(self, run: EncodedRun) -> None:
        """One that goes on from `position`, or begins before it and ends behind it."""
        if self._pending and run.counter != self._pending[-1].end:
            self.flush()
        self._pending.append(run)
        self._pending_bytes += len(run.data)
        self.position, self.last = run.position, run.end
        if self._pending_bytes >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Show readers what no file has yet."""
        pending = self._pending
        if not pending:
            return
        first, last = pending[0].counter + 1, pending[-1].end
        block = pack_block(first, last, [run.data for run in pending])
        if self.tail is None:
            self.tail = Tail.create(self._directory, self.number, self._header, block, pending, self._disk)
        else:
            self.tail.append(last, pending[-1].position, block)
        self._pending, self._pending_bytes = [], 0

    def seal(self, end: SegmentEnd) -> LogFile:
        """Make a segment of it, durably. Can be called again after it has failed."""
        self.flush()
        assert self.tail is not None
        return self.tail.seal(end)

    def give_up(self, segments: Segments) -> None:
        """It is not needed any more, or cannot be completed."""
        # One that has its segment's name by now may be the same as that of a peer.
        tail = self.tail
        if tail is not None and (self.number not in segments or segments[self.number].path != tail.path):
            remove_if_there(tail.path, self._disk)


class LogWriter:
    """Invariants: what stands before the checkpoint `segments.sealed` is in segments, or missing; `_head` has what
    follows, up to `position`. `_gap` is a segment that was missing or could not be trusted, and is executed, and so
    written, once more."""

    def __init__(
        self,
        directory: Path,
        settings: LogSettings,
        peers: PeerSegments,
        report: Callable[[str], None],
        disk: Disk = LOCAL,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._interval = settings.checkpoint_interval
        self._header = pack_header(settings.identity, settings.partitions)
        self._report = report
        disk.make_directory(directory)
        remove_leftovers(directory, disk)
        # What the life before has renamed leads on from now on, whatever happens to the machine.
        disk.sync_directory(directory)
        self._refuse_others(settings.identity)
        self.segments = Segments(directory, settings.identity, peers, report, disk)
        self._head = self._part(self.segments.sealed + 1)
        self._gap: Part | None = None
        self._open_tail()

    def _part(self, number: int) -> Part:
        before = number - 1
        last = self.segments[before].last if before in self.segments else 0
        return Part(self._directory, number, self._header, before * self._interval, last, self._disk)

    def _refuse_others(self, identity: LogIdentity) -> None:
        """A log of another cluster or era is set aside; one of another format is a `ForeignLog`."""
        paths = [
            file.path
            for file in (*list_segments(self._directory, self._disk), *list_tails(self._directory, self._disk))
        ]
        if not all(self._is_ours(path, identity) for path in paths):
            reason = f"{self._directory}: belongs to another cluster or era"
            set_all_aside(
                self._directory, paths, lambda name: self._report(f"{reason}; what was here is in {name}"), self._disk
            )
            remove_if_there(self._directory / "begin", self._disk)

    def _is_ours(self, path: Path, identity: LogIdentity) -> bool:
        """What is damaged, or cannot be read, does not say whose it is, and is found when it is read as a whole."""
        try:
            return identity_of(path, self._disk) == identity
        except CorruptLog:
            return True
        except OSError as error:
            self._report(f"{path}: {error.strerror}")
            return True

    def _open_tail(self) -> None:
        for found in list_tails(self._directory, self._disk):
            wanted = found.number == self._head.number and self._head.tail is None
            tail = Tail.open(found, self.position, self._disk) if wanted else None
            if tail is None:
                remove_if_there(found.path, self._disk)
            else:
                self._head.go_on_with(tail)

    @property
    def position(self) -> int:
        """The execution number that the log does not have yet."""
        return self._head.position

    @property
    def last(self) -> int:
        """The last command in the log."""
        return self._head.last

    @property
    def first(self) -> int | None:
        """The first command in the log; None: it has none."""
        first, parts = self.segments.first, [part for part in (self._gap, self._head) if part is not None]
        firsts = [*([] if first is None else [first.first]), *(part.first for part in parts)]
        return min((first for first in firsts if first is not None), default=None)

    def take(self, run: EncodedRun) -> None:
        """What the log has already is passed over, unless there is something new in the same run."""
        number = run.first // self._interval + 1
        if number > self.segments.sealed:
            self._end_gap()
            part: Part | None = self._head
        else:
            part = self._part_in_gap(number, run)
        if part is None or run.position <= part.position:
            return
        if run.first > part.position:
            raise RowsLost(f"{self._directory}: the requests [{part.position}, {run.first}) are missing")
        part.take(run)

    def _part_in_gap(self, number: int, run: EncodedRun) -> Part | None:
        """Where this is written that the log should have; None: it has it, or the executor has begun behind its
        beginning."""
        gap = self._gap
        if gap is not None and (gap.number != number or run.first > gap.position):
            self._end_gap()
            gap = None
        if gap is None and run.first == (number - 1) * self._interval and not self.segments.holds(number):
            gap = self._gap = self._part(number)
        return gap

    def _end_gap(self) -> None:
        if self._gap is not None:
            self._gap.give_up(self.segments)
            self._gap = None

    def flush(self) -> None:
        """Show readers what no file has yet."""
        for part in (self._gap, self._head):
            if part is not None:
                part.flush()

    def seal(self, mark: t.Mark) -> None:
        """The executor is at this checkpoint: make durable what the log has up to it. That need not be everything."""
        number = mark.checkpoint.number
        end = SegmentEnd(number, mark.checkpoint.digest, mark.counter)
        if number <= self.segments.sealed:
            self._seal_gap(end)
            return
        if (number, self.position) != (self._head.number, number * self._interval):
            raise RowsLost(f"{self._directory}: is at {self.position}, behind {self.segments.sealed}, not at {number}")
        self.segments.adopt(self._head.seal(end), end.digest)
        self.segments.jump(number)
        self._head = self._part(number + 1)

    def _seal_gap(self, end: SegmentEnd) -> None:
        gap = self._gap
        if gap is None or gap.number != end.number:
            self.segments.compare(end.number, end.digest)
            return
        if gap.position == end.number * self._interval and not self.segments.holds(end.number):
            self.segments.adopt(gap.seal(end), end.digest)
            self._gap = None
        else:
            self._end_gap()

    def leap(self, number: int, begin: int | None = None) -> None:
        """The log leads to this checkpoint by what was brought here. What was to be its way there is not needed."""
        self.segments.jump(number, begin)
        if self._gap is not None and self._gap.number <= number:
            self._end_gap()
        if number * self._interval < self.position:
            return
        head, self._head = self._head, self._part(number + 1)
        if number not in self.segments:
            self._head.last = head.last
        head.give_up(self.segments)
