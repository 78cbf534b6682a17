"""A simulated client: opens a session, keeps a few commands in flight, resends to another site what is not answered,
and writes down the history that the linearizability check reads."""

import math
from typing import TYPE_CHECKING, Any

import msgspec

from tara.host import client_wire
from tara.protocol import tuples as t
from tara.simulator.linearizability import Operation
from tara.simulator.workload import POISON, Call, wrap

if TYPE_CHECKING:
    from tara.simulator.world import World


class Sent(msgspec.Struct):
    """A command in flight."""

    command: t.Command
    call: Call
    operation: int
    invoked_ms: float
    sent_ms: float


class Client:
    WAKE_MS = 10
    #: After this time it sends again what the replicas did not keep; longer and longer while that does not help.
    AGAIN_MS = 50
    AGAIN_MS_MAX = 800

    def __init__(self, index: int, world: "World") -> None:
        self.index = index
        self._world = world
        self._plan = world.plan
        self._draw = world.draw
        self._caller = world.subject.caller()
        self.principal = world.subject.principal(index)
        self.site = index % world.graph.sites
        #: How front ends call its connection; another one in each life.
        self.connection = b"%d" % index
        self.session = 0
        self._nonce = 0
        self._opened_ms = -1.0
        #: Since when it has been trying to get a session.
        self._homeless_since_ms = 0.0
        self._number = 0
        self.in_flight: dict[int, Sent] = {}
        #: Questions that are not ordered, by ticket; if they are late, they are.
        self._asked: dict[int, Sent] = {}
        #: How long it waits for an answer; doubles with every resend, or resends would keep an overload alive.
        self._patience_ms = self._plan.client_timeout_ms
        #: When it sends everything again because the replicas keep too much for it, if they do, and the pause before.
        self._again_at_ms = math.inf
        self._again_ms = self.AGAIN_MS
        self._left = self._plan.commands_per_client
        self._next_ms = 100.0 + index * 7
        self._paused_until_ms = 0.0
        self._burst = 0
        self._poison = 0
        self.history: list[Operation] = []
        self.answered = 0

    @property
    def done(self) -> bool:
        return self._left <= 0 and not self.in_flight and not self._asked

    @property
    def waiting_since_ms(self) -> float:
        """When it asked for what it is waiting for."""
        if self.done:
            return math.inf
        if self.session == 0:
            return self._homeless_since_ms
        return min((sent.invoked_ms for sent in (*self.in_flight.values(), *self._asked.values())), default=math.inf)

    @property
    def next_number(self) -> int:
        """Of the command that it will send next."""
        return self._number

    # Faults

    def restart(self) -> None:
        """The client's process died: what is in flight has an unknown outcome; its next life has a new session."""
        self._abandon()
        self.connection += b"'"
        self._caller = self._world.subject.caller()

    def pause(self, until_ms: float) -> None:
        self._paused_until_ms = until_ms

    def burst(self) -> None:
        self._burst = self._plan.limits.session_pipeline_max

    def poison(self) -> None:
        self._poison += 1

    def _abandon(self) -> None:
        for sent in self.in_flight.values():
            self._record(sent, None, None)
        self.in_flight.clear()
        self._asked.clear()
        self.session, self._number, self._opened_ms = 0, 0, -1.0
        self._again_at_ms, self._again_ms = math.inf, self.AGAIN_MS
        self._homeless_since_ms = self._world.now_ms

    # What it does

    def wake(self, now_ms: float) -> None:
        if now_ms < self._paused_until_ms or self.done:
            return
        if self.session == 0:
            self._open(now_ms)
            return
        self._resend(now_ms)
        self._order_late_questions(now_ms)
        oldest = min(self.in_flight, default=self._number)
        room = min(
            max(self._plan.pipeline, self._burst) - len(self.in_flight),
            oldest + self._plan.limits.session_pipeline_max - self._number,
        )
        if self._is_idle(now_ms):
            return
        if self._left > 0 and room > 0 and (now_ms >= self._next_ms or self._burst):
            count = min(self._left, room) if self._burst else 1
            self._burst = 0
            commands = [self._make(now_ms) for _ in range(count)]
            self._submit([command for command in commands if command is not None])
            self._next_ms = now_ms + self._draw.expovariate(1 / self._plan.think_ms)

    def _is_idle(self, now_ms: float) -> bool:
        """While only the first partition is used, those whose sessions are in others have nothing to say."""
        return now_ms < self._world.idle_until_ms and self.session % self._world.graph.partitions != 0

    def _open(self, now_ms: float) -> None:
        if self._opened_ms >= 0 and now_ms - self._opened_ms < self._patience_ms:
            return
        if self._opened_ms >= 0:
            self._elsewhere()
        self._opened_ms = now_ms
        self._nonce = self._world.next_unique() * 16 + self.index
        timeout = msgspec.msgpack.encode(self._plan.session_timeout_ms)
        self._submit([t.Command(0, self._nonce, 0, timeout, t.OPEN, self.principal)])

    def _make(self, now_ms: float) -> t.Command | None:
        """The next command; None if it is a question that goes without order."""
        operation = self._world.next_unique()
        call = self._caller.next(self._draw, operation)
        if self._poison > 0:
            self._poison -= 1
            call = Call("", POISON, None, False)
        self._left -= 1
        if call.question and self._draw.random() < 0.7:
            payload = wrap(operation, call.payload)
            command = t.Command(self.session, 0, 0, payload, t.QUERY, self.principal)
            self._asked[operation] = Sent(command, call, operation, now_ms, now_ms)
            self._say([], [client_wire.Read(operation, payload)])
            return None
        return self._number_next(call, operation, now_ms, now_ms)

    def _number_next(self, call: Call, operation: int, invoked_ms: float, now_ms: float) -> t.Command:
        kind = t.QUERY if call.question else t.EXECUTE
        acknowledged = min(self.in_flight, default=self._number)
        payload = wrap(operation, call.payload)
        command = t.Command(self.session, self._number, acknowledged, payload, kind, self.principal)
        self.in_flight[self._number] = Sent(command, call, operation, invoked_ms, now_ms)
        self._number += 1
        return command

    def _order_late_questions(self, now_ms: float) -> None:
        for ticket, sent in list(self._asked.items()):
            end = min(self.in_flight, default=self._number) + self._plan.limits.session_pipeline_max
            if now_ms - sent.sent_ms >= self._patience_ms and self._number < end:
                del self._asked[ticket]
                self._world.count_fault("read_ordered")
                self._submit([self._number_next(sent.call, sent.operation, sent.invoked_ms, now_ms)])

    def _resend(self, now_ms: float) -> None:
        late = any(now_ms - sent.sent_ms >= self._patience_ms for sent in self.in_flight.values())
        if not self.in_flight or not (late or now_ms >= self._again_at_ms):
            return
        if late:
            self._elsewhere()
        self._again_at_ms = math.inf
        acknowledged = min(self.in_flight)
        for sent in self.in_flight.values():
            sent.sent_ms = now_ms
            sent.command = msgspec.structs.replace(sent.command, acknowledged=acknowledged)
        self._submit([sent.command for sent in self.in_flight.values()])

    def _elsewhere(self) -> None:
        self._patience_ms = min(2 * self._patience_ms, 2_000)
        self.site = (self.site + 1) % self._world.graph.sites
        self._world.count_fault("client_retry")

    def _submit(self, commands: list[t.Command]) -> None:
        if commands:
            self._say(commands, [])

    def _say(self, commands: list[t.Command], reads: list[client_wire.Read]) -> None:
        self._world.say(self.site, self.connection, self.principal, commands, reads)

    # What it hears

    def receive(self, reply: client_wire.ClientReply) -> None:
        for result in reply.results:
            self._receive(result, self._world.now_ms)
        self._hear(reply.answers)

    def _receive(self, result: t.Result, now_ms: float) -> None:
        if result.session == 0:
            if result.number == self._nonce and self.session == 0 and result.status == t.OK:
                self.session = msgspec.msgpack.decode(result.payload)[0]
            return
        if result.session != self.session or result.number not in self.in_flight:
            return
        if result.status == t.EXPIRED:
            # An earlier copy may have executed before the session ended: unknown, like everything in flight.
            self._abandon()
            return
        if result.status in (t.UNACKNOWLEDGED, t.OVERLOADED):
            # The replicas keep too much, or there is no room for it now. It stays in flight, and is sent again with
            # what else is: soon, because that says which results have come.
            self._world.count_fault("unacknowledged" if result.status == t.UNACKNOWLEDGED else "overloaded")
            if self._again_at_ms == math.inf:
                self._again_at_ms = now_ms + self._again_ms
                self._again_ms = min(2 * self._again_ms, self.AGAIN_MS_MAX)
            return
        if result.status == t.WAITING:
            self.in_flight[result.number].sent_ms = now_ms
            return
        if result.status == t.HALTED:
            # Another site may execute it: when its patience is over, it asks there.
            return
        self._patience_ms = self._plan.client_timeout_ms
        self._again_ms = self.AGAIN_MS
        sent = self.in_flight.pop(result.number)
        self.answered += 1
        self._world.monitor.answered(self, sent.operation, result)
        if result.status == t.SKIPPED:
            # It has no place in the history: nobody has executed it, and nobody will.
            self._world.monitor.skipped(sent.operation)
        elif sent.call.model != POISON:
            self._take_answer(sent, result.status, result.payload)

    def _hear(self, answers: list[tuple[int, int, bytes]]) -> None:
        """Answers to questions that were not ordered. If there was no room for one, or nobody to answer it, it will
        be."""
        for operation, status, payload in answers:
            if operation not in self._asked or status in (t.OVERLOADED, t.HALTED):
                continue
            self.answered += 1
            self._world.reads += 1
            self._take_answer(self._asked.pop(operation), status, payload)

    def _take_answer(self, sent: Sent, status: int, payload: bytes) -> None:
        subject = self._world.subject
        if status not in subject.statuses:
            self._world.monitor.violation("results", f"{sent.call.model} was answered {status} {payload!r}")
        self._caller.heard(sent.call, status, payload)
        self._record(sent, self._world.now_ms, subject.result(status, payload))

    def _record(self, sent: Sent, returned_ms: float | None, result: Any) -> None:
        if sent.call.model == POISON:
            return
        invoked = round(sent.invoked_ms * 1000)
        returned = None if returned_ms is None else round(returned_ms * 1000)
        self.history.append(Operation(self.index, invoked, returned, sent.call.key, sent.call.model, result))

    def finish(self) -> None:
        """The run is over: what is in flight stays unknown."""
        self._abandon()
