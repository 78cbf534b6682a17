"""The order in which a site delivers what one frame of a peer brings."""

import pytest

from tara.host import peer_wire
from tara.host.counters import Counters
from tara.host.effects import Inputs
from tara.host.outgoing import PIECE_BYTES, Outgoing
from tara.host.placement import placement_of
from tara.host.site import Site, SiteSpec
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits

GRAPH = Graph(1, 1)
COMMITTER = GRAPH.number(Stage.COMMITTER, 0)


def proposal(slot: int, size: int) -> t.Proposal:
    return t.Proposal(1, 0, 1, slot, 0, [t.Request(0, 1, slot, 0, bytes(size))])


def frames(*tuples: t.Proposal) -> list[bytes]:
    """As the container of site 1 sends them."""
    outgoing = Outgoing(GRAPH.names)
    for tuple_ in tuples:
        outgoing.add((COMMITTER,), tuple_, peer_wire.encode(tuple_))
    header = peer_wire.Header(t.FORMAT_VERSION, 1, 1, 1, 1, 0)
    found = []
    while pieces := outgoing.take():
        found += peer_wire.encode_frame(peer_wire.frame_of(header, pieces), Limits().frame_bytes_max)
    return found


def test_a_short_proposal_does_not_overtake_the_long_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committer passes over a proposal that comes too early, and the proposer takes a while to send it again."""
    spec = SiteSpec(
        cluster=1, era=1, shape=0, container=0, placement=placement_of(GRAPH, "site"), limits=Limits(), journal=False
    )
    site = Site(spec, 1, Counters())
    sent = [proposal(0, 2 * PIECE_BYTES), proposal(1, 10), proposal(2, 2 * PIECE_BYTES), proposal(3, 10)]
    arriving = frames(*sent)
    assert len(arriving) < 6, "the short ones travel together with the ends of the long ones"
    delivered: list[tuple[object, int]] = []
    monkeypatch.setattr(site, "_deliver", lambda tuple_, number: delivered.append((tuple_, number)))

    effects = list(site.step(Inputs(frames=arriving), 0.0))

    assert effects == []
    assert delivered == [(tuple_, COMMITTER) for tuple_ in sent]
