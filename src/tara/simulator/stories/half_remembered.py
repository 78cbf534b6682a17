"""A story: a container's journal rolls while one of its committers is restored and another one is not.

Two partitions or more, journals, and the committers of a site in one container, the *victim*:

1. No checkpoint can be saved. The victim votes for slots beyond the next checkpoint.
2. The victim loses its journal. In one partition it does not hear of the view that would bring it back; in another one
   it gets a new incarnation.
3. Checkpoints can be saved again. The threshold rises, and the victim's journal begins a new segment.
4. The victim starts again, and finds a journal. In the first partition it must not take that for its own: it has voted
   for slots that may be decided, and has forgotten them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.simulator.stories.story import Condition, Story

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World

#: Long enough for everything that comes.
_NO_CHECKPOINTS_MS = 10_000


class HalfRemembered(Story):
    kind = "half_remembered"

    @classmethod
    def can_happen(cls, world: "World") -> bool:
        return world.graph.partitions > 1 and world.journals and world.plan.packing == "site"

    def choose(self, choice: int) -> None:
        self._home = choice % self.graph.sites
        self._victim = self.committer_at(self._home)
        self._container = self.world.host_of(self.number(Stage.COMMITTER, self._victim))
        self._usual_bytes = self._container.segment_bytes
        #: Whether it has lost its journal.
        self._lost = False

    def delays(self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, number: int) -> bool:
        orders = isinstance(tuple_, t.Start | t.Proposal)
        return self._lost and orders and number == self.number(Stage.COMMITTER, self._victim)

    def tell(self) -> Iterator[Condition]:
        self.world.stores.trouble("store_failing", self.world.now_ms + _NO_CHECKPOINTS_MS)
        yield self._has_voted_beyond_the_next_checkpoint
        self._lost = self.forget(self._victim) > 0
        yield self._remembers_elsewhere
        #: Any size is a legal one.
        self._set_segment_bytes(0)
        segments = self._segment()
        self.world.stores.trouble("store_failing", 0)
        yield lambda: self._segment() > segments
        self.world.crash(self._container)
        self.world.boot(self._container)

    def end(self) -> None:
        self._set_segment_bytes(self._usual_bytes)
        self.world.stores.trouble("store_failing", 0)
        super().end()

    def _set_segment_bytes(self, size: int) -> None:
        self._container.segment_bytes = size
        if self._container.storage is not None and self._container.storage.journal is not None:
            self._container.storage.journal.segment_bytes = size

    def _segment(self) -> int:
        """The number of the last segment of its journal."""
        storage = self._container.storage
        return 0 if storage is None or storage.journal is None else storage.journal.segment

    def _has_voted_beyond_the_next_checkpoint(self) -> bool:
        node = self._committer(self.partition)
        return (
            node is not None
            and node.acceptor.commits.pos > node.acceptor.commits.min + self.world.plan.limits.checkpoint_slots
        )

    def _remembers_elsewhere(self) -> bool:
        here = self._committer(self.partition)
        there = [self._committer(other) for other in range(self.graph.partitions) if other != self.partition]
        return (
            here is not None
            and here.acceptor.recovering
            and any(node and not node.acceptor.recovering for node in there)
        )

    def _committer(self, partition: int) -> Committer | None:
        """Of the victim's site."""
        for number, node in self._container.nodes.items():
            if self.graph.names[number].partition == partition and isinstance(node, Committer):
                return node
        return None
