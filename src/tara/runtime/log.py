"""The decided log of one executor, as its container sees it: takes what was executed, and never makes the loop wait.

The container hands over references; a thread of the log's own makes columns of them, a few rows at a time, and lets go
of the interpreter in between. Readers see a row about `FLUSH_S` after it was executed. The checkpoint store waits here
until the log is durable up to a checkpoint. What is in the files, and what is promised of them, is in
`tara.runtime.log_writer`; it is imported by the thread, because it takes long and a container should start quickly.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.runtime.exchange import RemoteFiles

if TYPE_CHECKING:
    from tara.runtime.log_writer import LogWriter

#: How long a row may wait until readers see it.
FLUSH_S = 0.5
#: How often the thread takes what was handed over: often, so that what was executed does not stay in memory for long.
TAKE_S = 0.1
#: Rows made at once, and the pause after them: bounds how long the container's loop waits for the interpreter.
CHUNK_ROWS = 256
PAUSE_S = 0.0005
RETRY_S = 1.0
#: Requests that may wait for the thread, in checkpoint intervals; more are let go, and copied from a peer.
BACKLOG_INTERVALS_MAX = 8
ERRORS_KEPT = 100


class LogIdentity(Struct, frozen=True):
    cluster: int
    era: int


class LogSettings(Struct, frozen=True, kw_only=True):
    """What a log must know of its cluster."""

    identity: LogIdentity
    partitions: int
    checkpoint_interval: int
    #: Segments beyond this are dropped, oldest first; the newest one stays.
    retention_bytes: int


def log_directory(data_dir: Path, replica: int) -> Path:
    return data_dir / f"log-{replica}"


class DecidedLog:
    def __init__(
        self, directory: Path, settings: LogSettings, peers: Sequence[Path], remote: RemoteFiles | None = None
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._peers = peers
        self._remote = remote
        #: What the container handed over and the thread has not handled: runs, and numbers of checkpoints.
        self._queue: deque[t.Executed | int] = deque()
        #: Requests handed over (written by the container only) and handled (by the thread only).
        self._handed = 0
        self._handled = 0
        #: The states of the checkpoints in the queue; if there are too many, of the newest ones.
        self._states: dict[int, bytes] = {}
        self._wakeup = threading.Event()
        self._closing = False
        self._progress = threading.Condition()
        #: The newest checkpoint up to which the log is durable.
        self._sealed = -1
        self._writer: LogWriter | None = None
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._work, name="decided-log", daemon=True)
        self._thread.start()

    # For the container's loop

    def append(self, executed: t.Executed) -> None:
        """Take a run. Only the reference: this is the hot path."""
        if self._handed - self._handled > BACKLOG_INTERVALS_MAX * self._settings.checkpoint_interval:
            return
        self._handed += len(executed.requests)
        self._queue.append(executed)

    def checkpoint(self, number: int, state: bytes) -> None:
        """The executor is at this checkpoint: seal the log here."""
        self._states[number] = state
        if len(self._states) > BACKLOG_INTERVALS_MAX:
            self._states.pop(min(self._states), None)
        self._queue.append(number)
        self._wakeup.set()

    def status(self) -> dict[str, object]:
        writer = self._writer
        return {
            "first": writer.first if writer else None,
            "last": writer.last if writer else None,
            "waiting": self._handed - self._handled,
            "error": self.errors[-1] if self.errors else None,
        }

    # For the checkpoint store's thread

    def await_sealed(self, number: int, needless: Callable[[], bool]) -> bool:
        """Wait until the log up to this checkpoint is durable; false if that became needless, or the log is closed."""
        with self._progress:
            while self._sealed < number:
                if self._closing or needless():
                    return False
                self._progress.wait(RETRY_S / 4)
        return True

    def close(self) -> None:
        """Write out what there is, and end."""
        self._closing = True
        if self._remote is not None:
            self._remote.closing.set()
        self._wakeup.set()
        self._thread.join(timeout=10)

    # On the thread

    def _work(self) -> None:
        closing = False
        flush_due_s = 0.0
        while not closing:
            self._wakeup.wait(0.0 if self._writer is None else min(TAKE_S, FLUSH_S))
            self._wakeup.clear()
            closing = self._closing
            try:
                writer = self._writer = self._writer or self._open()
                self._handle_all(writer)
                if closing or time.monotonic() >= flush_due_s:
                    flush_due_s = time.monotonic() + FLUSH_S
                    writer.flush()
            except (OSError, TaraError) as error:
                # A full disk, most likely. Nothing is lost: what was not handled is still in the queue.
                self._report(str(error))
                self._pause(RETRY_S)
            except Exception as error:
                self._give_up(error)

    def _open(self) -> "LogWriter":
        from tara.runtime.log_writer import LogWriter

        return LogWriter(self._directory, self._settings, self._peers, self._report, self._remote)

    def _handle_all(self, writer: "LogWriter") -> None:
        queue = self._queue
        while queue:
            head = queue[0]
            if isinstance(head, int):
                self._seal(writer, head)
                queue.popleft()
                continue
            run = self._next_run()
            writer.take(run)
            for executed in run:
                queue.popleft()
                self._handled += len(executed.requests)
            self._pause(PAUSE_S)

    def _next_run(self) -> list[t.Executed]:
        """The next few that follow each other; they stay in the queue."""
        run: list[t.Executed] = []
        rows = 0
        # By index: the container appends meanwhile, which an iterator would not survive.
        for index in range(min(len(self._queue), CHUNK_ROWS)):
            item = self._queue[index]
            if isinstance(item, int) or (run and (item.counter != run[-1].counters[-1] or rows >= CHUNK_ROWS)):
                break
            run.append(item)
            rows += len(item.commands)
        return run

    def _seal(self, writer: "LogWriter", number: int) -> None:
        state = self._states.get(number)
        if number <= self._sealed or state is None:
            # An older one again, or one that newer ones have overtaken.
            return
        writer.seal(number, state)
        self._states.pop(number, None)
        with self._progress:
            self._sealed = number
            self._progress.notify_all()

    def _give_up(self, error: Exception) -> None:
        self._report(f"{self._directory}: rows are given up: {error!r}")
        if self._writer is not None:
            self._writer.give_up_rows()
        if self._queue:
            head = self._queue.popleft()
            self._handled += 0 if isinstance(head, int) else len(head.requests)

    def _pause(self, seconds: float) -> None:
        if not self._closing:
            time.sleep(seconds)

    def _report(self, message: str) -> None:
        self.errors.append(message)
        del self.errors[:-ERRORS_KEPT]
