"""The journal of a container on a real disk: segments in a directory, group-committed with fdatasync.

The directory is locked: two lives of a container cannot both write. Each segment begins with a line that says which
cluster, era and container it belongs to; a journal of another one is refused. What the format promises, and why a
torn tail is cut but a damaged record is not, is in `tara.protocol.journal`.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from tara.protocol import journal as format
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError

SEGMENT_BYTES = 64 << 20


class JournalError(TaraError):
    """A journal that cannot be used: locked, foreign, or of a newer format."""


class Identity(Struct, frozen=True):
    version: int
    cluster: int
    era: int
    container: int


class FileJournal:
    def __init__(self, directory: Path, identity: Identity, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._identity = identity
        self._segment_bytes = segment_bytes
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise JournalError(f"{directory}: another process uses this journal") from error
        self._segments: list[tuple[Path, format.Segment]] = []
        self._file = -1

    def replay(self) -> dict[int, list[t.JournalEntry]]:
        """What former lives wrote, by node; a torn tail is cut. Call once, before `append`."""
        found: dict[int, list[t.JournalEntry]] = {}
        for path in sorted(self._directory.glob("*.journal")):
            data = path.read_bytes()
            start = self._check_identity(path, data)
            if start is None:
                # It died while it created the segment: nothing was ever appended.
                path.unlink()
                continue
            try:
                whole = format.scan(data[start:])
            except format.CorruptJournal as error:
                raise format.CorruptJournal(f"{path}: {error}") from error
            segment = format.Segment()
            segment.note(whole.entries, whole.valid_bytes)
            if start + whole.valid_bytes < len(data):
                os.truncate(path, start + whole.valid_bytes)
            self._segments.append((path, segment))
            for number, entry in whole.entries:
                found.setdefault(number, []).append(entry)
        if self._segments:
            self._file = os.open(self._segments[-1][0], os.O_WRONLY | os.O_APPEND)
            os.fsync(self._file)
        return found

    def _check_identity(self, path: Path, data: bytes) -> int | None:
        end = data.find(b"\n")
        if end < 0:
            return None
        try:
            identity = msgspec.json.decode(data[:end], type=Identity)
        except msgspec.DecodeError as error:
            raise format.CorruptJournal(f"{path}: the first line is damaged") from error
        if identity.version > format.FORMAT_VERSION:
            raise JournalError(
                f"{path}: format version {identity.version} is newer than {format.FORMAT_VERSION}: use a newer Tara"
            )
        if identity != self._identity:
            raise JournalError(f"{path}: belongs to {identity}, not to {self._identity}")
        return end + 1

    def append(self, entries: list[format.Written]) -> None:
        """Write and sync; durable on return."""
        if self._file < 0:
            self._begin_segment()
        packed = format.pack(entries)
        view = memoryview(packed)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)
        self._segments[-1][1].note(entries, len(packed))

    def roll(self, resumed: Callable[[], list[format.Written]], minimum: Callable[[int], int]) -> None:
        """Begin a new segment if the last one is full, and drop those that are not needed any more."""
        if self._segments and self._segments[-1][1].size > self._segment_bytes:
            self._begin_segment()
            self.append(resumed())
        while len(self._segments) > 1 and self._segments[0][1].obsolete(minimum):
            path, _ = self._segments.pop(0)
            path.unlink()

    def _begin_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        last = int(self._segments[-1][0].stem) if self._segments else 0
        path = self._directory / f"{last + 1:010}.journal"
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        os.write(self._file, msgspec.json.encode(self._identity) + b"\n")
        os.fsync(self._file)
        sync_directory(self._directory)
        self._segments.append((path, format.Segment()))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        os.close(self._lock)


def sync_directory(directory: Path) -> None:
    """Make names that were created or renamed durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
