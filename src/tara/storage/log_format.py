"""The decided log's files: runs of decided requests in blocks, blocks in files. What rows they stand for is in
`tara.storage.log_rows`; nothing here costs time per command.

A log is a directory. A *segment*, `<number>-<first>-<last>-<crc32>.segment`, holds the requests between the checkpoint
before `number` and `number`, and thereby the commands [first, last], if any; it never changes, and its name has the
checksum of its bytes. The *tail*, `<number>-<first>.tail`, is what will be the next segment, and grows at its end. Both
begin with a line of JSON that says whose log it is, with a checksum behind it. Then come blocks: kind, length, checksum
and range of commands, and the contents: a MessagePack array of `Run`s that follow each other, or, at the end of a
segment, the checkpoint. The checksum covers all of it. Each block stands for itself, so a reader passes over blocks,
and a block that a crash has cut off ends the tail.

Blocks may overlap where something was executed again after a restart: what they have in common is equal, because it is
a function of what was decided. How runs are cut is not: files of replicas hold equal requests, not equal bytes.
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
from tara.storage import files
from tara.storage.disk import LOCAL, Disk
from tara.storage.files import list_paths

FORMAT_VERSION = 6
#: A block is written when it has so many bytes. The run that makes it that long is in it as a whole.
BLOCK_BYTES = 1 << 19
#: Nobody's header is longer than this.
_HEADER_BYTES_MAX = 1024
#: Kind, length of the contents, their checksum together with the rest of this head, first and last command; a block
#: without commands ends before it begins.
_BLOCK = struct.Struct("<BIIQQ")
HEAD_BYTES = _BLOCK.size
_RANGE = struct.Struct("<BIQQ")
RUNS, CHECKPOINT = 1, 2
#: An array of so many elements, in MessagePack.
_ARRAY = struct.Struct(">BI")
_ARRAY_32 = 0xDD
_SEGMENT = re.compile(r"(\d{12})-(\d{16})-(\d{16})-([0-9a-f]{8})\.segment")
_TAIL = re.compile(r"(\d{12})-(\d{16})\.tail")


class LogError(TaraError):
    """A decided log that cannot be read or written."""


class ForeignLog(LogError):
    """A file of the log is of another format: not damaged, but nothing that can be continued."""


class CorruptLog(LogError):
    """A file of the log is damaged."""


class LogIdentity(Struct, frozen=True):
    cluster: int
    era: int

    def __str__(self) -> str:
        return f"cluster {self.cluster:x}, era {self.era}"

    def require(self, expected: "LogIdentity", where: object) -> None:
        """Nobody goes on in another log than the one that was begun with."""
        if self != expected:
            raise LogError(f"{where}: belongs to {self}; what was read so far belongs to {expected}")


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
    #: Per request.
    sources: list[int]
    epochs: list[int]
    numbers: list[int]
    stamps: list[int]
    bodies: list[bytes]
    #: The command counter and the times after each.
    counters: list[int]
    times: list[int]
    clocks: list[int]
    #: One command for each number of the counter, as in `Executed`; and all answers, also those that no command
    #: executed for; and the counters of commands that were skipped.
    commands: list[int | LoggedCommand] | None
    results: list[t.Result]
    skipped: list[int]

    @property
    def end(self) -> int:
        """The execution number behind it."""
        return self.first + len(self.bodies)

    def requests(self) -> list[t.Request]:
        return list(map(t.Request, self.sources, self.epochs, self.numbers, self.stamps, self.bodies))


class SegmentEnd(Struct, array_like=True, frozen=True, gc=False):
    """The checkpoint at the end of a segment."""

    number: int
    digest: bytes
    #: The command counter there.
    counter: int


_encode = msgspec.msgpack.Encoder().encode
_decode_runs = msgspec.msgpack.Decoder(list[Run]).decode
_decode_end = msgspec.msgpack.Decoder(SegmentEnd).decode


def encode_run(executed: t.Executed) -> bytes:
    """As a `Run`. This is the hot path, and the only thing that is done per command."""
    requests = executed.requests
    return _encode(
        (
            executed.first,
            executed.counter,
            [request.source for request in requests],
            [request.epoch for request in requests],
            [request.number for request in requests],
            [request.time for request in requests],
            [request.body for request in requests],
            executed.counters,
            executed.times,
            executed.clocks,
            executed.commands,
            executed.results,
            executed.skipped,
        )
    )


class LogFile(NamedTuple):
    """A file of a log. Sorts by its place."""

    #: The checkpoint at its end, or where its end will be.
    number: int
    first: int
    last: int
    sealed: bool
    path: Path


def segment_name(number: int, first: int, last: int, checksum: int) -> str:
    return f"{number:012}-{first:016}-{last:016}-{checksum:08x}.segment"


def tail_name(number: int, first: int) -> str:
    return f"{number:012}-{first:016}.tail"


def parse_segment(path: Path) -> LogFile | None:
    """What the name tells; None if it is not that of a segment."""
    match = _SEGMENT.fullmatch(path.name)
    return None if match is None else LogFile(int(match[1]), int(match[2]), int(match[3]), True, path)


def parse_tail(path: Path) -> LogFile | None:
    """The same for a tail, without the end of its rows."""
    match = _TAIL.fullmatch(path.name)
    return None if match is None else LogFile(int(match[1]), int(match[2]), int(match[2]) - 1, False, path)


def list_segments(directory: Path, disk: Disk = LOCAL) -> list[LogFile]:
    """The segments of a log, sorted; none if there is no such directory."""
    return sorted(file for path in list_paths(directory, "*.segment", disk) if (file := parse_segment(path)))


def list_tails(directory: Path, disk: Disk = LOCAL) -> list[LogFile]:
    """The tails, sorted. More than one is left only by an accident."""
    return sorted(file for path in list_paths(directory, "*.tail", disk) if (file := parse_tail(path)))


class Block(NamedTuple):
    """Where a block is in its file, and what it holds."""

    kind: int
    first: int
    last: int
    #: Of its contents; `end` is where the next block begins.
    start: int
    end: int
    checksum: int

    @property
    def head(self) -> int:
        """Where the block itself begins."""
        return self.start - HEAD_BYTES


def pack_block(first: int, last: int, runs: Sequence[bytes]) -> bytes:
    return _pack(RUNS, first, last, b"".join((_ARRAY.pack(_ARRAY_32, len(runs)), *runs)))


def pack_end(end: SegmentEnd) -> bytes:
    return _pack(CHECKPOINT, end.counter + 1, end.counter, _encode(end))


def _pack(kind: int, first: int, last: int, contents: bytes) -> bytes:
    return _BLOCK.pack(kind, len(contents), _checksum(kind, first, last, contents), first, last) + contents


def _checksum(kind: int, first: int, last: int, contents: bytes) -> int:
    return zlib.crc32(contents, zlib.crc32(_RANGE.pack(kind, len(contents), first, last)))


def pack_header(identity: LogIdentity, partitions: int) -> bytes:
    header = LogHeader(FORMAT_VERSION, identity.cluster, identity.era, partitions)
    return files.pack_header(msgspec.json.encode(header))


def read_header(file: BinaryIO, path: Path) -> LogHeader:
    """Leaves the file at its first block."""
    file.seek(0)
    try:
        content = files.unpack_header(file.readline(_HEADER_BYTES_MAX), FORMAT_VERSION)
        return msgspec.json.decode(content, type=LogHeader)
    except files.OtherVersion as other:
        raise ForeignLog(
            f"{path}: has format version {other.version}, this Tara reads version {FORMAT_VERSION}"
        ) from other
    except (files.DamagedFile, *t.DECODE_ERRORS) as error:
        raise CorruptLog(f"{path}: is not a file of a decided log: {error}") from error


def blocks(file: BinaryIO, path: Path, offset: int = 0) -> Iterator[Block]:
    """The blocks from `offset` (0: the first) on that are there as a whole. Reads their heads only."""
    if offset == 0:
        read_header(file, path)
        offset = file.tell()
    size = file.seek(0, os.SEEK_END)
    while offset + _BLOCK.size <= size:
        file.seek(offset)
        kind, length, checksum, first, last = _BLOCK.unpack(file.read(_BLOCK.size))
        start, end = offset + _BLOCK.size, offset + _BLOCK.size + length
        # A crash may leave zeros where a block was to be.
        if end > size or kind not in (RUNS, CHECKPOINT) or not 1 <= first <= last + 1:
            return
        yield Block(kind, first, last, start, end, checksum)
        offset = end


def block_at(data: bytes | bytearray, offset: int, path: Path) -> Block | None:
    """The block whose head is at `offset`, whether the rest of it is there or not; None: not even its head is."""
    if offset + HEAD_BYTES > len(data):
        return None
    kind, length, checksum, first, last = _BLOCK.unpack_from(data, offset)
    if kind not in (RUNS, CHECKPOINT) or not 1 <= first <= last + 1:
        raise CorruptLog(f"{path}: no block is where one should be")
    start = offset + HEAD_BYTES
    return Block(kind, first, last, start, start + length, checksum)


def _read(file: BinaryIO, path: Path, block: Block) -> bytes:
    file.seek(block.start)
    contents = file.read(block.end - block.start)
    if _checksum(block.kind, block.first, block.last, contents) != block.checksum:
        raise CorruptLog(
            f"{path}: the contents are damaged at {block.start} (a checksum does not match); another replica's log "
            "has the same requests"
        )
    return contents


def read_block(file: BinaryIO, path: Path, block: Block) -> list[Run]:
    """What a block of runs holds, checked."""
    return _decode_runs(_read(file, path, block))


def read_end(file: BinaryIO, path: Path, block: Block) -> SegmentEnd:
    """What a block of the kind `CHECKPOINT` says, checked."""
    return _decode_end(_read(file, path, block))


def read_segment(segment: LogFile, identity: LogIdentity, disk: Disk = LOCAL) -> tuple[io.BytesIO, SegmentEnd]:
    """The bytes of a segment and the checkpoint at its end. `CorruptLog` unless it is intact and has what its name
    says, `LogError` if it is of another cluster or era; FileNotFoundError if it is gone."""
    match = _SEGMENT.fullmatch(segment.path.name)
    assert match is not None, segment
    data = disk.read(segment.path)
    if zlib.crc32(data) != int(match[4], 16):
        raise CorruptLog(f"{segment.path}: the contents are damaged (the checksum does not match the name)")
    file = io.BytesIO(data)
    found = read_header(file, segment.path).identity
    if found != identity:
        raise LogError(f"{segment.path}: belongs to cluster {found.cluster:x}, era {found.era}")
    last = segment.first - 1
    for block in blocks(file, segment.path):
        if block.first > last + 1:
            break
        last = max(last, block.last)
        if block.kind == CHECKPOINT and last == segment.last:
            end = read_end(file, segment.path, block)
            if (end.number, end.counter) == (segment.number, segment.last):
                return file, end
    raise CorruptLog(f"{segment.path}: does not lead to checkpoint {segment.number}, with command {segment.last}")


def runs_of(file: io.BytesIO, path: Path) -> Iterator[Run]:
    """The runs of a file, in its order."""
    for block in blocks(file, path):
        if block.kind == RUNS:
            yield from read_block(file, path, block)


def identity_of(path: Path, disk: Disk = LOCAL) -> LogIdentity:
    return read_header(io.BytesIO(disk.read(path, 0, _HEADER_BYTES_MAX)), path).identity
