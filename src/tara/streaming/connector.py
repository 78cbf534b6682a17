"""`format("tara")`: a live cluster as a sink (its rows are commands), and its decided log as a source.

Offsets of the source are command counters, and say whose log it is: the rows of a range are the same wherever and
whenever they are read, and a query does not go on in the log of another cluster.
See `docs/spark.md` for the options.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tara.application import KeyValueCommand
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.protocol.principals import describe
from tara.storage.log_blocks import LogBounds
from tara.storage.log_format import LogIdentity
from tara.storage.log_reader import LogTruncated
from tara.streaming.log_source import log_source
from tara.streaming.sink import TaraWriter, is_key_value, sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

LOG_SCHEMA = (
    "counter long, sequence long, partition int, source int, epoch long, session long, number long, kind string, "
    "command binary, status string, result binary, time timestamp, principal string"
)
KEY_VALUE_SCHEMA = "operation string, key string, value binary"
KINDS = {t.EXECUTE: "execute", t.QUERY: "query", t.OPEN: "open", t.CLOSE: "close", t.EXPIRE: "expire", t.SKIP: "skip"}
STATUSES = {t.OK: "ok", t.FAILED: "failed", t.REJECTED: "rejected", t.SKIPPED: "skipped"}
#: Commands that one task reads, unless the option `commands_per_task` says something else.
TASK_COMMANDS = 100_000
#: A counter; and whose log it is, once there was something to read.
Offset = dict[str, int | str]
EARLIEST = "earliest"
LATEST = "latest"


class TaraSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tara"

    def schema(self) -> str:
        return f"{LOG_SCHEMA}, {KEY_VALUE_SCHEMA}" if is_key_value(self.options) else LOG_SCHEMA

    def reader(self, schema: "StructType") -> "LogTableReader":
        return LogTableReader(self.options)

    def streamReader(self, schema: "StructType") -> "LogStreamReader":  # noqa: N802
        return LogStreamReader(self.options)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> TaraWriter:  # noqa: N802
        return TaraWriter(sink_options(self.options), schema)


class CommandRange(InputPartition):
    """The commands [start, end) of this log."""

    def __init__(self, start: int, end: int, identity: LogIdentity | None) -> None:
        self.start, self.end, self.identity = start, end, identity


class _Log:
    """What both readers do. Travels to the tasks."""

    def __init__(self, options: Any) -> None:
        self.source = log_source(options)
        self.key_value = is_key_value(options)
        self._task_commands = _number(options, "commands_per_task") or TASK_COMMANDS

    def check_start(self, start: int) -> LogBounds:
        """What is there, of which this must be a part."""
        bounds = self.source.bounds()
        if start < bounds.first:
            raise LogTruncated(self.source.where(), start, bounds.first)
        return bounds

    def ranges(self, start: int, end: int) -> list[InputPartition]:
        step = self._task_commands
        return [CommandRange(first, min(first + step, end), self.source.identity) for first in range(start, end, step)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        assert isinstance(partition, CommandRange)
        # Ranges that follow each other begin at different sites.
        turn = partition.start // self._task_commands
        self.source.identity = partition.identity
        for batch in self.source.read(partition.start, partition.end, turn):
            yield _columns(batch, self.key_value)


class LogTableReader(DataSourceReader):
    """`spark.read.format("tara")`: the commands [from, to), by default all that are there."""

    def __init__(self, options: Any) -> None:
        self._log = _Log(options)
        self._start = _number(options, "from")
        self._end = _number(options, "to")

    def partitions(self) -> list[InputPartition]:
        bounds = self._log.source.bounds() if self._start is None else self._log.check_start(self._start)
        start = bounds.first if self._start is None else self._start
        end = bounds.end if self._end is None else min(self._end, bounds.end)
        # Spark calls `read` with None if there are no partitions.
        return self._log.ranges(start, end) or [CommandRange(start, start, None)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return self._log.read(partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("tara")`: from the option `from` on (a counter, earliest or latest)."""

    def __init__(self, options: Any) -> None:
        self._log = _Log(options)
        start = options.get("from", EARLIEST)
        self._start = start if start in (EARLIEST, LATEST) else _number(options, "from")
        self._commands_max = _number(options, "max_commands_per_batch")
        self._bytes_max = _number(options, "max_bytes_per_batch")
        #: Where a query ends that takes what is there when it begins.
        self._target: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        if isinstance(self._start, int):
            self._log.check_start(self._start)
            return self._offset(self._start)
        bounds = self._log.source.bounds()
        return self._offset(bounds.end if self._start == LATEST else bounds.first)

    def _offset(self, counter: int) -> Offset:
        whose = self._log.source.identity
        if whose is None:
            return {"counter": counter}
        return {"counter": counter, "cluster": f"{whose.cluster:x}", "era": whose.era}

    def _expect(self, offset: Offset) -> int:
        """The counter. From now on, nothing but the log of this offset is read."""
        if "cluster" in offset:
            self._log.source.identity = LogIdentity(int(str(offset["cluster"]), 16), int(offset["era"]))
        return int(offset["counter"])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._commands_max is None else ReadMaxRows(self._commands_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._log.source.bounds().end

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        first = self._expect(start)
        there = self._log.check_start(first).end
        end = max(there if self._target is None else min(there, self._target), first)
        if isinstance(limit, ReadMaxRows):
            end = min(end, first + limit.max_rows)
        if self._bytes_max is not None and end > first:
            end = min(end, self._log.source.advance(first, self._bytes_max))
        return self._offset(end)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return self._log.ranges(self._expect(start), self._expect(end))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return self._log.read(partition)


def _number(options: Any, option: str) -> int | None:
    text = options.get(option)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"format tara: {option} = {text}: must be a positive number")
    return int(text)


def _columns(batch: "pa.RecordBatch", key_value: bool) -> "pa.RecordBatch":
    """A batch of the log with names for numbers, in Spark's types."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name == "clock_ms":
            continue
        if field.name == "kind":
            column = pa.array([KINDS.get(kind, str(kind)) for kind in column.to_pylist()], pa.string())
        elif field.name == "status":
            column = pa.array([STATUSES.get(status, str(status)) for status in column.to_pylist()], pa.string())
        elif field.name == "principal":
            column = pa.array(list(map(describe, column.to_pylist())), pa.string())
        elif field.type == pa.large_binary():
            column = column.cast(pa.binary())
        if field.name == "time_ms":
            columns["time"] = column.cast(pa.timestamp("ms")).cast(pa.timestamp("us", tz="UTC"))
        else:
            columns[field.name] = column
    if key_value:
        decoded = list(map(_decode, columns["kind"].to_pylist(), columns["command"].to_pylist()))
        operations, keys, values = zip(*decoded, strict=True)
        columns["operation"] = pa.array(operations, pa.string())
        columns["key"] = pa.array(keys, pa.string())
        columns["value"] = pa.array(values, pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def _decode(kind: str, command: bytes) -> tuple[str | None, str | None, bytes | None]:
    """A command of the key-value application; what is none has no operation."""
    if kind not in ("execute", "query"):
        return None, None, None
    try:
        decoded = msgspec.msgpack.decode(command, type=KeyValueCommand)
    except t.DECODE_ERRORS:
        return None, None, None
    return type(decoded).__name__, getattr(decoded, "key", None), getattr(decoded, "value", None)
