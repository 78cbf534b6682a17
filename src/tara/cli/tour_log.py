"""The demo's last station: the decided log as a table of Spark SQL, in the very Spark session that hosts the nodes.

The log has no views: replicas may learn one decision in different ones. So a view is what the registry showed at the
agreed time of a command, which is a little late.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tara.storage.log_reader import best_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WATCH_S = 0.05
#: How long the log may need to show what has been executed.
LOG_TIMEOUT_S = 10.0

_COMMANDS = """
    select counter, time, cast(time as double) * 1000 as ms,
           cast(time as double) * 1000 - lag(cast(time as double) * 1000) over (order by counter) as pause_ms
    from decided_log
"""
_BY_VIEW = """
    select view, count(*) as commands, round((max(ms) - min(ms)) / 1000, 1) as seconds,
           cast(max(pause_ms) as long) as longest_pause_ms
    from commands join views on ms >= since_ms and ms < until_ms
    group by view order by view
"""
_BY_SECOND = """
    select date_format(time, 'HH:mm:ss') as second, count(*) as commands,
           cast(max(pause_ms) as long) as longest_pause_ms
    from commands group by second order by second
"""


class LogFindings(Struct, frozen=True):
    """What Spark SQL says of the log."""

    commands: int
    pause_ms_max: int
    views: list[int]


class ViewWatch:
    """Notes when the cluster's view was first seen to be another one."""

    def __init__(self, view: Callable[[], int]) -> None:
        self._view = view
        self._seen: list[tuple[int, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="views", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_S):
            view = self._view()
            if not self._seen or view > self._seen[-1][0]:
                self._seen.append((view, time.time() * 1e3))

    def end(self) -> list[tuple[int, float, float]]:
        """The views with the times from which and until which they were seen."""
        self._ended.set()
        self._thread.join()
        since = [0.0, *(since_ms for _, since_ms in self._seen[1:]), float("inf")]
        return [(view, since[index], since[index + 1]) for index, (view, _) in enumerate(self._seen)]


def show_log(
    spark: "SparkSession",
    data_dir: Path,
    end: int,
    views: list[tuple[int, float, float]],
    say: Callable[[str], None],
) -> LogFindings:
    """Read the log up to this command with Spark, and say what is in it."""
    deadline_s = time.monotonic() + LOG_TIMEOUT_S
    while best_log(data_dir).bounds().end <= end and time.monotonic() < deadline_s:
        time.sleep(WATCH_S)
    # One slot is free, and the default would be two hundred tasks.
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.read.format("tara").option("data_dir", str(data_dir)).load().createOrReplaceTempView("decided_log")
    spark.createDataFrame(views, "view int, since_ms double, until_ms double").createOrReplaceTempView("views")
    commands = spark.sql(_COMMANDS).cache()
    commands.createOrReplaceTempView("commands")
    try:
        by_second, by_view = spark.sql(_BY_SECOND).collect(), spark.sql(_BY_VIEW).collect()
    finally:
        commands.unpersist()
    for title, rows in (("by second", by_second), ("by view", by_view)):
        say(f'The decided log, {title}: spark.read.format("tara"), in the session that hosts the nodes.')
        for line in _table(rows):
            say(f"  {line}")
    return LogFindings(
        sum(row["commands"] for row in by_second),
        max((row["longest_pause_ms"] or 0 for row in by_second), default=0),
        [row["view"] for row in by_view],
    )


def _table(rows: list[Any]) -> list[str]:
    """Columns under their names, to the right."""
    if not rows:
        return ["(nothing)"]
    cells = [list(rows[0].asDict()), *([str(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
