"""A committer and its journal: how it starts from it, and how it comes back without it."""

import pytest

from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.proposer import Mode, Proposer
from tara.protocol.nodes.view_source import ViewSource
from tests.protocol.driver import FIRST_INCARNATION, Bench, Driven, Step, request, requests

#: The committer that loses its journal, and the number of its next one.
LOST = 1
MEMORY = 2
#: The view that knows of it, in a system that was in view 1.
VIEW = 3


@pytest.fixture
def bench() -> Bench:
    return Bench()


def knowing(bench: Bench, incarnation: int = MEMORY) -> list[int]:
    """The incarnations of a partition that has heard of the loss."""
    incarnations = bench.incarnations
    incarnations[bench.graph.member(Stage.COMMITTER, LOST)] = incarnation
    return incarnations


def start_from(
    bench: Bench,
    committers: list[int],
    first: int = 0,
    next_slot: int = 0,
    view: int = VIEW,
    unaware: tuple[int, ...] = (),
) -> t.Start:
    """The start of a view, on the records of these committers; the unaware ones had not heard of the loss."""
    proposer = bench.graph.proposer_of(view)
    assert proposer is not None
    credentials = [
        t.Credential(
            committer,
            MEMORY if committer == LOST else FIRST_INCARNATION,
            bench.incarnations if committer in unaware else knowing(bench),
        )
        for committer in committers
    ]
    return t.Start(proposer, 0, view, knowing(bench), credentials, first, next_slot)


def forgetful(bench: Bench, incarnation: int = MEMORY) -> Driven[Committer]:
    """A committer that starts without a journal, and not for the first time."""
    return bench.make(Committer, Stage.COMMITTER, LOST, genesis=False, life=incarnation, incarnation=incarnation)


def is_silent(step: Step) -> bool:
    """Whether nothing was promised: no vote, no record, nothing in the journal."""
    return not step.persisted and not step.of(t.Commit) and not step.of(t.Record)


def test_at_genesis_the_journal_begins_before_anything_is_promised(bench: Bench) -> None:
    """From then on, a start without a journal means that it was lost, and cannot be taken for the first start."""
    committer = bench.make(Committer, Stage.COMMITTER)
    (first,) = committer.take().persisted
    assert first == t.Resumed(FIRST_INCARNATION, 0, [FIRST_INCARNATION] * bench.graph.members, False, 0, 0, 0)
    again = bench.make(Committer, Stage.COMMITTER, genesis=False, life=2, incarnation=2, journal=[first])
    assert (again.node.acceptor.recovering, again.take().persisted) == (False, [])
    assert again.feed(*bench.views(1)).only(t.Record).incarnation == FIRST_INCARNATION


def test_a_committer_names_itself_in_its_record_whoever_else_knows_it(bench: Bench) -> None:
    """View sources that have started again know nobody's incarnation; the record is to count all the same."""
    for journal, genesis in (((), True), ([t.Resumed(1, 0, [0] * 5, False, 0, 0, 0)], False)):
        committer = bench.make(Committer, Stage.COMMITTER, 2, genesis=genesis, journal=journal)
        record = committer.feed(*bench.views(1, incarnations=[0] * 5)).only(t.Record)
        assert record.incarnations == [FIRST_INCARNATION] * 5


@pytest.mark.parametrize(
    "head", [t.Promised(1, [1] * 5), t.Started(1, 0, 0), t.Voted(1, 0, requests(0, 1)), t.Collected(4)]
)
def test_a_journal_without_its_head_is_refused(bench: Bench, head: t.JournalEntry) -> None:
    """What was promised before is not known: the first segment is missing, or the file is another one."""
    whole: list[t.JournalEntry] = [head, t.Promised(9, bench.incarnations)]
    with pytest.raises(NodeHalted, match=f"begins with {type(head).__name__}: its head is missing"):
        bench.make(Committer, Stage.COMMITTER, genesis=False, life=2, journal=whole)


@pytest.mark.parametrize("head", ["resumed", "installed"])
def test_the_incarnation_is_the_journals_not_the_hosts(bench: Bench, head: str) -> None:
    """The host counts starts; what a committer remembers outlives them."""
    heads: dict[str, t.JournalEntry] = {
        "resumed": t.Resumed(7, 0, [0] * bench.graph.members, False, 0, 0, 0),
        "installed": t.Installed(7, 1, bench.incarnations, 0, []),
    }
    committer = bench.make(Committer, Stage.COMMITTER, 0, genesis=False, life=9, incarnation=9, journal=[heads[head]])
    record = committer.feed(*bench.views(2)).only(t.Record)
    assert (committer.node.acceptor.incarnation, record.incarnation) == (7, 7)
    assert record.incarnations[bench.graph.member(Stage.COMMITTER, 0)] == 7
    assert committer.tick(0).only(t.CommitterStatus).incarnation == 7
    assert committer.node.acceptor.resumed().incarnation == 7


def test_a_status_names_the_checkpoint_that_the_window_begins_with(bench: Bench) -> None:
    """So that it is known even if every gc source has started again since."""
    committer = bench.make(Committer, Stage.COMMITTER)
    assert committer.tick(0).only(t.CommitterStatus).stable == 0
    committer.feed(*bench.stables(3))
    assert committer.tick(100).only(t.CommitterStatus).stable == 3


def test_a_committer_without_its_memory_promises_nothing(bench: Bench) -> None:
    """No record, no vote, no threshold: an empty record could let decided requests be forgotten. Not even in a view
    that knows of the loss, until that view's start has told what may have been decided before."""
    committer = forgetful(bench)
    assert committer.node.acceptor.recovering
    assert is_silent(committer.take())
    proposal = bench.proposal(VIEW, 0, requests(0, 2))
    views = bench.views(VIEW, incarnations=knowing(bench))
    assert is_silent(committer.feed(*views, *bench.stables(1), proposal, bench.start(VIEW), proposal))
    assert all(is_silent(committer.tick(100.0 * turn)) for turn in range(20))


def test_it_asks_for_a_view_that_knows_of_it_again_and_again(bench: Bench) -> None:
    committer = forgetful(bench)
    for turn in range(3):
        step = committer.tick(100.0 * turn)
        presence = step.only(t.Presence)
        member = bench.graph.member(Stage.COMMITTER, LOST)
        assert (presence.member, presence.incarnation, presence.view) == (member, MEMORY, 0)
        assert step.receivers(t.Presence) == [bench.graph.all(Stage.VIEW_SINK)]
        assert step.only(t.CommitterStatus).position == -1


@pytest.mark.parametrize("f", [1, 2, 3])
@pytest.mark.parametrize("view", [1, 2, 6])
def test_the_next_view_that_knows_it_has_the_same_proposer(f: int, view: int) -> None:
    """A lost disk is not to become an outage: the active proposer stays where it is. Once: a repeated wish is old."""
    bench = Bench(f)
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    for controller in range(f + 1):
        source.feed(t.Vote(controller, 0, 1, view, view))
    committer = forgetful(bench)
    presence = committer.tick(0).only(t.Presence)
    published = source.feed(presence).of(t.View)
    assert (published[-1].view, published[-1].incarnations) == (view + f + 1, knowing(bench))
    assert bench.graph.proposer_of(view + f + 1) == bench.graph.proposer_of(view)
    assert source.feed(presence, committer.tick(100).only(t.Presence)).of(t.View) == []


def test_a_restarted_active_proposer_is_still_replaced(bench: Bench) -> None:
    """When a whole site lost its disk: the proposer there may not become active again, so the view moves by one."""
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    proposer = bench.make(Proposer, Stage.PROPOSER, LOST, genesis=False, life=2, incarnation=2)
    source.feed(proposer.tick(0).only(t.Presence), forgetful(bench).tick(0).only(t.Presence))
    assert bench.graph.proposer_of(source.node.view) == 0
    assert source.node.incarnations == [1, 2, 1, 2, 1]


def test_a_start_without_slots_makes_it_full_at_once(bench: Bench) -> None:
    committer = forgetful(bench)
    step = committer.feed(start_from(bench, [0, 2], first=4, next_slot=4))
    assert step.persisted == [t.Installed(MEMORY, VIEW, knowing(bench), 4, [])]
    assert not committer.node.acceptor.recovering
    assert committer.feed(bench.proposal(VIEW, 4, requests(4, 6))).only(t.Commit).first == 4


def test_it_is_full_when_it_has_everything_that_is_proposed_again(bench: Bench) -> None:
    """One entry for all of it, so that it is there as a whole or not at all; then the votes leave."""
    committer = forgetful(bench)
    before = committer.feed(
        start_from(bench, [0, 2], first=4, next_slot=7),
        bench.proposal(VIEW, 4, requests(4, 5)),
        bench.proposal(VIEW, 6, requests(6, 7)),
    )
    assert is_silent(before)
    step = committer.feed(bench.proposal(VIEW, 5, requests(5, 8)))
    assert step.persisted == [t.Installed(MEMORY, VIEW, knowing(bench), 4, requests(4, 8))]
    assert step.emitted == [(t.Commit(LOST, 0, VIEW, 4, requests(4, 8)), bench.graph.all(Stage.EXECUTOR))]
    following = committer.feed(bench.proposal(VIEW, 8, requests(8, 9)))
    assert following.persisted == [t.Voted(VIEW, 8, requests(8, 9))]


def test_what_it_installed_leaves_in_tuples_that_fit() -> None:
    bench = Bench(run_length_max=2)
    step = forgetful(bench).feed(
        start_from(bench, [0, 2], next_slot=5),
        bench.proposal(VIEW, 0, requests(0, 5)),
    )
    assert [(commit.first, commit.requests) for commit in step.of(t.Commit)] == [
        (0, requests(0, 2)),
        (2, requests(2, 4)),
        (4, requests(4, 5)),
    ]


@pytest.mark.parametrize(
    ("f", "committers", "unaware", "full"),
    [
        (1, [0, 2], (), True),
        (1, [0, LOST], (), False),
        (1, [0, LOST, 2], (), True),
        (1, [0, 2], (2,), False),
        (2, [0, 2, 3], (), True),
        (2, [0, LOST, 2], (), False),
        (2, [0, 2, 3, 4], (0,), True),
        (2, [0, 2, 3, 4], (0, 4), False),
    ],
)
def test_f_plus_1_others_must_have_recorded_knowing_of_the_loss(
    f: int, committers: list[int], unaware: tuple[int, ...], full: bool
) -> None:
    """Any f+1 others share one with those that decided something together with it before; and who knew of the
    loss has recorded after it, so nothing was decided later."""
    committer = forgetful(Bench(f))
    step = committer.feed(start_from(Bench(f), committers, unaware=unaware))
    assert (len(step.written(t.Installed)), committer.node.acceptor.recovering) == (int(full), not full)


@pytest.mark.parametrize("incarnation", [1, 3])
def test_a_start_that_names_another_incarnation_of_it_is_not_taken(bench: Bench, incarnation: int) -> None:
    start = start_from(bench, [0, 2])
    other = t.Start(start.proposer, 0, VIEW, knowing(bench, incarnation), start.credentials, start.first, start.next)
    committer = forgetful(bench)
    assert is_silent(committer.feed(other))
    assert committer.node.acceptor.recovering


def test_who_is_left_out_of_a_view_asks_for_another(bench: Bench) -> None:
    """The view was started by records that did not know of it; view sources that did think that all is well."""
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    committer = forgetful(bench)
    source.feed(committer.tick(0).only(t.Presence))
    assert source.node.view == VIEW
    committer.feed(*bench.views(VIEW, incarnations=knowing(bench)), start_from(bench, [0, 2], unaware=(2,)))
    presence = committer.tick(100).only(t.Presence)
    published = source.feed(presence).of(t.View)
    assert (published[-1].view, published[-1].incarnations) == (VIEW + 2, knowing(bench))
    committer.feed(*bench.views(VIEW + 2, incarnations=knowing(bench)))
    assert source.feed(committer.tick(200).only(t.Presence)).of(t.View) == []


def test_a_view_change_on_the_way_begins_it_all_again(bench: Bench) -> None:
    """What the former view proposed again stands for nothing in the next one, which may have chosen otherwise."""
    committer = forgetful(bench)
    committer.feed(start_from(bench, [0, 2], next_slot=3), bench.proposal(VIEW, 0, requests(0, 2)))
    newer = VIEW + 1
    assert is_silent(committer.feed(*bench.views(newer, incarnations=knowing(bench))))
    others = requests(10, 12)
    step = committer.feed(start_from(bench, [0, 2], next_slot=2, view=newer), bench.proposal(newer, 0, others))
    assert step.persisted == [t.Installed(MEMORY, newer, knowing(bench), 0, others)]
    record = committer.feed(*bench.views(newer + 1, incarnations=knowing(bench))).only(t.Record)
    assert record.slots == [t.Accepted(newer, item) for item in others]


def test_a_crash_on_the_way_leaves_nothing_behind(bench: Bench) -> None:
    """Its next life has another incarnation, so nobody counts on what this one may have heard."""
    committer = forgetful(bench)
    step = committer.feed(start_from(bench, [0, 2], next_slot=3), bench.proposal(VIEW, 0, requests(0, 2)))
    assert step.persisted == []
    again = forgetful(bench, incarnation=3)
    assert again.node.acceptor.recovering
    assert again.tick(0).only(t.Presence).incarnation == 3
    assert is_silent(again.feed(start_from(bench, [0, 2], next_slot=3), bench.proposal(VIEW, 0, requests(0, 3))))


def installed(bench: Bench) -> tuple[Driven[Committer], list[t.JournalEntry]]:
    """A committer that is full again and has voted since, and its journal."""
    committer = forgetful(bench)
    step = committer.feed(
        start_from(bench, [0, 2], first=4, next_slot=6),
        bench.proposal(VIEW, 4, requests(4, 6)),
        bench.proposal(VIEW, 6, [request(42)]),
    )
    return committer, step.persisted


def test_a_journal_may_begin_with_what_was_installed(bench: Bench) -> None:
    original, journal = installed(bench)
    assert [type(entry) for entry in journal] == [t.Installed, t.Voted]
    copy = bench.make(Committer, Stage.COMMITTER, LOST, genesis=False, life=5, incarnation=5, journal=journal)
    assert not copy.node.acceptor.recovering
    assert copy.node.acceptor.resumed() == original.node.acceptor.resumed()
    views = bench.views(VIEW + 1, incarnations=knowing(bench))
    records = [committer.feed(*views).only(t.Record) for committer in (original, copy)]
    assert records[0] == records[1]
    assert (records[1].incarnation, records[1].minimum, records[1].end) == (MEMORY, 4, 7)


def test_whatever_stands_before_it_in_the_journal_is_void(bench: Bench) -> None:
    _, journal = installed(bench)
    void: list[t.JournalEntry] = [
        t.Resumed(1, 0, bench.incarnations, False, 0, 0, 0),
        t.Promised(1, bench.incarnations),
        t.Started(1, 0, 0),
        t.Voted(1, 0, requests(20, 28)),
        t.Promised(2, bench.incarnations),
    ]
    copies = [
        bench.make(Committer, Stage.COMMITTER, LOST, genesis=False, life=5, incarnation=5, journal=whole)
        for whole in ([*void, *journal], journal)
    ]
    views = bench.views(VIEW + 1, incarnations=knowing(bench))
    assert copies[0].node.acceptor.resumed() == copies[1].node.acceptor.resumed()
    assert copies[0].feed(*views).only(t.Record) == copies[1].feed(*views).only(t.Record)


def test_with_its_record_and_one_other_a_view_starts(bench: Bench) -> None:
    """It counts again: its record knows the incarnation that the others know (rule R2)."""
    committer, _ = installed(bench)
    view = VIEW + 1
    incarnations = knowing(bench)
    record = committer.feed(*bench.views(view, incarnations=incarnations)).only(t.Record)
    proposer = bench.make(Proposer, Stage.PROPOSER, 0)
    proposer.feed(
        *bench.views(view, incarnations=incarnations), record, bench.record(2, view, incarnations=incarnations)
    )
    assert proposer.node.mode is Mode.ACTIVE
    former = bench.make(Proposer, Stage.PROPOSER, 0)
    old = bench.record(LOST, view, incarnation=FIRST_INCARNATION)
    former.feed(*bench.views(view, incarnations=incarnations), old, bench.record(2, view, incarnations=incarnations))
    assert former.node.mode is Mode.COLLECTING
