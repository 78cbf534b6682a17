"""A story: results of the reads of a front end's former life arrive when its next one has sent others.

One container per node:

1. The front end of a site restarts. It asks again from the first ticket on, and the answers are delayed.
2. It restarts once more, and asks again from the first ticket on.
3. The answers to the life before arrive. The executor, in another process, has not restarted.

A result counts only if it is of a read of this life; or a client would get the result of another's read.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.simulator.client import Client
from tara.simulator.stories.story import Condition, Story

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World


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
        front_end = self.world.host_of(self._sink)
        for _ in range(2):
            self.world.crash(front_end)
            self.world.boot(front_end)
            yield self._has_asked
        self._holds = False

    def _has_asked(self) -> bool:
        host = self.world.host_of(self._sink).host
        return host is not None and host.reads_sent > 0
