"""The graph: who exists, where, and who may say what to whom."""

from collections import Counter
from itertools import pairwise

import pytest

from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError, EdgeError
from tara.protocol.graph import CLIENT, EDGES, PARTITIONED, STORE, Graph, Name, Receivers, Stage, allowed_edges
from tara.protocol.node import Node
from tests.protocol.driver import Bench

S = Stage

#: The graph, row by row: from, to (several hops: through a sink and its queue), tuples.
EDGE_TABLE: list[tuple[list[Stage], list[list[Stage]], list[type[t.Tuple]]]] = [
    ([S.REQUEST_SOURCE], [[S.PROPOSER]], [t.Requests]),
    ([S.REQUEST_SOURCE], [[S.CONTROLLER]], [t.Target]),
    ([S.REQUEST_SOURCE], [[S.COMMITTER]], [t.IndexRequest]),
    # The reads themselves; the table knows only what is asked of the committers.
    ([S.REQUEST_SOURCE], [[S.EXECUTOR]], [t.PendingReads]),
    # A skip is a proposal of no-ops.
    ([S.PROPOSER], [[S.COMMITTER]], [t.Start, t.Proposal]),
    # How far their records have come.
    ([S.PROPOSER], [[S.COMMITTER]], [t.Collecting]),
    ([S.COMMITTER], [[S.EXECUTOR]], [t.Commit, t.ReadIndex]),
    ([S.COMMITTER], [[S.RECORD_SINK, S.RECORD_SOURCE, S.PROPOSER]], [t.Record]),
    # An executor's status names its checkpoints and bases.
    ([S.COMMITTER], [[S.GC_SINK, S.GC_SOURCE]], [t.CommitterStatus]),
    ([S.EXECUTOR], [[S.GC_SINK, S.GC_SOURCE]], [t.ExecutorStatus]),
    ([S.GC_SOURCE], [[S.PROPOSER], [S.COMMITTER], [S.EXECUTOR], [S.REQUEST_SOURCE]], [t.Stable]),
    ([S.EXECUTOR], [[S.CONTROLLER]], [t.Progress]),
    # Events travel with the results.
    ([S.EXECUTOR], [[S.REPLY_SINK]], [t.Results, t.ReadResults, t.Halted, t.StartIndexRequest]),
    ([S.CONTROLLER], [[S.VIEW_SINK, S.VIEW_SOURCE]], [t.Vote]),
    ([S.PROPOSER], [[S.CONTROLLER]], [t.Advance]),
    ([S.COMMITTER, S.PROPOSER], [[S.VIEW_SINK, S.VIEW_SOURCE]], [t.Presence]),
    ([S.VIEW_SOURCE], [[S.PROPOSER], [S.COMMITTER], [S.CONTROLLER], [S.REQUEST_SOURCE]], [t.View]),
]

#: Not in the table, but in the paper's appendix: sources append what they publish to each other's queues. And what a
#: request source cannot get through to the active proposer goes through the other ones.
SOURCE_QUEUES = {
    (S.GC_SOURCE, t.Stable, S.GC_SOURCE),
    (S.VIEW_SOURCE, t.View, S.VIEW_SOURCE),
    (S.REQUEST_SOURCE, t.Requests, S.REQUEST_SOURCE),
}

#: Between a node and its own host.
HOST_EDGES: set[tuple[Stage, type[t.Tuple], Stage]] = {
    (S.CLIENT, t.Submit, S.REQUEST_SOURCE),
    (S.CLIENT, t.SubmitReads, S.REQUEST_SOURCE),
    (S.CLIENT, t.Unkept, S.REQUEST_SOURCE),
    (S.REQUEST_SOURCE, t.Refused, S.CLIENT),
    (S.REQUEST_SOURCE, t.Waiting, S.CLIENT),
    (S.CLIENT, t.SubmitStaleReads, S.EXECUTOR),
    (S.REPLY_SINK, t.ReadResults, S.CLIENT),
    (S.REPLY_SINK, t.Results, S.CLIENT),
    (S.REPLY_SINK, t.Halted, S.CLIENT),
    (S.REPLY_SINK, t.StartIndexRequest, S.CLIENT),
    (S.CLIENT, t.StartIndexRequest, S.REQUEST_SOURCE),
    (S.CLIENT, t.Halted, S.REQUEST_SOURCE),
    *((S.EXECUTOR, kind, S.STORE) for kind in (t.Executed, t.Mark, t.Base, t.Drawn, t.GivenUp, t.Load, t.More)),
    *((S.EXECUTOR, kind, S.STORE) for kind in (t.Restoring, t.Arrived)),
    *((S.EXECUTOR, kind, S.STORE) for kind in (t.Halted, t.Unbarred, t.Doubted)),
    *((S.STORE, kind, S.EXECUTOR) for kind in (t.Saved, t.Draw, t.BaseSaved, t.GivenUp, t.TakeBase, t.DrawDigest)),
    *((S.STORE, kind, S.EXECUTOR) for kind in (t.Loaded, t.Resume, t.Replay, t.Settled)),
}


def edges_of_the_table() -> set[tuple[Stage, type[t.Tuple], Stage]]:
    edges: set[tuple[Stage, type[t.Tuple], Stage]] = set()
    for senders, routes, kinds in EDGE_TABLE:
        for sender in senders:
            for route in routes:
                hops = [sender, *route]
                edges |= {(a, kind, b) for a, b in pairwise(hops) for kind in kinds}
    return edges


def test_the_edges_are_those_of_the_design() -> None:
    expected = edges_of_the_table() | SOURCE_QUEUES | HOST_EDGES
    assert sorted(map(str, EDGES - expected)) == []
    assert sorted(map(str, expected - EDGES)) == []


@pytest.mark.parametrize("f", [0, 1, 2])
@pytest.mark.parametrize("partitions", [1, 3])
def test_replica_counts(f: int, partitions: int) -> None:
    graph = Graph(f, partitions)
    counts = Counter(name.stage for name in graph.names)
    many = {
        S.REQUEST_SOURCE: partitions * (2 * f + 1),
        S.PROPOSER: partitions * (f + 1),
        S.COMMITTER: partitions * (2 * f + 1),
        S.EXECUTOR: 2 * f + 1,
        S.REPLY_SINK: 2 * f + 1,
        S.GC_SINK: 2 * f + 1,
        S.GC_SOURCE: 2 * f + 1,
        S.CONTROLLER: partitions * (2 * f + 1),
        S.VIEW_SINK: partitions * (2 * f + 1),
        S.VIEW_SOURCE: partitions * (2 * f + 1),
        S.RECORD_SINK: partitions * (2 * f + 1),
        S.RECORD_SOURCE: partitions * (2 * f + 1),
    }
    assert counts == many
    assert len(set(graph.names)) == len(graph.names)


@pytest.mark.parametrize("f", [0, 1, 2])
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_at_most_one_replica_of_a_stage_per_site(f: int, partitions: int) -> None:
    graph = Graph(f, partitions)
    crowd = Counter((name.stage, name.partition, graph.site(name)) for name in graph.names)
    assert max(crowd.values()) == 1
    assert {graph.site(name) for name in graph.names} == set(range(2 * f + 1))


@pytest.mark.parametrize("f", [0, 1, 2])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(
    ("sink", "source"),
    [(S.GC_SINK, S.GC_SOURCE), (S.VIEW_SINK, S.VIEW_SOURCE), (S.RECORD_SINK, S.RECORD_SOURCE)],
)
def test_a_sink_and_the_source_it_feeds_are_on_one_site(f: int, partitions: int, sink: Stage, source: Stage) -> None:
    """A queue between sites would be a network that could lose its half."""
    bench = Bench(f, partitions, checkpoint_interval=partitions, window=2)
    sample = {S.GC_SINK: bench.status(0), S.VIEW_SINK: t.Vote(0, 0, 1, 1, 1), S.RECORD_SINK: bench.record(0, 1)}[sink]
    for name in bench.graph.names:
        if name.stage is sink:
            step = bench.make(Node, sink, name.replica, name.partition).feed(sample)
            ((_, receivers),) = step.emitted
            (fed,) = [bench.graph.names[number] for number in receivers.numbers]
            assert (fed.stage, fed.partition) == (source, name.partition)
            assert bench.graph.site(fed) == bench.graph.site(name)


@pytest.mark.parametrize("f", [0, 1, 2])
def test_the_others_of_a_stage_are_all_but_one(f: int) -> None:
    """Without replicas there are none."""
    graph = Graph(f, 2)
    for name in graph.names:
        whole = graph.all(name.stage, name.partition)
        others = graph.others(name.stage, name.replica, name.partition)
        assert others.stage is name.stage
        assert len(others.numbers) == graph.replicas(name.stage) - 1
        assert {*others.numbers, graph.number(name.stage, name.replica, name.partition)} == set(whole.numbers)


@pytest.mark.parametrize("f", [1, 2])
def test_an_executor_and_its_reply_sink_are_on_one_site(f: int) -> None:
    graph = Graph(f, 2)
    for replica in range(2 * f + 1):
        assert graph.site(Name(S.EXECUTOR, 0, replica)) == graph.site(Name(S.REPLY_SINK, 0, replica))


def test_active_proposers_of_different_partitions_are_on_different_sites() -> None:
    graph = Graph(1, 3)
    active = graph.proposer_of(1)
    assert active is not None
    sites = {graph.site(Name(S.PROPOSER, partition, active)) for partition in range(3)}
    assert len(sites) == 3


def test_nodes_are_numbered_as_they_are_named() -> None:
    graph = Graph(1, 2)
    for number, name in enumerate(graph.names):
        assert graph.number(name.stage, name.replica, name.partition) == number


def test_all_and_everywhere() -> None:
    graph = Graph(1, 2)
    one = graph.all(S.COMMITTER, 1)
    assert [graph.names[number] for number in one.numbers] == [Name(S.COMMITTER, 1, replica) for replica in range(3)]
    everywhere = graph.everywhere(S.COMMITTER).numbers
    assert everywhere == graph.all(S.COMMITTER, 0).numbers + one.numbers
    assert graph.one(S.COMMITTER, 2, 1) == Receivers(S.COMMITTER, (one.numbers[2],))


@pytest.mark.parametrize("f", [0, 1, 2, 3])
@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("view", range(5))
def test_an_executor_gets_enough_votes_from_those_that_do_not_let_it_wait(f: int, partition: int, view: int) -> None:
    graph = Graph(f, 2)
    proposer = graph.proposer_of(view)
    first = None if proposer is None else graph.site(Name(S.PROPOSER, partition, proposer))
    sent = {index: graph.commit_receivers(index, partition, view) for index in range(graph.sites)}
    for executor, number in enumerate(graph.all(S.EXECUTOR).numbers):
        assert all(number in to.numbers for to in sent.values())
        soon = {
            graph.site(Name(S.COMMITTER, partition, index)) for index, to in sent.items() if number not in to.patient
        }
        assert {executor, first} - {None} <= soon
        assert len(soon) >= (f + 1 if f == 1 else min(f + 2, graph.sites))
        if executor == first:
            assert len(soon) == graph.sites


def test_requests_go_to_the_active_proposer() -> None:
    graph = Graph(2, 1)
    assert graph.request_receivers(0, 0) == graph.all(S.PROPOSER)
    for view in range(1, 5):
        assert graph.request_receivers(0, view).numbers == (graph.number(S.PROPOSER, view % 3),)


def test_labels() -> None:
    assert Graph(1, 1).label(Graph(1, 1).number(S.COMMITTER, 1)) == "committer-1"
    graph = Graph(1, 2)
    assert graph.label(graph.number(S.COMMITTER, 1, 1)) == "committer-p1-1"
    assert graph.label(graph.number(S.EXECUTOR, 2)) == "executor-2"
    assert graph.label(-1) == "host"


@pytest.mark.parametrize(("view", "proposer"), [(0, None), (1, 1), (2, 2), (3, 0), (4, 1)])
def test_proposers_take_turns_and_view_0_has_none(view: int, proposer: int | None) -> None:
    assert Graph(2, 1).proposer_of(view) == proposer


def test_members_are_the_proposers_and_then_the_committers() -> None:
    graph = Graph(2, 1)
    places = [graph.member(S.PROPOSER, index) for index in range(3)]
    places += [graph.member(S.COMMITTER, index) for index in range(5)]
    assert places == list(range(graph.members))


@pytest.mark.parametrize(("f", "partitions", "message"), [(-1, 1, "f = -1"), (1, 0, "partitions = 0")])
def test_impossible_graphs(f: int, partitions: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Graph(f, partitions)


def samples(bench: Bench) -> list[t.Tuple]:
    """One tuple of each kind that an edge carries."""
    return [
        t.Submit([]),
        t.Requests([]),
        bench.proposal(1, 0, []),
        t.Commit(0, 0, 1, 0, []),
        t.Results(0, [], []),
        t.Vote(0, 0, 1, 1, 1),
        t.Target(0, 0, (1, 0), 0),
        bench.status(0),
        *bench.stables(0, [0]),
        *bench.views(1, [0]),
        bench.record(0, 1),
        bench.start(1),
    ]


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in (S.CLIENT, S.STORE)])
def test_emitting_along_a_missing_edge_raises(stage: Stage) -> None:
    bench = Bench()
    driven = bench.make(Node, stage)
    driven.take()
    receivers = {S.CLIENT: CLIENT, S.STORE: STORE} | {
        name.stage: bench.graph.all(name.stage) for name in bench.graph.names
    }
    for tuple_ in samples(bench):
        for receiver in Stage:
            if (stage, type(tuple_), receiver) in EDGES:
                driven.node.emit(tuple_, receivers[receiver])
                assert driven.take().emitted == [(tuple_, receivers[receiver])]
            else:
                message = f"^{stage} may not emit {type(tuple_).__name__} to {receiver}$"
                with pytest.raises(EdgeError, match=message):
                    driven.node.emit(tuple_, receivers[receiver])
                assert driven.take().emitted == []


def test_allowed_edges_are_the_edges_of_the_stage() -> None:
    for stage in Stage:
        flat = {(stage, kind, receiver) for kind, to in allowed_edges(stage).items() for receiver in to}
        assert flat == {edge for edge in EDGES if edge[0] is stage}


def test_shared_stages() -> None:
    shared = {stage for stage in Stage if stage not in PARTITIONED}
    assert shared == {S.EXECUTOR, S.REPLY_SINK, S.GC_SINK, S.GC_SOURCE, S.CLIENT, S.STORE}


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in (S.CLIENT, S.STORE)])
def test_a_tuple_that_a_stage_does_not_take_is_ignored(stage: Stage) -> None:
    """The host's routing was wrong, and a node must not die of what others send."""
    bench = Bench()
    driven = bench.make(Node, stage)
    driven.take()
    taken = {kind for _, kind, receiver in EDGES if receiver is stage}
    for tuple_ in samples(bench):
        if type(tuple_) not in taken:
            assert driven.feed(tuple_).emitted == []
