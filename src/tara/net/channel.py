"""Channels: a connection to a server, for whoever asks it something.

A channel is lossy: what was sent may never arrive. One that is broken says so, and is replaced by its owner; a
`SteadyChannel` replaces itself.
"""

import select
import time
from collections import deque
from pathlib import Path

from tara.net import bounds
from tara.net.certificates import Keys, load_keys
from tara.net.connection import Connection
from tara.net.errors import Broken, ConnectionRefused
from tara.net.names import AddressOf, Names, look_up

#: More than any cluster's limit.
REPLY_BYTES_MAX = 1 << 30
#: Before a broken connection is tried again.
RETRY_S = 0.05
REFUSED_RETRY_S = 1.0
#: How long one that has other things to do waits for a resolver; then it tries again.
_RESOLVER_WAIT_S = 1.0


class Channel:
    def __init__(
        self,
        address: str,
        keys: Keys | None,
        reply_bytes_max: int = REPLY_BYTES_MAX,
        address_of: AddressOf = look_up,
    ) -> None:
        #: It has to be replaced.
        self.broken = False
        #: Why the other side does not talk to us, or we not to it, if that is known.
        self.refusal: str | None = None
        self._connection: Connection | None = None
        try:
            make_tls = None if keys is None else keys.connecting
            self._connection = Connection.connect(address, reply_bytes_max, make_tls, address_of)
        except Broken as broken:
            self._break(broken)

    def fileno(self) -> int:
        """On any news, `receive` is to be called."""
        return -1 if self._connection is None else self._connection.fileno()

    @property
    def events(self) -> int:
        """What to wait for, as `select.poll` and `select.epoll` have it."""
        waits = self._connection is not None and self._connection.waits_to_write
        return select.POLLIN | select.POLLOUT if waits else select.POLLIN

    @property
    def open(self) -> bool:
        """Whether the connection has come about."""
        return self._connection is not None and self._connection.open and not self.broken

    def _break(self, broken: Broken) -> None:
        self.broken = True
        if isinstance(broken, ConnectionRefused):
            self.refusal = str(broken)

    def send(self, message: bytes) -> bool:
        """Whether it was taken."""
        if self._connection is None or self.broken:
            return False
        try:
            return self._connection.send(message)
        except Broken as broken:
            # There may be a word why.
            self._last_words()
            self._break(broken)
            return False

    def _last_words(self) -> None:
        assert self._connection is not None
        try:
            self._connection.receive()
        except Broken as broken:
            self._break(broken)

    def receive(self) -> list[bytes]:
        """The messages that have come. Does not wait."""
        if self._connection is None or self.broken:
            return []
        failure: Broken | None = None
        try:
            try:
                if self._connection.waits_to_write:
                    self._connection.flush()
            except Broken as broken:
                # What the other side said before it closed may tell why.
                failure = broken
            messages = self._connection.receive()
            if failure is not None and not messages:
                raise failure
            return messages
        except Broken as broken:
            self._break(broken)
            return []

    def wait(self, timeout_s: float) -> None:
        """For news, or for that time."""
        if self.broken:
            time.sleep(min(timeout_s, RETRY_S))
            return
        poller = select.poll()
        poller.register(self.fileno(), self.events)
        poller.poll(int(timeout_s * 1e3) + 1)

    def close(self, linger_s: float = 0.0) -> None:
        """With so much time for what was sent last to arrive."""
        if self._connection is None:
            return
        end_s = time.monotonic() + linger_s
        while linger_s and not self.broken and self._connection.unsent_bytes and time.monotonic() < end_s:
            self.wait(end_s - time.monotonic())
            self.receive()
        if linger_s and not self.broken:
            self._connection.finish()
            while not self._connection.discard() and time.monotonic() < end_s:
                self.wait(end_s - time.monotonic())
        self._connection.close()


class Channels:
    """Opens channels; with the keys in a directory, if one is given."""

    def __init__(self, keys: str | Path | None) -> None:
        self._keys = None if keys is None else load_keys(keys)
        self._names = Names(_RESOLVER_WAIT_S)

    def open(self, address: str) -> Channel:
        return Channel(address, self._keys, address_of=self._names.address_of)


class SteadyChannel:
    """Connects again by itself, and keeps what is sent meanwhile, up to a bound: the oldest is dropped first."""

    def __init__(self, address: str, keys: Keys | None, reply_bytes_max: int = REPLY_BYTES_MAX) -> None:
        self._address = address
        self._keys = keys
        self._reply_bytes_max = reply_bytes_max
        self._names = Names()
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._retry_s = 0.0
        #: Why the last connection did not come about, if that is known.
        self.refusal: str | None = None
        self._channel = self._open()

    def _open(self) -> Channel:
        return Channel(self._address, self._keys, self._reply_bytes_max, self._names.address_of)

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def open(self) -> bool:
        """Whether there is a connection."""
        return self._channel.open

    def send(self, message: bytes) -> None:
        self._kept.append(message)
        self._kept_bytes += len(message)
        while len(self._kept) > bounds.KEPT_MESSAGES_MAX or self._kept_bytes > bounds.CONTROL_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popleft())
        self._go_on()

    def receive(self) -> list[bytes]:
        """The messages that have come. Does not wait."""
        self._go_on()
        messages = self._channel.receive()
        self._go_on()
        return messages

    def wait(self, timeout_s: float) -> None:
        self._channel.wait(timeout_s)

    def _go_on(self) -> None:
        if self._channel.broken:
            now_s = time.monotonic()
            if not self._retry_s:
                self.refusal = self._channel.refusal
                self._retry_s = now_s + (REFUSED_RETRY_S if self.refusal else RETRY_S)
            if now_s < self._retry_s:
                return
            self._retry_s = 0.0
            self._channel.close()
            self._channel = self._open()
        while self._kept and self._channel.open and self._channel.send(self._kept[0]):
            self._kept_bytes -= len(self._kept.popleft())

    def close(self, linger_s: float = 0.0) -> None:
        """With so much time for what was sent last to arrive."""
        end_s = time.monotonic() + linger_s
        while self._kept and (left_s := end_s - time.monotonic()) > 0:
            self.wait(min(left_s, RETRY_S))
            self.receive()
        self._channel.close(max(end_s - time.monotonic(), 0.0) if linger_s else 0.0)
