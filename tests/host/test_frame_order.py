"""The order in which a site delivers what one frame of a peer brings."""

from tara.host import peer_wire
from tara.host.counters import Counters
from tara.host.effects import Trouble
from tara.host.outgoing import PIECE_BYTES, Outgoing
from tara.host.peers import Peers
from tara.host.placement import placement_of
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits

GRAPH = Graph(1, 1)
COMMITTER = GRAPH.number(Stage.COMMITTER, 0)


def proposal(slot: int, size: int) -> t.Proposal:
    return t.Proposal(1, 0, 1, slot, 0, [t.Request(0, 1, slot, 0, bytes(size))])


def frames(*tuples: t.Proposal) -> list[bytes]:
    """As the container of site 1 sends them."""
    outgoing = Outgoing(GRAPH.names, 64 << 20)
    for tuple_ in tuples:
        outgoing.add((COMMITTER,), tuple_, peer_wire.encode(tuple_))
    header = peer_wire.Header(t.FORMAT_VERSION, 1, 1, 1, 1, 0)
    found = []
    while pieces := outgoing.take():
        found += peer_wire.encode_frame(peer_wire.frame_of(header, pieces), Limits().frame_bytes_max)
    return found


def test_a_short_proposal_does_not_overtake_the_long_one_before_it() -> None:
    """A committer passes over a proposal that comes too early, and the proposer takes a while to send it again."""
    troubles: list[Trouble] = []
    header = peer_wire.Header(t.FORMAT_VERSION, 1, 1, 0, 1, 0)
    peers = Peers(GRAPH, Limits(), placement_of(GRAPH, "site"), header, Counters(), troubles.append)
    sent = [proposal(0, 2 * PIECE_BYTES), proposal(1, 10), proposal(2, 2 * PIECE_BYTES), proposal(3, 10)]
    arriving = frames(*sent)
    assert len(arriving) < 6, "the short ones travel together with the ends of the long ones"
    delivered: list[tuple[object, int]] = []

    peers.hear(arriving, lambda tuple_, number: delivered.append((tuple_, number)), lambda *vote: None)

    assert troubles == []
    assert delivered == [(tuple_, COMMITTER) for tuple_ in sent]
