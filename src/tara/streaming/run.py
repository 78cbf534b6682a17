"""`tara stream`: files of commands in, files of results out, in a Spark session of its own."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tara.live.spark_session import check_java, open_session
from tara.protocol.errors import ConfigurationError, TaraError
from tara.streaming import queue
from tara.streaming.checkpoint import queue_directory
from tara.streaming.config import StreamingConfig
from tara.streaming.replication import StreamingReplication, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

MASTER = "local[*,4]"
#: `module.ClassName: message`, but not of a Java class.
_PYTHON_ERROR = re.compile(r"(?!org\.|java\.)(\w+\.)*[A-Z]\w*[a-z]\w*: \S")
JSON_SCHEMA = "client string, number long, payload string"
PARQUET_SCHEMA = "client string, number long, payload binary"


class QueryFailed(TaraError):
    """The query ended by itself."""


class QueryProgress(Struct, frozen=True):
    """How far a query has come. Commands that are repetitions have no result of their own."""

    batches: int
    commands: int
    results: int
    #: Of the last micro-batch.
    batch_ms: int
    #: Whether all commands that were read have been dealt with.
    idle: bool


def session(master: str = MASTER, name: str = "tara stream") -> "SparkSession":
    """A Spark session with the settings that the streaming runtime likes."""
    check_java()
    return open_session(name, master, spark_settings())


def read_commands(spark: "SparkSession", directory: Path, kind: str | None, files_per_batch: int) -> "DataFrame":
    """The files of a directory as a stream of commands; new ones are taken as they appear."""
    if not directory.is_dir():
        raise ConfigurationError(f"{directory}: is not a directory")
    if kind is None:
        suffixes = {path.suffix for path in directory.iterdir() if not path.name.startswith((".", "_"))}
        kinds = {suffix.removeprefix(".") for suffix in suffixes} & {"parquet", "json"}
        if len(kinds) != 1:
            raise ConfigurationError(f"{directory}: say whether the commands are parquet or json (--format)")
        (kind,) = kinds
    if kind not in ("parquet", "json"):
        raise ConfigurationError(f"format = {kind}: must be parquet or json")
    schema: Any = JSON_SCHEMA
    if kind == "parquet":
        has_files = any(directory.glob("*.parquet"))
        schema = spark.read.parquet(str(directory)).schema if has_files else PARQUET_SCHEMA
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch)
    return reader.format(kind).load(str(directory))


def run(
    source: Path,
    output: Path,
    app: str = "key-value",
    master: str = MASTER,
    kind: str | None = None,
    drain: bool = False,
    files_per_batch: int = 100,
    show: Callable[[QueryProgress], None] = lambda progress: None,
    f: int = 1,
) -> QueryProgress:
    """Until interrupted or (drain) until every command that is there has its result."""
    spark = session(master)
    try:
        commands = read_commands(spark, source, kind, files_per_batch)
        config = StreamingConfig(checkpoint=str(output / "checkpoint"), f=f)
        query = StreamingReplication(commands, app, config).start(output / "results")
        return follow(query, config, output / "results", drain, show)
    finally:
        spark.stop()


def follow(
    query: "StreamingQuery",
    config: StreamingConfig,
    results: Path,
    drain: bool,
    show: Callable[[QueryProgress], None] = lambda progress: None,
    interval_s: float = 0.5,
) -> QueryProgress:
    """Watch a query; with `drain`, stop it when it has nothing left to do."""
    watch = Watch(query, config, results)
    try:
        while query.isActive:
            time.sleep(interval_s)
            progress = watch.look()
            show(progress)
            if drain and progress.idle:
                break
        check(query)
    finally:
        query.stop()
    return watch.look()


def check(query: "StreamingQuery") -> None:
    """Raise if the query has failed. Ask before stopping it: what that interrupts passes for a failure."""
    failure = query.exception()
    if failure is not None:
        raise QueryFailed(reason_of(str(failure)))


def reason_of(message: str) -> str:
    """The line of Spark's report that says what went wrong in Python, if that is where it did."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    report = lines.index("=== Streaming Query ===") if "=== Streaming Query ===" in lines else len(lines)
    python = [line for line in lines[:report] if _PYTHON_ERROR.match(line)]
    return python[-1] if python else lines[0] if lines else "the query failed"


class Watch:
    """Adds up what a query reports."""

    def __init__(self, query: "StreamingQuery", config: StreamingConfig, results: Path) -> None:
        self._query = query
        self._queue = queue_directory(config)
        self._results = results
        self._seen = -1
        self._commands = 0
        self._counted: dict[str, int] = {}
        self._quiet = 0
        self._batch_ms = 0

    def look(self) -> QueryProgress:
        for progress in self._query.recentProgress:
            if progress["batchId"] <= self._seen or "addBatch" not in progress["durationMs"]:
                continue
            self._seen = progress["batchId"]
            # The queue is the first source of the plan.
            commands = sum(source["numInputRows"] for source in progress["sources"][1:])
            self._commands += commands
            self._batch_ms = progress["durationMs"]["triggerExecution"]
            self._quiet = 0 if commands or queue.is_busy(self._queue, self._seen) else self._quiet + 1
        self._count()
        # Two quiet micro-batches: what came while the first one ran is in the second.
        return QueryProgress(
            self._seen + 1, self._commands, sum(self._counted.values()), self._batch_ms, self._quiet >= 2
        )

    def _count(self) -> None:
        import pyarrow.parquet as pq

        for path in self._results.glob("*.parquet"):
            if path.name not in self._counted:
                self._counted[path.name] = pq.read_metadata(path).num_rows
