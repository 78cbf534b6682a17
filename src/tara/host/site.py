"""A site: the nodes of one container, and everything that has an order, a bound or a policy around them. Pure.

One step of it is that of a bare site (`tara.host.bare_site`); what comes in are frames of peers, messages of clients
and answers of stores, and what leaves are frames for the peers, and answers for the clients.

Its parts: `tara.host.nodes` (whose turn it is), `tara.host.peers` (frames), `tara.host.client_desk` (commands, reads
and answers), `tara.host.pacing` (when requests become a run).
"""

from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from tara.host.bare_site import BareSite
from tara.host.client_desk import ClientDesk
from tara.host.counters import Counters
from tara.host.effects import Effect, Inputs, Listen, Respond, Send
from tara.host.latency import LatencySampler
from tara.host.peer_wire import Header, PackedCommit
from tara.host.peers import Peers
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Receivers, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Node, Replica
from tara.protocol.nodes.factory import create
from tara.protocol.principals import principal_of

_LISTEN, _RESPOND = Listen(), Respond()


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


class Site(BareSite):
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
        here = spec.placement[spec.container]
        super().__init__(Graph(spec.limits.f, spec.limits.partitions), spec.limits, here, spec.journal, make, counters)
        self.spec = spec
        self.number = self.graph.site(self.graph.names[here[0]])
        self._executor = self.graph.number(Stage.EXECUTOR, self.number)
        #: Also what is patient leaves now.
        self._ticked = False
        self._stable: t.Stable | None = None
        header = Header(t.FORMAT_VERSION, spec.cluster, spec.era, spec.container, life, spec.shape)
        self._peers = Peers(self.graph, spec.limits, spec.placement, header, counters, self._effects.append)
        self._nodes.watch(t.Stable, self._see_stable)
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

    @property
    def lives(self) -> list[int]:
        """The newest life of each container that was heard of."""
        return self._peers.lives

    @property
    def latency(self) -> LatencySampler:
        return self._desk.latency

    @property
    def replica(self) -> Replica | None:
        """The copy of the application that is here, if there is one."""
        executor = self.nodes.get(self._executor)
        return None if executor is None else executor.replica()

    def step(self, inputs: Inputs, now_ms: float) -> Iterator[Effect]:
        if inputs.gateway:
            yield _LISTEN
        yield from super().step(inputs, now_ms)
        yield _RESPOND

    def _take_in(self, inputs: Inputs) -> None:
        if inputs.frames:
            self._peers.hear(inputs.frames, self._nodes.deliver, self._nodes.deliver_votes)
        if inputs.messages:
            self._desk.receive(inputs.messages, inputs.unread_bytes, self._now_ms)
        if inputs.gone:
            self._desk.forget(inputs.gone)
        if inputs.tuples:
            super()._take_in(inputs)

    def _on_tick(self) -> None:
        self._ticked = True

    def _send(self) -> Iterator[Effect]:
        ticked, self._ticked = self._ticked, False
        return self._peers.frames(ticked)

    def _answer(self) -> Iterator[Effect]:
        if self._effects:
            yield from self._take_effects()
        yield from self._desk.answer()

    def sent(self, send: Send, taken: int, full: bool) -> None:
        """So many of the frames are on their way; and whether the link takes more."""
        self._peers.sent(send, taken, full)

    def drained(self, container: int) -> bool:
        """The link to a container takes frames again; returns whether it did not before."""
        return self._peers.drained(container)

    def _see_stable(self, stable: t.Stable, number: int) -> bool:
        if stable is not self._stable:
            # Once, for however many nodes it is.
            self._stable = stable
            self._peers.heard(stable)
        return False

    def leave(self, sender: int, tuple_: t.Tuple, receivers: Receivers) -> None:
        if receivers.stage is Stage.CLIENT:
            self._desk.take(tuple_, self._now_ms)
        elif receivers.stage is not Stage.STORE:
            self._peers.say(tuple_, receivers)
        else:
            self._store(sender, tuple_)

    def refuse(self, reason: str) -> None:
        self._peers.refuse(reason)

    def open_vote(self, vote: PackedCommit) -> t.Tuple:
        return self._peers.open_vote(vote)

    def know_front_ends(self, front_ends: list[str]) -> None:
        """Let the clients know of new ones."""
        self._desk.know_front_ends(front_ends)

    def submit(self, commands: list[t.Command]) -> None:
        """Commands of the gateway, for the next step."""
        self._desk.submit(commands)
