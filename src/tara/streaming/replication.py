"""`StreamingReplication`: the graph of the paper as one Structured Streaming query.

    commands ──┐
               ├─ sources ─ proposers ─ committers ─ executors ─ controllers ─┬─ results
    queue ─────┘                                                              └─ queue (next micro-batch)

Five stateful operators in a row, keyed by node; a row for a later one passes through. See `tara.streaming.rows` for
which stage is where, and `docs/spark.md` for what this gives and what it costs.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tara.application import StateMachine
from tara.named import application_of
from tara.protocol.errors import ConfigurationError
from tara.protocol.graph import Stage
from tara.streaming import checkpoint, packing, published, queue, rows
from tara.streaming.config import StreamingConfig
from tara.streaming.processor import VERSION, NodeProcessor
from tara.streaming.published import EVENTS_DIRECTORY, EVENTS_SCHEMA, RESULTS_SCHEMA
from tara.streaming.rows import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: What the query needs of the session; set while it starts. Spark keeps a running query's settings in its checkpoint.
_QUERY_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # What a micro-batch writes is what it changed.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Old versions are of no use.
    "spark.sql.streaming.minBatchesToRetain": "4",
    "spark.sql.adaptive.enabled": "false",
}
_STATIC_SETTINGS = {
    # The default file manager forks a process per file on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
    "spark.sql.streaming.pollingDelay": "20ms",
    # Every micro-batch has a dozen Python tasks: without reuse, each of them is a process that imports everything anew.
    # That is the default, but a virtual machine keeps the settings that it was launched with, and a cluster of this
    # process, which wants it otherwise, may have launched it.
    "spark.python.worker.reuse": "true",
}


def spark_settings() -> dict[str, str]:
    """What a Spark session should be started with. Without them the query works, but slower."""
    return {**_STATIC_SETTINGS, **_QUERY_SETTINGS}


class StreamingReplication:
    """Replicates an application over the commands of a streaming DataFrame with client, number and payload."""

    def __init__(self, commands: "DataFrame", app: str | Callable[[], StateMachine], config: StreamingConfig) -> None:
        """`app` is a built-in application's name, `module:Class`, or something that makes a state machine."""
        self._commands = _checked(commands)
        self._application = application_of(app) if isinstance(app, str) else app
        self._config = config
        self._results: Path | None = None

    def start(self, results: str | Path) -> "StreamingQuery":
        """Start the query, or go on where its checkpoint ends. Results appear as Parquet files in `results`, one per
        micro-batch; read them with `read_results`."""
        spark = self._commands.sparkSession
        config = self._config
        directory = Path(results).absolute()
        _check_directories(config, directory)
        self._results = directory
        for path in (directory, directory / EVENTS_DIRECTORY, checkpoint.queue_directory(config)):
            path.mkdir(parents=True, exist_ok=True)
            queue.sweep(path)
        spark.dataSource.register(queue.QueueSource)
        settings = {**_QUERY_SETTINGS, "spark.sql.shuffle.partitions": str(config.tasks)}
        former = {key: spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            spark.conf.set(key, value)
        try:
            return (
                self.plan()
                .writeStream.format(queue.FORMAT)
                .option("config", _text(config))
                .option("results", str(directory))
                .option("checkpointLocation", str(checkpoint.spark_directory(config)))
                .queryName(f"tara {directory.name}")
                .start()
            )
        finally:
            for key, old in former.items():
                if old is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, old)

    def results(self, **options: str) -> "DataFrame":
        """The results as a streaming DataFrame, for any sink: each once, in the order of execution. After `start`. With
        `maxFilesPerTrigger`, so many micro-batches of this query are read at once."""
        return self._published("", RESULTS_SCHEMA, options)

    def events(self, **options: str) -> "DataFrame":
        """What the application publishes, likewise: `counter` is that of the command that it came of, and `place`
        counts the events of one command."""
        return self._published(EVENTS_DIRECTORY, EVENTS_SCHEMA, options)

    def _published(self, directory: str, columns: str, options: dict[str, str]) -> "DataFrame":
        if self._results is None:
            raise ConfigurationError("the query has to be started before what it publishes can be read")
        return published.stream(self._commands.sparkSession, self._results / directory, columns, options)

    def plan(self) -> "DataFrame":
        """The query up to its sink."""
        from pyspark.sql import functions as sf

        spark = self._commands.sparkSession
        spark.dataSource.register(queue.QueueSource)
        config, graph = self._config, self._config.graph
        start = uuid.uuid4().hex
        feedback = spark.readStream.format(queue.FORMAT).option("config", _text(config)).load()
        first = graph.number(Stage.REQUEST_SOURCE, 0)
        source = sf.pmod(sf.xxhash64("client"), sf.lit(graph.replicas(Stage.REQUEST_SOURCE))).cast("int") + first
        commands = self._commands.select(
            source.alias("key"),
            sf.coalesce(sf.col("client"), sf.lit("")).alias("client"),
            sf.coalesce(sf.col("number"), sf.lit(rows.NONE)).alias("number"),
            sf.col("payload"),
        ).mapInArrow(packing.pack, SCHEMA)
        flow = feedback.unionByName(commands)
        for name, stages in rows.OPERATORS:
            keys = {
                number: rows.key_of(graph, number) for number, node in enumerate(graph.names) if node.stage in stages
            }
            processor = NodeProcessor(start, config, self._application, Stage.EXECUTOR in stages)
            flow = _operator(flow, name, keys, processor)
        # A projection that does something: without one the sink gets rows that it cannot take. One task writes them.
        return flow.withColumn("key", sf.coalesce(sf.col("key"), sf.lit(rows.WRITER))).coalesce(1)


def _check_directories(config: StreamingConfig, results: Path) -> None:
    """Files are named by micro-batch and stay as they are, so what another query left would pass for this one's."""
    checkpoint.claim(config)
    if checkpoint.has_begun(config):
        return
    left = [*checkpoint.queue_directory(config).glob("*.queue"), *results.glob("*.parquet")]
    if left:
        raise ConfigurationError(
            f"{left[0].parent} has files of another query, but the checkpoint {config.checkpoint} is new: "
            "go on with the checkpoint that belongs to them, or take an empty directory"
        )


def read_results(spark: "SparkSession", results: str | Path) -> "DataFrame":
    """The results so far, as a batch DataFrame. They can be read as a stream likewise, with the same schema."""
    return spark.read.schema(RESULTS_SCHEMA).parquet(str(results))


def nodes(spark: "SparkSession", directory: str | Path) -> "DataFrame":
    """The nodes of a query as they were at the end of its last micro-batch, by its checkpoint directory: one row for
    each, the reply sinks as one. Read from Spark's state store; the query may be running."""
    from pyspark.sql import functions as sf

    path = str(Path(directory).absolute() / "spark")
    found = None
    for operator in range(len(rows.OPERATORS)):
        reader = spark.read.format("statestore").option("operatorId", operator).option("stateVarName", VERSION)
        some = reader.load(path).select("value.*").drop("token")
        found = some if found is None else found.unionByName(some)
    assert found is not None
    return found.orderBy(sf.col("stage"), sf.col("partition"), sf.col("replica"))


def _text(config: StreamingConfig) -> str:
    absolute = msgspec.structs.replace(config, checkpoint=str(Path(config.checkpoint).absolute()))
    return msgspec.json.encode(absolute).decode()


def _checked(commands: "DataFrame") -> "DataFrame":
    """The three columns, with the types that the query needs; a clear error if that cannot be."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    if not commands.isStreaming:
        raise ConfigurationError("commands: must be a streaming DataFrame (spark.readStream…)")
    fields = {field.name: field.dataType for field in commands.schema.fields}
    allowed: dict[str, tuple[type[st.DataType], ...]] = {
        "client": (st.StringType, st.IntegralType),
        "number": (st.IntegralType,),
        "payload": (st.BinaryType, st.StringType),
    }
    for column, types in allowed.items():
        if column not in fields:
            raise ConfigurationError(f"commands: the column {column} is missing (there are: {', '.join(fields)})")
        if not isinstance(fields[column], types):
            found = fields[column].simpleString()
            wanted = " or ".join(kind.typeName() for kind in types)
            raise ConfigurationError(f"commands: the column {column} is {found}, but must be {wanted}")
    return commands.select(
        sf.col("client").cast("string"), sf.col("number").cast("long"), sf.col("payload").cast("binary")
    )


def _operator(flow: "DataFrame", name: str, keys: dict[int, int], processor: NodeProcessor) -> "DataFrame":
    """`keys` says whose state each node of this operator belongs to; whatever is for other nodes is one group. The
    column that it is grouped by has the operator's name: `explain` and the Structured Streaming tab show that."""
    from pyspark.sql import functions as sf

    shared = {number: key for number, key in keys.items() if number != key}
    key = sf.when(sf.col("node").isin([*keys]), sf.col("node")).otherwise(sf.lit(rows.WRITER))
    for number, first in shared.items():
        key = sf.when(sf.col("node") == number, sf.lit(first)).otherwise(key)
    return flow.withColumn(name, key).groupBy(name).transformWithState(processor, SCHEMA, "Append", "None")
