"""A client's session without I/O: numbers commands, remembers what is in flight, and says what to send when.

Bytes and time come in, commands to send come out; the owner moves them. A command that is not answered in time is sent
again, through another front end and with growing patience: the replicas execute it once however often it comes.
"""

import enum
from collections import deque
from collections.abc import Callable

import msgspec

from tara.client.errors import (
    ClientError,
    CommandFailed,
    CommandTooLarge,
    Forbidden,
    Overloaded,
    SessionExpired,
    TimedOut,
    too_large,
)
from tara.protocol import tuples as t

#: Commands in flight at once; more wait here. Below the replicas' limit for unacknowledged results.
IN_FLIGHT_MAX = 512
#: Bytes on their way at once: so many at first. Halved when an answer is late, because they are sent again then, and so
#: are those of all other clients, and when a front end has no room. Every quick answer makes room for as much again; a
#: slow one does not, because more on its way would only wait for longer.
ON_WAY_BYTES_FIRST = 1 << 20
ON_WAY_BYTES_MAX = 4 << 20
ON_WAY_BYTES_MIN = 64 << 10
QUICK_S = 1.0
#: How long an answer may take before what is on its way is sent again: it doubles while none comes. If the last answers
#: took longer, so many times as long as they took: a service with much to do is not given everything twice.
PATIENCE_S = 0.4
PATIENCE_S_MAX = 3.0
PATIENCE_TIMES = 3
PATIENCE_S_USUAL_MAX = 6.0
#: What is long takes longer: of what is beyond `ON_WAY_BYTES_MIN`, so many bytes are given another second.
PATIENCE_BYTES_PER_S = 1 << 20
#: Commands on their way at once, while the replicas keep too many results for us: halved each time they say so, and one
#: more for so many answers.
WINDOW_MIN = 4
WINDOW_ANSWERS = 8
#: Then it is tried again so soon: their room is ours as soon as we say what we have.
UNACKNOWLEDGED_S = 0.05
#: How often in a row a front end may refuse what it is sent before another one is tried; and the longest pause before
#: that is sent again.
REFUSALS_MAX = 3
REFUSED_S_MAX = 3.0
#: Openings that were asked for and whose answers are still good.
OPENINGS_MAX = 16

Done = Callable[[bytes | ClientError], None]


class State(enum.Enum):
    """What the connection-state callback is told."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    LOST = "lost"


class Submission:
    """One command of the user."""

    __slots__ = (
        "deadline_s",
        "done",
        "expected",
        "heard_s",
        "kind",
        "number",
        "on_way",
        "payload",
        "refused",
        "sent_s",
        "unsure",
    )

    def __init__(self, payload: bytes, kind: int, deadline_s: float, done: Done, expected: int = 0) -> None:
        self.payload = payload
        #: Bytes of its answer, if it is known to be long: the replicas keep it until we have it.
        self.expected = expected
        self.kind = kind
        self.deadline_s = deadline_s
        #: Called once; None afterwards. The command itself may live on: its number must not be missing.
        self.done: Done | None = done
        self.number = -1
        #: When it was sent for the first time, and for the last time.
        self.sent_s = -1.0
        #: When it was sent for the last time, or was last said to wait for its turn.
        self.heard_s = -1.0
        self.on_way = False
        #: A front end had no room for it; and whether another one may have had, before.
        self.refused = False
        self.unsure = False

    @property
    def cost(self) -> int:
        return len(self.payload) + self.expected

    def empty(self) -> None:
        """Keep its number, and nothing else: a read that changes nothing takes its place."""
        self.payload, self.kind, self.expected = b"", t.QUERY, 0

    def finish(self, outcome: bytes | ClientError) -> None:
        if self.done is not None:
            done, self.done = self.done, None
            done(outcome)


class Session:
    def __init__(self, timeout_ms: int, next_nonce: Callable[[], int], name: str = "") -> None:
        self._timeout_ms = timeout_ms
        #: A session with a name goes on where it stopped, in whatever process.
        self._name = name
        self._next_nonce = next_nonce
        self.id = 0
        self._nonce = 0
        #: Any of them may be answered, however late: a service that is slower than our patience is served, too. The
        #: other sessions expire.
        self._openings: deque[int] = deque(maxlen=OPENINGS_MAX)
        self._opened_s = 0.0
        self._number = 0
        self._waiting: deque[Submission] = deque()
        #: All that have a number and no answer, oldest first. Each is on its way, or has to be sent (again), or was
        #: refused and waits for the time to do so.
        self._in_flight: dict[int, Submission] = {}
        self._unsent: deque[Submission] = deque()
        self._on_way = self._on_way_bytes = 0
        self._room_bytes = ON_WAY_BYTES_FIRST
        self._window = float(IN_FLIGHT_MAX)
        #: Why no session was opened, the last time that this was refused.
        self._no_session = ""
        #: The name is somebody else's: it is tried again only if there is something to send.
        self._forbidden = False
        #: When those that were refused are sent again; and how often in a row that has been.
        self._retry_s: float | None = None
        self._refusals = 0
        #: How often in a row anything was refused, wherever.
        self._pauses = 0
        self._patience_s = PATIENCE_S
        #: How long the last answers took, the newest counting most; not what was waited for in vain before.
        self._usual_s = 0.0
        #: When the last sign of life was sent, or the last command that was answered: since then the session is as good
        #: as new. What is only sent may be refused, or wait for long.
        self._renewed_s = 0.0
        #: What a command may have, as a front end has said before it opened the session; 0: not known. A longer one is
        #: not sent: the front end would hang up, and would again when it comes again.
        self.bytes_max = 0
        #: The owner should try another front end.
        self.move_on = False
        #: The replica behind this front end executes nothing, as it said; the owner looks whether there are others.
        self.halted: str | None = None

    def submit(self, call: Submission) -> None:
        self._waiting.append(call)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._in_flight

    def due(self, now_s: float) -> list[t.Command]:
        """What has to be sent now: the opening of the session, new commands, late ones again, a sign of life."""
        self._expire(now_s)
        self.check(now_s)
        if self.id == 0:
            return self._open(now_s)
        commands = []
        while (call := self._next(now_s)) is not None:
            commands.append(self._command(call, now_s))
        if now_s - self._renewed_s >= self._timeout_ms / 3000:
            commands.append(t.Command(self.id, 0, self._acknowledged(), b"", t.KEEPALIVE))
            self._renewed_s = now_s
        return commands

    def check(self, now_s: float) -> None:
        """See whether answers are late, or what was refused may be tried again. `move_on` tells the owner, before it
        sends anything."""
        if self.id == 0:
            if self._nonce and now_s - self._opened_s >= self._patience_s:
                self.give_up()
            return
        oldest = self._oldest_on_way()
        if oldest is not None and now_s >= self._late_s(oldest):
            self.give_up()
        elif self._retry_s is not None and now_s >= self._retry_s:
            self._refusals += 1
            # What it has taken would have to be ordered a second time.
            if self._refusals >= REFUSALS_MAX and oldest is None:
                self.give_up()
            else:
                self._retry_s = None
                self._unsent = deque(call for call in self._in_flight.values() if not call.on_way)

    def give_up(self) -> None:
        """The front end is silent: try another one, with less at once, and with more patience."""
        self._patience_s = max(min(2 * self._patience_s, PATIENCE_S_MAX), self._patience_s)
        self._room_bytes = max(self._room_bytes // 2, ON_WAY_BYTES_MIN)
        self.move_on = True
        self.take_back()

    def take_back(self) -> None:
        """The connection is gone, and with it perhaps what was sent on it: nothing counts as being on its way."""
        self._nonce, self._retry_s, self._refusals = 0, None, 0
        for call in self._in_flight.values():
            call.on_way = False
        self._unsent = deque(self._in_flight.values())
        self._on_way = self._on_way_bytes = 0

    def _oldest_on_way(self) -> Submission | None:
        return next((call for call in self._in_flight.values() if call.on_way), None)

    def _late_s(self, call: Submission) -> float:
        """When its answer is late. All that is on its way is waited for: the oldest may be behind the others. A front
        end that has said that it has it may be slow in saying so again."""
        patience_s = self._patience_s if call.heard_s == call.sent_s else max(self._patience_s, PATIENCE_S_MAX)
        return call.heard_s + patience_s + max(self._on_way_bytes - ON_WAY_BYTES_MIN, 0) / PATIENCE_BYTES_PER_S

    def _next(self, now_s: float) -> Submission | None:
        """What may be sent next: first what has to be sent again, in its order. After a refusal nothing, for a while:
        what follows would be refused, too, or would wait for what was."""
        if self._retry_s is not None:
            return None
        while self._unsent:
            call = self._unsent[0]
            answered = self._in_flight.get(call.number) is not call
            # What is on its way behind the oldest one waits for it: there would never be room.
            oldest = next(iter(self._in_flight.values()), None)
            if not answered and call is not oldest and not self._has_room(call):
                return None
            self._unsent.popleft()
            if not answered:
                return call
        while self._waiting:
            call = self._waiting[0]
            if call.done is not None and self._must_wait(call):
                return None
            self._waiting.popleft()
            if self.bytes_max and len(call.payload) > self.bytes_max:
                call.finish(too_large(self.bytes_max))
            elif call.done is not None:
                self._number_it(call)
                return call
        return None

    def _number_it(self, call: Submission) -> None:
        if call.kind == t.CLAIM:
            # Not the next command's number: all who share the name would claim under it, and the answer to one
            # claim would be taken for the answer to another.
            call.number = self._next_nonce()
        else:
            call.number = self._number
            self._number += 1
        self._in_flight[call.number] = call

    def _has_room(self, call: Submission) -> bool:
        if self._on_way == 0:
            return True
        return self._on_way < self._window and self._on_way_bytes + call.cost <= self._room_bytes

    def _must_wait(self, call: Submission) -> bool:
        """For room. A claim says what the next numbers stand for, so nothing else is on its way with it."""
        if self._number - next(iter(self._in_flight), self._number) >= IN_FLIGHT_MAX or not self._has_room(call):
            return True
        if call.kind == t.CLAIM:
            return bool(self._in_flight)
        return any(other.kind == t.CLAIM for other in self._in_flight.values()) if len(self._in_flight) == 1 else False

    def _command(self, call: Submission, now_s: float) -> t.Command:
        call.unsure = call.unsure or (call.sent_s >= 0 and not call.refused)
        call.sent_s = call.heard_s = now_s
        call.refused, call.on_way = False, True
        self._on_way += 1
        self._on_way_bytes += call.cost
        acknowledged = min(next(iter(self._in_flight), call.number), call.number)
        return t.Command(self.id, call.number, acknowledged, call.payload, call.kind)

    def _acknowledged(self) -> int:
        """Below this number we have all results, and none of them is needed any more. Of a session with a name, others
        may still be waiting for them."""
        return 0 if self._name else next(iter(self._in_flight), self._number)

    @property
    def _stays_out(self) -> bool:
        return self._forbidden and not self._waiting

    def _open(self, now_s: float) -> list[t.Command]:
        if self._nonce or self._stays_out:
            return []
        self._forbidden = False
        self._nonce, self._opened_s = self._next_nonce(), now_s
        self._openings.append(self._nonce)
        return [t.Command(0, self._nonce, 0, msgspec.msgpack.encode(self._name or self._timeout_ms), t.OPEN)]

    def _expire(self, now_s: float) -> None:
        """Tell whose time is up. A command that was sent lives on, unless every front end has refused it; in a session
        with a name always, because somebody else may send it, too."""
        for call in (*self._waiting, *self._in_flight.values()):
            if call.done is not None and now_s >= call.deadline_s:
                if call.refused and not call.unsure and not self._name:
                    self._empty(call)
                    call.finish(Overloaded("the service had no room for the command in time"))
                elif call.number < 0 and self._no_session:
                    call.finish(Overloaded(f"no session was opened in time: {self._no_session}"))
                else:
                    call.finish(TimedOut("no answer in time; the command may still execute, once"))

    def wait_s(self, now_s: float) -> float:
        """How long nothing needs to be sent."""
        calls = [*self._waiting, *self._in_flight.values()]
        times = [call.deadline_s for call in calls if call.done is not None]
        oldest = self._oldest_on_way()
        if oldest is not None:
            times.append(self._late_s(oldest))
        if self._retry_s is not None:
            times.append(self._retry_s)
        if self.id:
            times.append(self._renewed_s + self._timeout_ms / 3000)
        elif not self._stays_out:
            times.append(self._opened_s + self._patience_s)
        return max(min(times, default=now_s + self._timeout_ms / 3000) - now_s, 0.0)

    def hear(self, result: t.Result, now_s: float) -> None:
        if result.status == t.HALTED:
            self._hear_halted(result, now_s)
            return
        if result.session == 0:
            if result.number in self._openings and self.id == 0 and result.status == t.OK:
                self._openings.clear()
                self._no_session = ""
                self.id, _, *following = msgspec.msgpack.decode(result.payload, type=tuple[int, ...])
                self._number = following[0] if following else 0
                self._patience_s = PATIENCE_S
                self._renewed_s = self._opened_s
            elif result.number in self._openings and result.status == t.FORBIDDEN:
                self._forbid(result)
            elif result.number in self._openings and result.status in (t.FULL, t.REJECTED):
                self._no_session = result.payload.decode(errors="replace")
            return
        if result.session != self.id:
            return
        if result.status == t.EXPIRED:
            self.lose()
            return
        if result.status == t.FORBIDDEN:
            self._forbid(result)
            return
        if result.status == t.OVERLOADED:
            self._refuse(result.number, now_s)
            return
        if result.status == t.WAITING:
            self._wait_for(result.number, now_s)
            return
        if result.status == t.TOO_LARGE:
            self._fill(result)
            return
        if result.status == t.UNACKNOWLEDGED:
            self._hold_back(result.number, now_s)
            return
        call = self._in_flight.pop(result.number, None)
        if call is not None:
            self._leave_way(call)
            self._window = min(self._window + 1 / WINDOW_ANSWERS, IN_FLIGHT_MAX)
            if now_s - call.sent_s < QUICK_S:
                self._room_bytes = min(self._room_bytes + call.cost, ON_WAY_BYTES_MAX)
            self._refusals = self._pauses = 0
            if self._retry_s is not None:
                # There is room again: no longer pause than after a first refusal.
                self._retry_s = min(self._retry_s, now_s + PATIENCE_S)
            self._renewed_s = max(self._renewed_s, call.sent_s)
            self._usual_s += (now_s - call.sent_s - self._usual_s) / 8
            self._patience_s = min(max(PATIENCE_TIMES * self._usual_s, PATIENCE_S), PATIENCE_S_USUAL_MAX)
            if call.kind == t.CLAIM and result.status == t.OK:
                self._number = msgspec.msgpack.decode(result.payload, type=t.Claim).next
            call.finish(_outcome(result))

    def _hear_halted(self, result: t.Result, now_s: float) -> None:
        if result.session == 0:
            ours = result.number in self._openings and self.id == 0
        else:
            ours = result.session == self.id and result.number in self._in_flight
            self._refuse(result.number, now_s)
        if ours:
            self.halted = result.payload.decode(errors="replace")

    def stop(self, reason: ClientError) -> None:
        """No front end has a replica that executes. What was passed on before lives on; what never was does not."""
        for call in (*self._waiting, *self._in_flight.values()):
            if call.refused and not call.unsure and not self._name:
                self._empty(call)
            call.finish(reason)
        self._waiting.clear()

    def _refuse(self, number: int, now_s: float, pause_s: float = PATIENCE_S) -> None:
        call = self._in_flight.get(number)
        if call is None or not call.on_way:
            return
        self._leave_way(call)
        call.refused = True
        if self._retry_s is None:
            self._room_bytes = max(self._room_bytes // 2, ON_WAY_BYTES_MIN)
            self._retry_s = now_s + min(pause_s * 2 ** min(self._pauses, 8), REFUSED_S_MAX)
            self._pauses += 1

    def _wait_for(self, number: int, now_s: float) -> None:
        """A front end has the command, and its queue moves."""
        call = self._in_flight.get(number)
        if call is not None and call.on_way:
            call.heard_s = now_s

    def _hold_back(self, number: int, now_s: float) -> None:
        """The replicas keep too much for us. What is sent again says which results we have. Other copies of the command
        may be on their way, so it may still execute."""
        call = self._in_flight.get(number)
        if call is None or not call.on_way:
            return
        call.unsure = True
        if self._retry_s is None:
            self._window = max(min(self._window, self._on_way) / 2, WINDOW_MIN)
        self._refuse(number, now_s, UNACKNOWLEDGED_S)

    def _fill(self, refused: t.Result) -> None:
        """A front end did not pass a command on. Its number must not be missing, so a read takes its place. Not in
        a session with a name: whoever sends it there again is to be told, too."""
        call = self._in_flight.get(refused.number)
        if call is None or not call.payload:
            return
        waits = not call.on_way
        self._empty(call)
        if self._name:
            del self._in_flight[call.number]
        elif not waits:
            self._unsent.appendleft(call)
        call.finish(CommandTooLarge(refused.payload.decode(errors="replace")))

    def _empty(self, call: Submission) -> None:
        self._leave_way(call)
        call.empty()

    def _leave_way(self, call: Submission) -> None:
        """It was answered or refused: nothing of it is on its way."""
        if call.on_way:
            call.on_way = False
            self._on_way -= 1
            self._on_way_bytes -= call.cost

    def farewell(self) -> list[t.Command]:
        """The end of the session, if its owner needs it no more: the replicas forget it then, and not only when it has
        expired. One with a name stays, and so does one with a command that may still come."""
        if not self.id or self._name or not self.idle:
            return []
        return [t.Command(self.id, self._number, self._number, b"", t.CLOSE)]

    def fail(self, reason: ClientError) -> None:
        """The owner ends: no answer will come any more."""
        for call in (*self._waiting, *self._in_flight.values()):
            call.finish(reason)
        self._waiting.clear()
        self._in_flight.clear()
        self.take_back()

    def _forbid(self, refused: t.Result) -> None:
        """The session is somebody else's. Nothing of what was sent in it has executed, and nothing of it will."""
        reason = Forbidden(refused.payload.decode(errors="replace"))
        self.fail(reason)
        self.lose()
        self._forbidden = True

    def lose(self) -> None:
        """The session is gone: what is in flight has an unknown outcome, what waits goes to the next session."""
        lost, self._in_flight = self._in_flight, {}
        self.take_back()
        self.id, self._nonce, self._number = 0, 0, 0
        self._openings.clear()
        for call in lost.values():
            call.finish(SessionExpired("the session expired while the command was on its way"))


def _outcome(result: t.Result) -> bytes | ClientError:
    if result.status == t.OK:
        return result.payload
    return CommandFailed(result.payload.decode(errors="replace"))
