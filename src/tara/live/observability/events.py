"""Structured logs: one JSON line per event, in a file that is rotated, so that it stays bounded.

Events are rare: a start, a new view, a halted node, never a request. No method raises: a line that cannot be written,
to the file or to the stream, is counted and otherwise ignored, because a full disk or a closed terminal must not take a
replica or the registry down. None waits for a reader of the stream either. Warnings are also kept for whoever hands
them on to the driver. Methods may be called from any thread.
"""

import io
import os
import select
import threading
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import Struct

LOG_BYTES_MAX = 4 << 20
#: Full files that are kept beside the current one: `site-0.log.1` is the newest of them.
LOGS_KEPT = 3
#: Warnings that wait to be handed on; older ones are in the file only.
WARNINGS_KEPT = 100
#: An event that may come in masses is written at most once in this time, with the number of those left out.
QUIET_S = 10.0

INFO, WARNING, ERROR = "info", "warning", "error"


class Event(Struct, frozen=True, kw_only=True):
    """One line. Every field is always there; null where it does not apply."""

    time: str
    level: str
    cluster: str
    container: str
    life: int
    event: str
    node: str | None
    view: int | None
    details: dict[str, object]


class EventLog:
    """The log of one process. Without a path nothing is written, but warnings are still kept."""

    def __init__(self, path: Path | None, cluster: int, container: str, stream: TextIO | None = None) -> None:
        self.life = 0
        #: Lines that could not be written to the file, or shown on the stream.
        self.errors = 0
        self._path = path
        self._cluster = f"{cluster:x}"
        self._container = container
        #: Where warnings are shown, too.
        self._stream = stream
        self._warnings: deque[bytes] = deque(maxlen=WARNINGS_KEPT)
        self._lock = threading.Lock()
        self._file = -1
        self._size = 0
        #: The disk took a part of the last line only; the next one has to begin anew.
        self._torn = False
        #: Per event that comes in masses: when it was last written, and how many were left out since.
        self._quiet: dict[str, tuple[float, int]] = {}

    def info(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None:
        self._emit(INFO, event, node, view, details)

    def warning(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None:
        self._emit(WARNING, event, node, view, details)

    def error(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None:
        self._emit(ERROR, event, node, view, details)

    def flood(self, event: str, node: str | None = None, **details: object) -> None:
        """A warning that may come in masses: the first one is written, then one per `QUIET_S`."""
        now_s = time.monotonic()
        with self._lock:
            last_s, left_out = self._quiet.get(event, (-QUIET_S, 0))
            if now_s - last_s < QUIET_S:
                self._quiet[event] = (last_s, left_out + 1)
                return
            self._quiet[event] = (now_s, 0)
        self._emit(WARNING, event, node, None, {**details, "left_out_before": left_out})

    def take_warnings(self) -> list[bytes]:
        """The lines since the last call that somebody should see."""
        with self._lock:
            lines = list(self._warnings)
            self._warnings.clear()
        return lines

    def show(self, line: bytes) -> None:
        """A warning of another process."""
        if self._stream is None:
            return
        with self._lock:
            try:
                show(self._stream, line + b"\n")
            except (OSError, ValueError):
                # A full disk, a pipe without a reader or with one that does not read, or a closed stream.
                self.errors += 1

    def close(self) -> None:
        with self._lock:
            self._close_file()
            self._path = None

    def _emit(self, level: str, event: str, node: str | None, view: int | None, details: dict[str, object]) -> None:
        line = _encode(
            Event(
                time=datetime.now(UTC).isoformat(timespec="milliseconds"),
                level=level,
                cluster=self._cluster,
                container=self._container,
                life=self.life,
                event=event,
                node=node,
                view=view,
                details=details,
            ),
        )
        with self._lock:
            self._write(line + b"\n")
            if level != INFO:
                self._warnings.append(line)
        if level != INFO:
            self.show(line)

    def _write(self, line: bytes) -> None:
        if self._path is None:
            return
        try:
            if self._file < 0 or self._size + len(line) > LOG_BYTES_MAX:
                self._open(self._path, len(line))
            data = b"\n" + line if self._torn else line
            written = os.write(self._file, data)
            self._size += written
            self._torn = written < len(data)
            self.errors += self._torn
        except OSError:
            self.errors += 1

    def _open(self, path: Path, needed: int) -> None:
        self._close_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size + needed > LOG_BYTES_MAX:
            self._rotate(path)
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            try:
                os.close(file)
            except OSError:
                self.errors += 1

    @staticmethod
    def _rotate(path: Path) -> None:
        names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, LOGS_KEPT + 1))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                newer.replace(older)


def show(stream: TextIO, text: bytes) -> None:
    """Write to a stream at once, without waiting: for a reader that does not read, `BlockingIOError` is raised."""
    try:
        file = stream.fileno()
    except io.UnsupportedOperation:
        stream.write(text.decode(errors="replace"))
        return
    # Not through the stream: what its buffer cannot get rid of would be tried again, and fail, when the process ends.
    waiting = select.poll()
    waiting.register(file, select.POLLOUT)
    while text:
        if not waiting.poll(0):
            raise BlockingIOError("nobody reads")
        text = text[os.write(file, text[: select.PIPE_BUF]) :]


def _encode(event: Event) -> bytes:
    try:
        return msgspec.json.encode(event)
    except (TypeError, ValueError, RecursionError):
        # Something that JSON cannot say, such as half a character of a file's name.
        details: dict[str, object] = {key: ascii(value) for key, value in event.details.items()}
        return msgspec.json.encode(msgspec.structs.replace(event, details=details))


def log_path(data_dir: str | Path, container: str) -> Path:
    return Path(data_dir) / "logs" / f"{container}.log"
