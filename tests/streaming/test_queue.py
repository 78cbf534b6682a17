"""The two ends of the query, on real files and without Spark: offsets, publishing once, cleaning up."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tara.protocol import tuples as t
from tara.streaming import clients, queue, rows
from tara.streaming.checkpoint import queue_directory
from tara.streaming.config import StreamingConfig
from tara.streaming.errors import StreamingError
from tara.streaming.published import EVENTS_DIRECTORY
from tara.streaming.queue import QueueReader, QueueWriter
from tara.streaming.rows import Row


@pytest.fixture
def config(tmp_path: Path) -> StreamingConfig:
    config = StreamingConfig(checkpoint=str(tmp_path / "checkpoint"), idle_tick_ms=3_600_000)
    queue_directory(config).mkdir(parents=True)
    (tmp_path / "results" / EVENTS_DIRECTORY).mkdir(parents=True)
    return config


def write(config: StreamingConfig, results: Path, batch: int, taken: list[Row]) -> None:
    writer = QueueWriter(config, results)
    columns = dict(zip(rows.COLUMNS, map(list, zip(*taken, strict=True)), strict=True))
    staged = writer.write(iter([pa.RecordBatch.from_pydict(columns)]))
    writer.commit([staged], batch)


def outcome(counter: int, client: str, number: int) -> Row:
    event = (counter, 0, client, b"e")
    data = clients.packed(clients.encode(clients.Answer([(counter, client, number, t.OK, b"r")], [event])))
    return Row(rows.WRITER, rows.WRITER, rows.OUTCOMES, 0, 1, data=data)


BUSY = Row(rows.WRITER, rows.WRITER, rows.BUSY, 0)


def test_what_was_written_is_read_in_the_next_micro_batch_with_a_tick(config: StreamingConfig, tmp_path: Path) -> None:
    reader = QueueReader(config)
    first = reader.latestOffset(reader.initialOffset(), None)
    assert (first["end"], first["tick"]) == (0, 1)

    back = Row(3, 3, 0, 7, data=b"a tuple")
    write(config, tmp_path / "results", 0, [back, BUSY, outcome(1, "a", 0)])
    second = reader.latestOffset(first, None)
    assert (second["end"], second["tick"]) == (1, 2)
    assert second["now_ms"] > first["now_ms"]
    (partition,) = reader.partitions(first, second)
    found = [Row(*values) for values in reader.read(partition)]
    assert [row for row in found if row.sender != rows.TICK] == [back]
    assert {row.emission for row in found if row.sender == rows.TICK} == {2}
    assert reader.partitions(second, second) == []


def test_a_query_without_work_does_not_tick_before_its_time(config: StreamingConfig, tmp_path: Path) -> None:
    reader = QueueReader(config)
    first = reader.latestOffset(reader.initialOffset(), None)
    write(config, tmp_path / "results", 0, [outcome(1, "a", 0)])
    assert reader.latestOffset(first, None) == first
    assert not queue.is_busy(queue_directory(config), 0)


def test_a_micro_batch_that_is_executed_again_changes_nothing(config: StreamingConfig, tmp_path: Path) -> None:
    results = tmp_path / "results"
    write(config, results, 0, [BUSY, outcome(1, "a", 0)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write(config, results, 0, [BUSY, outcome(1, "a", 0)])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in results.iterdir()) == ["000000000000.parquet", EVENTS_DIRECTORY]
    assert [path.name for path in (results / EVENTS_DIRECTORY).iterdir()] == ["000000000000.parquet"]


@pytest.mark.parametrize("place", [0, 20, -3])
def test_a_damaged_file_is_named(config: StreamingConfig, tmp_path: Path, place: int) -> None:
    write(config, tmp_path / "results", 0, [Row(3, 3, 0, 7, data=b"a tuple, not a short one"), BUSY])
    path = queue_directory(config) / "000000000000.queue"
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StreamingError, match=f"{path}: damaged.* put a copy of the whole checkpoint directory back"):
        queue.is_busy(queue_directory(config), 0)


def test_an_execution_that_ends_in_the_middle_leaves_nothing_behind(config: StreamingConfig, tmp_path: Path) -> None:
    writer = QueueWriter(config, tmp_path / "results")
    batch = pa.RecordBatch.from_pydict({name: [value] for name, value in outcome(1, "a", 0)._asdict().items()})
    writer.write(iter([batch]))
    writer.abort([writer.write(iter([batch]))], 0)
    results = tmp_path / "results"
    for directory in (results, results / EVENTS_DIRECTORY, queue_directory(config)):
        assert len([path for path in directory.iterdir() if path.is_file()]) == 1
        queue.sweep(directory)
        assert not any(path.is_file() for path in directory.iterdir())


def test_files_that_spark_is_done_with_go(config: StreamingConfig, tmp_path: Path) -> None:
    for batch in range(30):
        write(config, tmp_path / "results", batch, [BUSY])
        QueueReader(config).commit({"end": batch, "tick": batch, "now_ms": 0})
    assert len(list(queue_directory(config).iterdir())) == queue.KEPT_FILES
    assert not list((tmp_path / "results").rglob("*.parquet"))


def test_results_are_in_the_order_of_execution(config: StreamingConfig, tmp_path: Path) -> None:
    write(config, tmp_path / "results", 4, [outcome(2, "b", 0), outcome(1, "a", 0)])
    table = pq.read_table(tmp_path / "results" / "000000000004.parquet")
    assert table.column("counter").to_pylist() == [1, 2]
    assert table.column("status").to_pylist() == ["ok", "ok"]
    events = pq.read_table(tmp_path / "results" / EVENTS_DIRECTORY / "000000000004.parquet").to_pylist()
    assert [(event["counter"], event["place"], event["client"]) for event in events] == [(1, 0, "a"), (2, 0, "b")]
