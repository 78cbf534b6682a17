"""How fast the streaming runtime is: 64-byte commands arrive at a steady rate, and results appear in files.

Commands come from Spark's rate source, so each has a time of arrival: the n-th one comes n/rate seconds after the
start. A micro-batch takes what has arrived since the last one; where the query cannot keep up, its micro-batches grow,
which makes them cheaper per command, until they are as large as the machine can bear. Latency is from the arrival of a
command until its result is in a file.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tara.streaming import StreamingConfig, StreamingReplication
from tara.streaming.run import QueryFailed, reason_of, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CLIENTS = 64
COMMAND_BYTES = 64
WARM_UP_S = 30.0


class StreamReport(Struct):
    seconds: float
    #: Commands that arrived, and that were answered, per second.
    offered_per_s: int
    throughput_per_s: float
    batches: int
    batch_ms_p50: float
    batch_ms_p99: float
    #: Medians of the first and the last quarter: the cost of a micro-batch must not grow.
    batch_ms_first: float
    batch_ms_last: float
    latency_ms_p50: float
    #: What Spark's state store holds, and the whole checkpoint directory.
    state_bytes: int
    checkpoint_bytes: int
    #: Commands without a result, or with several, among those below the highest number that was answered.
    wrong: int


def measure(
    seconds: float, rate: int, master: str, warm_up_s: float = WARM_UP_S, tell: Callable[[str], None] = lambda _: None
) -> StreamReport:
    spark = session(master, "tara bench stream")
    try:
        with tempfile.TemporaryDirectory(prefix="tara-stream-") as directory:
            return _measure(spark, Path(directory), seconds, rate, warm_up_s, tell)
    finally:
        spark.stop()


def commands(spark: "SparkSession", rate: int) -> "DataFrame":
    """Puts of 64 bytes over a thousand keys, from 64 clients."""
    from pyspark.sql import functions as sf

    arrivals = spark.readStream.format("rate").option("rowsPerSecond", rate).option("numPartitions", 2).load()
    # [1, "00000123", 51 bytes] in MessagePack.
    head, value = "9301a8", "c433" + "78" * 51
    key = sf.encode(sf.lpad((sf.col("value") % 1000).cast("string"), 8, "0"), "utf-8")
    return arrivals.select(
        (sf.col("value") % CLIENTS).cast("string").alias("client"),
        sf.expr(f"value div {CLIENTS}").alias("number"),
        sf.concat(sf.unhex(sf.lit(head)), key, sf.unhex(sf.lit(value))).alias("payload"),
    )


def _measure(
    spark: "SparkSession", directory: Path, seconds: float, rate: int, warm_up_s: float, tell: Callable[[str], None]
) -> StreamReport:
    config = StreamingConfig(checkpoint=str(directory / "checkpoint"))
    results = directory / "results"
    query = StreamingReplication(commands(spark, rate), "key-value", config).start(results)
    try:
        progress: dict[int, dict[str, Any]] = {}
        _watch(query, progress, warm_up_s, tell)
        measured_from = max(progress, default=-1) + 1
        begun_s = time.time()
        _watch(query, progress, seconds, tell)
        ended_s = time.time()
    finally:
        query.stop()
    failure = query.exception()
    if failure is not None:
        raise QueryFailed(reason_of(str(failure)))
    batches = [progress[number] for number in sorted(progress) if number >= measured_from]
    durations = [batch["durationMs"]["triggerExecution"] for batch in batches]
    quarter = max(len(durations) // 4, 1)
    answered, latencies, wrong = _evaluate(results, rate, _started_s(directory / "checkpoint"), begun_s, ended_s)
    return StreamReport(
        seconds=round(ended_s - begun_s, 1),
        offered_per_s=rate,
        throughput_per_s=round(answered / (ended_s - begun_s), 1),
        batches=len(batches),
        batch_ms_p50=statistics.median(durations or [0]),
        batch_ms_p99=sorted(durations or [0])[int(len(durations) * 0.99) - 1],
        batch_ms_first=statistics.median(durations[:quarter] or [0]),
        batch_ms_last=statistics.median(durations[-quarter:] or [0]),
        latency_ms_p50=round(statistics.median(latencies or [0.0]), 1),
        state_bytes=sum(operator["memoryUsedBytes"] for operator in batches[-1]["stateOperators"]) if batches else 0,
        checkpoint_bytes=sum(path.stat().st_size for path in (directory / "checkpoint").rglob("*") if path.is_file()),
        wrong=wrong,
    )


def _watch(
    query: "StreamingQuery", progress: dict[int, dict[str, Any]], seconds: float, tell: Callable[[str], None]
) -> None:
    """Collect what the query reports. The 100 newest reports are kept by Spark: more than come in a second."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and query.isActive:
        time.sleep(1.0)
        for report in query.recentProgress:
            if "addBatch" in report["durationMs"]:
                progress[report["batchId"]] = report
        if progress:
            newest = progress[max(progress)]
            rows, duration = newest["numInputRows"], newest["durationMs"]["triggerExecution"]
            tell(f"batch {newest['batchId']}: {rows} rows in {duration} ms")


def _started_s(checkpoint: Path) -> float:
    """When the rate source began to count: it notes that in the query's checkpoint, in milliseconds."""
    (note,) = (checkpoint / "spark" / "sources").glob("*/0")
    return float(note.read_text().split()[-1]) / 1e3


def _evaluate(
    results: Path, rate: int, started_s: float, begun_s: float, ended_s: float
) -> tuple[int, list[float], int]:
    """Commands answered in the measured time; their latencies; and how many results are missing or twice."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    answered, total, highest = 0, 0, -1
    latencies: list[float] = []
    seen: set[int] = set()
    files = [(path, path.stat().st_mtime) for path in sorted(results.glob("*.parquet"))]
    tables = [(pq.read_table(path, columns=["client", "number", "status"]), published_s) for path, published_s in files]
    for table, published_s in tables:
        arrivals = pc.add(pc.multiply(table["number"], CLIENTS), pc.cast(table["client"], "int64")).to_numpy()
        total += len(arrivals)
        seen.update(arrivals.tolist())
        highest = max(highest, int(arrivals.max()))
        if begun_s <= published_s <= ended_s:
            answered += len(arrivals)
            latencies += ((published_s - started_s - arrivals / rate) * 1e3).tolist()
    return answered, latencies, (highest + 1 - len(seen)) + (total - len(seen))
