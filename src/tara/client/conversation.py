"""A client's conversation with the front ends, without I/O: what it says to which of them, and what becomes of answers.

Its owner has one connection at a time. In a turn it calls `turn`, changes the connection if that says so, sends what
`messages` gives, waits for at most `wait_s`, and lets it `hear` what has come.
"""

from collections.abc import Callable

from tara.client.errors import ClientError, ServiceHalted
from tara.client.reads import Reads, ReadSubmission
from tara.client.session import Session, Submission
from tara.host import client_wire
from tara.protocol import tuples as t


class Conversation:
    def __init__(
        self,
        endpoints: list[str],
        first: int,
        session: Session,
        secret: bytes,
        on_event: Callable[[int, bytes], object] = lambda counter, payload: None,
    ) -> None:
        self.endpoints = endpoints
        self._current = first % len(endpoints)
        self.session = session
        self._reads = Reads()
        self._secret = secret
        self._on_event = on_event
        #: Reads that had to be ordered, because they were not answered in time.
        self.ordered = 0
        #: Front ends that have said, since something last executed, that their replica executes nothing.
        self._halted_at: set[str] = set()

    @property
    def here(self) -> str:
        """The front end that it talks to."""
        return self.endpoints[self._current]

    def submit(self, call: Submission) -> None:
        self.session.submit(call)

    def read(self, read: ReadSubmission) -> None:
        self._reads.submit(read)

    def fail(self, reason: ClientError) -> None:
        """It ends: no answer will come any more."""
        self.session.fail(reason)
        self._reads.fail(reason)

    def turn(self, now_s: float, broken: bool) -> bool:
        """Whether the owner has to connect to another front end, which is `here` then; `broken`: the connection is."""
        for late in self._reads.late(now_s):
            self.ordered += 1
            expected = int(self._reads.usual_bytes)
            self.session.submit(Submission(late.payload, t.QUERY, late.deadline_s, late.done, expected))
        self.session.check(now_s)
        if self._reads.move_on and not self.session.move_on:
            self.session.give_up()
        if not broken and not self.session.move_on:
            return False
        # What is on its way here is lost: the answers to it, too.
        self.session.move_on = self._reads.move_on = False
        self._current = (self._current + 1) % len(self.endpoints)
        self.session.take_back()
        self._reads.send_again()
        return True

    def messages(self, now_s: float) -> list[bytes]:
        """What is to be sent now."""
        commands = self.session.due(now_s)
        self._reads.long_may_go = self.session.id != 0
        reads = self._reads.due(now_s)
        return client_wire.encode_request(commands, reads, self._secret) if commands or reads else []

    def farewell(self) -> list[bytes]:
        """What is to be sent last, by an owner who says that it goes. It may get lost: nobody waits for an answer."""
        commands = self.session.farewell()
        return client_wire.encode_request(commands, [], self._secret) if commands else []

    def wait_s(self, now_s: float) -> float:
        """How long nothing needs to be done."""
        return min(self.session.wait_s(now_s), self._reads.wait_s(now_s))

    def hear(self, reply: client_wire.ClientReply, now_s: float) -> None:
        for event in reply.events:
            self._on_event(event.counter, event.payload)
        for result in reply.results:
            self.session.hear(result, now_s)
        if reply.endpoints:
            self._learn(reply.endpoints)
        if reply.command_bytes_max:
            self.session.bytes_max = self._reads.bytes_max = reply.command_bytes_max
        for id_, status, payload in reply.answers:
            self._reads.hear(id_, status, payload, now_s)
        if any(result.status == t.OK for result in reply.results):
            self._halted_at.clear()
        said = self.session.halted or self._reads.halted
        if said is not None:
            self.session.halted = self._reads.halted = None
            self._leave_halted(said)

    def _leave_halted(self, said: str) -> None:
        """The replica here executes nothing: try the next front end, or tell who waits that there is none."""
        self._halted_at.add(self.here)
        if self._halted_at.issuperset(self.endpoints):
            reason = ServiceHalted(f"no replica executes: {said}")
            self.session.stop(reason)
            self._reads.fail(reason)
            self._halted_at.clear()
        else:
            self.session.move_on = True

    def _learn(self, endpoints: list[str]) -> None:
        """The service has moved, or has front ends that we were not told of."""
        here = self.here
        self.endpoints = endpoints if here in endpoints else [here, *endpoints]
        self._current = self.endpoints.index(here)
