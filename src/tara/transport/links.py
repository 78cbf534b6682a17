"""Links: how frames travel between containers.

Each container listens at one address, and has one connection to each peer on which it only sends. A link is fair-lossy:
what does not fit into a slow peer's queue, or is on its way when a connection breaks, is dropped, and sent again by the
protocol. Connections come back by themselves.

`PlainLinks` are TCP connections that the container's loop reads and writes itself. With keys there are `CurveLinks`:
ZeroMQ encrypts, at the price of a thread that every frame passes on both sides.
"""

import select
import socket
import time
from collections.abc import Callable
from typing import Protocol

import zmq

from tara.client.framing import QUEUED_FRAMES_MAX, UNCONFIRMED_MS_MAX, Broken, Closed, FrameSocket
from tara.client.keys import Keys
from tara.transport.gate import MEMBERS, Gate
from tara.transport.wire import readable

#: Messages taken from a ZeroMQ socket in one turn: bounds how long a turn can be.
FRAMES_PER_TURN = 64
#: Before a broken connection is tried again.
RETRY_S = 0.05
#: Connections that may wait to be taken; and how many are taken in one turn.
BACKLOG = 1024
ACCEPTED_PER_TURN = 64
#: Connections from others; beyond that, the one that has been silent for the longest time is closed.
CONNECTIONS_MAX = 256
#: What all connections of one address may keep here, frames that have begun to arrive and what the other side does not
#: read; beyond that, the one that keeps most is closed.
KEPT_BYTES_MAX = 256 << 20

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


class Connection:
    """One that somebody has opened to us."""

    def __init__(self, connection: FrameSocket, name: bytes) -> None:
        self.socket = connection
        #: Unlike a descriptor, it is never used again.
        self.name = name
        self.heard_s = time.monotonic()
        #: The bytes that it kept here when that was last looked at.
        self.kept_bytes = 0


class Accepted:
    """The connections that others have opened to one address of this process. Bounded: where there are too many, the
    one that has been silent for the longest time has to go, and those who use theirs stay."""

    def __init__(self, host: str, port: int, connections_max: int, frame_bytes_max: int, on_bad: OnBad) -> None:
        self._connections_max = connections_max
        self._frame_bytes_max = frame_bytes_max
        self._on_bad = on_bad
        self.listener = socket.socket()
        self.listener.setblocking(False)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((host, port))
        self.listener.listen(BACKLOG)
        bound_host, bound_port = self.listener.getsockname()[:2]
        self.address = f"tcp://{bound_host}:{bound_port}"
        self.epoll = select.epoll()
        self.epoll.register(self.listener, select.EPOLLIN)
        self.connections: dict[int, Connection] = {}
        self.by_name: dict[bytes, Connection] = {}
        self._count = 0
        self._kept_bytes = 0

    def accept(self) -> None:
        """Take the connections that wait, but not so many that others have to."""
        for _ in range(ACCEPTED_PER_TURN):
            try:
                connection, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # No descriptors left, or it is gone already.
                self._make_room(str(error))
                return
            if len(self.connections) >= self._connections_max:
                self._make_room("too many connections")
            self._add(connection)

    def _add(self, connection: socket.socket) -> None:
        self._count += 1
        accepted = Connection(FrameSocket(connection, self._frame_bytes_max), b"%d" % self._count)
        self.connections[connection.fileno()] = self.by_name[accepted.name] = accepted
        self.epoll.register(connection, select.EPOLLIN)

    def _make_room(self, reason: str) -> None:
        self._on_bad(reason)
        if self.connections:
            self.hang_up(min(self.connections.values(), key=lambda connection: connection.heard_s))

    def hang_up(self, connection: Connection) -> None:
        self.epoll.unregister(connection.socket)
        del self.connections[connection.socket.fileno()]
        del self.by_name[connection.name]
        self._kept_bytes -= connection.kept_bytes
        connection.socket.close()

    def look_at(self, connection: Connection) -> None:
        """After anything that may have changed what it keeps here."""
        kept_bytes = connection.socket.kept_bytes
        self._kept_bytes += kept_bytes - connection.kept_bytes
        connection.kept_bytes = kept_bytes
        while self._kept_bytes > KEPT_BYTES_MAX:
            greediest = max(self.connections.values(), key=lambda other: other.kept_bytes)
            self._on_bad(f"a connection that keeps {greediest.kept_bytes} bytes here")
            self.hang_up(greediest)

    def read(self, connection: Connection) -> list[bytes]:
        try:
            frames = connection.socket.receive()
        except Broken as broken:
            if not isinstance(broken, Closed):
                self._on_bad(str(broken))
            self.hang_up(connection)
            return []
        if frames:
            connection.heard_s = time.monotonic()
        self.look_at(connection)
        return frames

    def close(self) -> None:
        for connection in list(self.connections.values()):
            self.hang_up(connection)
        self.listener.close()
        self.epoll.close()


class _Outgoing:
    """The way to one peer."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket: FrameSocket | None = None
        self.retry_s = 0.0


class PlainLinks:
    def __init__(self, host: str, port: int, peers: int, frame_bytes_max: int, on_bad: OnBad) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._accepted = Accepted(host, port, CONNECTIONS_MAX, frame_bytes_max, on_bad)
        self.address = self._accepted.address
        self.unread = False
        self._epoll = self._accepted.epoll
        self._outgoing: list[_Outgoing | None] = [None] * peers
        self._by_descriptor: dict[int, _Outgoing] = {}

    def fileno(self) -> int:
        return self._epoll.fileno()

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
        try:
            link.socket = FrameSocket.connect(link.address, self._frame_bytes_max)
        except Broken:
            self._break(link)
            return
        self._by_descriptor[link.socket.fileno()] = link
        self._epoll.register(link.socket, select.EPOLLOUT)

    def _break(self, link: _Outgoing) -> None:
        """The connection is gone, and with it what waits."""
        if link.socket is not None:
            self._epoll.unregister(link.socket)
            del self._by_descriptor[link.socket.fileno()]
            link.socket.close()
            link.socket = None
        link.retry_s = time.monotonic() + RETRY_S

    def send(self, peer: int, frame: bytes) -> bool:
        link = self._outgoing[peer]
        if link is None or link.socket is None:
            return False
        waited = link.socket.waits_to_write
        try:
            taken = link.socket.send(frame)
        except Broken:
            self._break(link)
            return False
        if link.socket.waits_to_write and not waited:
            self._epoll.modify(link.socket, select.EPOLLIN | select.EPOLLOUT)
        return taken

    def _go_on(self, link: _Outgoing, events: int) -> None:
        """The connection has come about, or takes more, or is broken; the other side never sends anything."""
        assert link.socket is not None
        try:
            if events & ~select.EPOLLOUT:
                raise Broken("the other side closed the connection")
            link.socket.flush()
        except Broken:
            self._break(link)
            return
        if not link.socket.waits_to_write:
            self._epoll.modify(link.socket, select.EPOLLIN)

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        accepted = self._accepted
        for descriptor, events in self._epoll.poll(0):
            connection = accepted.connections.get(descriptor)
            if connection is not None:
                frames += accepted.read(connection)
            elif descriptor in self._by_descriptor:
                self._go_on(self._by_descriptor[descriptor], events)
            elif descriptor == accepted.listener.fileno():
                accepted.accept()
        return frames

    def close(self) -> None:
        for link in self._outgoing:
            if link is not None:
                self._break(link)
        self._accepted.close()


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
            # There is no bound in bytes on what waits for a peer; so one that is silent does not let it wait for long.
            link.setsockopt(zmq.HEARTBEAT_IVL, UNCONFIRMED_MS_MAX // 5)
            link.setsockopt(zmq.HEARTBEAT_TIMEOUT, UNCONFIRMED_MS_MAX)
            link.setsockopt(zmq.IMMEDIATE, 1)
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
