"""A virtual disk, on which the real storage code runs (`tara.storage.disk.Disk`). It survives its container's process.

What is written is there for every process at once, and durable after a sync. A power cut takes what was not synced:
names from some point on, writes to files in any order and torn anywhere. A process can end before any operation that
changes something, and in the middle of a write. Any operation can fail for want of room, and a sync for good: then what
was to be synced never will be, though processes still see it. What lies on the disk can be harmed in all ways that
disks do harm.
"""

import errno
import fnmatch
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path, PurePath

#: What may happen to a file that nobody writes to.
DAMAGES = ("flip", "zero", "cut", "remove", "swap", "stale", "misdirected")
BETWEEN_TWO = ("swap", "misdirected")
#: Files larger than this have no older contents that could come back.
STALE_BYTES_MAX = 1 << 16
ZEROED_BYTES = 200
#: Numbers for the starts of machines. Nothing depends on them but whether two are the same.
_BOOTS = itertools.count(1)

Write = tuple[int, bytes | None]  # an offset and what was written there; None: the file was cut off there


class Crash(BaseException):
    """The process has ended, here."""


class Inode:
    """A file, whatever its name is."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        #: What is there after a power cut, and what was written since.
        self.durable = bytearray(data)
        self.unsynced: list[Write] = []
        #: What was there before the last change.
        self.before: bytes | None = None
        self.mapped = False
        #: The bytes that cannot be read, until something is written there.
        self.unreadable = range(0)
        #: Rises with every change.
        self.version = 0

    @property
    def is_durable(self) -> bool:
        """Whether a power cut would change nothing."""
        return not self.unsynced and not self.mapped and self.durable == self.data

    def change(self, write: Write) -> None:
        self.before = bytes(self.data) if len(self.data) <= STALE_BYTES_MAX else None
        self.unreadable = range(0)
        self.version += 1
        _apply(self.data, write)
        self.unsynced.append(write)

    def sync(self) -> None:
        if self.mapped:
            self.durable = bytearray(self.data)
        for write in self.unsynced:
            _apply(self.durable, write)
        self.unsynced = []

    def lose_power(self, draw: random.Random) -> None:
        if self.mapped:
            # A machine writes mapped memory when it likes.
            data = self.data if draw.random() < 0.5 else self.durable
            self.data, self.durable, self.mapped = bytearray(data), bytearray(data), False
            return
        in_order = draw.random() < 0.5
        for write in self.unsynced[: draw.randrange(len(self.unsynced) + 1)]:
            if in_order or write[1] is None or draw.random() < 0.5:
                _apply(self.durable, write)
            else:
                _apply(self.durable, (write[0], _torn(write[1], draw)))
        self.data, self.unsynced = bytearray(self.durable), []

    def put(self, data: bytes) -> None:
        """What is on the disk is this, whatever anybody wrote."""
        self.data, self.durable, self.unsynced = bytearray(data), bytearray(data), []
        self.version += 1


def _apply(data: bytearray, write: Write) -> None:
    offset, written = write
    if written is None:
        del data[offset:]
        return
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(written)] = written


def _torn(written: bytes, draw: random.Random) -> bytes:
    """A part of it; or all of its length, but not all of its pages. Zeros at its end say nothing, so they are left."""
    says = len(written.rstrip(b"\0"))
    if draw.random() < 0.5:
        return written[: draw.randrange(says + 1)]
    torn = bytearray(written)
    first, end = sorted((draw.randrange(says + 1), draw.randrange(says + 1)))
    torn[first:end] = bytes(end - first)
    return bytes(torn)


class VirtualFile:
    def __init__(self, disk: "VirtualDisk", path: Path, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._size = len(inode.data)

    def append(self, data: bytes) -> None:
        self.write(self._size, data)
        self._size += len(data)

    def write(self, offset: int, data: bytes) -> None:
        try:
            self._disk.operate("write", self._path, len(data))
        except (OSError, Crash):
            if self._disk.draw.random() < 0.8:
                # Some of it was written.
                self._inode.change((offset, data[: self._disk.draw.randrange(len(data) + 1)]))
            raise
        self._inode.change((offset, data))

    def truncate(self, size: int) -> None:
        self._disk.operate("truncate", self._path)
        self._inode.change((size, None))
        self._size = size

    def sync(self) -> None:
        try:
            self._disk.operate("sync", self._path, sum(len(data or b"") for _, data in self._inode.unsynced))
        except OSError:
            # The machine gives it up, but shows it as long as it runs.
            self._inode.unsynced = []
            raise
        self._inode.sync()

    def close(self) -> None:
        pass


class VirtualMap:
    def __init__(self, disk: "VirtualDisk", path: Path, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self.buffer = inode.data

    def flush(self) -> None:
        self._disk.operate("sync", self._path)
        self._inode.sync()


class VirtualLock:
    def __init__(self, locks: set[Path], path: Path) -> None:
        self._locks = locks
        self._path = path

    def close(self) -> None:
        self._locks.discard(self._path)


Rename = tuple[Path | None, Path | None, Inode | None]  # a name goes, another one comes, for this file


class VirtualDisk:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self._files: dict[Path, Inode] = {}
        self._durable: dict[Path, Inode] = {}
        #: Changes of names that are not durable yet.
        self._unsynced: list[Rename] = []
        self._directories: set[Path] = set()
        self._locks: set[Path] = set()
        self._boot = next(_BOOTS)
        #: Directories that are another disk's.
        self.mounts: dict[Path, Callable[[], VirtualDisk | None]] = {}
        #: After how many more operations the process ends; None: it does not.
        self.ends_in: int | None = None
        self.ended = False
        #: Whether there is no room; and how often a call fails then.
        self.full = False
        self.full_share = 0.7
        #: How often there is no room for what is appended to a file of this kind.
        self.torn_suffix, self.torn_share = "", 0.0
        #: So many of the next syncs fail for good.
        self.sync_failures = 0
        #: Calls that fail, each once, one after the other: what, of which files, and how.
        self.errors: list[tuple[str, str, int]] = []
        self.on_error: Callable[[], None] = lambda: None
        #: Files that were harmed while a process had them, and that nobody has moved or replaced since.
        self.harmed: set[Path] = set()
        #: Called before each operation; may raise an OSError.
        self.trouble: Callable[[str, Path], None] | None = None
        #: What its operations cost: for each sync, and for each megabyte; and what they have cost since that was taken.
        self.sync_ms = 0.0
        self.megabyte_ms = 0.0
        self.owed_ms = 0.0
        #: The bytes that were read and written.
        self.moved = 0

    def operate(self, what: str, path: Path, size: int = 0) -> None:
        """Something is about to change."""
        if self.ended:
            raise Crash
        if self.ends_in is not None:
            self.ends_in -= 1
            if self.ends_in < 0:
                self.ended = True
                raise Crash
        if what == "write":
            self.moved += size
        self.owed_ms += size / 1e6 * self.megabyte_ms + (self.sync_ms if what == "sync" else 0.0)
        if self.full and what in ("write", "create", "rename", "map") and self.draw.random() < self.full_share:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        torn = self.torn_share and what == "write" and path.suffix == self.torn_suffix
        if torn and self.draw.random() < self.torn_share:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        if what == "sync" and self.sync_failures:
            self.sync_failures -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        self._fail(what, path)
        if self.trouble is not None:
            self.trouble(what, path)

    def _fail(self, what: str, path: Path) -> None:
        """If it is this call's turn to fail."""
        if self.errors and self.errors[0][0] == what and fnmatch.fnmatchcase(path.name, self.errors[0][1]):
            number = self.errors.pop(0)[2]
            self.on_error()
            raise OSError(number, os.strerror(number), str(path))

    def heal(self) -> None:
        """It does what it is told from now on."""
        self.full, self.sync_failures, self.ends_in, self.torn_share, self.errors = False, 0, None, 0.0, []
        self.sync_ms = self.megabyte_ms = 0.0

    def make_directory(self, directory: Path) -> None:
        self._directories.update((directory, *directory.parents))

    def names(self, directory: Path) -> list[str]:
        self._fail("list", directory)
        disk = self._disk_of(directory)
        if disk is None or directory not in disk._directories:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(directory))
        parent = str(directory)
        return sorted(
            path.name for path in itertools.chain(disk._files, disk._directories) if os.path.dirname(path) == parent
        )

    def exists(self, path: Path) -> bool:
        disk = self._disk_of(path)
        return disk is not None and (path in disk._files or path in disk._directories)

    def size(self, path: Path) -> int:
        return len(self._inode(path).data)

    def read(self, path: Path, offset: int = 0, length: int = -1) -> bytes:
        if self.ended:
            raise Crash
        inode = self._inode(path)
        data = inode.data
        end = offset + length if length >= 0 else len(data)
        if inode.unreadable.start < end and offset < inode.unreadable.stop:
            raise OSError(errno.EIO, "Input/output error", str(path))
        if self.trouble is not None:
            self.trouble("read", path)
        found = bytes(data[offset:] if length < 0 else data[offset : offset + length])
        self.moved += len(found)
        return found

    def create(self, path: Path, exclusive: bool = False) -> VirtualFile:
        self._check_directory(path)
        if exclusive and path in self._files:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        self.operate("create", path)
        inode = Inode()
        self._rename((None, path, inode))
        return VirtualFile(self, path, inode)

    def open(self, path: Path) -> VirtualFile:
        return VirtualFile(self, path, self._inode(path))

    def rename(self, path: Path, target: Path) -> None:
        self._check_directory(target)
        self.operate("rename", target)
        if path in self._directories:
            for inner in [inner for inner in self._directories if inner == path or _is_in(inner, path)]:
                self._directories.discard(inner)
                self._directories.add(target / inner.relative_to(path))
            for inner, inode in [(inner, inode) for inner, inode in self._files.items() if _is_in(inner, path)]:
                self._rename((inner, target / inner.relative_to(path), inode))
        else:
            self._rename((path, target, self._inode(path)))

    def unlink(self, path: Path) -> None:
        if path in self._directories:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        self._inode(path)
        self.operate("unlink", path)
        self._rename((path, None, None))

    def remove_tree(self, directory: Path) -> None:
        for path in [path for path in self._files if _is_in(path, directory)]:
            self.unlink(path)
        self._directories = {path for path in self._directories if path != directory and not _is_in(path, directory)}

    def sync_directory(self, directory: Path) -> None:
        self.operate("sync", directory)
        touching = [
            index
            for index, (old, new, _) in enumerate(self._unsynced)
            if directory in (None if old is None else old.parent, None if new is None else new.parent)
        ]
        # A file system writes the changes of names in their order.
        self._settle_names(max(touching, default=-1) + 1)

    def lock(self, path: Path) -> VirtualLock:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable", str(path))
        self._locks.add(path)
        return VirtualLock(self._locks, path)

    def boot_id(self) -> str:
        return f"{self._boot:032x}"

    def map(self, path: Path, size: int) -> VirtualMap:
        self.operate("map", path)
        inode = self._files.get(path)
        if inode is None or len(inode.data) != size:
            inode = Inode(bytes(size))
            self._rename((None, path, inode))
        inode.mapped = True
        return VirtualMap(self, path, inode)

    def _disk_of(self, path: PurePath) -> "VirtualDisk | None":
        """The disk that has this; None: nobody can get at it."""
        for directory, mounted in self.mounts.items():
            if directory == path or _is_in(path, directory):
                return mounted()
        return self

    def _inode(self, path: Path) -> Inode:
        disk = self._disk_of(path)
        inode = None if disk is None else disk._files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return inode

    def _check_directory(self, path: Path) -> None:
        if path.parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    def _rename(self, change: Rename) -> None:
        self.harmed.difference_update(change[:2])
        _apply_name(self._files, change)
        self._unsynced.append(change)

    def _settle_names(self, count: int) -> None:
        for change in self._unsynced[:count]:
            _apply_name(self._durable, change)
        del self._unsynced[:count]

    def end_process(self) -> None:
        """Whoever used it is gone; what it wrote is there."""
        self._locks.clear()
        self.ends_in, self.ended = None, False
        self.owed_ms = 0.0

    def lose_power(self) -> None:
        self._boot = next(_BOOTS)
        self._settle_names(self.draw.randrange(len(self._unsynced) + 1))
        self._unsynced = []
        self._files = dict(self._durable)
        for inode in self._files.values():
            inode.lose_power(self.draw)

    def paths(self, within: Path, suffixes: tuple[str, ...] = ("",)) -> list[Path]:
        """The files that are there, in this directory or in those in it."""
        there = [path for path in self._files if _is_in(path, within) and path.name.endswith(suffixes)]
        return sorted(there, key=lambda path: path.parts)

    def there(self, directory: Path, suffix: str) -> list[Path]:
        """The files in a directory with such names, and those that were harmed there. Quick: it is asked for often."""
        prefix, found = f"{directory}/", []
        for path in (*self._files, *self.harmed):
            name = str(path)
            if name.endswith(suffix) and name.startswith(prefix) and "/" not in name[len(prefix) :]:
                found.append(path)
        return found

    def version(self, path: Path) -> tuple[Inode, int] | None:
        """Which file is here under this name, and how often it was changed; None: there is none."""
        inode = self._files.get(path)
        return None if inode is None else (inode, inode.version)

    def is_durable(self, path: Path) -> bool:
        """Whether a power cut would leave this file as it is."""
        inode = self._files.get(path)
        return inode is not None and self._durable.get(path) is inode and inode.is_durable

    def forget(self, directory: Path) -> None:
        """All that is in it is gone, and was never there."""
        for files in (self._files, self._durable):
            for path in [path for path in files if path == directory or _is_in(path, directory)]:
                del files[path]
        self._unsynced = [change for change in self._unsynced if not _touches(change, directory)]
        self._directories = {path for path in self._directories if path != directory and not _is_in(path, directory)}

    @property
    def is_empty(self) -> bool:
        return not self._files

    def clone(self) -> "VirtualDisk":
        """What is durable here, on a disk of its own."""
        twin = VirtualDisk(self.draw)
        twin._directories = set(self._directories)
        for path, inode in self._durable.items():
            twin._files[path] = twin._durable[path] = Inode(bytes(inode.durable))
        return twin

    def copy(self, other: "VirtualDisk", directory: Path) -> None:
        """Have what the other one has there."""
        self.make_directory(directory)
        for path in other.paths(directory):
            self.make_directory(path.parent)
            inode = Inode(bytes(other._files[path].data))
            self._files[path] = self._durable[path] = inode

    def flip(self, path: Path, draw: random.Random) -> None:
        """A bit of a file is not what it was."""
        self.harmed.add(path)
        inode = self._files[path]
        data = bytearray(inode.data)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        inode.put(bytes(data))

    def cut(self, path: Path, size: int) -> None:
        """Nothing is left of a file but its beginning."""
        self.harmed.add(path)
        self._files[path].put(bytes(self._files[path].data[:size]))

    def spoil(self, path: Path) -> bool:
        """Some of a file that was durable cannot be read any more; whether there was anything."""
        inode = self._files[path]
        if not inode.data:
            return False
        first = self.draw.randrange(len(inode.data))
        inode.unreadable = range(first, first + ZEROED_BYTES)
        inode.version += 1
        self.harmed.add(path)
        return True

    def damage(self, path: Path, others: list[Path]) -> str | None:
        """Harm a file that was durable; returns how, or None if that was not possible. `others`: of its kind."""
        draw, inode = self.draw, self._files[path]
        # What takes two files is rare enough where there are two.
        kind = draw.choice((*DAMAGES, *BETWEEN_TWO * 2) if len(others) > 1 else DAMAGES)
        data, elsewhere = bytearray(inode.data), False
        if not data and kind != "remove":
            return None
        self.harmed.add(path)
        match kind:
            case "flip":
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            case "zero":
                first = draw.randrange(len(data))
                data[first : first + ZEROED_BYTES] = bytes(len(data[first : first + ZEROED_BYTES]))
            case "cut":
                del data[draw.randrange(len(data)) :]
            case "remove":
                for files in (self._files, self._durable):
                    files.pop(path, None)
                return kind
            case "swap" | "misdirected":
                others = [other for other in others if other != path]
                if not others:
                    return None
                other = draw.choice(others)
                victim = self._files[other]
                self.harmed.add(other)
                if kind == "swap":
                    mine, data = data, bytearray(victim.data)
                    victim.put(bytes(mine))
                else:
                    # What was to be written here was written there.
                    if inode.before is None:
                        return None
                    first = draw.randrange(len(data))
                    written = bytes(data[first : first + ZEROED_BYTES])
                    there = bytearray(victim.data)
                    _apply(there, (min(first, len(there)), written))
                    elsewhere = there != victim.data
                    victim.put(bytes(there))
                    data = bytearray(inode.before)
            case "stale":
                if inode.before is None:
                    return None
                data = bytearray(inode.before)
        if data == inode.data and not elsewhere:
            return None
        inode.put(bytes(data))
        return kind


def _apply_name(files: dict[Path, Inode], change: Rename) -> None:
    old, new, inode = change
    if old is not None:
        files.pop(old, None)
    if new is not None and inode is not None:
        files[new] = inode


def _is_in(path: PurePath, directory: PurePath) -> bool:
    """As `directory in path.parents`, which makes a path for each of them: a run asks a million times."""
    return str(path).startswith(f"{directory}/")


def _touches(change: Rename, directory: Path) -> bool:
    return any(path is not None and _is_in(path, directory) for path in change[:2])
