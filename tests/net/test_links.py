"""Links between containers, with real sockets."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tara.net import bounds
from tara.net.links import Links
from tests.patience import DEADLINE_S

FRAME_BYTES_MAX = 1 << 20


class End:
    """A container's links, and what it heard."""

    def __init__(self, port: int = 0) -> None:
        self.bad: list[str] = []
        self.frames: list[bytes] = []
        self.links = Links("127.0.0.1", port, 3, FRAME_BYTES_MAX, self.bad.append)

    @property
    def port(self) -> int:
        return int(self.links.address.rpartition(":")[2])

    def turn(self) -> None:
        self.links.tick()
        self.frames += self.links.receive()


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    here, there = End(), End()
    here.links.connect(1, there.links.address)
    yield here, there
    here.links.close()
    there.links.close()


def until(condition: Callable[[], bool], *ends: End) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        for end in ends:
            end.turn()
        time.sleep(0.001)


def test_frames_arrive_whole_and_in_order(ends: tuple[End, End]) -> None:
    here, there = ends
    frames = [b"", b"x", b"y" * 300_000, b"z" * FRAME_BYTES_MAX, *(b"%d" % number for number in range(1000))]
    for frame in frames:
        assert here.links.send(1, frame)
    until(lambda: len(there.frames) == len(frames), here, there)
    assert there.frames == frames


def test_what_is_sent_to_nobody_is_lost(ends: tuple[End, End]) -> None:
    here, _ = ends
    assert not here.links.send(0, b"x")
    here.links.connect(1, None)
    assert not here.links.send(1, b"x")


def test_a_frame_in_many_pieces(ends: tuple[End, End]) -> None:
    _, there = ends
    data = b"".join(struct.pack("<I", len(frame)) + frame for frame in (b"first", b"second" * 100))
    with closing(socket.create_connection(("127.0.0.1", there.port))) as slow:
        for position in range(0, len(data), 7):
            slow.sendall(data[position : position + 7])
            there.turn()
        until(lambda: len(there.frames) == 2, there)
    assert there.frames == [b"first", b"second" * 100]


def test_a_connection_comes_back_when_the_peer_does(ends: tuple[End, End]) -> None:
    here, there = ends
    here.links.send(1, b"before")
    until(lambda: there.frames == [b"before"], here, there)
    there.links.close()
    until(lambda: not here.links.send(1, b"lost"), here)

    again = End(there.port)
    until(lambda: here.links.send(1, b"after") and b"after" in again.frames, here, again)
    again.links.close()
    there.links = Links("127.0.0.1", 0, 3, FRAME_BYTES_MAX, there.bad.append)


def test_a_frame_that_is_too_long_ends_its_connection_only(ends: tuple[End, End]) -> None:
    here, there = ends
    with closing(socket.create_connection(("127.0.0.1", there.port))) as hostile:
        hostile.sendall(b"GET / HTTP/1.1\r\n\r\n")
        until(lambda: bool(there.bad), there)
        hostile.settimeout(DEADLINE_S)
        try:
            answer = hostile.recv(1)
        except ConnectionResetError:
            answer = b""
        assert answer == b""
    assert "a frame of" in there.bad[0]
    here.links.send(1, b"well")
    until(lambda: there.frames == [b"well"], here, there)


def test_silent_connections_do_not_keep_peers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "PEERS_MAX", 8)
    here, there = End(), End()
    here.links.connect(1, there.links.address)
    silent = [socket.create_connection(("127.0.0.1", there.port)) for _ in range(20)]
    until(lambda: len(there.bad) >= 12, here, there)
    until(lambda: here.links.send(1, b"well") and b"well" in there.frames, here, there)
    for connection in silent:
        connection.close()
    here.links.close()
    there.links.close()


def test_what_a_peer_does_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LINK_BYTES_MAX", 4 << 20)
    here, there = End(), End()
    with closing(here.links), closing(there.links):
        here.links.connect(1, there.links.address)
        frame = b"x" * FRAME_BYTES_MAX
        sent = 0
        while here.links.send(1, frame):
            here.turn()
            sent += 1
            assert sent < 100
        assert 0 < here.links.unsent_bytes(1) <= 4 << 20
        until(lambda: len(there.frames) == sent, here, there)
        assert here.links.send(1, b"room again")


def test_a_link_tells_when_everything_has_left(ends: tuple[End, End]) -> None:
    here, there = ends
    until(lambda: here.links.send(1, b"x") and there.frames != [], here, there)
    here.links.take_writable()
    while not here.links.unsent_bytes(1):
        assert here.links.send(1, b"x" * FRAME_BYTES_MAX)
    assert here.links.take_writable() == set()
    until(lambda: not here.links.unsent_bytes(1), here, there)

    assert here.links.take_writable() == {1}
    assert here.links.take_writable() == set()


def test_the_kernel_takes_little_before_it_is_sent(ends: tuple[End, End]) -> None:
    """What is urgent would wait behind it."""
    here, there = ends
    until(lambda: here.links.send(1, b"x") and there.frames != [], here, there)
    sent = 0
    while not here.links.unsent_bytes(1):
        assert here.links.send(1, b"x" * 10_000)
        sent += 10_000
    link = here.links._outgoing[1]
    assert link is not None
    assert link.connection is not None
    option = link.connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
    assert option == bounds.LINK_NOT_SENT_BYTES
