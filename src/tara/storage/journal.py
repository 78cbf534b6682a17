"""The journal of a container on a real disk: segments in a directory, group-committed with fdatasync.

The directory is locked: two lives of a container cannot both write. Each segment begins with a line that says which
cluster, era and container it belongs to; a journal of another one is refused. What the format promises, and why a
torn tail is cut but a damaged record is not, is in `tara.protocol.journal`.

When the disk is full, `append` cuts what it wrote of the record and tries again for a while; then it gives up with an
error. Either way it returns only when the record is durable, so nothing that rests on it has left the container. Any
other failure of a write or sync is final at once: after it nobody knows what the disk has, and only a restart reads it.
"""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from tara.observability.metrics import Histogram
from tara.protocol import journal as format
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError

SEGMENT_BYTES = 64 << 20
#: How long an append waits for room on the disk, and how often it looks.
FULL_DISK_PATIENCE_S = 10.0
FULL_DISK_PAUSE_S = 0.2
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: The file in the directory that has the journal's name.
NAME_FILE = "name"
#: Journals set aside that are kept, per container.
DAMAGED_KEPT = 4


class JournalError(TaraError):
    """A journal that cannot be used: locked, foreign, or of a newer format."""


class Identity(Struct, frozen=True):
    version: int
    cluster: int
    era: int
    container: int


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
        self._lock = self._open()
        self._segments: list[tuple[Path, format.Segment]] = []
        self._file = -1
        #: The length of the last segment as far as it is durable.
        self._end = 0

    def _open(self) -> int:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(lock_file(self._directory), os.O_CREAT | os.O_RDWR, 0o600)
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
        if self._file >= 0:
            os.close(self._file)
        self._file, self._segments, self._end = -1, [], 0
        old = [int(path.name.rpartition("-")[2]) for path in self._damaged()]
        target = self._directory.with_name(f"{self._directory.name}.damaged-{max(old, default=0) + 1}")
        self._directory.rename(target)
        sync_directory(self._directory.parent)
        os.close(self._lock)
        self._lock = self._open()
        for path in self._damaged()[:-DAMAGED_KEPT]:
            shutil.rmtree(path)
        return target

    def rename(self, name: str) -> None:
        """Give the journal this name, durably, before anything is written under it."""
        if self.name == name:
            return
        temporary = self._directory / f"{NAME_FILE}.tmp"
        try:
            with temporary.open("w") as file:
                file.write(name)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self._directory / NAME_FILE)
            sync_directory(self._directory)
        except OSError as error:
            raise JournalError(f"{self._directory}: cannot be written: {error.strerror}") from error

    @property
    def name(self) -> str:
        return journal_name(self._directory)

    @property
    def is_empty(self) -> bool:
        return not any(self._directory.glob("*.journal"))

    def _damaged(self) -> list[Path]:
        """The journals that were set aside, oldest first."""
        found = self._directory.parent.glob(f"{self._directory.name}.damaged-*")
        numbered = [path for path in found if path.name.rpartition("-")[2].isdigit()]
        return sorted(numbered, key=lambda path: int(path.name.rpartition("-")[2]))

    def replay(self) -> dict[int, list[t.JournalEntry]]:
        """What former lives wrote, by node; a torn tail is cut. Call once, before `append`."""
        found: dict[int, list[t.JournalEntry]] = {}
        paths = sorted(self._directory.glob("*.journal"))
        for path in paths:
            start, whole, torn = read_segment(path, self._identity, path == paths[-1])
            if start is None or not whole.entries:
                # It died while it created the segment: nothing was ever appended.
                path.unlink()
                continue
            segment = format.Segment()
            segment.note(whole.entries, whole.valid_bytes)
            self._end = start + whole.valid_bytes
            if torn:
                os.truncate(path, self._end)
            self._segments.append((path, segment))
            for number, entry in whole.entries:
                found.setdefault(number, []).append(entry)
        if self._segments:
            self._file = os.open(self._segments[-1][0], os.O_WRONLY | os.O_APPEND)
            os.fsync(self._file)
        return found

    def append(self, entries: list[format.Written]) -> None:
        """Write and sync; durable on return. Waits a while if the disk is full."""
        packed = format.pack(entries)
        deadline_s = time.monotonic() + self._patience_s
        while True:
            started_s = time.perf_counter()
            try:
                self._append(packed)
                break
            except OSError as error:
                if error.errno not in NO_ROOM or time.monotonic() > deadline_s:
                    raise JournalError(f"{self._directory}: cannot be written: {error.strerror}") from error
                self._on_trouble(error)
                time.sleep(FULL_DISK_PAUSE_S)
        self.sync_times.add(time.perf_counter() - started_s)
        self._segments[-1][1].note(entries, len(packed))

    def _append(self, packed: bytes) -> None:
        if self._file < 0:
            self._begin_segment(b"")
        try:
            _write(self._file, packed)
            os.fdatasync(self._file)
        except OSError:
            # The next record must not follow a part of this one.
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(packed)

    def roll(self, resumed: Callable[[], list[format.Written]], minimum: Callable[[int], int]) -> None:
        """Begin a new segment if the last one is full, and drop those that are not needed any more."""
        if self._segments and self._segments[-1][1].size > self._segment_bytes:
            head = resumed()
            packed = format.pack(head)
            try:
                self._begin_segment(packed)
            except OSError as error:
                # The last one goes on growing for now: nothing is lost.
                self._on_trouble(error)
                return
            self._segments[-1][1].note(head, len(packed))
        while len(self._segments) > 1 and self._segments[0][1].obsolete(minimum):
            path, _ = self._segments.pop(0)
            path.unlink()

    def _begin_segment(self, head: bytes) -> None:
        """A new segment, with its first record if there is one; durable on return, and not there at all on failure."""
        last = int(self._segments[-1][0].stem) if self._segments else 0
        path = self._directory / f"{last + 1:010}.journal"
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        begin = msgspec.json.encode(self._identity) + b"\n" + head
        try:
            _write(file, begin)
            os.fsync(file)
            sync_directory(self._directory)
        except OSError:
            os.close(file)
            path.unlink()
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._end = file, len(begin)
        self._segments.append((path, format.Segment()))

    def close(self) -> None:
        """Let go of the files; the next life may have them. Closing twice is fine."""
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)
        self._file = self._lock = -1


class SegmentRead(NamedTuple):
    """What is in a segment's file: where its records start (None: not even its first line is whole), what can be read
    of them, and whether something follows that was never promised to anybody."""

    start: int | None
    whole: format.Scan
    torn: bool


def read_segment(path: Path, identity: Identity, last: bool) -> SegmentRead:
    """Read a segment of the journal with this identity; only the last one may end in the middle of a record."""
    data = path.read_bytes()
    start = _check_identity(path, data, identity)
    try:
        whole = format.scan(data[start:] if start is not None else b"")
    except format.CorruptJournal as error:
        raise format.CorruptJournal(f"{path}: {error}") from error
    torn = start is None or start + whole.valid_bytes < len(data)
    if torn and not last:
        raise format.CorruptJournal(f"{path}: the end is missing, although a segment follows")
    return SegmentRead(start, whole, torn)


def _check_identity(path: Path, data: bytes, expected: Identity) -> int | None:
    end = data.find(b"\n")
    if end < 0:
        return None
    try:
        identity = msgspec.json.decode(data[:end], type=Identity)
    except msgspec.DecodeError as error:
        raise format.CorruptJournal(f"{path}: the first line is damaged") from error
    if identity.version != format.FORMAT_VERSION:
        raise JournalError(
            f"{path}: has format version {identity.version}, this Tara reads version {format.FORMAT_VERSION}"
        )
    if identity.era < expected.era and msgspec.structs.replace(identity, era=expected.era) == expected:
        raise StaleJournal(f"{path}: is of era {identity.era}; this is era {expected.era}")
    if identity != expected:
        raise JournalError(f"{path}: belongs to {identity}, not to {expected}")
    return end + 1


def journal_directory(data_dir: Path, container: int) -> Path:
    return data_dir / f"journal-{container}"


def lock_file(directory: Path) -> Path:
    """The file that is locked while a container uses the journal in this directory."""
    return directory / "lock"


def journal_name(directory: Path) -> str:
    """The name of the journal in this directory; empty if it has none, or if there is no such directory."""
    try:
        return (directory / NAME_FILE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(f"{directory / NAME_FILE}: cannot be read: {error}") from error


class StaleJournal(TaraError):
    """A journal that means nothing any more: its container has voted elsewhere since, or in a newer era."""


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def sync_directory(directory: Path) -> None:
    """Make names that were created or renamed durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
