"""A story: results of the reads of a front end's former life arrive when its next one has sent others.

One container per node:

1. The front end of a site restarts. A stranger reads there, under the first tickets, and the answers are delayed.
2. It restarts once more. Clients read there, again under the first tickets; if none is there, the stranger does.
3. The answers to the life before arrive, and then those to this one. The executor, in another process, has not
   restarted.

A result counts only if it is of a read of this life; or a client would get the result of another's read.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tara.host import client_wire
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.principals import principal_of
from tara.simulator.client import Client
from tara.simulator.stories.story import Condition, Story

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World

_STRANGER = principal_of(b"the secret of a stranger")
#: How many he has, and how often he asks: messages get lost.
_READS = 4
_TIMES = 3
#: How long he leaves the front end's next life to others.
_ALONE_MS = 500


class LateAnswers(Story):
    kind = "late_answers"

    @classmethod
    def can_happen(cls, world: "World") -> bool:
        return world.plan.packing == "node" and world.journals and world.wire is None

    def choose(self, choice: int) -> None:
        # Where somebody is who asks.
        clients = [client for client in self.world.clients if isinstance(client, Client)]
        self._site = clients[choice % len(clients)].site if clients else choice % self.graph.sites
        self._sink = self.graph.number(Stage.REPLY_SINK, self._site)
        self._holds = True

    def delays(self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, number: int) -> bool:
        return self._holds and isinstance(tuple_, t.ReadResults) and number == self._sink

    def tell(self) -> Iterator[Condition]:
        self._restart()
        self._read()
        yield lambda: bool(self.delayed())
        self._restart()
        for client in self.world.clients:
            if isinstance(client, Client) and client.site == self._site:
                client.ask()
        alone_ms = self.world.now_ms + _ALONE_MS
        yield lambda: self._is_answered() or self.world.now_ms >= alone_ms
        if not self._is_answered():
            self._read()
            yield self._is_answered
        self._holds = False
        self.release()

    def _restart(self) -> None:
        """With its machine: clients that noticed would turn to another one, and nobody would ask here."""
        front_end = self.world.host_of(self._sink)
        self.world.crash(front_end, power=True)
        self.world.boot(front_end)

    def _is_answered(self) -> bool:
        """Whether there is an answer for the life that is there now."""
        life = self.world.host_of(self._sink).life
        answers = [tuple_ for tuple_ in self.delayed() if isinstance(tuple_, t.ReadResults)]
        return any(result.life == life for answer in answers for result in answer.results)

    def _read(self) -> None:
        reads = [client_wire.ReadMessage(number, b"\xc1", False) for number in range(_READS)]
        for _ in range(_TIMES):
            self.world.client_links.say(self._site, b"a stranger", _STRANGER, [], reads)
