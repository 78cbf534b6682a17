"""Section III-D (Garbage Collection): windows, checkpoints, the stability threshold, and catching up. What got lost is
sent again because of what others say of their state: there are no acknowledgements."""

import re

import msgspec
import pytest

from tara.application import Get, KeyValueStore, Put
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import LOAD_PAUSE_MS, Executor
from tara.protocol.nodes.gc_source import GcSource
from tara.protocol.nodes.proposer import Proposer
from tests.paper.test_request_handling import active_proposer, started_committer
from tests.protocol.driver import (
    Bench,
    Driven,
    base_of,
    batch,
    commits,
    loaded_nothing,
    open_session,
    replays,
    request,
    requests,
    session_id,
)

WINDOW, INTERVAL = 8, 4


@pytest.fixture
def bench() -> Bench:
    return Bench(window=WINDOW, checkpoint_interval=INTERVAL)


def proposed(step_proposals: list[t.Proposal]) -> list[int]:
    """The slots of some proposals."""
    return [proposal.first + offset for proposal in step_proposals for offset in range(len(proposal.requests))]


def test_a_proposer_with_a_full_window_waits_for_the_threshold(bench: Bench) -> None:
    """A replica whose window is full takes no part until the threshold rises; then the window moves on."""
    proposer = active_proposer(bench)
    step = proposer.feed(t.Requests(requests(0, 20)))
    assert proposed(step.of(t.Proposal)) == list(range(WINDOW))
    step = proposer.feed(*bench.stables(1))
    assert proposed(step.of(t.Proposal)) == list(range(WINDOW, WINDOW + INTERVAL))


def test_a_committer_with_a_full_window_waits_for_the_threshold(bench: Bench) -> None:
    committer = started_committer(bench)
    commit = committer.feed(bench.proposal(1, 0, requests(0, 12))).only(t.Commit)
    assert len(commit.requests) == WINDOW
    assert committer.feed(bench.proposal(1, 8, requests(8, 12))).of(t.Commit) == []
    committer.feed(*bench.stables(1))
    commit = committer.feed(bench.proposal(1, 8, requests(8, 14))).only(t.Commit)
    assert (commit.first, len(commit.requests)) == (8, INTERVAL)


def test_an_executor_holds_no_commits_beyond_its_window(bench: Bench) -> None:
    executor = bench.make(Executor, Stage.EXECUTOR)
    beyond = requests(WINDOW, WINDOW + 1)
    executor.feed(*commits(beyond, first=WINDOW))
    executor.feed(*commits(requests(0, WINDOW)))
    executor.feed(t.Saved(t.CheckpointId(1, b"digest")))
    assert executor.node.next == WINDOW
    executor.feed(*commits(beyond, first=WINDOW))
    assert executor.node.next == WINDOW + 1


class Filled:
    """An executor right after its first checkpoint, where it has taken a base."""

    def __init__(self, bench: Bench, replica: int = 0) -> None:
        self.executor = bench.make(Executor, Stage.EXECUTOR, replica)
        step = self.executor.feed(t.TakeBase(1), *commits([batch(0, [open_session()])]))
        session = session_id(step.only(t.Results).results[0])
        put = t.Command(session, 0, 0, msgspec.msgpack.encode(Put("k", b"v")))
        early = t.Command(session, 2, 0, msgspec.msgpack.encode(Get("k")))
        rest = self.executor.feed(*commits([batch(1, [put, early], time=50), *requests(2, 4)], first=1))
        self.checkpoint = rest.only(t.Mark).checkpoint
        #: What a store gives another executor: the base; or the requests instead.
        self.base = base_of(self.executor, rest)
        self.replays = [*replays(step, last=False), *replays(rest)]
        #: The result of its one command.
        (self.result,) = rest.only(t.Results).results


def announced(step_statuses: list[t.ExecutorStatus]) -> list[int]:
    return [checkpoint.number for checkpoint in step_statuses[-1].checkpoints]


def test_a_checkpoint_after_every_interval(bench: Bench) -> None:
    """Executors make a checkpoint whenever the next sequence number is a multiple of the interval. (We make none
    before the first command.)"""
    executor = bench.make(Executor, Stage.EXECUTOR)
    numbers = []
    for slot in range(10):
        step = executor.feed(*commits([request(slot)], first=slot))
        numbers += [(slot, mark.checkpoint.number) for mark in step.of(t.Mark)]
        executor.feed(*(t.Saved(mark.checkpoint) for mark in step.of(t.Mark)))
    assert numbers == [(3, 1), (7, 2)]


def test_a_run_across_a_checkpoint_is_marked_in_between(bench: Bench) -> None:
    """A checkpoint must not contain what comes after it, also if both are decided at once."""
    executor = bench.make(Executor, Stage.EXECUTOR)
    commands = [batch(0, [open_session()]), *requests(1, 4), batch(4, [open_session()])]
    step = executor.feed(*commits(commands))
    order = [type(tuple_) for tuple_, _ in step.emitted if isinstance(tuple_, t.Executed | t.Mark)]
    assert order == [t.Executed, t.Mark, t.Executed]
    other = bench.make(Executor, Stage.EXECUTOR, 1)
    assert other.feed(*commits(commands[:4])).only(t.Mark) == step.only(t.Mark)


def test_a_checkpoint_is_announced_to_the_gc_sinks_when_it_is_stored(bench: Bench) -> None:
    """First stored, then announced: with us the store says when what leads to the checkpoint is durable."""
    filled = Filled(bench)
    assert announced(filled.executor.tick(100).of(t.ExecutorStatus)) == []
    step = filled.executor.feed(t.Saved(filled.checkpoint))
    assert announced(step.of(t.ExecutorStatus)) == [1]
    assert step.receivers(t.ExecutorStatus) == [bench.graph.all(Stage.GC_SINK)]


def test_a_checkpoint_is_announced_again_and_again(bench: Bench) -> None:
    """We deviate (L9): the paper announces it once, so one lost tuple stalls a full window for ever."""
    filled = Filled(bench)
    filled.executor.feed(t.Saved(filled.checkpoint))
    for now_ms in (100, 200, 300):
        assert announced(filled.executor.tick(now_ms).of(t.ExecutorStatus)) == [1]


def test_however_slow_the_store_no_checkpoint_is_left_out(bench: Bench) -> None:
    """If executors left out different ones, a full window could wait for ever for one that f+1 of them have."""
    executor = bench.make(Executor, Stage.EXECUTOR)
    marks: list[t.Mark] = []
    for first in range(0, 16, INTERVAL):
        step = executor.feed(*commits(requests(first, first + 4), first=first))
        marks += step.of(t.Mark)
    for number in (1, 2):
        marks += executor.feed(t.Saved(marks[number - 1].checkpoint)).of(t.Mark)
    assert [mark.checkpoint.number for mark in marks] == [1, 2, 3, 4]


def test_an_executor_is_at_most_a_window_ahead_of_its_store(bench: Bench) -> None:
    """Not in the paper, where a checkpoint is written when it is made: what waits for the disk has a bound, and what a
    crash takes is not more than the others still have."""
    executor = bench.make(Executor, Stage.EXECUTOR)
    first = executor.feed(*commits(requests(0, WINDOW))).of(t.Mark)[0]
    step = executor.feed(*commits(requests(WINDOW, 2 * WINDOW), first=WINDOW))
    assert (executor.node.next, step.of(t.Executed)) == (WINDOW, [])
    executor.feed(t.Saved(first.checkpoint))
    assert executor.node.next == WINDOW + INTERVAL


def test_replicas_come_to_the_same_checkpoint_and_the_same_base(bench: Bench) -> None:
    """S11: they are compared by digest, so equal states must be equal bytes."""
    one, other = Filled(bench, 0), Filled(bench, 2)
    assert one.checkpoint == other.checkpoint
    assert one.checkpoint.digest != b""
    assert (one.base.state, one.base.digest) == (other.base.state, other.base.digest)


@pytest.mark.parametrize("how", ["base", "requests"])
def test_a_checkpoint_stands_for_application_filter_and_results(bench: Bench, how: str) -> None:
    """With it a replica continues as if it had executed everything itself: it knows the application's state, which
    commands are duplicates, and their results. With us also the early commands, the clock and the progress. It comes to
    it by a base, or by executing the same requests again."""
    original = Filled(bench)
    copy = bench.make(Executor, Stage.EXECUTOR, 2, genesis=how == "base", life=2)
    copy.node._must_look = False
    copy.feed(*([original.base] if how == "base" else [loaded_nothing(until=1), *original.replays]))
    assert copy.node.checkpoints == [original.checkpoint]
    duplicate = t.Command(original.result.session, 0, 0, b"whatever")
    read = t.Command(original.result.session, 1, 0, msgspec.msgpack.encode(Get("k")), t.QUERY)
    run = [batch(4, [duplicate, read])]
    answers = [node.feed(*commits(run, first=4)).only(t.Results).results for node in (original.executor, copy)]
    assert answers[0] == answers[1]
    assert answers[1][0] == original.result
    assert [msgspec.msgpack.decode(answer.payload) for answer in answers[1][1:]] == [b"v", b"v"]
    progress = [node.tick(500).only(t.Progress).progress for node in (original.executor, copy)]
    assert progress[0] == progress[1]
    assert progress[1][0] == (1, 5)


@pytest.mark.parametrize("f", [1, 2])
def test_the_threshold_is_what_f_plus_1_executors_hold(f: int) -> None:
    """The source takes the f+1-highest checkpoint, so one copy survives f crashes. Ours must also be equal."""
    bench = Bench(f)
    source = bench.make(GcSource, Stage.GC_SOURCE)
    checkpoint = t.CheckpointId(3, b"digest")
    for executor in range(f):
        assert source.feed(bench.status(executor, checkpoints=[checkpoint])).of(t.Stable) == []
    step = source.feed(bench.status(2 * f, checkpoints=[checkpoint]))
    assert {stable.checkpoint for stable in step.of(t.Stable)} == {checkpoint}


def test_the_threshold_goes_to_all_proposers_committers_and_executors(bench: Bench) -> None:
    """With us also to the request sources, which learn from it what became of their requests."""
    source = bench.make(GcSource, Stage.GC_SOURCE, 1)
    for executor in range(2):
        step = source.feed(bench.status(executor, checkpoints=[t.CheckpointId(1, b"d")]))
    receivers = step.receivers(t.Stable)
    for stage in (Stage.PROPOSER, Stage.COMMITTER, Stage.EXECUTOR, Stage.REQUEST_SOURCE):
        assert bench.graph.all(stage) in receivers


def test_states_that_differ_make_no_checkpoint_stable(bench: Bench) -> None:
    """Not in the paper (S11): f+1 executors must hold the same state, not only the same number."""
    source = bench.make(GcSource, Stage.GC_SOURCE)
    source.feed(bench.status(0, checkpoints=[t.CheckpointId(1, b"one")]))
    assert source.feed(bench.status(1, checkpoints=[t.CheckpointId(1, b"other")])).of(t.Stable) == []
    step = source.feed(bench.status(2, checkpoints=[t.CheckpointId(1, b"other")]))
    assert {stable.checkpoint.digest for stable in step.of(t.Stable)} == {b"other"}


def test_the_threshold_of_a_source_never_falls(bench: Bench) -> None:
    """An executor that starts again and holds less takes nothing back; late reports do not count."""
    source = bench.make(GcSource, Stage.GC_SOURCE)
    for executor in range(2):
        source.feed(bench.status(executor, 5, checkpoints=[t.CheckpointId(2, b"d")]))
    source.feed(bench.status(0, 4, checkpoints=[t.CheckpointId(1, b"d")]))
    source.feed(bench.status(0, 1, life=2), bench.status(1, 1, life=2))
    assert source.node.stable == t.CheckpointId(2, b"d")
    assert {stable.checkpoint.number for stable in source.tick(1000).of(t.Stable)} == {2}


@pytest.mark.parametrize("stage", [Stage.EXECUTOR, Stage.COMMITTER])
def test_a_threshold_that_anybody_knows_outlives_those_who_vouched_for_it(bench: Bench, stage: Stage) -> None:
    """Not in the paper: every status names the newest stable checkpoint that its sender knows of. Of a gc source that
    started again, that is enough to go on from there; only the digest is missing."""
    source = bench.make(GcSource, Stage.GC_SOURCE, genesis=False, life=2)
    status = bench.status(0, stable=3) if stage is Stage.EXECUTOR else bench.committer_status(0, stable=3)
    step = source.feed(status)
    assert {stable.checkpoint for stable in step.of(t.Stable)} == {t.CheckpointId(3, b"")}


def test_a_digest_is_adopted_when_it_becomes_known(bench: Bench) -> None:
    """And kept: who knows only the number takes nothing away. With it, a replica that diverged finds out."""
    source = bench.make(GcSource, Stage.GC_SOURCE)
    source.feed(bench.committer_status(0, stable=3))
    checkpoints = [t.CheckpointId(3, b"digest")]
    source.feed(bench.status(0, checkpoints=checkpoints), bench.status(1, checkpoints=checkpoints))
    assert source.node.stable == t.CheckpointId(3, b"digest")
    source.feed(bench.status(2, stable=3), *bench.stables(3, [1], digest=b""))
    assert source.node.stable == t.CheckpointId(3, b"digest")
    assert {stable.checkpoint.digest for stable in source.tick(0).of(t.Stable)} == {b"digest"}


def test_a_digest_is_adopted_from_another_source(bench: Bench) -> None:
    source = bench.make(GcSource, Stage.GC_SOURCE)
    source.feed(bench.committer_status(0, stable=3), *bench.stables(3, [1]))
    assert source.node.stable == t.CheckpointId(3, b"digest")


def test_an_executor_reports_the_threshold_and_where_the_window_ends(bench: Bench) -> None:
    """So that controllers can tell a full window from a dead proposer."""
    executor = bench.make(Executor, Stage.EXECUTOR)
    step = executor.tick(0)
    assert (step.only(t.ExecutorStatus).stable, step.only(t.Progress).window_end) == (0, WINDOW)
    executor.feed(*commits(requests(0, 8)), *bench.stables(2))
    step = executor.tick(100)
    assert (step.only(t.ExecutorStatus).stable, step.only(t.Progress).window_end) == (2, 2 * INTERVAL + WINDOW)


@pytest.mark.parametrize("partitions", [1, 2])
def test_where_there_are_no_other_sources_nothing_is_sent_to_them(partitions: int) -> None:
    """With f = 0 there is one of each."""
    bench = Bench(0, partitions)
    source = bench.make(GcSource, Stage.GC_SOURCE)
    step = source.feed(bench.status(0, checkpoints=[t.CheckpointId(1, b"d")]))
    assert {stable.checkpoint.number for stable in step.of(t.Stable)} == {1}
    assert Stage.GC_SOURCE not in {receivers.stage for receivers in step.receivers(t.Stable)}
    assert all(receivers.numbers for _, receivers in [*step.emitted, *source.tick(0).emitted])


def test_the_threshold_is_published_again_and_again(bench: Bench) -> None:
    """L9, with everybody's newest reports: all sending again is driven by them."""
    source = bench.make(GcSource, Stage.GC_SOURCE)
    old, new = bench.status(0, 1), bench.status(0, 2, positions=[7])
    committer = bench.committer_status(1, view=3, position=4)
    source.feed(old, new, committer)
    for now_ms in (100, 200):
        stables = source.tick(now_ms).of(t.Stable)
        assert stables
        assert all((stable.executors, stable.committers) == ([new], [committer]) for stable in stables)


def test_a_source_learns_from_other_sources(bench: Bench) -> None:
    """Appendix: sources put their threshold into each other's queues, for those whose sink missed something."""
    source = bench.make(GcSource, Stage.GC_SOURCE, 0)
    step = source.feed(*bench.stables(2, [1]))
    assert {stable.checkpoint.number for stable in step.of(t.Stable)} == {2}


@pytest.mark.parametrize("sources", [[0], [0, 0], [2, 2, 2]])
def test_one_gc_source_alone_moves_nobody(bench: Bench, sources: list[int]) -> None:
    """Others take the threshold from f+1 sources: then it is known to one that survives."""
    proposer, committer = active_proposer(bench), started_committer(bench)
    executor = bench.make(Executor, Stage.EXECUTOR)
    stables = bench.stables(1, sources)
    proposer.feed(*stables)
    committer.feed(*stables)
    step = executor.feed(*stables)
    assert (proposer.node.proposals.min, committer.node.acceptor.commits.min, step.of(t.Load)) == (0, 0, [])


def test_f_plus_1_gc_sources_move_everybody(bench: Bench) -> None:
    """The lower of two thresholds counts; what is below is discarded."""
    proposer, committer = active_proposer(bench), started_committer(bench)
    proposer.feed(t.Requests(requests(0, 6)))
    committer.feed(bench.proposal(1, 0, requests(0, 6)))
    stables = [*bench.stables(1, [0]), *bench.stables(2, [2])]
    proposer.feed(*stables)
    step = committer.feed(*stables)
    assert (proposer.node.proposals.min, proposer.node.proposals.pos) == (4, 6)
    assert (committer.node.acceptor.commits.min, committer.node.acceptor.commits.pos) == (4, 6)
    assert committer.node.acceptor.records.min == 4
    assert step.written(t.Collected) == [t.Collected(4)]


def test_a_window_never_moves_back(bench: Bench) -> None:
    committer = started_committer(bench)
    committer.feed(*bench.stables(2))
    step = committer.feed(*bench.stables(1))
    assert (committer.node.acceptor.commits.min, step.persisted) == (8, [])


def test_a_proposal_teaches_the_threshold(bench: Bench) -> None:
    """Not in the paper: a committer that missed the threshold would refuse what lies beyond its window."""
    committer = started_committer(bench)
    committer.feed(bench.proposal(1, 0, requests(0, 8)))
    commit = committer.feed(bench.proposal(1, 8, requests(8, 10), stable=4)).only(t.Commit)
    assert (commit.first, committer.node.acceptor.commits.min) == (8, 4)


def test_an_executor_forgets_checkpoints_below_the_threshold(bench: Bench) -> None:
    """It announces the stable one and newer ones. What its store keeps of older ones is the store's business."""
    executor = bench.make(Executor, Stage.EXECUTOR)
    marks = executor.feed(*commits(requests(0, 8))).of(t.Mark)
    executor.feed(*(t.Saved(mark.checkpoint) for mark in marks))
    assert announced(executor.tick(100).of(t.ExecutorStatus)) == [1, 2]
    executor.feed(*bench.stables(2, digest=marks[1].checkpoint.digest))
    assert announced(executor.tick(200).of(t.ExecutorStatus)) == [2]


def test_a_slow_store_need_not_be_announced_for_what_the_others_have_made_stable(bench: Bench) -> None:
    executor = bench.make(Executor, Stage.EXECUTOR)
    marks = executor.feed(*commits(requests(0, 8))).of(t.Mark)
    executor.feed(*bench.stables(2, digest=marks[1].checkpoint.digest))
    step = executor.feed(t.Saved(marks[0].checkpoint))
    assert announced(step.of(t.ExecutorStatus)) == []


def test_an_executor_that_lags_behind_loads_a_holders_checkpoint(bench: Bench) -> None:
    """Whose next command is below the threshold will not get it any more: it loads a checkpoint, then goes on."""
    filled = Filled(bench)
    holders = [
        bench.status(0, checkpoints=[filled.checkpoint]),
        bench.status(1),
        bench.status(2, checkpoints=[t.CheckpointId(2, b"d")]),
    ]
    laggard = bench.make(Executor, Stage.EXECUTOR, 1)
    laggard.feed(*commits(requests(0, 2)))
    stables = bench.stables(1, digest=filled.checkpoint.digest, executors=holders)
    # It has a state to go on from.
    assert laggard.feed(*stables).only(t.Load) == t.Load(1, 2, 0, [0, 2])

    laggard.feed(*commits(requests(4, 6), first=4))
    step = laggard.feed(filled.base)
    assert laggard.node.next == 6
    assert step.only(t.Executed).first == 4
    # It holds the checkpoint, too (appendix, executor), so that the system is back to full strength.
    assert announced(step.of(t.ExecutorStatus)) == [1]


def test_an_executor_that_does_not_lag_loads_nothing(bench: Bench) -> None:
    filled = Filled(bench)
    holders = [bench.status(1, checkpoints=[filled.checkpoint])]
    assert filled.executor.feed(*bench.stables(1, executors=holders)).of(t.Load) == []


def test_a_failed_load_is_tried_again(bench: Bench) -> None:
    """L12: in the paper it is not. One request to the store at a time, and not again and again at once."""
    laggard = bench.make(Executor, Stage.EXECUTOR, 1)
    stables = bench.stables(1, executors=[bench.status(0, checkpoints=[t.CheckpointId(1, b"digest")])])
    assert laggard.feed(*stables).only(t.Load).holders == [0]
    laggard.tick(LOAD_PAUSE_MS)
    assert laggard.feed(*stables).of(t.Load) == [], "there is no answer yet"
    laggard.feed(loaded_nothing())
    assert len(laggard.feed(*stables).of(t.Load)) == 1
    laggard.feed(loaded_nothing())
    laggard.tick(2 * LOAD_PAUSE_MS - 1)
    assert laggard.feed(*stables).of(t.Load) == []
    laggard.tick(2 * LOAD_PAUSE_MS)
    assert len(laggard.feed(*stables).of(t.Load)) == 1


def test_who_holds_a_checkpoint_is_asked_as_soon_as_that_is_known(bench: Bench) -> None:
    """Not in the paper: of a gc source that started again one may learn the threshold first. Until then it can only be
    the laggard's own store that has something."""
    laggard = bench.make(Executor, Stage.EXECUTOR, 1)
    assert laggard.feed(*bench.stables(1)).only(t.Load).holders == []
    laggard.feed(loaded_nothing())
    holder = bench.status(0, checkpoints=[t.CheckpointId(1, b"digest")])
    assert laggard.feed(*bench.stables(1, executors=[holder])).only(t.Load).holders == [0]


def test_a_checkpoint_that_is_older_than_the_state_is_not_loaded(bench: Bench) -> None:
    """The store was slow, and the executor got the missing commits after all."""
    filled = Filled(bench)
    executor = bench.make(Executor, Stage.EXECUTOR, 1)
    executor.feed(*bench.stables(1), *commits(requests(0, 5)))
    executor.feed(filled.base)
    assert executor.node.next == 5
    application = executor.node.application
    assert isinstance(application, KeyValueStore)
    assert list(application.snapshot()) == list(KeyValueStore().snapshot())


def test_a_restarted_executor_asks_its_store_first(bench: Bench) -> None:
    """Not in the paper: until the store has answered it has no state, so it neither executes nor reports."""
    filled = Filled(bench)
    executor = bench.make(Executor, Stage.EXECUTOR, 1, genesis=False, life=2)
    assert executor.tick(bench.limits.report_interval_ms).of(t.Load) == [t.Load(0, 0, 0, (1,))]
    executor.feed(*commits(requests(0, 2)))
    assert executor.node.next == 0
    assert executor.tick(1000).emitted == []
    executor.feed(filled.base)
    assert executor.node.next == 4
    assert executor.tick(2000).of(t.ExecutorStatus)


def test_a_diverged_executor_halts_alone(bench: Bench) -> None:
    """Not in the paper (the design): its checkpoint disagrees with f+1 equal ones."""
    filled = Filled(bench)
    filled.executor.feed(t.Saved(filled.checkpoint))
    filled.executor.feed(*bench.stables(1, [0], digest=b"theirs"))
    assert filled.executor.node.halted is not None
    assert re.search(r"checkpoint 1: what it executed .*diverged", filled.executor.node.halted.reason)
    assert filled.executor.feed(*commits(requests(4, 5), first=4)).emitted == [], "it does nothing any more"


@pytest.mark.parametrize(("holders", "diverged"), [([1], False), ([1, 2], True)])
def test_an_executor_whose_base_differs_from_f_plus_1_equal_ones_halts(
    bench: Bench, holders: list[int], diverged: bool
) -> None:
    """Not in the paper: states may differ although all answers were the same so far."""
    filled = Filled(bench)
    filled.executor.feed(t.BaseSaved(1, filled.base.digest, filled.base.length))
    others = [bench.status(holder, bases=[t.CheckpointId(1, b"theirs")]) for holder in holders]
    own = bench.status(0, bases=[t.CheckpointId(1, filled.base.digest)])
    filled.executor.feed(*bench.stables(0, executors=[own, *others]))
    assert (filled.executor.node.halted is not None) == diverged
    if filled.executor.node.halted is not None:
        assert re.search(r"checkpoint 1: its state .*diverged", filled.executor.node.halted.reason)


def test_a_committer_sends_commits_again_to_an_executor_that_stands_still(bench: Bench) -> None:
    """III-B demands retransmission where the framework loses tuples; ours is driven by reported positions."""
    committer = started_committer(bench)
    committer.feed(bench.proposal(1, 0, requests(0, 6)))
    again: list[t.Commit] = []
    for turn in range(1, 5):
        reports = [bench.status(0, turn, positions=[6]), bench.status(1, turn, positions=[2])]
        accepted = [bench.committer_status(1, turn, view=1, position=6)]
        committer.feed(*bench.stables(0, [0], executors=reports, committers=accepted))
        step = committer.tick(100.0 * turn)
        again += step.of(t.Commit)
        assert set(step.receivers(t.Commit)) <= {bench.graph.one(Stage.EXECUTOR, 1)}
    assert again
    assert all((commit.first, commit.requests) == (2, requests(2, 6)) for commit in again)


@pytest.mark.parametrize(("view", "position", "end"), [(1, 4, 4), (1, 9, 6), (1, -1, 2), (2, 6, 2)])
def test_a_committer_sends_again_what_f_others_have_accepted_in_its_view(
    bench: Bench, view: int, position: int, end: int
) -> None:
    """Not in the paper: nothing else can be decided by it. The other committers get it from the proposer first."""
    committer = started_committer(bench)
    committer.feed(bench.proposal(1, 0, requests(0, 6)))
    again: list[t.Commit] = []
    for turn in range(1, 9):
        reports = [bench.status(1, turn, positions=[2])]
        other = [bench.committer_status(2, turn, view=view, position=position)]
        committer.feed(*bench.stables(0, [0], executors=reports, committers=other))
        again += committer.tick(100.0 * turn).of(t.Commit)
    assert {(commit.first, len(commit.requests)) for commit in again} == ({(2, end - 2)} if end > 2 else set())


def test_a_proposer_sends_proposals_again_to_a_committer_that_stands_still(bench: Bench) -> None:
    proposer: Driven[Proposer] = active_proposer(bench)
    proposer.feed(t.Requests(requests(0, 5)))
    again: list[t.Proposal] = []
    for turn in range(1, 5):
        reports = [
            bench.committer_status(0, turn, view=1, position=5),
            bench.committer_status(2, turn, view=1, position=3),
        ]
        proposer.feed(*bench.stables(0, [0], committers=reports))
        step = proposer.tick(100.0 * turn)
        again += step.of(t.Proposal)
        assert set(step.receivers(t.Proposal)) <= {bench.graph.one(Stage.COMMITTER, 2)}
    assert again
    assert all(proposed([proposal]) == [3, 4] for proposal in again)


def test_a_proposer_sends_the_start_again_to_a_committer_that_missed_it(bench: Bench) -> None:
    proposer = active_proposer(bench)
    proposer.feed(t.Requests(requests(0, 2)))
    steps = []
    for turn in range(1, 5):
        proposer.feed(*bench.stables(0, [0], committers=[bench.committer_status(2, turn, view=1)]))
        steps.append(proposer.tick(100.0 * turn))
    starts = [start for step in steps for start in step.of(t.Start)]
    assert starts
    assert {receivers for step in steps for receivers in step.receivers(t.Start)} == {
        bench.graph.one(Stage.COMMITTER, 2)
    }
    committer = bench.make(Committer, Stage.COMMITTER, 2)
    commit = committer.feed(starts[0], *(proposal for step in steps for proposal in step.of(t.Proposal)))
    assert [c.first for c in commit.of(t.Commit)] == [0]


def test_a_committer_sends_nothing_again_to_an_executor_that_says_nothing(bench: Bench) -> None:
    """One burst on what it last said; the next one when it has been heard of again."""
    committer = started_committer(bench)
    committer.feed(bench.proposal(1, 0, requests(0, 6)))
    accepted = [bench.committer_status(1, view=1, position=6)]
    committer.feed(*bench.stables(0, [0], executors=[bench.status(1, positions=[2])], committers=accepted))
    steps = [committer.tick(100.0 * turn) for turn in range(1, 40)]
    assert len([commit for step in steps for commit in step.of(t.Commit)]) == 1
    committer.feed(*bench.stables(0, [0], executors=[bench.status(1, 2, positions=[2])]))
    assert committer.tick(4_000).only(t.Commit).requests == requests(2, 6)


def test_a_proposer_sends_nothing_again_to_a_committer_that_says_nothing(bench: Bench) -> None:
    proposer = active_proposer(bench)
    proposer.feed(t.Requests(requests(0, 5)))
    status = bench.committer_status(2, view=1, position=3)
    proposer.feed(*bench.stables(0, [0], committers=[status]))
    steps = [proposer.tick(100.0 * turn) for turn in range(1, 40)]
    assert len([proposal for step in steps for proposal in step.of(t.Proposal)]) == 1
    proposer.feed(*bench.stables(0, [0], committers=[bench.committer_status(2, 2, view=1, position=3)]))
    assert proposed(proposer.tick(4_000).of(t.Proposal)) == [3, 4]
