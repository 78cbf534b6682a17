"""Writes the decided log of one executor. One thread uses it; `tara.storage.log` brings it what was executed.

Runs come encoded, and are written as they are, in blocks, to the end of the tail. When a checkpoint is taken, the tail
is synced and becomes a segment by its name: every row is written once.

- The checkpoint store writes a checkpoint only when the log up to it is sealed. So after any crash the log is at least
  as far as the checkpoint that the executor starts from, and what is executed again is in the log already: runs that
  the log has are passed over. Rows are neither missing nor there twice.
- If the executor jumps ahead (to a peer's checkpoint), or the log fell so far behind that it had to let rows go, the
  segments in between are copied from peers. If a peer may have them that cannot be asked, the log goes on behind the
  gap, and fills it later. If no peer has them, the log begins anew after the gap, and what it had is set aside.
- Retention drops whole segments, the oldest first.
- After a start, every segment is read once, one at a time, and compared with its checksum. One that is damaged is set
  aside, and replaced by that of a peer, as is one that is missing; a small file, `begin`, says where the log begins.
  Until then the log has a gap, which readers notice; if no peer has what is missing any more, it begins behind the gap.
"""

import contextlib
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from tara.protocol.errors import TaraError
from tara.protocol.nodes.executor import ExecutorState
from tara.protocol.tuples import DECODE_ERRORS
from tara.storage.disk import LOCAL, Disk, File
from tara.storage.files import (
    DamagedFile,
    bound,
    next_aside,
    read_small,
    remove_if_there,
    remove_leftovers,
    set_aside,
    temporary_name,
    write_small,
    write_whole,
)
from tara.storage.log_format import (
    BLOCK_BYTES,
    CorruptLog,
    LogError,
    LogFile,
    LogIdentity,
    blocks,
    check_segment,
    identity_of,
    is_first_format,
    list_segments,
    list_tails,
    pack_block,
    pack_header,
    parse_segment,
    read_block,
    segment_name,
    tail_name,
)
from tara.storage.remote import RemoteFiles

#: How often it is tried again to fill a gap while somebody may have what is missing: about as many quarters of a
#: minute.
WAITS_MAX = 20
#: How often it is tried to read a segment that the disk cannot read before it is given up.
READS_MAX = 10
#: Where logs go that cannot be continued, each in a directory of its own.
ASIDE = "aside"
#: The file that says which row is the first.
BEGIN_FILE = "begin"
#: Calls of `look_after` between two attempts to fill a gap: doubles up to a maximum.
HEAL_PAUSE_MAX = 64


class LogSettings(Struct, frozen=True, kw_only=True):
    """What a log must know of its cluster."""

    identity: LogIdentity
    partitions: int
    checkpoint_interval: int
    #: Segments beyond this are dropped, oldest first; the newest one stays.
    retention_bytes: int


class RowsLost(Exception):
    """What the tail had cannot be made durable."""


class EncodedRun(NamedTuple):
    """A run as the container hands it over."""

    #: The command counter before and after it; the execution number after it.
    counter: int
    end: int
    position: int
    #: How many requests it has.
    requests: int
    #: A `tara.storage.log_format.Run`, encoded.
    data: bytes


class Tail:
    """The file that grows. Invariant: its blocks hold the rows [first, last] without a gap."""

    def __init__(self, path: Path, first: int, last: int, size: int, checksum: int, disk: Disk) -> None:
        self.path = path
        self.first = first
        self.last = last
        self._size = size
        self._checksum = checksum
        self._disk = disk
        #: Whether there is something behind the last block that is not one; and whether a sync has failed: what was
        #: written since the one before may never be on the disk, whatever the next one says.
        self._torn = self._unsure = False

    @classmethod
    def create(cls, directory: Path, header: bytes, first: int, last: int, block: bytes, disk: Disk) -> "Tail":
        """With its first block: readers never see one without."""
        path = directory / tail_name(first)
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
        return cls(path, first, last, len(header) + len(block), zlib.crc32(block, zlib.crc32(header)), disk)

    @classmethod
    def open(cls, path: Path, next_: int, disk: Disk) -> "Tail | None":
        """What a former life left, as far as it is intact; None if `next_` is not among its rows."""
        first, last, end = int(path.stem), int(path.stem) - 1, 0
        data = b""
        # What the disk cannot read is executed again, like what a crash has cut off.
        with contextlib.suppress(CorruptLog, OSError, *DECODE_ERRORS):
            data = disk.read(path)
            file = io.BytesIO(data)
            for block in blocks(file, path):
                read_block(file, path, block)
                if block.first > last + 1:
                    break
                last, end = max(last, block.last), block.end
        if not first <= next_ <= last:
            return None
        tail = cls(path, first, last, end, zlib.crc32(memoryview(data)[:end]), disk)
        if end < len(data):
            # Readers would take it for damage.
            tail._torn = True
            with tail._open():
                pass
        return tail

    def append(self, last: int, block: bytes) -> None:
        """What is there of a block if this fails is no block, and gives way to the next one."""
        with self._open() as file:
            self._torn = True
            file.append(block)
            self._torn = False
        self._size += len(block)
        self._checksum = zlib.crc32(block, self._checksum)
        self.last = last

    def seal(self) -> LogFile:
        """Make a segment of it, durably. Can be called again after it has failed: it may have its new name by then."""
        path = self.path.with_name(segment_name(self.first, self.last, self._checksum))
        if self.path != path:
            self._sync()
            self._disk.rename(self.path, path)
            self.path = path
        self._disk.sync_directory(path.parent)
        return LogFile(self.first, self.last, True, path)

    def _sync(self) -> None:
        if self._unsure:
            self._write_again()
        with self._open() as file:
            try:
                file.sync()
            except OSError:
                self._unsure = True
                raise

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
    """Invariants: the segments hold the rows up to `_sealed` without a gap, the tail those of (_sealed, last] but for
    those of `_pending`."""

    def __init__(
        self,
        directory: Path,
        settings: LogSettings,
        peers: Sequence[Path],
        report: Callable[[str], None],
        remote: RemoteFiles | None = None,
        disk: Disk = LOCAL,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._identity: LogIdentity = settings.identity
        self._header = pack_header(settings.identity, settings.partitions)
        #: Directories of the other replicas' logs, where this host can read them.
        self._peers = [peer for peer in peers if peer != directory]
        #: What the other replicas have on other hosts, and which replicas these are.
        self._remote = remote
        self._others = [replica for replica, peer in enumerate(peers) if peer != directory]
        self._report = report
        self._segments: list[LogFile] = []
        #: Segments that this life has not read yet; and the rows that are missing among the segments.
        self._unread: list[LogFile] = []
        self.gaps: list[tuple[int, int]] = []
        #: How often a segment could not be read.
        self._unreadable: dict[Path, int] = {}
        self._heal_attempts = self._heal_due = 0
        #: The first row that should be there; None: not known.
        self._begin: int | None = None
        #: The bytes of each segment.
        self._sizes: dict[Path, int] = {}
        self._tail: Tail | None = None
        #: Runs that follow each other and are in no file yet, and their bytes.
        self._pending: list[EncodedRun] = []
        self._pending_bytes = 0
        self._sealed = 0
        #: The last command in the log.
        self.last = 0
        #: Where the executor is: the next execution number, and the command counter. None: not known, because there
        #: is a gap before what comes next.
        self._position: int | None = None
        self._counter = 0
        disk.make_directory(directory)
        self._open()

    @property
    def first(self) -> int:
        """The first command in the log, or the one that it will begin with."""
        return self._segments[0].first if self._segments else self._sealed + 1

    def _open(self) -> None:
        remove_leftovers(self._directory, self._disk)
        segments, tails = list_segments(self._directory, self._disk), list_tails(self._directory, self._disk)
        if not all(map(self._is_ours, [*(file.path for file in segments), *tails])):
            self._set_all_aside("belongs to another cluster, era or format")
            segments, tails = [], []
        # The tail begins where the rows begin that no checkpoint covers.
        self._sealed = max([0, *(file.last for file in segments), *(int(path.stem) - 1 for path in tails)])
        self._segments, self._unread = segments, segments.copy()
        self._begin = self._read_begin()
        if segments and (self._begin is None or self._begin > segments[0].first):
            self._set_begin(segments[0].first)
        self._find_gaps()
        self._sizes = {file.path: self._disk.size(file.path) for file in self._segments}
        self.last = self._sealed
        for path in tails:
            tail = Tail.open(path, self.last + 1, self._disk) if self._tail is None else None
            if tail is None:
                remove_if_there(path, self._disk)
            else:
                self._tail, self.last = tail, tail.last

    def _read_begin(self) -> int | None:
        try:
            return msgspec.json.decode(read_small(self._directory / BEGIN_FILE, self._disk), type=int)
        except FileNotFoundError:
            return None
        except (DamagedFile, msgspec.DecodeError, OSError) as error:
            self._report(str(error))
            return None

    def _set_begin(self, row: int) -> None:
        """Before anything goes: what is missing behind it is a gap."""
        if row != self._begin:
            write_small(self._directory / BEGIN_FILE, msgspec.json.encode(row), self._disk)
            self._begin = row

    def _find_gaps(self) -> None:
        """The rows that should be there, and are in no segment."""
        first = self._segments[0].first if self._segments else self._sealed + 1
        self.gaps, last = [], (first if self._begin is None else self._begin) - 1
        for file in self._segments:
            if file.first > last + 1:
                self.gaps.append((last + 1, file.first - 1))
            last = max(last, file.last)
        if self._sealed > last:
            self.gaps.append((last + 1, self._sealed))

    @property
    def unread(self) -> int:
        """Segments that were not compared with their checksums yet."""
        return len(self._unread)

    def look_after(self) -> None:
        """Read one segment that was not read yet, the newest first; or try to fill a gap."""
        if self._unread:
            file = self._unread.pop()
            try:
                if file in self._segments and not self._is_intact(file):
                    self._lose(file)
            except OSError as error:
                self._read_later(file, error)
        elif self.gaps:
            self._heal_due -= 1
            if self._heal_due <= 0:
                self._heal_attempts += 1
                self._heal_due = min(1 << self._heal_attempts, HEAL_PAUSE_MAX)
                self._heal()

    def _read_later(self, file: LogFile, error: OSError) -> None:
        """What cannot be read now may be intact all the same; what can never be read is as good as damaged."""
        self._report(f"{file.path}: {error.strerror}")
        self._unreadable[file.path] = self._unreadable.get(file.path, 0) + 1
        self._unread.insert(0, file)
        if self._unreadable[file.path] >= READS_MAX:
            self._lose(file)

    def _lose(self, file: LogFile) -> None:
        if self._disk.exists(file.path):
            self._report(f"{file.path}: is in {set_aside(file.path, self._disk)} now, and fetched again")
        self._segments.remove(file)
        self._sizes.pop(file.path, None)
        self._find_gaps()

    def _heal(self) -> None:
        """Fill the last gap with what peers have."""
        first, last = self.gaps[-1]
        found = self._segments_for(first, last)
        if found is None:
            return
        if not found or found[0].first > first:
            before = [file for file in self._segments if file.last < first]
            self._set_begin(found[0].first if found else last + 1)
            reason = f"no peer offers all commands of [{first}, {last}]; the log begins behind them"
            self._set_aside(reason, [file.path for file in before])
            for file in before:
                self._segments.remove(file)
                self._sizes.pop(file.path, None)
        for file in found:
            write_whole(self._directory / file.path.name, (self._disk.read(file.path),), self._disk)
            kept = file._replace(path=self._directory / file.path.name)
            if kept not in self._segments:
                self._segments = sorted([*self._segments, kept])
            self._sizes[kept.path] = self._disk.size(kept.path)
            self._report(f"{kept.path}: is here again")
        if self._remote is not None:
            self._remote.forget_others(())
        self._heal_attempts = 0
        self._find_gaps()

    def _segments_for(self, first: int, last: int) -> list[LogFile] | None:
        """Intact segments of peers that lead from `first` to `last`, or as far back as they go; None: wait."""
        found = self._find_missing(last, first)
        if self._remote is not None and (not found or found[0].first > first):
            with self._remote as remote:
                found = self._fetch_missing(remote, last, first)
        if found is None and self._heal_attempts <= WAITS_MAX:
            return None
        return found or []

    def _is_ours(self, path: Path) -> bool:
        """What is damaged, or cannot be read, is found when it is read as a whole; it says nothing about whose it is.
        `ForeignLog` if it is of a newer format."""
        try:
            return identity_of(path, self._disk) == self._identity
        except CorruptLog:
            return not is_first_format(path, self._disk)
        except OSError as error:
            self._report(f"{path}: {error.strerror}")
            return True

    def take(self, run: EncodedRun) -> None:
        """Rows that the log has already are passed over, unless new ones are in the same run."""
        if run.counter > self.last:
            self._position = None
            return
        self._position, self._counter = run.position, run.end
        if run.end <= self.last:
            return
        if self._pending and run.counter != self._pending[-1].end:
            self.flush()
        self._pending.append(run)
        self._pending_bytes += len(run.data)
        self.last = run.end
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
            self._tail = Tail.create(self._directory, self._header, first, last, block, self._disk)
        else:
            self._tail.append(last, block)
        self._pending, self._pending_bytes = [], 0

    def give_up_rows(self) -> None:
        """Something is wrong with the rows at hand. The cluster must not stand still for its log, so this becomes a
        gap, which the next checkpoint closes."""
        self._drop_tail()
        self.last, self._position = self._sealed, None

    def _drop_tail(self) -> None:
        tail, self._tail, self._pending, self._pending_bytes = self._tail, None, [], 0
        # One that has its segment's name by now may be the same as that of a peer.
        if tail is not None and tail.path not in self._sizes:
            remove_if_there(tail.path, self._disk)

    def seal(self, number: int, state: bytes) -> None:
        """The executor has this checkpoint: make the log durable up to it."""
        if self._position != number * self._settings.checkpoint_interval:
            self._jump(number, state)
        if self._counter > self._sealed:
            self.flush()
            assert self._tail is not None, (self._counter, self._sealed)
            segment = self._tail.seal()
            self._tail = None
            self._adopt(segment)
        self._retain()

    def _adopt(self, segment: LogFile) -> None:
        """A segment that follows what is sealed is in place."""
        self._segments.append(segment)
        self._sizes[segment.path] = self._disk.size(segment.path)
        self._sealed = max(segment.last, self._sealed)
        self.last = max(self.last, self._sealed)

    def _retain(self) -> None:
        """Whatever fails is done the next time: a segment is forgotten when it is gone."""
        total, dropped = sum(self._sizes.values()), 0
        while len(self._segments) > dropped + 1 and total > self._settings.retention_bytes:
            total -= self._sizes[self._segments[dropped].path]
            dropped += 1
        if self._segments and (dropped or self._begin is None):
            self._set_begin(self._segments[dropped].first)
        for file in self._segments[:dropped]:
            remove_if_there(file.path, self._disk)
            self._segments.remove(file)
            del self._sizes[file.path]
        self._find_gaps()

    def _jump(self, number: int, state: bytes) -> None:
        """The executor came to its place by a checkpoint, whose state tells which commands are behind it."""
        counter = msgspec.msgpack.decode(state, type=ExecutorState).sessions.counter
        if counter > self.last:
            self._fill(counter)
        self._position, self._counter = number * self._settings.checkpoint_interval, counter

    def _fill(self, counter: int) -> None:
        """Get the segments up to this counter from peers; begin anew with what there is if it does not join."""
        missing = self._find_missing(counter, self._sealed + 1)
        if self._remote is not None and (not missing or missing[0].first > self._sealed + 1):
            with self._remote as remote:
                missing = self._fetch_missing(remote, counter, self._sealed + 1)
        if missing is None:
            self._leave_gap(counter)
            return
        if not missing or missing[0].first > self._sealed + 1:
            begin = missing[0].first if missing else counter + 1
            self._set_begin(begin)
            if self._segments or self._tail is not None:
                self._set_all_aside(f"no peer has all commands of [{self._sealed + 1}, {counter}]")
                self._drop_tail()
            self._segments, self._sizes, self._unread, self.gaps = [], {}, [], []
            self._sealed = self.last = begin - 1
        for file in missing:
            write_whole(self._directory / file.path.name, (self._disk.read(file.path),), self._disk)
            self._adopt(file._replace(path=self._directory / file.path.name))
        # Whatever it had is in the segments, or aside.
        self._drop_tail()
        if self._remote is not None:
            self._remote.forget_others(())

    def _leave_gap(self, counter: int) -> None:
        """Who may have the commands up to this one has not come that far, or is silent. Checkpoints do not wait for
        that, because the service would stand still with them: go on behind the gap, which is filled later."""
        self._report(f"{self._directory}: waits for a peer to have the commands up to {counter}")
        self.flush()
        if self._tail is not None:
            self._adopt(self._tail.seal())
            self._tail = None
        self._set_begin(self.first if self._begin is None else self._begin)
        self._sealed = self.last = counter
        self._heal_attempts = self._heal_due = 0
        self._find_gaps()

    def _find_missing(self, counter: int, first: int) -> list[LogFile] | None:
        """Intact segments of peers that lead to `counter`, from `first` on if possible. None if peers have not come
        that far yet, or may have more than they can show."""
        offered, silent = self._offered()
        chain = self._chain(offered, counter, self._is_usable, first)
        return None if silent and not _reaches(chain, first) else chain

    def _offered(self) -> tuple[list[LogFile], bool]:
        """The segments of peers whose directories are on this host; and whether one of those cannot be read now."""
        offered: list[LogFile] = []
        silent = False
        for peer in self._peers:
            try:
                offered += list_segments(peer, self._disk)
            except OSError as error:
                silent = True
                self._report(f"{peer}: cannot be listed: {error}")
        return offered, silent

    def _fetch_missing(self, remote: RemoteFiles, counter: int, first: int) -> list[LogFile] | None:
        """The same with what is on other hosts. Peers that cannot be reached may have what is missing: that counts as
        not having come that far yet."""
        holders: dict[Path, list[int]] = {}
        offered, silent = self._offered()
        for replica in self._others:
            try:
                for name in remote.names(replica):
                    holders.setdefault(remote.path(name), []).append(replica)
            except TaraError as error:
                silent = True
                self._report(str(error))

        def is_intact(file: LogFile) -> bool:
            return self._is_usable(file) if file.path not in holders else self._fetch(remote, file, holders[file.path])

        offered += sorted(filter(None, map(parse_segment, holders)))
        chain = self._chain(offered, counter, is_intact, first)
        return None if silent and not _reaches(chain, first) else chain

    def _fetch(self, remote: RemoteFiles, file: LogFile, replicas: list[int]) -> bool:
        """Whether the segment arrived intact from one of these."""
        for replica in replicas:
            try:
                remote.fetch(replica, file.path.name)
            except TaraError as error:
                self._report(str(error))
                continue
            if self._is_usable(file):
                return True
            remote.forget(file.path.name)
        return False

    def _chain(
        self, offered: list[LogFile], counter: int, is_intact: Callable[[LogFile], bool], first: int
    ) -> list[LogFile] | None:
        if offered and max(file.last for file in offered) < counter:
            return None
        chain: list[LogFile] = []
        wanted = counter
        while wanted >= first:
            for file in offered:
                if file.first <= wanted <= file.last and is_intact(file):
                    chain.insert(0, file)
                    wanted = file.first - 1
                    break
            else:
                break
        return chain

    def _is_intact(self, file: LogFile) -> bool:
        """An OSError if the disk cannot tell."""
        try:
            check_segment(file, self._identity, self._disk)
        except (LogError, FileNotFoundError) as error:
            self._report(str(error))
            return False
        return True

    def _is_usable(self, file: LogFile) -> bool:
        """Whether a peer's segment can be had, and is intact."""
        try:
            return self._is_intact(file)
        except OSError as error:
            self._report(str(error))
            return False

    def _set_all_aside(self, reason: str) -> None:
        segments = [file.path for file in list_segments(self._directory, self._disk)]
        self._set_aside(reason, [*segments, *list_tails(self._directory, self._disk)])

    def _set_aside(self, reason: str, paths: list[Path]) -> None:
        """Together, so that they can be read like a log. Of former times, the newest are kept."""
        paths = [path for path in paths if self._disk.exists(path)]
        if not paths:
            self._report(f"{self._directory}: {reason}")
            return
        root = self._directory / ASIDE
        self._disk.make_directory(root)
        aside = next_aside(root, self._disk)
        self._report(f"{self._directory}: {reason}; what was here is in {ASIDE}/{aside.name}")
        self._disk.make_directory(aside)
        for path in paths:
            self._disk.rename(path, aside / path.name)
        for directory in (aside, root, self._directory):
            self._disk.sync_directory(directory)
        bound(root, self._disk)


def _reaches(chain: list[LogFile] | None, first: int) -> bool:
    """Whether nothing is missing before these segments."""
    return chain is not None and chain != [] and chain[0].first <= first
