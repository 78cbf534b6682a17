"""Where `format("tara")` reads the decided log: from a data directory that the tasks can read, or from the front ends.

Both are picklable: Spark takes them to the tasks. Keys do not travel, only the path of their directory.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tara.protocol.errors import ConfigurationError
from tara.storage.log_blocks import LogBlocks, LogBounds
from tara.storage.log_format import LogIdentity
from tara.storage.log_reader import LogReader, LogTruncated, best_log, logs_in

if TYPE_CHECKING:
    import pyarrow as pa

    from tara.client.remote_log import RemoteLogReader

DEFAULT_TIMEOUT_S = 30.0
#: What front ends said so recently is not asked again.
FRESH_S = 0.1


class LogSource(Protocol):
    #: Whose log it is, when that is known: from then on, no other one is read.
    identity: LogIdentity | None

    def bounds(self) -> LogBounds:
        """What is there now."""
        ...

    def advance(self, counter: int, bytes_max: int) -> int:
        """Up to which command, exclusively, so many bytes of the log lead from this one on."""
        ...

    def read(self, start: int, end: int, turn: int) -> "Iterator[pa.RecordBatch]":
        """The commands of [start, end), all of them: whoever asks has seen that they are there. Those who have another
        `turn` read elsewhere, if that is possible."""
        ...

    def where(self) -> object:
        """For messages."""
        ...


class Directory:
    """The logs are equal on all replicas, as far as they reach."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.identity: LogIdentity | None = None

    def where(self) -> Path:
        return self._data_dir

    def bounds(self) -> LogBounds:
        log = best_log(self._data_dir)
        found = LogBlocks(log.directory).identity()
        if found is not None:
            self.identity = self.identity or found
            found.require(self.identity, self._data_dir)
        return log.bounds()

    def advance(self, counter: int, bytes_max: int) -> int:
        return LogBlocks(best_log(self._data_dir).directory).advance(counter, bytes_max)

    def read(self, start: int, end: int, turn: int) -> "Iterator[pa.RecordBatch]":
        holder = self._holder(start, end)
        holder.identity = self.identity
        for batch in holder.batches(start, end):
            yield batch
            start += batch.num_rows
        if start < end:
            raise LogTruncated(self._data_dir, start, self.bounds().first)

    def _holder(self, start: int, end: int) -> LogReader:
        for log in logs_in(self._data_dir):
            bounds = log.bounds()
            if bounds.first <= start and end <= bounds.end:
                return log
        return best_log(self._data_dir)


class FrontEnds:
    """The front ends of the sites; each task begins at another one, and goes on at the others if it has to."""

    def __init__(self, endpoints: str, keys: str | None, timeout_s: float) -> None:
        #: As far as they are known: sites tell where the others are.
        self._endpoints = endpoints
        self._keys = keys
        self._timeout_s = timeout_s
        self.identity: LogIdentity | None = None
        #: The driver's connections: an idle query asks a hundred times a second where the log ends. And what it heard.
        self._reader: RemoteLogReader | None = None
        self._bounds = LogBounds(1, 1)
        self._heard_s = -math.inf

    def __getstate__(self) -> dict[str, object]:
        """To the tasks, which have connections of their own."""
        return {**self.__dict__, "_reader": None, "_heard_s": -math.inf}

    def where(self) -> str:
        return self._endpoints

    def bounds(self) -> LogBounds:
        if time.monotonic() - self._heard_s > FRESH_S:
            reader = self._driver_s
            reader.identity = self.identity
            self._bounds, self._endpoints = reader.bounds(), reader.endpoints
            self.identity = reader.identity
            self._heard_s = time.monotonic()
        return self._bounds

    def advance(self, counter: int, bytes_max: int) -> int:
        return self._driver_s.advance(counter, bytes_max)

    def read(self, start: int, end: int, turn: int) -> "Iterator[pa.RecordBatch]":
        with self._open(turn) as reader:
            yield from reader.exactly(start, end)

    @property
    def _driver_s(self) -> "RemoteLogReader":
        if self._reader is None:
            self._reader = self._open()
        return self._reader

    def _open(self, turn: int = 0) -> "RemoteLogReader":
        from tara.client.remote_log import RemoteLogReader

        reader = RemoteLogReader(self._endpoints, self._keys, self._timeout_s, turn)
        reader.identity = self.identity
        return reader


def log_source(options: Any) -> LogSource:
    """What `option(…)` said; an error names the option."""
    data_dir, endpoints = options.get("data_dir"), options.get("endpoints")
    if data_dir and endpoints:
        raise ConfigurationError("format tara: the log is read with the option endpoints or data_dir, not with both")
    if data_dir:
        return Directory(Path(data_dir))
    if not endpoints:
        raise ConfigurationError(
            "format tara: where is the log? The option endpoints (host:port of the front ends) is missing, or data_dir "
            "(the cluster's data directory, if the tasks can read it)"
        )
    return FrontEnds(endpoints, options.get("keys") or None, timeout_of(options))


def timeout_of(options: Any) -> float:
    try:
        return float(options.get("timeout_s", DEFAULT_TIMEOUT_S))
    except ValueError:
        raise ConfigurationError(f"format tara: timeout_s = {options['timeout_s']}: is no number") from None
