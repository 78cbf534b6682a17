"""A fault of several steps: a committer forgets that it has left a view, and is offered that view once more.

The network delays some tuples, one committer loses its memory; nothing else happens that could not happen by itself,
but chance alone does not bring it about. With v the next view of a partition:

1. f sites, the *stragglers*, among them that of v's proposer, hear nothing from the other sites. These enter v; their
   records wait on the way to v's proposer.
2. They give v up. The next view starts among them, and they decide something in it: all f+1 of them vote.
3. One of them, the *victim*, loses its memory, and with it the promise not to vote in v any more.
4. The stragglers hear of that loss, and then of v, and of v only. Their records name the victim's new memory; together
   with one of step 1, which does not, they make f+1: v starts.

If the victim took part in v now, f+1 committers could decide in v what contradicts the decision of step 2. So it must
not: the start is not from f+1 others who all knew of its loss.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import Controller

if TYPE_CHECKING:
    from tara.simulator.world import Container, Parcel, World

KIND = "forgotten_promise"
#: How often it looks whether a step is done, and how long it waits for all of them.
_LOOK_MS = 2
_PATIENCE_MS = 3_000
#: What becomes of it shows within this time; then the delayed tuples arrive.
_AFTERMATH_MS = 150
#: Requests are not delayed: proposers must have something to propose.
_NOT_DELAYED = (t.Requests, t.Submit)


def begin(world: "World", partition: int, choice: int) -> bool:
    """Begin, if the partition is in good order; true if so."""
    if world.graph.f == 0 or world.delays or world.zombies or world.rejoins_due:
        return False
    if any(not container.alive for container in world.containers):
        return False
    committers = _committers(world, partition)
    if len({node.view for node in committers}) != 1 or not all(node.started for node in committers):
        return False
    story = ForgottenPromise(world, partition, committers[0].view + 1, choice)
    world.delays.append(story)
    story.go_on()
    return True


def _committers(world: "World", partition: int) -> list[Committer]:
    return [
        node
        for _, node in world.nodes_of(Stage.COMMITTER)
        if isinstance(node, Committer) and node.partition == partition and not node.recovering
    ]


class ForgottenPromise:
    def __init__(self, world: "World", partition: int, view: int, choice: int) -> None:
        self._world, self._graph, self._partition, self._view = world, world.graph, partition, view
        graph = world.graph
        proposers = [self._site(Stage.PROPOSER, replica) for replica in range(graph.f + 1)]
        first, successor = proposers[view % (graph.f + 1)], proposers[(view + 1) % (graph.f + 1)]
        others = [site for site in range(graph.sites) if site not in (first, successor)]
        self._stragglers = {first, *others[: graph.f - 1]}
        rest = [site for site in range(graph.sites) if site not in self._stragglers]
        victim = rest[choice % len(rest)]
        self._victim = next(r for r in range(graph.sites) if self._site(Stage.COMMITTER, r) == victim)
        self._member = graph.member(Stage.COMMITTER, self._victim)
        #: The victim's new memory number; 0 before its loss.
        self._memory = 0
        #: What is delayed, in the order in which it was sent.
        self._delayed: list[tuple[Container, Parcel]] = []
        self._deadline_ms = world.now_ms + _PATIENCE_MS
        self._steps = self._story()
        self._awaited: Callable[[], bool] = lambda: True

    def take(self, sender: "Container", peer: "Container", parcel: "Parcel") -> bool:
        """Whether a parcel on its way is delayed; it is kept here then."""
        tuple_, number = parcel
        to_victim = self._memory > 0 and number == self._number(Stage.COMMITTER, self._victim)
        cut = sender.site not in self._stragglers and peer.site in self._stragglers
        if not (cut or (to_victim and isinstance(tuple_, t.View))) or isinstance(tuple_, _NOT_DELAYED):
            return False
        self._delayed.append((peer, parcel))
        return True

    def go_on(self) -> None:
        """Take the steps whose time has come."""
        if self not in self._world.delays:
            return
        while self._awaited():
            awaited = next(self._steps, None)
            if awaited is None:
                self.end()
                return
            self._awaited = awaited
        if self._world.now_ms > self._deadline_ms:
            self.end()
            return
        self._world.after(_LOOK_MS, self.go_on)

    def end(self) -> None:
        """Everything that was delayed arrives."""
        self._world.delays.remove(self)
        delayed, self._delayed = self._delayed, []
        for peer, parcel in delayed:
            self._world.arrive(peer, [parcel])

    def _story(self) -> Iterator[Callable[[], bool]]:
        """Does one step after the other, and yields what to wait for in between."""
        world = self._world
        self._suspect()
        yield self._others_have_entered
        self._suspect()
        yield self._others_have_decided
        container = world.host_of(self._number(Stage.COMMITTER, self._victim))
        if not world.may_fail([container]):
            yield lambda: False
        world.crash(container)
        world.wipe(container, checkpoints=False)
        world.boot(container)
        victim = container.nodes[self._number(Stage.COMMITTER, self._victim)]
        assert isinstance(victim, Committer)
        self._memory = victim.memory
        yield lambda: self._let_through(self._is_news_of_loss, Stage.VIEW_SOURCE)
        yield self._stragglers_know
        self._let_through(self._is_view, Stage.COMMITTER)
        self._let_through(self._is_record, Stage.PROPOSER)
        world.count_fault(KIND)
        after_ms = world.now_ms + _AFTERMATH_MS
        yield lambda: world.now_ms >= after_ms

    # Steps

    def _suspect(self) -> None:
        for name, node in self._world.nodes_of(Stage.CONTROLLER):
            site = self._graph.site(name)
            if isinstance(node, Controller) and name.partition == self._partition and site not in self._stragglers:
                node.suspect()

    def _let_through(self, chosen: Callable[[t.Tuple], bool], stage: Stage) -> bool:
        """Give the first delayed tuples of a kind to the stragglers' nodes of a stage; false if there are none."""
        found = next((tuple_ for _, (tuple_, _) in self._delayed if chosen(tuple_)), None)
        if found is None:
            return False
        parts = [found]
        if isinstance(found, t.Record):
            parts = [part for _, (part, _) in self._delayed if chosen(part) and self._same_record(found, part)]
        for number, name in enumerate(self._graph.names):
            mine = name.stage is stage and name.partition == self._partition
            if mine and self._graph.site(name) in self._stragglers:
                self._world.arrive(self._world.host_of(number), [(part, number) for part in parts])
        return True

    @staticmethod
    def _same_record(first: t.Record, other: t.Tuple) -> bool:
        return isinstance(other, t.Record) and other.committer == first.committer and other.end == first.end

    # What there is to see

    def _others_have_entered(self) -> bool:
        controllers = [
            node._views.current
            for name, node in self._world.nodes_of(Stage.CONTROLLER)
            if isinstance(node, Controller)
            and name.partition == self._partition
            and self._graph.site(name) not in self._stragglers
        ]
        return min(controllers, default=0) >= self._view and all(node.view >= self._view for node in self._others())

    def _others_have_decided(self) -> bool:
        others = self._others()
        records = [tuple_ for _, (tuple_, _) in self._delayed if self._is_record(tuple_)]
        ends = [record.end for record in records if isinstance(record, t.Record)]
        if len(others) <= self._graph.f or not ends:
            return False
        return all(node.view > self._view and node.started and node.commits.pos > max(ends) for node in others)

    def _stragglers_know(self) -> bool:
        stragglers = [node for node in _committers(self._world, self._partition) if node not in self._others()]
        return all(node._known[self._member] == self._memory for node in stragglers)

    def _others(self) -> list[Committer]:
        return [
            node
            for node in _committers(self._world, self._partition)
            if self._site(Stage.COMMITTER, node.index) not in self._stragglers
        ]

    def _is_news_of_loss(self, tuple_: t.Tuple) -> bool:
        return isinstance(tuple_, t.View) and tuple_.memories[self._member] == self._memory

    def _is_view(self, tuple_: t.Tuple) -> bool:
        return isinstance(tuple_, t.View) and tuple_.view == self._view and tuple_.partition == self._partition

    def _is_record(self, tuple_: t.Tuple) -> bool:
        return (
            isinstance(tuple_, t.Record)
            and (tuple_.view, tuple_.partition) == (self._view, self._partition)
            and tuple_.committer != self._victim
        )

    def _number(self, stage: Stage, replica: int) -> int:
        return self._graph.number(stage, replica, self._partition)

    def _site(self, stage: Stage, replica: int) -> int:
        return self._graph.site(self._graph.names[self._number(stage, replica)])
