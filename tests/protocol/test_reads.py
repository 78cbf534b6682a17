"""Reads without the log: what the committers must have said before an executor may answer."""

import pytest

from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.reads import Reads
from tara.protocol.nodes.request_source import RequestSource
from tests.protocol.driver import Bench, requests

READ = t.ReadRequest(7, b"?")


def reads(f: int = 1, partitions: int = 1, capacity: int = 8, bytes_max: int = 1 << 20) -> Reads:
    return Reads(Graph(f, partitions), f + 1, capacity, bytes_max)


def index(
    committer: int,
    position: int,
    nonce: int = 1,
    partition: int = 0,
    incarnation: int = 1,
    incarnations: list[int] | None = None,
) -> t.ReadIndex:
    return t.ReadIndex(committer, partition, incarnation, incarnations or [1] * 5, 0, 1, nonce, position)


def pending(nonce: int = 1) -> t.PendingReads:
    return t.PendingReads(0, 1, nonce, [READ])


def test_a_read_waits_for_f_plus_1_committers_and_for_their_highest_position() -> None:
    subject = reads()
    subject.add(pending())
    subject.index(index(0, 3))
    assert subject.due(100) == []
    subject.index(index(0, 3))
    assert subject.due(100) == [], "the same committer twice is one"
    subject.index(index(1, 5))
    assert subject.due(4) == []
    assert subject.due(5) == [READ]
    assert subject.due(100) == [], "answered once"


def test_committers_may_answer_before_the_read_is_there() -> None:
    subject = reads()
    subject.index(index(0, 2))
    subject.index(index(2, 2))
    assert subject.due(2) == []
    subject.add(pending())
    assert subject.due(2) == [READ]


def test_every_partition_counts() -> None:
    subject = reads(partitions=2)
    subject.add(pending())
    for committer in (0, 1):
        subject.index(index(committer, 3, partition=0))
    assert subject.due(100) == []
    for committer in (0, 1):
        subject.index(index(committer, 1, partition=1))
    # Slot 2 of partition 0 has execution number 4, slot 0 of partition 1 has 1.
    assert subject.due(4) == []
    assert subject.due(5) == [READ]


def test_an_answer_of_a_life_that_is_over_does_not_count() -> None:
    """Committer 0 lost its journal and has number 4 since; committer 1 knows, and the old life still answers."""
    member = Graph(1, 1).member(Stage.COMMITTER, 0)
    known = [1] * 5
    known[member] = 4
    subject = reads()
    subject.add(pending())
    subject.index(index(0, 1, incarnation=1))
    subject.index(index(1, 1, incarnations=known))
    assert subject.due(100) == []
    subject.index(index(2, 9))
    assert subject.due(8) == []
    assert subject.due(9) == [READ]


def test_reads_that_are_never_answered_make_room() -> None:
    subject = reads(capacity=3)
    for nonce in range(1, 6):
        subject.add(pending(nonce))
    for nonce in range(1, 6):
        subject.index(index(0, 0, nonce))
        subject.index(index(1, 0, nonce))
    assert len(subject.due(0)) <= 3


def test_what_waits_is_bounded() -> None:
    """Positions that nobody ever reaches, and positions that fall with every answer: both leave entries behind."""
    subject = reads(capacity=3)
    for nonce in range(1, 1_000):
        subject.add(pending(nonce))
        for committer, position in ((0, 9_000), (1, 9_000 - nonce), (2, 1_000)):
            subject.index(index(committer, position, nonce))
    assert len(subject) <= 4 * 3
    assert len(subject.due(10_000)) == 3, "the newest ones are still there"


def test_the_bytes_of_reads_are_bounded() -> None:
    long = t.ReadRequest(1, bytes(400))
    subject = reads(capacity=100, bytes_max=1_000)
    for nonce in range(1, 10):
        subject.add(t.PendingReads(0, 1, nonce, [long]))
        assert subject.bytes <= 1_000
    for nonce in range(1, 10):
        subject.index(index(0, 0, nonce))
        subject.index(index(1, 0, nonce))
    assert subject.due(0) == [long] * 2
    assert subject.bytes == 0


def test_an_answer_that_comes_too_late_leaves_nothing_behind() -> None:
    subject = reads(capacity=3)
    for nonce in range(1, 10):
        subject.add(pending(nonce))
        subject.index(index(0, 0, nonce))
        subject.index(index(1, 0, nonce))
        assert subject.due(0) == [READ]
        subject.index(index(2, 0, nonce))
        assert len(subject) == 0
    subject.add(pending(3))
    assert len(subject) == 0, "nor does a read that comes twice"


def test_a_new_life_of_the_source_asks_from_the_beginning() -> None:
    subject = reads()
    subject.add(pending(9))
    subject.add(t.PendingReads(0, 2, 1, [READ]))
    for committer in (0, 1):
        subject.index(t.ReadIndex(committer, 0, 1, [1] * 5, 0, 2, 1, 0))
    assert subject.due(0) == [READ]


def test_a_source_asks_the_committers_of_all_partitions_and_tells_its_executor() -> None:
    bench = Bench(partitions=2)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, 1)
    step = source.feed(t.SubmitReads([READ]))
    assert step.receivers(t.IndexRequest) == [bench.graph.everywhere(Stage.COMMITTER)]
    assert step.receivers(t.PendingReads) == [bench.graph.one(Stage.EXECUTOR, 1)]
    first = step.only(t.IndexRequest)
    assert (first.source, first.executor) == (1, 1)
    assert source.feed(t.SubmitReads([READ])).only(t.IndexRequest).nonce > first.nonce


def test_a_committer_tells_how_far_it_accepted_in_any_view() -> None:
    bench = Bench()
    committer = bench.make(Committer, Stage.COMMITTER, 0)
    committer.feed(*bench.views(1), bench.start(1), bench.proposal(1, 0, requests(0, 3)))
    assert committer.feed(t.IndexRequest(1, 1, 1, 1)).only(t.ReadIndex).position == 3
    step = committer.feed(*bench.views(2))
    assert step.of(t.Record), "it is in a view that has not started"
    assert committer.feed(t.IndexRequest(1, 1, 2, 1)).only(t.ReadIndex).position == 3


def test_a_committer_without_its_memory_does_not_answer() -> None:
    bench = Bench()
    committer = bench.make(Committer, Stage.COMMITTER, 0, genesis=False)
    assert committer.node.acceptor.recovering
    assert committer.feed(t.IndexRequest(1, 1, 1, 1)).of(t.ReadIndex) == []


@pytest.mark.parametrize("late", [False, True])
def test_an_executor_answers_when_it_has_executed_that_far(late: bool) -> None:
    bench = Bench()
    executor = bench.make(Executor, Stage.EXECUTOR, 0)
    run = requests(0, 2)
    commits = [t.Commit(committer, 0, 1, 0, run) for committer in (0, 1)]
    if not late:
        executor.feed(*commits)
    ask = t.PendingReads(0, 1, 1, [t.ReadRequest(3, t.encode(["?"]))])
    step = executor.feed(ask, index(0, 2), index(1, 2))
    if late:
        assert step.of(t.ReadResults) == []
        step = executor.feed(*commits)
    assert [answer.ticket for answer in step.only(t.ReadResults).results] == [3]
    assert step.receivers(t.ReadResults) == [bench.graph.one(Stage.REPLY_SINK, 0)]


def test_with_more_answers_less_has_to_be_waited_for() -> None:
    """Of three committers, two are as far as 5: nothing beyond that can have been decided."""
    subject = reads()
    subject.add(pending())
    subject.index(index(0, 9))
    subject.index(index(1, 5))
    assert subject.due(8) == []
    subject.index(index(2, 3))
    assert subject.due(4) == []
    assert subject.due(5) == [READ]
    assert subject.due(9) == []


def test_reads_leave_in_tuples_that_fit_a_frame() -> None:
    bench = Bench(run_bytes_max=1_000)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, 1)
    step = source.feed(t.SubmitReads([t.ReadRequest(ticket, bytes(400)) for ticket in range(5)]))
    parts = step.of(t.PendingReads)
    assert [[read.ticket for read in part.reads] for part in parts] == [[0, 1], [2, 3], [4]]
    assert [request.nonce for request in step.of(t.IndexRequest)] == [part.nonce for part in parts]


def test_a_replica_that_has_not_loaded_its_state_answers_nothing() -> None:
    """Not even a read for which any state will do: the empty one may never have been one."""
    bench = Bench()
    executor = bench.make(Executor, Stage.EXECUTOR, 0, genesis=False)
    assert not executor.node.restored
    (result,) = executor.feed(t.SubmitStaleReads([READ], 1 << 20)).only(t.ReadResults).results
    assert (result.status, result.payload) == (t.OVERLOADED, b"")
