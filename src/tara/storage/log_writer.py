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
from tara.storage.files import UNSYNCED_BYTES_MAX, remove_if_there, remove_leftovers, temporary_name, write_whole
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
from tara.storage.segments import PeerSegments, Segments, set_all_aside


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
        # Whether it is durable, nobody knows.
        tail._unsynced = end
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


class LogWriter:
    """Invariants: the log leads up to the checkpoint `segments.sealed`, and from there on the tail and `_pending` have
    all requests up to `position`."""

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
        self._tail: Tail | None = None
        #: Runs that follow each other and are in no file yet, and their bytes.
        self._pending: list[EncodedRun] = []
        self._pending_bytes = 0
        disk.make_directory(directory)
        remove_leftovers(directory, disk)
        self._refuse_others(settings.identity)
        self.segments = Segments(directory, settings.identity, peers, report, disk)
        #: The execution number that the log does not have yet; and the last command in it.
        self.position = self.segments.sealed * self._interval
        self.last = self.segments.last.last if self.segments.last is not None else 0
        self._open_tail()

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
            wanted = found.number == self.segments.sealed + 1 and self._tail is None
            tail = Tail.open(found, self.position, self._disk) if wanted else None
            if tail is None:
                remove_if_there(found.path, self._disk)
            else:
                self._tail, self.position, self.last = tail, tail.position, tail.last

    @property
    def first(self) -> int | None:
        """The first command in the log; None: it has none."""
        firsts = [file.first for file in (self.segments.first, self._tail) if file is not None]
        return min([*firsts, *(run.counter + 1 for run in self._pending[:1])], default=None)

    def take(self, run: EncodedRun) -> None:
        """What the log has already is passed over, unless there is something new in the same run."""
        if run.position <= self.position:
            return
        if run.first > self.position:
            raise RowsLost(f"{self._directory}: the requests [{self.position}, {run.first}) are missing")
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
        if self._tail is None:
            number = self.segments.sealed + 1
            self._tail = Tail.create(self._directory, number, self._header, block, pending, self._disk)
        else:
            self._tail.append(last, pending[-1].position, block)
        self._pending, self._pending_bytes = [], 0

    def seal(self, mark: t.Mark) -> None:
        """The executor is at this checkpoint: make the log durable up to it."""
        number = mark.checkpoint.number
        if number <= self.segments.sealed:
            return
        if (number, self.position) != (self.segments.sealed + 1, number * self._interval):
            raise RowsLost(f"{self._directory}: is at {self.position}, behind {self.segments.sealed}, not at {number}")
        self.flush()
        assert self._tail is not None
        self.segments.adopt(self._tail.seal(SegmentEnd(number, mark.checkpoint.digest, mark.counter)))
        self.segments.jump(number)
        self._tail = None

    def leap(self, number: int, begin: int | None = None) -> None:
        """The log leads to this checkpoint by what was brought here. What was to be its way there is not needed."""
        self.segments.jump(number, begin)
        if number * self._interval < self.position:
            return
        tail, self._tail, self._pending, self._pending_bytes = self._tail, None, [], 0
        self.position = number * self._interval
        if number in self.segments:
            self.last = self.segments[number].last
        # One that has its segment's name by now may be the same as that of a peer.
        if tail is not None and (tail.number not in self.segments or self.segments[tail.number].path != tail.path):
            remove_if_there(tail.path, self._disk)
