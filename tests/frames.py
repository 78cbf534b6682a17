"""Frames from outside: what a stranger can send to a port."""

import socket
import struct
from types import TracebackType

from tests.patience import DEADLINE_S


class Frames:
    """A blocking connection that sends and receives frames."""

    def __init__(self, address: str, timeout_s: float = DEADLINE_S) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._read = b""

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(frame)) + frame)

    def receive(self) -> bytes:
        """The next frame. After a `TimeoutError` one may go on."""
        self._at_least(4)
        (length,) = struct.unpack("<I", self._read[:4])
        self._at_least(4 + length)
        frame, self._read = self._read[4 : 4 + length], self._read[4 + length :]
        return frame

    def _at_least(self, count: int) -> None:
        while len(self._read) < count:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError(f"{len(self._read)} of {count} bytes")
            self._read += more

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Frames":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.socket.close()
