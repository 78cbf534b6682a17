"""What a peer's frame may bring to the nodes: real tuples, and mutations of them that no node must ever see."""

import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from tara.drills.hostile import (
    ClientFrames,
    ControlMessages,
    FileRequests,
    Identity,
    LogRequests,
    PeerFrames,
    recorded,
)
from tara.host import client_wire, peer_wire
from tara.host.admission import Admission, Arrivals
from tara.host.placement import placement_of
from tara.live import control
from tara.live.observability.heartbeats import decode_status
from tara.net import log_wire
from tara.net.file_exchange import FileRequest
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple
from tara.protocol.graph import EDGES, Graph, Stage
from tara.protocol.limits import Limits
from tara.protocol.nodes.proposer import HeldRequests
from tara.simulator.container import SimulatedContainer
from tara.simulator.network import Network
from tara.simulator.plan import make_plan
from tara.simulator.run import play

ME = Identity(cluster=0xABC123, era=1, container=1, life=1, shape=0x77AA55)
LIMITS = Limits(checkpoint_interval=1024, window=4096)
GRAPH = Graph(LIMITS.f, LIMITS.partitions)
HERE = placement_of(GRAPH, "site")[0]
INCARNATIONS = [1] * GRAPH.members
FAR = 1 << 60


def brings(numbers: list[int], tuple_: t.Tuple) -> peer_wire.Frame:
    return peer_wire.Frame(peer_wire.Header(t.FORMAT_VERSION, *ME), [(numbers, tuple_)], [], [])  # type: ignore[list-item]


def takers(kind: type[t.Tuple]) -> list[int]:
    stages = {stage for sender, edge, stage in EDGES if edge is kind and sender is not Stage.CLIENT}
    return [number for number in HERE if GRAPH.names[number].stage in stages]


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_nodes_say_is_admitted(partitions: int) -> None:
    limits = Limits(partitions=partitions, checkpoint_interval=1024 * partitions, window=4096)
    graph = Graph(limits.f, partitions)
    everywhere = range(len(graph.names))
    admission = Admission(graph, limits, everywhere)
    kinds = recorded(limits)
    assert len(kinds) == 19
    for kind, tuples in kinds.items():
        stages = {stage for sender, edge, stage in EDGES if edge is kind and sender is not Stage.CLIENT}
        for tuple_ in tuples:
            partition = getattr(tuple_, "partition", 0)
            numbers = [
                number
                for number in everywhere
                if graph.names[number].stage in stages and graph.names[number].partition in (0, partition)
            ][-1:]
            assert admission.refusal(brings(numbers, tuple_)) is None


@pytest.mark.parametrize(("f", "partitions", "seeds"), [(1, 1, range(3)), (2, 1, range(1)), (1, 3, range(1, 2))])
def test_whatever_happens_an_honest_node_is_not_refused(
    f: int, partitions: int, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated runs with all their faults, view changes and lost memories: every tuple that leaves for another
    container would be admitted there."""
    seen: Counter[type[t.Tuple]] = Counter()
    travel = Network._travel

    def watch(network: Network, sender: SimulatedContainer, peer: SimulatedContainer, data: bytes) -> None:
        """One that is refused where it arrives ends the run."""
        frame = peer_wire.decode_frame(data)
        seen.update([type(tuple_) for _, tuple_ in frame.parcels])
        admission = Admission(network._world.graph, network._world.plan.limits, peer.numbers)
        for _, vote in frame.votes:
            # Not every vote is opened there.
            seen[type(admission.open(vote))] += 1
        travel(network, sender, peer, data)

    monkeypatch.setattr(Network, "_travel", watch)
    for seed in seeds:
        assert play(make_plan(seed, f, partitions)).violation is None
    assert {t.Start, t.Record, t.Commit, t.Proposal, t.ReadIndex, t.Presence, t.Vote} <= seen.keys()


def test_mutations_with_a_right_header_are_refused_and_those_with_a_wrong_one_seen_to_be_foreign() -> None:
    admission = Admission(GRAPH, LIMITS, HERE)
    frames = PeerFrames(Random(5), GRAPH, LIMITS, HERE, ME, 3)
    refused = {"bad": 0, "foreign": 0, "inadmissible": 0, "votes": 0}
    for _ in range(5_000):
        data = frames.next()
        try:
            header = peer_wire.decode_header(data)
            if header != peer_wire.Header(t.FORMAT_VERSION, *ME):
                refused["foreign"] += 1
                continue
            assert data.startswith(peer_wire.beginning(header))
            frame = peer_wire.decode_frame(data)
        except MalformedTuple:
            refused["bad"] += 1
            continue
        if admission.refusal(frame) is None:
            assert not frame.parcels
            for _, vote in frame.votes:
                with pytest.raises(MalformedTuple):
                    admission.open(vote)
                refused["votes"] += 1
        else:
            refused["inadmissible"] += 1
    assert min(refused.values()) > 100


REQUEST = t.Request(0, 1, 0, 0, b"")
BEYOND = msgspec.structs.replace(REQUEST, source=3)


@pytest.mark.parametrize(
    "tuple_",
    [
        t.Requests([REQUEST, BEYOND]),
        t.Requests([t.NOOP]),
        t.Proposal(2, 0, 1, 0, 0, [REQUEST]),
        t.Proposal(0, 1, 1, 0, 0, [REQUEST]),
        t.Proposal(0, 0, 1, 0, 1024, [REQUEST]),
        t.Proposal(0, 0, 1, 7, 7, [REQUEST]),
        t.Proposal(0, 0, 1, 4096, 0, [REQUEST]),
        t.Proposal(0, 0, 1, 0, 0, [REQUEST, BEYOND]),
        t.Commit(3, 0, 1, 0, [REQUEST]),
        t.Commit(0, 0, 1, 0, [BEYOND]),
        t.IndexRequest(3, 1, 1, 0),
        t.IndexRequest(0, 1, 1, 3),
        t.ReadIndex(3, 0, 1, INCARNATIONS, 0, 1, 1, 0),
        t.ReadIndex(0, 0, 1, INCARNATIONS[1:], 0, 1, 1, 0),
        t.CommitterStatus(3, 0, 1, 1, 1, 1, 0, 0),
        t.CommitterStatus(0, 1, 1, 1, 1, 1, 0, 0),
        t.ExecutorStatus(3, 1, 1, [0], [[(0, 0)] * 3], [], [], 0, 0, 0, 0, 0),
        t.ExecutorStatus(0, 1, 1, [], [[(0, 0)] * 3], [], [], 0, 0, 0, 0, 0),
        t.ExecutorStatus(0, 1, 1, [0], [[(0, 0)] * 2], [], [], 0, 0, 0, 0, 0),
        t.Stable(3, t.CheckpointId(0, b""), [], []),
        t.Stable(0, t.CheckpointId(0, b""), [t.ExecutorStatus(0, 1, 1, [0], [], [], [], 0, 0, 0, 0, 0)], []),
        t.Stable(0, t.CheckpointId(0, b""), [], [t.CommitterStatus(0, 9, 1, 1, 1, 1, 0, 0)]),
        t.Target(3, 0, (1, 1), 0),
        t.Progress(0, 0, 1, [(0, 0)] * 4, 0, 0, 0, 0, 0),
        t.Advance(2, 0, 1, 0, 0),
        t.Vote(3, 0, 1, 1, 1),
        t.Presence(5, 0, 1, 1, INCARNATIONS),
        t.Presence(0, 0, 1, 1, [*INCARNATIONS, 1]),
        t.View(0, 0, 1, []),
        t.View(3, 0, 1, INCARNATIONS),
        t.Record(0, 0, 1, 1, INCARNATIONS, 0, FAR, 0, []),
        t.Record(0, 0, 1, 1, INCARNATIONS, 0, 1, FAR, [t.Accepted(1, REQUEST)]),
        t.Record(0, 0, 1, 1, INCARNATIONS, 1, 2, 1, [t.Accepted(1, REQUEST)]),
        t.Record(0, 0, 1, 1, INCARNATIONS, 0, 1, 0, [t.Accepted(1, BEYOND)]),
        t.Collecting(2, 0, 1, []),
        t.Collecting(0, 0, 1, [(3, 0)]),
        t.Collecting(0, 0, 1, [(0, 0)] * 4),
        t.Start(0, 0, 1, INCARNATIONS, [], 0, FAR),
        t.Start(0, 0, 1, INCARNATIONS, [], 1024, 0),
        t.Start(0, 0, 1, [], [], 0, 0),
        t.Start(0, 0, 1, INCARNATIONS, [t.Credential(3, 1, INCARNATIONS)], 0, 0),
        t.Start(0, 0, 1, INCARNATIONS, [t.Credential(0, 1, [])], 0, 0),
    ],
    ids=lambda tuple_: type(tuple_).__name__,
)
def test_what_would_break_a_node_is_refused(tuple_: t.Tuple) -> None:
    refusal = Admission(GRAPH, LIMITS, HERE).refusal(brings(takers(type(tuple_)), tuple_))
    assert refusal is not None
    assert refusal.startswith(type(tuple_).__name__)


@pytest.mark.parametrize(
    ("numbers", "tuple_"),
    [
        ([-1], t.Vote(0, 0, 1, 1, 1)),
        ([10_000], t.Vote(0, 0, 1, 1, 1)),
        (takers(t.Vote) * 1000, t.Vote(0, 0, 1, 1, 1)),
        (takers(t.Commit), t.Vote(0, 0, 1, 1, 1)),
        ([number for number in HERE if GRAPH.names[number].stage is Stage.REQUEST_SOURCE], t.Submit([])),
        ([number for number in HERE if GRAPH.names[number].stage is Stage.REQUEST_SOURCE], t.SubmitReads([])),
        (placement_of(GRAPH, "site")[1], t.View(0, 0, 1, INCARNATIONS)),
    ],
)
def test_a_tuple_for_nodes_that_do_not_take_it_is_refused(numbers: list[int], tuple_: t.Tuple) -> None:
    assert Admission(GRAPH, LIMITS, HERE).refusal(brings(numbers, tuple_)) is not None


@pytest.mark.parametrize("number", [1 << 62, (1 << 64) - 1])
@pytest.mark.parametrize("place", [3, 4])
def test_numbers_that_cannot_be_added_to_are_not_read(number: int, place: int) -> None:
    fields: list[Any] = [4, 0, 0, 1, 1, []] if place == 4 else [13, 0, 0, 1, 1, 1]
    fields[place] = number
    with pytest.raises(MalformedTuple, match="4611686018427387903"):
        t.decode_tuple(t.encode(fields))


def test_a_stranger_s_tuples_are_not_even_decoded() -> None:
    """Nobody who does not know the cluster makes a container take a large frame apart."""
    header = peer_wire.Header(t.FORMAT_VERSION, ME.cluster + 1, *ME[1:])
    assert peer_wire.decode_header(t.encode([header, [["nonsense"] * 1000], [], []])) == header


def test_a_progress_far_away_costs_no_time() -> None:
    held = HeldRequests(100)
    for number in range(50):
        held.hold(t.Request(0, 1, number, 0, b""))
    began_s = time.monotonic()
    held.decided(1, FAR)
    assert time.monotonic() - began_s < 1
    assert held.held == {}
    assert held.low == FAR


@pytest.mark.parametrize(
    ("make", "decode"),
    [
        (lambda random: ClientFrames(random), client_wire.decode_request),
        (lambda random: FileRequests(random, 5, 1), msgspec.msgpack.Decoder(FileRequest).decode),
        (lambda random: LogRequests(random), log_wire.decode_request),
        (lambda random: ControlMessages(random, {0: 3}), None),
    ],
    ids=["clients", "files", "log", "control"],
)
def test_bad_messages_are_refused_with_the_error_that_hosts_expect(
    make: Callable[[Random], Any], decode: Callable[[bytes], Any] | None
) -> None:
    def decode_control(data: bytes) -> None:
        message = control.decode(data)
        if isinstance(message, control.Heartbeat) and message.life == 3:
            decode_status(message.status)

    messages = make(Random(3))
    for _ in range(2_000):
        (decode or decode_control)(messages.odd())
        with pytest.raises((MalformedTuple, *t.DECODE_ERRORS)):
            (decode or decode_control)(messages.bad())


def test_admission_costs_little_beside_decoding() -> None:
    """Decoding a frame is itself a small part of what a command costs."""
    admission = Admission(GRAPH, LIMITS, HERE)
    requests = [t.Request(0, 1, number, 1_700_000_000_000, bytes(80)) for number in range(20)]
    commit = t.Commit(1, 0, 1, 0, requests)
    header = peer_wire.Header(t.FORMAT_VERSION, *ME)
    data = t.encode(peer_wire.OutgoingFrame(header, [(tuple(takers(t.Commit)), msgspec.Raw(t.encode(commit)))], [], []))
    frame = peer_wire.decode_frame(data)

    def best_s(work: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            began_s = time.perf_counter()
            for _ in range(500):
                work()
            times.append(time.perf_counter() - began_s)
        return min(times) / 500

    share = best_s(lambda: admission.refusal(frame)) / best_s(lambda: peer_wire.decode_frame(data))
    assert share < 1.0


def test_a_frame_that_is_refused_says_nothing_about_its_container() -> None:
    """Otherwise one that claims a high life would shut out the container that is alive."""
    arrivals = Arrivals((1, 1, 0), 3, Admission(GRAPH, LIMITS, HERE))
    head = peer_wire.beginning(peer_wire.Header(t.FORMAT_VERSION, 1, 1, 1, 1_000_000, 0))
    with pytest.raises(MalformedTuple):
        arrivals.open(head + t.encode("rubbish") + t.encode([]) + t.encode([]))
    assert arrivals.lives == [0, 0, 0]
    arrivals.open(t.encode(peer_wire.Frame(peer_wire.Header(t.FORMAT_VERSION, 1, 1, 1, 7, 0), [], [], [])))
    assert arrivals.lives == [0, 7, 0]
