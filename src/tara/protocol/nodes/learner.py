"""The learner: what one partition has decided (the paper's "executor partition").

A slot is decided when f+1 committers have accepted it in the same view: then they hold the same request, and no
later view can propose another. The learner needs no view of its own. Per committer it keeps one run of votes, of
the highest view it has heard of: older votes are superseded, because whatever they could still have decided is
proposed again in the newer view.
"""

from collections import deque

from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.progress import SourceProgress, note_all


class Votes:
    """One committer's votes: the slots [first, end) in `view`."""

    __slots__ = ("end", "first", "requests", "view")

    def __init__(self) -> None:
        self.view = 0
        self.first = 0
        self.end = 0
        self.requests: list[t.Request] = []

    def replace(self, view: int, first: int, requests: list[t.Request]) -> None:
        self.view, self.first, self.end = view, first, first + len(requests)
        self.requests = list(requests)

    def add(self, first: int, requests: list[t.Request]) -> None:
        """Join another run of the same view. Of two runs with a gap between them, keep the earlier one."""
        end = first + len(requests)
        if self.first <= first <= self.end:
            if end > self.end:
                self.requests.extend(requests[self.end - first :])
                self.end = end
        elif end < self.first or end >= self.end or self.first == self.end:
            if first < self.first or self.first == self.end:
                self.replace(self.view, first, requests)
        elif first < self.first:
            self.requests[:0] = requests[: self.first - first]
            self.first = first

    def drop_below(self, slot: int) -> None:
        if slot >= self.end:
            self.first = self.end
            self.requests.clear()
        elif slot > self.first:
            del self.requests[: slot - self.first]
            self.first = slot


class Learner:
    def __init__(self, partition: int, committers: int, sources: int, quorum: int, capacity: int) -> None:
        self._partition = partition
        self._quorum = quorum
        self._capacity = capacity
        self._votes = [Votes() for _ in range(committers)]
        #: Decided requests that are not executed yet, with the first one's slot below `position`.
        self.decided: deque[t.Request] = deque()
        #: The next slot to decide. Never falls (but for a node's restart).
        self.position = 0
        #: Bytes of requests that were decided by votes.
        self.bytes = 0
        #: The decided requests of each source. Ahead of what is executed while another partition is waited for: it
        #: must count as progress here, or each partition would take the others' trouble for its own.
        self.progress = [SourceProgress() for _ in range(sources)]

    def commit(self, commit: t.Commit) -> bool:
        """Take votes; true when they decided something."""
        votes = self._votes[commit.committer]
        if commit.view < votes.view:
            return False
        # Votes beyond the capacity would let a fast committer fill our memory; they are sent again later.
        end = self.position - len(self.decided) + self._capacity
        first = max(commit.first, self.position)
        requests = commit.requests[first - commit.first : max(end - commit.first, 0)]
        if commit.view > votes.view:
            votes.replace(commit.view, first, requests)
        elif requests:
            votes.add(first, requests)
        before = self.position
        while self._decide(commit.view):
            pass
        return self.position > before

    def _decide(self, view: int) -> bool:
        position = self.position
        voters = [votes for votes in self._votes if votes.view == view and votes.first <= position < votes.end]
        if len(voters) < self._quorum:
            return False
        voters.sort(key=_end, reverse=True)
        end = voters[self._quorum - 1].end
        run = voters[0].requests[: end - position]
        for other in voters[1 : self._quorum]:
            if other.requests[: end - position] != run:
                raise NodeHalted(
                    f"partition {self._partition}, view {view}: committers accepted different requests "
                    f"for one slot in [{position}, {end})"
                )
        self.decided.extend(run)
        self.bytes += sum([len(request.body) for request in run])
        self.position = end
        note_all(self.progress, run)
        for votes in self._votes:
            votes.drop_below(end)
        return True

    def jump(self, slot: int, progress: list[SourceProgress]) -> None:
        """The state up to this slot came from a checkpoint, and so did the progress."""
        while self.decided and self.position - len(self.decided) < slot:
            self.decided.popleft()
        self.position = max(self.position, slot)
        self.progress = progress
        note_all(self.progress, self.decided)
        for votes in self._votes:
            votes.drop_below(slot)
        views = sorted({votes.view for votes in self._votes})
        for view in views:
            while self._decide(view):
                pass


def _end(votes: Votes) -> int:
    return votes.end
