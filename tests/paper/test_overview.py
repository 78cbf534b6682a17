"""Sections III-A (Overview) and III-B (System Model), and the appendix's table of node numbers."""

from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import msgspec
import pytest

from tara.application import Get, Put
from tara.protocol import tuples as t
from tara.protocol.graph import EDGES, Graph, Name, Stage
from tara.protocol.node import Node
from tests.protocol.driver import Bench, Network, open_session, session_id

S = Stage
SINKS = {S.REPLY_SINK, S.GC_SINK, S.VIEW_SINK, S.RECORD_SINK}
SOURCES = {S.REQUEST_SOURCE, S.GC_SOURCE, S.VIEW_SOURCE, S.RECORD_SOURCE}
OUTSIDE = {S.CLIENT, S.STORE}


@pytest.mark.parametrize("f", [0, 1, 2, 3])
def test_numbers_of_nodes(f: int) -> None:
    """Appendix, table of node numbers: f+1 proposers; 2f+1 committers, executors and feedback sources and sinks.

    We deviate twice. The table has f+1 controllers of which f+1 have to agree, so that one crash disables them
    (L1): we have 2f+1. Its f+1 request sources and reply sinks are a minimum: we have one per site."""
    graph = Graph(f, 1)
    of_table = {
        S.REQUEST_SOURCE: f + 1,
        S.GC_SOURCE: 2 * f + 1,
        S.VIEW_SOURCE: 2 * f + 1,
        S.RECORD_SOURCE: 2 * f + 1,
        S.PROPOSER: f + 1,
        S.COMMITTER: 2 * f + 1,
        S.EXECUTOR: 2 * f + 1,
        S.CONTROLLER: f + 1,
        S.REPLY_SINK: f + 1,
        S.GC_SINK: 2 * f + 1,
        S.VIEW_SINK: 2 * f + 1,
        S.RECORD_SINK: 2 * f + 1,
    }
    ours = of_table | {S.CONTROLLER: 2 * f + 1, S.REQUEST_SOURCE: 2 * f + 1, S.REPLY_SINK: 2 * f + 1}
    assert {stage: graph.replicas(stage) for stage in of_table} == ours
    assert {name.stage for name in graph.names} == set(of_table)


def dependencies(without_queues: bool) -> dict[Stage, set[Stage]]:
    """For each stage, the stages that emit to it."""
    found: dict[Stage, set[Stage]] = defaultdict(set)
    for sender, _, receiver in EDGES:
        if OUTSIDE & {sender, receiver}:
            continue
        queue = receiver in SOURCES and (sender in SINKS or sender is receiver)
        if not (queue and without_queues):
            found[receiver].add(sender)
    return found


def test_the_graph_is_acyclic_but_for_the_queues() -> None:
    """III-A: tuples flow through a directed acyclic graph; only the queues from sinks back to sources close circles.
    (The appendix also lets sources of a kind put what they publish into each other's queues.)"""
    order = list(TopologicalSorter(dependencies(without_queues=True)).static_order())
    place = {stage: number for number, stage in enumerate(order)}
    path = [S.REQUEST_SOURCE, S.PROPOSER, S.COMMITTER, S.EXECUTOR, S.REPLY_SINK]
    assert [place[stage] for stage in path] == sorted(place[stage] for stage in path)


def test_the_queues_do_close_circles() -> None:
    """III-A: what garbage collection and view change emit is fed back into the protocol."""
    with pytest.raises(CycleError):
        list(TopologicalSorter(dependencies(without_queues=False)).static_order())


@pytest.mark.parametrize("f", [1, 2])
def test_replicas_of_a_stage_are_on_separate_servers(f: int) -> None:
    """III-A: replicas of one stage never share a server, replicas of different stages may."""
    graph = Graph(f, 2)
    by_stage = defaultdict(list)
    for name in graph.names:
        by_stage[name.stage, name.partition].append(graph.site(name))
    assert all(len(set(sites)) == len(sites) for sites in by_stage.values())
    assert graph.site(Name(S.COMMITTER, 0, 0)) == graph.site(Name(S.EXECUTOR, 0, 0))


@pytest.mark.parametrize(
    ("sink", "source"),
    [(S.GC_SINK, S.GC_SOURCE), (S.VIEW_SINK, S.VIEW_SOURCE), (S.RECORD_SINK, S.RECORD_SOURCE)],
)
@pytest.mark.parametrize("replica", [0, 1, 2])
def test_a_queue_belongs_to_one_sink_and_one_source(sink: Stage, source: Stage, replica: int) -> None:
    """III-A: each queue is tied to one replica, and may die with it. Appendix: all sinks work alike, and forward."""
    bench = Bench()
    sample = {S.GC_SINK: bench.status(2), S.VIEW_SINK: t.Vote(2, 0, 1, 5, 5), S.RECORD_SINK: bench.record(2, 5)}[sink]
    step = bench.make(Node, sink, replica).feed(sample)
    assert step.emitted == [(sample, bench.graph.one(source, replica))]


def put(session: int, number: int, key: str, value: bytes) -> t.Command:
    return t.Command(session, number, number, msgspec.msgpack.encode(Put(key, value)))


def get(session: int, number: int, key: str) -> t.Command:
    return t.Command(session, number, number, msgspec.msgpack.encode(Get(key)), t.QUERY)


def started(bench: Bench, down: set[int] | None = None) -> Network:
    """A network in which the first view is in use."""
    network = Network(bench, down or ())
    network.run(100)
    return network


def test_a_command_comes_in_is_ordered_executed_and_answered() -> None:
    """III-A, steps 1 to 4 of the main workflow."""
    network = started(Bench())
    (opened,) = network.submit_at(0, open_session())
    session = session_id(opened)
    (done,) = network.submit_at(0, put(session, 0, "k", b"v"))
    (read,) = network.submit_at(0, get(session, 1, "k"))
    assert (done.status, msgspec.msgpack.decode(read.payload)) == (t.OK, b"v")


def test_a_client_that_retries_at_another_front_end_gets_the_same_result() -> None:
    """III-A: a client without an answer sends the command to another front end; the duplicate is filtered out."""
    network = started(Bench())
    session = session_id(network.submit_at(0, open_session())[0])
    command = t.Command(session, 0, 0, msgspec.msgpack.encode(Put("k", b"v")))
    (first,) = network.submit_at(0, command)
    (again,) = network.submit_at(2, command)
    assert again == first


@pytest.mark.parametrize("f", [1, 2])
def test_f_crashes_in_every_stage_are_tolerated(f: int) -> None:
    """III-B: the service goes on while at most f replicas of each stage are down, the active proposer among them."""
    bench = Bench(f)
    graph = bench.graph
    active = graph.proposer_of(1)
    assert active is not None
    crashed = [(active + offset) % (f + 1) for offset in range(f)]
    down = {number for number, name in enumerate(graph.names) if name.replica in crashed}
    alive = next(replica for replica in range(bench.limits.replicas) if replica not in crashed)
    network = started(bench, down)
    network.submit_at(alive, open_session())
    network.run(20 * bench.limits.controller_timeout_ms)
    (opened,) = [result for sink, result in network.replies if sink == alive]
    (done,) = network.submit_at(alive, put(session_id(opened), 0, "k", b"v"))
    assert done.status == t.OK


def test_more_than_f_crashes_stall_and_nothing_else() -> None:
    """III-B, the other side: without f+1 committers nothing is ordered, and nothing wrong is answered."""
    bench = Bench()
    network = started(bench, {bench.graph.number(S.COMMITTER, replica) for replica in (0, 1)})
    network.submit_at(2, open_session())
    network.run(20 * bench.limits.controller_timeout_ms)
    assert network.replies == []
