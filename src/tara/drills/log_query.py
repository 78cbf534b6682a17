"""The query of `tara drill log`: copies what it needs of the decided log to files, as the log grows.

Run as a program of its own: `python -m tara.drills.log_query ENDPOINTS DIRECTORY`. It is told nothing of the cluster's
data directory. It ends when the file `end` in its directory says how far it has to get, and it got there.
"""

import json
import sys
from pathlib import Path

from tara.live.spark_session import open_session

#: Four attempts for each task: a site that is killed may be all that a task knew.
MASTER = "local[2,4]"
BATCH_COMMANDS = 200_000
TASK_COMMANDS = 25_000
COLUMNS = ("counter", "session", "number", "crc32(command) as command", "crc32(result) as result")
END, COPY, CHECKPOINT = "end", "copy", "checkpoint"


def main(endpoints: str, directory: Path) -> None:
    spark = open_session("tara drill log", MASTER, {"spark.sql.shuffle.partitions": "2"})
    log = (
        spark.readStream.format("tara")
        .option("endpoints", endpoints)
        .option("max_commands_per_batch", BATCH_COMMANDS)
        .option("commands_per_task", TASK_COMMANDS)
        .load()
        .selectExpr(*COLUMNS)
    )
    query = (
        log.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / CHECKPOINT))
        .start(str(directory / COPY))
    )
    while not _is_done(query.lastProgress, directory / END):
        # Raises what the query has failed with.
        query.awaitTermination(1)
    query.stop()
    spark.stop()


def _is_done(progress: object, end: Path) -> bool:
    if progress is None or not end.exists():
        return False
    offset = json.loads(progress["sources"][0]["endOffset"])  # type: ignore[index]
    return bool(offset["counter"] >= int(end.read_text()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
