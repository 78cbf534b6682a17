"""A closed-loop load on any service whose wire protocol is given as a `Dialect`, in one thread on one epoll.

The clients are spread over a few connections and pipeline their requests there. A connection that breaks is made anew,
to the next server, and what was not answered is sent again; so is what was not answered in time. A write is idempotent
here: each client always writes the same value to its own key.
"""

import contextlib
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from tara.client.session import PATIENCE_S
from tara.protocol.errors import TaraError

CONNECT_TIMEOUT_S = 1.0
RECONNECT_S = 0.05
RECEIVE_BYTES = 1 << 18


class PeerError(TaraError):
    """A peer is not installed, did not start, or did not serve."""


class BrokenConnection(PeerError):
    """The server ended the connection, or said something that makes no sense."""


class Dialect(Protocol):
    """The client's side of one connection. Bytes in, bytes out."""

    def greeting(self) -> bytes:
        """What is sent first."""

    @property
    def ready(self) -> bool:
        """Whether requests may be sent."""

    def request(self, client: int) -> bytes:
        """The client's next write."""

    def feed(self, data: bytes) -> list[tuple[int, bool]]:
        """Take what has arrived: the clients that got an answer, and whether it was a good one."""

    def take_urgent(self) -> bytes:
        """What has to be sent although no client asked for it."""


class ClosedLoopReport(Struct, kw_only=True):
    throughput_per_s: float
    latency_ms_p50: float
    latency_ms_p99: float
    #: The longest time in which no client got an answer.
    gap_ms_max: float
    errors: int
    resent: int


class _Connection:
    def __init__(self, clients: list[int], server: int) -> None:
        self.clients = clients
        self.server = server
        self.socket: socket.socket | None = None
        self.dialect: Dialect | None = None
        self.started = False
        self.unsent = b""
        self.retry_s = 0.0


class ClosedLoop:
    def __init__(
        self, servers: Sequence[str], make: Callable[[str], Dialect], clients: int, connections: int = 4
    ) -> None:
        """`make` gives the dialect for a connection to the given server."""
        self._servers = list(servers)
        self._make = make
        count = min(connections, clients)
        self._connections = [
            _Connection(list(range(index, clients, count)), index % len(servers)) for index in range(count)
        ]
        self._by_descriptor: dict[int, _Connection] = {}
        self._epoll = select.epoll()
        self._first_sent_s = [0.0] * clients
        self._sent_s = [0.0] * clients
        self._again: dict[int, _Connection] = {}
        self._latencies_s: list[float] = []
        self._measuring = False
        self._last_answer_s = 0.0
        self._gap_s = 0.0
        self._errors = 0
        self._resent = 0

    def run(self, seconds: float, warm_up_s: float, on_measuring: Callable[[], None]) -> ClosedLoopReport:
        now_s = time.monotonic()
        begin_s, check_s = now_s + warm_up_s, now_s
        end_s = begin_s + seconds
        try:
            while now_s < end_s:
                if now_s >= check_s:
                    check_s = now_s + RECONNECT_S
                    self._care(now_s)
                for descriptor, events in self._epoll.poll(RECONNECT_S):
                    connection = self._by_descriptor.get(descriptor)
                    if connection is not None:
                        self._serve(connection, events)
                now_s = time.monotonic()
                if not self._measuring and now_s >= begin_s:
                    self._measuring, self._last_answer_s, self._gap_s = True, now_s, 0.0
                    on_measuring()
        finally:
            self._close()
        self._gap_s = max(self._gap_s, now_s - self._last_answer_s)
        latencies = sorted(self._latencies_s) or [0.0]
        return ClosedLoopReport(
            throughput_per_s=round(len(self._latencies_s) / seconds, 1),
            latency_ms_p50=_quantile(latencies, 0.5),
            latency_ms_p99=_quantile(latencies, 0.99),
            gap_ms_max=round(self._gap_s * 1e3, 1),
            errors=self._errors,
            resent=self._resent,
        )

    def _care(self, now_s: float) -> None:
        """Open what is closed; send again what was not answered in time, or not well."""
        for connection in self._connections:
            if connection.socket is None and now_s >= connection.retry_s:
                self._open(connection, now_s)
        again, self._again = self._again, {}
        for client, connection in again.items():
            self._send_requests(connection, [client], now_s)
        for connection in self._connections:
            late = [c for c in connection.clients if connection.started and now_s - self._sent_s[c] > PATIENCE_S]
            self._resent += len(late)
            self._send_requests(connection, late, now_s)

    def _open(self, connection: _Connection, now_s: float) -> None:
        server = self._servers[connection.server]
        host, port = server.rsplit(":", 1)
        try:
            opened = socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S)
        except OSError:
            self._next_server(connection, now_s)
            return
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setblocking(False)
        connection.socket, connection.dialect = opened, self._make(server)
        connection.started, connection.unsent = False, b""
        self._by_descriptor[opened.fileno()] = connection
        self._epoll.register(opened.fileno(), select.EPOLLIN)
        self._send(connection, connection.dialect.greeting())

    def _next_server(self, connection: _Connection, now_s: float) -> None:
        connection.server = (connection.server + 1) % len(self._servers)
        connection.retry_s = now_s + RECONNECT_S

    def _serve(self, connection: _Connection, events: int) -> None:
        assert connection.socket is not None and connection.dialect is not None
        try:
            if events & select.EPOLLOUT:
                self._send(connection, b"")
            data = connection.socket.recv(RECEIVE_BYTES)
            if not data:
                raise BrokenConnection("closed by the server")
            answers = connection.dialect.feed(data)
        except BlockingIOError:
            return
        except (OSError, BrokenConnection):
            self._drop(connection)
            return
        self._hear(connection, answers)

    def _hear(self, connection: _Connection, answers: list[tuple[int, bool]]) -> None:
        assert connection.dialect is not None
        now_s = time.monotonic()
        served = []
        for client, good in answers:
            if not good:
                self._errors += 1
                self._again[client] = connection
                continue
            if self._measuring:
                self._latencies_s.append(now_s - self._first_sent_s[client])
                self._gap_s = max(self._gap_s, now_s - self._last_answer_s)
                self._last_answer_s = now_s
            self._first_sent_s[client] = 0.0
            served.append(client)
        if not connection.started and connection.dialect.ready:
            connection.started = True
            served = connection.clients
        urgent = connection.dialect.take_urgent()
        if urgent:
            self._send(connection, urgent)
        self._send_requests(connection, served, now_s)

    def _send_requests(self, connection: _Connection, clients: list[int], now_s: float) -> None:
        if not clients or connection.dialect is None or not connection.started:
            return
        for client in clients:
            self._sent_s[client] = now_s
            self._first_sent_s[client] = self._first_sent_s[client] or now_s
        self._send(connection, b"".join(map(connection.dialect.request, clients)))

    def _send(self, connection: _Connection, data: bytes) -> None:
        assert connection.socket is not None
        data = connection.unsent + data
        try:
            sent = connection.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        waited, connection.unsent = bool(connection.unsent), data[sent:]
        if waited != bool(connection.unsent):
            events = select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0)
            self._epoll.modify(connection.socket.fileno(), events)

    def _drop(self, connection: _Connection) -> None:
        if connection.socket is None:
            return
        descriptor = connection.socket.fileno()
        self._by_descriptor.pop(descriptor, None)
        with contextlib.suppress(OSError):
            self._epoll.unregister(descriptor)
        connection.socket.close()
        connection.socket, connection.dialect, connection.started = None, None, False
        self._next_server(connection, time.monotonic())

    def _close(self) -> None:
        for connection in self._connections:
            self._drop(connection)
        self._epoll.close()


def _quantile(ordered: list[float], quantile: float) -> float:
    return round(ordered[min(int(len(ordered) * quantile), len(ordered) - 1)] * 1e3, 3)
