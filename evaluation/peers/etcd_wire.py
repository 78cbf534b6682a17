"""The client's side of etcd's protocol (gRPC over HTTP/2), as much of it as closed-loop puts need.

A request is two frames that differ only in the number of their stream; nothing is compressed, and the server is told
to compress nothing that would have to be remembered. An answer with a message is a good one: a failed call has none.
Reference: RFC 9113 (frames), RFC 7541 (header fields), "gRPC over HTTP2".
"""

import struct

from evaluation.peers.closed_loop import BrokenConnection, PeerError

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 0x1, 0x1, 0x4
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE = 1, 2, 4
_WINDOW_MAX = (1 << 31) - 1
_WINDOW_DEFAULT = (1 << 16) - 1
#: Of the server's window, what may be under way at once; it lets us have the rest again only now and then.
_UNDER_WAY_MAX = _WINDOW_DEFAULT // 2
_HEAD = struct.Struct(">HBBBI")
_STREAM = struct.Struct(">I")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def _text(value: str) -> bytes:
    """A string of a header field, up to 126 bytes, not compressed."""
    data = value.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data


def _header_block(authority: str, path: str) -> bytes:
    """Fields by their number in the static table, or by name; none is to be remembered."""
    return b"".join(
        (
            b"\x83",  # :method POST
            b"\x86",  # :scheme http
            b"\x04" + _text(path),
            b"\x01" + _text(authority),
            b"\x0f\x10" + _text("application/grpc"),  # content-type
            b"\x00" + _text("te") + _text("trailers"),
        )
    )


def _field(number: int, value: bytes) -> bytes:
    """A protocol-buffer field of bytes."""
    length, size = b"", len(value)
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def put_message(key: bytes, value: bytes) -> bytes:
    """A PutRequest, with the prefix that gRPC gives every message."""
    message = _field(1, key) + _field(2, value)
    return b"\0" + _STREAM.pack(len(message)) + message


class EtcdDialect:
    def __init__(self, authority: str, value: bytes, clients: int) -> None:
        """`clients`: how many will share the connection."""
        block = _header_block(authority, "/etcdserverpb.KV/Put")
        size = len(put_message(b"client/000000", value))
        if size * clients > _UNDER_WAY_MAX:
            raise PeerError(f"{clients} clients with {len(value)} bytes each do not fit a connection to etcd")
        self._value = value
        head = _frame(_HEADERS, _END_HEADERS, 0, block)
        data = _frame(_DATA, _END_STREAM, 0, bytes(size))
        # What is around the two stream numbers of a request.
        self._before = head[:5]
        self._between = head[9:] + data[:5]
        self._messages: dict[int, bytes] = {}
        self._stream = 1
        #: Whose request a stream is, and the newest stream of each client: answers to older ones count no more.
        self._waiting: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._answered: set[int] = set()
        self._buffer = b""
        self._urgent = b""
        self.ready = False

    def greeting(self) -> bytes:
        settings = b"".join(
            struct.pack(">HI", key, value)
            for key, value in ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, _WINDOW_MAX))
        )
        window = _frame(_WINDOW_UPDATE, 0, 0, _STREAM.pack(_WINDOW_MAX - _WINDOW_DEFAULT))
        return _PREFACE + _frame(_SETTINGS, 0, 0, settings) + window

    def request(self, client: int) -> bytes:
        message = self._messages.get(client)
        if message is None:
            message = self._messages[client] = put_message(b"client/%06d" % client, self._value)
        number = self._stream
        self._stream += 2
        self._waiting[number], self._newest[client] = client, number
        stream = _STREAM.pack(number)
        return b"".join((self._before, stream, self._between, stream, message))

    def take_urgent(self) -> bytes:
        urgent, self._urgent = self._urgent, b""
        return urgent

    def feed(self, data: bytes) -> list[tuple[int, bool]]:
        if self._buffer:
            data = self._buffer + data
        done: list[tuple[int, bool]] = []
        offset, end, answered = 0, len(data), self._answered
        while offset + 9 <= end:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, offset)
            following = offset + 9 + (high << 8 | low)
            if following > end:
                break
            if kind == _DATA:
                answered.add(stream)
            elif (kind == _HEADERS and flags & _END_STREAM) or kind == _RST_STREAM:
                good = stream in answered and kind == _HEADERS
                answered.discard(stream)
                client = self._waiting.pop(stream, None)
                if client is not None and self._newest[client] == stream:
                    done.append((client, good))
            elif kind in (_SETTINGS, _PING):
                self._acknowledge(kind, flags, data[offset + 9 : following])
            elif kind == _GOAWAY:
                raise BrokenConnection("the server goes away")
            offset = following
        self._buffer = data[offset:]
        return done

    def _acknowledge(self, kind: int, flags: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        self._urgent += _frame(kind, _ACK, 0, payload if kind == _PING else b"")
        self.ready = True
