"""Links: how frames travel between containers.

Each container listens at one address, and has one connection to each peer on which it only sends. A link is fair-lossy:
what does not fit into a slow peer's queue, or is on its way when a connection breaks, is dropped, and sent again by the
protocol. Connections come back by themselves.

`PlainLinks` are TCP connections that the container's loop reads and writes itself. With keys there are `CurveLinks`:
ZeroMQ encrypts, at the price of a thread that every frame passes on both sides.
"""

import errno
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import zmq

from tara.client.keys import Keys
from tara.runtime.gate import MEMBERS, Gate
from tara.runtime.wire import readable

#: Frames that may wait for a slow peer, or for this process.
QUEUED_FRAMES_MAX = 10_000
#: Bytes that may wait for a slow peer.
QUEUED_BYTES_MAX = 256 << 20
#: Frames taken in one turn: bounds how long a turn can be.
FRAMES_PER_TURN = 64
#: Bytes that are read from one connection in one turn.
READ_BYTES = 256 << 10
#: Before a broken connection is tried again.
RETRY_S = 0.05
#: Connections from others; beyond that, the one that has been silent for the longest time is closed.
CONNECTIONS_MAX = 256
#: How long what was sent may stay unconfirmed before the connection counts as broken.
UNCONFIRMED_MS_MAX = 5_000

_LENGTH = struct.Struct("<I")
OnBad = Callable[[str], None]


class Links(Protocol):
    """What the container's loop needs."""

    #: Where peers connect to.
    address: str
    #: There may be more to receive, although the descriptor says nothing.
    unread: bool

    def fileno(self) -> int:
        """A descriptor that is readable when there is news."""

    def connect(self, peer: int, address: str | None) -> None:
        """From now on frames for this peer go to this address; None: nowhere."""

    def send(self, peer: int, frame: bytes) -> bool:
        """Whether it is on its way. It may get lost all the same."""

    def receive(self) -> list[bytes]:
        """The frames that have arrived, in the order of each sender."""

    def tick(self) -> None:
        """Time has passed."""

    def close(self) -> None: ...


class _Outgoing:
    """The way to one peer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.target = (host, int(port))
        self.socket: socket.socket | None = None
        self.connected = False
        self.retry_s = 0.0
        #: What the connection did not take, and how many bytes that is.
        self.waiting: deque[memoryview] = deque()
        self.waiting_bytes = 0


class _Incoming:
    """A connection that a peer has opened."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        #: The beginning of a frame, and how many bytes there have to be before it is worth looking at it again.
        self.begun = bytearray()
        self.needed = 0
        self.heard_s = time.monotonic()


class PlainLinks:
    def __init__(self, host: str, port: int, peers: int, frame_bytes_max: int, on_bad: OnBad) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._on_bad = on_bad
        self._listener = socket.socket()
        self._listener.setblocking(False)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, port))
        self._listener.listen(CONNECTIONS_MAX)
        bound_host, bound_port = self._listener.getsockname()[:2]
        self.address = f"tcp://{bound_host}:{bound_port}"
        self.unread = False
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._outgoing: list[_Outgoing | None] = [None] * peers
        self._incoming: dict[int, _Incoming] = {}
        self._by_descriptor: dict[int, _Outgoing] = {}

    def fileno(self) -> int:
        return self._epoll.fileno()

    # To others

    def connect(self, peer: int, address: str | None) -> None:
        old = self._outgoing[peer]
        if old is not None:
            self._break(old)
        self._outgoing[peer] = None if address is None else _Outgoing(address)
        self.tick()

    def tick(self) -> None:
        now_s = time.monotonic()
        for link in self._outgoing:
            if link is not None and link.socket is None and now_s >= link.retry_s:
                self._open(link)

    def _open(self, link: _Outgoing) -> None:
        link.socket = connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNCONFIRMED_MS_MAX)
        self._by_descriptor[connection.fileno()] = link
        self._epoll.register(connection, select.EPOLLOUT)
        try:
            failure = connection.connect_ex(link.target)
        except OSError:  # No such host.
            failure = errno.EHOSTUNREACH
        if failure not in (0, errno.EINPROGRESS):
            self._break(link)

    def _break(self, link: _Outgoing) -> None:
        """The connection is gone, and with it what waits."""
        if link.socket is not None:
            self._epoll.unregister(link.socket)
            del self._by_descriptor[link.socket.fileno()]
            link.socket.close()
        link.socket, link.connected = None, False
        link.waiting.clear()
        link.waiting_bytes = 0
        link.retry_s = time.monotonic() + RETRY_S

    def send(self, peer: int, frame: bytes) -> bool:
        link = self._outgoing[peer]
        if link is None or link.socket is None:
            return False
        data = _LENGTH.pack(len(frame)) + frame
        if not link.connected or link.waiting:
            return self._wait(link, memoryview(data))
        try:
            sent = link.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._break(link)
            return False
        if sent < len(data):
            self._wait(link, memoryview(data)[sent:])
            self._epoll.modify(link.socket, select.EPOLLIN | select.EPOLLOUT)
        return True

    def _wait(self, link: _Outgoing, data: memoryview) -> bool:
        if len(link.waiting) >= QUEUED_FRAMES_MAX or link.waiting_bytes + len(data) > QUEUED_BYTES_MAX:
            return False
        link.waiting.append(data)
        link.waiting_bytes += len(data)
        return True

    def _go_on(self, link: _Outgoing, events: int) -> None:
        """The connection has come about, or takes more, or is broken; the other side never sends anything."""
        assert link.socket is not None
        if events & ~select.EPOLLOUT:
            self._break(link)
            return
        link.connected = True
        try:
            while link.waiting:
                data = link.waiting[0]
                sent = link.socket.send(data)
                link.waiting_bytes -= sent
                if sent < len(data):
                    link.waiting[0] = data[sent:]
                else:
                    link.waiting.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._break(link)
            return
        self._epoll.modify(link.socket, select.EPOLLIN)

    # From others

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        for descriptor, events in self._epoll.poll(0):
            incoming = self._incoming.get(descriptor)
            if incoming is not None:
                self._read(incoming, frames)
            elif descriptor in self._by_descriptor:
                self._go_on(self._by_descriptor[descriptor], events)
            elif descriptor == self._listener.fileno():
                self._accept()
        return frames

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # It has gone again, or there are too many open files: its peer will try again.
            return
        connection.setblocking(False)
        if len(self._incoming) >= CONNECTIONS_MAX:
            self._hang_up(min(self._incoming.values(), key=lambda incoming: incoming.heard_s))
            self._on_bad("too many connections")
        self._incoming[connection.fileno()] = _Incoming(connection)
        self._epoll.register(connection, select.EPOLLIN)

    def _hang_up(self, incoming: _Incoming) -> None:
        self._epoll.unregister(incoming.socket)
        del self._incoming[incoming.socket.fileno()]
        incoming.socket.close()

    def _read(self, incoming: _Incoming, frames: list[bytes]) -> None:
        try:
            data = incoming.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(incoming)
            return
        if incoming.begun:
            incoming.begun += data
            if len(incoming.begun) < incoming.needed:
                return
            data = bytes(incoming.begun)
            incoming.begun = bytearray()
        incoming.heard_s = time.monotonic()
        start, end = 0, len(data)
        needed = _LENGTH.size
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > self._frame_bytes_max:
                self._on_bad(f"a frame of {length} bytes")
                self._hang_up(incoming)
                return
            needed = _LENGTH.size + length
            if end - start < needed:
                break
            frames.append(data[start + _LENGTH.size : start + needed])
            start += needed
            needed = _LENGTH.size
        if start < end:
            incoming.begun += data[start:]
            incoming.needed = needed

    def close(self) -> None:
        for link in self._outgoing:
            if link is not None:
                self._break(link)
        for incoming in list(self._incoming.values()):
            self._hang_up(incoming)
        self._listener.close()
        self._epoll.close()


class CurveLinks:
    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: Keys,
        gate: Gate,
        host: str,
        port: int,
        peers: int,
        frame_bytes_max: int,
    ) -> None:
        self._context = context
        self._keys = keys
        self._inbox = context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.LINGER, 0)
        self._inbox.setsockopt(zmq.RCVHWM, QUEUED_FRAMES_MAX)
        self._inbox.setsockopt(zmq.MAXMSGSIZE, frame_bytes_max)
        gate.guard(self._inbox, MEMBERS)
        self._inbox.bind(f"tcp://{host}:{port or '*'}")
        self.address = self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        self.unread = True
        self._outgoing: list[zmq.Socket[bytes] | None] = [None] * peers

    def fileno(self) -> int:
        return self._inbox.FD

    def connect(self, peer: int, address: str | None) -> None:
        old = self._outgoing[peer]
        if old is not None:
            old.close(0)
            self._outgoing[peer] = None
        if address is not None:
            link = self._context.socket(zmq.PUSH)
            link.setsockopt(zmq.LINGER, 0)
            link.setsockopt(zmq.SNDHWM, QUEUED_FRAMES_MAX)
            link.setsockopt(zmq.RECONNECT_IVL, 20)
            link.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
            self._keys.secure_connecting(link)
            link.connect(address)
            self._outgoing[peer] = link

    def tick(self) -> None:
        """ZeroMQ connects again by itself."""

    def send(self, peer: int, frame: bytes) -> bool:
        link = self._outgoing[peer]
        if link is None:
            return False
        try:
            link.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        self.unread = True
        while len(frames) < FRAMES_PER_TURN:
            try:
                frames.append(self._inbox.recv(zmq.NOBLOCK))
            except zmq.Again:
                self.unread = readable(self._inbox)
                break
        return frames

    def close(self) -> None:
        for link in (self._inbox, *self._outgoing):
            if link is not None:
                link.close(0)
