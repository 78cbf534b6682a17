"""The peers: their wire protocols byte by byte, the closed loop on a real socket, the real servers where they are."""

import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from evaluation.peers.closed_loop import BrokenConnection, ClosedLoop, ClosedLoopReport, Dialect, PeerError
from evaluation.peers.etcd import Etcd
from evaluation.peers.etcd_wire import EtcdDialect, put_message
from evaluation.peers.pysyncobj import PySyncObj
from evaluation.peers.servers import PeerPlan, ServerProcess, await_condition
from evaluation.peers.zookeeper import ZooKeeper
from evaluation.peers.zookeeper_wire import ZooKeeperDialect


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def answer(stream: int) -> bytes:
    return frame(1, 4, stream, b"head") + frame(0, 0, stream, b"\0\0\0\0\1x") + frame(1, 5, stream, b"trailer")


def test_a_put_is_a_message_with_key_and_value() -> None:
    assert put_message(b"k", b"v") == b"\0\0\0\0\6" + b"\x0a\1k" + b"\x12\1v"
    assert put_message(b"k", bytes(200)).endswith(b"\x12\xc8\x01" + bytes(200))


def test_requests_take_odd_streams_and_end_them() -> None:
    dialect = EtcdDialect("localhost:1", b"v", 1)
    first, second = dialect.request(0), dialect.request(0)
    assert len(first) == len(second)
    assert first.count(struct.pack(">I", 1)) >= 2
    assert second.count(struct.pack(">I", 3)) == 2
    assert first.endswith(put_message(b"client/000000", b"v"))


def test_answers_are_told_whole_and_in_pieces() -> None:
    dialect = EtcdDialect("localhost:1", b"v", 3)
    for client in range(3):
        dialect.request(client)
    data = answer(1) + frame(1, 5, 3, b"error") + answer(5)
    told = [done for offset in range(0, len(data), 7) for done in dialect.feed(data[offset : offset + 7])]
    assert told == [(0, True), (1, False), (2, True)]


def test_an_answer_to_what_was_sent_again_counts_once() -> None:
    dialect = EtcdDialect("localhost:1", b"v", 1)
    dialect.request(0)
    dialect.request(0)
    assert dialect.feed(answer(1) + answer(3)) == [(0, True)]


def test_settings_and_pings_are_acknowledged() -> None:
    dialect = EtcdDialect("localhost:1", b"v", 1)
    assert not dialect.ready
    assert dialect.feed(frame(4, 0, 0) + frame(6, 0, 0, b"12345678") + frame(4, 1, 0)) == []
    assert dialect.ready
    assert dialect.take_urgent() == frame(4, 1, 0) + frame(6, 1, 0, b"12345678")
    assert dialect.take_urgent() == b""


def test_a_server_that_goes_away_breaks_the_connection() -> None:
    with pytest.raises(BrokenConnection):
        EtcdDialect("localhost:1", b"v", 1).feed(frame(7, 0, 0, bytes(8)))


def test_more_than_a_connection_takes_is_refused() -> None:
    with pytest.raises(PeerError, match="do not fit"):
        EtcdDialect("localhost:1", bytes(1024), 64)


def zookeeper_reply(number: int, error: int = 0) -> bytes:
    return struct.pack(">iiqi", 16, number, 1, error)


WELCOME = struct.pack(">iiiqi16s", 36, 0, 30_000, 7, 16, bytes(16))


def test_a_session_comes_first_and_errors_are_told() -> None:
    dialect = ZooKeeperDialect(b"v")
    assert dialect.feed(WELCOME[:10]) == []
    assert not dialect.ready
    assert dialect.feed(WELCOME[10:]) == []
    assert dialect.ready
    dialect.request(4)
    dialect.request(5)
    assert dialect.feed(zookeeper_reply(1) + zookeeper_reply(2, -101)) == [(4, True), (5, False)]


def test_a_refused_session_breaks_the_connection() -> None:
    with pytest.raises(BrokenConnection):
        ZooKeeperDialect(b"v").feed(struct.pack(">iiiqi16s", 36, 0, 0, 0, 16, bytes(16)))


class FaultyServer:
    """Answers ZooKeeper's frames; drops its first connection after some of them."""

    def __init__(self, drop_after: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._drop_after = drop_after
        self.connections = 0
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with suppress(ConnectionError), connection, connection.makefile("rwb", buffering=0) as file:
                self._talk(file, self._drop_after if self.connections == 1 else 1 << 60)

    def _talk(self, file: socket.SocketIO, limit: int) -> None:
        served = 0
        while len(size := file.read(4) or b"") == 4:
            body = file.read(struct.unpack(">i", size)[0]) or b""
            if served == 0:
                file.write(WELCOME)
            elif served > limit:
                return
            else:
                self.requests += 1
                file.write(zookeeper_reply(struct.unpack_from(">i", body)[0]))
            served += 1

    def close(self) -> None:
        self._listener.close()


def run_loop(address: str, clients: int, seconds: float) -> ClosedLoopReport:
    def make(server: str) -> Dialect:
        return ZooKeeperDialect(b"v")

    return ClosedLoop([address], make, clients, connections=1).run(seconds, 0.1, lambda: None)


def test_the_loop_keeps_one_request_per_client_under_way_and_survives_a_broken_connection() -> None:
    server = FaultyServer(drop_after=20)
    report = run_loop(server.address, 3, seconds=2.0)
    server.close()
    assert server.connections == 2
    assert report.errors == 0
    assert report.throughput_per_s > 0
    assert 0 < report.latency_ms_p50 <= report.latency_ms_p99
    # Each request was answered once, except what was under way when the connection broke.
    assert report.throughput_per_s * 2.0 <= server.requests


def test_a_service_that_is_not_there_is_one_long_gap() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    report = run_loop(address, 2, seconds=0.5)
    assert report.throughput_per_s == 0
    assert report.gap_ms_max >= 450


PLAN = PeerPlan(clients=8, seconds=1.5, warm_up_s=0.5, payload_bytes=64)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Etcd, ZooKeeper, PySyncObj])
def test_a_peer_is_started_loaded_and_stopped(
    kind: type[Etcd] | type[ZooKeeper] | type[PySyncObj], tmp_path: Path
) -> None:
    if kind.version() is None:
        pytest.skip(f"{kind.name} is missing: {kind.how_to_install}")
    peer = kind(tmp_path, durable=False)
    try:
        measured = peer.measure(PLAN)
        assert measured.report.throughput_per_s > 0
        assert measured.report.errors == 0
        assert measured.cpu.server > 0
        assert (measured.cpu.client is None) == (kind is PySyncObj)
    finally:
        peer.stop()
    assert all(server.process.poll() is not None for server in peer._servers)


def test_a_server_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    server = ServerProcess(["sh", "-c", "echo no disk; exit 3"], tmp_path / "out")
    with pytest.raises(PeerError, match="no disk"):
        await_condition(lambda: False, "it serves", [server])
