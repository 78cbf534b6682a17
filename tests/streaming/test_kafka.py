"""Kafka at both ends of a live cluster, with a real broker: `examples/kafka`."""

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tara.client import KeyValueClient
from tara.live.spark_session import open_session
from tara.operations.deployment import Deployment
from tests.patience import DEADLINE_S
from tests.streaming.commands import ROOT
from tests.streaming.kafka_broker import Broker, running_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak]
EXAMPLE = ROOT / "examples" / "kafka"
RECORDS = 2_000


@pytest.fixture(scope="module")
def jars(pytestconfig: pytest.Config) -> Path:
    script = runpy.run_path(str(EXAMPLE / "fetch_jars.py"))
    directory = pytestconfig.cache.mkdir("kafka-jars")  # type: ignore[union-attr]
    try:
        script["fetch_all"](directory)
    except script["FetchError"] as error:
        pytest.skip(f"the jars of Kafka cannot be fetched: {error}")
    return Path(directory)


@pytest.fixture(scope="module")
def spark(jars: Path) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession as Session

    active = Session.getActiveSession()
    if active is not None:
        active.stop()
    connector = ",".join(map(str, sorted((jars / "connector").glob("*.jar"))))
    session = open_session("tests", "local[2,2]", {"spark.jars": connector, "spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


@pytest.fixture
def broker(jars: Path, tmp_path: Path) -> Iterator[Broker]:
    with running_broker(jars, tmp_path / "kafka") as running:
        yield running


def produce(spark: "SparkSession", broker: Broker, numbers: range) -> None:
    rows = spark.range(numbers.start, numbers.stop).selectExpr("concat('key-', id) as key", "cast(id as string) value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", broker.address).option("topic", "commands").save()


def consume(spark: "SparkSession", broker: Broker) -> list[tuple[int, dict[str, Any]]]:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address).option("subscribe", "results")
    rows = reader.load().selectExpr("cast(key as string) as key", "cast(value as string) as value").collect()
    return sorted((int(row.key), json.loads(row.value)) for row in rows)


def test_records_become_commands_and_their_results_records(
    spark: "SparkSession", jars: Path, broker: Broker, tmp_path: Path
) -> None:
    cluster = Deployment(tmp_path / "data", {"log": "true"})

    def run() -> None:
        command = [sys.executable, str(EXAMPLE / "through_tara.py"), "--once", "--kafka", broker.address]
        command += ["--endpoints", cluster.endpoints, "--checkpoints", str(tmp_path / "checkpoints")]
        command += ["--jars", str(jars / "connector")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * DEADLINE_S)
        assert done.returncode == 0, done.stderr[-3000:]

    try:
        cluster.start()
        produce(spark, broker, range(RECORDS))
        run()
        first = consume(spark, broker)
        produce(spark, broker, range(RECORDS, RECORDS + 10))
        run()
        with KeyValueClient(cluster.endpoints, timeout_s=DEADLINE_S) as client:
            assert client.get("key-0") == b"0"
            assert client.get(f"key-{RECORDS + 9}") == b"%d" % (RECORDS + 9)
    finally:
        cluster.stop()
    results = consume(spark, broker)
    assert results[: len(first)] == first
    assert len(first) == RECORDS
    # Every record was executed once, and every result is there once.
    assert sorted(int(result["value"]) for _, result in results) == list(range(RECORDS + 10))
    assert len({counter for counter, _ in results}) == len(results)
    assert {result["status"] for _, result in results} == {"ok"}
