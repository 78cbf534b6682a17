"""Files that are there durably and as a whole, or not at all; and what is done with those that are damaged.

Everything that Tara keeps in a data directory goes through here, or through the journal. It is for its user alone:
files have mode 0600, directories 0700. Nothing that is damaged is deleted: it is set aside, where an operator finds it,
in a bounded number of copies.
"""

import contextlib
import os
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path

from tara.protocol.errors import TaraError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
TEMPORARY = ".tmp"
#: What may wait for the disk at once while a file is written: the journal's next record would have to wait behind it.
UNSYNCED_BYTES_MAX = 8 << 20
#: The directory for what is damaged, beside what is not; and how many are kept there.
DAMAGED = "damaged"
DAMAGED_KEPT = 4
#: A small file ends with the checksum of what stands before it, in hexadecimal, and the end of the line.
_CHECK_BYTES = 9


class DamagedFile(TaraError):
    """A file that is not what was written."""


def make_directory(directory: Path) -> None:
    """With those above it that are missing. For its user only."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    if not directory.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(directory))


def sync_directory(directory: Path) -> None:
    """Make names that were created or renamed durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file durably, as a whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, FILE_MODE)
    try:
        unsynced = 0
        for part in parts:
            write_all(descriptor, part)
            unsynced += len(part)
            if unsynced >= UNSYNCED_BYTES_MAX:
                unsynced = 0
                os.fdatasync(descriptor)
        os.fsync(descriptor)
        os.rename(temporary, path)
    except BaseException:
        # What went wrong is more interesting than that it cannot be cleaned up; the next start does that.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def remove_leftovers(directory: Path) -> list[str]:
    """Remove what crashes have left of files that were being written; nobody else may be writing here."""
    found = [path for path in directory.glob(f"*{TEMPORARY}") if path.is_file()]
    for path in found:
        path.unlink(missing_ok=True)
    return sorted(path.name for path in found)


def set_aside(path: Path) -> Path:
    """Move a damaged file, or a directory, out of the way; returns where it is now. The oldest of those kept goes."""
    aside = path.parent / DAMAGED
    make_directory(aside)
    numbers = [int(old.name.partition("-")[0]) for old in aside.iterdir() if old.name.partition("-")[0].isdigit()]
    target = aside / f"{max(numbers, default=0) + 1:06}-{path.name}"
    path.rename(target)
    sync_directory(aside)
    sync_directory(path.parent)
    bound(aside)
    return target


def bound(aside: Path) -> None:
    """Keep the newest of what was set aside."""
    kept = sorted(old for old in aside.iterdir() if old.name.partition("-")[0].isdigit())
    for old in kept[:-DAMAGED_KEPT]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


# Small files


def pack_small(data: bytes) -> bytes:
    """With a checksum at its end, in a line of its own."""
    return b"%b\n%08x\n" % (data, zlib.crc32(data))


def unpack_small(data: bytes) -> bytes:
    body, check = data[: -_CHECK_BYTES - 1], data[-_CHECK_BYTES - 1 :]
    if check != b"\n%08x\n" % zlib.crc32(body):
        raise DamagedFile("is damaged: its checksum does not match")
    return body


def write_small(path: Path, data: bytes) -> None:
    write_whole(path, (pack_small(data),))


def read_small(path: Path) -> bytes:
    """What was written; `DamagedFile` if it is not what was written, FileNotFoundError if there is no such file."""
    try:
        return unpack_small(path.read_bytes())
    except DamagedFile as error:
        raise DamagedFile(f"{path}: {error}") from error
