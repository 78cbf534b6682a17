"""A story: everybody who knew of a stand-by proposer's new life forgets it.

One container per node:

1. A proposer that is not active restarts, and announces the new incarnation until f+1 view sources know it.
2. All view sources restart. They learn the view from the committers, but those tell only the incarnations under which
   it was entered.

Records that do not name the proposer's number do not make it active (rule R1). So it has to announce itself once more,
or it will never take over.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.proposer import Proposer
from tara.simulator.stories.story import Condition, Story

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World


#: Longer than anything is on its way.
_DOWN_MS = 200


class ForgottenStandby(Story):
    kind = "forgotten_standby"

    @classmethod
    def can_happen(cls, world: "World") -> bool:
        return world.journals and world.plan.packing == "node"

    def choose(self, choice: int) -> None:
        f = self.graph.f
        self._standby = (self.first_view + 1 + choice % f) % (f + 1)

    def delays(self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, number: int) -> bool:
        return False

    def tell(self) -> Iterator[Condition]:
        standby = self._host(Stage.PROPOSER, self._standby)
        self.world.crash(standby)
        self.world.boot(standby)
        yield self._is_known
        sources = [self._host(Stage.VIEW_SOURCE, replica) for replica in range(self.graph.sites)]
        for source in sources:
            self.world.crash(source)
        down_ms = self.world.now_ms
        # What they have told each other must not reach their next lives.
        yield lambda: self.world.now_ms > down_ms + _DOWN_MS
        for source in sources:
            if not source.alive:
                self.world.boot(source)

    def _is_known(self) -> bool:
        """Whether the stand-by has no reason to announce itself."""
        number = self.number(Stage.PROPOSER, self._standby)
        node = self.world.host_of(number).nodes.get(number)
        return isinstance(node, Proposer) and node.is_known

    def _host(self, stage: Stage, replica: int) -> "SimulatedContainer":
        return self.world.host_of(self.number(stage, replica))
