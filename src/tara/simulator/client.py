"""A simulated client: the conversation that real clients have with front ends (`tara.client.conversation`), a load for
it, and the history that the linearizability check reads."""

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tara.client.conversation import Conversation
from tara.client.errors import ClientError, CommandFailed, CommandTooLarge, NotReachable, Overloaded, TimedOut
from tara.client.reads import ReadSubmission
from tara.client.session import Session, Submission
from tara.host import client_wire
from tara.protocol import tuples as t
from tara.simulator.checks.linearizability import Operation
from tara.simulator.workload import POISON, Call, wrap

if TYPE_CHECKING:
    from tara.simulator.world import World


NONCES = 1 << 40
#: Clocks of clients are not exact.
_SLEEP_S = 1e-6
#: How often a call is drawn until it is a read.
_TRIES = 50


class Sent(msgspec.Struct, eq=False):
    """A command, or a read, that is not answered."""

    call: Call
    operation: int
    invoked_ms: float
    #: It may change something.
    ordered: bool = False
    #: Any state will do for its answer.
    stale: bool = False


class Client:
    #: Of its session, if that outlives its processes.
    name = ""

    def __init__(self, index: int, world: "World") -> None:
        self.index = index
        self._world = world
        self._plan = world.plan
        self._draw = world.draw
        self._caller = world.subject.caller()
        self.principal = world.subject.principal(index)
        #: How front ends call its connection; another one in each life.
        self.connection = b"%d" % index
        self._open: dict[int, Sent] = {}
        #: Operations that were skipped.
        self._skipped: set[int] = set()
        #: Since when it has been trying to get a session.
        self._homeless_since_ms = 0.0
        self._left = self._plan.commands_per_client
        self._next_ms = 100.0 + index * 7
        self._paused_until_ms = 0.0
        self._burst = 0
        self._poison = 0
        #: It need not be woken before, unless it hears something.
        self._sleeps_until_s = 0.0
        #: Its connection has broken, and it has not acted on that.
        self._broken = False
        self.history: list[Operation] = []
        self.answered = 0
        self._conversation = self._begin(index)

    def _begin(self, site: int) -> Conversation:
        session = Session(self._plan.session_timeout_ms, self._nonce, self.name)
        sites = [str(number) for number in range(self._world.graph.sites)]
        # It may know of one front end only; that one tells it of the others, if it is there.
        knows_all = self._plan.lost_site is not None or self._draw.random() < 0.7
        known = sites if knows_all else [sites[site % len(sites)]]
        return Conversation(known, site, session, self.principal, self._on_event)

    def _nonce(self) -> int:
        # Unlike any number of a command; those of real clients are random.
        return NONCES + self._world.next_unique() * 16 + self.index

    def _on_event(self, counter: int, payload: bytes) -> None:
        self._world.monitor.event(self.index, counter, payload)

    @property
    def site(self) -> int:
        """Where the front end is that it talks to."""
        return int(self._conversation.here)

    @property
    def session(self) -> int:
        """0: it has none."""
        return self._conversation.session.id

    @property
    def done(self) -> bool:
        return self._left <= 0 and not self._open

    @property
    def in_flight(self) -> list[int]:
        """Operations that are not answered."""
        return list(self._open)

    @property
    def waiting_since_ms(self) -> float:
        """When it asked for what it is waiting for."""
        if self.done:
            return math.inf
        if self.session == 0:
            return self._homeless_since_ms
        return min((sent.invoked_ms for sent in self._open.values()), default=math.inf)

    @property
    def next_number(self) -> int:
        """Of the command that it will send next."""
        return self._conversation.session._number

    def restart(self, orderly: bool = False) -> None:
        """The client's process died, or has ended in an orderly way: what is in flight has an unknown outcome; its next
        life has a new session."""
        site = self.site
        if orderly and (farewell := self._conversation.farewell()):
            self._world.count_fault("farewell")
            self._world.client_links.send(site, self.connection, self.principal, farewell)
        self._abandon()
        self._world.client_links.close(site, self.connection)
        self.connection += b"'"
        self._caller = self._world.subject.caller()
        self._conversation = self._begin(site)
        self._sleeps_until_s = 0.0

    def notice_break(self) -> None:
        self._broken = True
        self._sleeps_until_s = 0.0

    def pause(self, until_ms: float) -> None:
        self._paused_until_ms = until_ms

    def burst(self) -> None:
        self._burst = self._plan.limits.session_pipeline_max

    def poison(self) -> None:
        self._poison += 1

    def go_on(self, commands: int) -> None:
        """It has more to say."""
        self._left = commands

    def _abandon(self) -> None:
        """What it has asked for stays unknown."""
        for sent in self._open.values():
            if sent.ordered:
                self._record(sent, None, None)
        self._open.clear()
        self._homeless_since_ms = self._world.now_ms

    def wake(self, now_ms: float) -> None:
        """Also when it has nothing more to say: it is there, and keeps its session, but not the replicas' results."""
        if now_ms < self._paused_until_ms or (self.done and not self.session):
            return
        now_s, talk, world = now_ms / 1e3, self._conversation, self._world
        ordered, site = talk.ordered, self.site
        broken, self._broken = self._broken, False
        turned = talk.turn(now_s, broken)
        self._check_sleep(now_s, turned)
        if turned:
            world.count_fault("client_retry")
            # A new connection, wherever to.
            world.client_links.close(site, self.connection)
            self.connection += b"."
        world.faults["read_ordered"] += talk.ordered - ordered
        if self.session:
            self._load(now_ms)
        world.client_links.send(self.site, self.connection, self.principal, talk.messages(now_s))
        self._sleeps_until_s = now_s + talk.wait_s(now_s)

    def _check_sleep(self, now_s: float, turned: bool) -> None:
        """A real client sleeps until it hears something or the time is up that it was told: it must not miss a turn."""
        self._world.monitor.require(
            not turned or now_s >= self._sleeps_until_s - _SLEEP_S,
            "sleeps",
            "client {} would sleep until {}, and has something to do at {}",
            self.index,
            self._sleeps_until_s,
            now_s,
        )

    def _load(self, now_ms: float) -> None:
        # How many results the replicas keep for it, it does not know.
        room = max(self._plan.pipeline, self._burst) - len(self._open)
        if self._left <= 0 or room <= 0 or self._is_idle(now_ms) or (now_ms < self._next_ms and not self._burst):
            return
        for _ in range(min(self._left, room) if self._burst else 1):
            self._say_next(now_ms)
        self._burst = 0
        self._next_ms = now_ms + self._draw.expovariate(1 / self._plan.think_ms)

    def _is_idle(self, now_ms: float) -> bool:
        """While only the first partition is used, those whose sessions are in others have nothing to say."""
        return now_ms < self._world.idle_until_ms and self.session % self._world.graph.partitions != 0

    def ask(self) -> None:
        """Read something, whatever it would have done."""
        if self.done or not self.session:
            return
        operation = self._world.next_unique()
        call = next((call for _ in range(_TRIES) if (call := self._caller.next(self._draw, operation)).is_read), None)
        if call is not None:
            sent = self._open[operation] = Sent(call, operation, self._world.now_ms)
            done = partial(self._take_outcome, sent)
            self._conversation.read(ReadSubmission(wrap(operation, call.payload), False, math.inf, done))
            self._sleeps_until_s = 0.0

    def _say_next(self, now_ms: float) -> None:
        operation = self._world.next_unique()
        call = self._caller.next(self._draw, operation)
        if self._poison > 0:
            self._poison -= 1
            # What the application raises at; or what is too deep for it.
            call = Call("", POISON, self._draw.choice((None, b"\x91" * 3_000)), False)
        self._left -= 1
        sent = self._open[operation] = Sent(call, operation, now_ms)
        payload, done = wrap(operation, call.payload), partial(self._take_outcome, sent)
        # Now and then somebody does not wait for long.
        deadline_s = math.inf if self._draw.random() < 0.97 else (now_ms + self._draw.randrange(5, 3_000)) / 1e3
        if call.is_read and self._draw.random() < 0.7:
            sent.stale = self._draw.random() < 0.15
            self._conversation.read(ReadSubmission(payload, sent.stale, deadline_s, done))
            return
        sent.ordered = True
        if len(payload) > self._plan.limits.command_bytes_max:
            self._world.count_fault("too_large")
        kind = t.QUERY if call.is_read else t.EXECUTE
        self._conversation.submit(Submission(payload, kind, deadline_s, done))

    def hears(self, connection: bytes, site: int) -> bool:
        """Whether what a site says on this connection reaches it."""
        return connection == self.connection and site == self.site

    def receive(self, reply: client_wire.ClientReply, connection: bytes) -> None:
        session, world = self._conversation.session, self._world
        for result in reply.results:
            if result.status in (t.UNACKNOWLEDGED, t.OVERLOADED):
                world.count_fault("unacknowledged" if result.status == t.UNACKNOWLEDGED else "overloaded")
            elif result.session and result.session == session.id and result.number in session._in_flight:
                if result.status in (t.OK, t.FAILED, t.SKIPPED) and result.counter:
                    world.monitor.answered(self, result)
                done = session._in_flight[result.number].done
                if result.status == t.SKIPPED and isinstance(done, partial):
                    self._skipped.add(done.args[0].operation)
        if self._plan.limit_unheard and reply.command_bytes_max:
            world.count_fault("limit_unheard")
            reply = msgspec.structs.replace(reply, command_bytes_max=0)
        self._conversation.hear(reply, world.now_ms / 1e3)
        self._sleeps_until_s = 0.0

    def _take_outcome(self, sent: Sent, outcome: bytes | ClientError) -> None:
        if self._open.pop(sent.operation, None) is None:
            return
        if sent.operation in self._skipped:
            # It has no place in the history: nobody has executed it, and nobody will.
            self.answered += 1
            self._world.monitor.skipped(sent.operation)
            return
        if isinstance(outcome, CommandTooLarge):
            # Nobody has executed it, and nobody will.
            self.answered += 1
            return
        if isinstance(outcome, ClientError) and not isinstance(outcome, CommandFailed):
            # Its session is over, its time is up, or no site executes anything: it may have been executed, or will be.
            if not self.session:
                self._homeless_since_ms = self._world.now_ms
            if isinstance(outcome, TimedOut | Overloaded | NotReachable):
                self._world.count_fault("client_timeout")
            if not sent.stale:
                self._record(sent, None, None)
            return
        self.answered += 1
        self._world.reads += not sent.ordered
        if sent.call.model == POISON:
            return
        if sent.call.is_read and isinstance(outcome, bytes):
            self._world.monitor.read_answered(self, sent.operation, outcome)
        if sent.stale:
            self._world.count_fault("stale_read")
            self._world.subject.check_stale(sent.call, outcome)
            return
        subject = self._world.subject
        status, payload = (t.OK, outcome) if isinstance(outcome, bytes) else (t.FAILED, str(outcome).encode())
        if status not in subject.statuses:
            self._world.monitor.violation("results", f"{sent.call.model} was answered {payload!r}")
        self._caller.heard(sent.call, status, payload)
        try:
            result = subject.result(status, payload)
        except msgspec.DecodeError:
            self._world.monitor.violation("results", f"{sent.call.model} was answered {payload!r}")
        self._record(sent, self._world.now_ms, result)

    def _record(self, sent: Sent, returned_ms: float | None, result: Any) -> None:
        if sent.call.model == POISON:
            return
        invoked = round(sent.invoked_ms * 1000)
        returned = None if returned_ms is None else round(returned_ms * 1000)
        self.history.append(
            Operation(self.index, invoked, returned, sent.call.key, sent.call.model, result, sent.operation)
        )

    def finish(self) -> None:
        """The run is over: what is in flight stays unknown."""
        self._abandon()
