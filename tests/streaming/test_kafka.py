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
#: Key and value of a record, of its number.
PUT = ("concat('key-', id)", "cast(id as string)")


@pytest.fixture(scope="module")
def jars(pytestconfig: pytest.Config) -> Path:
    script = runpy.run_path(str(EXAMPLE / "fetch_jars.py"))
    directory = pytestconfig.cache.mkdir("kafka-jars")
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


def produce(spark: "SparkSession", broker: Broker, topic: str, numbers: range, key: str, value: str) -> None:
    rows = spark.range(numbers.start, numbers.stop).selectExpr(f"{key} as key", f"{value} as value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", broker.address).option("topic", topic).save()


def run_example(name: str, broker: Broker, jars: Path, *options: str) -> None:
    command = [sys.executable, name, "--kafka", broker.address, "--jars", str(jars / "connector"), *options]
    done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=False, timeout=2 * DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]


def consume(spark: "SparkSession", broker: Broker) -> list[tuple[int, dict[str, Any]]]:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address).option("subscribe", "results")
    rows = reader.load().selectExpr("cast(key as string) as key", "cast(value as string) as value").collect()
    return sorted((int(row.key), json.loads(row.value)) for row in rows)


def test_records_become_commands_and_their_results_records(
    spark: "SparkSession", jars: Path, broker: Broker, tmp_path: Path
) -> None:
    cluster = Deployment(tmp_path / "data", {"log": "true"})

    def run() -> None:
        options = ["--once", "--endpoints", cluster.endpoints, "--checkpoints", str(tmp_path / "checkpoints")]
        run_example("through_tara.py", broker, jars, *options)

    try:
        cluster.start()
        produce(spark, broker, "commands", range(RECORDS), *PUT)
        run()
        first = consume(spark, broker)
        produce(spark, broker, "commands", range(RECORDS, RECORDS + 10), *PUT)
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


def test_the_streaming_runtime_takes_commands_from_kafka_and_gives_results_to_it(
    spark: "SparkSession", jars: Path, broker: Broker, tmp_path: Path
) -> None:
    clients, orders = 10, 500
    key = f"concat('client-', id % {clients})"
    # Every third order takes more than there may be.
    change = "if(id % 3 = 2, -1000000, 1)"
    value = f"to_json(named_struct('number', id div {clients}, 'article', 'bolt', 'change', {change}))"
    produce(spark, broker, "orders", range(orders), key, value)
    run_example("stock.py", broker, jars, "--directory", str(tmp_path / "stock"))
    produce(spark, broker, "orders", range(orders, 2 * orders), key, value)
    run_example("stock.py", broker, jars, "--directory", str(tmp_path / "stock"))
    results = consume(spark, broker)
    assert [counter for counter, _ in results] == list(range(1, 2 * orders + 1))
    done = [(result["client"], result["number"]) for _, result in results]
    assert sorted(done) == sorted((f"client-{n % clients}", n // clients) for n in range(2 * orders))
    refused = [result for _, result in results if result["status"] == "failed"]
    assert len(refused) == 2 * orders // 3
    # One order after the other: the level after each, without a gap.
    levels = [int(result["result"]) for _, result in results if result["status"] == "ok"]
    assert levels == list(range(1, len(levels) + 1))
