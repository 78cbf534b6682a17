"""`format("tara")` as a source over the network: no task and no driver sees a data directory."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tara.live.spark_session import open_session
from tara.net.certificates import load_keys
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.storage.log_format import LogError
from tara.storage.log_reader import LogReader
from tara.streaming.connector import LogStreamReader
from tests.log_sites import LogSite, endpoints_of, log_sites
from tests.storage.logs import behind, names, opened, simple, three_logs, write, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
COMMANDS = 100
#: The offset at the end of their log.
EVERYTHING = {"counter": COMMANDS + 1, "cluster": "7", "era": 1}


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession as Session

    active = Session.getActiveSession()
    if active is not None:
        active.stop()
    session = open_session("tests", "local[2,2]", {"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    return three_logs(tmp_path)


@pytest.fixture
def sites(logs: list[Path]) -> Iterator[list[LogSite]]:
    with log_sites(*logs) as served:
        yield served


def table(spark: "SparkSession", sites: list[LogSite], **options: Any) -> Any:
    reader = spark.read.format("tara").option("endpoints", endpoints_of(sites)).option("commands_per_task", 10)
    return reader.options(**options).load()


def counters(frame: Any) -> list[int]:
    return [row.counter for row in frame.select("counter").collect()]


def test_a_table_has_every_command_once_and_in_order(spark: "SparkSession", sites: list[LogSite]) -> None:
    frame = table(spark, sites)
    assert counters(frame) == list(range(1, COMMANDS + 1))
    assert counters(table(spark, sites, **{"from": "17", "to": "42"})) == list(range(17, 42))
    assert counters(table(spark, sites, **{"from": "101"})) == []
    # Tasks have read at all sites.
    assert all(site.log.used_s > 0 for site in sites)


def test_both_ways_to_the_log_give_the_same_rows(spark: "SparkSession", sites: list[LogSite], logs: list[Path]) -> None:
    by_directory = spark.read.format("tara").option("data_dir", str(logs[0].parent)).load()
    assert table(spark, sites).toArrow().equals(by_directory.toArrow())


def test_a_table_is_read_though_sites_are_gone_or_behind(spark: "SparkSession", tmp_path: Path) -> None:
    handed = simple(COMMANDS)
    short = written(tmp_path / "short", handed[: behind(handed, 2)]).directory
    whole = written(tmp_path / "whole", handed).directory
    with log_sites(short, whole, whole) as sites:
        sites[1].stop()
        assert counters(table(spark, sites)) == list(range(1, COMMANDS + 1))


def test_what_was_dropped_is_told(spark: "SparkSession", logs: list[Path]) -> None:
    for directory in logs:
        (directory / names(directory)[0]).unlink()
    first = LogReader(logs[0]).bounds().first
    with log_sites(*logs) as sites:
        with pytest.raises(Exception, match=f"command 1 is no longer in the log, which begins at {first}"):
            table(spark, sites, **{"from": "1"}).count()
        assert counters(table(spark, sites)) == list(range(first, COMMANDS + 1))


class Copy:
    """A query that copies the log to Parquet files, as far as it is there when it begins."""

    def __init__(self, spark: "SparkSession", directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self.batches: list[int] = []

    def run(self, sites: list[LogSite], **options: Any) -> None:
        stream = self._spark.readStream.format("tara").option("endpoints", endpoints_of(sites))
        query = (
            stream.options(**options)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._directory / "copy"))
        )
        query.awaitTermination()
        self.batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    @property
    def counters(self) -> list[int]:
        return sorted(counters(self._spark.read.parquet(str(self._directory / "copy"))))


def test_a_stream_takes_what_is_there_in_batches_and_goes_on(spark: "SparkSession", tmp_path: Path) -> None:
    handed = simple(COMMANDS)
    place = behind(handed, 3)
    writer, _ = opened(tmp_path / "log")
    write(writer, handed[:place])
    copy = Copy(spark, tmp_path)
    with log_sites(tmp_path / "log") as sites:
        copy.run(sites, max_commands_per_batch=20)
        there = copy.counters
        assert there == list(range(1, there[-1] + 1))
        assert 20 < there[-1] < COMMANDS
        assert copy.batches[0] == 20 and max(copy.batches) == 20
        write(writer, handed[place:])
        writer.flush()
        # Another site, by another name.
        with log_sites(tmp_path / "log") as others:
            copy.run(others, max_bytes_per_batch=1)
        assert copy.counters == list(range(1, COMMANDS + 1))
        assert len(copy.batches) > 1


def test_a_query_that_takes_what_is_there_ends_though_the_log_grows(spark: "SparkSession", tmp_path: Path) -> None:
    handed = simple(COMMANDS)
    place = behind(handed, 3)
    writer, _ = opened(tmp_path)
    write(writer, handed[:place])
    with log_sites(tmp_path) as sites:
        reader = LogStreamReader({"endpoints": endpoints_of(sites)})
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset({"counter": 1}, ReadAllAvailable())
        write(writer, handed[place:])
        writer.flush()
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert LogStreamReader({"endpoints": endpoints_of(sites)}).latestOffset(end, ReadAllAvailable()) == EVERYTHING


def test_with_keys_only_observers_read(spark: "SparkSession", logs: list[Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_cluster_keys(keys)
    alice, auditor = make_client_keys(keys, "alice"), make_client_keys(keys, "auditor", observer=True)
    with log_sites(*logs, keys=load_keys(keys)) as sites:
        assert counters(table(spark, sites, keys=auditor)) == list(range(1, COMMANDS + 1))
        with pytest.raises(Exception, match="only members and observers may read the log"):
            table(spark, sites, keys=alice).count()


def test_an_idle_query_asks_seldom_and_on_one_connection(spark: "SparkSession", sites: list[LogSite]) -> None:
    reader = LogStreamReader({"endpoints": endpoints_of(sites)})
    start = reader.initialOffset()
    for _ in range(200):
        assert reader.latestOffset(start, ReadAllAvailable()) == EVERYTHING
    assert [site.log.readers for site in sites] == [1, 1, 1]
    assert sum(site.log.answered for site in sites) < 60
    # What goes to the tasks has no connections in it.
    (partition,) = reader.partitions(start, {"counter": 20})
    copy = pickle.loads(pickle.dumps(reader))
    assert sum(batch.num_rows for batch in copy.read(partition)) == 19


@pytest.mark.parametrize("over_the_network", [True, False])
def test_a_query_does_not_go_on_in_the_log_of_another_cluster(
    spark: "SparkSession", logs: list[Path], tmp_path: Path, over_the_network: bool
) -> None:
    """One that was founded anew where the former one was, and has come further."""

    def options(directory: Path, sites: list[LogSite]) -> dict[str, str]:
        return {"endpoints": endpoints_of(sites)} if over_the_network else {"data_dir": str(directory)}

    with log_sites(*logs) as sites:
        former = LogStreamReader(options(logs[0].parent, sites))
        start = former.latestOffset(former.initialOffset(), ReadAllAvailable())
    assert start == EVERYTHING
    other = tmp_path / "other"
    writer, _ = opened(other / "log-0", cluster=8)
    write(writer, simple(2 * COMMANDS))
    writer.flush()
    with log_sites(other / "log-0") as sites:
        reader = LogStreamReader(options(other, sites))
        with pytest.raises(LogError, match=r"belongs to cluster 8, era 1; .* so far belongs to cluster 7, era 1"):
            reader.latestOffset(start, ReadAllAvailable())
        # A micro-batch that was planned, and is done again.
        (partition,) = reader.partitions({"counter": 1}, start)
        with pytest.raises(LogError, match="belongs to cluster 8, era 1"):
            list(LogStreamReader(options(other, sites)).read(partition))


def test_an_offset_is_a_counter(spark: "SparkSession", sites: list[LogSite], tmp_path: Path) -> None:
    """Which is the same at all sites, and in the directory: a query may change from one to the other."""
    copy = Copy(spark, tmp_path)
    copy.run(sites)
    newest = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))[-1]
    assert json.loads(newest.read_text().splitlines()[-1]) == EVERYTHING
