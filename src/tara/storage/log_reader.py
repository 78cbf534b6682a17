"""Reads a decided log, also while it is being written.

A reader needs nothing but the directory. It holds no lock and keeps no file open: segments never change, a tail only
grows; one that is gone when it is opened has become a segment, which the next look finds, or fell to retention. Offsets
are command counters; a range is [start, end). What was read once stays as it is: only decided commands are in a log.
A block's rows are in memory at a time, not a file's.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tara.storage.log_blocks import LogBounds, bounds_of, list_files
from tara.storage.log_format import (
    LogError,
    LogIdentity,
    blocks,
    list_segments,
    list_tails,
    read_block,
    read_header,
)
from tara.storage.log_rows import SCHEMA, rows_of

POLL_S = 0.2
#: Looks at the directory before a reader believes that a row is not there. Files move quickly, but not that quickly.
LOOKS_MAX = 20


class LogTruncated(LogError):
    """The log does not reach back that far."""

    def __init__(self, where: object, wanted: int, first: int) -> None:
        super().__init__(f"{where}: command {wanted} is no longer in the log, which begins at {first}")
        self.wanted = wanted
        #: The first command that is there.
        self.first = first


class _Place(NamedTuple):
    """Where a reader goes on: `counter` is the first one behind the blocks before `offset`."""

    path: Path
    offset: int
    counter: int


class RowReader(ABC):
    """What all readers of a decided log do, wherever it is."""

    @abstractmethod
    def bounds(self) -> LogBounds:
        """What is there now. An empty log has bounds (1, 1)."""

    @abstractmethod
    def _rows_from(self, counter: int) -> pa.RecordBatch:
        """Some rows, from this one on."""

    @abstractmethod
    def _where(self) -> object:
        """For messages."""

    def batches(self, start: int, end: int | None = None) -> Iterator[pa.RecordBatch]:
        """The commands of [start, end), as far as they are there (without an end: all that are there now).
        `LogTruncated` if the first is no longer there, also if retention overtakes a slow reader."""
        if start < 1:
            raise LogError(f"commands are numbered from 1; there is no {start}")
        there = self.bounds().end
        end = there if end is None else min(end, there)
        while start < end:
            piece = self._rows_from(start)
            piece = piece.slice(0, min(end - start, piece.num_rows))
            yield piece
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
                    raise LogTruncated(self._where(), start, first)
                time.sleep(poll_s)


class LogReader(RowReader):
    """Reads the log in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        #: Whose log it is; known when something was read. A reader does not go on in another one's.
        self.identity: LogIdentity | None = None
        self._place: _Place | None = None

    def _where(self) -> Path:
        return self.directory

    def bounds(self) -> LogBounds:
        return bounds_of(list_files(self.directory))

    def _rows_from(self, counter: int) -> pa.RecordBatch:
        for _ in range(LOOKS_MAX):
            place = self._place
            if place is not None and place.counter == counter:
                # The file that was read last has more, most likely, and there is no need to look around.
                found = self._try(place.path, counter, place.offset)
                if found is not None:
                    return found
            self._place = None
            segments = list_segments(self.directory)
            holders = [file.path for file in segments if file.first <= counter <= file.last]
            for path in [*reversed(holders), *(file.path for file in list_tails(self.directory))]:
                found = self._try(path, counter)
                if found is not None:
                    return found
            first = self.bounds().first
            if first > counter:
                raise LogTruncated(self.directory, counter, first)
            time.sleep(POLL_S / LOOKS_MAX)
        raise LogError(f"{self.directory}: command {counter} is missing, though later ones are there")

    def _try(self, path: Path, counter: int, offset: int = 0) -> pa.RecordBatch | None:
        """The rows of the block that has this one, from it on; None if there is no such block, or no such file."""
        try:
            with path.open("rb") as file:
                header = read_header(file, path)
                if self.identity is not None:
                    header.identity.require(self.identity, path)
                for block in blocks(file, path, offset):
                    if block.first <= counter <= block.last:
                        rows = rows_of(read_block(file, path, block), header.partitions)
                        self.identity = header.identity
                        self._place = _Place(path, block.end, block.last + 1)
                        return rows.slice(counter - rows.column(0)[0].as_py())
        except FileNotFoundError:
            return None
        return None


def logs_in(data_dir: Path) -> list[LogReader]:
    """The logs of all replicas that keep one in this data directory."""
    return [LogReader(path) for path in sorted(data_dir.glob("log-*")) if path.is_dir()]


def best_log(data_dir: Path) -> LogReader:
    """The log that reaches furthest."""
    logs = logs_in(data_dir)
    if not logs:
        raise LogError(f"{data_dir}: no decided log here (is it a data directory, and `log` not switched off?)")
    return max(logs, key=lambda log: (log.bounds().end, -log.bounds().first))
