"""The sockets of a front end: one port, its connections, and one epoll descriptor for all of them.

It decides nothing: what comes in goes to the `FrontEnd`, and what that has to send goes out.
"""

import errno
import os
import resource
import select
import socket
import ssl
import time
from collections import deque
from pathlib import Path

from tara.apps.coordination import limits
from tara.apps.coordination.gateway.allowance import Allowance
from tara.apps.coordination.gateway.connection import Closed, Connection
from tara.apps.coordination.gateway.front_end import FrontEnd
from tara.apps.coordination.gateway.stream import Stream
from tara.apps.coordination.settings import GatewaySettings
from tara.net.certificates import read_secret
from tara.net.gateway import GatewayHost
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.storage.disk import LOCAL
from tara.storage.files import DamagedFile, read_small, write_small

BIND_INTERVAL_S = 1.0
#: How often it is looked at whether those that may not be read may be again.
UNMUTE_INTERVAL_S = 0.005


class Client:
    """A connection and its socket."""

    __slots__ = ("connection", "interest", "stream")

    def __init__(self, connection: Connection, stream: Stream) -> None:
        self.connection = connection
        self.stream = stream
        self.interest = select.EPOLLIN


class Listener:
    def __init__(self, site: GatewayHost, settings: GatewaySettings, front_end: FrontEnd) -> None:
        self._site = site
        self._settings = settings
        self.front_end = front_end
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        self._tls = _tls_context(settings)
        self._bind_due_s = 0.0
        self._bind_error = ""
        #: Files and peers need descriptors, too.
        self._connections_max = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8 * 3, limits.CONNECTIONS_MAX)
        #: The listening socket is not looked at before this time.
        self._accept_due_s = 0.0
        self._clients: dict[int, Client] = {}
        self._by_connection: dict[Connection, Client] = {}
        #: Handshakes cost more than anything else that a stranger can ask for. Those whose turn has not come are not
        #: looked at; they wait here.
        self._allowance = Allowance(limits.HANDSHAKE_SHARE, limits.HANDSHAKE_SAVED_S)
        self._greeting: deque[Client] = deque()
        #: Clients that have sent something that may not be read now.
        self._muted: dict[Client, None] = {}
        self._unmute_due_s = 0.0
        #: Readable when there is something to do at once that no client has sent now.
        self._more = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._more, select.EPOLLIN)
        self._bind()

    def _bind(self) -> None:
        """Listen, or try again soon: the port may still be held by the process that was here before."""
        remembered = self._site.data_dir / f"gateway-{self._site.site}.port"
        port = self._settings.port + self._site.site if self._settings.port else self._remembered(remembered)
        try:
            listener = socket.create_server((self._site.host, port), backlog=1024, reuse_port=False)
        except OSError as error:
            self._bind_error = f"port {port or 'any'}: {error.strerror or error}"
            self._bind_due_s = time.monotonic() + BIND_INTERVAL_S
            return
        listener.setblocking(False)
        self.front_end.port = int(listener.getsockname()[1])
        if not self._settings.port:
            self._remember(remembered)
        self._listener, self._bind_error = listener, ""
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    def _remembered(self, path: Path) -> int:
        """The port that was written down; 0: any."""
        try:
            return int(read_small(path))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, DamagedFile) as error:
            self.front_end.fault = f"another port than before: {error}"
            return 0

    def _remember(self, path: Path) -> None:
        """Write the port down. If that fails, the gateway serves all the same; its next start may get another port."""
        try:
            LOCAL.make_directory(path.parent)
            write_small(path, str(self.front_end.port).encode())
        except OSError as error:
            self.front_end.fault = f"{path}: {error.strerror}"

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
        os.close(self._more)
        self._epoll.close()

    def receive(self) -> None:
        self.front_end.begin()
        for descriptor, events in self._epoll.poll(0, limits.READ_PER_TURN):
            client = self._clients.get(descriptor)
            if client is None:
                if descriptor == self._more:
                    os.eventfd_read(self._more)
                elif self._listener is not None and descriptor == self._listener.fileno():
                    self._accept(self._listener)
                continue
            if self.front_end.out_of_time:
                # It is told again in the next turn.
                continue
            try:
                if events & ~select.EPOLLOUT:
                    self._read(client, events)
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
        if self._accept_due_s and now_s >= self._accept_due_s:
            self._resume_accepting()
        if self._greeting:
            self._greet()
        if self._muted and now_s >= self._unmute_due_s:
            self._unmute_due_s = now_s + UNMUTE_INTERVAL_S
            self._unmute()
        self._flush()
        if self.front_end.busy:
            os.eventfd_write(self._more, 1)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(limits.ACCEPTED_PER_TURN):
            try:
                sock, (address, port, *_) = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause_accepting(error)
                    return
                if error.errno == errno.EAGAIN:
                    return
                # That one was gone before it was here.
                continue
            try:
                self._welcome(sock, address, port)
            except (OSError, ssl.SSLError):
                # A stranger that goes while it comes takes nobody along.
                self.front_end.ended_connections += 1
                sock.close()

    def _welcome(self, sock: socket.socket, address: str, port: int) -> None:
        stream = Stream(sock, self._tls)
        self._epoll.register(stream.descriptor, select.EPOLLIN)
        connection = None
        if len(self._clients) < self._connections_max:
            connection = self.front_end.admit(address, port, greeting=stream.greeting)
        if connection is None:
            stream.close()
            return
        client = Client(connection, stream)
        self._clients[stream.descriptor] = self._by_connection[connection] = client

    def _pause_accepting(self, error: OSError) -> None:
        """The socket stays readable as long as somebody waits there: to look at it again at once would be to spin."""
        self._bind_error = f"no connection can be taken: {error.strerror}"
        self._accept_due_s = time.monotonic() + limits.ACCEPT_PAUSE_S
        if self._listener is not None:
            self._epoll.unregister(self._listener.fileno())

    def _resume_accepting(self) -> None:
        self._accept_due_s, self._bind_error = 0.0, ""
        if self._listener is not None:
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def _read(self, client: Client, events: int) -> None:
        if client.connection.closed:
            return
        if not client.interest & select.EPOLLIN:
            # Nothing is read from it now, and that it is broken would be told again and again.
            raise Closed("the client broke it")
        if client.stream.greeting:
            self._greeting.append(client)
            self._watch_for(client, 0)
            self._greet()
            return
        if not (self.front_end.calm or self.front_end.may_read(client.connection)):
            # It stays readable: to look at it again at once would be to spin.
            self._muted[client] = None
            self._watch_for(client, client.interest & ~select.EPOLLIN)
            return
        data = client.stream.receive()
        if data:
            self.front_end.receive(client.connection, data)
        if self._tls is not None and client.stream.unsent:
            # TLS has answers of its own, which count like others.
            self.front_end.unsettled.add(client.connection)
        if self.front_end.pressure.high:
            # What can be sent now need not be held.
            self._flush()

    def _greet(self) -> None:
        """Go on with handshakes, as far as they may take the time."""
        while self._greeting:
            began_s = time.monotonic()
            if not self._allowance.has_some(began_s):
                return
            client = self._greeting.popleft()
            if client.connection.closed:
                continue
            try:
                data = client.stream.receive()
                client.connection.greeting = client.stream.greeting
                self._watch_for(client, select.EPOLLIN)
                if data:
                    self.front_end.receive(client.connection, data)
                self.front_end.unsettled.add(client.connection)
            except Exception as error:
                self.front_end.fail(client.connection, error)
            self._allowance.use(time.monotonic() - began_s)

    def _unmute(self) -> None:
        for client in list(self._muted):
            if client.connection.closed:
                del self._muted[client]
            elif self.front_end.may_read(client.connection):
                del self._muted[client]
                self.front_end.unsettled.add(client.connection)

    def _watch_for(self, client: Client, interest: int) -> None:
        if interest != client.interest:
            client.interest = interest
            self._epoll.modify(client.stream.descriptor, interest)

    def _flush(self) -> None:
        """Send what there is to send, and close what is to be closed."""
        front_end = self.front_end
        unsettled, front_end.unsettled = front_end.unsettled, set()
        for connection in unsettled:
            if connection.closed:
                continue
            client = self._by_connection[connection]
            try:
                before = len(connection.out) + client.stream.unsent
                client.stream.send(connection.out)
                unsent = client.stream.unsent
                if front_end.flushed(connection, len(connection.out) + unsent < before, unsent):
                    self._watch_for(client, self._interest(client))
            except Exception as error:
                front_end.fail(connection, error)
        if front_end.dropped:
            self._close_dropped()

    def _interest(self, client: Client) -> int:
        waits = client.connection.out or client.stream.unsent
        muted = client in self._muted or not client.connection.readable
        return (0 if muted else select.EPOLLIN) | (select.EPOLLOUT if waits else 0)

    def _close_dropped(self) -> None:
        dropped, self.front_end.dropped = self.front_end.dropped, []
        for connection in dropped:
            client = self._by_connection.pop(connection)
            del self._clients[client.stream.descriptor]
            self._epoll.unregister(client.stream.descriptor)
            client.stream.close()


def _tls_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    if not settings.tls_certificate:
        return None
    # Refused if others may read it.
    read_secret(Path(settings.tls_key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
        if settings.tls_authorities:
            context.load_verify_locations(settings.tls_authorities)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"gateway.tls_…: {error}") from error
    return context
