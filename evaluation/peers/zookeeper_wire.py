"""The client's side of ZooKeeper's protocol, as much of it as closed-loop `setData` needs.

Frames with a length, big-endian fields. Answers come in the order of the requests, each with the request's number.
"""

import socket
import struct
from collections.abc import Callable

from evaluation.peers.closed_loop import BrokenConnection, PeerError

SESSION_TIMEOUT_MS = 30_000
_CREATE, _SET_DATA = 1, 5
_NODE_EXISTS = -110
_INT = struct.Struct(">i")
_REPLY = struct.Struct(">iiqi")
_CONNECT = struct.Struct(">iqiqi16s?")
#: perms, scheme, id: everybody may do everything.
_OPEN_ACL = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")


def _buffer(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value


def _framed(body: bytes) -> bytes:
    return _INT.pack(len(body)) + body


def _path(client: int) -> bytes:
    return b"/client-%06d" % client


def hello() -> bytes:
    """The request for a new session."""
    return _framed(_CONNECT.pack(0, 0, SESSION_TIMEOUT_MS, 0, 16, bytes(16), False))


def create_nodes(server: str, clients: int, value: bytes) -> None:
    """Make the node of each client, where it is not there yet."""
    host, port = server.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        file = sock.makefile("rb")
        sock.sendall(hello())
        _receive(file.read)
        for client in range(clients):
            body = _buffer(_path(client)) + _buffer(value) + _OPEN_ACL + _INT.pack(0)
            sock.sendall(_framed(struct.pack(">ii", client, _CREATE) + body))
            error = struct.unpack_from(">iqi", _receive(file.read))[2]
            if error not in (0, _NODE_EXISTS):
                raise PeerError(f"ZooKeeper does not create a node: error {error}")


def _receive(read: Callable[[int], bytes]) -> bytes:
    size = read(4)
    if len(size) < 4:
        raise PeerError("ZooKeeper closed the connection")
    return read(_INT.unpack(size)[0])


class ZooKeeperDialect:
    def __init__(self, value: bytes) -> None:
        self._value = value
        self._bodies: dict[int, bytes] = {}
        self._number = 0
        #: Whose request has a number, and the newest number of each client: answers to older ones count no more.
        self._waiting: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._buffer = b""
        self.ready = False

    def greeting(self) -> bytes:
        return hello()

    def request(self, client: int) -> bytes:
        body = self._bodies.get(client)
        if body is None:
            fields = _buffer(_path(client)) + _buffer(self._value) + _INT.pack(-1)
            body = self._bodies[client] = _INT.pack(_SET_DATA) + fields
        self._number += 1
        self._waiting[self._number], self._newest[client] = client, self._number
        return b"".join((_INT.pack(4 + len(body)), _INT.pack(self._number), body))

    def take_urgent(self) -> bytes:
        return b""

    def feed(self, data: bytes) -> list[tuple[int, bool]]:
        if self._buffer:
            data = self._buffer + data
        done: list[tuple[int, bool]] = []
        offset, end = 0, len(data)
        while offset + 4 <= end:
            following = offset + 4 + _INT.unpack_from(data, offset)[0]
            if following > end:
                break
            if not self.ready:
                self._welcome(data[offset + 4 : following])
            else:
                _, number, _, error = _REPLY.unpack_from(data, offset)
                client = self._waiting.pop(number, None)
                if client is not None and self._newest[client] == number:
                    done.append((client, error == 0))
            offset = following
        self._buffer = data[offset:]
        return done

    def _welcome(self, body: bytes) -> None:
        """The session is open, unless its time-out is 0."""
        if len(body) < 8 or _INT.unpack_from(body, 4)[0] <= 0:
            raise BrokenConnection("no session")
        self.ready = True
