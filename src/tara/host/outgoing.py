"""What waits to leave for one peer, and in which order it leaves. Pure: the driver says when the link takes more.

A link that is slow is not broken: what matters goes first, and what nobody needs any more does not go at all.

- Control tuples (views, votes, reports, reads) leave before bulk (requests, proposals, commits, records, results).
  Bulk leaves in pieces, so control never waits behind more than `PIECE_BYTES` of it, plus what the kernel holds.
- Of bulk, what is furthest on its way leaves first: records, then commits, then proposals, then requests. Last come
  the votes that the receiver can probably do without.
- Tuples of one lane leave in the order in which they came, and one that is longer than a piece leaves as fragments.
- What was queued for a view that is over is dropped when a tuple of a later view is queued. What waits already is not
  queued twice: sending again must not feed itself. What the receiver is known to have is dropped.
- Bytes are bounded. What does not fit is dropped, like everything that a link loses, and sent again by the protocol.

So a link may lose and reorder tuples, as the protocol allows; tuples of one kind stay in order.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.graph import Name

#: Bytes of bulk that leave at once.
PIECE_BYTES = 64 << 10
#: Bytes that may wait of control; of bulk, it is the limit `link_bytes_max`.
CONTROL_LANE_BYTES_MAX = 4 << 20

#: The lanes, in the order in which they leave.
CONTROL, RECORDS, COMMITS, PROPOSALS, OTHERS, PATIENT = range(6)
LANES = 6
_LANE_OF: dict[type[t.Tuple], int] = {
    t.Record: RECORDS,
    t.Commit: COMMITS,
    t.Proposal: PROPOSALS,
    t.Requests: OTHERS,
    t.Results: OTHERS,
    t.ReadResults: OTHERS,
}
#: Tuples of a later view make those of earlier ones needless.
_OF_A_VIEW = frozenset((t.View, t.Record, t.Start, t.Proposal))


class Item(Struct, frozen=True, eq=False):
    """A tuple on its way to some nodes of the peer."""

    numbers: tuple[int, ...]
    tuple_: t.Tuple
    #: As it travels.
    data: bytes
    lane: int


class Piece(Struct, frozen=True, eq=False):
    """A part of an item: all of it, unless it is longer than a piece may be."""

    item: Item
    offset: int
    length: int

    @property
    def is_whole(self) -> bool:
        return self.length == len(self.item.data)


class Outgoing:
    """Invariant: `waiting_bytes` is what the lanes hold, and within the bounds; a lane is in the order of arrival."""

    def __init__(self, names: tuple[Name, ...], bytes_max: int, piece_bytes: int = PIECE_BYTES) -> None:
        self._names = names
        self._bytes_max = bytes_max
        self._piece_bytes = piece_bytes
        self._lanes: list[deque[Item]] = [deque() for _ in range(LANES)]
        self._lane_bytes = [0] * LANES
        #: How much of the first item of each lane has left.
        self._left = [0] * LANES
        #: Per partition, the highest view that was sent to this peer.
        self._views: dict[int, int] = {}
        #: Of what waits because the link does not take it: the numbers [first, end), per kind of run.
        self._waiting: dict[tuple[object, ...], tuple[int, int]] = {}
        self._urgent = False
        #: Tuples that were dropped because there was no room, and such as nobody needed any more.
        self.dropped = 0
        self.cancelled = 0

    @property
    def waiting_bytes(self) -> int:
        return sum(self._lane_bytes)

    @property
    def bytes_max(self) -> int:
        return self._bytes_max + CONTROL_LANE_BYTES_MAX

    def recount(self) -> int:
        """What `waiting_bytes` must be."""
        return sum([len(item.data) for lane in self._lanes for item in lane])

    def is_due(self, everything: bool) -> bool:
        """Whether `take` has something to give."""
        return self._urgent or (everything and any(self._lane_bytes))

    def add(self, numbers: tuple[int, ...], tuple_: t.Tuple, data: bytes, urgent: bool = True) -> None:
        """Queue a tuple. What is not urgent leaves with what is, or when `take` is told to take everything."""
        lane = _LANE_OF.get(type(tuple_), CONTROL)
        if lane == COMMITS and not urgent:
            lane = PATIENT
        self._urgent = self._urgent or urgent
        if type(tuple_) in _OF_A_VIEW:
            self._follow(tuple_)
        item = Item(numbers, tuple_, data, lane)
        if self._waiting and self._waits_already(item):
            self.cancelled += 1
        elif len(data) > self._room(lane):
            self.dropped += 1
        else:
            if self._waiting:
                self._note(item)
            self._lanes[lane].append(item)
            self._lane_bytes[lane] += len(data)

    def _room(self, lane: int) -> int:
        if lane == CONTROL:
            return CONTROL_LANE_BYTES_MAX - self._lane_bytes[CONTROL]
        return self._bytes_max - self.waiting_bytes

    def _waits_already(self, item: Item) -> bool:
        run = _run_of(item)
        if run is None:
            return False
        key, first, end = run
        low, high = self._waiting.get(key, (end, first))
        return low <= first and end <= high

    def _note(self, item: Item) -> None:
        run = _run_of(item)
        if run is not None:
            key, first, end = run
            low, high = self._waiting.get(key, (first, first))
            # Of two stretches with a gap between them, the newer one is remembered.
            self._waiting[key] = (low, max(end, high)) if low <= first <= high else (first, end)

    def take(self, everything: bool = True) -> list[Piece]:
        """What leaves next: all control, and bulk up to about a piece; nothing, if nothing is urgent and not everything
        is to leave."""
        if not self.is_due(everything):
            return []
        pieces = [Piece(item, 0, len(item.data)) for item in self._lanes[CONTROL]]
        self._lanes[CONTROL].clear()
        self._lane_bytes[CONTROL] = 0
        room = self._piece_bytes
        for lane in range(CONTROL + 1, LANES):
            queue = self._lanes[lane]
            while queue and room > 0:
                item, offset = queue[0], self._left[lane]
                length = len(item.data) - offset
                if length > room and (offset or len(item.data) > self._piece_bytes):
                    length = room
                pieces.append(Piece(item, offset, length))
                room -= length
                if offset + length == len(item.data):
                    self._pop(lane)
                else:
                    self._left[lane] = offset + length
        waiting = any(self._lane_bytes)
        self._urgent = self._urgent and waiting
        if not waiting:
            self._waiting = {}
        elif not self._waiting:
            self._note_waiting()
        return pieces

    def _pop(self, lane: int) -> None:
        item = self._lanes[lane].popleft()
        self._lane_bytes[lane] -= len(item.data)
        self._left[lane] = 0
        run = _run_of(item) if self._waiting else None
        if run is not None and run[0] in self._waiting:
            low, high = self._waiting[run[0]]
            self._waiting[run[0]] = (max(low, run[2]), high)

    def _note_waiting(self) -> None:
        self._waiting = {}
        for lane in self._lanes[CONTROL + 1 :]:
            for item in lane:
                self._note(item)

    def clear(self) -> None:
        """The peer is gone, and its next life knows nothing of this."""
        for lane in range(LANES):
            self._lanes[lane].clear()
            self._lane_bytes[lane] = self._left[lane] = 0
        self._waiting.clear()
        self._views.clear()
        self._urgent = False

    def _follow(self, tuple_: Any) -> None:
        """A tuple of a later view makes the orders and records of earlier ones needless. (Not the commits: with those
        of others they may still decide something, and what is decided need not be waited for.)"""
        partition, view = tuple_.partition, tuple_.view
        if view > self._views.get(partition, 0):
            self._views[partition] = view
            for lane in (RECORDS, PROPOSALS):
                self._keep(lane, lambda item: not _is_of_earlier_view(item.tuple_, partition, view))

    def heard(self, stable: t.Stable) -> None:
        """What the peer's nodes have, as they said themselves."""
        if not any(self._lanes[CONTROL + 1 :]):
            return
        executors = {status.executor: status for status in stable.executors}
        committers = {(status.partition, status.committer): status for status in stable.committers}

        def is_needed(item: Item) -> bool:
            replicas = [self._names[number].replica for number in item.numbers]
            match item.tuple_:
                case t.Commit(_, partition, _, first, requests):
                    reports = [executors.get(replica) for replica in replicas]
                    end = first + len(requests)
                    return any(report is None or report.positions[partition] < end for report in reports)
                case t.Proposal(_, partition, view, first, _, requests):
                    states = [committers.get((partition, replica)) for replica in replicas]
                    end = first + len(requests)
                    return any(
                        state is None or state.view < view or (state.view == view and state.position < end)
                        for state in states
                    )
            return True

        # They are in the order of their slots, or nearly so. To look at all of them, however many wait, would take
        # longer than to send what somebody could do without.
        for lane in (COMMITS, PROPOSALS, PATIENT):
            while self._lanes[lane] and not is_needed(self._lanes[lane][0]):
                self._pop(lane)
                self.cancelled += 1

    def _keep(self, lane: int, is_needed: Callable[[Item], bool]) -> None:
        """Drop what is not needed, also if a part of it has left: the receiver notices that the rest does not come."""
        queue = self._lanes[lane]
        kept = [item for item in queue if is_needed(item)]
        if len(kept) == len(queue):
            return
        if not kept or kept[0] is not queue[0]:
            self._left[lane] = 0
        self.cancelled += len(queue) - len(kept)
        self._lanes[lane] = deque(kept)
        self._lane_bytes[lane] = sum([len(item.data) for item in kept])
        self._note_waiting()


def _is_of_earlier_view(tuple_: t.Tuple, partition: int, view: int) -> bool:
    return isinstance(tuple_, t.Proposal | t.Record) and tuple_.partition == partition and tuple_.view < view


def _run_of(item: Item) -> tuple[tuple[object, ...], int, int] | None:
    """What an item is a run of, and the numbers [first, end) in it."""
    match item.tuple_:
        case t.Proposal(_, partition, view, first, _, requests):
            return (item.lane, item.numbers, partition, view), first, first + len(requests)
        case t.Commit(committer, partition, view, first, requests):
            return (item.lane, item.numbers, committer, partition, view), first, first + len(requests)
        case t.Record(committer, partition, view, incarnation, incarnations, minimum, end, first, slots) if slots:
            kind = (item.lane, item.numbers, committer, partition, view, incarnation, tuple(incarnations), minimum, end)
            return kind, first, first + len(slots)
        case t.Requests(requests) if requests:
            source, number = requests[0].source, requests[0].number
            return (item.lane, item.numbers, source, requests[0].epoch), number, number + len(requests)
    return None
