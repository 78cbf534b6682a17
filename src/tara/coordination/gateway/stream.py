"""The socket of one client, with TLS or without. Nothing blocks."""

import socket
import ssl

from tara.coordination.gateway.connection import Closed

RECEIVE_BYTES = 65_536


class Stream:
    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.descriptor = sock.fileno()
        self._handshake = isinstance(sock, ssl.SSLSocket)

    def receive(self) -> bytes:
        """What has arrived; empty if that is nothing yet. Raises `Closed` at the end."""
        try:
            if self._handshake:
                assert isinstance(self.socket, ssl.SSLSocket)
                self.socket.do_handshake()
                self._handshake = False
            data = self.socket.recv(RECEIVE_BYTES)
            if isinstance(self.socket, ssl.SSLSocket):
                while self.socket.pending():
                    data += self.socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except (OSError, ssl.SSLError) as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("the client closed it")
        return data

    def send(self, data: bytearray) -> None:
        """Send what the socket takes of it, and take that away."""
        while data:
            try:
                count = self.socket.send(data)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except (OSError, ssl.SSLError) as error:
                raise Closed(str(error)) from error
            del data[:count]

    def close(self) -> None:
        self.socket.close()
