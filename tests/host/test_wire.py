"""Messages that would be too long for who receives them leave in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from tara.host import client_wire, peer_wire
from tara.host.fragments import Assembly
from tara.host.outgoing import Outgoing
from tara.protocol import tuples as t
from tara.protocol.graph import Graph

HEADER = peer_wire.Header(t.FORMAT_VERSION, 1, 1, 0, 1, 7)


def outgoing(parcels: list[int], votes: list[int]) -> peer_wire.OutgoingFrame:
    """A frame with a tuple of each of these sizes."""
    waiting = Outgoing(Graph(1, 1).names, 64 << 20)
    for number, size in enumerate(parcels):
        requests = t.Requests([t.Request(0, 1, number, 0, bytes(size))])
        waiting.add((number,), requests, peer_wire.encode(requests))
    for number, size in enumerate(votes):
        commit = t.Commit(0, 0, 1, number, [t.Request(0, 1, number, 0, bytes(size))])
        waiting.add((number,), commit, peer_wire.encode(commit))
    return peer_wire.frame_of(HEADER, waiting.take())


sizes = st.lists(st.integers(0, 400), max_size=12)


@given(parcels=sizes, votes=sizes, bytes_max=st.integers(500, 2000))
def test_a_long_frame_leaves_in_pieces(parcels: list[int], votes: list[int], bytes_max: int) -> None:
    if not parcels and not votes:
        parcels = [1]
    pieces = peer_wire.encode_frame(outgoing(parcels, votes), bytes_max)

    assert all(len(piece) <= bytes_max for piece in pieces)
    frames = [peer_wire.decode_frame(piece) for piece in pieces]
    assert all(frame.header == HEADER for frame in frames)
    assert [numbers for frame in frames for numbers, _ in frame.parcels] == [[n] for n in range(len(parcels))]
    assert [vote.end for frame in frames for _, vote in frame.votes] == [n + 1 for n in range(len(votes))]


def test_a_frame_that_is_short_enough_leaves_as_it_is() -> None:
    frame = outgoing([100, 100], [100])
    whole = peer_wire.encode(frame)

    assert peer_wire.encode_frame(frame, len(whole)) == [whole]
    assert len(peer_wire.encode_frame(frame, len(whole) - 1)) == 2


def test_a_tuple_that_is_longer_than_a_piece_leaves_as_fragments() -> None:
    waiting = Outgoing(Graph(1, 1).names, 64 << 20)
    requests = t.Requests([t.Request(0, 1, 0, 0, bytes(200_000))])
    waiting.add((5,), requests, peer_wire.encode(requests))
    assembly, whole = Assembly(1 << 20, 1 << 20), None
    while pieces := waiting.take():
        (data,) = peer_wire.encode_frame(peer_wire.frame_of(HEADER, pieces), 1 << 20)
        frame = peer_wire.decode_frame(data)
        assert data.startswith(peer_wire.beginning(HEADER))
        assert not frame.parcels
        (fragment,) = frame.fragments
        assert whole is None
        whole = assembly.add(0, 1, fragment)
    assert whole is not None
    assert t.decode_tuple(whole) == requests


def test_a_clients_pipeline_leaves_in_pieces() -> None:
    commands = [t.Command(9, number, 0, bytes(50_000)) for number in range(10)]
    reads = [client_wire.ReadMessage(number, bytes(50_000)) for number in range(3)]
    pieces = client_wire.encode_request(commands, reads, bytes(16))
    requests = [client_wire.decode_request(piece) for piece in pieces]

    assert max(map(len, pieces)) <= client_wire.REQUEST_BYTES_MAX
    assert [command for request in requests for command in request.commands] == commands
    assert [read for request in requests for read in request.reads] == reads


def test_a_command_that_is_too_long_by_itself_is_sent_as_it_is() -> None:
    """The front end says that it is too long; see `Limits.command_bytes_max`."""
    commands = [t.Command(9, number, 0, bytes(client_wire.REQUEST_BYTES_MAX)) for number in range(2)]

    pieces = client_wire.encode_request(commands, [], bytes(16))
    assert [len(client_wire.decode_request(piece).commands) for piece in pieces] == [1, 1]


def test_what_many_wait_for_leaves_in_pieces() -> None:
    length = client_wire.REPLY_BYTES_MAX // 3 - 100
    results = [t.Result(9, number, number, t.OK, bytes(length)) for number in range(10)]
    answers = [(number, t.OK, bytes(length)) for number in range(5)]
    reply = client_wire.ClientReply(t.FORMAT_VERSION, results, [], answers)
    pieces = list(client_wire.encode_reply(reply))
    replies = [client_wire.decode_reply(piece) for piece in pieces]

    assert max(map(len, pieces)) <= client_wire.REPLY_BYTES_MAX
    assert [result for piece in replies for result in piece.results] == results
    assert [answer for piece in replies for answer in piece.answers] == answers
