"""What a site says to the other containers, and hears from them: frames, and the pieces of what is too long for one."""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from tara.host import peer_wire
from tara.host.admission import Admission, Arrivals, ForeignFrame
from tara.host.counters import Counters
from tara.host.effects import Send, Trouble
from tara.host.fragments import Assembly, Fragment
from tara.host.outgoing import PIECE_BYTES, Outgoing
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple
from tara.protocol.graph import Graph, Receivers
from tara.protocol.limits import Limits


class Remote(NamedTuple):
    """The receivers of a tuple that are elsewhere, by container."""

    urgent: tuple[tuple[int, tuple[int, ...]], ...]
    patient: tuple[tuple[int, tuple[int, ...]], ...]
    #: All of these containers.
    containers: frozenset[int]


class Peers:
    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        placement: list[list[int]],
        header: peer_wire.Header,
        counters: Counters,
        trouble: Callable[[Trouble], None],
    ) -> None:
        self._header = header
        self._here = header.container
        self._frame_bytes_max = limits.frame_bytes_max
        self._counters = counters
        self._trouble = trouble
        self._admission = Admission(graph, limits, placement[self._here])
        origin = (header.cluster, header.era, header.shape)
        self._arrivals = Arrivals(origin, len(placement), self._admission)
        self._assembly = Assembly(limits.frame_bytes_max, limits.link_bytes_max)
        piece_bytes = min(PIECE_BYTES, limits.frame_bytes_max // 4)
        self._outgoing = [Outgoing(graph.names, limits.link_bytes_max, piece_bytes) for _ in placement]
        #: Containers that something may wait for: where there is one per node, most have nothing to say to most others.
        self._waiting: set[int] = set()
        #: The links that take no more for now, as the driver says.
        self._full = [False] * len(placement)
        self._container_of = {number: container for container, numbers in enumerate(placement) for number in numbers}
        self._routes: dict[Receivers, Remote] = {}

    @property
    def lives(self) -> list[int]:
        """The newest life of each container that was heard of."""
        return self._arrivals.lives

    def open_vote(self, vote: peer_wire.PackedCommit) -> t.Tuple:
        """The commit of a vote that was heard."""
        return self._admission.open(vote)

    def hear(
        self,
        frames: list[bytes],
        deliver: Callable[[t.Tuple, int], None],
        deliver_votes: Callable[[peer_wire.PackedCommit, Collection[int]], None],
    ) -> None:
        for data in frames:
            self._counters.frames_in += 1
            try:
                frame = self._arrivals.open(data)
            except ForeignFrame as error:
                self._counters.frames_foreign += 1
                self._trouble(Trouble("foreign_frame", "peer", str(error)))
                continue
            except MalformedTuple as error:
                self.refuse(str(error))
                continue
            self._counters.tuples_in += len(frame.parcels) + len(frame.votes)
            # First the end of what began in a former frame: what is whole in this one has left after it.
            for fragment in frame.fragments:
                self._hear_fragment(frame.header, fragment, deliver)
            for numbers, tuple_ in frame.parcels:
                for number in numbers:
                    deliver(tuple_, number)
            for numbers, vote in frame.votes:
                deliver_votes(vote, numbers)

    def _hear_fragment(
        self, header: peer_wire.Header, fragment: Fragment, deliver: Callable[[t.Tuple, int], None]
    ) -> None:
        try:
            data = self._assembly.add(header.container, header.life, fragment)
            if data is None:
                return
            tuple_ = t.decode_tuple(data)
        except MalformedTuple as error:
            self.refuse(str(error))
            return
        refusal = self._admission.refusal(peer_wire.Frame(header, [(fragment.numbers, tuple_)], [], []))
        if refusal is not None:
            self.refuse(refusal)
            return
        self._counters.tuples_in += 1
        for number in fragment.numbers:
            deliver(tuple_, number)

    def refuse(self, reason: str) -> None:
        """Something of a peer is not what it should be."""
        self._counters.frames_bad += 1
        self._trouble(Trouble("bad_frame", "peer", reason))

    def say(self, tuple_: t.Tuple, receivers: Receivers) -> None:
        """Queue a tuple for those who are elsewhere."""
        remote = self._routes.get(receivers)
        if remote is None:
            remote = self._routes[receivers] = self._make_route(receivers)
        data = peer_wire.encode(tuple_)
        for container, numbers in remote.urgent:
            self._outgoing[container].add(numbers, tuple_, data)
        for container, numbers in remote.patient:
            self._outgoing[container].add(numbers, tuple_, data, urgent=False)
        self._waiting |= remote.containers

    def _make_route(self, receivers: Receivers) -> Remote:
        urgent: dict[int, list[int]] = {}
        patient: dict[int, list[int]] = {}
        for number in receivers.numbers:
            container = self._container_of[number]
            if container != self._here:
                (patient if number in receivers.patient else urgent).setdefault(container, []).append(number)
        return Remote(_frozen(urgent), _frozen(patient), frozenset((*urgent, *patient)))

    def heard(self, stable: t.Stable) -> None:
        """How far everybody is: who has something already need not be sent it."""
        for container in self._waiting:
            self._outgoing[container].heard(stable)

    def frames(self, everything: bool) -> Iterator[Send]:
        """Frames for each peer, as far as its link takes them. Those of patient tuples only with `everything`."""
        for container in sorted(self._waiting):
            outgoing = self._outgoing[container]
            while outgoing.is_due(everything) and not self._full[container]:
                pieces = outgoing.take(everything)
                frame = peer_wire.frame_of(self._header, pieces)
                yield Send(container, peer_wire.encode_frame(frame, self._frame_bytes_max), len(pieces))
            if not outgoing.is_due(everything=True):
                self._waiting.discard(container)

    def sent(self, send: Send, taken: int, full: bool) -> None:
        """So many of the frames are on their way; and whether the link takes more."""
        self._counters.frames_out += taken
        self._counters.frames_dropped += len(send.frames) - taken
        self._counters.tuples_out += send.tuples if taken else 0
        self._full[send.container] = full
        if taken < len(send.frames):
            # Nobody is there; what waits is sent again by the protocol, if it is needed.
            self._outgoing[send.container].clear()

    def drained(self, container: int) -> bool:
        """The link to a container takes frames again; returns whether it did not before."""
        was_full, self._full[container] = self._full[container], False
        return was_full


def _frozen(numbers: dict[int, list[int]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple((container, tuple(some)) for container, some in numbers.items())
