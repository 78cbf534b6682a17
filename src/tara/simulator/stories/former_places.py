"""A story: executors start again behind the place that their former lives have told of.

One container per node, journals, several partitions:

1. The other partitions get no proposals for a while, so this one gets ahead of them. All controllers hear of it.
2. A new view of this partition starts, but what its proposer proposes does not arrive.
3. The executors restart, from their checkpoints: behind where they were. The committers have nothing for them in the
   new view. Then the proposer dies for good.
4. The other partitions go on, until they wait for this one.

A partition that is ahead is excused, because the others have to move first. What the former lives said of this one
would excuse it for ever.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor
from tara.simulator.stories.story import Condition, Story

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World


class FormerPlaces(Story):
    kind = "former_places"

    @classmethod
    def can_happen(cls, world: "World") -> bool:
        if world.fatal is not None or any(container.lost for container in world.containers):
            return False
        return world.graph.partitions > 1 and world.journals and world.plan.packing == "node"

    def choose(self, choice: int) -> None:
        self._others_wait = True
        self._waits = False

    def delays(self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, number: int) -> bool:
        if not isinstance(tuple_, t.Proposal):
            return False
        mine = self.graph.names[number].partition == self.partition
        return self._waits and tuple_.view > self.first_view if mine else self._others_wait

    def tell(self) -> Iterator[Condition]:
        everywhere = set(range(self.graph.sites))
        yield self._is_ahead
        self._waits = True
        self.suspect(everywhere)
        yield lambda: self._is_started(self.first_view + 1)
        positions = self._positions()
        for replica in range(self.graph.sites):
            executor = self.world.host_of(self.graph.number(Stage.EXECUTOR, replica))
            self.world.crash(executor)
            self.world.boot(executor)
        # The story is told only if they are behind now; where every slot is a checkpoint, they are not.
        yield lambda: len(self._positions()) == len(positions) and max(self._positions()) < min(positions)
        self.world.lose(self._next_proposer())
        self._others_wait = False

    def end(self) -> None:
        """What the proposer had sent is lost, if the proposer is."""
        if self._next_proposer().lost:
            self.lose_delayed(lambda tuple_: isinstance(tuple_, t.Proposal) and tuple_.partition == self.partition)
        super().end()

    def _next_proposer(self) -> "SimulatedContainer":
        return self.world.host_of(self.number(Stage.PROPOSER, (self.first_view + 1) % (self.graph.f + 1)))

    def _is_ahead(self) -> bool:
        controllers = self.controllers(set(range(self.graph.sites)))
        return len(controllers) == self.graph.sites and all(
            place is not None and place.position > place.slowest
            for controller in controllers
            for place in controller._places
        )

    def _is_started(self, view: int) -> bool:
        committers = self.committers(set(range(self.graph.sites)))
        return len(committers) == self.graph.sites and all(
            node.acceptor.started and node.acceptor.view == view for node in committers
        )

    def _positions(self) -> list[int]:
        """How far each executor has learned what this partition decided."""
        executors = [node for _, node in self.world.nodes_of(Stage.EXECUTOR) if isinstance(node, Executor)]
        return [node._learners[self.partition].position for node in executors]
