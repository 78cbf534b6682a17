"""The virtual network: frames between containers, which are delayed, lost, doubled, reordered and replayed.

Links may have a rate. What leaves a site shares its uplink; a kernel takes so much for each peer, and says then that it
is full: what waits beyond that waits in the queues of the host, in the order that the host gives it.
"""

from collections import deque
from typing import TYPE_CHECKING

from msgspec import Raw

from tara.host import peer_wire
from tara.host.effects import Inputs
from tara.protocol import tuples as t

if TYPE_CHECKING:
    from tara.host.site import Site
    from tara.simulator.container import Parcel, SimulatedContainer
    from tara.simulator.world import World

#: What the kernel takes for a peer before it says that it is full.
KERNEL_BYTES = 64 << 10
#: What a frame takes beside its bytes, about, for the headers of lower layers.
FRAME_BYTES = 80


class Network:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._plan = world.plan
        self._bytes_per_ms = world.plan.rate_mbit * 1e6 / 8 / 1e3
        #: Links that are down or slow, and until when: (from container's site, to site).
        self._blocked: dict[tuple[int, int], float] = {}
        #: Controllers that hear nothing from executors, and until when.
        self._cut: dict[int, float] = {}
        self._slow: dict[tuple[int, int], float] = {}
        #: When the last frame of a link arrives.
        self._link_ms: dict[tuple[int, int], float] = {}
        self._old_frames: deque[tuple[int, bytes]] = deque(maxlen=64)
        #: Bytes that the kernel of a container holds for a peer; and when the uplink of a site has sent all of them.
        self._held: dict[tuple[int, int, int], int] = {}
        self._busy_until_ms: dict[int, float] = {}

    def clear(self) -> None:
        self._blocked.clear()
        self._cut.clear()
        self._slow.clear()

    def block(self, sender: int, receiver: int, until_ms: float) -> None:
        self._blocked[sender, receiver] = until_ms

    def cut_off(self, controller: int, until_ms: float) -> None:
        """No progress reaches this node."""
        self._cut[controller] = until_ms

    def slow(self, sender: int, receiver: int, until_ms: float) -> None:
        self._slow[sender, receiver] = until_ms

    def send(self, sender: "SimulatedContainer", peer: "SimulatedContainer", frames: list[bytes]) -> bool:
        """Whether the link takes no more for now."""
        if not self._bytes_per_ms or sender.site == peer.site:
            for frame in frames:
                self._leave(sender, peer, frame)
            return False
        world, site, key = self._world, sender.running, (sender.index, sender.life, peer.index)
        for frame in frames:
            size = FRAME_BYTES + len(frame)
            left_ms = max(world.now_ms, self._busy_until_ms.get(sender.site, 0.0)) + size / self._bytes_per_ms
            self._busy_until_ms[sender.site] = left_ms
            self._held[key] = self._held.get(key, 0) + size
            world.at(left_ms, self._left, sender, site, peer, key, size, frame)
        return self._held[key] >= KERNEL_BYTES

    def _left(
        self,
        sender: "SimulatedContainer",
        site: "Site",
        peer: "SimulatedContainer",
        key: tuple[int, int, int],
        size: int,
        frame: bytes,
    ) -> None:
        """The last byte of a frame is on the link."""
        self._held[key] -= size
        self._leave(sender, peer, frame)
        if sender.host is site and self._held[key] < KERNEL_BYTES and site.drained(peer.index):
            self._world.arrive(sender, Inputs(), sender.index)

    def _leave(self, sender: "SimulatedContainer", peer: "SimulatedContainer", frame: bytes) -> None:
        world = self._world
        if self._blocked.get((sender.site, peer.site), 0) > world.now_ms:
            return
        if world.stories or max(self._cut.values(), default=0.0) > world.now_ms:
            left = self._without_delayed(sender, peer, frame)
            if left is None:
                return
            frame = left
        self._travel(sender, peer, frame)

    def _without_delayed(self, sender: "SimulatedContainer", peer: "SimulatedContainer", data: bytes) -> bytes | None:
        """What is left of a frame without what waits, or gets lost; None: nothing."""
        frame = peer_wire.decode_frame(data)
        parcels: list[tuple[tuple[int, ...], Raw]] = []
        votes: list[tuple[tuple[int, ...], peer_wire.PackedCommit]] = []
        for numbers, tuple_ in frame.parcels:
            if left := self._passing(sender, peer, tuple_, numbers):
                parcels.append((left, Raw(t.encode(tuple_))))
        for numbers, vote in frame.votes:
            if left := self._passing(sender, peer, t.decode_tuple(vote.commit), numbers):
                votes.append((left, vote))
        if (len(parcels), len(votes)) == (0, 0) and not frame.fragments:
            return None
        return t.encode(peer_wire.OutgoingFrame(frame.header, parcels, votes, frame.fragments))

    def _passing(
        self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, numbers: list[int]
    ) -> tuple[int, ...]:
        """The nodes that get it now."""
        return tuple([number for number in numbers if not self._is_held_up(sender, peer, (tuple_, number))])

    def _is_held_up(self, sender: "SimulatedContainer", peer: "SimulatedContainer", parcel: "Parcel") -> bool:
        tuple_, number = parcel
        if isinstance(tuple_, t.Progress) and self._cut.get(number, 0.0) > self._world.now_ms:
            return True
        return any(story.take(sender, peer, parcel) for story in self._world.stories)

    def _travel(self, sender: "SimulatedContainer", peer: "SimulatedContainer", frame: bytes) -> None:
        world, plan = self._world, self._plan
        draw = world.draw
        delay = plan.delay_ms * (0.5 + draw.random())
        if world.healed:
            self._deliver_in_order(sender, peer, frame, delay)
            return
        if self._slow.get((sender.site, peer.site), 0) > world.now_ms:
            delay += draw.randrange(50, 400)
        if draw.random() < plan.drop:
            world.count_fault("drop")
            return
        if draw.random() < plan.duplicate:
            world.count_fault("duplicate")
            world.after(delay + draw.randrange(100), self._arrive, peer, frame, sender.index)
        if draw.random() < plan.replay:
            self._old_frames.append((peer.index, frame))
            if draw.random() < 0.3:
                world.count_fault("replay")
                index, old = self._old_frames[draw.randrange(len(self._old_frames))]
                world.after(delay, self._arrive, world.containers[index], old, None)
        if draw.random() < plan.reorder:
            world.count_fault("reorder")
            world.after(delay + draw.randrange(1, 60), self._arrive, peer, frame, sender.index)
            return
        self._deliver_in_order(sender, peer, frame, delay)

    def _deliver_in_order(
        self, sender: "SimulatedContainer", peer: "SimulatedContainer", frame: bytes, delay: float
    ) -> None:
        world, link = self._world, (sender.index, peer.index)
        arrival = max(world.now_ms + delay, self._link_ms.get(link, 0.0))
        self._link_ms[link] = arrival
        world.at(arrival, self._arrive, peer, frame, sender.index)

    def _arrive(self, peer: "SimulatedContainer", frame: bytes, sender: int | None) -> None:
        self._world.arrive(peer, Inputs(frames=[frame]), sender)
