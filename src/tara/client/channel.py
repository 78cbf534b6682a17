"""Channels: a client's connection to one front end, plain or encrypted.

A channel is lossy: what was sent may never arrive. One that is broken says so, and is replaced by its owner.
"""

from pathlib import Path
from typing import Protocol

import zmq

from tara.client.framing import Broken, FrameSocket, SpeaksZeroMQ
from tara.client.keys import Keys, load_keys
from tara.client.refusals import stop_watching, take_failures, watch_handshakes

#: More than any cluster's limit.
REPLY_BYTES_MAX = 1 << 30


class Channel(Protocol):
    #: It has to be replaced.
    broken: bool

    @property
    def pollable(self) -> "int | zmq.Socket[bytes]":
        """For a `zmq.Poller`, with `events`; on any news, `receive` is to be called."""

    @property
    def events(self) -> int: ...

    def send(self, message: bytes) -> None: ...

    def receive(self) -> list[bytes]: ...

    def refusal(self) -> str | None:
        """Why no connection came about, if that is known."""

    def close(self) -> None: ...


class Channels:
    """Opens channels; with the keys in a directory, if one is given."""

    def __init__(self, keys: str | Path | None) -> None:
        self._keys = None if keys is None else load_keys(keys)
        self._context = None if keys is None else zmq.Context()

    def open(self, address: str) -> Channel:
        if self._keys is None or self._context is None:
            return PlainChannel(address)
        return CurveChannel(self._context, address, self._keys)

    def close(self) -> None:
        """After the last channel."""
        if self._context is not None:
            self._context.destroy(0)


class PlainChannel:
    def __init__(self, address: str) -> None:
        self.broken = False
        self._refusal: str | None = None
        self._socket: FrameSocket | None = None
        self.pollable = -1
        try:
            self._socket = FrameSocket.connect(address, REPLY_BYTES_MAX)
            self.pollable = self._socket.fileno()
        except Broken as broken:
            self._break(broken)

    @property
    def events(self) -> int:
        waits = self._socket is not None and self._socket.waits_to_write
        return zmq.POLLIN | zmq.POLLOUT if waits else zmq.POLLIN

    def _break(self, broken: Broken) -> None:
        self.broken = True
        if isinstance(broken, SpeaksZeroMQ):
            self._refusal = "the other side requires keys"

    def send(self, message: bytes) -> None:
        if self._socket is not None and not self.broken:
            try:
                self._socket.send(message)
            except Broken as broken:
                self._break(broken)

    def receive(self) -> list[bytes]:
        if self._socket is None or self.broken:
            return []
        try:
            if self._socket.waits_to_write:
                self._socket.flush()
            return self._socket.receive()
        except Broken as broken:
            self._break(broken)
            return []

    def refusal(self) -> str | None:
        return self._refusal

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class CurveChannel:
    """ZeroMQ encrypts, connects again by itself, and keeps what it could not send yet."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys) -> None:
        self.broken = False
        self.events = zmq.POLLIN
        self.pollable = context.socket(zmq.DEALER)
        self.pollable.setsockopt(zmq.LINGER, 0)
        keys.secure_connecting(self.pollable)
        self._monitor = watch_handshakes(self.pollable)
        self.pollable.connect(address)

    def send(self, message: bytes) -> None:
        try:
            self.pollable.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return

    def receive(self) -> list[bytes]:
        messages: list[bytes] = []
        while len(messages) < 64:
            try:
                messages.append(self.pollable.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
        return messages

    def refusal(self) -> str | None:
        return next(reversed(take_failures(self._monitor, keyed=True)), None)

    def close(self) -> None:
        stop_watching(self.pollable, self._monitor)
        self.pollable.close(0)
