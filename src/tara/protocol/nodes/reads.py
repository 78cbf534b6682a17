"""Reads: questions that are answered by one executor, linearizably, without a place in the order.

The committers say how far they have accepted requests. A command that was answered before the question came had been
accepted by f+1 committers, so at least one of any f+1 that answer knows of it: unless that one lost its memory, and
then the answers of the others expose it (rule R2, as for records). When this executor has executed that far, its state
contains everything that the asking client may have heard of. (Quorum reads: Charapko et al., HotStorage 2019.)

The more committers answer, the less has to be waited for: at most f of them do not know of that command, so the next
one above the f lowest answers does. With all 2f+1, nothing is waited for that f+1 have not accepted, that is, nothing
that is not decided.
"""

import heapq

from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.incarnations import current

Key = tuple[int, int, int]

#: Entries of the queue, as a multiple of the reads that may be open, at which those that stand for nothing are removed.
_STALE_TIMES = 4

#: Bytes of answers that are given at once. Few questions can ask for much; those beyond this are to be asked again.
ANSWERED_BYTES_MAX = 16 << 20


#: What a question takes beside its payload, about.
QUESTION_BYTES = 64


class _Read:
    """One read: its questions, and what the committers of each partition answered."""

    __slots__ = ("indexes", "questions", "until")

    def __init__(self, partitions: int) -> None:
        self.questions: list[t.Question] | None = None
        self.indexes: list[dict[int, t.ReadIndex]] = [{} for _ in range(partitions)]
        #: It can be answered when the requests below this execution number are executed; None: not known yet. Falls.
        self.until: int | None = None


class Reads:
    """Invariant: at most `capacity` reads are open, with at most `bytes_max` bytes of questions; `_waiting` has at most
    a few entries for each."""

    def __init__(self, graph: Graph, quorum: int, capacity: int, bytes_max: int) -> None:
        self._graph = graph
        self._quorum = quorum
        self._capacity = capacity
        self._bytes_max = bytes_max
        #: Bytes of the questions in `_open`.
        self.bytes = 0
        self._open: dict[Key, _Read] = {}
        #: Reads whose questions and whose `until` are known, the nearest first; and again for each `until` they had.
        self._waiting: list[tuple[int, Key]] = []
        #: Of each source, its epoch and the newest read of it whose questions have come. What comes for an older one
        #: that is not open comes too late.
        self._newest: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        """What it keeps: open reads, and entries of the queue."""
        return max(len(self._open), len(self._waiting))

    def ask(self, questions: t.Questions) -> None:
        key = (questions.source, questions.epoch, questions.nonce)
        read = self._find(key)
        if read is None or read.questions is not None:
            return
        self._newest[questions.source] = max(self._newest.get(questions.source, (0, 0)), key[1:])
        read.questions = questions.questions
        self.bytes += _size(read)
        while self.bytes > self._bytes_max:
            self._drop(next(iter(self._open)))
        if key in self._open:
            self._settle(key, read)

    def index(self, index: t.ReadIndex) -> None:
        key = (index.source, index.epoch, index.nonce)
        read = self._find(key)
        if read is not None:
            read.indexes[index.partition][index.committer] = index
            self._settle(key, read)

    def due(self, executed: int) -> list[t.Question]:
        """The questions that can be answered when the requests below this execution number are executed."""
        found: list[t.Question] = []
        while self._waiting and self._waiting[0][0] <= executed:
            _, key = heapq.heappop(self._waiting)
            read = self._drop(key)
            if read is not None and read.questions is not None:
                found += read.questions
        return found

    def _find(self, key: Key) -> _Read | None:
        """The read; None if it is over."""
        read = self._open.get(key)
        if read is None and key[1:] > self._newest.get(key[0], (0, 0)):
            # Nobody sends a read again: one whose answers were lost makes room for others.
            while len(self._open) >= self._capacity:
                self._drop(next(iter(self._open)))
            read = self._open[key] = _Read(self._graph.partitions)
        return read

    def _drop(self, key: Key) -> _Read | None:
        read = self._open.pop(key, None)
        if read is not None:
            self.bytes -= _size(read)
        return read

    def _settle(self, key: Key, read: _Read) -> None:
        until = _until(self._graph, self._quorum, read.indexes)
        if read.questions is None or until is None:
            return
        if read.until is None or until < read.until:
            read.until = until
            heapq.heappush(self._waiting, (until, key))
            if len(self._waiting) > _STALE_TIMES * self._capacity:
                self._waiting = [(read.until, key) for key, read in self._open.items() if read.until is not None]
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
    have lost its memory since."""
    if len(answers) < quorum:
        return None
    usable = current(list(answers.values()), lambda answer: graph.member(Stage.COMMITTER, answer.committer))
    return sorted([answer.position for answer in usable])[graph.f] if len(usable) >= quorum else None


def _size(read: _Read) -> int:
    return sum([len(question.payload) + QUESTION_BYTES for question in read.questions or ()])
