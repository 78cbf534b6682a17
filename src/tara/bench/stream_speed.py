"""How fast the streaming runtime is: micro-batches of 64-byte commands, one as soon as the last one is done.

All commands of a micro-batch are there when it begins, so a command's latency is from the beginning of its micro-batch
until its result is in a file. The larger the micro-batches, the cheaper a command, and the longer it takes.
"""

import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from tara.application import Context, KeyValueStore, Put
from tara.protocol import tuples as t
from tara.streaming import StreamingConfig, StreamingReplication
from tara.streaming.run import check, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CLIENTS = 64
WARM_UP_S = 60.0


class StreamReport(Struct):
    seconds: float
    #: Commands in a micro-batch; whether they can be compressed; and what the application holds beside them.
    batch_commands: int
    compressible: bool
    state_mb: int
    #: Commands answered.
    throughput_per_s: float
    batches: int
    batch_ms_p50: float
    batch_ms_p99: float
    #: Medians of the first and the last quarter: the cost of a micro-batch must not grow.
    batch_ms_first: float
    batch_ms_last: float
    latency_ms_p50: float
    #: What the driver, Spark and the Python workers used, all together.
    cpu_ms_per_batch: float
    cpu_us_per_command: float
    #: Of that, what the JVM used for a micro-batch; the rest is Python's.
    jvm_cpu_ms_per_batch: float
    #: Medians of what Spark says a micro-batch's time goes into.
    phases_ms: dict[str, float]
    #: What Spark's state store holds; and the whole checkpoint directory, medians of the first and the last quarter.
    state_bytes: int
    checkpoint_bytes_first: int
    checkpoint_bytes_last: int
    #: Commands without a result, or with several, among those below the highest number that was answered.
    wrong: int


def measure(
    seconds: float,
    batch_commands: int,
    master: str,
    warm_up_s: float = WARM_UP_S,
    tell: Callable[[str], None] = lambda _: None,
    compressible: bool = True,
    state_mb: int = 0,
) -> StreamReport:
    spark = session(master, "tara bench stream")
    load = Load(batch_commands, compressible, state_mb)
    try:
        with tempfile.TemporaryDirectory(prefix="tara-stream-") as directory:
            return _measure(spark, Path(directory), seconds, load, warm_up_s, tell)
    finally:
        spark.stop()


class Load(NamedTuple):
    batch_commands: int
    compressible: bool = True
    state_mb: int = 0


class FullStore(KeyValueStore):
    """Holds something from the beginning, which no command touches."""

    def __init__(self, state_mb: int) -> None:
        super().__init__()
        draw = random.Random(state_mb)
        for number in range(state_mb * 1_000):
            self.apply(t.encode(Put(f"full-{number:09}", draw.randbytes(985))), Context([]))


def commands(spark: "SparkSession", load: Load) -> "DataFrame":
    """Puts of 64 bytes over a thousand keys, from 64 clients."""
    from pyspark.sql import functions as sf

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", load.batch_commands)
    arrivals = source.option("numPartitions", 2).load()
    # [1, "00000123", 51 bytes] in MessagePack.
    head, value = "9301a8", sf.unhex(sf.lit("c433" + "78" * 51))
    if not load.compressible:
        noise = sf.unhex(sf.sha2(sf.col("value").cast("string").cast("binary"), 512))
        value = sf.concat(sf.unhex(sf.lit("c433")), sf.substring(noise, 1, 51))
    key = sf.encode(sf.lpad((sf.col("value") % 1000).cast("string"), 8, "0"), "utf-8")
    return arrivals.select(
        (sf.col("value") % CLIENTS).cast("string").alias("client"),
        sf.expr(f"value div {CLIENTS}").alias("number"),
        sf.concat(sf.unhex(sf.lit(head)), key, value).alias("payload"),
    )


def _measure(
    spark: "SparkSession",
    directory: Path,
    seconds: float,
    load: Load,
    warm_up_s: float,
    tell: Callable[[str], None],
) -> StreamReport:
    config = StreamingConfig(checkpoint=str(directory / "checkpoint"))
    results = directory / "results"
    application = partial(FullStore, load.state_mb)
    query = StreamingReplication(commands(spark, load), application, config).start(results)
    try:
        progress: dict[int, dict[str, Any]] = {}
        _watch(query, progress, warm_up_s, tell)
        sizes: list[int] = []
        measured_from = max(progress, default=-1) + 1
        begun_s, begun_cpu_s, begun_jvm_s = time.time(), cpu_s_of_tree(os.getpid()), cpu_s_of_tree(os.getpid(), "java")
        _watch(query, progress, seconds, tell, lambda: sizes.append(_size(directory / "checkpoint")))
        ended_s, ended_cpu_s, ended_jvm_s = time.time(), cpu_s_of_tree(os.getpid()), cpu_s_of_tree(os.getpid(), "java")
        check(query)
    finally:
        query.stop()
    batches = [progress[number] for number in sorted(progress) if number >= measured_from]
    durations = [batch["durationMs"]["triggerExecution"] for batch in batches]
    quarter, size_quarter = max(len(durations) // 4, 1), max(len(sizes) // 4, 1)
    answered, wrong = _evaluate(results, begun_s, ended_s)
    return StreamReport(
        seconds=round(ended_s - begun_s, 1),
        batch_commands=load.batch_commands,
        compressible=load.compressible,
        state_mb=load.state_mb,
        throughput_per_s=round(answered / (ended_s - begun_s), 1),
        batches=len(batches),
        batch_ms_p50=statistics.median(durations or [0]),
        batch_ms_p99=sorted(durations or [0])[int(len(durations) * 0.99) - 1],
        batch_ms_first=statistics.median(durations[:quarter] or [0]),
        batch_ms_last=statistics.median(durations[-quarter:] or [0]),
        latency_ms_p50=statistics.median([_published_ms(batch) for batch in batches] or [0]),
        cpu_ms_per_batch=round((ended_cpu_s - begun_cpu_s) * 1e3 / max(len(batches), 1), 1),
        cpu_us_per_command=round((ended_cpu_s - begun_cpu_s) * 1e6 / max(answered, 1), 1),
        jvm_cpu_ms_per_batch=round((ended_jvm_s - begun_jvm_s) * 1e3 / max(len(batches), 1), 1),
        phases_ms=_phases_ms(batches),
        state_bytes=sum(operator["memoryUsedBytes"] for operator in batches[-1]["stateOperators"]) if batches else 0,
        checkpoint_bytes_first=int(statistics.median(sizes[:size_quarter] or [0])),
        checkpoint_bytes_last=int(statistics.median(sizes[-size_quarter:] or [0])),
        wrong=wrong,
    )


def _watch(
    query: "StreamingQuery",
    progress: dict[int, dict[str, Any]],
    seconds: float,
    tell: Callable[[str], None],
    look: Callable[[], None] = lambda: None,
) -> None:
    """Collect what the query reports. The 100 newest reports are kept by Spark: more than come in a second."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and query.isActive:
        time.sleep(1.0)
        look()
        for report in query.recentProgress:
            if "addBatch" in report["durationMs"]:
                progress[report["batchId"]] = report
        if progress:
            newest = progress[max(progress)]
            rows, duration = newest["numInputRows"], newest["durationMs"]["triggerExecution"]
            tell(f"batch {newest['batchId']}: {rows} rows in {duration} ms")


def _size(directory: Path) -> int:
    """Files come and go meanwhile."""
    size = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _phases_ms(batches: list[dict[str, Any]]) -> dict[str, float]:
    names = sorted({name for batch in batches for name in batch["durationMs"]})
    return {name: statistics.median([batch["durationMs"].get(name, 0) for batch in batches]) for name in names}


def cpu_s_of_tree(root: int, name: str = "") -> float:
    """CPU seconds of a process and all its descendants, with those that have ended and been waited for. With `name`:
    of those that are called so."""
    used: dict[int, float] = {}
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                head, tail = (path / "stat").read_text().rsplit(")", 1)
                fields = tail.split()
                names[int(path.name)] = head.split("(", 1)[1]
                parents[int(path.name)] = int(fields[1])
                used[int(path.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    tree = {root}
    while found := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= found
    return sum(used.get(pid, 0.0) for pid in tree if not name or names.get(pid) == name)


def _published_ms(batch: dict[str, Any]) -> float:
    """From the beginning of a micro-batch until its results are there; what Spark notes afterwards does not count."""
    durations = batch["durationMs"]
    return float(durations["triggerExecution"] - durations.get("commitOffsets", 0))


def _evaluate(results: Path, begun_s: float, ended_s: float) -> tuple[int, int]:
    """Commands answered in the measured time; and how many results are missing or twice."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    answered, total, highest = 0, 0, -1
    seen: set[int] = set()
    for path in sorted(results.glob("*.parquet")):
        table = pq.read_table(path, columns=["client", "number"])
        places = pc.add(pc.multiply(table["number"], CLIENTS), pc.cast(table["client"], "int64")).to_pylist()
        total += len(places)
        seen.update(places)
        highest = max(highest, *places)
        if begun_s <= path.stat().st_mtime <= ended_s:
            answered += len(places)
    return answered, (highest + 1 - len(seen)) + (total - len(seen))
