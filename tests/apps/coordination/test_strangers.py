"""What somebody can do to the ZooKeeper port who has no session: come, go, stay, and send what no client sends."""

import select
import socket
import ssl
import struct
from contextlib import closing
from pathlib import Path

import pytest

from tara.apps.coordination import jute, limits
from tara.apps.coordination.client import CoordinationClient
from tara.apps.coordination.codes import Code, Op
from tara.apps.coordination.gateway.allowance import Allowance
from tara.apps.coordination.gateway.connection import Closed
from tara.apps.coordination.gateway.listener import Listener
from tara.apps.coordination.gateway.stream import Stream
from tara.apps.coordination.service import CoordinationService
from tara.apps.coordination.settings import gateway_settings
from tara.protocol.errors import ConfigurationError
from tests.apps.coordination.desk import Desk, framed
from tests.apps.coordination.live import Wire, address_of
from tests.apps.coordination.tls import tls_options, trusted_by
from tests.live.single import single_site
from tests.patience import DEADLINE_S, await_condition

#: What makes a socket reset its connection when it is closed.
RESET = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def dial(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


@pytest.mark.parametrize("tls", [False, True])
def test_connections_that_are_reset_at_once_end_nothing(certificates: Path, tmp_path: Path, tls: bool) -> None:
    options = tls_options(certificates) if tls else {"port": 0}
    with single_site(CoordinationService, tmp_path, {**options, "max_client_connections": 0}) as site:
        address = address_of(site)
        for _ in range(1_000):
            stranger = dial(address)
            stranger.setsockopt(*RESET)
            stranger.close()
        with CoordinationClient(address, tls=trusted_by(certificates) if tls else None) as client:
            assert client.create("/still-here") == "/still-here"
        status = site.status()["gateway"]
        assert isinstance(status, dict)
        assert status["error"] == ""
        await_condition(lambda: site.status()["gateway"]["connections"] == 0, "the last stranger's end")  # type: ignore[index]


def test_connections_that_are_reset_during_the_handshake_end_nothing(certificates: Path, tmp_path: Path) -> None:
    options = {**tls_options(certificates), "max_client_connections": 0}
    with single_site(CoordinationService, tmp_path, options) as site:
        address = address_of(site)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        hello = trusted_by(certificates).wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            hello.do_handshake()
        greeting = outgoing.read()
        for cut in range(1, len(greeting), 7):
            with dial(address) as stranger:
                stranger.setsockopt(*RESET)
                stranger.sendall(greeting[:cut])
        with dial(address) as stranger:
            stranger.sendall(b"\x16\x03\x01" + bytes(1_000))
            assert stranger.recv(1_000)[:1] == b"\x15", "no alert"
            assert stranger.recv(1_000) == b""
        with CoordinationClient(address, tls=trusted_by(certificates)) as client:
            assert client.create("/still-here") == "/still-here"


def test_a_handshake_has_a_deadline(certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_S", 0.5)
    with single_site(CoordinationService, tmp_path, tls_options(certificates)) as site:
        address = address_of(site)
        with dial(address) as silent, dial(address) as slow:
            slow.sendall(b"\x16\x03\x01")
            assert silent.recv(1) == b""
            assert slow.recv(1) == b""


def test_a_handshake_has_a_bound_in_bytes(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A greeting may have 128 KiB for OpenSSL."""
    monkeypatch.setattr(limits, "HANDSHAKE_BYTES_MAX", 20_000)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    ours, theirs = _pair()
    with ours, theirs:
        stream = Stream(ours, context)
        record = b"\x16\x03\x01" + struct.pack(">H", 10_000)
        theirs.sendall(record + b"\x01" + (120_000).to_bytes(3, "big") + bytes(10_000 - 4))
        assert stream.receive() == b""
        theirs.sendall(record + bytes(10_000))
        with pytest.raises(Closed, match="before the end of the handshake"):
            stream.receive()


def test_what_tls_itself_answers_counts_like_other_answers(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as new keys, which a client may ask for again and again, and not fetch."""
    desk = Desk()
    desk.data_dir = tmp_path
    with closing(Listener(desk, gateway_settings(tls_options(certificates)), desk.front_end)) as listener:

        def arrived() -> bool:
            listener.receive()
            return bool(listener._clients)

        with dial(f"127.0.0.1:{desk.front_end.port}"):
            await_condition(arrived, "the client")
            (client,) = listener._clients.values()
            client.stream.greeting = client.connection.greeting = False
            monkeypatch.setattr(client.stream, "receive", lambda: b"")
            monkeypatch.setattr(client.stream, "_write", lambda data: None)
            client.stream._unsent += bytes(100)
            listener._read(client, select.EPOLLIN)
            listener._flush()
            assert client.connection.unsent == desk.front_end.pressure.unsent == 100
            assert client.interest & select.EPOLLOUT


def test_what_a_client_is_to_get_is_encrypted_in_pieces(certificates: Path) -> None:
    """A client that does not read must not have all its answers twice in memory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    ours, theirs = _pair()
    with ours, theirs:
        stream = Stream(ours, context)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = ssl.create_default_context(cafile=str(certificates / "server.pem")).wrap_bio(
            incoming, outgoing, server_hostname="localhost"
        )
        theirs.setblocking(False)
        data = bytearray(range(256)) * 200_000
        expected, got = bytes(data), bytearray()
        for _ in range(1_000_000):
            try:
                if stream.greeting:
                    client.do_handshake()
                got += client.read(1 << 20)
            except ssl.SSLWantReadError:
                pass
            if outgoing.pending:
                theirs.sendall(outgoing.read())
            stream.receive()
            stream.send(data)
            assert stream.unsent < 100_000
            if len(got) == len(expected):
                break
            try:
                incoming.write(theirs.recv(1 << 20))
            except BlockingIOError:
                continue
        assert got == expected


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        return server.accept()[0], theirs


def test_handshakes_get_a_share_of_the_time() -> None:
    allowance = Allowance(share=0.25, saved_s_max=0.020)
    assert allowance.has_some(100.0)
    allowance.use(0.030)
    assert not allowance.has_some(100.0)
    assert not allowance.has_some(100.039)
    assert allowance.has_some(100.041)
    allowance.use(0.001)
    assert allowance.has_some(1_000.0)
    allowance.use(0.020)
    assert not allowance.has_some(1_000.0), "more was saved up than may be"


def test_strangers_from_one_address_displace_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARRIVALS_PER_ADDRESS_MAX", 5)
    desk = Desk()
    client = desk.connect("10.0.0.1")
    strangers = [desk.admit("10.0.0.1") for _ in range(20)]
    assert [stranger.closed for stranger in strangers] == [True] * 15 + [False] * 5
    assert not client.closed


def test_the_address_with_the_most_strangers_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARRIVALS_MAX", 10)
    desk = Desk()
    alone = desk.admit("10.0.0.2")
    crowd = [desk.admit("10.0.0.1") for _ in range(50)]
    assert sum(not stranger.closed for stranger in crowd) == 9
    assert not alone.closed
    late = desk.connect("10.0.0.3")
    assert not (late.closed or alone.closed)


def test_a_request_for_a_session_is_short() -> None:
    desk = Desk()
    stranger = desk.admit()
    desk.feed(stranger, jute.pack_int(limits.JOIN_BYTES_MAX + 1))
    assert stranger.closed


@pytest.mark.parametrize("body", [b"", bytes(3), bytes(27), bytes(24) + b"\x7f\xff\xff\xff", bytes(24) + b"\xff\0\0\0"])
def test_a_malformed_request_for_a_session_ends_its_connection_only(body: bytes) -> None:
    desk = Desk()
    stranger, client = desk.admit(), desk.connect()
    desk.feed(stranger, framed(body))
    assert stranger.closed
    assert desk.front_end.fault == ""
    desk.create(client, "/still-here")


def test_a_front_end_without_file_descriptors_does_not_spin(tmp_path: Path) -> None:
    """A listening socket stays readable as long as somebody waits there."""
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        address = address_of(site)
        gateway = site.gateway
        listener = gateway._listener  # type: ignore[union-attr]

        class Exhausted:
            accepts = 0

            def fileno(self) -> int:
                return int(listener.fileno())

            def accept(self) -> None:
                Exhausted.accepts += 1
                raise OSError(24, "Too many open files")

            def close(self) -> None:
                listener.close()

        gateway._listener = Exhausted()  # type: ignore[union-attr]
        with Wire(address) as client:
            await_condition(lambda: "Too many open files" in site.status()["gateway"]["error"], "the reason")  # type: ignore[index]
            turns = site.counters.turns
            await_condition(lambda: site.counters.turns > turns + 20, "the loop to go on")
            assert Exhausted.accepts <= 2
            gateway._listener = listener  # type: ignore[union-attr]
            assert client.connect()
            assert client.create("/here") == Code.OK


@pytest.mark.parametrize("word", [b"stat", b"cons", b"dump"])
def test_words_that_name_clients_or_nodes_are_not_answered(word: bytes) -> None:
    desk = Desk()
    client = desk.connect("10.9.8.7")
    desk.create(client, "/secret-name")
    stranger = desk.admit()
    desk.feed(stranger, word)
    assert bytes(stranger.out) == word + b" is not executed because it is not in the whitelist.\n"


def test_an_operator_decides_which_words_are_answered() -> None:
    desk = Desk(four_letter_words="dump, ruok")
    for word, answered in ((b"dump", True), (b"ruok", True), (b"mntr", False)):
        stranger = desk.admit()
        desk.feed(stranger, word)
        assert (b"whitelist" not in stranger.out) == answered
    with pytest.raises(ConfigurationError, match="crash"):
        Desk(four_letter_words="ruok,crash")


def test_a_key_that_others_may_read_is_refused(certificates: Path, tmp_path: Path) -> None:
    key = tmp_path / "server.key"
    key.write_bytes((certificates / "server.key").read_bytes())
    options = {**tls_options(certificates), "tls_key": str(key)}
    for mode in (0o640, 0o604):
        key.chmod(mode)
        with (
            pytest.raises(ConfigurationError, match=rf"others may read .*chmod 600 {key}"),
            single_site(CoordinationService, tmp_path / "data", options),
        ):
            pass
    key.chmod(0o600)
    with single_site(CoordinationService, tmp_path / "data", options) as site:
        assert address_of(site)


def test_a_connection_proves_a_bounded_number_of_identities() -> None:
    """Every write carries them, and every access compares them with a list."""
    desk = Desk()
    client = desk.connect()
    errors = []
    for number in range(limits.IDENTITIES_MAX + 1):
        if not client.closed:
            credentials = jute.pack_text("digest") + jute.pack_buffer(b"user-%d:secret" % number)
            desk.request(client, -4, Op.AUTH, jute.pack_int(0) + credentials)
            errors += [error for _, error, _ in desk.fetch(client)]
    # The address is one of them.
    assert errors == [Code.OK] * (limits.IDENTITIES_MAX - 1) + [Code.AUTH_FAILED]
    assert client.closed
    client = desk.connect()
    long = jute.pack_text("digest") + jute.pack_buffer(b"u" * limits.IDENTITY_BYTES_MAX + b":secret")
    desk.request(client, -4, Op.AUTH, jute.pack_int(0) + long)
    assert [error for _, error, _ in desk.fetch(client)] == [Code.AUTH_FAILED]


def test_a_wrong_password_gets_no_session() -> None:
    desk = Desk()
    client = desk.connect()
    for password in (b"", b"x", bytes(15), bytes(15) + b"\1", bytes(17)):
        stranger = desk.admit()
        body = jute.pack_int(0) + jute.pack_long(0) + jute.pack_int(30_000) + jute.pack_long(client.session)
        desk.feed(stranger, framed(body + jute.pack_buffer(password)))
        desk.turn()
        assert stranger.session == 0
        assert stranger.last_words
    assert not client.closed


@pytest.mark.parametrize("length", [-1, -2, -(1 << 31), 2, 1_000, (1 << 31) - 1])
@pytest.mark.parametrize(
    ("op", "before"),
    [
        (Op.GET_DATA, b""),
        (Op.SET_WATCHES, bytes(8)),
        (Op.SET_WATCHES2, bytes(8 + 12)),
        (Op.MULTI_READ, jute.MULTI_HEADER.pack(Op.GET_DATA, False, -1)),
        (Op.MULTI, jute.MULTI_HEADER.pack(Op.CREATE, False, -1) + jute.pack_text("/x")),
        (Op.CREATE, jute.pack_text("/x") + jute.pack_buffer(b"")),
        (Op.AUTH, bytes(4) + jute.pack_text("digest")),
    ],
)
def test_lengths_that_cannot_be_end_the_connection_at_most(op: int, before: bytes, length: int) -> None:
    desk = Desk()
    client, other = desk.connect(), desk.connect()
    desk.request(client, 1, op, before + jute.pack_int(length))
    desk.turn()
    assert desk.front_end.fault == ""
    assert client.closed or client.sent == 2
    desk.create(other, "/still-here")
