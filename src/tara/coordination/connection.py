"""One client's connection at a front end: bytes in, frames out of it; answers in, bytes out of it. Nothing blocks."""

import select
import socket
import ssl
from collections import deque

from tara.coordination.acl import Ids
from tara.coordination.commands import encode_ids, envelope
from tara.coordination.jute import unpack_int

RECEIVE_BYTES = 65_536
#: Requests of one connection that are not answered yet; then nothing more is read from it.
REQUESTS_MAX = 256
#: Answers that a client has not fetched yet; then nothing more is read from it, and at the second one it is closed.
UNSENT_BYTES_MAX = 4 << 20
UNSENT_BYTES_CLOSED = 64 << 20


class Closed(Exception):
    """The connection has ended, or must."""


class Connection:
    """States: new (session 0, not joining), joining (its session is on the way), open (it has a session)."""

    def __init__(self, sock: socket.socket, address: str, port: int, now_s: float) -> None:
        self.socket = sock
        self.descriptor = sock.fileno()
        self.address = address
        self.port = port
        self.opened_s = self.heard_s = now_s
        self.session = 0
        self.attachment = 0
        self.timeout_ms = 0
        self.joining = False
        #: It has asked for the end of its session.
        self.ending = False
        self.closed = False
        #: Close it when everything is sent.
        self.last_words = False
        #: Ordered commands whose results are not here yet.
        self.outstanding = 0
        #: Requests that wait for results of earlier ones: xid, operation, body.
        self.queue: deque[tuple[int, int, bytes]] = deque()
        self.pings = 0
        self.received = 0
        self.sent = 0
        self._in = b""
        self._position = 0
        #: The beginning of a frame, and how many bytes there have to be before it is worth looking at it again.
        self._begun = bytearray()
        self._needed = 0
        #: Frames have arrived that were not looked at, because it was full.
        self.held = False
        self._out = bytearray()
        self._interest = select.EPOLLIN
        self._handshake = isinstance(sock, ssl.SSLSocket)
        self.set_ids((("ip", address),))

    def set_ids(self, ids: Ids) -> None:
        self.ids = ids
        self.ids_bytes = encode_ids(ids)
        self._envelopes: dict[int, bytes] = {}

    def envelope(self, op: int) -> bytes:
        found = self._envelopes.get(op)
        if found is None:
            found = self._envelopes[op] = envelope(op, self.session, self.attachment, self.ids_bytes)
        return found

    def joined(self, session: int, attachment: int, timeout_ms: int) -> None:
        self.session, self.attachment, self.timeout_ms = session, attachment, timeout_ms
        self.joining = False
        self._envelopes = {}

    # In

    def receive(self) -> bool:
        """Take what has arrived; false if that is nothing yet. Raises `Closed` at the end."""
        try:
            if self._handshake:
                assert isinstance(self.socket, ssl.SSLSocket)
                self.socket.do_handshake()
                self._handshake = False
            data = self.socket.recv(RECEIVE_BYTES)
            if isinstance(self.socket, ssl.SSLSocket):
                while self.socket.pending():
                    data += self.socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except (OSError, ssl.SSLError) as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("the client closed it")
        if self._begun:
            self._begun += data
            if len(self._begun) < self._needed:
                return True
            data = bytes(self._begun)
            self._begun = bytearray()
        self._in = self._in[self._position :] + data if self._in else data
        self._position = 0
        return True

    @property
    def beginning(self) -> bytes:
        """The first bytes that were not taken yet."""
        return self._in[self._position : self._position + 4]

    def next_frame(self, length_max: int) -> bytes | None:
        """The next complete frame, if it has arrived."""
        data, position = self._in, self._position
        left = len(data) - position
        self._needed = 4
        if left >= 4:
            length: int = unpack_int(data, position)[0]
            if length < 0 or length > length_max:
                raise Closed(f"a length of {length}, {length_max} is the limit")
            if left - 4 >= length:
                begin = position + 4
                self._position = begin + length
                self.received += 1
                return data[begin : self._position]
            self._needed = 4 + length
        if left:
            # Bytes that come one by one must not be copied again and again.
            self._begun += data[position:]
        self._in, self._position = b"", 0
        return None

    # Out

    def send(self, data: bytes) -> None:
        self._out += data
        self.sent += 1

    @property
    def clogged(self) -> bool:
        """Whether the client must fetch answers before it gets more."""
        return len(self._out) > UNSENT_BYTES_MAX

    @property
    def full(self) -> bool:
        """Whether the client must wait before it is listened to."""
        return self.clogged or self.outstanding + len(self.queue) >= REQUESTS_MAX

    def flush(self) -> None:
        """Send what the socket takes. Raises `Closed` if the connection is to end."""
        while self._out:
            try:
                count = self.socket.send(self._out)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except (OSError, ssl.SSLError) as error:
                raise Closed(str(error)) from error
            if count == len(self._out):
                self._out = bytearray()
            else:
                del self._out[:count]
        if len(self._out) > UNSENT_BYTES_CLOSED:
            raise Closed("the client does not fetch its answers")
        if self.last_words and not self._out:
            raise Closed("done")

    def interest(self) -> int | None:
        """What to wait for, if that has changed."""
        wanted = (0 if self.full or self.last_words else select.EPOLLIN) | (select.EPOLLOUT if self._out else 0)
        if wanted == self._interest:
            return None
        self._interest = wanted
        return wanted

    def close(self) -> None:
        self.closed = True
        self.queue.clear()
        self.socket.close()
