"""The decided log's files: runs of executed requests in blocks, blocks in files. What rows they stand for is in
`tara.storage.log_rows`; nothing here costs time per command.

A log is a directory. A *segment*, `<first>-<last>-<crc32>.segment`, holds the commands [first, last] and never changes;
its name has the checksum of its bytes. The *tail*, `<first>.tail`, holds what no checkpoint covers yet, and grows at
its end; a tail becomes a segment by being renamed. Both begin with a line of JSON that says whose log it is, with a
checksum behind it. Then come blocks: length, checksum and range of commands, and a MessagePack array of `Run`s that
follow each other; the checksum covers all of it. Each block stands for itself, so a reader passes over blocks, and a
block that a crash has cut off ends the tail.

Blocks may overlap where something was executed again after a restart: what they have in common is equal, because a row
is a function of what was decided. How runs are cut is not: files of replicas hold equal rows, not equal bytes.
"""

import io
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.storage.disk import LOCAL, Disk
from tara.storage.files import list_paths

FORMAT_VERSION = 4
#: A block is written when it has so many bytes. The run that makes it that long is in it as a whole.
BLOCK_BYTES = 1 << 19
#: Nobody's header is longer than this.
_HEADER_BYTES_MAX = 1024
#: Length of the contents, their checksum together with the range, first and last command.
_BLOCK = struct.Struct("<IIQQ")
_RANGE = struct.Struct("<IQQ")
#: An array of so many elements, in MessagePack.
_ARRAY = struct.Struct(">BI")
_ARRAY_32 = 0xDD
_SEGMENT = re.compile(r"(\d{16})-(\d{16})-([0-9a-f]{8})\.segment")
_TAIL = re.compile(r"(\d{16})\.tail")


class LogError(TaraError):
    """A decided log that cannot be read or written."""


class ForeignLog(LogError):
    """A file of the log is of another format: not damaged, but nothing that can be continued."""


class CorruptLog(LogError):
    """A file of the log is damaged."""


class LogIdentity(Struct, frozen=True):
    cluster: int
    era: int


class LogHeader(Struct, frozen=True):
    """The first line of a file."""

    version: int
    cluster: int
    era: int
    partitions: int

    @property
    def identity(self) -> LogIdentity:
        return LogIdentity(self.cluster, self.era)


class LoggedCommand(Struct, array_like=True, frozen=True, gc=False):
    """A `Command`, or what no client can send: the end of a session's time."""

    session: int
    number: int
    acknowledged: int
    payload: bytes
    kind: int
    principal: bytes


class Run(Struct, array_like=True, frozen=True, gc=False):
    """Requests in execution order, and what came of them: what the log needs of `tara.protocol.tuples.Executed`."""

    #: The execution number of the first request, and the command counter before it.
    first: int
    counter: int
    #: Per request: source, epoch, the command counter after it, and its times.
    sources: list[int]
    epochs: list[int]
    counters: list[int]
    times: list[int]
    clocks: list[int]
    #: One command for each number of the counter; and all answers, also those that no command executed for.
    commands: list[LoggedCommand]
    results: list[t.Result]


_encode = msgspec.msgpack.Encoder().encode
_decode_runs = msgspec.msgpack.Decoder(list[Run]).decode


def encode_run(executed: t.Executed) -> bytes:
    """As a `Run`. This is the hot path, and the only thing that is done per command."""
    requests = executed.requests
    return _encode(
        (
            executed.first,
            executed.counter,
            [request.source for request in requests],
            [request.epoch for request in requests],
            executed.counters,
            executed.times,
            executed.clocks,
            executed.commands,
            executed.results,
        )
    )


class LogFile(NamedTuple):
    """A file of a log. Sorts by its first row."""

    first: int
    last: int
    sealed: bool
    path: Path


def segment_name(first: int, last: int, checksum: int) -> str:
    return f"{first:016}-{last:016}-{checksum:08x}.segment"


def tail_name(first: int) -> str:
    return f"{first:016}.tail"


def parse_segment(path: Path) -> LogFile | None:
    """What the name tells; None if it is not that of a segment."""
    match = _SEGMENT.fullmatch(path.name)
    return None if match is None else LogFile(int(match[1]), int(match[2]), True, path)


def list_segments(directory: Path, disk: Disk = LOCAL) -> list[LogFile]:
    """The segments of a log, sorted; none if there is no such directory."""
    return sorted(file for path in list_paths(directory, "*.segment", disk) if (file := parse_segment(path)))


def list_tails(directory: Path, disk: Disk = LOCAL) -> list[Path]:
    """The tails, sorted. More than one is left only by an accident."""
    return [path for path in list_paths(directory, "*.tail", disk) if _TAIL.fullmatch(path.name)]


class Block(NamedTuple):
    """Where a block is in its file, and what it holds."""

    first: int
    last: int
    #: Of its contents; `end` is where the next block begins.
    start: int
    end: int
    checksum: int


def pack_block(first: int, last: int, runs: Sequence[bytes]) -> bytes:
    contents = b"".join((_ARRAY.pack(_ARRAY_32, len(runs)), *runs))
    return _BLOCK.pack(len(contents), _checksum(first, last, contents), first, last) + contents


def _checksum(first: int, last: int, contents: bytes) -> int:
    return zlib.crc32(contents, zlib.crc32(_RANGE.pack(len(contents), first, last)))


def pack_header(identity: LogIdentity, partitions: int) -> bytes:
    header = LogHeader(FORMAT_VERSION, identity.cluster, identity.era, partitions)
    line = msgspec.json.encode(header)
    return b"%b %08x\n" % (line, zlib.crc32(line))


def read_header(file: BinaryIO, path: Path) -> LogHeader:
    """Leaves the file at its first block."""
    file.seek(0)
    line, _, check = file.readline(_HEADER_BYTES_MAX).rpartition(b" ")
    try:
        version = msgspec.json.decode(line or check, type=dict[str, int]).get("version", 0)
        if version != FORMAT_VERSION and (not line or check == b"%08x\n" % zlib.crc32(line)):
            raise ForeignLog(f"{path}: has format version {version}, this Tara reads version {FORMAT_VERSION}")
        if check != b"%08x\n" % zlib.crc32(line):
            raise CorruptLog(f"{path}: the header is damaged (the checksum does not match)")
        return msgspec.json.decode(line, type=LogHeader)
    except t.DECODE_ERRORS as error:
        raise CorruptLog(f"{path}: is not a file of a decided log: {error}") from error


def blocks(file: BinaryIO, path: Path, offset: int = 0) -> Iterator[Block]:
    """The blocks from `offset` (0: the first) on that are there as a whole. Reads their lengths and ranges only."""
    if offset == 0:
        read_header(file, path)
        offset = file.tell()
    size = file.seek(0, os.SEEK_END)
    while offset + _BLOCK.size <= size:
        file.seek(offset)
        length, checksum, first, last = _BLOCK.unpack(file.read(_BLOCK.size))
        start, end = offset + _BLOCK.size, offset + _BLOCK.size + length
        # A crash may leave zeros where a block was to be.
        if end > size or not 1 <= first <= last:
            return
        yield Block(first, last, start, end, checksum)
        offset = end


def read_block(file: BinaryIO, path: Path, block: Block) -> list[Run]:
    """What a block holds, checked."""
    file.seek(block.start)
    contents = file.read(block.end - block.start)
    if _checksum(block.first, block.last, contents) != block.checksum:
        raise CorruptLog(
            f"{path}: the contents are damaged at {block.start} (a checksum does not match); another replica's log "
            "has the same rows"
        )
    return _decode_runs(contents)


def identity_of(path: Path, disk: Disk = LOCAL) -> LogIdentity:
    return read_header(io.BytesIO(disk.read(path, 0, _HEADER_BYTES_MAX)), path).identity


def is_first_format(path: Path, disk: Disk = LOCAL) -> bool:
    """Whether it is of version 1, which was Arrow files."""
    return disk.read(path, 0, 6) == b"ARROW1"


def check_segment(segment: LogFile, identity: LogIdentity, disk: Disk = LOCAL) -> None:
    """`CorruptLog` unless it is one of ours, intact, and has what its name says; FileNotFoundError if it is gone."""
    match = _SEGMENT.fullmatch(segment.path.name)
    assert match is not None, segment
    data = disk.read(segment.path)
    if zlib.crc32(data) != int(match[3], 16):
        raise CorruptLog(f"{segment.path}: the contents are damaged (the checksum does not match the name)")
    file = io.BytesIO(data)
    found = read_header(file, segment.path).identity
    if found != identity:
        raise LogError(f"{segment.path}: belongs to cluster {found.cluster:x}, era {found.era}")
    end = segment.first - 1
    for block in blocks(file, segment.path):
        if block.first > end + 1:
            break
        end = max(end, block.last)
    if end != segment.last:
        raise CorruptLog(f"{segment.path}: holds the commands up to {end}, not {segment.last}")
