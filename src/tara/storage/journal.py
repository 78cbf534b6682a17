"""The journal of a container on a real disk: segments in a directory, group-committed with fdatasync.

What the format promises, how damage is told from a torn tail, and what becomes of it, is in `tara.protocol.journal`.
The directory is locked: two lives of a container cannot both write. A journal of another cluster, era or container is
refused.

A damaged journal is read as far as that goes. When the committers have made of it what they can, `restore` begins a new
segment with all that they know, and the old segments are set aside, for an operator to look at. Where nobody can know
what was promised, the journal is set aside as a whole, and its committers rejoin without memory.

When the disk is full, `append` cuts what it wrote of the record and tries again for a while; then it gives up with an
error. Either way it returns only when the record is durable, so nothing that rests on it has left the container. Any
other failure of a write or sync is final at once, and so is one to cut: after it nobody knows what the disk has, and
only a restart reads it.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from tara.host.latency import Histogram
from tara.protocol import journal as format
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.storage.files import (
    DAMAGED,
    DAMAGED_KEPT,
    FILE_MODE,
    bound,
    make_directory,
    remove_leftovers,
    sync_directory,
    write_all,
    write_whole,
)

SEGMENT_BYTES = 64 << 20
#: How long an append waits for room on the disk, and how often it looks.
FULL_DISK_PATIENCE_S = 10.0
FULL_DISK_PAUSE_S = 0.2
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: The file with the end marker.
MARKER_FILE = "end"
SEGMENT_FILES = "[0-9]" * 10 + ".journal"
#: What is read at once of a file on a disk that fails.
SALVAGED_BYTES = 4096


class JournalError(TaraError):
    """A journal that cannot be used: locked, foreign, or of another format; or a disk that fails."""


class StaleJournal(TaraError):
    """A journal that means nothing any more: its container has voted elsewhere since, or in a newer era."""


class Identity(Struct, frozen=True):
    cluster: int
    era: int
    container: int


class ReadJournal(Struct):
    """What is in a journal's directory."""

    found: format.Assembled
    #: By the numbers in their names.
    scans: dict[int, format.Scan]
    #: As far as segments or marker tell.
    name: str
    has_marker: bool

    @property
    def is_empty(self) -> bool:
        return not self.scans and self.found.sequence == 0


class FileJournal:
    def __init__(
        self,
        directory: Path,
        identity: Identity,
        segment_bytes: int = SEGMENT_BYTES,
        on_trouble: Callable[[OSError], None] = lambda error: None,
        patience_s: float = FULL_DISK_PATIENCE_S,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._segment_bytes = segment_bytes
        #: Told of each write that failed and will be tried again.
        self._on_trouble = on_trouble
        self._patience_s = patience_s
        self.sync_times = Histogram()
        #: What every committer that has a memory has promised so far.
        self.resumed: Callable[[], list[format.Written]] = list
        self._reset()
        self._lock = self._open()

    def _reset(self) -> None:
        #: What `replay` found damaged, in words; and whether the journal has to be restored before it is used.
        self.problems: list[str] = []
        self.broken = False
        self._segments: list[tuple[int, format.Segment]] = []
        self._file = -1
        self._marker = -1
        self._slot = 0
        #: The number of the last record, and the length of the last segment as far as they are durable.
        self._sequence = 0
        self._end = 0
        self._sync = b""
        self._name: str | None = None
        #: Why nothing may be written any more in this life.
        self._failure = ""

    def _open(self) -> int:
        try:
            make_directory(self._directory)
            lock = os.open(lock_file(self._directory), os.O_CREAT | os.O_RDWR, FILE_MODE)
        except OSError as error:
            raise JournalError(f"{self._directory}: cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise JournalError(f"{self._directory}: another process uses this journal") from error
        return lock

    def set_aside(self) -> Path:
        """Put the journal out of the way, as a whole, and begin with an empty one; returns where it went.

        One rename of the directory: half a journal would look like one whose newest votes were never cast."""
        self._close_files()
        old = [int(path.name.rpartition("-")[2]) for path in self._damaged()]
        target = self._directory.with_name(f"{self._directory.name}.damaged-{max(old, default=0) + 1}")
        self._directory.rename(target)
        sync_directory(self._directory.parent)
        os.close(self._lock)
        self._reset()
        self._lock = self._open()
        for path in self._damaged()[:-DAMAGED_KEPT]:
            shutil.rmtree(path)
        return target

    def _damaged(self) -> list[Path]:
        """The journals that were set aside, oldest first."""
        found = self._directory.parent.glob(f"{self._directory.name}.damaged-*")
        numbered = [path for path in found if path.name.rpartition("-")[2].isdigit()]
        return sorted(numbered, key=lambda path: int(path.name.rpartition("-")[2]))

    @property
    def name(self) -> str:
        """What the journal is called; empty: it has no name yet."""
        if self._name is None:
            self._name = journal_name(self._directory)
        return self._name

    @property
    def is_empty(self) -> bool:
        return not any(self._directory.glob(SEGMENT_FILES))

    def rename(self, name: str) -> None:
        """Give an empty journal its name, durably, before anything is written under it."""
        if self.name == name:
            return
        if not self.is_empty:
            raise JournalError(f"{self._directory}: is journal {self.name!r}, and not {name!r}")
        self._name = name
        with _naming(self._directory):
            self._make_marker([])

    def replay(self) -> dict[int, list[t.ReplayedEntry]]:
        """What former lives wrote, by node, with `Lost` where something is missing. A torn tail is cut. Call once,
        before `append`; and `restore` after it if the journal is broken."""
        with _naming(self._directory):
            remove_leftovers(self._directory)
            read = read_journal(self._directory, self._identity)
            found = read.found
            self.problems, self.broken = found.problems, found.broken
            self._sequence, self._name = found.sequence, read.name
            for number in found.order:
                segment = format.Segment()
                segment.note(read.scans[number].entries, read.scans[number].end)
                self._segments.append((number, segment))
            if not self.broken:
                # Never promised to anybody, or void since the journal was restored.
                self._set_segments_aside([self._path(number) for number in found.void])
                if self._segments:
                    self._go_on(read.scans[found.order[-1]])
            if read.has_marker:
                self._marker = os.open(self._directory / MARKER_FILE, os.O_RDWR)
        return found.entries

    def _go_on(self, last: format.Scan) -> None:
        if last.head is None:
            raise JournalError(f"{self._directory}: the last segment has no head")
        path = self._path(self._segments[-1][0])
        self._end, self._sync = last.end, bytes.fromhex(last.head.sync)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        if last.torn:
            os.ftruncate(self._file, self._end)
        os.fsync(self._file)

    def restore(self, entries: list[format.Written]) -> Path | None:
        """Begin a new segment with all that the committers know. The old ones are set aside; returns where they are."""
        with _naming(self._directory):
            old = sorted(self._directory.glob(SEGMENT_FILES))
            self._begin_segment(entries, restored=True)
            self._segments = self._segments[-1:]
            self._make_marker(self.resumed())
            self.broken = False
            return self._set_segments_aside(old)

    def mark(self) -> None:
        """State what is durable, durably: when the committers have come back from the journal."""
        if self._segments:
            with _naming(self._directory):
                self._make_marker(self.resumed())

    def _set_segments_aside(self, paths: list[Path]) -> Path | None:
        if not paths:
            return None
        target = self._directory / DAMAGED / f"{time.time_ns():020}"
        make_directory(target)
        for path in paths:
            path.rename(target / path.name)
        sync_directory(target)
        sync_directory(target.parent)
        sync_directory(self._directory)
        bound(target.parent)
        return target

    def append(self, entries: list[format.Written]) -> None:
        """Write and sync; durable on return. Waits a while if the disk is full."""
        if self.broken or self._failure:
            raise JournalError(f"{self._directory}: {self._failure or 'is damaged, and was not restored'}")
        deadline_s = time.monotonic() + self._patience_s
        while True:
            started_s = time.perf_counter()
            try:
                self._append(entries)
                break
            except OSError as error:
                if self._failure or error.errno not in NO_ROOM or time.monotonic() > deadline_s:
                    self._failure = self._failure or f"cannot be written: {error.strerror}"
                    raise JournalError(f"{self._directory}: {self._failure}") from error
                self._on_trouble(error)
                time.sleep(FULL_DISK_PAUSE_S)
        self.sync_times.add(time.perf_counter() - started_s)

    def _append(self, entries: list[format.Written]) -> None:
        if self._file < 0:
            self._begin_segment([])
        packed = format.pack(entries, self._sequence + 1, self._sync)
        try:
            write_all(self._file, packed)
            os.fdatasync(self._file)
        except OSError:
            self._cut()
            raise
        self._sequence += 1
        self._end += len(packed)
        self._segments[-1][1].note(entries, len(packed))
        self._write_marker(self.resumed())

    def _cut(self) -> None:
        """The next record must not follow a part of this one."""
        try:
            os.ftruncate(self._file, self._end)
        except OSError as error:
            self._failure = f"a part of a record cannot be cut off: {error.strerror}"
            raise

    def roll(self, minimum: Callable[[int], int]) -> None:
        """Begin a new segment if the last one is full, and drop those that are not needed any more."""
        if self._segments and self._segments[-1][1].size > self._segment_bytes:
            try:
                self._begin_segment(self.resumed())
                self._write_marker(self.resumed())
                self._sync_marker()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise JournalError(f"{self._directory}: cannot be written: {error.strerror}") from error
                # The last one goes on growing for now: nothing is lost.
                self._on_trouble(error)
                return
        dropped = 0
        while len(self._segments) > dropped + 1 and self._segments[dropped][1].obsolete(minimum):
            dropped += 1
        if dropped:
            paths = [self._path(number) for number, _ in self._segments[:dropped]]
            del self._segments[:dropped]
            with _naming(self._directory):
                # The marker says which segments there are: it must not name one that is gone.
                self._write_marker(self.resumed())
                self._sync_marker()
                for path in paths:
                    path.unlink()

    def _begin_segment(self, entries: list[format.Written], restored: bool = False) -> None:
        """A new segment, with its first record if there is one; durable on return, and not there at all on failure."""
        number = max([self._number_of(path) for path in self._directory.glob(SEGMENT_FILES)], default=0) + 1
        path, sync = self._path(number), secrets.token_bytes(format.SYNC_BYTES)
        head = format.Head(
            cluster=self._identity.cluster,
            era=self._identity.era,
            container=self._identity.container,
            journal=self.name,
            segment=number,
            first=self._sequence + 1,
            sync=sync.hex(),
            restored=restored,
        )
        if self._marker < 0 and self._sequence == 0:
            self._make_marker([])
        record = format.pack(entries, self._sequence + 1, sync) if entries or restored else b""
        begin = format.pack_head(head) + record
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, FILE_MODE)
        try:
            write_all(file, begin)
            os.fsync(file)
            sync_directory(self._directory)
        except OSError:
            os.close(file)
            path.unlink()
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._end, self._sync = file, len(begin), sync
        self._sequence += bool(record)
        segment = format.Segment()
        segment.note(entries, len(begin))
        self._segments.append((number, segment))

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:010}.journal"

    @staticmethod
    def _number_of(path: Path) -> int:
        return int(path.stem)

    # The end marker

    def _make_marker(self, states: list[format.Written]) -> None:
        """Both slots, durably."""
        slot = format.pack_marker(self._marked(states))
        write_whole(self._directory / MARKER_FILE, (slot, slot))
        if self._marker >= 0:
            os.close(self._marker)
        self._marker = os.open(self._directory / MARKER_FILE, os.O_RDWR)

    def _marked(self, states: list[format.Written]) -> format.Marker:
        segments = self._segments
        return format.Marker(
            cluster=self._identity.cluster,
            era=self._identity.era,
            container=self._identity.container,
            journal=self._name or "",
            first=segments[0][0] if segments else 1,
            segment=segments[-1][0] if segments else 0,
            sequence=self._sequence,
            states=states,
        )

    def _write_marker(self, states: list[format.Written]) -> None:
        """Into the slot with the older one. Not synced: it may be older than the journal, never newer."""
        self._slot ^= 1
        try:
            if self._marker < 0:
                self._make_marker(states)
            os.pwrite(self._marker, format.pack_marker(self._marked(states)), self._slot * format.MARKER_SLOT_BYTES)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._failure = f"the end marker cannot be written: {error.strerror}"
                raise JournalError(f"{self._directory}: {self._failure}") from error
            self._on_trouble(error)

    def _sync_marker(self) -> None:
        os.fdatasync(self._marker)

    def close(self) -> None:
        """Let go of the files; the next life may have them. Closing twice is fine."""
        if self._marker >= 0:
            # A marker that is not synced is as good as one before a power cut.
            with contextlib.suppress(OSError):
                self._sync_marker()
        self._close_files()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _close_files(self) -> None:
        for file in (self._file, self._marker):
            if file >= 0:
                os.close(file)
        self._file = self._marker = -1


@contextlib.contextmanager
def _naming(directory: Path) -> Iterator[None]:
    """Says which journal it was."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{directory}: cannot be used: {error.strerror or error}") from error


# Reading without using


def read_journal(directory: Path, identity: Identity) -> ReadJournal:
    """Look at a journal; changes nothing. `JournalError` or `StaleJournal` if it is not of this container and era."""
    owner = (identity.cluster, identity.era, identity.container)
    marker, problems = _read_marker(directory)
    scans: dict[int, format.Scan] = {}
    for path in sorted(directory.glob(SEGMENT_FILES)):
        try:
            scans[int(path.stem)] = format.scan(read_salvaging(path))
        except format.ForeignJournal as error:
            raise JournalError(f"{path}: {error}") from error
    heads = {number: scan.head for number, scan in scans.items() if scan.head is not None}
    owners = {head.owner for head in heads.values()} or ({marker.owner} if marker is not None else set())
    if owners and owner not in owners:
        _refuse(directory, identity, sorted(owners)[0])
    has_marker = marker is not None and marker.owner == owner
    if marker is not None and not has_marker:
        problems.append(f"belongs to {Identity(*marker.owner)}")
        marker = None
    names = Counter(head.journal for head in heads.values() if head.owner == owner)
    name = marker.journal if marker is not None else names.most_common(1)[0][0] if names else ""
    foreign = [number for number, head in heads.items() if head.owner != owner or head.journal != name]
    for number in foreign:
        del scans[number]
    found = format.assemble(scans, marker)
    found.problems = [
        *(f"end marker: {problem}" for problem in problems),
        *(f"segment {number}: is of another journal" for number in foreign),
        *found.problems,
    ]
    found.broken = found.broken or bool(foreign)
    return ReadJournal(found, scans, name, has_marker)


def _refuse(directory: Path, expected: Identity, found: tuple[int, int, int]) -> None:
    cluster, era, container = found
    if (cluster, container) == (expected.cluster, expected.container) and era < expected.era:
        raise StaleJournal(f"{directory}: is of era {era}; this is era {expected.era}")
    raise JournalError(f"{directory}: belongs to {Identity(*found)}, not to {expected}")


def _read_marker(directory: Path) -> tuple[format.Marker | None, list[str]]:
    path = directory / MARKER_FILE
    try:
        return format.read_marker(read_salvaging(path))
    except FileNotFoundError:
        return None, []
    except format.ForeignJournal as error:
        raise JournalError(f"{path}: {error}") from error


def read_salvaging(path: Path) -> bytes:
    """All that the disk gives; zeros, which no checksum takes for anything, where it fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pieces = []
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for offset in range(0, size, SALVAGED_BYTES):
            length = min(SALVAGED_BYTES, size - offset)
            try:
                pieces.append(os.pread(file.fileno(), length, offset).ljust(length, b"\0"))
            except OSError:
                pieces.append(bytes(length))
    return b"".join(pieces)


def journal_directory(data_dir: Path, container: int) -> Path:
    return data_dir / f"journal-{container}"


def lock_file(directory: Path) -> Path:
    """The file that is locked while a container uses the journal in this directory."""
    return directory / "lock"


def journal_name(directory: Path) -> str:
    """The name of the journal in this directory; empty if it has none, or if there is no such directory."""
    try:
        marker, _ = _read_marker(directory)
        if marker is not None:
            return marker.journal
        for path in sorted(directory.glob(SEGMENT_FILES), reverse=True):
            with path.open("rb") as file:
                head = format.read_head(file.read(format.HEAD_BYTES))
            if head is not None:
                return head.journal
        return ""
    except NotADirectoryError:
        return ""
    except (OSError, format.ForeignJournal) as error:
        raise JournalError(f"{directory}: its name cannot be read: {error}") from error
