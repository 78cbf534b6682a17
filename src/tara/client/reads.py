"""Questions on their way without I/O: which to send, which were answered, which are late and have to be ordered.

A question is not part of a session: it changes nothing, so asking twice does no harm. One that is not answered in time
(its front end is gone, or a quorum of committers is not there) goes the safe way, as a command in the order.
"""

from collections.abc import Callable

from tara.client import wire
from tara.client.errors import ClientError, CommandFailed, NotReachable
from tara.protocol import tuples as t

#: How long an answer may take before the question is ordered.
PATIENCE_S = 0.4

Done = Callable[[bytes | ClientError], None]


class Question:
    __slots__ = ("deadline_s", "done", "payload", "sent_s", "stale")

    def __init__(self, payload: bytes, stale: bool, deadline_s: float, done: Done) -> None:
        self.payload = payload
        self.stale = stale
        self.deadline_s = deadline_s
        self.done = done
        self.sent_s = 0.0


class Reads:
    def __init__(self) -> None:
        self._new: list[Question] = []
        self._in_flight: dict[int, Question] = {}
        self._id = 0
        self._refused: list[Question] = []
        #: The owner should try another front end.
        self.move_on = False

    def submit(self, question: Question) -> None:
        self._new.append(question)

    def due(self, now_s: float) -> list[wire.Read]:
        """What has to be sent now."""
        reads = []
        for question in self._new:
            self._id += 1
            question.sent_s = now_s
            self._in_flight[self._id] = question
            reads.append(wire.Read(self._id, question.payload, question.stale))
        self._new.clear()
        return reads

    def ask_again(self) -> None:
        """The connection is gone, and with it perhaps what was asked on it."""
        self._new[:0] = self._in_flight.values()
        self._in_flight.clear()

    def late(self, now_s: float) -> list[Question]:
        """Questions that should be ordered instead. Stale ones are asked again, at whatever front end is next."""
        late, self._refused = self._refused, []
        while self._in_flight:
            oldest = next(iter(self._in_flight))
            question = self._in_flight[oldest]
            if now_s - question.sent_s < PATIENCE_S:
                break
            del self._in_flight[oldest]
            self.move_on = True
            if not question.stale:
                late.append(question)
            elif now_s >= question.deadline_s:
                question.done(NotReachable("no replica answered in time"))
            else:
                self._new.append(question)
        return late

    def hear(self, id_: int, status: int, payload: bytes) -> None:
        question = self._in_flight.pop(id_, None)
        if question is None:
            return
        if status == t.OK:
            question.done(payload)
        elif status == t.OVERLOADED:
            self._refused.append(question)
        else:
            question.done(CommandFailed(payload.decode(errors="replace")))

    def fail(self, reason: ClientError) -> None:
        """The owner ends: no answer will come any more."""
        for question in (*self._new, *self._in_flight.values(), *self._refused):
            question.done(reason)
        self._new.clear()
        self._in_flight.clear()
        self._refused.clear()

    def wait_s(self, now_s: float) -> float:
        """How long nothing needs to be done."""
        if self._new or self._refused:
            return 0.0
        if not self._in_flight:
            return 3600.0
        oldest = self._in_flight[next(iter(self._in_flight))]
        return max(oldest.sent_s + PATIENCE_S - now_s, 0.0)
