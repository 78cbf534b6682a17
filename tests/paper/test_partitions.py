"""Section IV (Parallelizing Tara): partitions of their own, one merged order. What the paper does not have: partitions
that are idle (L14 and §3 of `docs/protocol.md`)."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import Controller
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.gc_source import GcSource
from tara.protocol.nodes.proposer import Proposer
from tara.protocol.nodes.request_source import RequestSource
from tests.protocol.driver import Bench, Driven, batch, commits, open_session, requests

LENGTH = 6


def executed(step_executed: list[t.Executed]) -> list[tuple[int, int, int]]:
    """(execution number, partition, slot) of what was executed; the source of a request names its partition."""
    return [
        (tuple_.first + offset, request.source, request.number)
        for tuple_ in step_executed
        for offset, request in enumerate(tuple_.requests)
    ]


def votes(partition: int, first: int, end: int) -> list[t.Commit]:
    return commits(requests(first, end, source=partition), first=first, partition=partition)


@given(st.integers(1, 3), st.data())
@settings(max_examples=60)
def test_execution_numbers_interleave_the_partitions(partitions: int, data: st.DataObject) -> None:
    """Slot s of partition i gets execution number s·P + i, whatever the order in which partitions decide."""
    bench = Bench(partitions=partitions, window=LENGTH, checkpoint_interval=2 * partitions)
    executor = bench.make(Executor, Stage.EXECUTOR)
    decided = [0] * partitions
    log: list[tuple[int, int, int]] = []
    for partition in data.draw(st.lists(st.integers(0, partitions - 1), max_size=12)):
        end = data.draw(st.integers(decided[partition], LENGTH))
        log += executed(executor.feed(*votes(partition, decided[partition], end)).of(t.Executed))
        decided[partition] = end
        due = next(n for n in range(LENGTH * partitions + 1) if n // partitions >= decided[n % partitions])
        assert executor.node.next == due
    assert log == [(n, n % partitions, n // partitions) for n in range(executor.node.next)]


def test_all_executors_merge_alike() -> None:
    """The merge is deterministic: two executors that hear of the partitions in opposite order execute alike."""
    bench = Bench(partitions=2)
    one, other = (bench.make(Executor, Stage.EXECUTOR, replica) for replica in range(2))
    forwards = [one.feed(*votes(0, 0, 3)), one.feed(*votes(1, 0, 3))]
    backwards = [other.feed(*votes(1, 0, 3)), other.feed(*votes(0, 0, 3))]
    logs = [[entry for step in steps for entry in executed(step.of(t.Executed))] for steps in (forwards, backwards)]
    assert logs[0] == logs[1] == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1), (4, 0, 2), (5, 1, 2)]


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in (Stage.CLIENT, Stage.STORE)])
def test_partitions_have_their_own_consensus_and_view_change_and_share_the_rest(stage: Stage) -> None:
    """Proposers, committers and all view-change stages exist per partition; garbage collection is shared."""
    graph = Bench(partitions=3).graph
    shared = {Stage.EXECUTOR, Stage.REPLY_SINK, Stage.GC_SINK, Stage.GC_SOURCE}
    partitions = {name.partition for name in graph.names if name.stage is stage}
    assert partitions == ({0} if stage in shared else {0, 1, 2})


def active_proposer(bench: Bench, partition: int) -> Driven[Proposer]:
    proposer = bench.make(Proposer, Stage.PROPOSER, 1, partition)
    proposer.feed(*bench.views(1), bench.record(0, 1), bench.record(1, 1))
    return proposer


def test_a_partition_talks_to_its_own_nodes_only() -> None:
    """Partitions agree independently of each other."""
    bench = Bench(partitions=2)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, 0, 1)
    step = source.feed(t.Submit([t.Command(1, 0, 0, b"")]))
    assert step.receivers(t.Requests) == [bench.graph.all(Stage.PROPOSER, 1)]
    step = active_proposer(bench, 1).feed(t.Requests(requests(0, 1)))
    assert step.receivers(t.Proposal) == [bench.graph.all(Stage.COMMITTER, 1)]
    assert step.only(t.Proposal).partition == 1
    committer = bench.make(Committer, Stage.COMMITTER, 0, 1)
    step = committer.feed(*bench.views(1), bench.start(1), bench.proposal(1, 0, requests(0, 1)))
    assert step.only(t.Commit).partition == 1
    assert [to.numbers for to in step.receivers(t.Commit)] == [bench.graph.all(Stage.EXECUTOR).numbers]


def test_results_of_all_partitions_leave_through_the_reply_sink_of_the_site() -> None:
    """We deviate: the paper has reply sinks per partition, ours belong to a site, like its clients."""
    bench = Bench(partitions=2)
    executor = bench.make(Executor, Stage.EXECUTOR, 1)
    for partition in range(2):
        step = executor.feed(*commits([batch(0, [open_session()])], partition=partition))
        assert step.receivers(t.Results) == [bench.graph.one(Stage.REPLY_SINK, 1)]


def test_a_checkpoint_covers_all_partitions_alike() -> None:
    """Appendix, GCTUPLE.snr: checkpoint c stands for slot c·CP/P of every partition."""
    bench = Bench(partitions=2, checkpoint_interval=8, window=8)
    for partition in range(2):
        committer = bench.make(Committer, Stage.COMMITTER, 0, partition)
        committer.feed(*bench.views(1), *bench.stables(1))
        assert committer.node.acceptor.commits.min == 4
    executor = bench.make(Executor, Stage.EXECUTOR)
    assert executor.feed(*votes(0, 0, 4), *votes(1, 0, 3)).of(t.Mark) == []
    assert executor.feed(*votes(1, 3, 4)).only(t.Mark).checkpoint.number == 1


def test_an_idle_partition_holds_up_the_others() -> None:
    """What the merge rule means for a partition without requests, and why it has to skip."""
    executor = Bench(partitions=2).make(Executor, Stage.EXECUTOR)
    executor.feed(*votes(0, 0, 5))
    assert executor.node.next == 1
    executor.feed(*commits([t.NOOP] * 5, partition=1))
    assert executor.node.next == 10


def test_no_ops_leave_no_trace() -> None:
    """They bypass filter, results and progress."""
    executor = Bench(partitions=1).make(Executor, Stage.EXECUTOR)
    before = executor.tick(0).only(t.Progress).progress
    step = executor.feed(*commits([t.NOOP] * 3))
    assert (step.of(t.Results), executor.node.sessions.counter, executor.node.sessions.time_ms) == ([], 0, 0)
    assert executor.tick(1000).only(t.Progress).progress == before


def test_an_idle_proposer_skips_what_the_others_have_passed() -> None:
    """After a delay, up to the highest position of any partition."""
    bench = Bench(partitions=2, skip_delay_ms=5.0)
    proposer = active_proposer(bench, 0)
    proposer.feed(*bench.stables(0, [0], executors=[bench.status(0, positions=[0, 3])]))
    assert proposer.tick(10).of(t.Proposal) == []
    assert proposer.tick(14).of(t.Proposal) == []
    proposal = proposer.tick(15).only(t.Proposal)
    assert (proposal.first, proposal.requests) == (0, [t.NOOP] * 3)
    assert proposer.tick(30).of(t.Proposal) == []


def test_a_skip_stays_within_the_window() -> None:
    bench = Bench(partitions=2, window=8)
    proposer = active_proposer(bench, 0)
    proposer.feed(*bench.stables(0, [0], executors=[bench.status(0, positions=[0, 30])]))
    proposer.tick(10)
    assert len(proposer.tick(20).only(t.Proposal).requests) == 8


def test_a_partition_with_requests_does_not_skip() -> None:
    bench = Bench(partitions=2)
    proposer = active_proposer(bench, 0)
    proposer.feed(t.Requests(requests(0, 3)))
    proposer.feed(*bench.stables(0, [0], executors=[bench.status(0, positions=[0, 3])]))
    proposer.tick(10)
    assert proposer.tick(30).of(t.Proposal) == []


def test_a_partition_alone_never_skips() -> None:
    bench = Bench(partitions=1)
    proposer = active_proposer(bench, 0)
    proposer.feed(*bench.stables(0, [0], executors=[bench.status(0, positions=[3])]))
    proposer.tick(10)
    assert proposer.tick(30).of(t.Proposal) == []


def place(bench: Bench, executor: int, position: int, slowest: int, frontier: int | None = None) -> t.Progress:
    """Where an executor sees a partition among the others."""
    ahead = position if frontier is None else frontier
    return msgspec.structs.replace(bench.progress(executor, position=position, frontier=ahead), slowest=slowest)


def test_a_partition_that_is_ahead_is_not_blamed_for_the_slowest_one() -> None:
    """Its requests may just be waiting for the other partition's window; a new view here would help nobody."""
    bench = Bench(partitions=2)
    controller = bench.make(Controller, Stage.CONTROLLER)
    controller.feed(*bench.views(1), t.Target(0, 0, (1, 3), 0))
    for now_ms in range(0, 2_000, 50):
        controller.feed(*(place(bench, executor, 4, slowest=2) for executor in range(3)))
        assert controller.tick(now_ms).of(t.Vote) == []
    for now_ms in range(2_000, 4_000, 50):
        controller.feed(place(bench, 0, 4, slowest=4), *(place(bench, other, 4, slowest=2) for other in (1, 2)))
        assert controller.tick(now_ms).of(t.Vote) == []
    controller.feed(place(bench, 2, 4, slowest=4))
    for now_ms in (*range(4_000, 4_200, 50), 4_199):
        assert controller.tick(now_ms).of(t.Vote) == []
    assert controller.tick(4_200).of(t.Vote) == [t.Vote(0, 0, 1, 1, 2)]


def test_an_executor_that_falls_silent_excuses_nobody_for_long() -> None:
    """It may be dead, and what it said last may never have been true for the others."""
    bench = Bench(partitions=2)
    controller = bench.make(Controller, Stage.CONTROLLER)
    controller.feed(*bench.views(1), t.Target(0, 0, (1, 3), 0))
    controller.feed(*(place(bench, executor, 4, slowest=2) for executor in range(3)))
    votes = [now_ms for now_ms in range(0, 1_000, 10) if controller.tick(now_ms).of(t.Vote)]
    assert votes[0] == 510


def test_an_executor_that_died_ahead_of_the_others_excuses_nobody() -> None:
    """What the living say counts, each for itself: the highest position of one and the lowest of another, put together,
    would make a partition look ahead that everybody waits for."""
    bench = Bench(partitions=2)
    controller = bench.make(Controller, Stage.CONTROLLER)
    controller.feed(*bench.views(1), t.Target(0, 0, (1, 9), 0))
    controller.feed(place(bench, 1, position=7, slowest=6, frontier=7))
    controller.feed(*(place(bench, executor, position=5, slowest=5, frontier=7) for executor in (0, 2)))
    assert controller.tick(250).of(t.Vote) == [t.Vote(0, 0, 1, 1, 2)]


def test_controllers_replace_a_proposer_that_does_not_skip() -> None:
    """The skip that others wait for counts as outstanding work, if f+1 executors wait for it."""
    bench = Bench(partitions=2)
    controller = bench.make(Controller, Stage.CONTROLLER, 0, 1)
    controller.feed(*bench.views(1))
    controller.feed(*(place(bench, executor, 2, slowest=2, frontier=2) for executor in range(3)))
    assert controller.tick(10_000).of(t.Vote) == []
    controller.feed(place(bench, 0, 2, slowest=2, frontier=5))
    assert controller.tick(20_000).of(t.Vote) == []
    controller.feed(place(bench, 1, 2, slowest=2, frontier=5))
    assert controller.tick(20_249).of(t.Vote) == []
    assert controller.tick(20_250).of(t.Vote) == [t.Vote(0, 1, 1, 1, 2)]


def test_an_executor_that_waits_for_another_partition_says_so_on_every_tick() -> None:
    """Not only once per report interval: until the idle partition's proposer hears of it, everybody waits."""
    bench = Bench(partitions=2)
    executor = bench.make(Executor, Stage.EXECUTOR)
    executor.tick(0)
    assert executor.tick(1).of(t.ExecutorStatus) == []
    executor.feed(*votes(0, 0, 2))
    waiting = [executor.tick(now_ms).of(t.ExecutorStatus) for now_ms in (2.0, 3.0, 4.0)]
    assert [[status.positions for status in step] for step in waiting] == [[[2, 0]]] * 3
    rounds = [status.round for step in waiting for status in step]
    assert rounds == sorted(set(rounds))
    executor.feed(*votes(1, 0, 2))
    assert executor.tick(5).of(t.ExecutorStatus) == []


def test_an_executor_without_state_says_nothing_however_often_time_passes() -> None:
    executor = Bench(partitions=2).make(Executor, Stage.EXECUTOR, genesis=False, life=2)
    executor.take()
    assert executor.feed(*votes(0, 0, 2)).emitted == []
    said = [tuple_ for now_ms in (0.0, 1.0, 100.0) for tuple_, _ in executor.tick(now_ms).emitted]
    assert [type(tuple_) for tuple_ in said] == [t.Load]


@pytest.mark.parametrize(("partitions", "at_once"), [(1, False), (2, True)])
def test_a_gc_source_passes_news_on_with_the_next_tick_if_there_are_other_partitions(
    partitions: int, at_once: bool
) -> None:
    """Their proposers skip when they hear of it. Once: no news, no tuple before the next report."""
    bench = Bench(partitions=partitions)
    source = bench.make(GcSource, Stage.GC_SOURCE)
    source.tick(0)
    source.feed(bench.status(0, positions=[3] * partitions))
    assert bool(source.tick(1).of(t.Stable)) is at_once
    assert source.tick(2).of(t.Stable) == []
    source.feed(bench.status(0, positions=[3] * partitions))
    assert source.tick(3).of(t.Stable) == []


def test_clocks_of_several_proposers_do_not_move_the_session_clock() -> None:
    """Each partition's proposer stamps with its own clock. Going back and forth between two clocks that are an hour
    apart is no time passing: the stamps of partition 0 alone say how old a session is."""
    hour = 3_600_000
    bench = Bench(partitions=2, window=64, checkpoint_interval=64)
    executor = bench.make(Executor, Stage.EXECUTOR)
    executor.feed(*commits([batch(0, [open_session(timeout_ms=1_000)], time=hour)], partition=0))
    for slot in range(20):
        executor.feed(*commits([batch(slot, [], time=2 * hour)], first=slot, partition=1))
        executor.feed(*commits([batch(slot + 1, [], time=hour + slot)], first=slot + 1, partition=0))
    assert (executor.node.next, len(executor.node.sessions)) == (41, 1)
