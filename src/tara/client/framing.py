"""Frames over TCP: each is its length, four bytes, the lowest first, and then so many bytes.

A `FrameSocket` never waits: what the network does not take is kept, up to a bound, and what has arrived of a frame is
kept until the rest is there. Whoever owns it waits for its descriptor.
"""

import errno
import os
import socket
import struct
from collections import deque

from tara.protocol.errors import TaraError

#: Frames and bytes that may wait for a slow reader.
QUEUED_FRAMES_MAX = 10_000
QUEUED_BYTES_MAX = 256 << 20
#: Bytes that are read at once.
READ_BYTES = 256 << 10
#: How long what was sent may stay unconfirmed before the connection counts as broken.
UNCONFIRMED_MS_MAX = 5_000
#: After so much silence the other side's host is asked whether it still knows the connection.
SILENT_S_MAX = 30

_LENGTH = struct.Struct("<I")
#: How a ZeroMQ connection begins. No frame of ours does: it would be an empty message of 255 bytes.
_ZEROMQ_GREETING = b"\xff\x00\x00\x00\x00"


class Broken(TaraError):
    """The connection is gone, or has to be given up."""


class Closed(Broken):
    """The other side has ended it."""


class SpeaksZeroMQ(Broken):
    """The other side has keys: it encrypts with ZeroMQ."""


class FrameSocket:
    def __init__(self, connection: socket.socket, frame_bytes_max: int, connected: bool = True) -> None:
        self._socket = connection
        self._frame_bytes_max = frame_bytes_max
        self._connected = connected
        #: What the network did not take, and how many bytes that is.
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        #: The beginning of a frame, and how many bytes there have to be before it is worth looking at it again.
        self._begun = bytearray()
        self._needed = 0
        self._any_frame = False
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Where the system has them: clients run on others than Linux, too.
        for option, value in (("TCP_USER_TIMEOUT", UNCONFIRMED_MS_MAX), ("TCP_KEEPIDLE", SILENT_S_MAX)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    @classmethod
    def connect(cls, address: str, frame_bytes_max: int) -> "FrameSocket":
        """To `tcp://host:port`. Whether it comes about shows when the socket becomes writable; see `flush`."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        connection = cls(socket.socket(), frame_bytes_max, connected=False)
        try:
            failure = connection._socket.connect_ex((host, int(port)))
        except (OSError, ValueError, OverflowError) as error:
            # No route, or an address that makes no sense.
            connection.close()
            raise Broken(f"{address}: {error}") from error
        if failure not in (0, errno.EINPROGRESS):
            connection.close()
            raise Broken(f"{address}: {os.strerror(failure)}")
        return connection

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waits_to_write(self) -> bool:
        """Whether the owner should call `flush` when the socket is writable."""
        return bool(self._waiting) or not self._connected

    @property
    def kept_bytes(self) -> int:
        """What it takes here: the beginning of a frame, and what waits for the other side to read."""
        return len(self._begun) + self._waiting_bytes

    def send(self, frame: bytes) -> bool:
        """Whether there was room for it. It may get lost all the same."""
        data = _LENGTH.pack(len(frame)) + frame
        if self._waiting or not self._connected:
            return self._keep(memoryview(data))
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise Broken(str(error)) from error
        if sent < len(data) and not self._keep(memoryview(data)[sent:]):
            # Nothing waits before it, so it is longer than everything that may wait.
            raise Broken(f"a frame of {len(frame)} bytes does not fit the queue")
        return True

    def _keep(self, data: memoryview) -> bool:
        if len(self._waiting) >= QUEUED_FRAMES_MAX or self._waiting_bytes + len(data) > QUEUED_BYTES_MAX:
            return False
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        return True

    def flush(self) -> None:
        """The socket is writable: it is connected now, or takes more."""
        if not self._connected:
            failure = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure:
                raise Broken(os.strerror(failure))
            self._connected = True
        try:
            while self._waiting:
                data = self._waiting[0]
                sent = self._socket.send(data)
                self._waiting_bytes -= sent
                if sent < len(data):
                    self._waiting[0] = data[sent:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            raise Broken(str(error)) from error

    def receive(self) -> list[bytes]:
        """The frames that are complete now."""
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError as error:
            raise Closed(str(error)) from error
        except OSError as error:
            raise Broken(str(error)) from error
        if not data:
            raise Closed("the other side closed the connection")
        if self._begun:
            self._begun += data
            if len(self._begun) < self._needed:
                return []
            data = bytes(self._begun)
            self._begun = bytearray()
        return self._split(data)

    def _split(self, data: bytes) -> list[bytes]:
        frames: list[bytes] = []
        start, end, head = 0, len(data), _LENGTH.size
        needed = head
        while end - start >= head:
            (length,) = _LENGTH.unpack_from(data, start)
            needed = head + length
            if end - start < needed:
                break
            start += needed
            frames.append(data[start - length : start])
            needed = head
        if start < end:
            if needed > head + self._frame_bytes_max:
                raise Broken(f"a frame of {needed - head} bytes")
            if not frames and not self._any_frame and data.startswith(_ZEROMQ_GREETING):
                raise SpeaksZeroMQ("a connection with keys")
            self._begun += data[start:]
            self._needed = needed
        self._any_frame = True
        return frames

    def close(self) -> None:
        self._socket.close()
