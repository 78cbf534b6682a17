"""A declarative pipeline with Tara at both ends: orders come from the decided log of a key-value service, and those
that are large go back into it as commands, each exactly once.

An order is a key `order-ARTICLE-NUMBER` whose value is how many are wanted. The environment says where the service is:
TARA_ENDPOINTS, and TARA_KEYS (of an observer) if it has keys.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

LARGE = 100
SERVICE = {"endpoints": os.environ["TARA_ENDPOINTS"], "application": "key-value"}
if "TARA_KEYS" in os.environ:
    SERVICE["keys"] = os.environ["TARA_KEYS"]


@dp.table
def orders() -> DataFrame:
    """Every order, from the first command of the log on."""
    log = SparkSession.active().readStream.format("tara").options(**SERVICE).load()
    return log.where("operation = 'Put' and status = 'ok' and key like 'order-%'").select(
        "counter",
        "time",
        F.split("key", "-")[1].alias("article"),
        F.col("key").alias("order"),
        F.col("value").cast("string").cast("int").alias("wanted"),
    )


@dp.materialized_view
def totals() -> DataFrame:
    """How many of each article."""
    return SparkSession.active().read.table("orders").groupBy("article").agg(F.sum("wanted").alias("wanted"))


# Rows wait in the staging directory until they are commands; one stream name is one pipeline, over all its runs.
dp.create_sink(
    "large_orders",
    "tara",
    {**SERVICE, "stream": "large-orders", "staging": os.environ.get("TARA_STAGING", "/tmp/tara-pipeline/staging")},
)


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Commands: a put of `large-ARTICLE-NUMBER`."""
    found = SparkSession.active().readStream.table("orders").where(F.col("wanted") >= LARGE)
    return found.select(
        F.regexp_replace("order", "^order-", "large-").alias("key"), F.col("wanted").cast("string").alias("value")
    )
