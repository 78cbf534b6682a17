"""One client's connection at a front end: bytes in, frames out of it; answers in, bytes out of it. No socket."""

from collections import deque
from collections.abc import Iterator

from tara.apps.coordination import limits
from tara.apps.coordination.acl import Ids
from tara.apps.coordination.commands import ORDERED, encode_ids, envelope
from tara.apps.coordination.jute import unpack_int


class Closed(Exception):
    """The connection has ended, or must."""


class Connection:
    """States: new (session 0, not joining), joining (its session is on the way), open (it has a session)."""

    def __init__(self, address: str, port: int, now_s: float) -> None:
        self.address = address
        self.port = port
        self.opened_s = now_s
        self.session = 0
        self.attachment = 0
        self.timeout_ms = 0
        #: The handshake of TLS is not over.
        self.greeting = False
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
        #: Bytes of requests that wait, or whose results are not here yet.
        self.request_bytes = 0
        #: Pings without an answer.
        self.pings = 0
        #: A request that takes more than one turn: xid, and what is left to do.
        self.task: tuple[int, Iterator[None]] | None = None
        self.received = 0
        self.sent = 0
        self._in = b""
        self._position = 0
        #: The beginning of a frame, and how many bytes there have to be before it is worth looking at it again.
        self._begun = bytearray()
        self._needed = 0
        #: The length of the frame that has begun to arrive; 0 if that is not known.
        self.awaited = 0
        #: It needs room of its own, and there is none now (`uploads.py`).
        self.uploads = False
        self.waits_for_room = False
        #: Frames have arrived that were not looked at: it was full, or the turn was over.
        self.held = False
        #: Answers that are not sent yet; whoever sends them takes them away.
        self.out = bytearray()
        #: Bytes that were taken away from there, and are not sent yet: those that are encrypted.
        self.encrypted = 0
        #: What it counted for when it was last looked at (`pressure.py`).
        self.weighed = 0
        self.weighed_out = 0
        #: When it last sent something, and when something was last sent to it, or there was nothing to send.
        self.heard_s = self.moved_s = now_s
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

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._begun:
            self._begun += data
            if len(self._begun) < self._needed:
                return
            data = bytes(self._begun)
            self._begun = bytearray()
        self._in = self._in[self._position :] + data if self._in else data
        self._position = 0

    @property
    def beginning(self) -> bytes:
        """The first bytes that were not taken yet."""
        return self._in[self._position : self._position + 4]

    def next_frame(self, length_max: int) -> bytes | None:
        """The next complete frame, if it has arrived."""
        if self._begun:
            return None
        data, position = self._in, self._position
        left = len(data) - position
        self._needed = 4
        self.awaited = 0
        if left >= 4:
            length: int = unpack_int(data, position)[0]
            if length < 0 or length > length_max:
                raise Closed(f"a length of {length}, {length_max} is the limit")
            if left - 4 >= length:
                begin = position + 4
                end = begin + length
                self.received += 1
                if end == len(data):
                    self._in, self._position = b"", 0
                else:
                    self._position = end
                return data[begin:end]
            self._needed = 4 + length
            self.awaited = length
        if left:
            # Bytes that come one by one must not be copied again and again.
            self._begun += data[position:]
        self._in, self._position = b"", 0
        return None

    @property
    def has_more(self) -> bool:
        """Whether something has arrived that was not looked at."""
        return bool(self._in)

    def send(self, data: bytes) -> None:
        self.out += data
        self.sent += 1

    @property
    def clogged(self) -> bool:
        """Whether the client must fetch answers before it gets more."""
        return len(self.out) > limits.UNSENT_BYTES_MAX

    @property
    def full(self) -> bool:
        """Whether the client must wait before it is listened to."""
        return (
            self.outstanding + len(self.queue) + self.pings >= limits.REQUESTS_MAX
            or self.request_bytes >= limits.REQUEST_BYTES_MAX
            or len(self.out) + self.encrypted > limits.UNSENT_BYTES_MAX
        )

    @property
    def ready(self) -> bool:
        """Whether something that waits can be dealt with now."""
        if not (self.held or self.queue or self.task) or self.clogged or self.last_words or self.closed:
            return False
        if self.task is not None:
            return True
        if self.queue:
            return not self.outstanding or self.queue[0][1] in ORDERED
        return self.held and not self.full

    @property
    def readable(self) -> bool:
        """Whether more may be read from it."""
        return not (self.full or self.held or self.last_words or self.waits_for_room)

    @property
    def unsent(self) -> int:
        """Bytes of answers that wait for the client to fetch them."""
        return len(self.out) + self.encrypted

    @property
    def weight(self) -> int:
        """Bytes that are held for it; a long request that arrives is counted where it has its room."""
        arrived = len(self._in) - self._position if self.held else min(len(self._begun), limits.UPLOAD_BYTES_FREE)
        return self.unsent + self.request_bytes + arrived

    def stalls(self, now_s: float, patience_s: float) -> bool:
        """Whether its client does not move: does not fetch what is there, or does not end what it has begun."""
        if self.out or self.encrypted:
            return now_s - self.moved_s >= patience_s
        return not (self.outstanding or self.queue) and bool(self._begun) and now_s - self.heard_s >= patience_s

    def close(self) -> None:
        self.closed = True
        self.queue.clear()
        self.task = None
