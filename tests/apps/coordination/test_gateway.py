"""The front end by itself, beside a single site: TLS, limits, ports, clients that misbehave."""

import contextlib
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from evaluation.zookeeper_peer import four_letter_word
from tara.apps.coordination import jute, limits
from tara.apps.coordination.acl import OPEN
from tara.apps.coordination.client import CoordinationClient
from tara.apps.coordination.codes import Code, Op
from tara.apps.coordination.gateway.listener import Listener
from tara.apps.coordination.service import CoordinationService
from tara.apps.coordination.settings import check_exposure, gateway_settings
from tara.host import gateway_session
from tara.net.gateway import Options
from tara.protocol.errors import ConfigurationError
from tests.apps.coordination.live import Wire, address_of
from tests.apps.coordination.tls import tls_options, trusted_by
from tests.live.single import single_site
from tests.patience import DEADLINE_S, await_condition


def test_tls_and_client_certificates(certificates: Path, tmp_path: Path) -> None:
    trusted = trusted_by(certificates)
    unknown = ssl.create_default_context(cafile=str(certificates / "server.pem"))
    with single_site(CoordinationService, tmp_path, tls_options(certificates)) as site:
        address = address_of(site)
        with CoordinationClient(address, tls=trusted) as client:
            client.create("/secret", bytes(300_000))
            assert len(client.get("/secret")[0]) == 300_000
        kazoo = KazooClient(
            hosts=address,
            use_ssl=True,
            ca=str(certificates / "server.pem"),
            certfile=str(certificates / "client.pem"),
            keyfile=str(certificates / "client.key"),
        )
        kazoo.start()
        assert kazoo.exists("/secret")
        kazoo.stop()
        host, port = address.split(":")
        with pytest.raises(OSError), socket.create_connection((host, int(port)), DEADLINE_S) as raw:
            wrapped = unknown.wrap_socket(raw, server_hostname="localhost")
            wrapped.sendall(b"ruok")
            if not wrapped.recv(10):
                raise OSError("closed")
        with Wire(address) as plain:
            assert not plain.connect()


def test_connections_from_one_address_are_limited(tmp_path: Path) -> None:
    with single_site(CoordinationService, tmp_path, {"port": 0, "max_client_connections": 2}) as site:
        address = address_of(site)
        with Wire(address) as one, Wire(address) as two:
            assert one.connect()
            assert two.connect()
            with Wire(address) as three:
                assert three.receive() is None
            two.socket.close()
            await_condition(lambda: site.status()["gateway"]["connections"] == 1, "the end of the second one")  # type: ignore[index]
            with Wire(address) as four:
                assert four.connect()


def test_time_outs_are_negotiated(tmp_path: Path) -> None:
    with single_site(CoordinationService, tmp_path, {"port": 0, "tick_time_ms": 500}) as site:
        for asked, granted in ((1, 1_000), (3_000, 3_000), (1 << 30, 10_000)):
            with Wire(address_of(site)) as wire:
                assert wire.connect(timeout_ms=asked)
                assert wire.timeout_ms == granted


def test_a_smaller_limit_on_requests(tmp_path: Path) -> None:
    with (
        single_site(CoordinationService, tmp_path, {"port": 0, "jute_max_buffer": 1_000}) as site,
        Wire(address_of(site)) as wire,
    ):
        assert wire.connect()
        assert wire.create("/small", bytes(900)) == Code.OK
        wire.request(2, Op.SET_DATA, bytes(1_000))
        assert wire.receive() is None


def test_the_port_stays_the_same_over_restarts(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
            found.append(address_of(site))
    assert found[0] == found[1]


def test_a_port_that_was_written_down_wrongly_is_not_used(tmp_path: Path) -> None:
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        address = address_of(site)
    path = tmp_path / "gateway-0.port"
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        assert address_of(site) != address
        assert "gateway-0.port: is damaged" in site.status()["gateway"]["error"]  # type: ignore[index]
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        assert address_of(site) != address
        assert site.status()["gateway"]["error"] == ""  # type: ignore[index]


def test_a_port_in_use_is_said_and_tried_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        with single_site(CoordinationService, tmp_path, {"port": port}) as site:
            await_condition(lambda: "in use" in site.status()["gateway"]["error"], "the reason")  # type: ignore[index]
            squatter.close()
            await_condition(lambda: site.status()["gateway"]["address"] == f"127.0.0.1:{port}", "the port")  # type: ignore[index]


def test_a_port_that_was_kept_and_is_in_use_is_named(tmp_path: Path) -> None:
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        port = int(address_of(site).rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        assert f"port {port}: Address already in use" in site.status()["gateway"]["error"]  # type: ignore[index]


def test_a_client_that_does_not_fetch_its_answers_harms_nobody(tmp_path: Path) -> None:
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        address = address_of(site)
        with Wire(address) as greedy, Wire(address) as other:
            assert greedy.connect(timeout_ms=40_000)
            assert greedy.create("/big", bytes(900_000)) == Code.OK
            greedy.socket.settimeout(0.2)
            sent = 0
            try:
                for sent in range(200_000):
                    # What follows is not looked at; the kernel keeps megabytes of it.
                    greedy.request(sent, Op.GET_DATA, jute.pack_text("/big") + bytes(1_000))
            except TimeoutError:
                pass
            assert sent < 199_999, "it was read without end"
            assert other.connect()
            assert other.create("/small") == Code.OK
            greedy.socket.settimeout(DEADLINE_S)
            for xid in range(30):
                answer = greedy.reply()
                assert answer is not None
                assert (answer[0], len(answer[3])) == (xid, 900_000 + 4 + 68)


def test_requests_before_the_session_are_refused(tmp_path: Path) -> None:
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site, Wire(address_of(site)) as wire:
        body = jute.pack_int(0) + jute.pack_long(0) + jute.pack_int(4_000) + jute.pack_long(0) + jute.pack_buffer(b"")
        frame = jute.pack_int(len(body)) + body
        request = jute.REQUEST_HEADER.pack(1, Op.GET_DATA) + jute.pack_text("/") + b"\0"
        wire.socket.sendall(frame + jute.pack_int(len(request)) + request)
        assert wire.receive() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prot": 1}, "prot"),
        ({"tick_time_ms": 0}, "tick_time_ms"),
        ({"port": 70_000}, "port"),
        ({"tls_key": "x"}, "tls_certificate"),
        ({"session_timeout_ms_min": 90_000}, "session_timeout_ms_min"),
        ({"port": "many"}, "port"),
    ],
)
def test_bad_options_are_named(options: Options, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        gateway_settings(options)


@pytest.mark.parametrize(
    ("host", "options", "allowed"),
    [
        ("127.0.0.1", {}, True),
        ("10.0.0.1", {}, False),
        ("10.0.0.1", {"tls_certificate": "c", "tls_key": "k"}, False),
        ("10.0.0.1", {"tls_certificate": "c", "tls_key": "k", "tls_authorities": "a"}, True),
        ("10.0.0.1", {"open": "true"}, True),
    ],
)
def test_who_proves_nothing_is_served_on_loopback_only(host: str, options: Options, allowed: bool) -> None:
    """Unless somebody wants it so. The cluster's keys are none of this port's."""
    with contextlib.nullcontext() if allowed else pytest.raises(ConfigurationError, match="tls_authorities"):
        check_exposure(host, gateway_settings(options))


def test_words_are_answered_and_the_connection_closed(tmp_path: Path) -> None:
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        address = address_of(site)
        assert four_letter_word(address, b"ruok") == "imok"
        assert "zk_znode_count\t4\n" in four_letter_word(address, b"mntr")


def test_a_connection_without_a_session_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSIONLESS_S", 0.5)
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        address = address_of(site)
        with Wire(address) as idle, Wire(address) as slow, Wire(address) as client:
            assert client.connect()
            slow.socket.sendall(b"\0")
            assert idle.receive() is None
            assert slow.receive() is None
            assert client.create("/still-here") == Code.OK


def test_a_request_that_comes_in_very_small_pieces(tmp_path: Path) -> None:
    """What has come of it must not be copied for every piece: that would be minutes of work for one request."""
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site, Wire(address_of(site)) as wire:
        assert wire.connect()
        path, data = jute.pack_text("/drip"), jute.pack_buffer(bytes(500_000))
        body = jute.REQUEST_HEADER.pack(1, Op.CREATE) + path + data + jute.pack_acl(OPEN) + jute.pack_int(0)
        frame = jute.pack_int(len(body)) + body
        for position in range(0, len(frame), 100):
            wire.socket.sendall(frame[position : position + 100])
        answer = wire.reply()
        assert answer is not None
        assert answer[2] == Code.OK
        for byte in jute.pack_int(8) + jute.REQUEST_HEADER.pack(2, Op.WHO_AM_I):
            wire.socket.sendall(bytes([byte]))
        answer = wire.reply()
        assert answer is not None
        assert answer[0] == 2


def test_many_long_writes_at_once_are_all_answered(tmp_path: Path) -> None:
    """More than a request source takes at once; none may get lost between the front end and the source."""
    data = bytes(1_000_000)
    with single_site(CoordinationService, tmp_path, {"port": 0}) as site:
        client = KazooClient(address_of(site), timeout=30.0)
        client.start(timeout=DEADLINE_S)
        try:
            writes = [client.create_async(f"/node-{number}", data) for number in range(60)]
            assert [write.get(timeout=DEADLINE_S) for write in writes] == [f"/node-{number}" for number in range(60)]
            assert client.get("/node-59")[0] == data
        finally:
            client.stop()
            client.close()
        assert site.status()["gateway"]["stalls"] == 0  # type: ignore[index]


def test_the_loop_does_not_spin_while_writes_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that may not be read stay readable; the loop must turn with its ticks, not as fast as it can."""
    monkeypatch.setattr(limits, "ORDERED_BYTES_MAX", 1_000_000)
    with single_site(CoordinationService, tmp_path, {"port": 0, "tick_time_ms": 60_000}) as site:
        address = address_of(site)
        assert isinstance(site.gateway, Listener)
        with Wire(address) as first, Wire(address) as second, Wire(address) as third:
            assert first.connect()
            assert second.connect()
            assert third.connect()
            # Nothing is taken to be ordered any more.
            monkeypatch.setattr(gateway_session, "IN_FLIGHT_MAX", 0)
            body = jute.pack_text("/node") + jute.pack_buffer(bytes(700_000)) + jute.pack_acl(OPEN) + jute.pack_int(0)
            first.request(1, Op.CREATE, body)
            second.request(1, Op.CREATE, body)
            await_condition(lambda: site.gateway.front_end.full, "writes that wait")  # type: ignore[union-attr]
            for wire in (first, second, third):
                wire.request(2, Op.EXISTS, jute.pack_text("/") + b"\0")
            await_condition(lambda: len(site.gateway._muted) == 3, "all of them to be left alone")  # type: ignore[union-attr]
            began_s, turns = time.monotonic(), site.counters.turns
            await_condition(lambda: site.counters.turns >= turns + 100, "the loop to go on")
            assert time.monotonic() - began_s > 0.1
            monkeypatch.undo()
            for wire, xids in ((first, [1, 2]), (second, [1, 2]), (third, [2])):
                answers = [wire.reply() for _ in xids]
                assert [answer and answer[0] for answer in answers] == xids


def test_one_whose_peer_is_gone_is_closed_although_it_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ORDERED_BYTES_MAX", 1_000)
    with single_site(CoordinationService, tmp_path, {"port": 0, "tick_time_ms": 60_000}) as site:
        assert isinstance(site.gateway, Listener)
        with Wire(address_of(site)) as wire:
            assert wire.connect()
            monkeypatch.setattr(gateway_session, "IN_FLIGHT_MAX", 0)
            wire.request(1, Op.SET_DATA, jute.pack_text("/") + jute.pack_buffer(bytes(5_000)) + jute.pack_int(-1))
            await_condition(lambda: site.gateway.front_end.full, "a write that waits")  # type: ignore[union-attr]
            wire.request(2, Op.EXISTS, jute.pack_text("/") + b"\0")
            await_condition(lambda: site.gateway._muted, "it to be left alone")  # type: ignore[union-attr]
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.socket.close()
            await_condition(lambda: site.status()["gateway"]["connections"] == 0, "its end")  # type: ignore[index]


def test_connections_that_do_not_read_are_bounded_together(tmp_path: Path) -> None:
    with single_site(CoordinationService, tmp_path, {"port": 0, "max_client_connections": 0}) as site:
        address = address_of(site)
        assert isinstance(site.gateway, Listener)
        pressure = site.gateway.front_end.pressure
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(Wire(address))
            assert writer.connect()
            assert writer.create("/big", bytes(1_000_000)) == Code.OK
            for _ in range(55):
                greedy = stack.enter_context(Wire(address))
                # The kernel is not to keep the answers.
                greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                if not greedy.connect():
                    continue
                for xid in range(12):
                    greedy.request(xid, Op.GET_DATA, jute.pack_text("/big") + b"\0")
                assert pressure.unsent <= limits.ALL_UNSENT_BYTES_EXTREME + 1_001_000
            assert writer.call(Op.EXISTS, jute.pack_text("/big") + b"\0")[0] == Code.OK
        assert site.status()["gateway"]["error"] == ""  # type: ignore[index]
