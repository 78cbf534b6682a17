"""What a query publishes, as streaming DataFrames: results and events, for any sink.

The query's files are named by its micro-batches, appear by renaming, and never change. An offset is the number of the
first micro-batch that was not read, so a range of them holds the same rows whenever it is read, in the order of
execution: a sink that is idempotent by its own micro-batches gets each result once, and one that is not can tell by
`counter` (an event: by `counter` and `place`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from tara.protocol.errors import ConfigurationError
from tara.streaming.errors import StreamingError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "tara-published"
RESULTS_SCHEMA = "counter long, client string, number long, status string, result binary, view long"
EVENTS_SCHEMA = "counter long, place int, client string, event binary"
#: Of the results directory. Spark does not take what begins like this for results.
EVENTS_DIRECTORY = "_events"


def file_name(batch: int) -> str:
    return f"{batch:012}.parquet"


class PublishedSource(DataSource):
    """`format("tara-published")`: internal; `StreamingReplication.results` and `.events` make it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return str(self.options["columns"])

    def streamReader(self, schema: "StructType") -> "PublishedReader":  # noqa: N802
        files_max = self.options.get("maxFilesPerTrigger")
        if files_max is not None and not (files_max.isdigit() and int(files_max) > 0):
            raise ConfigurationError(f"maxFilesPerTrigger = {files_max}: must be a positive number")
        return PublishedReader(Path(self.options["path"]), None if files_max is None else int(files_max))


class Files(InputPartition):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths


class PublishedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets: the files of micro-batches below `next` have been read."""

    def __init__(self, directory: Path, files_max: int | None) -> None:
        self._directory = directory
        self._files_max = files_max
        #: With Trigger.AvailableNow: where to end.
        self._until: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._files_max is None else ReadMaxFiles(self._files_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = max(self._batches(0, None), default=-1) + 1

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        found = self._batches(start["next"], self._until)
        if isinstance(limit, ReadMaxFiles):
            found = found[: limit.max_files]
        return {"next": found[-1] + 1} if found else start

    def _batches(self, begin: int, end: int | None) -> list[int]:
        """A micro-batch publishes before the next one begins, so what appears is always behind what is there."""
        numbers = (int(path.stem) for path in self._directory.glob("*.parquet") if path.stem.isdigit())
        return sorted(number for number in numbers if begin <= number and (end is None or number < end))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        paths = [str(self._directory / file_name(number)) for number in self._batches(start["next"], end["next"])]
        # One, so that rows come in the order of execution.
        return [Files(paths)] if paths else []

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert isinstance(partition, Files)
        for path in partition.paths:
            try:
                yield from pq.read_table(path).to_batches()
            except (OSError, pa.ArrowException) as error:
                raise StreamingError(f"{path}: published rows cannot be read: {error}") from error

    def commit(self, end: dict[str, int]) -> None:
        """The files belong to the user."""

    def stop(self) -> None:
        """Nothing is open."""


def stream(spark: Any, directory: Path, columns: str, options: dict[str, str]) -> Any:
    """A streaming DataFrame of a directory of published files."""
    spark.dataSource.register(PublishedSource)
    reader = spark.readStream.format(FORMAT).options(**options).option("columns", columns)
    return reader.option("path", str(directory)).load()
