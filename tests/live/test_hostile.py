"""Slow, idle and greedy connections: memory stays bounded, and others are served. Real sockets and containers."""

import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import msgspec
import pytest

from tara.application import Get, KeyValueStore
from tara.client import KeyValueClient
from tara.host import client_wire
from tara.live.container import Container
from tara.net import bounds
from tara.net.links import Links
from tara.net.server import Address
from tara.protocol import tuples as t
from tara.protocol.nodes.reads import ANSWERED_BYTES_MAX
from tests.frames import Frames
from tests.live.single import single_site
from tests.net.terms import serve

DEADLINE_S = 20.0
IDLE = 2_000
LARGE = 1 << 20


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Container]:
    with single_site(KeyValueStore, tmp_path) as container:
        yield container


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


def served(site: Container) -> bool:
    with KeyValueClient(site.client_address, timeout_s=DEADLINE_S) as client:
        client.put("city", b"Erlangen")
        return client.get("city") == b"Erlangen"


def open_to(address: str) -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def read_of(id_: int, stale: bool) -> client_wire.ReadMessage:
    return client_wire.ReadMessage(id_, msgspec.msgpack.encode(Get("large")), stale)


def test_thousands_of_idle_connections(site: Container) -> None:
    with ExitStack() as stack:
        for address in (site.client_address, site.peer_address):
            for _ in range(IDLE if address == site.client_address else 400):
                stack.enter_context(closing(open_to(address)))
        assert served(site)


def test_a_frame_that_comes_byte_by_byte_disturbs_nobody(site: Container) -> None:
    message = t.encode(client_wire.ClientRequest(t.FORMAT_VERSION, [], [client_wire.ReadMessage(7, b"", True)]))
    data = struct.pack("<I", len(message)) + message
    with closing(open_to(site.client_address)) as slow, Frames(site.client_address) as quick:
        for position in range(len(data)):
            slow.sendall(data[position : position + 1])
            quick.send(message)
            while not client_wire.decode_reply(quick.receive()).answers:
                pass
        assert slow.recv(4)
    assert served(site)


@pytest.mark.parametrize("stale", [True, False])
def test_a_client_that_never_reads_its_answers(site: Container, monkeypatch: pytest.MonkeyPatch, stale: bool) -> None:
    monkeypatch.setattr(bounds, "KEPT_BYTES_MAX", 32 << 20)
    with KeyValueClient(site.client_address) as client:
        client.put("large", bytes(LARGE - 100))
    before_mb, bad = resident_mb(), site.counters.frames_bad
    with closing(open_to(site.client_address)) as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asked = 0

        def given_up() -> bool:
            nonlocal asked
            reads = [read_of(asked + index, stale) for index in range(10)]
            asked += len(reads)
            message = t.encode(client_wire.ClientRequest(t.FORMAT_VERSION, [], reads))
            with suppress(ConnectionError):
                greedy.sendall(struct.pack("<I", len(message)) + message)
            return site.counters.frames_bad > bad

        until(given_up, "it to be given up")
        assert served(site)
    assert resident_mb() - before_mb < 300


@pytest.mark.parametrize("stale", [True, False])
def test_a_few_reads_cannot_ask_for_much_at_once(site: Container, stale: bool) -> None:
    with KeyValueClient(site.client_address) as client:
        client.put("large", bytes(LARGE - 100))
    reads = [read_of(index, stale) for index in range(1_000)]
    statuses: list[int] = []
    size = 0
    with Frames(site.client_address, DEADLINE_S) as asking:
        asking.send(t.encode(client_wire.ClientRequest(t.FORMAT_VERSION, [], reads)))
        while len(statuses) < len(reads):
            for _, status, payload in client_wire.decode_reply(asking.receive()).answers:
                statuses.append(status)
                size += len(payload)
    assert statuses.count(t.OK) == 17
    assert statuses.count(t.OVERLOADED) == len(reads) - 17
    assert size <= ANSWERED_BYTES_MAX + LARGE


def test_a_message_of_very_many_commands_is_refused(site: Container) -> None:
    commands = [t.Command(5, 0, 0, b"")] * (client_wire.MESSAGE_LENGTH_MAX + 1)
    with Frames(site.client_address) as connection:
        connection.send(t.encode(client_wire.ClientRequest(t.FORMAT_VERSION, commands)))
        until(lambda: site.counters.frames_bad == 1, "it to be counted")
    assert served(site)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:99999", "tcp://127.0.0.1:x", "nonsense", "tcp://:::1"])
def test_an_address_that_makes_no_sense_is_nowhere(address: str) -> None:
    here = Links("127.0.0.1", 0, 2, 1 << 20, lambda _: None)
    here.connect(1, address)
    assert not here.send(1, b"x")
    here.close()


def test_a_front_end_whose_port_is_taken_is_elsewhere_unless_others_count_on_it() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as squatter:
        port = squatter.getsockname()[1]
        front_end = serve(address=Address("127.0.0.1", port, elsewhere=True))
        assert front_end.address != f"tcp://127.0.0.1:{port}"
        front_end.close()
        with pytest.raises(OSError, match="in use"):
            serve(address=Address("127.0.0.1", port))
