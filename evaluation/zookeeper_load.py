"""Closed-loop load on a ZooKeeper service, spoken to in its own protocol: many sessions on one process and one epoll.

The same program drives Tara and ZooKeeper. Requests are made once per session and sent again and again; a reply is
looked at only as far as its error code.
"""

import select
import socket
import struct
import time

from msgspec import Struct

from tara.apps.coordination import jute
from tara.apps.coordination.acl import OPEN
from tara.apps.coordination.codes import Code, Op
from tara.bench.load import LoadError, quantile

SESSION_TIMEOUT_MS = 30_000
_HEADER = struct.Struct(">iiqi")


class ZooKeeperLoadReport(Struct, kw_only=True):
    operation: str
    sessions: int
    seconds: float
    throughput_per_s: float
    latency_ms_p50: float
    latency_ms_p99: float
    latency_ms_max: float
    errors: int


class _Session:
    __slots__ = ("buffer", "request", "sent_s", "socket")

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.buffer = b""
        self.request = b""
        self.sent_s = 0.0


def _framed(body: bytes) -> bytes:
    return jute.pack_int(len(body)) + body


def _receive(sock: socket.socket) -> bytes:
    """One frame, waiting for it."""
    data = b""
    while len(data) < 4 or len(data) < 4 + jute.unpack_int(data)[0]:
        more = sock.recv(65_536)
        if not more:
            raise LoadError("the server closed the connection")
        data += more
    return data[4:]


class ZooKeeperLoad:
    """Sessions spread over the endpoints, each with a node of its own."""

    def __init__(self, endpoints: str, sessions: int, value_bytes: int = 64) -> None:
        addresses = [endpoint.rsplit(":", 1) for endpoint in endpoints.split(",")]
        self._value = b"v" * value_bytes
        self._sessions = []
        for index in range(sessions):
            host, port = addresses[index % len(addresses)]
            sock = socket.create_connection((host, int(port)), timeout=20)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sessions.append(_Session(sock))
        connect = struct.pack(">iqiq", 0, 0, SESSION_TIMEOUT_MS, 0) + jute.pack_buffer(bytes(16)) + b"\0"
        self._all(_framed(connect))
        for index, session in enumerate(self._sessions):
            body = jute.pack_text(f"/load-{index}") + jute.pack_buffer(self._value) + jute.pack_acl(OPEN)
            session.socket.sendall(_framed(jute.REQUEST_HEADER.pack(1, Op.CREATE) + body + jute.pack_int(0)))
        for session in self._sessions:
            error = jute.REPLY_HEADER.unpack_from(_receive(session.socket))[2]
            if error not in (Code.OK, Code.NODE_EXISTS):
                raise LoadError(f"create: error {error}")

    def _all(self, frame: bytes) -> None:
        for session in self._sessions:
            session.socket.sendall(frame)
        for session in self._sessions:
            _receive(session.socket)

    def run(self, operation: str, seconds: float, warm_up_s: float = 1.0) -> ZooKeeperLoadReport:
        for index, session in enumerate(self._sessions):
            path = jute.pack_text(f"/load-{index}")
            if operation == "setData":
                body = jute.REQUEST_HEADER.pack(2, Op.SET_DATA) + path + jute.pack_buffer(self._value)
                session.request = _framed(body + jute.pack_int(-1))
            else:
                session.request = _framed(jute.REQUEST_HEADER.pack(2, Op.GET_DATA) + path + b"\0")
        epoll = select.epoll()
        by_descriptor = {session.socket.fileno(): session for session in self._sessions}
        for descriptor, session in by_descriptor.items():
            session.socket.setblocking(False)
            epoll.register(descriptor, select.EPOLLIN)
        begin_s = time.monotonic() + warm_up_s
        end_s = begin_s + seconds
        latencies, errors = self._drive(epoll, by_descriptor, begin_s, end_s)
        epoll.close()
        for session in self._sessions:
            session.socket.settimeout(20)
        latencies.sort()
        return ZooKeeperLoadReport(
            operation=operation,
            sessions=len(self._sessions),
            seconds=seconds,
            throughput_per_s=round(len(latencies) / seconds, 1),
            latency_ms_p50=quantile(latencies, 0.5),
            latency_ms_p99=quantile(latencies, 0.99),
            latency_ms_max=quantile(latencies, 1.0),
            errors=errors,
        )

    def _drive(
        self, epoll: select.epoll, by_descriptor: dict[int, _Session], begin_s: float, end_s: float
    ) -> tuple[list[float], int]:
        latencies: list[float] = []
        errors, pending = 0, len(self._sessions)
        monotonic = time.monotonic
        for session in self._sessions:
            session.sent_s = monotonic()
            session.socket.send(session.request)
        while pending:
            ready = epoll.poll(10)
            if not ready:
                raise LoadError("no answer for 10 s")
            now_s = monotonic()
            for descriptor, _ in ready:
                session = by_descriptor[descriptor]
                data = session.socket.recv(4096)
                if not data:
                    raise LoadError("the server closed a connection")
                if session.buffer:
                    data = session.buffer + data
                length, xid, _, error = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (1 << 30, 0, 0, 0)
                if len(data) < 4 + length:
                    session.buffer = data
                    continue
                session.buffer = data[4 + length :]
                if xid == -2:
                    continue
                errors += error != 0
                if now_s >= begin_s:
                    latencies.append(now_s - session.sent_s)
                if now_s < end_s:
                    session.sent_s = monotonic()
                    session.socket.send(session.request)
                else:
                    pending -= 1
        return latencies, errors

    def close(self) -> None:
        frame = _framed(jute.REQUEST_HEADER.pack(3, Op.CLOSE_SESSION))
        for session in self._sessions:
            session.socket.sendall(frame)
        for session in self._sessions:
            _receive(session.socket)
            session.socket.close()

    def abandon(self) -> None:
        """Leave without a word; the sessions expire."""
        for session in self._sessions:
            session.socket.close()
