"""The sockets of a front end: one port, its connections, and one epoll descriptor for all of them.

It decides nothing: what comes in goes to the `FrontEnd`, and what that has to send goes out.
"""

import errno
import resource
import select
import socket
import ssl
import time
from pathlib import Path

from tara.coordination.gateway.connection import Closed, Connection
from tara.coordination.gateway.front_end import FrontEnd
from tara.coordination.gateway.stream import Stream
from tara.coordination.settings import GatewaySettings
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.transport.gateway import Site

#: Connections taken, and connections read, in one turn.
ACCEPTED_PER_TURN = 64
READ_PER_TURN = 256
BIND_INTERVAL_S = 1.0


class Client:
    """A connection and its socket."""

    __slots__ = ("connection", "interest", "stream")

    def __init__(self, connection: Connection, stream: Stream) -> None:
        self.connection = connection
        self.stream = stream
        self.interest = select.EPOLLIN


class Listener:
    def __init__(self, site: Site, settings: GatewaySettings, front_end: FrontEnd) -> None:
        self._site = site
        self._settings = settings
        self.front_end = front_end
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        self._tls = _tls_context(settings)
        self._bind_due_s = 0.0
        self._bind_error = ""
        #: Files and peers need descriptors, too.
        self._connections_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8 * 3
        self._clients: dict[int, Client] = {}
        self._by_connection: dict[Connection, Client] = {}
        self._bind()

    # The listening socket

    def _bind(self) -> None:
        """Listen, or try again soon: the port may still be held by the process that was here before."""
        remembered = self._site.data_dir / f"gateway-{self._site.site}.port"
        try:
            port = self._settings.port + self._site.site if self._settings.port else _remembered(remembered)
            listener = socket.create_server((self._site.host, port), backlog=1024, reuse_port=False)
        except OSError as error:
            self._bind_error = f"port {self._settings.port + self._site.site}: {error.strerror or error}"
            self._bind_due_s = time.monotonic() + BIND_INTERVAL_S
            return
        listener.setblocking(False)
        self.front_end.port = int(listener.getsockname()[1])
        if not self._settings.port:
            remembered.parent.mkdir(parents=True, exist_ok=True)
            remembered.write_text(str(self.front_end.port))
        self._listener, self._bind_error = listener, ""
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def status(self) -> dict[str, object]:
        front_end = self.front_end
        return {
            "address": f"{self._site.host}:{front_end.port}" if self._listener is not None else "",
            "serving": front_end.serving,
            "connections": len(self._clients),
            "sessions": len(front_end.service.sessions),
            "nodes": len(front_end.tree.nodes),
            "watches": len(front_end.watches),
            "stalls": front_end.sessions.stalls,
            "resets": front_end.resets,
            "ended_connections": front_end.ended_connections,
            "error": self._bind_error or front_end.fault,
        }

    def close(self) -> None:
        self.front_end.close()
        self._close_dropped()
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()

    # The turn of the container's loop

    def receive(self) -> None:
        if self.front_end.full:
            return
        for descriptor, events in self._epoll.poll(0, READ_PER_TURN):
            client = self._clients.get(descriptor)
            if client is None:
                if self._listener is not None and descriptor == self._listener.fileno():
                    self._accept(self._listener)
                continue
            try:
                if events & ~select.EPOLLOUT:
                    self._read(client)
                if events & select.EPOLLOUT:
                    self.front_end.unsettled.add(client.connection)
            except Exception as error:
                self.front_end.fail(client.connection, error)
        self.front_end.received_all()
        self._flush()

    def take(self, results: list[t.Result]) -> None:
        self.front_end.take(results)

    def respond(self, now_s: float) -> None:
        self.front_end.respond(now_s)
        if self._listener is None and now_s >= self._bind_due_s:
            self._bind()
        self._flush()

    # Inside

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                sock, (address, port, *_) = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._bind_error = "too many open files"
                return
            connection = None
            if len(self._clients) < self._connections_max:
                connection = self.front_end.admit(address, port)
            if connection is None:
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            client = Client(connection, Stream(sock))
            self._clients[client.stream.descriptor] = self._by_connection[connection] = client
            self._epoll.register(client.stream.descriptor, select.EPOLLIN)

    def _read(self, client: Client) -> None:
        data = client.stream.receive()
        if data:
            self.front_end.receive(client.connection, data)

    def _flush(self) -> None:
        """Send what there is to send, and close what is to be closed."""
        front_end = self.front_end
        unsettled, front_end.unsettled = front_end.unsettled, set()
        for connection in unsettled:
            if connection.closed:
                continue
            client = self._by_connection[connection]
            try:
                client.stream.send(connection.out)
            except Closed:
                front_end.drop(connection)
                continue
            if not front_end.flushed(connection):
                continue
            interest = (select.EPOLLIN if connection.readable else 0) | (select.EPOLLOUT if connection.out else 0)
            if interest != client.interest:
                client.interest = interest
                self._epoll.modify(client.stream.descriptor, interest)
        if front_end.dropped:
            self._close_dropped()

    def _close_dropped(self) -> None:
        dropped, self.front_end.dropped = self.front_end.dropped, []
        for connection in dropped:
            client = self._by_connection.pop(connection)
            del self._clients[client.stream.descriptor]
            self._epoll.unregister(client.stream.descriptor)
            client.stream.close()


def _remembered(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _tls_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    if not settings.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
        if settings.tls_authorities:
            context.load_verify_locations(settings.tls_authorities)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"gateway.tls_…: {error}") from error
    return context
