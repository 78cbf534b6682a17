"""Frames in a stream of bytes: each is its length, four bytes, the lowest first, and then so many bytes. No I/O.

How a stream begins tells what the other side speaks. All messages are MessagePack arrays, so no frame of ours begins
like a TLS record, and a refusal, which is text behind a mark, cannot be taken for a message.
"""

import struct
import sys

from tara.net.errors import Broken

_LENGTH = struct.Struct("<I")
HEAD_BYTES = _LENGTH.size
#: A frame that is longer is put together once, at its end, from the pieces in which it came.
_LARGE_BYTES = 128 << 10
#: What comes in shorter pieces than that is gathered in pieces of that length, or a little more: each takes room.
_PIECE_BYTES = 16 << 10
#: Begins a frame in which whoever was connected to says why it does not talk.
REFUSAL_MARK = b"!"
_REFUSAL_BYTES_MAX = 200
#: Types of TLS records; the second byte of each record is 3.
_TLS_HANDSHAKE = 0x16
_TLS_RECORDS = range(0x14, 0x18)
#: What a port with keys answers to those who do not speak TLS: a fatal alert, handshake failure.
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"

head = _LENGTH.pack


def framed(frame: bytes) -> bytes:
    return _LENGTH.pack(len(frame)) + frame


def refusal(reason: str) -> bytes:
    """A frame that says why. As a whole, it never begins like a TLS record."""
    return framed(REFUSAL_MARK + reason.encode()[:_REFUSAL_BYTES_MAX].ljust(_TLS_RECORDS.stop))


def refusal_in(frame: bytes) -> str | None:
    return frame[1 : 1 + _REFUSAL_BYTES_MAX].decode(errors="replace").strip() if frame[:1] == REFUSAL_MARK else None


def begins_like_tls(data: bytes) -> bool:
    """Whether the first bytes from the other side are a TLS record."""
    return data[0] in _TLS_RECORDS and data[1:2] in (b"", b"\x03")


def begins_a_tls_client(data: bytes) -> bool:
    """Whether they are how a TLS client greets. A frame of that length would have to be no array."""
    return data[0] == _TLS_HANDSHAKE and data[1:2] == b"\x03" and data[5:7] == b"\x01\x00"


def begins_a_tls_alert(data: bytes) -> bool:
    """Whether a TLS server says that it does not understand us."""
    return data[0] == TLS_ALERT[0] and data[1:2] == b"\x03" and data[3:6] == TLS_ALERT[3:6]


class Splitter:
    """Takes a stream apart."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        #: The beginning of a frame, and how many bytes there have to be before it is worth looking at it again. However
        #: long a frame claims to be, it takes no more room than what has come of it.
        self._pieces: list[bytes | bytearray | memoryview] = []
        self.begun_bytes = 0
        self._needed = 0
        #: There are complete frames left: `feed` gives them without more data.
        self.unread = False

    @property
    def arriving_bytes(self) -> int:
        """The length of the frame that has begun to arrive; 0: none has."""
        return self._needed if self._pieces else 0

    def feed(self, data: bytes, frames_max: int = sys.maxsize) -> list[bytes]:
        """The frames that are complete now, but not more than that."""
        if not self._pieces:
            return self._split(data, frames_max)
        missing = self._needed - self.begun_bytes
        if len(data) < missing:
            self._keep(data)
            return []
        pieces, self._pieces, self.begun_bytes = self._pieces, [], 0
        if missing <= 0 or self._needed <= _LARGE_BYTES:
            return self._split(b"".join([*pieces, data]), frames_max)
        # Copied once. The first piece has the whole head, or its length would not be known.
        pieces[0] = memoryview(pieces[0])[HEAD_BYTES:]
        frame = b"".join([*pieces, memoryview(data)[:missing]])
        return [frame, *self._split(data[missing:], frames_max - 1)]

    def _keep(self, data: bytes) -> None:
        self.begun_bytes += len(data)
        last = self._pieces[-1]
        if len(data) >= _PIECE_BYTES:
            self._pieces.append(data)
        elif isinstance(last, bytearray) and len(last) < _PIECE_BYTES:
            last += data
        else:
            self._pieces.append(bytearray(data))

    def _split(self, data: bytes, frames_max: int) -> list[bytes]:
        frames: list[bytes] = []
        start, end = 0, len(data)
        needed = HEAD_BYTES
        while end - start >= HEAD_BYTES:
            (length,) = _LENGTH.unpack_from(data, start)
            needed = HEAD_BYTES + length
            if end - start < needed or len(frames) >= frames_max:
                break
            start += needed
            frames.append(data[start - length : start])
            needed = HEAD_BYTES
        if start < end:
            if needed > HEAD_BYTES + self._frame_bytes_max:
                raise Broken(f"a frame of {needed - HEAD_BYTES} bytes")
            self._pieces, self.begun_bytes, self._needed = [data[start:]], end - start, needed
        self.unread = end - start >= needed
        return frames
