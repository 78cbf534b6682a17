"""Kafka at both ends of a live cluster: records of a topic become commands, and their results go to another topic.

    tara up
    python through_tara.py --kafka HOST:PORT --endpoints HOST:PORT,… --checkpoints DIRECTORY --jars DIRECTORY/connector

A record of the topic `commands` has a key and a value, and is a put (no value: a delete) of the key-value service. The
first query executes each exactly once, also when it is killed and started again. The second query reads the decided log
and writes a record per command to the topic `results`: its key is the command's counter, a number without gaps. Spark's
sink for Kafka may repeat records after a failure; whoever reads them drops a counter that came before.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tara.live.spark_session import open_session

RESULT = "struct(operation, key, cast(value as string) as value, status, time, session)"


def execute(spark: SparkSession, options: argparse.Namespace, once: bool) -> StreamingQuery:
    """Kafka to Tara."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.kafka)
        .option("subscribe", "commands")
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        records.selectExpr("cast(key as string) as key", "cast(value as string) as value")
        .writeStream.format("tara")
        .option("endpoints", options.endpoints)
        .option("application", "key-value")
        .option("stream", "commands-of-kafka")
        .option("checkpointLocation", str(options.checkpoints / "commands"))
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def publish(spark: SparkSession, options: argparse.Namespace, once: bool) -> StreamingQuery:
    """Tara to Kafka."""
    log = (
        spark.readStream.format("tara")
        .option("endpoints", options.endpoints)
        .option("application", "key-value")
        .load()
        .where("kind = 'execute'")
    )
    writer = (
        log.selectExpr("cast(counter as string) as key", f"to_json({RESULT}) as value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", options.kafka)
        .option("topic", "results")
        .option("checkpointLocation", str(options.checkpoints / "results"))
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", required=True, help="host:port of a broker")
    parser.add_argument("--endpoints", required=True, help="host:port,… of the front ends")
    parser.add_argument("--checkpoints", required=True, type=Path, help="where the queries remember how far they are")
    parser.add_argument("--jars", required=True, type=Path, help="the directory with Spark's connector for Kafka")
    parser.add_argument("--once", action="store_true", help="take what is there, and end")
    options = parser.parse_args()
    jars = ",".join(str(path.resolve()) for path in sorted(options.jars.glob("*.jar")))
    spark = open_session("kafka through tara", "local[2,4]", {"spark.jars": jars, "spark.sql.shuffle.partitions": "2"})
    if options.once:
        execute(spark, options, once=True).awaitTermination()
        publish(spark, options, once=True).awaitTermination()
    else:
        execute(spark, options, once=False)
        publish(spark, options, once=False)
        spark.streams.awaitAnyTermination()
    spark.stop()


if __name__ == "__main__":
    main()
