"""Links of a finite rate. What leaves a site shares its uplink; each container keeps what waits for a peer in the queue
that the live runtime uses, and hands it to the kernel bit by bit: a kernel that held everything would decide the order.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tara.host.outgoing import Outgoing
from tara.protocol import tuples as t
from tara.protocol.graph import Name

if TYPE_CHECKING:
    from tara.simulator.world import Container, Parcel, World

#: What the kernel takes for a peer before it says that it is full.
KERNEL_BYTES = 64 << 10
#: What a frame takes beside its tuples, about, with the headers of lower layers.
FRAME_BYTES = 128

Leave = Callable[["Container", "Container", "list[Parcel]"], None]


class Uplinks:
    def __init__(self, world: "World", rate_mbit: float, names: tuple[Name, ...], leave: Leave) -> None:
        self._world = world
        self._names = names
        self._bytes_per_ms = rate_mbit * 1e6 / 8 / 1e3
        #: Called for each frame when its last byte is on the link.
        self._leave = leave
        #: Of each life of a container and peer: what waits, and the bytes that the kernel holds.
        self._queues: dict[tuple[int, int, int], Outgoing] = {}
        self._held: dict[tuple[int, int, int], int] = {}
        #: Of each site: when its uplink has sent all that the kernel holds.
        self._busy_until_ms: dict[int, float] = {}

    def send(self, sender: "Container", peer: "Container", parcels: "list[Parcel]") -> None:
        """Queue the tuples of a step for a peer on another site."""
        key = (sender.index, sender.life, peer.index)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = Outgoing(self._names)
        by_tuple: dict[int, tuple[t.Tuple, list[int]]] = {}
        for tuple_, number in parcels:
            by_tuple.setdefault(id(tuple_), (tuple_, []))[1].append(number)
        for tuple_, numbers in by_tuple.values():
            queue.add(tuple(numbers), tuple_, t.encode(tuple_))
        self._pump(sender, peer, key)

    def heard(self, container: "Container", stable: t.Stable) -> None:
        """A container has been told what everybody has."""
        for (index, life, _), queue in self._queues.items():
            if (index, life) == (container.index, container.life):
                queue.heard(stable)

    def crashed(self, container: "Container") -> None:
        """What had not left is lost."""
        for key in [key for key in self._queues if key[:2] == (container.index, container.life)]:
            del self._queues[key]

    def _pump(self, sender: "Container", peer: "Container", key: tuple[int, int, int]) -> None:
        """Hand over what the kernel takes."""
        queue, world = self._queues.get(key), self._world
        while queue is not None and self._held.get(key, 0) < KERNEL_BYTES:
            pieces = queue.take()
            if not pieces:
                return
            size = FRAME_BYTES + sum([piece.length for piece in pieces])
            whole = [(piece.item.tuple_, number) for piece in pieces if piece.is_last for number in piece.item.numbers]
            left_ms = max(world.now_ms, self._busy_until_ms.get(sender.site, 0.0)) + size / self._bytes_per_ms
            self._busy_until_ms[sender.site] = left_ms
            self._held[key] = self._held.get(key, 0) + size
            world.at(left_ms, self._left, sender, peer, key, size, whole)

    def _left(
        self, sender: "Container", peer: "Container", key: tuple[int, int, int], size: int, parcels: "list[Parcel]"
    ) -> None:
        self._held[key] -= size
        if parcels:
            self._leave(sender, peer, parcels)
        self._pump(sender, peer, key)
