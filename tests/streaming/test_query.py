"""The query on real Spark: the whole protocol in it, what goes wrong with the input, and kills."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tara.protocol.errors import ConfigurationError
from tara.streaming import StreamingConfig, StreamingReplication, nodes, read_results
from tara.streaming.run import QueryFailed, QueryProgress, follow, read_commands, session
from tests.live.listeners import Listener, listeners, process_tree
from tests.streaming.commands import APP, check, kill_tree, python_workers, results_of, stream, write_commands

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkSession]":
    from pyspark.sql import SparkSession as Session

    active = Session.getActiveSession()
    found = active or session("local[2,4]", "tests")
    yield found
    if active is None:
        found.stop()


def test_a_silent_proposer_is_replaced_and_all_commands_finish(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Time is counted in micro-batches, and here each of them is a tick, however long it takes. View 1 decides what
    came in the first three; the proposer is silent from the fourth on, and only a fourth file lets that be noticed."""
    config = StreamingConfig(
        checkpoint=str(tmp_path / "checkpoint"), timeout_ticks=1, idle_tick_ms=1, silenced={"proposer-1": (4, 999)}
    )
    sent = write_commands(tmp_path / "in", files=4, per_file=30)
    replication = StreamingReplication(read_commands(spark, tmp_path / "in", "json", files_per_batch=1), APP, config)
    replication.plan().explain()
    plan = capsys.readouterr().out
    places = [plan.index(f" [{name}#") for name in ("controllers", "executors", "committers", "proposers", "sources")]
    assert places == sorted(places)

    found: set[Listener] = set()

    def watch(progress: QueryProgress) -> None:
        found.update(listeners(process_tree(os.getpid())))

    query = replication.start(tmp_path / "results")
    follow(query, config, tmp_path / "results", drain=True, show=watch, interval_s=0.1)
    # Every task of an operator listens for its Python worker.
    assert len(found) > 5
    assert [listener for listener in found if not listener.on_loopback] == []
    check(results_of(tmp_path), sent)
    views = [row["view"] for row in results_of(tmp_path)]
    assert views[0] == 1
    assert views[-1] == 2
    table = read_results(spark, tmp_path / "results")
    assert table.where("status = 'ok'").count() == len(sent)
    _check_nodes(spark, config, view=2, commands=len(sent))
    _check_published(replication, tmp_path / "copied", len(sent))
    # A query that went quiet goes on from its checkpoint, and a repetition changes nothing.
    more = write_commands(tmp_path / "again", files=5, per_file=30)
    for path in sorted((tmp_path / "again").iterdir())[-2:]:
        path.rename(tmp_path / "in" / f"again-{path.name}")
    follow(replication.start(tmp_path / "results"), config, tmp_path / "results", drain=True)
    check(results_of(tmp_path), more)


def _check_nodes(spark: "SparkSession", config: StreamingConfig, view: int, commands: int) -> None:
    found = {row["label"]: row for row in nodes(spark, config.checkpoint).collect()}
    assert len(found) == 24
    assert {(row["stage"], row["partition"], row["replica"]) for row in found.values()} >= {("proposer", 0, 1)}
    assert {found[f"committer-{replica}"]["view"] for replica in range(3)} == {view}
    # A front end has opened a session, whose number is a command's, too.
    assert found["executor-0"]["position"] >= 4
    assert found["executor-0"]["run_bytes"] > commands
    assert all(row["condition"] == "" and row["node_bytes"] > 0 for row in found.values())


def _check_published(replication: StreamingReplication, directory: Path, commands: int) -> None:
    """Results as a stream, into a sink that is exactly once."""
    batches: dict[int, list[int]] = {}

    def keep(frame: "DataFrame", batch: int) -> None:
        batches[batch] = [row["counter"] for row in frame.collect()]

    writer = replication.results(maxFilesPerTrigger="1").writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(directory)).trigger(availableNow=True).start()
    query.awaitTermination(int(DEADLINE_S))
    assert len(batches) > 1
    assert [counter for batch in sorted(batches) for counter in batches[batch]] == list(range(1, commands + 1))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("client string, number long", "the column payload is missing"),
        ("client string, number string, payload string", "the column number is string"),
        ("client double, number long, payload string", "the column client is double"),
    ],
)
def test_commands_must_have_the_columns(spark: "SparkSession", tmp_path: Path, columns: str, message: str) -> None:
    commands = spark.readStream.schema(columns).json(str(tmp_path))
    with pytest.raises(ConfigurationError, match=message):
        StreamingReplication(commands, APP, StreamingConfig(checkpoint=str(tmp_path)))


def test_what_another_query_left_is_not_taken_for_its_own(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "000000000000.parquet").write_bytes(b"")
    commands = spark.readStream.schema("client string, number long, payload string").json(str(tmp_path))
    replication = StreamingReplication(commands, APP, StreamingConfig(checkpoint=str(tmp_path / "checkpoint")))
    with pytest.raises(ConfigurationError, match="has files of another query"):
        replication.start(tmp_path / "results")


def test_an_old_checkpoint_is_refused_before_the_query_starts(spark: "SparkSession", tmp_path: Path) -> None:
    offsets = tmp_path / "checkpoint" / "spark" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1")
    commands = spark.readStream.schema("client string, number long, payload string").json(str(tmp_path))
    replication = StreamingReplication(commands, APP, StreamingConfig(checkpoint=str(tmp_path / "checkpoint")))
    with pytest.raises(ConfigurationError, match="older version of Tara"):
        replication.start(tmp_path / "results")
    with pytest.raises(ConfigurationError, match="has to be started"):
        replication.results()


def test_commands_must_be_a_stream(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="streaming DataFrame"):
        StreamingReplication(spark.range(1), APP, StreamingConfig(checkpoint=str(tmp_path)))


def test_a_broken_application_ends_the_query_with_its_message(spark: "SparkSession", tmp_path: Path) -> None:
    write_commands(tmp_path / "in", files=1, per_file=1)

    def broken() -> None:
        raise RuntimeError("cannot be made")

    config = StreamingConfig(checkpoint=str(tmp_path / "checkpoint"))
    commands = read_commands(spark, tmp_path / "in", None, 1)
    query = StreamingReplication(commands, broken, config).start(tmp_path / "results")  # type: ignore[arg-type]
    with pytest.raises(QueryFailed, match="cannot be made"):
        follow(query, config, tmp_path / "results", drain=True)


@pytest.mark.soak
@pytest.mark.parametrize("kills", [40])
def test_kills_of_workers_and_of_the_driver_lose_and_repeat_nothing(tmp_path: Path, kills: int) -> None:
    kill_and_check(tmp_path, kills, random.Random(7))


@pytest.mark.soak
def test_a_killed_worker_and_a_killed_driver(tmp_path: Path) -> None:
    kill_and_check(tmp_path, 2, random.Random(1))


def kill_and_check(directory: Path, kills: int, choice: random.Random) -> None:
    """Kill in turn a Python worker and the driver with everything, each at a random moment of a busy query whose input
    is in no order and has repetitions."""
    sent = write_commands(directory / "in", files=4 + 2 * kills, per_file=20, untidy=choice)
    output = directory / "out"
    process = stream(directory / "in", output, directory / "log")
    deadline_s = time.monotonic() + DEADLINE_S * max(kills / 2, 1)
    try:
        for kill in range(kills):
            if process.poll() is not None:
                # The killed worker was the one that the driver itself needs, and the query failed.
                process = stream(directory / "in", output, directory / "log")
            published = len(results_of(output))
            while len(results_of(output)) <= published and process.poll() is None:
                assert time.monotonic() < deadline_s, (directory / "log").read_text()[-2000:]
                time.sleep(0.1)
            time.sleep(choice.uniform(0.0, 2.0))
            workers = python_workers(process.pid)
            if kill % 2 == 0 and workers:
                os.kill(choice.choice(workers), signal.SIGKILL)
            elif process.poll() is None:
                kill_tree(process)
                process = stream(directory / "in", output, directory / "log")
        while process.wait(max(deadline_s - time.monotonic(), 1)) != 0:
            assert time.monotonic() < deadline_s, (directory / "log").read_text()[-2000:]
            process = stream(directory / "in", output, directory / "log")
    finally:
        if process.poll() is None:
            kill_tree(process)
    check(results_of(output), sent)
