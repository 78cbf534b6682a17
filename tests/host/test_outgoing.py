"""What waits for one peer: what leaves first, what leaves in pieces, and what does not leave at all."""

from tara.host.outgoing import PIECE_BYTES, Outgoing, Piece
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tests.protocol.driver import Bench

BENCH = Bench(f=1)
GRAPH = Graph(1, 1)
COMMITTER = (GRAPH.number(Stage.COMMITTER, 2),)
EXECUTOR = (GRAPH.number(Stage.EXECUTOR, 2),)
SINK = (GRAPH.number(Stage.RECORD_SINK, 2),)
LARGE = 1 << 20
BYTES_MAX = 64 << 20


def request(number: int, size: int) -> t.Request:
    return t.Request(0, 1, number, 0, bytes(size))


def proposal(first: int, size: int = LARGE, view: int = 1, count: int = 1) -> t.Proposal:
    return t.Proposal(0, 0, view, first, 0, [request(first + offset, size) for offset in range(count)])


def commit(first: int, size: int = LARGE, view: int = 1) -> t.Commit:
    return t.Commit(0, 0, view, first, [request(first, size)])


def record(first: int, view: int = 2) -> t.Record:
    return t.Record(0, 0, view, 1, [1] * 5, 0, 8, first, [t.Accepted(1, request(first, LARGE))])


def queue(*tuples: t.Tuple) -> Outgoing:
    outgoing = Outgoing(GRAPH.names, BYTES_MAX)
    for tuple_ in tuples:
        add(outgoing, tuple_)
    return outgoing


def add(outgoing: Outgoing, tuple_: t.Tuple, urgent: bool = True) -> None:
    numbers = {t.Proposal: COMMITTER, t.Commit: EXECUTOR, t.Record: SINK}.get(type(tuple_), COMMITTER)
    outgoing.add(numbers, tuple_, t.encode(tuple_), urgent)


def drain(outgoing: Outgoing) -> list[t.Tuple]:
    """The tuples in the order in which they are complete at the receiver."""
    complete = []
    while pieces := outgoing.take():
        complete += [piece.item.tuple_ for piece in pieces if piece.offset + piece.length == len(piece.item.data)]
    assert outgoing.waiting_bytes == 0
    return complete


def bulk(pieces: list[Piece]) -> int:
    return sum(piece.length for piece in pieces if isinstance(piece.item.tuple_, t.Proposal | t.Commit | t.Record))


def stable(position: int, executor_position: int, view: int = 1) -> t.Stable:
    committer = t.CommitterStatus(2, 0, 1, 1, 1, view, position, 0)
    executor = t.ExecutorStatus(2, 1, 1, [executor_position], [[(0, 0)] * 3], [], [], 0, 0, 0, 0, 0)
    return t.Stable(0, t.CheckpointId(0, b""), [executor], [committer])


def test_what_is_short_leaves_at_once() -> None:
    tuples = [proposal(0, 10), t.Target(0, 0, (1, 1), 0), commit(0, 10)]
    outgoing = queue(*tuples)
    pieces = outgoing.take()
    assert all(piece.is_whole for piece in pieces)
    assert {type(piece.item.tuple_) for piece in pieces} == {t.Proposal, t.Target, t.Commit}
    assert outgoing.waiting_bytes == 0


def test_control_waits_behind_no_more_than_a_piece_of_bulk() -> None:
    outgoing = queue(proposal(0), proposal(1))
    assert bulk(outgoing.take()) <= PIECE_BYTES
    view = t.View(0, 0, 1, [1] * 5)
    add(outgoing, view)
    pieces = outgoing.take()
    assert pieces[0].item.tuple_ == view
    assert bulk(pieces) <= PIECE_BYTES


def test_the_fragments_of_a_tuple_make_the_tuple() -> None:
    outgoing = queue(proposal(7))
    data = b""
    while pieces := outgoing.take():
        (piece,) = pieces
        assert piece.offset == len(data)
        data += piece.item.data[piece.offset : piece.offset + piece.length]
    assert t.decode_tuple(data) == proposal(7)


def test_what_is_furthest_leaves_first_and_each_kind_in_its_order() -> None:
    outgoing = queue(proposal(3), proposal(4), commit(1), record(0, view=1), commit(2))
    add(outgoing, commit(0), urgent=False)
    assert drain(outgoing) == [record(0, view=1), commit(1), commit(2), proposal(3), proposal(4), commit(0)]


def test_what_is_patient_leaves_with_others_or_when_everything_does() -> None:
    outgoing = Outgoing(GRAPH.names, BYTES_MAX)
    add(outgoing, commit(0, 10), urgent=False)
    assert outgoing.take(everything=False) == []
    add(outgoing, t.Target(0, 0, (1, 1), 0))
    assert len(outgoing.take(everything=False)) == 2


def test_orders_and_records_of_an_earlier_view_are_cancelled_but_not_its_commits() -> None:
    outgoing = queue(proposal(0), commit(0), record(0, view=2))
    outgoing.take()
    view = t.View(0, 0, 3, [1] * 5)
    add(outgoing, view)
    assert drain(outgoing) == [view, commit(0)]
    assert outgoing.cancelled == 2


def test_a_tuple_that_was_cancelled_half_way_does_not_spoil_the_next_one() -> None:
    outgoing = queue(proposal(0))
    outgoing.take()
    add(outgoing, proposal(0, view=3))
    assert outgoing.take()[0].offset == 0


def test_what_waits_is_not_queued_twice() -> None:
    outgoing = queue(*(proposal(slot) for slot in range(4)))
    outgoing.take()
    waiting = outgoing.waiting_bytes
    for _ in range(10):
        for slot in range(4):
            add(outgoing, proposal(slot))
        add(outgoing, proposal(1, count=2))
    assert outgoing.waiting_bytes == waiting
    assert drain(outgoing) == [proposal(slot) for slot in range(4)]
    add(outgoing, proposal(0))
    assert drain(outgoing) == [proposal(0)], "what has left may be lost, and is sent again"


def test_what_the_receiver_has_is_cancelled() -> None:
    outgoing = queue(*(proposal(slot) for slot in range(4)), *(commit(slot) for slot in range(4)))
    outgoing.heard(stable(position=2, executor_position=3))
    assert drain(outgoing) == [commit(3), proposal(2), proposal(3)]


def test_a_position_in_an_earlier_view_says_nothing_about_this_one() -> None:
    outgoing = queue(proposal(0, view=2))
    outgoing.heard(stable(position=9, executor_position=0, view=1))
    assert drain(outgoing) == [proposal(0, view=2)]
    add(outgoing, proposal(1, view=2))
    outgoing.heard(stable(position=-1, executor_position=0, view=2))
    assert drain(outgoing) == [proposal(1, view=2)], "it has not seen the start"


def test_bytes_are_bounded_and_what_was_dropped_can_be_sent_again() -> None:
    outgoing = Outgoing(GRAPH.names, BYTES_MAX)
    count = BYTES_MAX // LARGE + 10
    for slot in range(count):
        add(outgoing, proposal(slot))
    assert outgoing.waiting_bytes <= BYTES_MAX
    assert outgoing.dropped > 0
    kept = len(drain(outgoing))
    assert kept + outgoing.dropped == count
    add(outgoing, proposal(kept))
    assert drain(outgoing) == [proposal(kept)]


def test_a_peer_that_is_gone_leaves_nothing() -> None:
    outgoing = queue(proposal(0), t.Target(0, 0, (1, 1), 0))
    outgoing.take()
    outgoing.clear()
    assert (outgoing.take(), outgoing.waiting_bytes) == ([], 0)
    add(outgoing, proposal(0))
    assert drain(outgoing) == [proposal(0)]


def test_of_what_waits_only_the_head_is_looked_at() -> None:
    """However much it is: a peer that hangs must not cost the others their time. What is behind the first that is
    needed leaves, or is dropped when its turn comes."""
    outgoing = queue(commit(0), commit(1), commit(5), commit(2))
    outgoing.heard(stable(0, 3))
    assert drain(outgoing) == [commit(5), commit(2)]
