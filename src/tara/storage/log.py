"""The decided log of one executor, as its container sees it: takes what was executed, and never makes the loop wait.

The container encodes what it hands over, which takes less than a microsecond per command and leaves nothing but bytes;
`work`, which a thread of the log's own calls a few times a second (`tara.storage.worker`), writes them as they are.
Nothing else is done per command: rows are made by readers, who see one about `FLUSH_S` after it was executed. The
checkpoint store waits until the log is durable up to a checkpoint. What is in the files, and what is promised of them,
is in `tara.storage.log_writer`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.storage.disk import LOCAL, Disk
from tara.storage.log_format import ForeignLog, encode_run
from tara.storage.log_writer import EncodedRun, LogSettings, LogWriter
from tara.storage.remote import RemoteFiles

#: How long a row may wait until readers see it.
FLUSH_S = 0.25
RETRY_S = 1.0
#: Requests that may wait for the thread, in checkpoint intervals, and their bytes; more are let go, and copied from a
#: peer.
BACKLOG_INTERVALS_MAX = 8
BACKLOG_BYTES_MAX = 1 << 28
ERRORS_KEPT = 100


def log_directory(data_dir: Path, replica: int) -> Path:
    return data_dir / f"log-{replica}"


class DecidedLog:
    def __init__(
        self,
        directory: Path,
        settings: LogSettings,
        peers: Sequence[Path],
        remote: RemoteFiles | None = None,
        disk: Disk = LOCAL,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._peers = peers
        self._remote = remote
        #: What the container handed over and the thread has not handled: runs, and numbers of checkpoints.
        self._queue: deque[EncodedRun | int] = deque()
        #: Execution numbers and bytes handed over (written by the container only) and handled (by the thread only).
        self._handed = self._handed_bytes = 0
        self._handled = self._handled_bytes = 0
        #: The states of the checkpoints in the queue; if there are too many, of the newest ones.
        self._states: dict[int, bytes] = {}
        #: The newest checkpoint up to which the log is durable.
        self.sealed = -1
        self._writer: LogWriter | None = None
        self.errors: list[str] = []
        #: How long readers may have to wait for what nobody has hurried with.
        self.pause_s = FLUSH_S
        #: Called when there is something to do at once; and, by `work`, when the log is durable up to a checkpoint.
        self.wake: Callable[[], None] = lambda: None
        self.on_sealed: Callable[[], None] = lambda: None
        #: Told, by `work`, when the log cannot be written in this life: no checkpoint will ever be saved then.
        self.on_failure: Callable[[Exception], None] = lambda error: None
        self._failed = False
        #: Told, by `work`, of everything that is wrong with the log.
        self.on_problem: Callable[[str], None] = lambda message: None

    def append(self, executed: t.Executed) -> None:
        """Take a run. This is the hot path: the run is encoded, and nothing else."""
        if (
            self._handed - self._handled > BACKLOG_INTERVALS_MAX * self._settings.checkpoint_interval
            or self._handed_bytes - self._handled_bytes > BACKLOG_BYTES_MAX
        ):
            return
        count, data = len(executed.requests), encode_run(executed)
        self._handed += count
        self._handed_bytes += len(data)
        self._queue.append(EncodedRun(executed.counter, executed.counters[-1], executed.first + count, count, data))

    def checkpoint(self, number: int, state: bytes) -> None:
        """The executor is at this checkpoint: seal the log here."""
        self._states[number] = state
        if len(self._states) > BACKLOG_INTERVALS_MAX:
            self._states.pop(min(self._states), None)
        self._queue.append(number)
        self.wake()

    def status(self) -> dict[str, object]:
        writer = self._writer
        return {
            "first": writer.first if writer else None,
            "last": writer.last if writer else None,
            "waiting": self._handed - self._handled,
            "unread": writer.unread if writer else None,
            "gaps": len(writer.gaps) if writer else None,
            "error": self.errors[-1] if self.errors else None,
        }

    def interrupt(self) -> None:
        """Whatever is being fetched from other hosts is not needed any more."""
        if self._remote is not None:
            self._remote.closing.set()

    def work(self) -> float:
        """On the thread: write what was handed over; returns after how many seconds to come again."""
        if self._failed:
            return RETRY_S
        try:
            if self._writer is None:
                self._writer = LogWriter(
                    self._directory, self._settings, self._peers, self._report, self._remote, self._disk
                )
            self._handle_all(self._writer)
            self._writer.flush()
            self._writer.look_after()
        except ForeignLog as error:
            self._failed = True
            self._report(str(error))
            self.on_failure(error)
        except (OSError, TaraError) as error:
            # A full disk, most likely. Nothing is lost: what was not handled is still in the queue.
            self._report(str(error))
            return RETRY_S
        except Exception as error:
            self._give_up(error)
        return self.pause_s

    def _handle_all(self, writer: LogWriter) -> None:
        queue = self._queue
        while queue:
            head = queue[0]
            if isinstance(head, int):
                self._seal(writer, head)
            else:
                writer.take(head)
            self._drop_head()

    def _drop_head(self) -> None:
        head = self._queue.popleft()
        if not isinstance(head, int):
            self._handled += head.requests
            self._handled_bytes += len(head.data)

    def _seal(self, writer: LogWriter, number: int) -> None:
        state = self._states.get(number)
        if number <= self.sealed or state is None:
            # An older one again, or one that newer ones have overtaken.
            return
        writer.seal(number, state)
        self._states.pop(number, None)
        self.sealed = number
        self.on_sealed()

    def _give_up(self, error: Exception) -> None:
        self._report(f"{self._directory}: rows are given up: {error!r}")
        if self._writer is not None:
            self._writer.give_up_rows()
        if self._queue:
            self._drop_head()

    def _report(self, message: str) -> None:
        self.on_problem(message)
        self.errors.append(message)
        del self.errors[:-ERRORS_KEPT]
