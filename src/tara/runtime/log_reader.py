"""Reads a decided log, also while it is being written.

A reader needs nothing but the directory. It holds no lock and keeps no file open: files appear complete under their
names and never change; one that is gone when it is opened has been merged into another, which the next look finds, or
fell to retention. Offsets are command counters; a range is [start, end). What was read once stays as it is: only
decided commands are in a log.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tara.runtime.log import LogIdentity
from tara.runtime.log_format import SCHEMA, LogError, LogFile, list_files, read_file

POLL_S = 0.2
#: Looks at the directory before a reader believes that a row is not there. Files move quickly, but not that quickly.
LOOKS_MAX = 20


class LogTruncated(LogError):
    """The log does not reach back that far."""

    def __init__(self, directory: Path, wanted: int, first: int) -> None:
        super().__init__(f"{directory}: command {wanted} is no longer in the log, which begins at {first}")
        self.wanted = wanted
        #: The first command that is there.
        self.first = first


class LogBounds(NamedTuple):
    """The commands [first, end) are there."""

    first: int
    end: int


class LogReader:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        #: Whose log it is; known when something was read. A reader does not go on in another one's.
        self.identity: LogIdentity | None = None
        self._cached: tuple[LogFile, pa.Table] | None = None

    def bounds(self) -> LogBounds:
        """What is there now. An empty log has bounds (1, 1)."""
        files = list_files(self.directory)
        if not files:
            return LogBounds(1, 1)
        end = files[0].first
        for file in files:
            if file.first <= end:
                end = max(end, file.last + 1)
        return LogBounds(files[0].first, end)

    def batches(self, start: int, end: int | None = None) -> Iterator[pa.RecordBatch]:
        """The commands of [start, end), as far as they are there (without an end: all that are there now).
        `LogTruncated` if the first is no longer there, also if retention overtakes a slow reader."""
        if start < 1:
            raise LogError(f"commands are numbered from 1; there is no {start}")
        there = self.bounds().end
        end = there if end is None else min(end, there)
        while start < end:
            table, first = self._table_with(start)
            piece = table.slice(start - first, min(end - start, table.num_rows - (start - first)))
            yield from piece.to_batches()
            start += piece.num_rows

    def read(self, start: int, end: int | None = None) -> pa.Table:
        """The same as one table."""
        return pa.Table.from_batches(self.batches(start, end), SCHEMA)

    def follow(
        self, start: int, stopped: Callable[[], bool] = lambda: False, poll_s: float = POLL_S
    ) -> Iterator[pa.RecordBatch]:
        """The commands from `start` on, waiting for new ones until `stopped`."""
        while not stopped():
            before = start
            for batch in self.batches(start):
                yield batch
                start += batch.num_rows
            if start == before:
                first = self.bounds().first
                if first > start:
                    raise LogTruncated(self.directory, start, first)
                time.sleep(poll_s)

    def _table_with(self, counter: int) -> tuple[pa.Table, int]:
        """The rows of a file that has this one, and the first of them."""
        if self._cached is not None and self._cached[0].first <= counter <= self._cached[0].last:
            return self._cached[1], self._cached[0].first
        for _ in range(LOOKS_MAX):
            files = list_files(self.directory)
            holders = [file for file in files if file.first <= counter <= file.last]
            if not holders:
                if files and files[0].first > counter:
                    raise LogTruncated(self.directory, counter, files[0].first)
                time.sleep(POLL_S / LOOKS_MAX)
                continue
            # Segments before tails, long ones before short ones: they stay longest.
            best = max(holders, key=lambda file: (file.sealed, file.last))
            try:
                self.identity, table = read_file(best, self.identity)
            except FileNotFoundError:
                continue
            self._cached = (best, table)
            return table, best.first
        raise LogError(f"{self.directory}: command {counter} is missing, though later ones are there")


def logs_in(data_dir: Path) -> list[LogReader]:
    """The logs of all replicas that keep one in this data directory."""
    return [LogReader(path) for path in sorted(data_dir.glob("log-*")) if path.is_dir()]


def best_log(data_dir: Path) -> LogReader:
    """The log that reaches furthest."""
    logs = logs_in(data_dir)
    if not logs:
        raise LogError(f"{data_dir}: no decided log here (is it a data directory, and `log` not switched off?)")
    return max(logs, key=lambda log: (log.bounds().end, -log.bounds().first))
