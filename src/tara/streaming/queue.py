"""The two ends of the query: the source of ticks and feedback, and the sink of feedback and results.

The sink plays the gc, view and record sinks: what they hand over is written to the feedback queue, one file per
micro-batch, together with everything else that is for an operator that the micro-batch has passed already. The source
reads that file in the next micro-batch. A tick is part of the source's offset, so a micro-batch that is executed again
has the same time. Files have the micro-batch's number and appear by renaming: a micro-batch that Spark executes again,
after a crash between the sink's commit and its own, finds them there and changes nothing.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from tara.host.bare_site import BareSite
from tara.host.effects import Emit, Halt, Inputs, Trouble
from tara.named import BUILT_IN
from tara.protocol import tuples as t
from tara.protocol.graph import Graph
from tara.protocol.incarnations import FIRST_INCARNATION
from tara.protocol.limits import Limits
from tara.protocol.node import Boot
from tara.storage.disk import LOCAL
from tara.storage.files import DamagedFile, pack_small, read_small
from tara.streaming import clients, rows
from tara.streaming.checkpoint import queue_directory
from tara.streaming.config import StreamingConfig
from tara.streaming.errors import NO_WAY_ON, StreamingError
from tara.streaming.published import EVENTS_DIRECTORY, file_name
from tara.streaming.rows import Row

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "tara-queue"
#: Queue files that Spark is done with and that are kept all the same.
KEPT_FILES = 10
_WITH_STATE = tuple(stage for _, stages in rows.OPERATORS for stage in stages)


class QueueFile(msgspec.Struct, array_like=True):
    """One micro-batch's part of the feedback queue."""

    version: int
    #: A request source has something undecided.
    busy: bool
    rows: list[Row]


FILE_VERSION = 3
_decode_file = msgspec.msgpack.Decoder(QueueFile).decode


class Sinks:
    """The sinks of the graph. They keep nothing, so they are made anew for every micro-batch."""

    def __init__(self, graph: Graph, limits: Limits) -> None:
        self._graph = graph
        numbers = [number for number, name in enumerate(graph.names) if name.stage in rows.SINKS]
        self._site = BareSite(graph, limits, numbers)
        boot = Boot(1, FIRST_INCARNATION, True, 0.0)
        for number in numbers:
            self._site.create(number, boot, BUILT_IN["key-value"])

    def split(self, taken: Iterable[Row]) -> tuple[QueueFile, list[Row]]:
        """What goes back into the query, and the outcomes, which leave it."""
        queue = QueueFile(FILE_VERSION, False, [])
        outcomes: list[Row] = []
        for row in taken:
            if row.sender == rows.OUTCOMES:
                outcomes.append(row)
            elif row.sender == rows.BUSY:
                queue.busy = True
            elif self._graph.names[row.node].stage in rows.SINKS:
                queue.rows.extend(self._pass_on(row))
            else:
                queue.rows.append(row)
        queue.rows.sort(key=lambda row: row[:4])
        return queue, outcomes

    def _pass_on(self, row: Row) -> list[Row]:
        """Let the sink hand the tuple over. It keeps its sender and place: a queue adds no order of its own."""
        passed_on: list[Row] = []
        for effect in self._site.step(Inputs(tuples=[(t.decode_tuple(row.data), row.node)]), 0.0):
            match effect:
                case Emit(_, _, receivers):
                    passed_on += [row._replace(key=number, node=number) for number in receivers.numbers]
                case Halt(number, reason):
                    raise StreamingError(f"{self._graph.label(number)} halted: {reason}")
                case Trouble(_, _, reason):
                    raise StreamingError(f"a sink was sent something malformed: {reason}")
        return passed_on


def ticks(graph: Graph, tick: int, now_ms: int) -> list[Row]:
    """A tick for every node that has state."""
    keys = {rows.key_of(graph, n) for n, name in enumerate(graph.names) if name.stage in _WITH_STATE}
    return [Row(key, key, rows.TICK, tick, now_ms) for key in sorted(keys)]


class QueueSource(DataSource):
    """`format("tara-queue")`: internal to the streaming runtime."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return rows.SCHEMA

    def streamReader(self, schema: "StructType") -> "QueueReader":  # noqa: N802
        return QueueReader(_config(self.options))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "QueueWriter":  # noqa: N802
        return QueueWriter(_config(self.options), Path(self.options["results"]))


def _config(options: Any) -> StreamingConfig:
    return msgspec.json.decode(options["config"], type=StreamingConfig)


def _file_name(batch: int) -> str:
    return f"{batch:012}.queue"


class QueueRange(InputPartition):
    def __init__(self, first: int, end: int, tick: int, now_ms: int) -> None:
        self.first, self.end, self.tick, self.now_ms = first, end, tick, now_ms


class QueueReader(DataSourceStreamReader):
    """Offsets: the queue files below `end` have been read; the number and the time of the last tick."""

    def __init__(self, config: StreamingConfig) -> None:
        self._config = config
        self._directory = queue_directory(config)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"end": 0, "tick": 0, "now_ms": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802
        now_ms = max(int(time.time() * 1e3), start["now_ms"] + 1)
        end = start["end"]
        busy = end == 0
        while (path := self._directory / _file_name(end)).exists():
            busy = _read(path).busy
            end += 1
        if not busy and now_ms < start["now_ms"] + self._config.idle_tick_ms:
            return start
        return {"end": end, "tick": start["tick"] + 1, "now_ms": now_ms}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        if start == end:
            return []
        return [QueueRange(start["end"], end["end"], end["tick"], end["now_ms"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, QueueRange)
        yield from ticks(self._config.graph, partition.tick, partition.now_ms)
        for batch in range(partition.first, partition.end):
            yield from _read(self._directory / _file_name(batch)).rows

    def commit(self, end: dict[str, int]) -> None:
        batch = end["end"] - KEPT_FILES
        while batch >= 0 and (path := self._directory / _file_name(batch)).exists():
            path.unlink(missing_ok=True)
            batch -= 1


def _read(path: Path) -> QueueFile:
    """What was written; what is damaged would be tuples that are lost, or others than were sent."""
    try:
        queue = _decode_file(read_small(path))
    except (DamagedFile, msgspec.DecodeError) as error:
        raise StreamingError(f"{path}: damaged, or of another version of Tara ({error}): {NO_WAY_ON}") from error
    if queue.version != FILE_VERSION:
        raise StreamingError(f"{path}: is of format version {queue.version}, not {FILE_VERSION}: {NO_WAY_ON}")
    return queue


def is_busy(directory: Path, batch: int) -> bool:
    """Whether something was undecided at the end of this micro-batch."""
    path = directory / _file_name(batch)
    return not path.exists() or _read(path).busy


class StagedBatch(WriterCommitMessage):
    """Files of one micro-batch; None: there is nothing of that kind."""

    def __init__(self, queue: str, results: str | None, events: str | None) -> None:
        self.queue, self.results, self.events = queue, results, events


class QueueWriter(DataSourceStreamArrowWriter):
    """Gets a micro-batch in one task. `write` stages, `commit` renames: what users see first, then the queue file."""

    def __init__(self, config: StreamingConfig, results: Path) -> None:
        self._config = config
        self._results = results

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> StagedBatch:
        taken = (
            Row(*values)
            for batch in iterator
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        queue, outcomes = Sinks(self._config.graph, self._config.limits).split(taken)
        name = uuid.uuid4().hex
        staged = queue_directory(self._config) / f"{name}.staged"
        _write(staged, pack_small(msgspec.msgpack.encode(queue)))
        results, events = published_tables(outcomes)
        return StagedBatch(
            str(staged),
            _staged_table(self._results, name, results),
            _staged_table(self._results / EVENTS_DIRECTORY, name, events),
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        (staged,) = [message for message in messages if isinstance(message, StagedBatch)]
        if staged.results is not None:
            _publish(Path(staged.results), self._results / file_name(batchId))
        if staged.events is not None:
            _publish(Path(staged.events), self._results / EVENTS_DIRECTORY / file_name(batchId))
        _publish(Path(staged.queue), queue_directory(self._config) / _file_name(batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for message in messages:
            if isinstance(message, StagedBatch):
                for path in (message.queue, message.results, message.events):
                    if path is not None:
                        Path(path).unlink(missing_ok=True)


def published_tables(said: list[Row]) -> "tuple[pa.Table | None, pa.Table | None]":
    """Results and events as columns, in the order of execution; None: there are none."""
    answers = [(clients.decode_answer(clients.unpacked(row.data)), row.number) for row in said]
    return (
        results_table([(*outcome, view) for answer, view in answers for outcome in answer.outcomes]),
        events_table([event for answer, _ in answers for event in answer.events]),
    )


def events_table(found: list[clients.Published]) -> "pa.Table | None":
    import pyarrow as pa

    if not found:
        return None
    counters, places, names, events = zip(*sorted(found, key=lambda event: event[:2]), strict=True)
    return pa.table(
        {
            "counter": pa.array(counters, pa.int64()),
            "place": pa.array(places, pa.int32()),
            "client": pa.array(names, pa.string()),
            "event": pa.array(events, pa.binary()),
        }
    )


def results_table(found: list[tuple[int, str, int, int, bytes, int]]) -> "pa.Table | None":
    import pyarrow as pa

    if not found:
        return None
    found.sort(key=lambda outcome: outcome[0])
    counters, names, numbers, statuses, results, views = zip(*found, strict=True)
    return pa.table(
        {
            "counter": pa.array([counter or None for counter in counters], pa.int64()),
            "client": pa.array(names, pa.string()),
            "number": pa.array(numbers, pa.int64()),
            "status": pa.array([clients.STATUS_NAMES[status] for status in statuses], pa.string()),
            "result": pa.array(results, pa.binary()),
            "view": pa.array([None if view == rows.NONE else view for view in views], pa.int64()),
        }
    )


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _staged_table(directory: Path, name: str, table: "pa.Table | None") -> str | None:
    if table is None:
        return None
    path = directory / f".{name}.staged"
    _write_table(path, table)
    return str(path)


def _write_table(path: Path, table: "pa.Table") -> None:
    import pyarrow.parquet as pq

    with path.open("wb") as file:
        pq.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())


def _publish(staged: Path, final: Path) -> None:
    """The first one stays: whoever reads it sees one content for ever."""
    if final.exists():
        staged.unlink(missing_ok=True)
    else:
        staged.rename(final)
        LOCAL.sync_directory(final.parent)


def sweep(directory: Path) -> None:
    """Remove what executions that ended in the middle left behind."""
    for path in (*directory.glob("*.staged"), *directory.glob(".*.staged")):
        with contextlib.suppress(OSError):
            path.unlink()
