"""The front end: the connections of the clients of one container.

A connection has a name, under which messages come and answers go. An answer to somebody who is gone, or who does not
read what he asked for, is dropped: clients ask again.
"""

import errno
import resource
import select
from typing import NamedTuple, Protocol

import zmq

from tara.client.framing import QUEUED_FRAMES_MAX, UNCONFIRMED_MS_MAX, Broken
from tara.net.principal import NOBODY, Principal
from tara.transport.gate import CLIENTS, Gate
from tara.transport.links import FRAMES_PER_TURN, Accepted, Connection, OnBad
from tara.transport.wire import readable

#: Beyond that, the connection that has been silent for the longest time is closed.
CONNECTIONS_MAX = 10_000


def connections_max() -> int:
    """At most half of the descriptors that this process may have: files and peers need theirs."""
    return min(CONNECTIONS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class Address(NamedTuple):
    host: str
    #: 0: any free one.
    port: int
    #: If another process has the port, any free one will do: the registry tells everybody which.
    elsewhere: bool = True


class FrontEnd(Protocol):
    """What the container's loop needs."""

    #: Where clients connect to.
    address: str
    #: There may be more to receive, although the descriptor says nothing.
    unread: bool

    def fileno(self) -> int:
        """A descriptor that is readable when there is news."""

    def receive(self) -> list[tuple[bytes, bytes]]:
        """The messages that have arrived, with the names of their connections."""

    def send(self, name: bytes, message: bytes) -> None: ...

    def principal(self, name: bytes) -> Principal:
        """Who is at the other end of this connection; `NOBODY` if there are no keys, or the connection is gone."""

    def close(self) -> None: ...


class PlainFrontEnd:
    def __init__(self, address: Address, frame_bytes_max: int, on_bad: OnBad) -> None:
        try:
            self._accepted = Accepted(address.host, address.port, connections_max(), frame_bytes_max, on_bad)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not address.elsewhere:
                raise
            self._accepted = Accepted(address.host, 0, connections_max(), frame_bytes_max, on_bad)
        self.address = self._accepted.address
        self.unread = False
        self._epoll = self._accepted.epoll

    def fileno(self) -> int:
        return self._epoll.fileno()

    def receive(self) -> list[tuple[bytes, bytes]]:
        messages: list[tuple[bytes, bytes]] = []
        accepted = self._accepted
        for descriptor, events in self._epoll.poll(0):
            connection = accepted.connections.get(descriptor)
            if connection is not None:
                if events & select.EPOLLOUT:
                    self._flush(connection)
                if events & ~select.EPOLLOUT and descriptor in accepted.connections:
                    messages += [(connection.name, message) for message in accepted.read(connection)]
            elif descriptor == accepted.listener.fileno():
                accepted.accept()
        return messages

    def send(self, name: bytes, message: bytes) -> None:
        connection = self._accepted.by_name.get(name)
        if connection is None:
            return
        waited = connection.socket.waits_to_write
        try:
            connection.socket.send(message)
        except Broken:
            self._accepted.hang_up(connection)
            return
        if connection.socket.waits_to_write:
            if not waited:
                self._epoll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)
            self._accepted.look_at(connection)

    def principal(self, name: bytes) -> Principal:
        return NOBODY

    def _flush(self, connection: Connection) -> None:
        try:
            connection.socket.flush()
        except Broken:
            self._accepted.hang_up(connection)
            return
        if not connection.socket.waits_to_write:
            self._epoll.modify(connection.socket, select.EPOLLIN)
        self._accepted.look_at(connection)

    def close(self) -> None:
        self._accepted.close()


class CurveFrontEnd:
    """ZeroMQ encrypts. Its descriptor tells only that there is news: the socket must then be read until it has nothing
    more, or be asked again before the next wait; also after sending, because sending takes in the news."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], gate: Gate, address: Address, frame_bytes_max: int
    ) -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, QUEUED_FRAMES_MAX)
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_FRAMES_MAX)
        self._socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes_max)
        # What waits for a client that is silent is not to wait for long.
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, UNCONFIRMED_MS_MAX // 5)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, UNCONFIRMED_MS_MAX)
        gate.guard(self._socket, CLIENTS)
        try:
            self._socket.bind(f"tcp://{address.host}:{address.port or '*'}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or not address.elsewhere:
                raise
            self._socket.bind(f"tcp://{address.host}:*")
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.unread = True

    def fileno(self) -> int:
        return self._socket.FD

    def receive(self) -> list[tuple[bytes, bytes]]:
        messages: list[tuple[bytes, bytes]] = []
        while len(messages) < FRAMES_PER_TURN:
            try:
                name, *message = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            messages.append((name, b"".join(message)))
        self.unread = readable(self._socket)
        return messages

    def send(self, name: bytes, message: bytes) -> None:
        self._socket.send_multipart((name, message), zmq.NOBLOCK)
        self.unread = self.unread or readable(self._socket)

    def principal(self, name: bytes) -> Principal:
        return NOBODY

    def close(self) -> None:
        self._socket.close(0)
