"""A committer that lost a part of its journal: it keeps its promise, says nothing that it does not know, and gets what
it lacks from the next view."""

import pytest

from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.view_source import ViewSource
from tests.protocol.driver import Bench, Driven, blank, request, requests

LOST = t.Lost()


@pytest.fixture
def bench() -> Bench:
    return Bench(window=16, checkpoint_interval=4)


def back(bench: Bench, *journal: t.ReplayedEntry) -> Driven[Committer]:
    return bench.make(Committer, Stage.COMMITTER, genesis=False, life=2, incarnation=2, journal=journal)


def voting(bench: Bench) -> tuple[Driven[Committer], list[t.ReplayedEntry]]:
    """Slots 0 to 5 in view 1, one entry each."""
    committer = bench.make(Committer, Stage.COMMITTER)
    journal: list[t.ReplayedEntry] = list(committer.take().persisted)
    journal += committer.feed(*bench.views(1), bench.start(1)).persisted
    for slot in range(6):
        journal += committer.feed(bench.proposal(1, slot, [request(slot)])).persisted
    return committer, journal


def gap(journal: list[t.ReplayedEntry], first: int, end: int, after: t.Resumed) -> list[t.ReplayedEntry]:
    """These entries are missing; at the end stands what the end marker says."""
    return [*journal[:first], LOST, *journal[end:], after]


def test_only_the_slots_whose_votes_are_missing_are_holes(bench: Bench) -> None:
    """The view is the same before the gap and after it: nothing was voted for twice."""
    original, journal = voting(bench)
    copy = back(bench, *gap(journal, 5, 7, original.node.acceptor.resumed()))
    assert copy.node.acceptor.resumed() == original.node.acceptor.resumed()
    assert copy.node.acceptor.holes == {2, 3}
    assert [copy.node.acceptor.commits[slot] for slot in (0, 1, 4, 5)] == requests(0, 2) + requests(4, 6)


def test_a_lost_end_is_holes_up_to_where_the_marker_says(bench: Bench) -> None:
    original, journal = voting(bench)
    copy = back(bench, *journal[:-2], LOST, original.node.acceptor.resumed())
    assert copy.node.acceptor.holes == {4, 5}
    assert copy.node.acceptor.commits.pos == 6


def test_a_lost_end_without_a_marker_leaves_nothing_to_go_on_with(bench: Bench) -> None:
    _, journal = voting(bench)
    with pytest.raises(NodeHalted, match="nobody knows what it has promised"):
        back(bench, *journal[:-2], LOST)


def test_across_a_view_change_only_what_was_voted_for_since_is_known(bench: Bench) -> None:
    """A vote of a higher view may be in the gap."""
    original, journal = voting(bench)
    journal += original.feed(*bench.views(3), bench.start(3, 0, 6)).persisted
    for slot in range(3):
        journal += original.feed(bench.proposal(3, slot, [request(slot)])).persisted
    # The promise of view 3, its start and the first vote are missing.
    copy = back(bench, *gap(journal, len(journal) - 5, len(journal) - 2, original.node.acceptor.resumed()))
    assert copy.node.acceptor.resumed() == original.node.acceptor.resumed()
    assert copy.node.acceptor.holes == {0, 3, 4, 5}
    assert copy.node.acceptor.commits.slice(1, 3) == requests(1, 3)


def test_with_another_memory_everything_before_the_gap_is_void(bench: Bench) -> None:
    _, journal = voting(bench)
    after = t.Resumed(9, 1, bench.incarnations, True, 0, 6, 0)
    copy = back(bench, *journal[:-1], LOST, after)
    assert (copy.node.acceptor.incarnation, copy.node.acceptor.holes) == (9, set(range(6)))


def test_what_the_journal_says_later_is_compared(bench: Bench) -> None:
    """A head that does not fit means that something is missing that nobody has noticed."""
    original, journal = voting(bench)
    with pytest.raises(NodeHalted, match="but what stands before that comes to"):
        back(bench, *journal[:-1], original.node.acceptor.resumed())


@pytest.mark.parametrize("missing", [3, 4, 5])
def test_votes_that_do_not_follow_each_other_are_refused(bench: Bench, missing: int) -> None:
    """Whether or not Python checks assertions."""
    _, journal = voting(bench)
    with pytest.raises(NodeHalted, match="but slot"):
        back(bench, *journal[:missing], *journal[missing + 1 :])


def holed(bench: Bench) -> Driven[Committer]:
    original, journal = voting(bench)
    return back(bench, *gap(journal, 5, 7, original.node.acceptor.resumed()))


def test_it_votes_on_and_says_how_far_it_is(bench: Bench) -> None:
    copy = holed(bench)
    commit = copy.feed(bench.proposal(1, 6, [request(6)])).only(t.Commit)
    assert (commit.first, commit.requests) == (6, [request(6)])
    assert copy.feed(blank(t.IndexRequest, nonce=7)).only(t.ReadIndex).position == 7


def test_it_promises_a_view_but_has_no_record_for_it(bench: Bench) -> None:
    copy = holed(bench)
    step = copy.feed(*bench.views(2))
    assert step.written(t.Promised) == [t.Promised(2, bench.incarnations)]
    assert step.of(t.Record) == []
    assert all(copy.tick(100.0 * turn).of(t.Record) == [] for turn in range(1, 40))


def test_a_stable_checkpoint_covers_holes_and_the_record_goes_out(bench: Bench) -> None:
    copy = holed(bench)
    copy.feed(*bench.views(2))
    copy.feed(*bench.stables(1))
    assert copy.node.acceptor.holes == set()
    records = [record for turn in range(1, 40) for record in copy.tick(100.0 * turn).of(t.Record)]
    assert records
    assert (records[0].minimum, [slot.request.number for slot in records[0].slots]) == (4, [4, 5])


def test_it_asks_for_a_view_with_the_same_proposer(bench: Bench) -> None:
    copy = holed(bench)
    asked = [presence for turn in range(1, 60) for presence in copy.tick(100.0 * turn).of(t.Presence)]
    assert 2 <= len(asked) <= 8, "ever less often"
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    view = source.feed(asked[0]).of(t.View)[-1].view
    assert view == 1 + bench.graph.f + 1
    assert bench.graph.proposer_of(view) == bench.graph.proposer_of(1)
    assert source.feed(asked[0]).of(t.View) == []


def test_the_new_view_fills_the_holes(bench: Bench) -> None:
    """What it proposes again is voted for; behind that, nothing was decided in lower views."""
    copy = holed(bench)
    copy.node.acceptor.holes.add(5)
    copy.feed(*bench.views(3), bench.start(3, 0, 5))
    assert copy.node.acceptor.holes == {2, 3}
    step = copy.feed(bench.proposal(3, 0, requests(0, 5)))
    assert len(step.of(t.Commit)) == 1
    assert copy.node.acceptor.holes == set()
    record = copy.feed(*bench.views(4)).only(t.Record)
    assert [slot.view for slot in record.slots] == [3] * 5 + [0]


def test_a_hole_is_not_sent_again(bench: Bench) -> None:
    copy = holed(bench)
    for round_ in range(1, 30):
        status = bench.status(0, round_, positions=[0])
        copy.feed(*bench.stables(0, executors=[status]))
        for commit in copy.tick(100.0 * round_).of(t.Commit):
            assert (commit.first, len(commit.requests)) == (0, 2)
    lagging = bench.status(0, 40, positions=[2])
    copy.feed(*bench.stables(0, executors=[lagging]))
    assert [copy.tick(4000.0 + 100.0 * turn).of(t.Commit) for turn in range(10)] == [[]] * 10


def test_what_was_restored_comes_back(bench: Bench) -> None:
    copy = holed(bench)
    again = back(bench, copy.node.acceptor.restored())
    assert (again.node.acceptor.restored(), again.node.acceptor.holes) == (copy.node.acceptor.restored(), {2, 3})
    assert again.feed(bench.proposal(1, 6, [request(6)])).of(t.Commit) != []
