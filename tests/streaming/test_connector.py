"""`format("tara")` against a live cluster on local Spark: the sink under kills of its driver, the log as a table."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tara.application import Delete
from tara.client import Client, CommandFailed, Forbidden, KeyValueClient
from tara.configuration.settings import load_settings
from tara.live.spark import Cluster
from tara.storage.log_reader import best_log
from tara.streaming.sink import SECRET as SECRET_FILE
from tara.streaming.sink import SinkError, TaraWriter, sink_options
from tests.patience import await_condition
from tests.streaming.commands import ROOT
from tests.streaming.test_same_answers import KEYS, alone, sequence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DEADLINE_S = 300.0
#: Of the sessions that the tests open.
SECRET = bytes(range(16))

#: A query that makes a row per number and sends it to the cluster, in a process that can be killed.
DRIVER = """
import sys
from pyspark.sql import SparkSession, functions as F
endpoints, directory, prefix = sys.argv[1:]
spark = SparkSession.builder.master("local[1,2]").config("spark.ui.enabled", "false").getOrCreate()
numbers = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(directory + "/in")
pairs = numbers.select(F.concat(F.lit(prefix + "-"), "n").alias("key"), F.col("n").cast("string").alias("value"))
query = (
    pairs.writeStream.format("tara").option("endpoints", endpoints).option("stream", prefix)
    .option("application", "key-value").option("checkpointLocation", directory + "/checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from pyspark.sql import SparkSession as Session

    active = Session.getActiveSession()
    if active is not None:
        active.stop()
    directory = tmp_path_factory.mktemp("cluster")
    flags = {"data_dir": str(directory), "checkpoint_interval": 1024, "window": 8192, "log": True}
    found = Cluster(load_settings(environment={}, flags=flags))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def spark(cluster: Cluster) -> "SparkSession":
    """The very session that hosts the nodes."""
    return cluster.session()


def endpoints(cluster: Cluster) -> str:
    return ",".join(cluster.registry.endpoints)


def drive(cluster: Cluster, directory: Path, prefix: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, endpoints(cluster), str(directory), prefix],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def log_table(spark: "SparkSession", cluster: Cluster, **options: Any) -> Any:
    reader = spark.read.format("tara").option("data_dir", cluster.settings.data_dir)
    return reader.options(application="key-value", **options).load()


@pytest.mark.soak
@pytest.mark.parametrize(("rows", "kills"), [(4_000, 2), (100_000, 3)])
def test_rows_are_executed_once_though_the_driver_is_killed(
    cluster: Cluster, spark: "SparkSession", tmp_path: Path, rows: int, kills: int
) -> None:
    files, prefix = 8, f"row-of-{rows}"
    (tmp_path / "in").mkdir()
    for file in range(files):
        numbers = range(file * rows // files, (file + 1) * rows // files)
        (tmp_path / "in" / f"{file}.json").write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
    deadline_s = time.monotonic() + DEADLINE_S
    process = drive(cluster, tmp_path, prefix)
    try:
        with KeyValueClient(endpoints(cluster), timeout_s=30) as client:
            for kill_at in range(0, rows, rows // kills + 1):
                while client.get(f"{prefix}-{kill_at}") is None:
                    assert time.monotonic() < deadline_s, (tmp_path / "log").read_text()[-3000:]
                    time.sleep(0.01)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                process = drive(cluster, tmp_path, prefix)
            assert process.wait(DEADLINE_S) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    puts = log_table(spark, cluster).where(f"operation = 'Put' and key like '{prefix}-%'")
    assert puts.count() == rows
    assert puts.select("key").distinct().count() == rows
    assert [path.name for path in (tmp_path / "checkpoint" / "tara-staging").iterdir()] == [SECRET_FILE]

    # The same log as a stream, in two parts.
    def read_on(_: int) -> None:
        stream = spark.readStream.format("tara").option("data_dir", cluster.settings.data_dir)
        query = (
            stream.option("application", "key-value")
            .option("max_commands_per_batch", rows // 3)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "reader"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "copy"))
        )
        query.awaitTermination()

    read_on(1)
    log = best_log(Path(cluster.settings.data_dir))
    end = log.bounds().end
    with KeyValueClient(endpoints(cluster)) as client:
        client.put("one more", b"1")
    await_condition(lambda: b"one more" in b"".join(log.read(end).column("command").to_pylist()), "it is in the log")
    read_on(2)
    copy = spark.read.parquet(str(tmp_path / "copy"))
    whole = log_table(spark, cluster, to=str(copy.count() + 1))
    assert copy.count() > rows
    assert copy.exceptAll(whole).count() == 0
    assert copy.where("key = 'one more'").count() == 1


def test_two_lives_of_a_stream_cannot_disagree(cluster: Cluster) -> None:
    with (
        Client(endpoints(cluster), name="s", secret=SECRET, timeout_s=60) as one,
        Client(endpoints(cluster), name="s", secret=SECRET, timeout_s=60) as two,
    ):
        mine, theirs = one.claim(5, b"mine"), two.claim(5, b"theirs")
        assert mine.value == theirs.value == b"mine"
        with pytest.raises(CommandFailed, match="claim 4 is older than claim 5"):
            two.claim(4, b"late")
    with (
        Client(endpoints(cluster), name="s", secret=bytes(16), timeout_s=60) as stranger,
        pytest.raises(Forbidden, match="belongs to somebody else"),
    ):
        stranger.claim(6, b"stolen")


def test_a_row_without_a_payload_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    options = {"endpoints": "127.0.0.1:1", "stream": "s", "staging": str(tmp_path)}
    writer = TaraWriter(sink_options(options), StructType().add("payload", "binary"))
    with pytest.raises(SinkError, match="a row has no payload"):
        writer.write(iter([pa.RecordBatch.from_pydict({"payload": [b"x", None]})]))
    assert list(tmp_path.iterdir()) == []


def test_the_live_cluster_gives_the_answers_of_one_copy(cluster: Cluster) -> None:
    """So do the query and the simulator, for the same sequences: see test_same_answers."""
    with Client(endpoints(cluster), timeout_s=60) as client:
        for seed in range(50):
            for key in KEYS:
                client.execute(msgspec.msgpack.encode(Delete(key)))
            commands = sequence(seed)
            answers = [_answer(future) for future in [client.submit(command) for command in commands]]
            assert answers == alone(commands)[0]


def _answer(future: "Future[bytes]") -> tuple[str, bytes]:
    try:
        return "ok", future.result()
    except CommandFailed as error:
        return "failed", str(error).encode()


def test_bad_options_are_told(cluster: Cluster, spark: "SparkSession", tmp_path: Path) -> None:
    def failure(frame: Any, **options: str) -> str:
        query = None
        try:
            writer = frame.writeStream.format("tara").option("checkpointLocation", str(tmp_path / str(len(options))))
            query = writer.options(**options).trigger(availableNow=True).start()
            query.awaitTermination()
        except Exception as error:
            return str(error)
        finally:
            if query is not None:
                query.stop()
        return "nothing"

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"payload": "x"}\n')
    rows = spark.readStream.schema("payload string").json(str(tmp_path / "in"))
    good = {"endpoints": endpoints(cluster), "stream": "bad"}
    assert "the option stream is missing" in failure(rows, endpoints="127.0.0.1:1")
    assert "the column payload is missing" in failure(rows.selectExpr("payload as p"), **good)
    down = failure(rows, endpoints="127.0.0.1:1", stream="bad", timeout_s="1")
    assert "no answer from tcp://127.0.0.1:1" in down


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "The option endpoints"),
        ({"data_dir": "/nowhere"}, "no decided log"),
        ({"data_dir": "/nowhere", "endpoints": "127.0.0.1:1"}, "not with both"),
        ({"endpoints": "127.0.0.1:1", "timeout_s": "0.5"}, "no answer from 127.0.0.1:1"),
        ({"from": "x"}, "from = x"),
    ],
)
def test_bad_options_of_the_source_are_told(
    cluster: Cluster, spark: "SparkSession", options: dict[str, str], message: str
) -> None:
    if "from" in options:
        options = {**options, "data_dir": cluster.settings.data_dir}
    with pytest.raises(Exception, match=message):
        spark.read.format("tara").options(**options).load().count()
