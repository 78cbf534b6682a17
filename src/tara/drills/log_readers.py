"""`tara drill log`: a Spark query in processes of its own reads the decided log from the front ends, while sites are
killed under load. It must have every command once, in order, and as the sites have it in their files."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from msgspec import Struct

from tara.drills.drill_run import DrillRun, DrillVerdict
from tara.drills.log_query import COPY, END
from tara.operations import health
from tara.operations.deployment import DrillError, Say
from tara.storage.log import log_directory
from tara.storage.log_reader import LogReader

COMMANDS = 1_000_000
#: Between two kills; then comes the next site.
KILL_PAUSE_S = 8.0
#: Of a query that gets no further.
STALL_S = 180.0
RETENTION_BYTES = 1 << 40
#: That are written again and again. (No history is recorded: that of ten million commands would fill the memory.)
VALUES = 1_000


class LogVerdict(DrillVerdict, kw_only=True):
    """What the query has, compared with the files of the sites."""

    commands: int
    #: Commands that it does not have; that it has more than once; that came behind a later one.
    missing_rows: int
    repeated_rows: int
    misplaced_rows: int
    #: Rows that are not what a site has in its files, over all sites.
    different_rows: int
    #: From the query's first rows to its last; and how far it was when the load ended.
    reading_s: float
    behind_rows: int

    @property
    def summary(self) -> str:
        return (
            f"{self.commands} commands in {self.reading_s:.0f} s ({self.commands / self.reading_s:.0f}/s; "
            f"{self.behind_rows} behind when the load ended), {super().summary}"
        )

    @property
    def failures(self) -> list[str]:
        found = super().failures
        for rows, what in (
            (self.missing_rows, "not read"),
            (self.repeated_rows, "read twice"),
            (self.misplaced_rows, "read out of order"),
            (self.different_rows, "not what the sites have in their files"),
        ):
            if rows:
                found.append(f"{rows} commands {what}")
        return found


class Comparison(Struct):
    missing: int
    repeated: int
    misplaced: int
    different: int


class Query:
    """The process of the query."""

    def __init__(self, endpoints: str, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._output = directory / "query.out"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TARA_")}
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tara.drills.log_query", endpoints, str(directory)],
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.began_s = self._moved_s = time.monotonic()
        self._files = -1

    def batches(self) -> Iterator[list[Path]]:
        """The files that it has committed, by micro-batch, each with ascending counters."""
        metadata = self._directory / COPY / "_spark_metadata"
        logs = [path for path in metadata.glob("[0-9]*") if not path.name.startswith(".")]
        found: dict[int, list[str]] = {}
        for path in sorted(logs, key=lambda path: int(path.name.removesuffix(".compact"))):
            for line in path.read_text().splitlines()[1:]:
                # A compacted log has the files of all micro-batches before it.
                name = Path(json.loads(line)["path"]).name
                if not any(name in names for names in found.values()):
                    found.setdefault(int(path.name.removesuffix(".compact")), []).append(name)
        for batch in sorted(found):
            yield [self._directory / COPY / name for name in found[batch]]

    @property
    def rows(self) -> int:
        """That it has committed."""
        return sum(pq.read_metadata(path).num_rows for paths in self.batches() for path in paths)

    def await_rows(self) -> None:
        """Until it has the first ones."""
        while not self.rows:
            self._go_on()
            if self._process.returncode is not None:
                raise DrillError(f"the query ended with status {self._process.returncode}: {self.said}")
        self.began_s = time.monotonic()

    def finish(self, end: int) -> float:
        """Let it read up to this counter; returns how long it has read since it had the first rows."""
        partial = self._directory / f"{END}.partial"
        partial.write_text(str(end))
        partial.rename(self._directory / END)
        while self._process.poll() is None:
            self._go_on()
        if self._process.returncode:
            raise DrillError(f"the query ended with status {self._process.returncode}: {self.said}")
        return time.monotonic() - self.began_s

    def _go_on(self) -> None:
        """Wait a moment, unless it has come no further for too long."""
        files = len(list((self._directory / COPY).glob("*.parquet")))
        if files != self._files:
            self._moved_s, self._files = time.monotonic(), files
        if time.monotonic() - self._moved_s > STALL_S:
            raise DrillError(f"the query gets no further: {self.said}")
        time.sleep(0.1)
        self._process.poll()

    @property
    def said(self) -> str:
        return self._output.read_text()[-3000:]

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def log(directory: Path, say: Say, commands: int = COMMANDS) -> LogVerdict:
    """A query in processes of its own reads the log from the front ends, while one site after the other is killed."""
    settings = {"log": "true", "log_retention_bytes": str(RETENTION_BYTES)}
    drill = DrillRun("log", directory, say, settings, values=VALUES)
    query = Query(drill.cluster.endpoints, directory / "query")
    try:
        query.await_rows()
        _harm_sites(drill, commands)
        verdict = drill.verdict()
        executed, rows = health.counter(drill.cluster.status()), query.rows
        say(f"log: {executed} commands are decided, {rows} of them are read")
        reading_s = query.finish(executed + 1)
        say("log: what was read is compared with the files of the sites")
        found = compare(query.batches(), [LogReader(log_directory(drill.cluster.data_dir, site)) for site in range(3)])
        common = {name: getattr(verdict, name) for name in DrillVerdict.__struct_fields__}
        return LogVerdict(
            **common,
            commands=executed,
            missing_rows=found.missing,
            repeated_rows=found.repeated,
            misplaced_rows=found.misplaced,
            different_rows=found.different,
            reading_s=reading_s,
            behind_rows=executed - rows,
        )
    finally:
        query.stop()
        drill.cluster.stop()


def _harm_sites(drill: DrillRun, commands: int) -> None:
    """SIGKILL to one container after the other, until so many more commands have executed."""
    executed, due_s, turn = 0, time.monotonic(), 0
    begin = health.counter(drill.cluster.status())
    while executed < commands:
        time.sleep(0.2)
        status = drill.cluster.status()
        if time.monotonic() >= due_s:
            victim = status["containers"][turn % len(status["containers"])]
            drill.harm(victim["container"], victim["pid"], signal.SIGKILL)
            drill.await_full_strength((victim["container"], victim["life"]))
            turn += 1
            due_s = time.monotonic() + KILL_PAUSE_S
        executed = health.counter(status) - begin


def compare(batches: Iterator[list[Path]], logs: list[LogReader]) -> Comparison:
    """Rows that were read, in the order in which they came, with those of each log."""
    tables = []
    for paths in batches:
        # Within a micro-batch, tasks have ranges that follow each other.
        parts = [table for path in paths if (table := pq.read_table(path)).num_rows]
        tables += sorted(parts, key=lambda table: table.column("counter")[0].as_py())
    columns = {
        name: np.concatenate([np.empty(0, np.int64), *(table.column(name).to_numpy() for table in tables)])
        for name in ("counter", "session", "number", "command", "result")
    }
    counters = columns["counter"].astype(np.int64)
    last = max((log.bounds().end - 1 for log in logs), default=0)
    distinct = np.unique(counters)
    missing = last - int(np.count_nonzero((distinct >= 1) & (distinct <= last)))
    misplaced = int(np.count_nonzero(np.diff(counters) < 0))
    different = 0
    if not missing and len(distinct) == len(counters) and not misplaced:
        different = sum(_different(columns, log) for log in logs)
    return Comparison(missing, len(counters) - len(distinct), misplaced, different)


def _different(columns: dict[str, "np.ndarray[tuple[int], np.dtype[np.int64]]"], log: LogReader) -> int:
    """How many rows of a log are others than those at the same places."""
    different = 0
    for batch in log.batches(log.bounds().first):
        first = batch.column("counter")[0].as_py()
        here = slice(first - 1, first - 1 + batch.num_rows)
        equal = np.ones(batch.num_rows, bool)
        for name in ("counter", "session", "number"):
            equal &= batch.column(name).to_numpy() == columns[name][here]
        for name in ("command", "result"):
            sums = [zlib.crc32(data) for data in batch.column(name).to_pylist()]
            equal &= np.array(sums, np.int64) == columns[name][here]
        different += int(np.count_nonzero(~equal))
    return different
