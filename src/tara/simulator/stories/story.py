"""Faults of several steps. The network delays some tuples, one committer loses its journal: nothing happens that could
not happen by itself, but chance alone does not bring it about in any number of runs that one could wait for."""

import abc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import Controller

if TYPE_CHECKING:
    from tara.simulator.container import Parcel, SimulatedContainer
    from tara.simulator.world import World

#: How often a story looks whether a step is done, and how long it waits for all of them.
_LOOK_MS = 2
_PATIENCE_MS = 3_000
#: What becomes of it shows within this time; then the delayed tuples arrive.
_AFTERMATH_MS = 150

Condition = Callable[[], bool]


class Story(abc.ABC):
    """One partition, and the view that it is in when the story begins."""

    #: The kind of the fault; counted when it has come to its point.
    kind: str

    def __init__(self, world: "World", partition: int, view: int) -> None:
        self.world, self.graph, self.partition, self.first_view = world, world.graph, partition, view
        #: What is delayed, in the order in which it was sent.
        self._delayed: list[tuple[SimulatedContainer, Parcel]] = []
        self._deadline_ms = world.now_ms + _PATIENCE_MS
        self._steps = self._tell()
        self._awaited: Condition = lambda: True

    @classmethod
    def can_happen(cls, world: "World") -> bool:
        """Whether this world has what it takes."""
        return True

    @abc.abstractmethod
    def choose(self, choice: int) -> None:
        """Cast the parts."""

    @abc.abstractmethod
    def tell(self) -> Iterator[Condition]:
        """Does one step after the other, and yields what to wait for in between."""

    @abc.abstractmethod
    def delays(self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, number: int) -> bool:
        """Whether a tuple for the node of this number has to wait."""

    def _tell(self) -> Iterator[Condition]:
        yield from self.tell()
        self.world.count_fault(self.kind)
        after_ms = self.world.now_ms + _AFTERMATH_MS
        yield lambda: self.world.now_ms >= after_ms

    def take(self, sender: "SimulatedContainer", peer: "SimulatedContainer", parcel: "Parcel") -> bool:
        """Whether a parcel on its way is delayed; it is kept here then."""
        if not self.delays(sender, peer, *parcel):
            return False
        self._delayed.append((peer, parcel))
        return True

    def go_on(self) -> None:
        """Take the steps whose time has come."""
        if self not in self.world.stories:
            return
        while self._awaited():
            awaited = next(self._steps, None)
            if awaited is None:
                self.end()
                return
            self._awaited = awaited
        if self.world.now_ms > self._deadline_ms:
            self.end()
            return
        self.world.after(_LOOK_MS, self.go_on)

    def end(self) -> None:
        self.world.stories.remove(self)
        self.release()

    def release(self) -> None:
        """Everything that was delayed arrives."""
        delayed, self._delayed = self._delayed, []
        for peer, parcel in delayed:
            self.world.deliver(peer, [parcel])

    def suspect(self, sites: set[int]) -> None:
        """The controllers of these sites take the active proposer for dead."""
        for controller in self.controllers(sites):
            controller.suspect()

    def forget(self, replica: int) -> int:
        """The committer loses its journal and starts again; its new incarnation. 0 if that may not be now."""
        number = self.number(Stage.COMMITTER, replica)
        container = self.world.host_of(number)
        if not container.alive or not self.world.may_fail([container]):
            return 0
        self.world.crash(container)
        self.world.wipe(container, checkpoints=False)
        self.world.boot(container)
        committer = container.nodes.get(number)
        # Its disk may not let it start.
        return committer.acceptor.incarnation if isinstance(committer, Committer) else 0

    def let_through(self, chosen: Callable[[t.Tuple], bool], stage: Stage, sites: set[int]) -> bool:
        """Give the first delayed tuple of a kind to the nodes of a stage on these sites (a record: all parts of it);
        false if there is none."""
        found = next((tuple_ for tuple_ in self.delayed() if chosen(tuple_)), None)
        if found is None:
            return False
        parts = [found]
        if isinstance(found, t.Record):
            parts = [part for part in self.delayed() if chosen(part) and _of_one_record(found, part)]
        for number, name in enumerate(self.graph.names):
            mine = name.stage is stage and name.partition == self.partition
            if mine and self.graph.site(name) in sites:
                self.world.deliver(self.world.host_of(number), [(part, number) for part in parts])
        return True

    def lose_delayed(self, chosen: Callable[[t.Tuple], bool]) -> None:
        """Delayed tuples that never arrive."""
        self._delayed = [(peer, parcel) for peer, parcel in self._delayed if not chosen(parcel[0])]

    def delayed(self) -> list[t.Tuple]:
        return [tuple_ for _, (tuple_, _) in self._delayed]

    def is_view(self, tuple_: t.Tuple, view: int) -> bool:
        return isinstance(tuple_, t.View) and (tuple_.view, tuple_.partition) == (view, self.partition)

    def is_record(self, tuple_: t.Tuple, view: int) -> bool:
        return isinstance(tuple_, t.Record) and (tuple_.view, tuple_.partition) == (view, self.partition)

    def in_view(self, sites: set[int], view: int) -> bool:
        """Whether all controllers of these sites know the view."""
        return all(controller._views.current >= view for controller in self.controllers(sites))

    def controllers(self, sites: set[int]) -> list[Controller]:
        return [
            node
            for name, node in self.world.nodes_of(Stage.CONTROLLER)
            if isinstance(node, Controller) and name.partition == self.partition and self.graph.site(name) in sites
        ]

    def committers(self, sites: set[int]) -> list[Committer]:
        """Those that are alive and not recovering."""
        return [
            node
            for node in full_committers(self.world, self.partition)
            if self.site(Stage.COMMITTER, node.index) in sites
        ]

    def number(self, stage: Stage, replica: int) -> int:
        return self.graph.number(stage, replica, self.partition)

    def site(self, stage: Stage, replica: int) -> int:
        return self.graph.site(self.graph.names[self.number(stage, replica)])

    def proposer_site(self, view: int) -> int:
        return self.site(Stage.PROPOSER, view % (self.graph.f + 1))

    def committer_at(self, site: int) -> int:
        return next(replica for replica in range(self.graph.sites) if self.site(Stage.COMMITTER, replica) == site)


def _of_one_record(first: t.Record, other: t.Tuple) -> bool:
    return isinstance(other, t.Record) and (other.committer, other.end) == (first.committer, first.end)


def full_committers(world: "World", partition: int) -> list[Committer]:
    return [
        node
        for _, node in world.nodes_of(Stage.COMMITTER)
        if isinstance(node, Committer) and node.partition == partition and not node.acceptor.recovering
    ]


def begin(kind: type[Story], world: "World", partition: int, choice: int) -> None:
    """Begin, if there are replicas and the partition is in good order."""
    if world.graph.f == 0 or not kind.can_happen(world) or world.stories or world.zombies or world.rejoins_due:
        return
    if any(not container.alive for container in world.containers):
        return
    committers = full_committers(world, partition)
    if len({node.acceptor.view for node in committers}) != 1 or not all(node.acceptor.started for node in committers):
        return
    story = kind(world, partition, committers[0].acceptor.view)
    story.choose(choice)
    world.stories.append(story)
    story.go_on()
