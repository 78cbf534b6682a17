"""Reads on their way without I/O: which to send, which were answered, which are late and have to be ordered.

A read is not part of a session: it changes nothing, so sending it twice does no harm. One that is not answered in time
(its front end is gone, or a quorum of committers is not there) goes the safe way, as a command in the order.
"""

import math
from collections import deque
from collections.abc import Callable

from tara.client.errors import ClientError, CommandFailed, NotReachable, too_large
from tara.host import client_wire
from tara.protocol import tuples as t

#: How long nothing may be heard before the oldest read is ordered; and how long its answer may take at all, while
#: others come: they may be long.
PATIENCE_S = 0.4
PATIENCE_S_MAX = 3.0

#: Reads in flight at once, and bytes of the answers that are to be expected; more wait here.
IN_FLIGHT_MAX = 512
ANSWERS_BYTES_MAX = 8 << 20

Done = Callable[[bytes | ClientError], None]


class ReadSubmission:
    __slots__ = ("deadline_s", "done", "payload", "refused", "sent_s", "stale")

    def __init__(self, payload: bytes, stale: bool, deadline_s: float, done: Done) -> None:
        self.payload = payload
        self.stale = stale
        self.deadline_s = deadline_s
        self.done = done
        self.refused = False
        self.sent_s = 0.0


class Reads:
    def __init__(self) -> None:
        self._new: deque[ReadSubmission] = deque()
        self._in_flight: dict[int, ReadSubmission] = {}
        self._id = 0
        self._refused: list[ReadSubmission] = []
        self._heard_s = 0.0
        #: The first deadline of those that are not answered.
        self._deadline_s = math.inf
        #: The length of the last answers, the newest counting most.
        self.usual_bytes = 0.0
        #: What a read may have, as a front end has said; 0: not known.
        self.bytes_max = 0
        #: What is long waits until it is known: before there is a session, it may not be.
        self.long_may_go = True
        #: The owner should try another front end.
        self.move_on = False
        #: The replica behind this front end executes nothing, as it said; the owner looks whether there are others.
        self.halted: str | None = None

    def submit(self, read: ReadSubmission) -> None:
        self._new.append(read)
        self._deadline_s = min(self._deadline_s, read.deadline_s)

    def due(self, now_s: float) -> list[client_wire.ReadMessage]:
        """What has to be sent now."""
        messages = []
        while self._new and self._has_room():
            read = self._new.popleft()
            if self.bytes_max and len(read.payload) > self.bytes_max:
                read.done(too_large(self.bytes_max))
                continue
            self._id += 1
            read.sent_s = now_s
            self._in_flight[self._id] = read
            messages.append(client_wire.ReadMessage(self._id, read.payload, read.stale))
        return messages

    def _has_room(self) -> bool:
        if not self.long_may_go and len(self._new[0].payload) > client_wire.REQUEST_BYTES_MAX:
            return False
        count = len(self._in_flight)
        return count == 0 or (count < IN_FLIGHT_MAX and (count + 1) * self.usual_bytes <= ANSWERS_BYTES_MAX)

    def send_again(self) -> None:
        """The connection is gone, and with it perhaps what was sent on it."""
        self._new.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()

    def late(self, now_s: float) -> list[ReadSubmission]:
        """Reads that should be ordered instead. Stale ones are sent again, to whatever front end is next."""
        late, self._refused = self._refused, []
        while self._in_flight:
            oldest = next(iter(self._in_flight))
            if now_s < self._late_s(self._in_flight[oldest]):
                break
            read = self._in_flight.pop(oldest)
            self.move_on = True
            if read.stale:
                self._new.append(read)
            else:
                late.append(read)
        if now_s >= self._deadline_s:
            late += self._expired(now_s)
        return late

    def _expired(self, now_s: float) -> list[ReadSubmission]:
        """Those whose time is up; the owner tells them so."""
        expired = [read for read in self._new if now_s >= read.deadline_s]
        for id_, read in list(self._in_flight.items()):
            if now_s >= read.deadline_s:
                expired.append(self._in_flight.pop(id_))
        self._new = deque(read for read in self._new if now_s < read.deadline_s)
        self._deadline_s = min((read.deadline_s for read in (*self._new, *self._in_flight.values())), default=math.inf)
        for read in expired:
            if read.stale:
                read.done(NotReachable("no replica answered in time"))
        return [read for read in expired if not read.stale]

    def _late_s(self, read: ReadSubmission) -> float:
        return min(max(read.sent_s, self._heard_s) + PATIENCE_S, read.sent_s + PATIENCE_S_MAX)

    def hear(self, id_: int, status: int, payload: bytes, now_s: float) -> None:
        self._heard_s = now_s
        read = self._in_flight.pop(id_, None)
        if read is None:
            return
        if status == t.OK:
            self.usual_bytes += (len(payload) - self.usual_bytes) / 8
            read.done(payload)
        elif status == t.HALTED:
            self.halted = payload.decode(errors="replace")
            self._new.append(read)
        elif status != t.OVERLOADED:
            read.done(CommandFailed(payload.decode(errors="replace")))
        elif read.refused:
            self._refused.append(read)
        else:
            # The answers to all at once may have been too long.
            read.refused = True
            self._new.append(read)

    def fail(self, reason: ClientError) -> None:
        """The owner ends: no answer will come any more."""
        for read in (*self._new, *self._in_flight.values(), *self._refused):
            read.done(reason)
        self._new.clear()
        self._in_flight.clear()
        self._refused.clear()

    def wait_s(self, now_s: float) -> float:
        """How long nothing needs to be done."""
        if self._refused or (self._new and self._has_room()):
            return 0.0
        if not self._in_flight:
            return 3600.0
        oldest = self._in_flight[next(iter(self._in_flight))]
        return max(min(self._late_s(oldest), self._deadline_s) - now_s, 0.0)
