"""Reads: answered by one executor, linearizably, without a place in the order.

The committers say how far they have accepted requests. A command that was answered before the read came had been
accepted by f+1 committers, so at least one of any f+1 that answer knows of it: unless that one lost its journal, and
then the answers of the others expose it (rule R2, as for records). When this executor has executed that far, its state
contains everything that the reading client may have heard of. (Quorum reads: Charapko et al., HotStorage 2019.)

The more committers answer, the less has to be waited for: at most f of them do not know of that command, so the next
one above the f lowest answers does. With all 2f+1, nothing is waited for that f+1 have not accepted, that is, nothing
that is not decided.
"""

import heapq

from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.incarnations import current

Key = tuple[int, int, int]

#: Entries of the queue, as a multiple of the rounds that may be open, at which what stands for nothing is removed.
_STALE_TIMES = 4

#: Bytes of results that are given at once. Few reads can ask for much; those beyond this are to be sent again.
ANSWERED_BYTES_MAX = 16 << 20


#: What a read takes beside its payload, about.
READ_BYTES = 64


class _Round:
    """Reads that came together, and what the committers of each partition answered."""

    __slots__ = ("indexes", "reads", "until")

    def __init__(self, partitions: int) -> None:
        self.reads: list[t.ReadRequest] | None = None
        self.indexes: list[dict[int, t.ReadIndex]] = [{} for _ in range(partitions)]
        #: It can be answered when the requests below this execution number are executed; None: not known yet. Falls.
        self.until: int | None = None


class Reads:
    """Invariant: at most `capacity` rounds are open, with at most `bytes_max` bytes of reads; `_waiting` has at most
    a few entries for each."""

    def __init__(self, graph: Graph, quorum: int, capacity: int, bytes_max: int) -> None:
        self._graph = graph
        self._quorum = quorum
        self._capacity = capacity
        self._bytes_max = bytes_max
        #: Bytes of the reads in `_open`.
        self.bytes = 0
        self._open: dict[Key, _Round] = {}
        #: Rounds whose reads and whose `until` are known, the nearest first; and again for each `until` they had.
        self._waiting: list[tuple[int, Key]] = []
        #: Of each source, its epoch and the newest round of it whose reads have come. What comes for an older one
        #: that is not open comes too late.
        self._newest: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        """What it keeps: open rounds, and entries of the queue."""
        return max(len(self._open), len(self._waiting))

    def add(self, pending: t.PendingReads) -> None:
        key = (pending.source, pending.epoch, pending.nonce)
        round_ = self._find(key)
        if round_ is None or round_.reads is not None:
            return
        self._newest[pending.source] = max(self._newest.get(pending.source, (0, 0)), key[1:])
        round_.reads = pending.reads
        self.bytes += _size(round_)
        while self.bytes > self._bytes_max:
            self._drop(next(iter(self._open)))
        if key in self._open:
            self._settle(key, round_)

    def index(self, index: t.ReadIndex) -> None:
        key = (index.source, index.epoch, index.nonce)
        round_ = self._find(key)
        if round_ is not None:
            round_.indexes[index.partition][index.committer] = index
            self._settle(key, round_)

    def due(self, executed: int) -> list[t.ReadRequest]:
        """The reads that can be answered when the requests below this execution number are executed."""
        found: list[t.ReadRequest] = []
        while self._waiting and self._waiting[0][0] <= executed:
            _, key = heapq.heappop(self._waiting)
            round_ = self._drop(key)
            if round_ is not None and round_.reads is not None:
                found += round_.reads
        return found

    def _find(self, key: Key) -> _Round | None:
        """The round; None if it is over."""
        round_ = self._open.get(key)
        if round_ is None and key[1:] > self._newest.get(key[0], (0, 0)):
            # Nobody sends one again: one whose answers were lost makes room for others.
            while len(self._open) >= self._capacity:
                self._drop(next(iter(self._open)))
            round_ = self._open[key] = _Round(self._graph.partitions)
        return round_

    def _drop(self, key: Key) -> _Round | None:
        round_ = self._open.pop(key, None)
        if round_ is not None:
            self.bytes -= _size(round_)
        return round_

    def _settle(self, key: Key, round_: _Round) -> None:
        until = _until(self._graph, self._quorum, round_.indexes)
        if round_.reads is None or until is None:
            return
        if round_.until is None or until < round_.until:
            round_.until = until
            heapq.heappush(self._waiting, (until, key))
            if len(self._waiting) > _STALE_TIMES * self._capacity:
                self._waiting = [(round_.until, key) for key, round_ in self._open.items() if round_.until is not None]
                heapq.heapify(self._waiting)


class StartIndex:
    """How far something may have been decided when an executor started: everything below, it has to know before it
    executes anything."""

    def __init__(self, graph: Graph, quorum: int) -> None:
        self._graph = graph
        self._quorum = quorum
        self._indexes: list[dict[int, t.ReadIndex]] = [{} for _ in range(graph.partitions)]
        #: An execution number; None: not known yet. Falls, as more committers answer.
        self.until: int | None = None

    def index(self, index: t.ReadIndex) -> None:
        known = self._indexes[index.partition].get(index.committer)
        if known is None or index.incarnation > known.incarnation:
            self._indexes[index.partition][index.committer] = index
            self.until = _until(self._graph, self._quorum, self._indexes)


def _until(graph: Graph, quorum: int, indexes: list[dict[int, t.ReadIndex]]) -> int | None:
    """The execution number below which everything is that may be decided; None: too few have answered."""
    positions = [_position(graph, quorum, answers) for answers in indexes]
    if None in positions:
        return None
    return max(
        (position - 1) * graph.partitions + partition + 1 if position else 0
        for partition, position in enumerate(positions)
        if position is not None
    )


def _position(graph: Graph, quorum: int, answers: dict[int, t.ReadIndex]) -> int | None:
    """How far everything is accepted that may be decided, by f+1 committers or more, none of which another one knows to
    have lost its journal since."""
    if len(answers) < quorum:
        return None
    usable = current(list(answers.values()), lambda answer: graph.member(Stage.COMMITTER, answer.committer))
    return sorted([answer.position for answer in usable])[graph.f] if len(usable) >= quorum else None


def _size(round_: _Round) -> int:
    return sum([len(read.payload) + READ_BYTES for read in round_.reads or ()])
