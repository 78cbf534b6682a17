"""A simulated client that writes batches, each exactly once, although its process may die in any of them and begin the
same batch again: a session with a name, and a claim for each batch (`tara.streaming.sink` does it like this)."""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tara.application import Put
from tara.client.conversation import Conversation
from tara.client.errors import ClientError, CommandFailed
from tara.client.session import Submission
from tara.host import client_wire
from tara.protocol import tuples as t
from tara.simulator.client import Client, Sent
from tara.simulator.system_under_test import KeyValueSubject
from tara.simulator.workload import Call, wrap

if TYPE_CHECKING:
    from tara.simulator.world import World

BATCH_MAX = 6
FORMER_MS = 1_500.0
RIVAL_SHARE = 0.15
#: What a batch has: the operation, the key and the value of each write.
Items = list[tuple[int, str, bytes]]


class BatchWriter(Client):
    def __init__(self, index: int, world: "World") -> None:
        self.name = f"batches-{index}"
        #: The batch that it is at; and what it said first of each write, whichever process that was.
        self._batch = 1
        self._said: dict[int, Sent] = {}
        self._done: set[int] = set()
        self._batch_size = 0
        #: Processes that were given up and are not gone: their connections, what they say, and until when.
        self._former: list[tuple[bytes, Conversation, float]] = []
        super().__init__(index, world)

    def restart(self, orderly: bool = False) -> None:
        """Its next process begins the batch again; the former one may be on its way still, and goes on for a while."""
        if self._draw.random() < 0.5:
            self._former.append((self.connection, self._conversation, self._world.now_ms + FORMER_MS))
        super().restart(orderly)

    def wake(self, now_ms: float) -> None:
        super().wake(now_ms)
        self._former = [former for former in self._former if now_ms < former[2]]
        for connection, talk, _ in self._former:
            talk.turn(now_ms / 1e3, broken=False)
            self._world.client_links.send(int(talk.here), connection, self.principal, talk.messages(now_ms / 1e3))

    def hears(self, connection: bytes, site: int) -> bool:
        return super().hears(connection, site) or any(
            connection == known and site == int(talk.here) for known, talk, _ in self._former
        )

    def receive(self, reply: client_wire.ClientReply, connection: bytes) -> None:
        for known, talk, _ in self._former:
            if connection == known:
                talk.hear(reply, self._world.now_ms / 1e3)
                return
        super().receive(reply, connection)

    def burst(self) -> None:
        """One batch after the other."""

    def ask(self) -> None:
        """It has no questions: one that is ordered would take a number that it has claimed."""

    def _abandon(self) -> None:
        """What it has said is said again, by the next process."""
        self._open.clear()
        self._homeless_since_ms = self._world.now_ms

    def _is_idle(self, now_ms: float) -> bool:
        return bool(self._open) or super()._is_idle(now_ms)

    def _say_next(self, now_ms: float) -> None:
        """Claim the batch, with what it would write."""
        size = self._draw.randrange(1, BATCH_MAX)
        operations = [self._world.next_unique() for _ in range(size)]
        items: Items = [(one, f"key-{self._draw.randrange(3)}", one.to_bytes(4, "big")) for one in operations]
        # Unlike any write: a former process may claim what this one writes already.
        claim = -operations[0]
        sent = self._open[claim] = Sent(Call("", ("claim",), None, False), claim, now_ms, ordered=True)
        payload = t.encode(t.Claim(self._batch, msgspec.msgpack.encode(items)))
        self._conversation.submit(Submission(payload, t.CLAIM, float("inf"), partial(self._on_claimed, sent)))

    def _on_claimed(self, sent: Sent, outcome: bytes | ClientError) -> None:
        if self._open.pop(sent.operation, None) is None or isinstance(outcome, ClientError):
            return
        claim = msgspec.msgpack.decode(outcome, type=t.Claim)
        items = msgspec.msgpack.decode(claim.value, type=Items)
        written, self._batch_size = claim.next - claim.base, len(items)
        self._world.monitor.require(
            claim.key == self._batch and 0 <= written <= len(items), "claims", "{}: {}", self._batch, claim
        )
        for item in items[:written]:
            # Somebody has written it, and did not live to hear of it.
            self._finish(item[0])
        for operation, key, value in items[written:]:
            assert isinstance(self._world.subject, KeyValueSubject)
            self._world.subject.note_written(key, value)
            call = Call(key, ("put", value), msgspec.msgpack.encode(Put(key, value)), False)
            said = self._said.setdefault(operation, Sent(call, operation, self._world.now_ms, ordered=True))
            self._open[operation] = said
            done = partial(self._on_written, said)
            self._conversation.submit(Submission(wrap(operation, call.payload), t.EXECUTE, float("inf"), done))
        self._go_on()
        if not self._world.healed and self._draw.random() < RIVAL_SHARE:
            # Somebody thinks that it is dead, and begins the same batch beside it.
            self._world.after(0, self.restart)

    def _on_written(self, said: Sent, outcome: bytes | ClientError) -> None:
        if self._open.pop(said.operation, None) is None:
            return
        if isinstance(outcome, ClientError) and not isinstance(outcome, CommandFailed):
            return
        if said.operation in self._skipped:
            # It has no place in the history: nobody has executed it, and nobody will.
            self._world.monitor.skipped(said.operation)
        elif said.operation not in self._done:
            self.answered += 1
            self._record(said, self._world.now_ms, self._world.subject.result(t.OK, outcome))  # type: ignore[arg-type]
        self._finish(said.operation, recorded=True)
        self._go_on()

    def _finish(self, operation: int, recorded: bool = False) -> None:
        if operation in self._done:
            return
        self._done.add(operation)
        if not recorded and operation in self._said:
            self._record(self._said[operation], None, None)

    def _go_on(self) -> None:
        """With the next batch, if this one is written."""
        if not self._open and self._batch_size:
            self._left -= self._batch_size
            self._batch_size = 0
            self._batch += 1

    def finish(self) -> None:
        for operation, said in self._said.items():
            if operation not in self._done:
                self._record(said, None, None)
