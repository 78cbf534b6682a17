"""How an executor takes bases: at which checkpoints, piece by piece as its store asks, and what becomes of them."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from tara.protocol import depth, places
from tara.protocol import tuples as t
from tara.protocol.bases import BaseSchedule, Capture
from tara.protocol.execution import Execution
from tara.protocol.limits import Limits
from tara.protocol.node import Boot
from tara.protocol.places import EXECUTING, Cell
from tara.protocol.sessions import raised
from tara.protocol.skips import ENDED, Barred

#: The newest bases whose digests are announced.
BASES_KEPT = 2
_Drawn = TypeVar("_Drawn")


class BaseTaker:
    def __init__(self, limits: Limits, boot: Boot, cell: Cell, tell: Callable[[t.Tuple], None]) -> None:
        """`tell` gives a tuple to the store."""
        self._interval = limits.checkpoint_interval
        self._keeps_bases = boot.keeps_bases
        self._cell = cell
        self._tell = tell
        #: Snapshots have ended the process, as the host has it on record: none is taken unless an operator wants it.
        self._ended = self.barred = places.SNAPSHOT in boot.barred
        #: The newest bases that are durable here, with the digests of their states.
        self.known: list[t.CheckpointId] = []
        #: Why the last one failed, if it did.
        self.trouble = ""
        self._schedule = BaseSchedule(limits)
        #: The base that is being drawn.
        self._capture: Capture | None = None
        #: An operator, or the log, wants a base at this checkpoint; another replica needs one. 0: no.
        self._ordered = self._wanted = 0

    @property
    def is_ordered(self) -> bool:
        return self._ordered > 0

    def come_to(self, execution: Execution) -> None:
        """It has executed up to a checkpoint: take a base there, if one is due."""
        number = execution.checkpoint.number
        ordered = 0 < self._ordered <= number
        wanted = 0 < self._wanted <= number
        due = self._schedule.is_due(number, execution.bytes, execution.sessions.time_ms, wanted)
        if self._keeps_bases and (ordered or (due and self._capture is None)):
            self._ordered = 0 if ordered else self._ordered
            self._wanted = 0 if wanted else self._wanted
            self._begin(execution)

    def take_ordered(self, execution: Execution) -> None:
        """Where it stands, if that is at a checkpoint, rather than at the next one: it may wait there for long."""
        number = execution.checkpoint.number
        if self._keeps_bases and execution.next == number * self._interval and self._ordered <= number:
            self._ordered = 0
            self._begin(execution)

    def order(self, take: t.TakeBase) -> bool:
        """Whether one is to be taken that was not before."""
        if take.by_operator:
            self.barred = False
        if self._capture is not None and self._capture.number >= take.number:
            return False
        self._ordered = max(take.number, self._ordered)
        return True

    def help(self, number: int) -> None:
        """Somebody needs a base at this checkpoint or a later one: take one, unless there is one."""
        newest = max([0, *(base.number for base in self.known), self._capture.number if self._capture else 0])
        if newest < number:
            self._wanted = max(number, self._wanted)

    def draw(self, draw: t.Draw) -> None:
        """The store wants the next pieces."""
        capture = self._capture
        if capture is None or capture.number != draw.number:
            return
        if pieces := capture.draw_state():
            self._tell(t.Drawn(capture.number, pieces, is_state=True))
            return
        chunks = self._in_snapshot(capture.number, capture.draw)
        if chunks is not None:
            self._tell(t.Drawn(capture.number, chunks))

    def could_not_be_written(self, given_up: t.GivenUp) -> None:
        if self._capture is not None and self._capture.number == given_up.number:
            self._failed(given_up)

    def saved(self, saved: t.BaseSaved) -> bool:
        """Whether it is the one that was drawn last."""
        capture = self._capture
        if capture is None or capture.number != saved.number:
            return False
        self._capture, self.trouble = None, ""
        if self._ended:
            self._ended = False
            self._tell(t.Unbarred(places.SNAPSHOT))
        self.note(t.CheckpointId(saved.number, saved.digest), saved.length, capture.bytes, capture.time_ms)
        return True

    def note(self, base: t.CheckpointId, length: int, bytes_: int, time_ms: int) -> None:
        """There is a base here; bytes of the log and agreed time are those at its checkpoint."""
        others = [known for known in self.known if known.number != base.number]
        self.known = sorted([*others, base], key=lambda known: known.number)[-BASES_KEPT:]
        self._schedule.note(length, bytes_, time_ms)

    def drop(self) -> None:
        """What is being drawn is no longer the application's state."""
        self._capture = None

    def _begin(self, execution: Execution) -> None:
        checkpoint, application = execution.checkpoint, execution.application
        state = execution.capture()

        def begin() -> Iterator[bytes]:
            chunks = application.snapshot()
            return chunks if application.concurrent_snapshot else iter(list(chunks))

        chunks = self._in_snapshot(checkpoint.number, begin)
        if chunks is not None:
            time_ms = execution.sessions.time_ms
            self._capture = Capture(checkpoint.number, execution.bytes, time_ms, chunks, state)
            self._tell(t.Base(checkpoint, next(state)))

    def _in_snapshot(self, number: int, draw: Callable[[], _Drawn]) -> _Drawn | None:
        """Let the application give its snapshot, or a piece of it; None: the base is given up."""
        former = depth.enter()
        self._cell[EXECUTING] = places.SNAPSHOT | number
        try:
            if self.barred:
                raise Barred
            return draw()
        except BaseException as error:
            reason = ENDED if isinstance(error, Barred) else raised(error)
            given_up = t.GivenUp(number, f"{reason} when it was to give a snapshot for checkpoint {number}")
            self._failed(given_up)
            self._tell(given_up)
            return None
        finally:
            self._cell[EXECUTING] = 0
            depth.leave(former)

    def _failed(self, given_up: t.GivenUp) -> None:
        self._capture, self.trouble = None, given_up.reason
        self._schedule.failed(given_up.number)
