"""What an executor's host keeps for it: bases and the decided log, and so its checkpoints.

Jobs of the executor come in by `submit`, answers go back through `take`. The log has a thread of its own
(`tara.storage.log`), and so have the bases, here: `work` asks the executor for one piece of a base after the other, and
writes them at a pace that leaves the disk to others (`tara.storage.pacer`). A base is there when it is durable, and the
log up to it, too. When the executor has come as far as its files lead, and there is nothing else to do, the bases of
former lives are read, to see whether they are intact.
A disk that fails costs the base; the executor tries again later. Anything else that goes wrong comes up in `take`, and
ends the container.
"""

from collections import deque
from collections.abc import Callable, Iterator

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.storage.base_format import BaseFile
from tara.storage.bases import GOOD_NEWS, Bases
from tara.storage.log import DecidedLog, NewBase

#: Whoever has nothing to do looks again after this long; he is woken when there is something.
IDLE_S = 60.0
#: The pause before it is looked again whether the log is durable.
LOG_S = 0.25
ERRORS_KEPT = 100

Job = t.Base | t.Drawn | t.GivenUp


class StoreFailed(TaraError):
    """The store does not work any more."""


class ExecutorStore:
    def __init__(self, bases: Bases, log: DecidedLog, on_answer: Callable[[], None]) -> None:
        self.bases = bases
        self.log = log
        #: Called when there is an answer; and when there is something to do.
        self._on_answer = on_answer
        self.wake: Callable[[], None] = lambda: None
        log.on_answer = self._answer
        log.on_failure = self._fail
        log.on_sealed = lambda: self.wake()
        #: What ended the work, if anything did.
        self._failure: Exception | None = None
        self._jobs: deque[Job] = deque()
        self._answers: deque[t.Tuple] = deque()
        #: The base that is being written; and the digest of the one that is complete, while the log is behind.
        self._base: t.Base | None = None
        self._file: BaseFile | None = None
        self._digest: bytes | None = None
        #: Whether a piece of it is to be asked for, when the disk has rested.
        self._asks = False
        #: Whether the executor is where its files lead: until then the disk is for its way there.
        self._has_arrived = False
        self.errors: list[str] = []
        #: Told what happened: an event's name, and the number or message that belongs to it. On any thread.
        self.on_event: Callable[[str, int | str], None] = lambda event, detail: None
        bases.on_event = self._on_event

    def submit(self, job: t.Tuple) -> None:
        match job:
            case t.Executed():
                self.log.append(job)
            case t.Load():
                self._has_arrived = False
                self.log.submit(job)
            case t.Mark() | t.More() | t.Doubted():
                self.log.submit(job)
            case t.Restoring(number):
                # In its turn: what its site has to do meanwhile comes first.
                self._answer(t.Resume(number))
                self.wake()
            case t.Arrived():
                self._has_arrived = True
                self.wake()
            case t.Base() | t.Drawn() | t.GivenUp():
                self._jobs.append(job)
                self.wake()

    def take(self) -> Iterator[t.Tuple]:
        """The answers that have come since the last call. `StoreFailed` if there will be none any more."""
        if self._failure is not None:
            raise StoreFailed(f"{self.bases.directory.parent}: {self._failure!r}") from self._failure
        while self._answers:
            yield self._answers.popleft()

    @property
    def growing(self) -> tuple[int, int] | None:
        """The base that is being written: its number, and its bytes so far."""
        file = self._file
        return None if file is None else (file.number, file.length)

    def interrupt(self) -> None:
        """Whatever is being fetched from other hosts is not needed any more."""
        self.log.interrupt()

    def work(self) -> float:
        """On the thread: do what was asked for, one after the other; returns after how many seconds to come again if
        nobody wakes it."""
        try:
            while self._failure is None:
                left_s = self.bases.pacer.left_s
                if left_s > 0.0:
                    return left_s
                if self._asks and self._base is not None:
                    self._asks = False
                    self._answer(t.Draw(self._base.checkpoint.number))
                if not self._jobs:
                    break
                pause_s = self._do(self._jobs[0])
                if pause_s > 0.0:
                    return pause_s
                self._jobs.popleft()
            if self._failure is None and self._has_arrived and self.bases.look_after():
                return self.bases.pacer.left_s
        except Exception as error:
            self._fail(error)
        return IDLE_S

    def _do(self, job: Job) -> float:
        """Returns after how many seconds to come again, and then with the same job; 0: it is done."""
        try:
            match job:
                case t.Base():
                    self._begin(job)
                case t.Drawn(number, chunks, is_state) if self._is_of(number):
                    if not chunks:
                        return self._finish()
                    self._write(chunks, is_state)
                case t.GivenUp(number, reason):
                    self._count_given_up(reason)
                    # Also an earlier one, which this one was to take the place of.
                    if self._base is not None and number >= self._base.checkpoint.number:
                        self._drop()
        except OSError as error:
            self._give_up(error)
        return 0.0

    def _begin(self, base: t.Base) -> None:
        self._drop()
        self._base = base
        bases = self.bases
        self._file = BaseFile(bases.directory, bases.cluster, bases.era, base.checkpoint, bases.disk, bases.pacer)
        self._file.add_state((base.state,))
        self._asks = True

    def _is_of(self, number: int) -> bool:
        return self._base is not None and self._base.checkpoint.number == number

    def _write(self, chunks: list[bytes], is_state: bool) -> None:
        """Write what was drawn, and ask for more when the disk has rested."""
        assert self._file is not None
        if is_state:
            self._file.add_state(chunks)
        else:
            self._file.add(chunks)
        self._asks = True

    def _finish(self) -> float:
        assert self._file is not None
        assert self._base is not None
        number = self._base.checkpoint.number
        if self._digest is None:
            self._digest = self.bases.finish(self._file)
        if self.log.sealed < number:
            return LOG_S
        self.bases.counts.bases_saved += 1
        self._on_event("base_saved", number)
        # Checkpoints may wait for it.
        self.log.submit(NewBase(number))
        self._answer(t.BaseSaved(number, self._digest, self._file.length))
        self._base = self._file = self._digest = None
        self.bases.retain()
        return 0.0

    def _give_up(self, error: OSError) -> None:
        """The disk fails, or is full. Checkpoints do not need the base; a later one will do."""
        assert self._base is not None
        number = self._base.checkpoint.number
        message = f"cannot write base {number}: {error}"
        self.bases.on_disk_error(message)
        self._count_given_up(message)
        self._drop()
        self._answer(t.GivenUp(number, message))

    def _count_given_up(self, reason: str) -> None:
        self.bases.counts.bases_given_up += 1
        self._on_event("base_given_up", reason)

    def _drop(self) -> None:
        file, self._base, self._file, self._digest, self._asks = self._file, None, None, None, False
        if file is not None:
            try:
                file.give_up()
            except OSError as error:
                self.bases.on_disk_error(f"{error}")

    def _fail(self, error: Exception) -> None:
        """Without a store the executor would wait forever, and nobody would know why."""
        self._failure = error
        self._on_event("store_failed", repr(error))
        self._on_answer()

    def _answer(self, answer: t.Tuple) -> None:
        self._answers.append(answer)
        self._on_answer()

    def _on_event(self, event: str, detail: int | str) -> None:
        if event not in GOOD_NEWS:
            self.errors.append(str(detail))
            del self.errors[:-ERRORS_KEPT]
        self.on_event(event, detail)
