"""The learner against brute force: a slot is decided iff f+1 committers voted for it in the same view."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.nodes.learner import Learner
from tara.protocol.progress import SourceProgress

COMMITTERS, QUORUM = 3, 2
SLOTS = 16


def request_of(view: int, slot: int) -> t.Request:
    """The one request that the view's proposer proposed for the slot; another one in every view."""
    return t.Request(0, 1, slot, view, b"")


def vote(committer: int, view: int, first: int, end: int) -> t.Commit:
    return t.Commit(committer, 0, view, first, [request_of(view, slot) for slot in range(first, end)])


def learner(capacity: int = SLOTS) -> Learner:
    return Learner(partition=0, committers=COMMITTERS, sources=1, quorum=QUORUM, capacity=capacity)


class Model:
    """Everybody's votes, slot by slot and view by view."""

    def __init__(self) -> None:
        self._voters: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self._views: set[int] = set()

    def commit(self, commit: t.Commit) -> None:
        self._views.add(commit.view)
        for slot in range(commit.first, commit.first + len(commit.requests)):
            self._voters[commit.view, slot].add(commit.committer)

    def decisions(self, slot: int) -> list[t.Request]:
        """What may count as decided for the slot."""
        return [request_of(view, slot) for view in self._views if len(self._voters[view, slot]) >= QUORUM]


runs = st.tuples(st.integers(0, SLOTS), st.integers(0, SLOTS)).map(lambda ends: (min(ends), max(ends)))
votes = st.builds(
    lambda committer, view, run: vote(committer, view, *run), st.integers(0, COMMITTERS - 1), st.integers(1, 3), runs
)


@given(st.lists(votes, max_size=30))
def test_never_decides_what_the_votes_do_not(history: list[t.Commit]) -> None:
    """Reordered, repeated, overlapping, with gaps, and from several views."""
    subject, model = learner(), Model()
    for commit in history:
        before = list(subject.decided)
        decided = subject.commit(commit)
        model.commit(commit)
        after = list(subject.decided)
        assert len(after) == subject.position
        assert after[: len(before)] == before
        assert decided == (len(after) > len(before))
        for slot, request in enumerate(after):
            assert request in model.decisions(slot)


@given(st.data())
def test_votes_in_order_decide_exactly_what_f_plus_1_committers_have_voted(data: st.DataObject) -> None:
    """Each committer's runs follow or overlap each other; the runs of the committers interleave at will. (Late copies
    of runs that are decided already are left to the test below.)"""
    subject = learner()
    ends = [0] * COMMITTERS
    for committer in data.draw(st.lists(st.integers(0, COMMITTERS - 1), max_size=20)):
        first = data.draw(st.integers(0, ends[committer]))
        end = data.draw(st.integers(max(first, subject.position), SLOTS))
        subject.commit(vote(committer, 1, first, end))
        ends[committer] = max(ends[committer], end)
        assert subject.position == sorted(ends)[-QUORUM]
    assert list(subject.decided) == [request_of(1, slot) for slot in range(subject.position)]


def test_a_late_copy_of_a_decided_run_changes_nothing() -> None:
    subject = feed(learner(), [vote(0, 1, 0, 5), vote(1, 1, 0, 10)])
    assert subject.position == 5
    subject.commit(vote(1, 1, 0, 3))
    assert subject.commit(vote(0, 1, 5, 10))


@st.composite
def whole_logs(draw: st.DrawFn, view: int) -> list[t.Commit]:
    """All votes of f+1 committers for all slots, cut into runs that may overlap."""
    log = []
    committers = draw(st.sets(st.integers(0, COMMITTERS - 1), min_size=QUORUM))
    for committer in sorted(committers):
        cuts = sorted(draw(st.sets(st.integers(1, SLOTS - 1), max_size=5)) | {0, SLOTS})
        for first, end in pairwise(cuts):
            overlap = draw(st.integers(0, 2))
            log.append(vote(committer, view, max(first - overlap, 0), end))
    return log


@given(st.lists(votes, max_size=10), whole_logs(view=4), st.data())
def test_all_votes_of_a_view_in_any_order_decide_everything(
    older: list[t.Commit], log: list[t.Commit], data: st.DataObject
) -> None:
    """A run beyond a gap may be forgotten, and is sent again; older views may talk in between. Committers send again
    from the executor's position on, so late copies of decided runs come once (see the bug above)."""
    subject = learner()
    for commit in older:
        subject.commit(commit)
    # Every round brings at least the earliest run that is missing of each committer.
    rounds = 6
    for _ in range(rounds):
        for commit in data.draw(st.permutations([*log, *older])):
            if commit.first + len(commit.requests) > subject.position:
                subject.commit(commit)
    assert subject.position == SLOTS
    by_older, model = Model(), Model()
    for commit in older:
        by_older.commit(commit)
    for commit in [*older, *log]:
        model.commit(commit)
    for slot, request in enumerate(subject.decided):
        assert request in model.decisions(slot)
        if not by_older.decisions(slot):
            assert request == request_of(4, slot)


@given(st.lists(votes, max_size=30), st.integers(1, 6), st.data())
def test_holds_no_more_than_its_capacity(history: list[t.Commit], capacity: int, data: st.DataObject) -> None:
    """A fast committer must not fill our memory: what is decided but not executed is bounded."""
    subject, model = learner(capacity), Model()
    executed = 0
    for commit in history:
        subject.commit(commit)
        model.commit(commit)
        assert len(subject.decided) <= capacity
        assert subject.position == executed + len(subject.decided)
        for _ in range(data.draw(st.integers(0, len(subject.decided)))):
            assert subject.decided.popleft() in model.decisions(executed)
            executed += 1


def feed(subject: Learner, commits: Iterable[t.Commit]) -> Learner:
    for commit in commits:
        subject.commit(commit)
    return subject


def test_one_committer_alone_decides_nothing_however_often_it_votes() -> None:
    subject = feed(learner(), [vote(0, 1, 0, 3)] * 3)
    assert subject.position == 0


def test_votes_of_different_views_do_not_add_up() -> None:
    subject = feed(learner(), [vote(0, 1, 0, 3), vote(1, 2, 0, 3)])
    assert subject.position == 0
    assert subject.commit(vote(2, 2, 0, 3))
    assert list(subject.decided) == [request_of(2, slot) for slot in range(3)]


def test_a_vote_of_an_older_view_is_superseded() -> None:
    """What it could still have decided is proposed again in the newer view."""
    subject = feed(learner(), [vote(0, 2, 0, 1), vote(0, 1, 0, 3), vote(1, 1, 0, 3)])
    assert subject.position == 0


def test_waits_at_the_first_slot_that_is_missing() -> None:
    subject = feed(learner(), [vote(0, 1, 1, 4), vote(1, 1, 1, 4)])
    assert subject.position == 0
    feed(subject, [vote(0, 1, 0, 1), vote(1, 1, 0, 1)])
    assert subject.position == 4


def test_different_requests_for_one_slot_of_one_view_halt_it() -> None:
    """S9: votes are compared, not only counted."""
    subject = feed(learner(), [vote(0, 1, 0, 2)])
    conflict = t.Commit(1, 0, 1, 0, [request_of(1, 0), t.Request(0, 1, 9, 1, b"")])
    with pytest.raises(NodeHalted, match=r"partition 0, view 1.*\[0, 2\)"):
        subject.commit(conflict)


def test_an_empty_run_changes_nothing() -> None:
    subject = feed(learner(), [vote(0, 1, 0, 2), vote(1, 1, 5, 5), vote(1, 1, 0, 0)])
    assert not subject.decided
    assert subject.commit(vote(1, 1, 0, 2))


def test_a_jump_forgets_what_the_checkpoint_has() -> None:
    subject = feed(learner(), [vote(0, 1, 0, 6), vote(1, 1, 0, 3)])
    subject.jump(5, [SourceProgress()])
    assert (subject.position, list(subject.decided)) == (5, [])
    assert subject.commit(vote(1, 1, 3, 6))
    assert list(subject.decided) == [request_of(1, 5)]


def test_a_jump_uses_the_votes_that_wait_beyond_it() -> None:
    """L11: otherwise a restarted executor would hop from checkpoint to checkpoint."""
    subject = feed(learner(), [vote(0, 1, 5, 8), vote(2, 1, 4, 7)])
    subject.jump(5, [SourceProgress()])
    assert subject.position == 7
    assert list(subject.decided) == [request_of(1, 5), request_of(1, 6)]


def test_a_jump_keeps_what_is_decided_beyond_it() -> None:
    """With several partitions, one may be far ahead of the checkpoint that another one's lag makes necessary."""
    subject = feed(learner(), [vote(0, 1, 0, 8), vote(1, 1, 0, 8)])
    subject.jump(5, [SourceProgress()])
    assert subject.position == 8
    assert list(subject.decided) == [request_of(1, slot) for slot in range(5, 8)]


def test_progress_counts_what_is_decided() -> None:
    """Also while the execution waits for another partition; no-ops are nobody's progress."""
    subject = learner()
    run = [request_of(1, 0), t.NOOP, request_of(1, 1), request_of(1, 5)]
    feed(subject, [t.Commit(0, 0, 1, 0, run), t.Commit(1, 0, 1, 0, run[:3])])
    assert subject.progress == [SourceProgress(1, 2, set())]
    subject.commit(t.Commit(2, 0, 1, 0, run))
    assert subject.progress == [SourceProgress(1, 2, {5})]


def test_a_jump_takes_the_progress_of_the_checkpoint_and_adds_to_it() -> None:
    subject = feed(learner(), [vote(0, 1, 5, 8), vote(2, 1, 5, 8)])
    subject.jump(5, [SourceProgress(1, 5, {7})])
    assert subject.progress == [SourceProgress(1, 8, set())]


@given(st.lists(votes, max_size=20), st.integers(0, SLOTS), st.lists(votes, max_size=20))
def test_jumps_at_any_time_decide_nothing_wrong(before: list[t.Commit], slot: int, after: list[t.Commit]) -> None:
    subject, model = learner(2 * SLOTS), Model()
    for commit in before:
        subject.commit(commit)
        model.commit(commit)
    slot = max(slot, subject.position)
    subject.jump(slot, [SourceProgress()])
    for commit in after:
        subject.commit(commit)
        model.commit(commit)
    assert subject.position == slot + len(subject.decided)
    for number, request in enumerate(subject.decided, slot):
        assert request in model.decisions(number)
