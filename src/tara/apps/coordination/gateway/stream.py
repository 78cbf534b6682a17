"""The socket of one client, with TLS or without. Nothing blocks.

TLS works on buffers of its own, so that every byte that a stranger sends before the handshake is over is counted.
"""

import contextlib
import socket
import ssl

from tara.apps.coordination import limits
from tara.apps.coordination.gateway.connection import Closed

#: Bytes that are encrypted at once; more are encrypted when these are sent.
ENCRYPTED_AT_ONCE = 64 << 10


class Stream:
    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None = None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self.descriptor = sock.fileno()
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        #: Encrypted, not sent yet.
        self._unsent = bytearray()
        if context is not None:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        #: The handshake is not over.
        self.greeting = context is not None
        self._greeting_bytes = 0

    def receive(self) -> bytes:
        """What has arrived; empty if that is nothing yet. Raises `Closed` at the end."""
        try:
            data = self._socket.recv(limits.RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("the client closed it")
        return data if self._tls is None else self._decrypt(self._tls, data)

    def _decrypt(self, tls: ssl.SSLObject, data: bytes) -> bytes:
        self._incoming.write(data)
        parts: list[bytes] = []
        try:
            if self.greeting:
                self._greeting_bytes += len(data)
                if self._greeting_bytes > limits.HANDSHAKE_BYTES_MAX:
                    raise Closed("too many bytes before the end of the handshake")
                tls.do_handshake()
                self.greeting = False
            while part := tls.read(limits.RECEIVE_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except (OSError, ssl.SSLError) as error:
            if not parts:
                raise Closed(str(error)) from error
        finally:
            # Also what a client is told that is refused, if it still listens. What it has sent is not lost if not.
            with contextlib.suppress(Closed):
                self._push()
        return b"".join(parts)

    def send(self, data: bytearray) -> None:
        """Send what the socket takes of it, and take that away."""
        if self._tls is None:
            self._write(data)
            return
        while self._push() and data and not self.greeting:
            with memoryview(data) as view:
                count = self._tls.write(view[:ENCRYPTED_AT_ONCE])
            del data[:count]

    @property
    def unsent(self) -> int:
        """Bytes that were taken to be sent, and are not yet."""
        return len(self._unsent)

    def _push(self) -> bool:
        """Send what is encrypted; whether all of it is gone."""
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
        self._write(self._unsent)
        return not self._unsent

    def _write(self, data: bytearray) -> None:
        while data:
            try:
                count = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise Closed(str(error)) from error
            del data[:count]

    def close(self) -> None:
        self._socket.close()
