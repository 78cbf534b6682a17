"""Files that are there durably and as a whole, or not at all; and what is done with those that are damaged.

Everything that Tara keeps in a data directory goes through here, or through the journal. Nothing that is damaged is
deleted: it is set aside, where an operator finds it, in a bounded number of copies.
"""

import contextlib
import fnmatch
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.storage.disk import LOCAL, Disk
from tara.storage.pacer import PacedFile, Pacer

TEMPORARY = ".tmp"
#: The directory for what is damaged, beside what is not; and how many are kept there.
DAMAGED = "damaged"
DAMAGED_KEPT = 4
#: A small file ends with the checksum of what stands before it, in hexadecimal, and the end of the line.
_CHECK_BYTES = 9


class DamagedFile(TaraError):
    """A file that is not what was written."""


def temporary_name(path: Path) -> Path:
    """Where a file is while it is written."""
    return path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")


def write_whole(path: Path, parts: Iterable[bytes], disk: Disk = LOCAL, pacer: Pacer | None = None) -> None:
    """Write a file durably, as a whole or not at all; in pieces, however long the parts are."""
    temporary = temporary_name(path)
    file = PacedFile(disk.create(temporary), pacer)
    try:
        for part in parts:
            file.append(part)
        file.sync()
        disk.rename(temporary, path)
    except BaseException:
        # What went wrong is more interesting than that it cannot be cleaned up; the next start does that.
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    finally:
        file.close()
    disk.sync_directory(path.parent)


def list_paths(directory: Path, pattern: str, disk: Disk = LOCAL) -> list[Path]:
    """What is in a directory under such names, sorted; none if there is no such directory."""
    try:
        return [directory / name for name in disk.names(directory) if fnmatch.fnmatchcase(name, pattern)]
    except FileNotFoundError:
        return []


def remove_leftovers(directory: Path, disk: Disk = LOCAL) -> list[str]:
    """Remove what crashes have left of files that were being written; nobody else may be writing here."""
    found = list_paths(directory, f"*{TEMPORARY}", disk)
    for path in found:
        disk.unlink(path)
    return [path.name for path in found]


def remove_if_there(path: Path, disk: Disk = LOCAL) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)


def set_aside(path: Path, disk: Disk = LOCAL) -> Path:
    """Move a damaged file out of the way; returns where it is now. The oldest of those kept goes."""
    aside = path.parent / DAMAGED
    disk.make_directory(aside)
    target = next_aside(aside, disk, f"-{path.name}")
    disk.rename(path, target)
    disk.sync_directory(aside)
    disk.sync_directory(path.parent)
    bound(aside, disk)
    return target


def next_aside(aside: Path, disk: Disk = LOCAL, suffix: str = "") -> Path:
    """A name behind those that are there."""
    numbers = [int(path.name.partition("-")[0]) for path in _kept(aside, disk)]
    return aside / f"{max(numbers, default=0) + 1:06}{suffix}"


def bound(aside: Path, disk: Disk = LOCAL) -> None:
    """Keep the newest of what was set aside."""
    for old in _kept(aside, disk)[:-DAMAGED_KEPT]:
        try:
            disk.unlink(old)
        except IsADirectoryError:
            disk.remove_tree(old)


def _kept(aside: Path, disk: Disk) -> list[Path]:
    return [path for path in list_paths(aside, "[0-9]*", disk) if path.name.partition("-")[0].isdigit()]


class OtherVersion(Exception):
    """A file of another format, and not damaged."""

    def __init__(self, version: object) -> None:
        super().__init__(f"version {version}")
        self.version = version


def pack_header(content: bytes) -> bytes:
    """The first line of a file: JSON that has a version, and its checksum."""
    return b"%b %08x\n" % (content, zlib.crc32(content))


def unpack_header(line: bytes, version: int) -> bytes:
    """The JSON; `OtherVersion` or `DamagedFile` if it is not of this version. A version is believed if the checksum
    matches, or if there is none, as in former formats."""
    content, _, _ = line.rpartition(b" ")
    matches = line == pack_header(content)
    try:
        found = msgspec.json.decode(content or line, type=dict[str, object]).get("version", 0)
    except t.DECODE_ERRORS as error:
        raise DamagedFile(f"the header is damaged: {error}") from error
    if found != version and (matches or not content):
        raise OtherVersion(found)
    if not matches:
        raise DamagedFile("the header is damaged (the checksum does not match)")
    return content


def pack_small(data: bytes) -> bytes:
    """With a checksum at its end, in a line of its own."""
    return b"%b\n%08x\n" % (data, zlib.crc32(data))


def unpack_small(data: bytes) -> bytes:
    body, check = data[: -_CHECK_BYTES - 1], data[-_CHECK_BYTES - 1 :]
    if check != b"\n%08x\n" % zlib.crc32(body):
        raise DamagedFile("is damaged: its checksum does not match")
    return body


def write_small(path: Path, data: bytes, disk: Disk = LOCAL) -> None:
    write_whole(path, (pack_small(data),), disk)


def read_small(path: Path, disk: Disk = LOCAL) -> bytes:
    """What was written; `DamagedFile` if it is not what was written, FileNotFoundError if there is no such file."""
    try:
        return unpack_small(disk.read(path))
    except DamagedFile as error:
        raise DamagedFile(f"{path}: {error}") from error
