"""Base files: snapshots of a whole replicated state, and what is kept of them.

A file is a header line (JSON: format version, cluster, era, checkpoint and its digest; and a checksum, so that nothing
that is damaged passes for somebody else's), the protocol's state and the application's chunks with their lengths, the
digest of these, and a checksum of everything that the digest does not cover: header, lengths and the digest itself. Its
name has the checkpoint's number. It is written in pieces under a temporary name, and renamed; it is read in pieces,
too: once to see that it is intact, and once to be restored.
"""

import struct
from collections.abc import Generator, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.errors import BaseUnreadable
from tara.protocol.state_digest import DIGEST_BYTES, StateDigest
from tara.storage.disk import LOCAL, Disk
from tara.storage.files import DamagedFile, OtherVersion, list_paths, pack_header, temporary_name, unpack_header
from tara.storage.pacer import PacedFile, Pacer

FORMAT_VERSION = 6
_LENGTH = struct.Struct("<Q")
#: In place of a length: no part follows.
_END = (1 << 64) - 1
HEADER_BYTES_MAX = 4096
CHECKSUM_BYTES = 16
READ_BYTES = 1 << 20
#: The names of bases; what else is in their directory is not touched.
BASE_FILES = "[0-9]" * 12 + ".base"


class BaseHeader(Struct, frozen=True):
    version: int
    cluster: int
    era: int
    number: int
    #: The checkpoint's digest, in hexadecimal.
    digest: str


class BaseError(Exception):
    """A base that cannot be used; another copy, or an older one, may be."""


class ForeignBase(BaseError):
    """A base of another cluster, era or format: not ours, but not damaged."""


def base_directory(data_dir: Path, replica: int) -> Path:
    return data_dir / f"bases-{replica}"


def base_path(directory: Path, number: int) -> Path:
    return directory / f"{number:012}.base"


def list_bases(directory: Path, disk: Disk = LOCAL) -> list[Path]:
    """The bases in a directory, oldest first."""
    return list_paths(directory, BASE_FILES, disk)


def number_of(path: Path) -> int:
    return int(path.stem)


class BaseFile:
    """A base that is being written: first the protocol's state, then the application's chunks. Any error leaves it
    unfinished: then `give_up`."""

    def __init__(
        self,
        directory: Path,
        cluster: int,
        era: int,
        base: t.CheckpointId,
        disk: Disk = LOCAL,
        pacer: Pacer | None = None,
    ) -> None:
        self.number = base.number
        self._path = base_path(directory, base.number)
        self._temporary = temporary_name(self._path)
        self._disk = disk
        self._digest = StateDigest()
        content = BaseHeader(FORMAT_VERSION, cluster, era, base.number, base.digest.hex())
        header = pack_header(msgspec.json.encode(content))
        self._checksum = blake2b(header, digest_size=CHECKSUM_BYTES)
        #: Where the length of the protocol's state belongs, which is known at its end. None: it is there.
        self._state_at: int | None = len(header)
        #: Of the state.
        self.length = 0
        self._file = PacedFile(disk.create(self._temporary), pacer)
        try:
            self._file.append(header + _LENGTH.pack(0))
        except BaseException:
            self.give_up()
            raise

    def add_state(self, pieces: Iterable[bytes]) -> None:
        """Some more of the protocol's state."""
        assert self._state_at is not None
        for piece in pieces:
            self._take(piece)
            self._file.append(piece)

    def add(self, chunks: Iterable[bytes]) -> None:
        self._end_state()
        together = []
        for chunk in chunks:
            length = _LENGTH.pack(len(chunk))
            together += [length, chunk]
            self._checksum.update(length)
            self._take(chunk)
        self._file.append(b"".join(together))

    def _take(self, part: bytes) -> None:
        self._digest.add(part)
        self.length += len(part)

    def _end_state(self) -> None:
        if self._state_at is not None:
            length = _LENGTH.pack(self.length)
            self._checksum.update(length)
            self._file.write(self._state_at, length)
            self._state_at = None

    def finish(self) -> bytes:
        """Durable on return, under its name. Returns the state's digest."""
        self._end_state()
        digest = self._digest.digest()
        self._checksum.update(_LENGTH.pack(_END) + digest)
        self._file.append(_LENGTH.pack(_END) + digest + self._checksum.digest())
        self._file.sync()
        self._disk.rename(self._temporary, self._path)
        # From now on: should the name not become durable, nobody must come back to it.
        self._temporary = self._path
        self._disk.sync_directory(self._path.parent)
        self._file.close()
        return digest

    def give_up(self) -> None:
        self._file.close()
        if self._disk.exists(self._temporary):
            self._disk.unlink(self._temporary)


def write_base(
    directory: Path,
    cluster: int,
    era: int,
    base: t.CheckpointId,
    state: bytes,
    chunks: Iterable[bytes],
    disk: Disk = LOCAL,
) -> bytes:
    """Durable on return; returns the state's digest."""
    file = BaseFile(directory, cluster, era, base, disk)
    try:
        file.add_state((state,))
        for chunk in chunks:
            file.add((chunk,))
        return file.finish()
    except BaseException:
        file.give_up()
        raise


class StoredBase(NamedTuple):
    """A base that was found to be intact."""

    id: t.CheckpointId
    state: bytes
    #: Of the whole state, and how long it is.
    digest: bytes
    length: int
    path: Path
    disk: Disk

    def chunks(self) -> Iterator[bytes]:
        """The application's part, read anew."""
        try:
            parts = _parts(_Pieces(self.path, self.disk))
            next(parts)
            yield from parts
        except (OSError, BaseError) as error:
            raise BaseUnreadable(f"{self.path}: {error}") from error


class _Pieces:
    """A file, in pieces of memory."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.size = disk.size(path)
        self._path = path
        self._disk = disk
        self._offset = 0
        #: What was read, and how much of it was taken.
        self._buffer = b""
        self._taken = 0
        self._fill(HEADER_BYTES_MAX)
        self.header = self.take(self._buffer.find(b"\n") + 1)

    def take(self, length: int) -> bytes:
        if not self._fill(length):
            raise BaseError("the contents are damaged: it is too short")
        self._taken += length
        return self._buffer[self._taken - length : self._taken]

    def at_end(self) -> bool:
        return not self._fill(1)

    def _fill(self, length: int) -> bool:
        """Whether so many bytes are there."""
        missing = length - (len(self._buffer) - self._taken)
        if missing > 0:
            piece = self._disk.read(self._path, self._offset, max(missing, READ_BYTES))
            self._offset += len(piece)
            self._buffer, self._taken = self._buffer[self._taken :] + piece, 0
        return len(self._buffer) - self._taken >= length


def _parts(pieces: _Pieces) -> Iterator[bytes]:
    """The protocol's state and the chunks; leaves the pieces at the digest."""
    while (length := _LENGTH.unpack(pieces.take(_LENGTH.size))[0]) != _END:
        if length > pieces.size:
            raise BaseError("the contents are damaged: a length is wrong")
        yield pieces.take(length)


def read_base(path: Path, cluster: int, era: int, disk: Disk = LOCAL) -> StoredBase:
    """A base of this cluster and era that is intact and is what its name says; `BaseError` if it is not."""
    reading = reading_base(path, cluster, era, disk)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            found: StoredBase = end.value
            return found


def reading_base(path: Path, cluster: int, era: int, disk: Disk = LOCAL) -> Generator[int, None, StoredBase]:
    """The same, part by part: says how long each is."""
    pieces = _Pieces(path, disk)
    header = _header(pieces.header)
    checksum = blake2b(pieces.header, digest_size=CHECKSUM_BYTES)
    digest = StateDigest()
    state, length = None, 0
    for part in _parts(pieces):
        checksum.update(_LENGTH.pack(len(part)))
        digest.add(part)
        length += len(part)
        state = part if state is None else state
        yield len(part)
    found = pieces.take(DIGEST_BYTES)
    checksum.update(_LENGTH.pack(_END) + found)
    intact = found == digest.digest() and pieces.take(CHECKSUM_BYTES) == checksum.digest() and pieces.at_end()
    if state is None or not intact:
        raise BaseError("the contents are damaged")
    if (header.cluster, header.era) != (cluster, era):
        raise ForeignBase(f"belongs to cluster {header.cluster:x}, era {header.era}")
    if path.stem.isdigit() and int(path.stem) != header.number:
        raise BaseError(f"is base {header.number}")
    base = t.CheckpointId(header.number, bytes.fromhex(header.digest))
    return StoredBase(base, state, found, length, path, disk)


def read_header(path: Path, disk: Disk = LOCAL) -> BaseHeader:
    """What the file says it is; what follows may be damaged."""
    line, end, _ = disk.read(path, 0, HEADER_BYTES_MAX).partition(b"\n")
    return _header(line + end)


def _header(line: bytes) -> BaseHeader:
    try:
        return msgspec.json.decode(unpack_header(line, FORMAT_VERSION), type=BaseHeader)
    except OtherVersion as other:
        raise ForeignBase(f"is of format version {other.version}; this Tara reads {FORMAT_VERSION}") from other
    except (DamagedFile, *t.DECODE_ERRORS) as error:
        raise BaseError(f"the header is damaged: {error}") from error
