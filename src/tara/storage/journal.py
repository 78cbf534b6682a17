"""The journal of a container on its disk: segments in a directory, group-committed with a sync.

What the format promises, how damage is told from a torn tail, and what becomes of it, is in `tara.protocol.journal`.
The directory is locked: two lives of a container cannot both write. A journal of another cluster, era or container is
refused.

A damaged journal is read as far as that goes. When the committers have made of it what they can, `restore` begins a new
segment with all that they know, and the old segments are set aside, for an operator to look at. Where nobody can know
what was promised, the journal is set aside as a whole, and its committers rejoin without it.

When the disk is full, `append` cuts what it wrote of the record, and says so; whoever drives the container tries again
for a while. `append` returns only when the record is durable, so nothing that rests on it has left the container. Any
other failure of a write or sync is final at once, and so is one to cut: after it nobody knows what the disk has, and
only a restart reads it.
"""

import contextlib
import errno
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from tara.protocol import journal as format
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.storage.disk import LOCAL, Disk, File, Lock
from tara.storage.files import (
    DAMAGED,
    DAMAGED_KEPT,
    bound,
    list_paths,
    next_aside,
    remove_if_there,
    remove_leftovers,
    write_whole,
)

#: A start reads the last one or two of them whole, so they are not to be long.
SEGMENT_BYTES = 16 << 20
#: How long a container waits for room on the disk, and how often it looks.
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


class NoRoom(JournalError):
    """The disk is full. There may be room again."""


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
    #: The number of the last record of which the marker says that it is durable.
    durable: int
    #: The highest number of a segment, also of one that is missing.
    newest: int


class FileJournal:
    def __init__(
        self,
        directory: Path,
        identity: Identity,
        segment_bytes: int = SEGMENT_BYTES,
        on_trouble: Callable[[Exception], None] = lambda error: None,
        disk: Disk = LOCAL,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self.segment_bytes = segment_bytes
        #: Told of what failed and is done later.
        self._on_trouble = on_trouble
        #: Random bytes, for the sync words.
        self._draw = draw
        self._boot = disk.boot_id()
        #: What every committer that is not recovering has promised so far.
        self.promised: Callable[[], list[format.Written]] = list
        self._reset()
        self._lock: Lock | None = self._open()

    def _reset(self) -> None:
        #: What `replay` found damaged, in words; and whether the journal has to be restored before it is used.
        self.problems: list[str] = []
        self.broken = False
        #: What a power cut may have left as well, and which costs nothing.
        self.notes: list[str] = []
        self._segments: list[tuple[int, format.Segment]] = []
        self._file: File | None = None
        self._marker: File | None = None
        #: The newest slot of the marker, and the newest one that is durable; and how long they are.
        self._slot = self._durable_slot = self._slot_bytes = 0
        #: What every committer that is not recovering had promised after the last record.
        self._states: list[format.Written] = []
        #: A record is durable that the marker does not name yet; and the marker on the disk may name other segments
        #: than there are.
        self._marker_late = self._marker_unsynced = False
        #: A segment that could not be begun: it may still be there, or be there again after a power cut.
        self._unbegun: Path | None = None
        #: Segments that nobody needs any more, and that are still there.
        self._obsolete: list[Path] = []
        #: The highest number that a segment ever had, as far as the marker tells.
        self._newest = 0
        #: The number of the last record, and the length of the last segment as far as they are durable.
        self._sequence = 0
        self._end = 0
        self._sync = b""
        self._name: str | None = None
        #: Why nothing may be written any more in this life.
        self._failure = ""

    def _open(self) -> Lock:
        try:
            self._disk.make_directory(self._directory)
            return self._disk.lock(lock_file(self._directory))
        except BlockingIOError as error:
            raise JournalError(f"{self._directory}: another process uses this journal") from error
        except OSError as error:
            raise JournalError(f"{self._directory}: cannot be used: {error.strerror}") from error

    def set_aside(self) -> Path:
        """Put the journal out of the way, as a whole, and begin with an empty one; returns where it went.

        One rename of the directory: half a journal would look like one whose newest votes were never cast."""
        disk = self._disk
        self._close_files()
        old = [int(path.name.rpartition("-")[2]) for path in self._damaged()]
        target = self._directory.with_name(f"{self._directory.name}.damaged-{max(old, default=0) + 1}")
        disk.rename(self._directory, target)
        disk.sync_directory(self._directory.parent)
        self._unlock()
        self._reset()
        self._lock = self._open()
        for path in self._damaged()[:-DAMAGED_KEPT]:
            disk.remove_tree(path)
        return target

    def _damaged(self) -> list[Path]:
        """The journals that were set aside, oldest first."""
        found = list_paths(self._directory.parent, f"{self._directory.name}.damaged-*", self._disk)
        numbered = [path for path in found if path.name.rpartition("-")[2].isdigit()]
        return sorted(numbered, key=lambda path: int(path.name.rpartition("-")[2]))

    @property
    def name(self) -> str:
        """What the journal is called; empty: it has no name yet."""
        if self._name is None:
            self._name = journal_name(self._directory, self._disk)
        return self._name

    @property
    def is_empty(self) -> bool:
        return not self._paths()

    @property
    def segment(self) -> int:
        """The number of the last segment; 0: there is none."""
        return self._segments[-1][0] if self._segments else 0

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
            remove_leftovers(self._directory, self._disk)
            read = read_journal(self._directory, self._identity, self._disk)
            found = read.found
            self.problems, self.broken, self.notes = found.problems, found.broken, found.notes
            self._sequence, self._name, self._newest = found.sequence, read.name, read.newest
            for number in found.order:
                segment = format.Segment()
                segment.note(read.scans[number].entries, read.scans[number].end)
                self._segments.append((number, segment))
            if not self.broken:
                if self._segments:
                    self._go_on(read.scans[found.order[-1]], read.durable)
                # Never promised to anybody, or void since the journal was restored: what takes their place is durable.
                self._set_segments_aside([self._path(number) for number in found.void])
            if read.has_marker:
                self._marker = self._disk.open(self._directory / MARKER_FILE)
        return found.entries

    def _go_on(self, last: format.Scan, durable: int) -> None:
        """Make durable what was read. A sync may have failed in a former life: the machine shows what it was for, but
        does not write it with the next one, unless it is written again."""
        if last.head is None:
            raise JournalError(f"{self._directory}: the last segment has no head")
        path = self._path(self._segments[-1][0])
        self._end, self._sync = last.end, bytes.fromhex(last.head.sync)
        self._file = self._disk.open(path)
        if last.torn:
            self._file.truncate(self._end)
        start = max((record.end for record in last.records if record.sequence <= durable), default=0)
        if start < self._end:
            self._file.write(start, self._disk.read(path, start, self._end - start))
        self._file.sync()
        self._disk.sync_directory(self._directory)

    def restore(self, entries: list[format.Written]) -> Path | None:
        """Begin a new segment with all that the committers know. The old ones are set aside; returns where they are."""
        with _naming(self._directory):
            old = self._paths()
            self._begin_segment(entries, restored=True)
            self._segments = self._segments[-1:]
            self._make_marker(self.promised())
            self.broken = False
            return self._set_segments_aside(old)

    def mark(self) -> None:
        """State what is durable, durably: when the committers have come back from the journal."""
        if self._segments:
            with _naming(self._directory):
                self._make_marker(self.promised())

    def _set_segments_aside(self, paths: list[Path]) -> Path | None:
        if not paths:
            return None
        target = next_aside(self._directory / DAMAGED, self._disk)
        self._disk.make_directory(target)
        for path in paths:
            self._disk.rename(path, target / path.name)
        for directory in (target, target.parent, self._directory):
            self._disk.sync_directory(directory)
        bound(target.parent, self._disk)
        return target

    def append(self, entries: list[format.Written]) -> None:
        """Write and sync; durable on return. `NoRoom` if the disk is full: try again with the same entries, before
        anybody is told of them."""
        if self.broken or self._failure:
            raise JournalError(f"{self._directory}: {self._failure or 'is damaged, and was not restored'}")
        try:
            self._append(entries)
        except OSError as error:
            if not self._failure and error.errno in NO_ROOM:
                raise NoRoom(f"{self._directory}: cannot be written: {error.strerror}") from error
            self._failure = self._failure or f"cannot be written: {error.strerror}"
            raise JournalError(f"{self._directory}: {self._failure}") from error

    def _append(self, entries: list[format.Written]) -> None:
        if self._unbegun is not None:
            self._remove_unbegun(self._unbegun)
        if self._file is None:
            self._begin_segment([])
        if self._marker_unsynced:
            # Nothing may rest on a segment that could be missing and nobody would notice.
            self._write_marker()
            self._sync_marker()
        if not self._marker_late:
            self._write_record(entries)
            self._states, self._marker_late = self.promised(), True
        self._write_marker()

    def _write_record(self, entries: list[format.Written]) -> None:
        assert self._file is not None
        packed = format.pack(entries, self._sequence + 1, self._sync)
        try:
            self._file.append(packed)
            self._file.sync()
        except OSError:
            self._cut(self._file)
            raise
        self._sequence += 1
        self._end += len(packed)
        self._segments[-1][1].note(entries, len(packed))

    def _cut(self, file: File) -> None:
        """The next record must not follow a part of this one."""
        try:
            file.truncate(self._end)
        except OSError as error:
            self._failure = f"a part of a record cannot be cut off: {error.strerror}"
            raise

    def roll(self) -> None:
        """Begin a new segment if the last one is full, and drop those that are not needed any more."""
        promised = self.promised()
        try:
            if self._segments and self._segments[-1][1].size > self.segment_bytes:
                self._begin_segment(promised)
            while len(self._segments) > 1 and self._segments[0][1].obsolete(promised):
                self._obsolete.append(self._path(self._segments.pop(0)[0]))
                self._marker_unsynced = True
            if self._marker_unsynced:
                self._write_marker()
                self._sync_marker()
            # The marker does not name them any more. The oldest goes first: what is left has no gap.
            while self._obsolete:
                remove_if_there(self._obsolete[0], self._disk)
                del self._obsolete[0]
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._failure = self._failure or f"cannot be written: {error.strerror}"
                raise JournalError(f"{self._directory}: {self._failure}") from error
            # Nothing is lost; the next one does the rest.
            self._on_trouble(error)

    def _begin_segment(self, entries: list[format.Written], restored: bool = False) -> None:
        """A new segment, with its first record if there is one; durable on return. On failure it goes before anything
        else is written."""
        if self._unbegun is not None:
            self._remove_unbegun(self._unbegun)
        number = max([self._newest, *map(_number_of, self._paths())]) + 1
        path, sync = self._path(number), self._draw(format.SYNC_BYTES)
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
        if self._marker is None and self._sequence == 0:
            self._make_marker([])
        record = format.pack(entries, self._sequence + 1, sync) if entries or restored else b""
        begin = format.pack_head(head) + record
        file = self._disk.create(path, exclusive=True)
        try:
            file.append(begin)
            file.sync()
            self._disk.sync_directory(self._directory)
        except OSError:
            file.close()
            self._unbegun = path
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            raise
        if self._file is not None:
            self._file.close()
        self._file, self._end, self._sync = file, len(begin), sync
        self._sequence += bool(record)
        segment = format.Segment()
        segment.note(entries, len(begin))
        self._segments.append((number, segment))
        self._newest, self._marker_unsynced = number, True

    def _remove_unbegun(self, path: Path) -> None:
        """Durably: else there could be two records of one number."""
        remove_if_there(path, self._disk)
        self._disk.sync_directory(self._directory)
        self._unbegun = None

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:010}.journal"

    def _paths(self) -> list[Path]:
        return list_paths(self._directory, SEGMENT_FILES, self._disk)

    def _make_marker(self, states: list[format.Written]) -> None:
        """All slots, durably."""
        self._states = states
        if self._marker is not None:
            # If the new one cannot be made durable, it may still have taken the place of this one.
            self._marker.close()
            self._marker = None
        slot = format.pack_marker(self._marked())
        write_whole(self._directory / MARKER_FILE, (slot,) * format.MARKER_SLOTS, self._disk)
        self._slot, self._durable_slot, self._slot_bytes = 0, 0, len(slot)
        self._marker = self._disk.open(self._directory / MARKER_FILE)
        self._marker_late = self._marker_unsynced = False

    def _marked(self) -> format.Marker:
        segments = self._segments
        return format.Marker(
            cluster=self._identity.cluster,
            era=self._identity.era,
            container=self._identity.container,
            journal=self._name or "",
            first=segments[0][0] if segments else 1,
            segment=self.segment,
            sequence=self._sequence,
            states=self._states,
            boot=self._boot,
        )

    def _write_marker(self) -> None:
        """Into a slot that is neither the newest nor the one that is durable. Not synced: after a power cut the marker
        may be older than the journal, never newer. Without a power cut it is exact, so nobody is told of a record that
        it does not name."""
        free = next(slot for slot in range(format.MARKER_SLOTS) if slot not in (self._slot, self._durable_slot))
        try:
            slot = format.pack_marker(self._marked(), self._slot_bytes)
            if self._marker is None or len(slot) > self._slot_bytes:
                # Or there are more committers now, or longer numbers.
                self._make_marker(self._states)
                return
            self._marker.write(free * self._slot_bytes, slot)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._failure = f"the end marker cannot be written: {error.strerror}"
            raise
        # One that was written in part is written again; the newest one is whole.
        self._slot = free
        self._marker_late = False

    def _sync_marker(self) -> None:
        if self._marker is not None:
            self._marker.sync()
            self._durable_slot, self._marker_unsynced = self._slot, False

    def close(self) -> None:
        """Let go of the files; the next life may have them. Closing twice is fine."""
        # A marker that is not synced is as good as one before a power cut.
        with contextlib.suppress(OSError):
            self._sync_marker()
        self._close_files()
        self._unlock()

    def _close_files(self) -> None:
        for file in (self._file, self._marker):
            if file is not None:
                file.close()
        self._file = self._marker = None

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
        self._lock = None


def _number_of(path: Path) -> int:
    return int(path.stem)


@contextlib.contextmanager
def _naming(directory: Path) -> Iterator[None]:
    """Says which journal it was."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{directory}: cannot be used: {error.strerror or error}") from error


def read_journal(directory: Path, identity: Identity, disk: Disk = LOCAL) -> ReadJournal:
    """Look at a journal; changes nothing. `JournalError` or `StaleJournal` if it is not of this container and era."""
    owner = (identity.cluster, identity.era, identity.container)
    marker, problems = _read_marker(directory, disk)
    scans: dict[int, format.Scan] = {}
    for path in list_paths(directory, SEGMENT_FILES, disk):
        try:
            scans[_number_of(path)] = format.scan(read_salvaging(path, disk))
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
    found = format.assemble(scans, marker, marker is not None and format.is_exact(marker, problems, disk.boot_id()))
    in_marker = [f"end marker: {problem}" for problem in problems]
    found.notes = in_marker if marker is not None else []
    found.problems = [
        *(in_marker if marker is None else []),
        *(f"segment {number}: is of another journal" for number in foreign),
        *found.problems,
    ]
    found.broken = found.broken or bool(foreign)
    durable, last = (marker.sequence, marker.segment) if marker is not None else (0, 0)
    newest = max([last, *scans, *(head.segment for head in heads.values())])
    return ReadJournal(found, scans, name, has_marker, durable, newest)


def _refuse(directory: Path, expected: Identity, found: tuple[int, int, int]) -> None:
    cluster, era, container = found
    if (cluster, container) == (expected.cluster, expected.container) and era < expected.era:
        raise StaleJournal(f"{directory}: is of era {era}; this is era {expected.era}")
    raise JournalError(f"{directory}: belongs to {Identity(*found)}, not to {expected}")


def _read_marker(directory: Path, disk: Disk) -> tuple[format.Marker | None, list[str]]:
    path = directory / MARKER_FILE
    try:
        return format.read_marker(read_salvaging(path, disk))
    except FileNotFoundError:
        return None, []
    except format.ForeignJournal as error:
        raise JournalError(f"{path}: {error}") from error


def read_salvaging(path: Path, disk: Disk = LOCAL) -> bytes:
    """All that the disk gives; zeros, which no checksum takes for anything, where it fails."""
    try:
        return disk.read(path)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pieces, size = [], disk.size(path)
    for offset in range(0, size, SALVAGED_BYTES):
        length = min(SALVAGED_BYTES, size - offset)
        try:
            pieces.append(disk.read(path, offset, length).ljust(length, b"\0"))
        except OSError:
            pieces.append(bytes(length))
    return b"".join(pieces)


def journal_directory(data_dir: Path, container: int) -> Path:
    return data_dir / f"journal-{container}"


def lock_file(directory: Path) -> Path:
    """The file that is locked while a container uses the journal in this directory."""
    return directory / "lock"


def journal_name(directory: Path, disk: Disk = LOCAL) -> str:
    """The name of the journal in this directory; empty if it has none, or if there is no such directory."""
    try:
        marker, _ = _read_marker(directory, disk)
        if marker is not None:
            return marker.journal
        for path in reversed(list_paths(directory, SEGMENT_FILES, disk)):
            head = format.read_head(read_salvaging(path, disk)[: format.HEAD_BYTES])
            if head is not None:
                return head.journal
        return ""
    except NotADirectoryError:
        return ""
    except (OSError, format.ForeignJournal) as error:
        raise JournalError(f"{directory}: its name cannot be read: {error}") from error
