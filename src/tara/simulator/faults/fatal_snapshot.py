"""A state of which the application cannot give a snapshot: its process ends when it is to give a piece of it, on some
replicas or on all, until what it lacked is there.

Each life comes to another base. After two such ends a replica gives its bases up, and goes on. When what was lacking is
there, an operator has bases taken again, as `tara verify --running` does.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World

_LOOK_MS = 60
#: Before the operator asks again.
_AGAIN_MS = 600


class FatalSnapshot:
    def __init__(self, world: "World", sites: set[int], duration_ms: float) -> None:
        self._world = world
        self._sites = sites
        self._until_ms = world.now_ms + duration_ms
        self._asked_ms = 0.0
        #: What it lacked is there.
        self.cured = False
        world.after(_LOOK_MS, self._look)

    def strikes(self, container: "SimulatedContainer") -> bool:
        return container.site in self._sites and not self.cured and not self._world.healed

    def end(self, container: "SimulatedContainer", place: int) -> Iterator[bytes]:
        """The snapshot, as far as it comes."""
        yield b"the beginning"
        self._world.count_fault("fatal_snapshot")
        container.ended_at = place
        raise MemoryError

    def _look(self) -> None:
        world = self._world
        self.cured = self.cured or world.healed or world.now_ms >= self._until_ms
        if self.cured and world.now_ms - self._asked_ms >= _AGAIN_MS:
            self._asked_ms = world.now_ms
            for name, node in world.nodes_of(Stage.EXECUTOR):
                if isinstance(node, Executor) and node.ready and node.bases.barred:
                    number = world.graph.number(name.stage, name.replica)
                    order = t.TakeBase(node.next // world.plan.limits.checkpoint_interval + 1, by_operator=True)
                    world.count_fault("base_ordered")
                    world.deliver(world.host_of(number), [(order, number)])
        world.after(_LOOK_MS, self._look)
