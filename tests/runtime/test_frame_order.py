"""The order in which a container delivers what one frame of a peer brings."""

from pathlib import Path

import pytest

from tara.application import KeyValueStore
from tara.configuration.placement import placement_of
from tara.host.outgoing import PIECE_BYTES, Outgoing
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.runtime.container import Container, ContainerSpec, Start
from tara.transport import wire

GRAPH = Graph(1, 1)
COMMITTER = GRAPH.number(Stage.COMMITTER, 0)


def proposal(slot: int, size: int) -> t.Proposal:
    return t.Proposal(1, 0, 1, slot, 0, [t.Request(0, 1, slot, 0, bytes(size))])


def frames(*tuples: t.Proposal) -> list[bytes]:
    """As the container of site 1 sends them."""
    outgoing = Outgoing(GRAPH.names)
    for tuple_ in tuples:
        outgoing.add((COMMITTER,), tuple_, wire.encode(tuple_))
    header = wire.Header(t.FORMAT_VERSION, 1, 1, 1, 1, 0)
    found = []
    while pieces := outgoing.take():
        found += wire.encode_frame(wire.frame_of(header, pieces), Limits().frame_bytes_max)
    return found


def test_a_short_proposal_does_not_overtake_the_long_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A committer passes over a proposal that comes too early, and the proposer takes a while to send it again."""
    spec = ContainerSpec(
        cluster=1,
        era=1,
        container=0,
        placement=placement_of(GRAPH, "site"),
        limits=Limits(),
        durability="memory",
        data_dir=str(tmp_path),
        host="127.0.0.1",
        port=0,
    )
    container = Container(spec, KeyValueStore)
    container.start(Start(life=1, genesis=True))
    container.found()
    sent = [proposal(0, 2 * PIECE_BYTES), proposal(1, 10), proposal(2, 2 * PIECE_BYTES), proposal(3, 10)]
    arriving = frames(*sent)
    assert len(arriving) < 6, "the short ones travel together with the ends of the long ones"
    delivered: list[tuple[object, int]] = []
    monkeypatch.setattr(container._links, "receive", lambda: arriving)
    monkeypatch.setattr(container, "_deliver", lambda tuple_, number: delivered.append((tuple_, number)))
    try:
        container._receive_frames()
        assert container.counters.frames_bad == container.counters.frames_foreign == 0
        assert delivered == [(tuple_, COMMITTER) for tuple_ in sent]
    finally:
        container.stopping = True
        container.run(lambda: None)
