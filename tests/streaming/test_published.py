"""Results and events as streams, on real files and without Spark."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from tara.protocol.errors import ConfigurationError
from tara.streaming.errors import StreamingError
from tara.streaming.published import PublishedReader, PublishedSource, file_name


def publish(directory: Path, batch: int, *counters: int) -> None:
    staged = directory / ".staged"
    pq.write_table(pa.table({"counter": list(counters)}), staged)
    staged.rename(directory / file_name(batch))


def counters(reader: PublishedReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    return [
        counter
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for counter in batch.column("counter").to_pylist()
    ]


def test_what_is_published_comes_once_and_in_order(tmp_path: Path) -> None:
    reader = PublishedReader(tmp_path, None)
    first = reader.initialOffset()
    assert reader.latestOffset(first, ReadAllAvailable()) == first
    publish(tmp_path, 3, 1, 2)
    publish(tmp_path, 11, 3)
    second = reader.latestOffset(first, ReadAllAvailable())
    publish(tmp_path, 12, 4, 5)
    third = reader.latestOffset(second, ReadAllAvailable())
    assert counters(reader, first, second) == [1, 2, 3]
    assert counters(reader, second, third) == [4, 5]
    assert reader.latestOffset(third, ReadAllAvailable()) == third
    assert reader.partitions(third, third) == []
    # Whatever came since: executed again, a micro-batch has the same rows.
    assert counters(PublishedReader(tmp_path, None), first, second) == [1, 2, 3]


def test_what_is_being_written_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".abc.staged").write_bytes(b"half a file")
    reader = PublishedReader(tmp_path, None)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == reader.initialOffset()


def test_so_many_files_at_once(tmp_path: Path) -> None:
    for batch in range(5):
        publish(tmp_path, 2 * batch, batch + 1)
    reader = PublishedReader(tmp_path, 2)
    assert reader.getDefaultReadLimit() == ReadMaxFiles(2)
    offset, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        seen.append(counters(reader, offset, end))
        offset = end
    assert seen == [[1, 2], [3, 4], [5]]
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == offset


def test_what_is_there_now(tmp_path: Path) -> None:
    publish(tmp_path, 0, 1)
    reader = PublishedReader(tmp_path, None)
    reader.prepareForTriggerAvailableNow()
    publish(tmp_path, 1, 2)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert counters(reader, reader.initialOffset(), end) == [1]
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / file_name(0)).write_bytes(b"no parquet")
    reader = PublishedReader(tmp_path, None)
    with pytest.raises(StreamingError, match=f"{tmp_path / file_name(0)}: published rows cannot be read"):
        counters(reader, {"next": 0}, {"next": 1})


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_a_limit_that_is_none(limit: str) -> None:
    source = PublishedSource({"path": "somewhere", "columns": "counter long", "maxFilesPerTrigger": limit})
    with pytest.raises(ConfigurationError, match=f"maxFilesPerTrigger = {limit}"):
        source.streamReader(None)  # type: ignore[arg-type]
