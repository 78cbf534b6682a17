"""Kafka at both ends of the streaming runtime: a replicated stock inside one Spark query, without a service to run.

    python stock.py --kafka HOST:PORT --directory DIRECTORY --jars DIRECTORY/connector

A record of the topic `orders` has the name of a client as key, and as value {"number": n, "article": …, "change": …}:
the numbers of a client count 0, 1, 2, … Each order executes exactly once. What came of it goes to the topic `results`:
the key of a record is the counter of its command, a number without gaps. Spark's sink for Kafka may repeat records
after a failure; whoever reads them drops a counter that came before.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tara import ApplicationError, Context, StateMachine, StreamingConfig, StreamingReplication, read_results
from tara.live.spark_session import open_session
from tara.streaming import spark_settings
from tara.streaming.run import follow


class Stock(StateMachine):
    """How much there is of each article: never less than nothing."""

    def __init__(self) -> None:
        self._levels: dict[str, int] = {}

    def apply(self, command: bytes, context: Context) -> bytes:
        order = json.loads(command)
        level = self._levels.get(order["article"], 0) + order["change"]
        if level < 0:
            raise ApplicationError(f"there are only {level - order['change']} of {order['article']}")
        self._levels[order["article"]] = level
        return str(level).encode()

    def query(self, question: bytes, context: Context) -> bytes:
        return str(self._levels.get(question.decode(), 0)).encode()

    def snapshot(self) -> Iterator[bytes]:
        yield json.dumps(dict(sorted(self._levels.items()))).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._levels = json.loads(b"".join(chunks))


def orders(spark: SparkSession, kafka: str) -> DataFrame:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return records.selectExpr(
        "cast(key as string) as client",
        "cast(get_json_object(cast(value as string), '$.number') as long) as number",
        "value as payload",
    )


def publish(spark: SparkSession, results: Path, kafka: str, checkpoint: Path) -> None:
    """What there is now."""
    found = spark.readStream.schema(read_results(spark, results).schema).parquet(str(results))
    writer = (
        found.where("counter is not null")
        .selectExpr(
            "cast(counter as string) as key",
            "to_json(struct(client, number, status, cast(result as string) as result)) as value",
        )
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("topic", "results")
        .option("checkpointLocation", str(checkpoint))
    )
    writer.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", required=True, help="host:port of a broker")
    parser.add_argument("--directory", required=True, type=Path, help="where checkpoints and results are kept")
    parser.add_argument("--jars", required=True, type=Path, help="the directory with Spark's connector for Kafka")
    options = parser.parse_args()
    jars = ",".join(str(path.resolve()) for path in sorted(options.jars.glob("*.jar")))
    spark = open_session("stock", "local[2,4]", {**spark_settings(), "spark.jars": jars})
    results = options.directory / "results"
    config = StreamingConfig(checkpoint=str(options.directory / "checkpoint"))
    query = StreamingReplication(orders(spark, options.kafka), Stock, config).start(results)
    # Until every order that is there has its result.
    follow(query, config, results, drain=True, show=lambda progress: None)
    publish(spark, results, options.kafka, options.directory / "published")
    spark.stop()


if __name__ == "__main__":
    main()
