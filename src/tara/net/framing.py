"""Frames in a stream of bytes: each is its length, four bytes, the lowest first, and then so many bytes. No I/O.

How a stream begins tells what the other side speaks. All messages are MessagePack arrays, so no frame of ours begins
like a TLS record, and a refusal, which is text behind a mark, cannot be taken for a message.
"""

import struct
import sys

from tara.net.errors import Broken

_LENGTH = struct.Struct("<I")
HEAD_BYTES = _LENGTH.size
#: A frame that is longer gets room for all of it when it begins: to grow step by step costs more.
_LARGE_BYTES = 128 << 10
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
        #: The beginning of a frame, and how many bytes there have to be before it is worth looking at it again.
        self._begun = bytearray()
        self._needed = 0
        #: Of a large one: room for all of it, of which the system gives only what is used, and how much that is.
        self._large: bytearray | None = None
        self._filled = 0
        #: There are complete frames left: `feed` gives them without more data.
        self.unread = False

    @property
    def begun_bytes(self) -> int:
        return len(self._begun) if self._large is None else self._filled

    @property
    def arriving_bytes(self) -> int:
        """The length of the frame that has begun to arrive; 0: none has."""
        return self._needed if self._begun or self._large is not None else 0

    def feed(self, data: bytes, frames_max: int = sys.maxsize) -> list[bytes]:
        """The frames that are complete now, but not more than that."""
        if self._large is not None:
            return self._fill(self._large, data, frames_max)
        if self._begun:
            self._begun += data
            if len(self._begun) < self._needed:
                return []
            data = bytes(self._begun)
            self._begun = bytearray()
        return self._split(data, frames_max)

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
            self._begin(data[start:], needed)
        self.unread = end - start >= needed
        return frames

    def _begin(self, data: bytes, needed: int) -> None:
        self._needed = needed
        if needed > _LARGE_BYTES and needed > len(data):
            self._large = bytearray(needed)
            self._large[: len(data)] = data
            self._filled = len(data)
        else:
            self._begun += data

    def _fill(self, large: bytearray, data: bytes, frames_max: int) -> list[bytes]:
        taken = min(len(data), self._needed - self._filled)
        large[self._filled : self._filled + taken] = memoryview(data)[:taken]
        self._filled += taken
        if self._filled < self._needed:
            return []
        frame = bytes(memoryview(large)[HEAD_BYTES:])
        self._large = None
        if taken == len(data):
            return [frame]
        return [frame, *self._split(data[taken:], frames_max - 1)]
