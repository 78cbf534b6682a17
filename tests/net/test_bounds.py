"""What strangers, and clients with keys, can make a port keep: every bound of `tara.net.bounds`, with real sockets."""

import errno
import os
import resource
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from tara.net import bounds
from tara.net.budget import Budget
from tara.net.certificates import Keys, load_keys
from tara.net.channel import Channel
from tara.net.connection import READ_BYTES
from tara.net.framing import framed
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.net.port import Terms
from tara.net.principal import NOBODY, Kind
from tara.net.server import Address, Server
from tests.net.terms import ANYWHERE, ignore
from tests.patience import DEADLINE_S, await_condition

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    make_cluster_keys(directory)
    make_client_keys(directory, "alice")
    return directory


@pytest.fixture(scope="module")
def member(directory: Path) -> Keys:
    return load_keys(directory)


@pytest.fixture(scope="module")
def alice(directory: Path) -> Keys:
    return load_keys(directory / "clients" / "alice")


class Served:
    """A server, and everything that it heard."""

    def __init__(
        self,
        keys: Keys | None,
        connections_max: int = 1000,
        budget: Budget | None = None,
        frame_bytes_max: int = 16 * MEGABYTE,
    ) -> None:
        self.bad: list[str] = []
        self.refused: list[str] = []
        self.heard: list[tuple[bytes, bytes]] = []
        guard = None if keys is None else keys.members_and_clients()
        terms = Terms(frame_bytes_max, connections_max, guard, self.bad.append, self.refused.append)
        self.server = Server(ANYWHERE, terms, budget)

    def turn(self) -> None:
        self.server.tick()
        self.heard += self.server.receive()

    @property
    def connections(self) -> int:
        return len(self.server._port.connections)

    @property
    def kept_bytes(self) -> int:
        return sum(incoming.connection.kept_bytes for incoming in self.server._port.connections.values())

    def open(self) -> socket.socket:
        host, _, port = self.server.address.removeprefix("tcp://").rpartition(":")
        return socket.create_connection((host, int(port)))

    def until(self, condition: Callable[[], object], what: str, *channels: Channel) -> list[bytes]:
        """Turn until it holds; what the channels heard meanwhile."""
        heard: list[bytes] = []

        def holds() -> object:
            self.turn()
            for channel in channels:
                heard.extend(channel.receive())
            return condition()

        await_condition(holds, what)
        return heard


@pytest.fixture
def keyed(member: Keys) -> Iterator[Served]:
    served = Served(member)
    with closing(served.server):
        yield served


@pytest.fixture
def plain() -> Iterator[Served]:
    served = Served(None)
    with closing(served.server):
        yield served


@pytest.fixture(params=["plain", "keyed"])
def either(request: pytest.FixtureRequest, member: Keys) -> Iterator[Served]:
    served = Served(member if request.param == "keyed" else None)
    with closing(served.server):
        yield served


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MEGABYTE


def push(sock: socket.socket, data: bytes, served: Served) -> bool:
    """Send all of it while the server turns; whether it was taken to the end."""
    sock.setblocking(False)
    sent = 0
    while sent < len(data):
        try:
            sent += sock.send(data[sent : sent + 65536])
        except BlockingIOError:
            pass
        except OSError:
            return False
        served.turn()
    return True


def ended(sock: socket.socket) -> bool:
    """Whether the other side has closed it."""
    sock.setblocking(False)
    try:
        return not sock.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_connection_knows_its_principal(keyed: Served, member: Keys, alice: Keys) -> None:
    for keys, kind in ((alice, Kind.CLIENT), (member, Kind.MEMBER)):
        channel = Channel(keyed.server.address, keys)
        channel.send(b"hello")
        keyed.until(lambda: keyed.heard, "a message", channel)
        ((name, message),) = keyed.heard
        assert message == b"hello"
        assert keyed.server.principal(name) == keys.principal
        assert keys.principal.kind is kind
        keyed.heard.clear()
        channel.close()
        keyed.until(lambda: not keyed.connections, "the end")
        assert keyed.server.principal(name) == NOBODY
    assert alice.principal != member.principal


def test_without_keys_it_is_nobody(plain: Served) -> None:
    channel = Channel(plain.server.address, None)
    channel.send(b"hello")
    plain.until(lambda: plain.heard, "a message", channel)
    assert plain.server.principal(plain.heard[0][0]) == NOBODY
    channel.close()


def test_tls_1_3_only(keyed: Served, alice: Keys) -> None:
    channel = Channel(keyed.server.address, alice)
    keyed.until(lambda: channel.open, "a connection", channel)
    assert channel._connection is not None
    assert channel._connection._tls is not None
    assert channel._connection._tls._object.version() == "TLSv1.3"
    assert (channel._connection._tls._object.cipher() or "")[0] == "TLS_AES_256_GCM_SHA384"
    channel.close()


@pytest.mark.parametrize(
    ("server_keyed", "client_keyed", "reason"),
    [(True, False, "the other side requires keys"), (False, True, "the other side has no keys")],
)
def test_one_side_without_keys_is_told_to_both(
    member: Keys, alice: Keys, server_keyed: bool, client_keyed: bool, reason: str
) -> None:
    served = Served(member if server_keyed else None)
    channel = Channel(served.server.address, alice if client_keyed else None)
    channel.send(bytes([0x92, 1, 0x90]))
    served.until(lambda: channel.broken, "the refusal", channel)
    assert channel.refusal == reason
    assert len(served.refused) == 1
    assert served.heard == []
    channel.close()
    served.until(lambda: not served.connections, "the end")
    served.server.close()


def test_silent_strangers_are_few_and_do_not_stay(keyed: Served, alice: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        for _ in range(900):
            stack.enter_context(keyed.open())
            keyed.turn()
        keyed.until(lambda: keyed.connections == bounds.HANDSHAKES_MAX, "the oldest to be closed")
        # Whoever has a key is served all the same.
        channel = Channel(keyed.server.address, alice)
        channel.send(b"hello")
        keyed.until(lambda: keyed.heard, "a message", channel)
        monkeypatch.setattr(bounds, "HANDSHAKE_S_MAX", 0.2)
        keyed.until(lambda: keyed.connections == 1, "the silent ones to be closed", channel)
        assert any("no handshake within" in reason for reason in keyed.refused)
        # Authenticated, it may be silent.
        assert channel.open
        channel.close()


def test_without_keys_one_that_sends_nothing_does_not_stay(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel(plain.server.address, None)
    channel.send(b"hello")
    plain.until(lambda: plain.heard, "a message", channel)
    with ExitStack() as stack:
        silent = [stack.enter_context(plain.open()) for _ in range(100)]
        plain.until(lambda: plain.connections == 101, "all of them")
        monkeypatch.setattr(bounds, "FIRST_FRAME_S_MAX", 0.2)
        plain.until(lambda: plain.connections == 1, "the silent ones to be closed", channel)
        assert all(ended(sock) for sock in silent)
    channel.close()


@pytest.mark.parametrize(
    "data",
    [
        # A greeting that is announced to be as long as one can be, in record after record.
        b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff\x03\x03" + bytes((1 << 14) - 6),
        b"\x16\x03\x01\x40\x00" + bytes(1 << 14),
        b"\x17\x03\x03\x40\x00" + bytes(1 << 14),
        b"GET / HTTP/1.1\r\n" * 1000,
    ],
)
def test_an_endless_handshake_is_given_up(keyed: Served, data: bytes) -> None:
    before_mb = resident_mb()
    with ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(keyed.open())
            while push(sock, data, keyed) and not ended(sock):
                pass
        keyed.until(lambda: len(keyed.refused) >= 50, "all of them to be refused")
    assert resident_mb() - before_mb < 16


def test_a_handshake_that_trickles_is_given_up(keyed: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "HANDSHAKE_S_MAX", 0.5)
    with keyed.open() as slow:

        def given_up() -> bool:
            # A record that never comes to its end.
            return not push(slow, b"\x16\x03\x01\x40\x00\x01"[:1], keyed) or ended(slow)

        slow.send(b"\x16\x03\x01\x40\x00\x01\x00")
        keyed.until(given_up, "it to be given up")
    assert keyed.refused == ["no handshake within 1 s"]


def test_handshakes_do_not_stop_the_others(keyed: Served, alice: Keys) -> None:
    """However many begin at once, a turn goes on with a few of them."""
    channels = [Channel(keyed.server.address, alice) for _ in range(40)]
    turns, end_s = 0, time.monotonic() + DEADLINE_S
    while keyed.server._port._strangers or not all(channel.open for channel in channels):
        for channel in channels:
            channel.receive()
        keyed.turn()
        turns += 1
        assert time.monotonic() < end_s
    # Each takes two: the greeting, and the certificate.
    assert turns >= 2 * len(channels) / bounds.HANDSHAKES_PER_TURN
    for channel in channels:
        channel.close()


def test_handshakes_have_a_share_of_the_time_only(keyed: Served, alice: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Channel(keyed.server.address, alice)
    first.send(b"hello")
    keyed.until(lambda: keyed.heard, "a message", first)
    monkeypatch.setattr(bounds, "HANDSHAKE_SHARE", 0.0)
    monkeypatch.setattr(bounds, "HANDSHAKE_SAVED_S", 0.0)
    second = Channel(keyed.server.address, alice)
    second.send(b"hello")
    # Who is connected is served; who is not waits, and keeps nobody awake.
    for _ in range(20):
        keyed.heard.clear()
        first.send(b"again")
        keyed.until(lambda: keyed.heard, "a message", first, second)
        assert not second.open
    while keyed.server._port.poll():
        keyed.turn()
    monkeypatch.setattr(bounds, "HANDSHAKE_SHARE", 0.5)
    monkeypatch.setattr(bounds, "HANDSHAKE_SAVED_S", 0.5)
    keyed.heard.clear()
    keyed.until(lambda: keyed.heard, "the message of the other", first, second)
    first.close()
    second.close()


@pytest.mark.parametrize("resets", [True, False], ids=["reset", "closed"])
def test_connections_that_end_at_once_harm_nobody(either: Served, resets: bool) -> None:
    for _ in range(300):
        sock = either.open()
        if resets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        either.turn()
    either.until(lambda: not either.connections, "the end of all of them")


def announced(length: int, sent: int) -> bytes:
    return struct.pack("<I", length) + bytes(sent)


def test_who_sends_very_many_frames_does_not_take_the_turns_of_others(either: Served, alice: Keys) -> None:
    keys = alice if either.server._port._terms.guard is not None else None
    hostile, honest = Channel(either.server.address, keys), Channel(either.server.address, keys)
    frames = [b"%d" % number for number in range(5_000)]
    for frame in frames:
        assert hostile.send(frame)
    most = asked = answered = 0
    while len(either.heard) - answered < len(frames):
        if asked == answered:
            honest.send(b"honest")
            asked += 1
        before = len(either.heard)
        either.turn()
        hostile.receive()
        honest.receive()
        new = [message for _, message in either.heard[before:]]
        answered += new.count(b"honest")
        most = max(most, len(new))
    assert most <= bounds.FRAMES_PER_TURN + bounds.LEFT_FRAMES_PER_TURN + 1
    assert answered > 10
    # In their order, and none is lost.
    assert [message for _, message in either.heard if message != b"honest"] == frames
    assert either.server._port._left == {}
    for channel in (hostile, honest):
        channel.close()
    either.until(lambda: not either.connections, "the end")
    assert either.server._port.poll() == []


def test_frames_that_are_left_arrive_although_their_sender_has_gone(plain: Served) -> None:
    with plain.open() as sock:
        sock.sendall(b"".join(framed(b"%d" % number) for number in range(1_000)))
    plain.until(lambda: not plain.connections, "the end")
    assert [message for _, message in plain.heard] == [b"%d" % number for number in range(1_000)]


def test_a_frame_beyond_the_limit_ends_its_connection(plain: Served) -> None:
    with plain.open() as sock:
        sock.sendall(announced(16 * MEGABYTE + 1, 100))
        plain.until(lambda: ended(sock), "the end")
    assert plain.bad == ["a frame of 16777217 bytes"]


def test_one_endless_frame_is_given_up(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with plain.open() as sock:
        assert push(sock, announced(1000, 10), plain)
        monkeypatch.setattr(bounds, "FRAME_S_MAX", 0.3)
        plain.until(lambda: ended(sock), "the end")
    assert "a frame that is not complete after" in plain.bad[0]


def test_who_does_not_read_loses_answers_and_costs_little(either: Served, alice: Keys) -> None:
    guarded = either.server._port._terms.guard is not None
    greedy = Channel(either.server.address, alice if guarded else None)
    greedy.send(b"a question")
    either.until(lambda: either.heard, "the question", greedy)
    ((name, _),) = either.heard
    before_mb = resident_mb()
    for _ in range(200):
        either.server.send(name, bytes(MEGABYTE))
        either.turn()
        assert either.server.unread_bytes(name) <= bounds.UNREAD_BYTES_MAX
    assert resident_mb() - before_mb < 64
    # It is still there, and gets the next answer when it has read what waits.
    either.until(lambda: not either.server.unread_bytes(name), "it to read", greedy)
    either.server.send(name, b"the end")
    either.until(lambda: b"the end" in greedy.receive(), "the end")
    greedy.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_who_asks_for_new_keys_again_and_again_is_closed(
    directory: Path, keyed: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer would wait here until there is a frame to send."""
    monkeypatch.setattr(bounds, "TLS_ANSWERS_BYTES_MAX", 300)
    keys = directory / "clients" / "alice"
    place = keyed.server.address.removeprefix("tcp://")
    command = ["openssl", "s_client", "-connect", place, "-cert", str(keys / "client.pem"), "-key"]
    with subprocess.Popen(
        [*command, str(keys / "client.key")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as asking:
        assert asking.stdin is not None

        def given_up() -> bool:
            assert asking.stdin is not None
            if any(incoming.connection.open for incoming in keyed.server._port.connections.values()):
                # Asks for new keys, and has ours changed, too.
                asking.stdin.write(b"K\n")
                asking.stdin.flush()
            return bool(keyed.bad)

        try:
            keyed.until(given_up, "it to be given up")
        finally:
            asking.kill()
    assert keyed.bad == ["the other side asks for new keys again and again"]


def test_a_connection_that_carried_much_takes_little_afterwards(keyed: Served, alice: Keys) -> None:
    channels = [Channel(keyed.server.address, alice) for _ in range(60)]
    for channel in channels:
        channel.send(b"a question")
    keyed.until(lambda: len(keyed.heard) == len(channels), "the questions", *channels)
    names = [name for name, _ in keyed.heard]
    large = bytes(4 * MEGABYTE)
    sizes_mb = []
    for channel, name in zip(channels, names, strict=True):
        keyed.heard.clear()
        channel.send(large)
        keyed.server.send(name, large)

        def done(name: bytes = name) -> bool:
            return bool(keyed.heard) and not keyed.server.unread_bytes(name)

        keyed.until(done, "much", channel)
        sizes_mb.append(resident_mb())
    # Both ends are in this process. What the first ones took, others take again.
    assert sizes_mb[-1] - sizes_mb[20] < 60
    for channel in channels:
        channel.close()


def test_beyond_the_greatest_number_the_one_that_was_silent_longest_goes(member: Keys, alice: Keys) -> None:
    served = Served(member, connections_max=4)
    with closing(served.server):
        channels: list[Channel] = []
        for number in range(6):
            channel = Channel(served.server.address, alice)
            channel.send(b"%d" % number)
            channels.append(channel)
            served.until(lambda: len(served.heard) == len(channels), "a message", *channels)
            assert served.connections <= 4
        served.until(lambda: sum(channel.broken for channel in channels) == 2, "two to go", *channels)
        assert [channel.broken for channel in channels] == [True, True, False, False, False, False]
        for channel in channels:
            channel.close()


class Accepting:
    """A listener whose `accept` fails so often, and in this way."""

    def __init__(self, listener: socket.socket, error: int, count: int) -> None:
        self._listener, self._error, self._count = listener, error, count

    def accept(self) -> tuple[socket.socket, object]:
        if self._count:
            self._count -= 1
            raise OSError(self._error, os.strerror(self._error))
        return self._listener.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)


@pytest.mark.parametrize(
    ("error", "closes"),
    [(errno.ECONNABORTED, False), (errno.EPROTO, False), (errno.ENFILE, False), (errno.EMFILE, True)],
)
def test_only_who_needs_descriptors_closes_a_connection(
    plain: Served, monkeypatch: pytest.MonkeyPatch, error: int, closes: bool
) -> None:
    port = plain.server._port
    with plain.open() as silent:
        plain.until(lambda: plain.connections == 1, "a connection")
        monkeypatch.setattr(port, "listener", Accepting(port.listener, error, 1))
        with plain.open() as late:
            late.sendall(framed(b"hello"))
            plain.until(lambda: plain.heard, "a message")
            assert ended(silent) is closes
    assert len(plain.bad) == (error in (errno.EMFILE, errno.ENFILE))


def test_a_host_without_room_makes_no_port_spin(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    port = plain.server._port
    monkeypatch.setattr(port, "listener", Accepting(port.listener, errno.ENOMEM, 1_000_000))
    with plain.open():
        plain.until(lambda: plain.bad, "it to fail")
        assert port.poll() == []
        # Also while it is closed.
        port.stop_listening()


def test_one_client_has_only_so_many_connections(
    directory: Path, keyed: Served, alice: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "CLIENT_CONNECTIONS_MAX", 3)
    bob = Channel(keyed.server.address, load_keys(make_client_keys(directory, "bob")))
    keyed.until(lambda: bob.open and keyed.connections, "a connection", bob)
    channels: list[Channel] = []
    for number in range(8):
        channel = Channel(keyed.server.address, alice)
        channel.send(b"%d" % number)
        channels.append(channel)
        keyed.until(lambda: len(keyed.heard) == len(channels), "a message", bob, *channels)
        assert keyed.connections <= 4
    keyed.until(lambda: sum(channel.broken for channel in channels) == 5, "five to go", bob, *channels)
    assert [channel.broken for channel in channels] == [True] * 5 + [False] * 3
    assert not bob.broken
    assert set(keyed.bad) == {"too many connections of one client"}
    for channel in (bob, *channels):
        channel.close()
    keyed.until(lambda: not keyed.connections, "the end")
    assert keyed.server._port._by_client == {}


@pytest.mark.parametrize("behind", ["many frames", "the head of a large one"])
def test_who_comes_when_the_others_have_just_spoken_is_not_the_one_to_go(
    keyed: Served, alice: Keys, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has been silent since its handshake began. Whatever came right behind the handshake is taken."""
    monkeypatch.setattr(bounds, "CLIENT_CONNECTIONS_MAX", 3)
    others = [Channel(keyed.server.address, alice) for _ in range(3)]
    keyed.until(lambda: all(channel.open for channel in others), "three connections", *others)
    late = Channel(keyed.server.address, alice)
    if behind == "many frames":
        for _ in range(2 * bounds.FRAMES_PER_TURN):
            late.send(b"late")
    else:
        late.send(bytes(4 * MEGABYTE))
    keyed.turn()
    for channel in others:
        channel.send(b"here")
    keyed.until(lambda: [message for _, message in keyed.heard].count(b"here") == 3, "the others", *others)

    keyed.until(lambda: sum(channel.broken for channel in others) == 1, "one of the others to go", late, *others)
    keyed.until(lambda: [message for _, message in keyed.heard if message != b"here"], "the late one", late, *others)

    assert not late.broken
    for channel in (late, *others):
        channel.close()
    keyed.until(lambda: not keyed.connections, "the end")
    assert keyed.server._port._large.reserved_bytes == keyed.server._port._share.kept_bytes == 0


def test_what_many_keep_together_is_bounded_and_the_greediest_goes(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "KEPT_BYTES_MAX", MEGABYTE)
    with ExitStack() as stack:
        modest = stack.enter_context(plain.open())
        assert push(modest, announced(60_000, 100), plain)
        for _ in range(100):
            push(stack.enter_context(plain.open()), announced(60_000, 50_000), plain)
            assert plain.kept_bytes <= MEGABYTE
        plain.until(lambda: len(plain.bad) >= 78, "the greedy ones to be closed")
        assert push(modest, bytes(60_000 - 100), plain)
        plain.until(lambda: plain.heard, "the frame of the modest one")
    assert all("bytes here" in reason for reason in plain.bad)


def test_large_frames_arrive_one_after_the_other(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ARRIVING_BYTES_MAX", 3 * MEGABYTE)
    frames = 16
    data = announced(MEGABYTE, MEGABYTE)
    most = 0
    with ExitStack() as stack:
        left = {stack.enter_context(plain.open()): data for _ in range(frames)}
        for sock in left:
            sock.setblocking(False)
        while len(plain.heard) < frames:
            for sock, rest in left.items():
                try:
                    left[sock] = rest[sock.send(rest[:20_000]) :]
                except BlockingIOError:
                    continue
            plain.turn()
            most = max(most, plain.kept_bytes)
    assert {len(frame) for _, frame in plain.heard} == {MEGABYTE}
    # Those that wait have been read until it was worth a place.
    assert most <= 3 * MEGABYTE + frames * (bounds.LARGE_FRAME_BYTES + READ_BYTES)
    assert plain.bad == []


def test_one_frame_may_be_longer_than_everything_that_a_port_keeps() -> None:
    length = bounds.PROCESS_KEPT_BYTES_MAX + MEGABYTE
    served = Served(None, frame_bytes_max=length)
    with closing(served.server), served.open() as longest, served.open() as second:
        assert push(longest, announced(length, length // 2), served)
        assert push(second, announced(MEGABYTE, 100_000), served)
        # Others wait until it is there.
        assert served.server._port._large.reserved_bytes == length + 4
        assert push(longest, bytes(length - length // 2), served)
        assert push(second, bytes(MEGABYTE - 100_000), served)
        served.until(lambda: len(served.heard) == 2, "both frames")
    assert [len(frame) for _, frame in served.heard] == [length, MEGABYTE]
    assert served.bad == []
    assert served.server._port._share.kept_bytes == served.server._port._large.reserved_bytes == 0


def test_who_keeps_others_from_sending_large_frames_is_closed(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ARRIVING_BYTES_MAX", MEGABYTE)
    with plain.open() as hostile, plain.open() as honest:
        assert push(hostile, announced(MEGABYTE, 100_000), plain)
        assert push(honest, announced(MEGABYTE, MEGABYTE), plain)
        plain.until(lambda: plain.heard, "the frame of the honest one")
        assert ended(hostile)
    assert plain.bad == ["a large frame that comes slowly while others wait"]
    assert plain.server._port._large.reserved_bytes == 0


def test_who_only_announces_large_frames_keeps_nobody_waiting(plain: Served) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            assert push(stack.enter_context(plain.open()), announced(8 * MEGABYTE, 60_000), plain)
        assert plain.server._port._large.reserved_bytes == 0
        assert push(stack.enter_context(plain.open()), announced(MEGABYTE, MEGABYTE), plain)
        plain.until(lambda: plain.heard, "the frame of the honest one")
    assert plain.bad == []


def test_one_client_with_many_connections_does_not_keep_the_others_waiting(
    directory: Path, keyed: Served, alice: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would have its second, one after the other."""
    monkeypatch.setattr(bounds, "ARRIVING_BYTES_MAX", MEGABYTE)
    hostile = [Channel(keyed.server.address, alice) for _ in range(40)]
    honest = Channel(keyed.server.address, load_keys(make_client_keys(directory, "carol")))
    for channel in hostile:
        channel.send(bytes(8 * MEGABYTE))
    keyed.until(lambda: all(channel.open for channel in hostile), "them to begin", *hostile)
    # From here on they send nothing more.
    keyed.until(lambda: keyed.server._port._large.waiting > 30, "them to wait")
    honest.send(bytes(MEGABYTE))
    keyed.until(lambda: keyed.heard, "the frame of the honest one", honest)
    assert len(keyed.bad) <= 3
    for channel in (honest, *hostile):
        channel.close()


def test_who_sends_large_frames_without_end_takes_turns_with_others(
    plain: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ARRIVING_BYTES_MAX", MEGABYTE)
    data = announced(MEGABYTE, MEGABYTE)
    with plain.open() as endless, plain.open() as other:
        endless.setblocking(False)
        position = 0

        def go_on() -> bool:
            nonlocal position
            for _ in range(8):
                try:
                    position += endless.send((data + data)[position % len(data) :][: 256 << 10])
                except BlockingIOError:
                    break
            return False

        plain.until(lambda: go_on() or plain.server._port._large.reserved_bytes, "the first of them")
        other.setblocking(False)
        left = memoryview(data)

        def both() -> bool:
            nonlocal left
            go_on()
            if left:
                with suppress(BlockingIOError):
                    left = left[other.send(left) :]
            return len({name for name, _ in plain.heard}) == 2

        plain.until(both, "the frame of the other")
        assert plain.bad == []


def test_clients_that_send_slowly_keep_nobody_out_at_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the frames of peers would wait for those of clients."""
    monkeypatch.setattr(bounds, "ARRIVING_BYTES_MAX", MEGABYTE)
    budget = Budget()
    clients, peers = Served(None, budget=budget), Served(None, budget=budget)
    with closing(clients.server), closing(peers.server), ExitStack() as stack:
        for _ in range(4):
            assert push(stack.enter_context(clients.open()), announced(MEGABYTE, 100_000), clients)
        assert clients.server._port._large.reserved_bytes >= MEGABYTE
        assert push(stack.enter_context(peers.open()), announced(100_000, 100_000), peers)
        peers.until(lambda: peers.heard, "the frame of a peer")
    assert clients.heard == []


def test_the_ports_of_a_process_have_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they may keep less than each for itself; the one that keeps most makes room."""
    monkeypatch.setattr(bounds, "PROCESS_KEPT_BYTES_MAX", 2 * MEGABYTE)
    budget = Budget()
    first, second = Served(None, budget=budget), Served(None, budget=budget)
    with closing(first.server), closing(second.server), ExitStack() as stack:
        for number in range(60):
            for served in (first, second) if number < 10 else (first,):
                push(stack.enter_context(served.open()), announced(60_000, 50_000), served)
        first.until(lambda: budget.kept_bytes <= 2 * MEGABYTE, "room")
        second.turn()
        assert len(first.bad) > 20
        assert second.bad == []
        assert second.connections == 10
    assert budget.kept_bytes == 0


def test_bounds_are_looked_up_and_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "KEPT_BYTES_MAX", 1)
    terms = Terms(1000, 10, None, ignore, ignore)
    server = Server(Address("127.0.0.1", 0), terms)
    with closing(server):
        share = server._port._share
        share.kept_bytes = 2
        assert share.is_over()
