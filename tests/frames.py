"""Frames from outside: what a stranger can send to a port."""

import socket
import struct
from types import TracebackType


class Frames:
    """A blocking connection that sends and receives frames."""

    def __init__(self, address: str, timeout_s: float = 10.0) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(frame)) + frame)

    def receive(self) -> bytes:
        (length,) = struct.unpack("<I", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError(f"{len(data)} of {count} bytes")
            data += more
        return data

    def __enter__(self) -> "Frames":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.socket.close()
