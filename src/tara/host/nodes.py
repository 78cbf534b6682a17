"""The nodes that a host has: whose turn it is, what they say to each other, and what may be known outside already.

What a node emits while something that it persisted is not durable waits here, also for the nodes beside it: nothing
that anybody does before the sync rests on a promise that a crash could take back. What it tells (`Node.tell`) passes
at once. A host without a journal has nothing to wait for.

Executors come last: others wait for the votes of their site, but nobody waits for an execution except its clients.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from tara.host.peer_wire import PackedCommit
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple, NodeHalted
from tara.protocol.graph import Graph, Receivers, Stage
from tara.protocol.journal import Written
from tara.protocol.node import Node


class Route(NamedTuple):
    """Which receivers of a tuple are here, and whether there are others."""

    here: tuple[int, ...]
    elsewhere: bool


class Outside(Protocol):
    """What nodes have for others than the nodes beside them."""

    def leave(self, sender: int, tuple_: t.Tuple, receivers: Receivers) -> None:
        """For receivers that are elsewhere, or for the host itself."""

    def stop(self, number: int, reason: str) -> None:
        """An invariant of this node is broken, and it is gone."""

    def refuse(self, reason: str) -> None:
        """What a node was to process is malformed."""

    def open_vote(self, vote: PackedCommit) -> t.Tuple:
        """Decode a vote that has come from elsewhere."""


Delivery = tuple[t.Tuple | PackedCommit, int]
#: Looks at a tuple before it is queued for a node; True: it takes the tuple itself.
Look = Callable[[Any, int], bool]


class Nodes:
    """Invariant: `persisted` is not durable yet, and what its nodes emitted since is in `_held`."""

    def __init__(
        self,
        graph: Graph,
        here: Collection[int],
        holds: bool,
        outside: Outside,
    ) -> None:
        """`here` are the numbers of the nodes that are to be here, and `holds` is whether what they persist is
        synced."""
        self._outside = outside
        self._holds = holds
        self._here = frozenset(here)
        self._looks: dict[type[t.Tuple], Look] = {}
        self._routes: dict[Receivers, Route] = {}
        self._nodes: dict[int, Node] = {}
        self._queue: deque[Delivery] = deque()
        self._for_executors: deque[Delivery] = deque()
        late = {Stage.EXECUTOR: self._for_executors}
        self._queues = [late.get(name.stage, self._queue) for name in graph.names]
        self.persisted: list[Written] = []
        self._unsynced: set[int] = set()
        self._held: list[tuple[int, list[tuple[t.Tuple, Receivers]]]] = []

    @property
    def all(self) -> Mapping[int, Node]:
        return self._nodes

    @property
    def is_idle(self) -> bool:
        return not self._queue

    @property
    def may_execute(self) -> bool:
        """Whether something waits for an executor."""
        return bool(self._for_executors)

    def add(self, number: int, node: Node) -> None:
        assert number in self._here, number
        self._nodes[number] = node

    def watch(self, kind: type[t.Tuple], look: Look) -> None:
        """Have tuples of a kind looked at before they are queued."""
        self._looks[kind] = look

    def deliver(self, tuple_: t.Tuple, number: int) -> None:
        """Queue a tuple for a node."""
        look = self._looks.get(type(tuple_))
        if look is None or not look(tuple_, number):
            self._queues[number].append((tuple_, number))

    def enqueue(self, tuple_: t.Tuple, number: int) -> None:
        """Queue a tuple that has been looked at."""
        self._queues[number].append((tuple_, number))

    def deliver_votes(self, vote: PackedCommit, numbers: Collection[int]) -> None:
        self._for_executors.extend([(vote, number) for number in numbers])

    def settle(self) -> None:
        """Let them work until they have nothing left to say to each other, but for what the executors have to do."""
        self._process(self._queue)

    def execute(self) -> None:
        """Let the executors work."""
        self._process(self._for_executors)

    def tick(self, now_ms: float) -> None:
        for number, node in list(self._nodes.items()):
            try:
                node.tick(now_ms)
            except (NodeHalted, AssertionError) as error:
                self._halt(number, error)
                continue
            self.collect(number)

    def _process(self, queue: deque[Delivery]) -> None:
        nodes = self._nodes
        while queue:
            tuple_, number = queue.popleft()
            node = nodes.get(number)
            if node is None:
                continue
            try:
                if not isinstance(tuple_, PackedCommit):
                    node.process(tuple_)
                elif node.needs_commit(tuple_.partition, tuple_.end):
                    node.process(self._outside.open_vote(tuple_))
            except MalformedTuple as error:
                self._outside.refuse(str(error))
                continue
            except (NodeHalted, AssertionError) as error:
                self._halt(number, error)
                continue
            except MemoryError as error:
                if not node.runs_application:
                    raise
                self._halt(number, error)
                continue
            self.collect(number)

    def _halt(self, number: int, error: Exception) -> None:
        """A broken invariant stops one node, as if it had crashed, and shows."""
        if self._nodes[number].give_up(repr(error)):
            self.collect(number)
            return
        del self._nodes[number]
        self._outside.stop(number, repr(error))

    def collect(self, number: int) -> None:
        """Take what a node has in its outbox."""
        outbox = self._nodes[number].outbox
        if outbox.persisted:
            self.persisted.extend([(number, entry) for entry in outbox.persisted])
            outbox.persisted = []
            if self._holds:
                self._unsynced.add(number)
        if outbox.told:
            told, outbox.told = outbox.told, []
            self._pass_on(number, told)
        if outbox.emitted:
            emitted, outbox.emitted = outbox.emitted, []
            if number in self._unsynced:
                self._held.append((number, emitted))
            else:
                self._pass_on(number, emitted)

    def take_persisted(self) -> list[Written]:
        """What is to be made durable now."""
        persisted, self.persisted = self.persisted, []
        return persisted

    def release(self) -> None:
        """What was taken is durable: let out what waited for that."""
        held, self._held = self._held, []
        self._unsynced.clear()
        for number, emitted in held:
            self._pass_on(number, emitted)

    def _pass_on(self, sender: int, said: list[tuple[t.Tuple, Receivers]]) -> None:
        for tuple_, receivers in said:
            route = self._routes.get(receivers)
            if route is None:
                route = self._routes[receivers] = self._make_route(receivers)
            for number in route.here:
                self.deliver(tuple_, number)
            if route.elsewhere:
                self._outside.leave(sender, tuple_, receivers)

    def _make_route(self, receivers: Receivers) -> Route:
        here = tuple(number for number in receivers.numbers if number in self._here)
        return Route(here, len(here) < len(receivers.numbers))
