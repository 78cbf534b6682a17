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

Key = tuple[int, int, int]

#: Bytes of answers that are given at once. Few questions can ask for much; those beyond this are to be asked again.
ANSWERED_BYTES_MAX = 16 << 20


class _Read:
    """One read: its questions, and what the committers of each partition answered."""

    __slots__ = ("indexes", "questions", "until")

    def __init__(self, partitions: int) -> None:
        self.questions: list[t.Question] | None = None
        self.indexes: list[dict[int, t.ReadIndex]] = [{} for _ in range(partitions)]
        #: It can be answered when the requests below this execution number are executed; None: not known yet. Falls.
        self.until: int | None = None


class Reads:
    def __init__(self, graph: Graph, quorum: int, capacity: int) -> None:
        self._graph = graph
        self._quorum = quorum
        self._capacity = capacity
        self._open: dict[Key, _Read] = {}
        #: Reads whose questions and whose `until` are known, the nearest first.
        self._waiting: list[tuple[int, Key]] = []

    def ask(self, questions: t.Questions) -> None:
        key = (questions.source, questions.epoch, questions.nonce)
        read = self._find(key)
        if read.questions is None:
            read.questions = questions.questions
            self._settle(key, read)

    def index(self, index: t.ReadIndex) -> None:
        key = (index.source, index.epoch, index.nonce)
        read = self._find(key)
        read.indexes[index.partition][index.committer] = index
        self._settle(key, read)

    def due(self, executed: int) -> list[t.Question]:
        """The questions that can be answered when the requests below this execution number are executed."""
        found: list[t.Question] = []
        while self._waiting and self._waiting[0][0] <= executed:
            _, key = heapq.heappop(self._waiting)
            read = self._open.pop(key, None)
            if read is not None and read.questions is not None:
                found += read.questions
        return found

    def _find(self, key: Key) -> _Read:
        read = self._open.get(key)
        if read is None:
            # Nobody sends a read again: one whose answers were lost makes room for others.
            while len(self._open) >= self._capacity:
                del self._open[next(iter(self._open))]
            read = self._open[key] = _Read(self._graph.partitions)
        return read

    def _settle(self, key: Key, read: _Read) -> None:
        positions = [self._position(answers) for answers in read.indexes]
        if read.questions is None or None in positions:
            return
        partitions = self._graph.partitions
        until = max(
            (position - 1) * partitions + partition + 1 if position else 0
            for partition, position in enumerate(positions)
            if position is not None
        )
        if read.until is None or until < read.until:
            read.until = until
            heapq.heappush(self._waiting, (until, key))

    def _position(self, answers: dict[int, t.ReadIndex]) -> int | None:
        """How far everything is accepted that may be decided, by f+1 committers or more, none of which another one
        knows to have lost its memory since."""
        if len(answers) < self._quorum:
            return None
        known = [max(column) for column in zip(*(answer.memories for answer in answers.values()), strict=True)]
        usable = [
            answer.position
            for answer in answers.values()
            if answer.memory >= known[self._graph.member(Stage.COMMITTER, answer.committer)]
        ]
        return sorted(usable)[self._graph.f] if len(usable) >= self._quorum else None
