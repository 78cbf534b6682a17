"""The decided log's format: rows in columns, files, and back.

A log is a directory of Arrow IPC files that any Arrow reader can open. A file's name says which commands it holds and
the checksum of its bytes: `<first>-<last>-<crc32>.segment`, or `.tail` for rows that no checkpoint covers yet. Its
schema's metadata says which cluster and era it belongs to and in which format version it is. Files are written under a
temporary name and renamed, so a file that has a proper name is complete; several may hold the same row, which is then
equal in all of them, because a row is a function of what was decided.

The view in which a slot was decided is no column: replicas may learn one decision in different views, and the log is
the same on all of them, byte by byte.
"""

import os
import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.runtime.journal import sync_directory
from tara.runtime.log import LogIdentity

FORMAT_VERSION = 1
#: Rows in one record batch of a segment. Fixed, so that segments are byte-equal on all replicas.
BATCH_ROWS = 4096

SCHEMA = pa.schema(
    [
        # The command counter: numbers rows without a gap, from 1. What readers use as offset.
        pa.field("counter", pa.int64(), nullable=False),
        # The execution number of the request that let the command execute.
        pa.field("sequence", pa.int64(), nullable=False),
        # The partition, the source and the source's epoch of that request.
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("source", pa.int32(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        # The command: (session, number) identify it. For OPEN, session is 0, number a nonce of the client, and the new
        # session's id is the counter.
        pa.field("session", pa.int64(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        # EXECUTE, QUERY, OPEN, CLOSE or EXPIRE of `tara.protocol.tuples`.
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("command", pa.large_binary(), nullable=False),
        # OK or FAILED; other commands do not execute and have no row.
        pa.field("status", pa.int8(), nullable=False),
        pa.field("result", pa.large_binary(), nullable=False),
        # The agreed time, milliseconds since 1970.
        pa.field("time_ms", pa.int64(), nullable=False),
    ]
)

_NAME = re.compile(r"(\d{16})-(\d{16})-([0-9a-f]{8})\.(segment|tail)")
_SIGN = 1 << 63


class LogError(TaraError):
    """A decided log that cannot be read or written."""


class CorruptLog(LogError):
    """A file of the log is damaged."""


class LogFile(NamedTuple):
    """A file of a log, as far as its name tells. Sorts by its first row."""

    first: int
    last: int
    checksum: int
    sealed: bool
    path: Path

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


def list_files(directory: Path) -> list[LogFile]:
    """The files of a log, sorted; none if there is no such directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(file for name in names if (file := parse_name(directory / name)))


def parse_name(path: Path) -> LogFile | None:
    """What the name tells; None if it is not that of a log's file."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    first, last, checksum, kind = match.groups()
    return LogFile(int(first), int(last), int(checksum, 16), kind == "segment", path)


# Rows


def rows_of(run: Sequence[t.Executed], partitions: int) -> pa.RecordBatch:
    """The rows of runs that follow each other. This is per-command work that holds the interpreter, so it goes column
    by column."""
    commands = list(chain.from_iterable(executed.commands for executed in run))
    owners = list(chain.from_iterable(executed.requests for executed in run))
    times = list(chain.from_iterable(executed.times for executed in run))
    results = list(chain.from_iterable(executed.results for executed in run))
    first = run[0].counter + 1
    sequences: Sequence[int] = range(run[0].first, run[-1].first + len(run[-1].requests))
    if not _is_plain(run, sequences, results):
        owners, sequences, times, results = [], [], [], []
        for executed in run:
            _expand(executed, owners, sequences, times)
            results += _results_of(executed)
    columns: list[Iterable[Any]] = [
        range(first, first + len(commands)),
        sequences,
        [0] * len(commands) if partitions == 1 else [sequence % partitions for sequence in sequences],
        [request.source for request in owners],
        [request.epoch for request in owners],
        [command.session for command in commands],
        [command.number for command in commands],
        [command.kind for command in commands],
        [command.payload for command in commands],
        [result.status for result in results],
        [result.payload for result in results],
        times,
    ]
    try:
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    except OverflowError:
        # Only the nonce of an OPEN can be that large: it is the client's, and any 64 bits will do.
        columns[6] = [command.number - 2 * _SIGN * (command.number >= _SIGN) for command in commands]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _is_plain(run: Sequence[t.Executed], sequences: Sequence[int], results: Sequence[t.Result]) -> bool:
    """Whether each request of the run executed one command, and there is no answer but the results of these: the usual
    case, and the one that has to be fast."""
    numbers = list(range(run[0].counter + 1, run[0].counter + 1 + len(sequences)))
    return (
        [result.counter for result in results] == numbers
        and list(chain.from_iterable(executed.counters for executed in run)) == numbers
        and max([result.status for result in results], default=t.OK) <= t.FAILED
    )


def _expand(executed: t.Executed, owners: list[t.Request], sequences: list[int], times: list[int]) -> None:
    """Per row, the request it belongs to, with its execution number and time."""
    before, first = executed.counter, executed.first
    for sequence, request, counter, time_ms in zip(
        range(first, first + len(executed.requests)), executed.requests, executed.counters, executed.times, strict=True
    ):
        if counter > before:
            owners += repeat(request, counter - before)
            sequences += repeat(sequence, counter - before)
            times += repeat(time_ms, counter - before)
            before = counter


_EXPIRED = t.Result(0, 0, 0, t.OK, b"")


def _results_of(executed: t.Executed) -> list[t.Result]:
    """The results of `commands`, one each: without answers that were repeated, and without refusals."""
    fresh = {result.counter: result for result in executed.results if result.status <= t.FAILED}
    first = executed.counter + 1
    return [fresh.get(number, _EXPIRED) for number in range(first, first + len(executed.commands))]


# Files


def write_file(directory: Path, rows: Sequence[pa.RecordBatch], identity: LogIdentity, sealed: bool) -> LogFile:
    """Write rows that follow each other. A sealed file is durable on return; a tail is only there for readers."""
    table = pa.Table.from_batches(rows, SCHEMA)
    first = table.column("counter")[0].as_py()
    last = first + table.num_rows - 1
    data = _encode(table, first, last, identity, compressed=sealed)
    checksum = zlib.crc32(data)
    name = f"{first:016}-{last:016}-{checksum:08x}.{'segment' if sealed else 'tail'}"
    put_file(directory, name, data, durable=sealed)
    return LogFile(first, last, checksum, sealed, directory / name)


def put_file(directory: Path, name: str, data: bytes | pa.Buffer, durable: bool) -> None:
    """A file that is there as a whole or not at all."""
    temporary = directory / f"{name}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(directory / name)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(directory)


def _encode(table: pa.Table, first: int, last: int, identity: LogIdentity, compressed: bool) -> pa.Buffer:
    metadata = {
        "tara.format": FORMAT_VERSION,
        "tara.cluster": identity.cluster,
        "tara.era": identity.era,
        "tara.first": first,
        "tara.last": last,
    }
    schema = SCHEMA.with_metadata({key: str(value) for key, value in metadata.items()})
    # No threads: this runs beside the container's loop, on a core that others need.
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None, use_threads=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for start in range(0, table.num_rows, BATCH_ROWS):
            writer.write_batch(_compact(table.slice(start, BATCH_ROWS)))
    return sink.getvalue()


def _compact(table: pa.Table) -> pa.RecordBatch:
    """The rows in memory of their own. A piece of something larger would be written with whatever follows it there, up
    to the next multiple of 64 bytes; the empty array makes sure that everything is copied."""
    arrays = [
        pa.concat_arrays([*column.chunks, pa.array([], field.type)])
        for column, field in zip(table.columns, SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def read_file(file: LogFile, identity: LogIdentity | None = None) -> tuple[LogIdentity, pa.Table]:
    """The rows of a file, and whom it belongs to; checked in every respect. FileNotFoundError if it is gone."""
    data = file.path.read_bytes()
    if zlib.crc32(data) != file.checksum:
        raise CorruptLog(
            f"{file.path}: the contents are damaged (the checksum does not match the name); the same file of another "
            "replica's log may replace it"
        )
    found = _identity_of(file, data)
    if identity is not None and found != identity:
        raise LogError(f"{file.path}: belongs to cluster {found.cluster:x}, era {found.era}")
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all().replace_schema_metadata(None)
    if table.num_rows != file.rows:
        raise CorruptLog(f"{file.path}: holds {table.num_rows} rows, not {file.rows}")
    return found, table


def identity_of(file: LogFile) -> LogIdentity:
    """Whom a file belongs to, without reading it all."""
    try:
        with pa.memory_map(str(file.path)) as data:
            return _identity_of(file, data)
    except pa.ArrowInvalid as error:
        raise CorruptLog(f"{file.path}: is empty") from error


def _identity_of(file: LogFile, data: Any) -> LogIdentity:
    try:
        metadata = pa.ipc.open_file(data).schema.metadata or {}
        fields = {key: int(metadata[b"tara." + key]) for key in (b"format", b"cluster", b"era", b"first", b"last")}
    except (pa.ArrowInvalid, KeyError, ValueError) as error:
        raise CorruptLog(f"{file.path}: is not a file of a decided log: {error}") from error
    if fields[b"format"] > FORMAT_VERSION:
        raise LogError(
            f"{file.path}: format version {fields[b'format']} is newer than {FORMAT_VERSION}: use a newer Tara"
        )
    if (fields[b"first"], fields[b"last"]) != (file.first, file.last):
        raise CorruptLog(f"{file.path}: holds the commands [{fields[b'first']}, {fields[b'last']}]")
    return LogIdentity(fields[b"cluster"], fields[b"era"])
