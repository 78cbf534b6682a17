"""A site: the nodes of one container, and everything that has an order, a bound or a policy around them. Pure.

A driver gives it what has arrived and does what it wants done, in the order given: one step of a site is

- what has arrived, from peers, clients and stores, is taken in;
- the nodes work until they have nothing left to say to each other;
- time passes, if it is due;
- frames leave for the peers, and answers for the clients.

Frames leave in the middle of it, too: what rests on nothing that was persisted leaves before the sync, and votes leave
before the executors work. Therefore `step` gives one effect after the other, each when it is to be done. A process that
ends between two of them is a crash like any other.

Its parts: `tara.host.nodes` (whose turn it is), `tara.host.peers` (frames), `tara.host.client_desk` (commands, reads
and answers), `tara.host.pacing` (when requests become a run).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from msgspec import Struct

from tara.host.client_desk import ClientDesk
from tara.host.counters import Counters
from tara.host.effects import Effect, Executes, Halt, Inputs, Send, Store, Sync, Unbar
from tara.host.latency import LatencySampler
from tara.host.nodes import Look, Nodes
from tara.host.pacing import Pacing
from tara.host.peer_wire import Header
from tara.host.peers import Peers
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Receivers, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.factory import create
from tara.protocol.principals import principal_of
from tara.protocol.sessions import Application


class SiteSpec(Struct, frozen=True, kw_only=True):
    cluster: int
    era: int
    #: Stands for everything that must agree between containers.
    shape: int
    container: int
    #: All containers: the numbers of their nodes.
    placement: list[list[int]]
    limits: Limits
    #: Whether what committers persist is written to a journal.
    journal: bool
    #: The digest of the operator's secret, where there are no keys.
    operator: bytes = b""


class Site:
    def __init__(
        self,
        spec: SiteSpec,
        life: int,
        counters: Counters,
        make: Callable[..., Node] = create,
        principal_of: Callable[..., bytes] = principal_of,
    ) -> None:
        """`make` makes the nodes, as `tara.protocol.nodes.factory.create` does; `principal_of` says who sends
        something, as that of `tara.protocol.principals` does."""
        self.spec = spec
        self.graph = Graph(spec.limits.f, spec.limits.partitions)
        here = spec.placement[spec.container]
        self.number = self.graph.site(self.graph.names[here[0]])
        self.counters = counters
        self._make = make
        self._executor = self.graph.number(Stage.EXECUTOR, self.number)
        self._now_ms = 0.0
        #: What is to be done at the end of the step, before clients are answered.
        self._effects: list[Effect] = []
        #: Also what is patient leaves now.
        self._ticked = False
        self._stable: t.Stable | None = None
        header = Header(t.FORMAT_VERSION, spec.cluster, spec.era, spec.container, life, spec.shape)
        self._peers = Peers(self.graph, spec.limits, spec.placement, header, counters, self._effects.append)
        # Partitions do not wait: the others would have to, in the merged order.
        self._pacing = Pacing(waits=spec.journal and spec.limits.partitions == 1)
        looks: dict[type[t.Tuple], Look] = {
            t.Stable: self._see_stable,
            t.Requests: self._see_requests,
            t.SubmitReads: self._see_reads,
        }
        self._nodes = Nodes(self.graph, here, spec.journal, self, looks, self._peers.open_vote)
        self._desk = ClientDesk(
            self.graph,
            spec.limits,
            self.number,
            life,
            partial(principal_of, operator=spec.operator),
            counters,
            self._effects.append,
            self._nodes.deliver,
            self._nodes.all.__contains__,
        )

    def create(
        self, number: int, boot: Boot, application: Callable[[], Application], journal: list[t.ReplayedEntry]
    ) -> None:
        """Make a node, with what the journal has of it. Nothing leaves before the first step."""
        self._now_ms = boot.now_ms
        name = self.graph.names[number]
        node = self._make(name, self.graph, self.spec.limits, boot, Outbox(), application, journal)
        self._nodes.add(number, node)

    def begin(self) -> Iterator[Effect]:
        """All nodes are there: what they persisted when they were made is synced."""
        for number in self._nodes.all:
            self._nodes.collect(number)
        if self._nodes.persisted:
            yield from self._sync()

    @property
    def nodes(self) -> Mapping[int, Node]:
        """By number; without those that were stopped."""
        return self._nodes.all

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do until something arrives."""
        return self._nodes.is_idle

    @property
    def lives(self) -> list[int]:
        """The newest life of each container that was heard of."""
        return self._peers.lives

    @property
    def full(self) -> list[bool]:
        """The links that take no more for now, as the driver says."""
        return self._peers.full

    @property
    def reads_sent(self) -> int:
        """How many reads its clients have sent, in this life."""
        return self._desk.reads_sent

    @property
    def latency(self) -> LatencySampler:
        return self._desk.latency

    @property
    def executor(self) -> Executor | None:
        """The replica that is here, if there is one."""
        node = self.nodes.get(self._executor)
        return node if isinstance(node, Executor) else None

    def committers(self) -> dict[int, Committer]:
        """One that has halted is not sure of anything any more."""
        return {number: node for number, node in self.nodes.items() if isinstance(node, Committer)}

    def step(self, inputs: Inputs, now_ms: float) -> Iterator[Effect]:
        """What is to be done, one after the other."""
        self._now_ms = now_ms
        nodes = self._nodes
        if inputs.frames:
            self._peers.hear(inputs.frames, nodes.deliver, nodes.deliver_votes)
        if inputs.messages:
            self._desk.receive(inputs.messages, inputs.unread_bytes, now_ms)
        if inputs.gone:
            self._desk.forget(inputs.gone)
        for tuple_, number in inputs.tuples:
            nodes.deliver(tuple_, number)
        yield from self._work()
        if inputs.tick:
            self._pacing.tick()
            nodes.tick(now_ms)
            self._ticked = True
            yield from self._work()
        yield from self._send_frames()
        if self._effects:
            effects = self._effects.copy()
            self._effects.clear()
            yield from effects
        yield from self._desk.answer()

    def _work(self) -> Iterator[Effect]:
        """Let the nodes work until there is nothing left to do."""
        nodes = self._nodes
        self._settle()
        while nodes.persisted or nodes.may_execute:
            if not nodes.persisted:
                yield from self._send_frames()
                nodes.execute()
            else:
                if self.spec.journal:
                    # What does not rest on what is written now need not wait for it.
                    yield from self._send_frames()
                yield from self._sync()
            self._settle()

    def _settle(self) -> None:
        """Then come the requests that were made meanwhile, as one run."""
        self._nodes.settle()
        if runs := self._pacing.take(self._now_ms):
            for requests, number in runs:
                self._nodes.enqueue(requests, number)
            self._nodes.settle()

    def _sync(self) -> Iterator[Effect]:
        entries = self._nodes.take_persisted()
        self.counters.journal_entries += len(entries)
        yield Sync(entries, any(type(entry) is t.Collected for _, entry in entries))
        self._nodes.release()

    def _send_frames(self) -> Iterator[Effect]:
        yield from self._peers.frames(self._ticked)
        self._ticked = False

    def sent(self, send: Send, taken: int, full: bool) -> None:
        """So many of the frames are on their way; and whether the link takes more."""
        self._peers.sent(send, taken, full)

    def _see_stable(self, stable: t.Stable, number: int) -> bool:
        if stable is not self._stable:
            # Once, for however many nodes it is.
            self._stable = stable
            self._peers.heard(stable)
        return False

    def _see_requests(self, requests: t.Requests, number: int) -> bool:
        self._pacing.add(requests, number)
        return True

    def _see_reads(self, submitted: t.SubmitReads, number: int) -> bool:
        self._pacing.note_reads(len(submitted.reads))
        return False

    def leave(self, sender: int, tuple_: t.Tuple, receivers: Receivers) -> None:
        if receivers.stage is Stage.CLIENT:
            self._desk.take(tuple_, self._now_ms)
        elif receivers.stage is not Stage.STORE:
            self._peers.say(tuple_, receivers)
        elif type(tuple_) is t.Halted:
            self._effects.append(Executes(sender, tuple_))
        elif type(tuple_) is t.Unbarred:
            self._effects.append(Unbar(sender, tuple_.counter))
        else:
            self._effects.append(Store(sender, tuple_))

    def stop(self, number: int, reason: str) -> None:
        self._effects.append(Halt(number, reason))

    def refuse(self, reason: str) -> None:
        self._peers.refuse(reason)

    def know_front_ends(self, front_ends: list[str]) -> None:
        """Let the clients know of new ones."""
        self._desk.know_front_ends(front_ends)

    def submit(self, commands: list[t.Command]) -> None:
        """Commands of the gateway, for the next step."""
        self._desk.submit(commands)
