"""A connection over which frames travel: TCP, plain or with TLS.

It never waits: what the network does not take is kept, up to a bound, and what has arrived of a frame is kept until the
rest is there. Whoever owns it waits for its descriptor: to read, and, while `waits_to_write`, to write.
"""

import contextlib
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from itertools import islice

from tara.net import bounds
from tara.net.errors import HAS_NO_KEYS, REQUIRES_KEYS, Broken, Closed, ConnectionRefused
from tara.net.framing import (
    HEAD_BYTES,
    Splitter,
    begins_a_tls_alert,
    begins_a_tls_client,
    head,
    refusal,
    refusal_in,
)
from tara.net.names import AddressOf, look_up
from tara.net.principal import NOBODY, Principal
from tara.net.tls import Tls

#: Bytes that are read at once: of a frame of which much is there; else, so that nobody takes the turn of others with
#: many small frames; and during a handshake.
LARGE_READ_BYTES = 256 << 10
READ_BYTES = 64 << 10
_HANDSHAKE_READ_BYTES = 16 << 10
#: How long what was sent may stay unconfirmed before the connection counts as broken.
UNCONFIRMED_MS_MAX = 5_000
#: After so much silence the other side's host is asked whether it still knows the connection.
SILENT_S_MAX = 30
#: A longer frame is not copied behind its length, but written beside it.
_COPIED_BYTES_MAX = 32 << 10
#: Pieces that are written at once.
_WRITTEN_AT_ONCE = 64

_CLOSED = "the other side closed the connection"


class Connection:
    def __init__(
        self,
        sock: socket.socket,
        frame_bytes_max: int,
        make_tls: Callable[[], Tls] | None = None,
        initiator: bool = False,
    ) -> None:
        """`make_tls` is called when there is a handshake to begin: who says nothing costs little."""
        self._socket = sock
        self._frames = Splitter(frame_bytes_max)
        self._make_tls = make_tls
        self._tls: Tls | None = None
        self._initiator = initiator
        self._connected = not initiator
        #: Frames can go out, and come in.
        self.open = self._connected and make_tls is None
        #: No frame has come from the other side yet.
        self._fresh = True
        self._handshake_bytes = 0
        #: How many frames `receive` gives at most.
        self.frames_max = sys.maxsize
        #: Frames that are sent before it is open.
        self._early: list[bytes] = []
        #: What the network did not take.
        self._waiting: deque[memoryview] = deque()
        #: Bytes that wait here, early ones included.
        self.unsent_bytes = 0
        self.unsent_frames_max = bounds.UNREAD_FRAMES_MAX
        self.unsent_bytes_max = bounds.UNREAD_BYTES_MAX
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Where the system has them: clients run on others than Linux, too.
        for option, value in (("TCP_USER_TIMEOUT", UNCONFIRMED_MS_MAX), ("TCP_KEEPIDLE", SILENT_S_MAX)):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    @classmethod
    def connect(
        cls,
        address: str,
        frame_bytes_max: int,
        make_tls: Callable[[], Tls] | None = None,
        address_of: AddressOf = look_up,
    ) -> "Connection":
        """To `tcp://host:port`. Whether it comes about shows when the socket becomes writable; see `flush`. Who may not
        wait for a resolver has an `address_of` that does not (`tara.net.names`)."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        numeric = address_of(host)
        connection = cls(socket.socket(), frame_bytes_max, make_tls, initiator=True)
        try:
            failure = connection._socket.connect_ex((numeric, int(port)))
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

    def limit_kernel_queue(self, bytes_max: int) -> None:
        """The kernel takes no more than that before it has sent it."""
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, bytes_max)

    @property
    def principal(self) -> Principal:
        return NOBODY if self._tls is None else self._tls.principal

    @property
    def waits_to_write(self) -> bool:
        """Whether the owner should call `flush` when the socket is writable."""
        return bool(self._waiting) or not self._connected

    @property
    def kept_bytes(self) -> int:
        """What it takes here: the beginning of a frame, and what waits for the other side to read."""
        return self._frames.begun_bytes + self.unsent_bytes

    @property
    def begun_bytes(self) -> int:
        """What is there of a frame that has begun to arrive."""
        return self._frames.begun_bytes

    @property
    def unread(self) -> bool:
        """Whether there are complete frames here: `receive` gives them without any news."""
        return self._frames.unread

    @property
    def arriving_bytes(self) -> int:
        """The length of the frame that has begun to arrive; 0: none has."""
        return self._frames.arriving_bytes

    def send(self, frame: bytes) -> bool:
        """Whether there was room for it. It may get lost all the same."""
        size = HEAD_BYTES + len(frame)
        if self.unsent_bytes and (
            self.unsent_bytes + size > self.unsent_bytes_max
            or len(self._waiting) + len(self._early) >= self.unsent_frames_max
        ):
            return False
        if not self.open:
            self._early.append(head(len(frame)) + frame)
            self.unsent_bytes += size
        elif size <= _COPIED_BYTES_MAX:
            data = head(len(frame)) + frame
            self._write(data if self._tls is None else self._tls.encrypt_short(data))
        elif self._tls is None:
            self._write(head(len(frame)), frame)
        else:
            self._write(*self._tls.encrypt(head(len(frame)), frame))
        return True

    def _write(self, *pieces: bytes) -> None:
        """Now, as far as the network takes it."""
        sent = 0
        if not self._waiting and self._connected:
            try:
                sent = (
                    self._socket.send(pieces[0])
                    if len(pieces) == 1
                    else self._socket.sendmsg(pieces[:_WRITTEN_AT_ONCE])
                )
            except BlockingIOError:
                pass
            except OSError as error:
                raise Broken(str(error)) from error
            if sent == len(pieces[0]) and len(pieces) == 1:
                return
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
                continue
            self._waiting.append(memoryview(piece)[sent:])
            self.unsent_bytes += len(piece) - sent
            sent = 0

    def flush(self) -> None:
        """The socket is writable: it is connected now, or takes more."""
        if not self._connected:
            failure = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure:
                raise Broken(os.strerror(failure))
            self._connected = True
            if self._make_tls is None:
                self._become_open()
            else:
                self._shake(b"")
        waiting = self._waiting
        try:
            while waiting:
                if len(waiting) == 1:
                    sent = self._socket.send(waiting[0])
                else:
                    sent = self._socket.sendmsg(list(islice(waiting, _WRITTEN_AT_ONCE)))
                self.unsent_bytes -= sent
                while waiting and sent >= len(waiting[0]):
                    sent -= len(waiting.popleft())
                if sent:
                    waiting[0] = waiting[0][sent:]
        except BlockingIOError:
            return
        except OSError as error:
            raise Broken(str(error)) from error

    def _become_open(self) -> None:
        self.open = True
        early = self._early
        self._early = []
        self.unsent_bytes -= sum(map(len, early))
        if early:
            self._write(*([b"".join(early)] if self._tls is None else self._tls.encrypt(*early)))

    def receive(self) -> list[bytes]:
        """The frames that are complete now."""
        if not self.open:
            return self._receive_early()
        if self._frames.unread:
            return self._frames.feed(b"", self.frames_max)
        data = self._read(LARGE_READ_BYTES if self._frames.begun_bytes >= READ_BYTES else READ_BYTES)
        if not data:
            return []
        if self._tls is not None:
            data = self._tls.decrypt(data)
        if self._fresh and data:
            return self._first(data)
        return self._frames.feed(data, self.frames_max)

    def _read(self, bytes_max: int) -> bytes:
        try:
            data = self._socket.recv(bytes_max)
        except BlockingIOError:
            return b""
        except ConnectionResetError as error:
            raise Closed(str(error)) from error
        except OSError as error:
            raise Broken(str(error)) from error
        if not data:
            raise Closed(_CLOSED)
        return data

    def _receive_early(self) -> list[bytes]:
        """Before it is open."""
        if not self._connected:
            self.flush()
            return []
        data = self._read(_HANDSHAKE_READ_BYTES)
        if not data:
            return []
        self._handshake_bytes += len(data)
        if self._handshake_bytes > bounds.HANDSHAKE_BYTES_MAX:
            raise ConnectionRefused(f"a handshake of more than {bounds.HANDSHAKE_BYTES_MAX} bytes")
        self._shake(data)
        if not self.open:
            return []
        # What came right behind the handshake.
        assert self._tls is not None
        data = self._tls.decrypt(b"")
        return self._first(data) if data else []

    def _shake(self, data: bytes) -> None:
        assert self._make_tls is not None
        if self._tls is None:
            self._tls = self._make_tls()
        try:
            self._tls.shake(data)
        except ConnectionRefused:
            with contextlib.suppress(Broken):
                self._write(self._tls.outgoing())
            raise
        if outgoing := self._tls.outgoing():
            self._write(outgoing)
        if self._tls.over:
            self._become_open()

    def _first(self, data: bytes) -> list[bytes]:
        """The first bytes of the other side tell what it is."""
        if self._tls is None and not self._frames.begun_bytes:
            if self._initiator and begins_a_tls_alert(data):
                raise ConnectionRefused(REQUIRES_KEYS)
            if not self._initiator and begins_a_tls_client(data):
                with contextlib.suppress(Broken):
                    self._write(refusal(HAS_NO_KEYS))
                raise ConnectionRefused("the other side uses keys, and here are none")
        frames = self._frames.feed(data, self.frames_max)
        # Who was connected to may say why it does not talk.
        self._fresh = self._initiator and not frames
        if self._initiator and frames and (reason := refusal_in(frames[0])) is not None:
            raise ConnectionRefused(reason)
        return frames

    def finish(self) -> None:
        """Say nothing more. What was sent still arrives, if `discard` is called until the other side is done."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def discard(self) -> bool:
        """Read and forget; whether the other side is done, too."""
        try:
            return not self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._socket.close()
