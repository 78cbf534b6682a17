"""A disk, as small as what is kept on it allows: whatever Tara writes and reads back goes through here, so that another
one can take its place. The simulator has one that fails in every way that disks do.

Files have mode 0600 and directories 0700: a data directory is for its user alone. What goes wrong is an `OSError`, with
a number that says what.
"""

import fcntl
import mmap
import os
import shutil
from pathlib import Path
from typing import Protocol

FILE_MODE = 0o600
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
DIRECTORY_MODE = 0o700


class File(Protocol):
    """A file that is written to. What is written is durable after `sync`."""

    def append(self, data: bytes) -> None:
        """Behind what is there; a part of it may be if this fails, and is written over by the next one."""
        ...

    def write(self, offset: int, data: bytes) -> None: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Mapped(Protocol):
    """A file of fixed length that is a piece of memory. What is stored there outlives the process; after `flush`, also
    the machine."""

    @property
    def buffer(self) -> bytearray | mmap.mmap: ...

    def flush(self) -> None: ...


class Lock(Protocol):
    """Held until it is closed, or until the process ends."""

    def close(self) -> None: ...


class Disk(Protocol):
    def make_directory(self, directory: Path) -> None:
        """With those above it that are missing. Durable on return."""
        ...

    def names(self, directory: Path) -> list[str]:
        """What is in a directory, sorted; FileNotFoundError if there is no such directory."""
        ...

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def read(self, path: Path, offset: int = 0, length: int = -1) -> bytes:
        """`length` bytes at `offset`, or those that there are; -1: all."""
        ...

    def create(self, path: Path, exclusive: bool = False) -> File:
        """An empty file, in place of the one of that name; `exclusive`: FileExistsError if there is one."""
        ...

    def open(self, path: Path) -> File: ...

    def rename(self, path: Path, target: Path) -> None:
        """A file or a directory, at once."""
        ...

    def unlink(self, path: Path) -> None:
        """FileNotFoundError if there is no such file."""
        ...

    def remove_tree(self, directory: Path) -> None:
        """With all that is in it; fine if there is none."""
        ...

    def sync_directory(self, directory: Path) -> None:
        """Names that were created, renamed or removed in it are durable."""
        ...

    def lock(self, path: Path) -> Lock:
        """BlockingIOError if somebody else holds it."""
        ...

    def boot_id(self) -> str:
        """Differs from one start of the machine to the next: what a process has written without a sync is there for
        those that come after it in the same one. Empty: not known, and then no two are the same."""
        ...

    def map(self, path: Path, size: int) -> Mapped:
        """A new file, or one of another size, becomes `size` zeros."""
        ...


class LocalDisk:
    """The file system of this machine."""

    def make_directory(self, directory: Path) -> None:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            self.sync_directory(path.parent)
        if not directory.is_dir():
            raise NotADirectoryError(20, "Not a directory", str(directory))

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path, offset: int = 0, length: int = -1) -> bytes:
        with path.open("rb", buffering=0) as file:
            if offset:
                file.seek(offset)
            if length < 0:
                return file.readall()
            pieces = bytearray()
            while len(pieces) < length and (piece := file.read(length - len(pieces))):
                pieces += piece
            return bytes(pieces)

    def create(self, path: Path, exclusive: bool = False) -> "LocalFile":
        flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | (os.O_EXCL if exclusive else os.O_TRUNC)
        return LocalFile(os.open(path, flags, FILE_MODE))

    def open(self, path: Path) -> "LocalFile":
        return LocalFile(os.open(path, os.O_WRONLY | os.O_CLOEXEC))

    def rename(self, path: Path, target: Path) -> None:
        os.rename(path, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_tree(self, directory: Path) -> None:
        if directory.exists():
            shutil.rmtree(directory)

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> "LocalFile":
        lock = LocalFile(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE))
        try:
            fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        return lock

    def boot_id(self) -> str:
        try:
            return BOOT_ID_FILE.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def map(self, path: Path, size: int) -> "LocalMap":
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, 0)
                # A store to memory cannot fail for want of room.
                os.posix_fallocate(descriptor, 0, size)
            return LocalMap(mmap.mmap(descriptor, size))
        finally:
            os.close(descriptor)


class LocalFile:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    def append(self, data: bytes) -> None:
        self.write(self._size, data)
        self._size += len(data)

    def write(self, offset: int, data: bytes) -> None:
        written = os.pwrite(self.descriptor, data, offset)
        while written < len(data):
            written += os.pwrite(self.descriptor, memoryview(data)[written:], offset + written)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)
        self._size = size

    def sync(self) -> None:
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class LocalMap:
    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer

    def flush(self) -> None:
        self.buffer.flush()


LOCAL = LocalDisk()
