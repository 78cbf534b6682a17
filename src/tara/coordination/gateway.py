"""The front end: ZooKeeper's wire protocol on one side, one replica of the service on the other.

It lives in its site's container and is driven by the container's loop (`tara.transport.gateway`). Writes are ordered,
through one channel; reads are answered from the replica that is here, between two steps of it, so that each sees one
state. Requests of a connection are answered in their order: a read waits for the writes before it.

What a replica does is heard in its order (`service.Observer`), together with the results: before a client gets an
answer of the state at some zxid, it has been sent every watch event up to that zxid.

A ping is answered when the session has been renewed by an ordered command, not before: a client that still gets answers
has a session that lives. A front end whose commands are not executed for some time, because its site is cut off or the
service stands still, closes its connections.
"""

import errno
import os
import resource
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec

from tara.coordination import commands, reads, words
from tara.coordination.acl import OPEN, digest_id, permits
from tara.coordination.codes import READ, Code, Event, Op, Refusal
from tara.coordination.connection import Closed, Connection
from tara.coordination.jute import (
    FRAMED_REPLY_HEADER,
    Acl,
    JuteError,
    Reader,
    pack_buffer,
    pack_int,
    pack_long,
    pack_text,
)
from tara.coordination.service import CoordinationService
from tara.coordination.settings import GatewaySettings, check_exposure, gateway_settings
from tara.coordination.tree import Change
from tara.coordination.watches import REMOVABLE, Kind, Watches
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.transport.gateway import Channel, Options, Site

NOTIFICATION_XID = -1
PING_XID = -2
SYNC_CONNECTED = 3
#: The header of a reply whose body begins with the error code: length, xid, zxid.
_HEADER = FRAMED_REPLY_HEADER
_EVENT_HEADER = _HEADER.pack

#: Sessions are renewed at most so often, and time is let pass at least so often.
TOUCH_INTERVAL_S = 0.2
TIME_INTERVAL_S = 0.5
#: Sessions in one such command, which must not become too long; the others come with the next one.
TOUCHED_MAX = 50_000
#: Connections taken, and connections read, in one turn.
ACCEPTED_PER_TURN = 64
READ_PER_TURN = 256
#: Bytes of writes that wait for their turn; then no connection is read.
WAITING_BYTES_MAX = 64 << 20
BIND_INTERVAL_S = 1.0
#: A connection without a session is closed after this time. How often that is looked at.
SESSIONLESS_S = 30.0
SESSIONLESS_INTERVAL_S = 1.0

#: Requests that are ordered; their bodies are read by the replicas.
WRITES = frozenset(
    (
        Op.CREATE,
        Op.CREATE2,
        Op.CREATE_CONTAINER,
        Op.CREATE_TTL,
        Op.DELETE,
        Op.SET_DATA,
        Op.SET_ACL,
        Op.CHECK,
        Op.MULTI,
        Op.SYNC,
        Op.CLOSE_SESSION,
    )
)
#: Errors after which a connection is of no use.
_FATAL = frozenset((Code.MARSHALLING_ERROR, Code.SESSION_EXPIRED, Code.SESSION_MOVED))

#: What is to be done with the result of an ordered command.
Token = Callable[[t.Result], None]


class Write:
    """The token of a client's write: plain data, because there are many."""

    __slots__ = ("connection", "op", "sent_s", "xid")

    def __init__(self, connection: Connection, xid: int, op: int, sent_s: float) -> None:
        self.connection = connection
        self.xid = xid
        self.op = op
        self.sent_s = sent_s


def make_gateway(site: Site, options: Options) -> "ZooKeeperGateway":
    settings = gateway_settings(options)
    check_exposure(site.host, settings)
    return ZooKeeperGateway(site, settings)


class ZooKeeperGateway:
    def __init__(self, site: Site, settings: GatewaySettings) -> None:
        application = site.application
        if not isinstance(application, CoordinationService):
            raise ConfigurationError("this gateway serves the coordination service only")
        self._site = site
        self.settings = settings
        self.service = application
        self.service.observer = self
        self.tree = application.tree
        self._channel: Channel[Write | Token] = Channel(site, self._on_lost)
        #: A command is the request and its envelope.
        self._payload_max = site.limits.command_bytes_max
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        self._tls = _tls_context(settings)
        self._bind_due_s = 0.0
        self._sessionless_due_s = 0.0
        #: Files and peers need descriptors, too.
        self._connections_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8 * 3
        self.connections: dict[int, Connection] = {}
        self._by_session: dict[int, Connection] = {}
        self._by_address: dict[str, int] = {}
        self.watches: Watches[Connection] = Watches()
        self._results: deque[t.Result] = deque()
        #: What the replica did since the last turn: the zxid, and what follows from it here.
        self._happened: deque[tuple[int, Callable[[], None]]] = deque()
        #: Connections whose waiting requests may move on: a result has come, or answers have been fetched.
        self._waiting: dict[Connection, None] = {}
        self._changed: set[Connection] = set()
        self._heard: dict[int, None] = {}
        self._pinging: list[Connection] = []
        self._touch_sent_s: float | None = None
        self._touch_due_s = 0.0
        self._collect_due_s = time.monotonic() + settings.collect_interval_ms / 1e3
        #: Its commands do not come back: nobody is served.
        self.stalled = False
        #: How often that has happened, and how often the channel had to begin anew.
        self.stalls = 0
        self.resets = 0
        #: Connections that ended, by what their clients sent or by themselves.
        self.ended_connections = 0
        self.started_s = time.monotonic()
        self.received = 0
        self.sent = 0
        self.latencies = words.Latencies()
        self.bind_error = ""
        #: The last error here that should not have been.
        self.fault = ""
        self._bind()

    # The listening socket

    def _bind(self) -> None:
        """Listen, or try again soon: the port may still be held by the process that was here before."""
        remembered = self._site.data_dir / f"gateway-{self._site.site}.port"
        try:
            port = self.settings.port + self._site.site if self.settings.port else _remembered(remembered)
            listener = socket.create_server((self._site.host, port), backlog=1024, reuse_port=False)
        except OSError as error:
            self.bind_error = f"port {self.settings.port + self._site.site}: {error.strerror or error}"
            self._bind_due_s = time.monotonic() + BIND_INTERVAL_S
            return
        listener.setblocking(False)
        if not self.settings.port:
            remembered.parent.mkdir(parents=True, exist_ok=True)
            remembered.write_text(str(listener.getsockname()[1]))
        self._listener, self.bind_error = listener, ""
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1]) if self._listener is not None else 0

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def serving(self) -> bool:
        return self._channel.id != 0 and not self.stalled

    @property
    def zxid(self) -> int:
        return self._site.counter

    def status(self) -> dict[str, object]:
        return {
            "address": f"{self._site.host}:{self.port}" if self._listener is not None else "",
            "serving": self.serving,
            "connections": len(self.connections),
            "sessions": len(self.service.sessions),
            "nodes": len(self.tree.nodes),
            "watches": len(self.watches),
            "stalls": self.stalls,
            "resets": self.resets,
            "ended_connections": self.ended_connections,
            "error": self.bind_error or self.fault,
        }

    def close(self) -> None:
        for connection in list(self.connections.values()):
            self._drop(connection)
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()
        self.service.observer = None

    # What clients send

    def receive(self) -> None:
        if self._channel.waiting_bytes > WAITING_BYTES_MAX:
            return
        for descriptor, events in self._epoll.poll(0, READ_PER_TURN):
            connection = self.connections.get(descriptor)
            if connection is None:
                if self._listener is not None and descriptor == self._listener.fileno():
                    self._accept(self._listener)
                continue
            try:
                if events & ~select.EPOLLOUT:
                    self._read(connection)
                if events & select.EPOLLOUT or connection.full:
                    self._changed.add(connection)
            except Exception as error:
                self._fail(connection, error)
        self._channel.pump(time.monotonic())
        self._flush()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                sock, (address, port, *_) = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self.bind_error = "too many open files"
                return
            limit = self.settings.max_client_connections
            full = len(self.connections) >= self._connections_max
            if full or (limit and self._by_address.get(address, 0) >= limit):
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = Connection(sock, address, port, time.monotonic())
            self.connections[connection.descriptor] = connection
            self._by_address[address] = self._by_address.get(address, 0) + 1
            self._epoll.register(connection.descriptor, select.EPOLLIN)

    def _read(self, connection: Connection) -> None:
        if not connection.receive():
            return
        if connection.session == 0 and not connection.joining:
            word = connection.beginning
            if word in words.WORDS:
                self._send(connection, words.answer(self, word))
                connection.last_words = True
                return
        self._consume(connection)
        if connection.session:
            self._heard[connection.session] = None

    def _consume(self, connection: Connection) -> None:
        """Look at the frames that have arrived, as far as there is room for their answers."""
        connection.held = False
        while (frame := connection.next_frame(self.settings.jute_max_buffer)) is not None:
            self.received += 1
            if connection.session:
                self._request(connection, frame)
            elif connection.joining:
                raise Closed("a request before the session is there")
            else:
                self._connect(connection, frame)
            if connection.closed or connection.last_words:
                return
            if connection.full:
                connection.held = True
                return

    # Sessions

    def _connect(self, connection: Connection, frame: bytes) -> None:
        reader = Reader(frame)
        reader.number()
        last_zxid, timeout_ms, session, password = reader.long(), reader.number(), reader.long(), reader.buffer()
        if not self.serving or (session == 0 and last_zxid > self.zxid):
            raise Closed("not serving, or behind what the client has seen")
        connection.joining = True
        low, high = self.settings.timeouts_ms
        if session == 0:
            password = os.urandom(commands.PASSWORD_BYTES)
            payload = commands.create_session(min(max(timeout_ms, low), high), password)
        else:
            payload = commands.attach(session, password or b"")
        secret = password or b""
        self._order(payload, lambda result: self._on_joined(connection, result, last_zxid, secret))

    def _on_joined(self, connection: Connection, result: t.Result, last_zxid: int, password: bytes) -> None:
        if connection.closed:
            return
        if result.status != t.OK or commands.error_of(result.payload) not in (Code.OK, Code.SESSION_EXPIRED):
            self._drop(connection)
            return
        if commands.error_of(result.payload):
            self._send(connection, _connect_response(0, 0, bytes(commands.PASSWORD_BYTES)))
            connection.last_words = True
            return
        if last_zxid > result.counter:
            self._drop(connection)
            return
        session, timeout_ms, attachment = msgspec.msgpack.decode(result.payload[4:], type=tuple[int, int, int])
        connection.joined(session, attachment, timeout_ms)
        self._by_session[session] = connection
        self._heard[session] = None
        self._send(connection, _connect_response(timeout_ms, session, password))

    # Requests

    def _request(self, connection: Connection, frame: bytes) -> None:
        reader = Reader(frame)
        xid, op = reader.number(), reader.number()
        if op == Op.PING:
            self._pinging.append(connection)
            return
        if connection.queue or (connection.outstanding and op not in WRITES):
            connection.queue.append((xid, op, frame))
            return
        self._handle(connection, xid, op, frame)

    def _handle(self, connection: Connection, xid: int, op: int, frame: bytes) -> None:
        if op in WRITES:
            payload = connection.envelope(op) + frame[8:]
            if len(payload) > self._payload_max:
                raise Closed("a request with its envelope is longer than a command may be")
            connection.outstanding += 1
            connection.ending = connection.ending or op == Op.CLOSE_SESSION
            self._channel.order(payload, Write(connection, xid, op, time.monotonic()))
            return
        try:
            body = self._answer(connection, op, Reader(frame, 8))
        except Refusal as refusal:
            self._reply(connection, xid, refusal.code)
            if refusal.code is Code.AUTH_FAILED:
                connection.last_words = True
            return
        except JuteError:
            self._reply(connection, xid, Code.MARSHALLING_ERROR)
            connection.last_words = True
            return
        self._reply(connection, xid, Code.OK, body)

    def _answer(self, connection: Connection, op: int, reader: Reader) -> bytes:
        """The body of the response to a request that needs no order."""
        if op in reads.BY_PATH:
            return self._read_path(connection, op, reader)
        match op:
            case Op.GET_EPHEMERALS:
                return reads.get_ephemerals(self.tree, reader.text(), connection.session)
            case Op.MULTI_READ:
                return reads.multi_read(self.tree, reader, connection.ids)
            case Op.WHO_AM_I:
                return reads.who_am_i(connection.ids)
            case Op.AUTH:
                return self._authenticate(connection, reader)
            case Op.ADD_WATCH:
                path, mode = reader.text(), reader.number()
                if mode not in (0, 1):
                    raise Refusal(Code.BAD_ARGUMENTS)
                self.watches.add(Kind.RECURSIVE if mode else Kind.PERSISTENT, path, connection)
                return pack_int(0)
            case Op.SET_WATCHES | Op.SET_WATCHES2:
                self._set_watches(connection, reader, op)
                return b""
            case Op.REMOVE_WATCHES | Op.CHECK_WATCHES:
                return self._remove_watches(connection, reader, remove=op == Op.REMOVE_WATCHES)
            case Op.RECONFIG:
                raise Refusal(Code.RECONFIG_DISABLED)
            case _:
                raise Refusal(Code.UNIMPLEMENTED)

    def _read_path(self, connection: Connection, op: int, reader: Reader) -> bytes:
        path = reader.text()
        watch = reader.flag() if op in _WATCHING and reader.rest else False
        try:
            body = reads.BY_PATH[op](self.tree, path, connection.ids)
        except Refusal as refusal:
            if watch and op == Op.EXISTS and refusal.code is Code.NO_NODE:
                self.watches.add(Kind.DATA, path, connection)
            raise
        if watch:
            self.watches.add(_WATCHING[op], path, connection)
        return body

    def _authenticate(self, connection: Connection, reader: Reader) -> bytes:
        reader.number()
        scheme, credentials = reader.text(), reader.buffer() or b""
        if scheme == "digest" and b":" in credentials:
            ids = dict.fromkeys((*connection.ids, ("digest", digest_id(credentials))))
            if len(commands.encode_ids(tuple(ids))) <= commands.IDS_BYTES_MAX:
                connection.set_ids(tuple(ids))
                return b""
        elif scheme == "ip":
            return b""
        raise Refusal(Code.AUTH_FAILED)

    # Watches

    def _set_watches(self, connection: Connection, reader: Reader, op: int) -> None:
        """A client has come back: tell it what it missed, and watch the rest."""
        since, nodes = reader.long(), self.tree.nodes
        for path in reader.texts():
            node = nodes.get(path)
            if node is None:
                self._notify(connection, Event.DELETED, path)
            elif node.mzxid > since:
                self._notify(connection, Event.DATA_CHANGED, path, node.acl)
            else:
                self.watches.add(Kind.DATA, path, connection)
        for path in reader.texts():
            node = nodes.get(path)
            if node is not None:
                self._notify(connection, Event.CREATED, path, node.acl)
            else:
                self.watches.add(Kind.DATA, path, connection)
        for path in reader.texts():
            node = nodes.get(path)
            if node is None:
                self._notify(connection, Event.DELETED, path)
            elif node.pzxid > since:
                self._notify(connection, Event.CHILDREN_CHANGED, path, node.acl)
            else:
                self.watches.add(Kind.CHILD, path, connection)
        if op == Op.SET_WATCHES2:
            for kind in (Kind.PERSISTENT, Kind.RECURSIVE):
                for path in reader.texts():
                    self.watches.add(kind, path, connection)

    def _remove_watches(self, connection: Connection, reader: Reader, remove: bool) -> bytes:
        path, number = reader.text(), reader.number()
        if number not in REMOVABLE:
            raise Refusal(Code.BAD_ARGUMENTS)
        found = [kind for kind in REMOVABLE[number] if self.watches.has(kind, path, connection)]
        if not found:
            raise Refusal(Code.NO_WATCHER)
        if remove:
            for kind in found:
                self.watches.remove(kind, path, connection)
        return b""

    def _notify(self, connection: Connection, event: Event, path: str, acl: Acl = OPEN) -> None:
        """Send an event, if the client may read the node."""
        if not permits(acl, READ, connection.ids):
            return
        body = pack_int(event) + pack_int(SYNC_CONNECTED) + pack_text(path)
        self._send(connection, _EVENT_HEADER(16 + len(body), NOTIFICATION_XID, -1, 0) + body)

    # What the replica does; told while it executes, dealt with at the end of the turn

    def changed(self, change: Change, zxid: int) -> None:
        if self.watches.watchers:
            self._happened.append((zxid, lambda: self._trigger(change)))

    def attached(self, session: int, attachment: int) -> None:
        self._happened.append((attachment, lambda: self._on_attached(session, attachment)))

    def ended(self, session: int, zxid: int) -> None:
        self._happened.append((zxid, lambda: self._on_ended(session)))

    def restored(self) -> None:
        """Events are missing, and results: begin anew, and let clients find out by coming back."""
        self._happened.clear()
        self._results.clear()
        self._drop_all()
        self._channel.reset()

    def _trigger(self, change: Change) -> None:
        for connection, event, path in self.watches.trigger(change.event, change.path):
            self._notify(connection, event, path, change.acl if event is change.event else change.parent_acl)

    def _on_attached(self, session: int, attachment: int) -> None:
        connection = self._by_session.get(session)
        if connection is not None and connection.attachment != attachment:
            self._drop(connection)

    def _on_ended(self, session: int) -> None:
        connection = self._by_session.get(session)
        if connection is not None and not connection.ending:
            self._drop(connection)

    # Results

    def take(self, results: list[t.Result]) -> None:
        self._results.extend(results)

    def respond(self, now_s: float) -> None:
        """Results and events in the order of their zxids; then requests that waited, which see the state after them."""
        happened = self._happened
        while self._results:
            result = self._results.popleft()
            while happened and happened[0][0] <= result.counter:
                happened.popleft()[1]()
            token = self._channel.hear(result)
            if isinstance(token, Write):
                self._on_written(token, result, now_s)
            elif token is not None:
                token(result)
        while happened:
            happened.popleft()[1]()
        if self._waiting:
            self._resume()
        self._watch_time(now_s)
        self._channel.pump(now_s)
        self._flush()

    def _on_written(self, write: Write, result: t.Result, now_s: float) -> None:
        connection = write.connection
        if connection.closed:
            return
        connection.outstanding -= 1
        self.latencies.note(now_s - write.sent_s)
        if result.status != t.OK:
            self._drop(connection)
            return
        answer = result.payload
        self._send(connection, _framed(write.xid, result.counter, answer))
        if commands.error_of(answer) in _FATAL or write.op == Op.CLOSE_SESSION:
            connection.last_words = True
            return
        if connection.queue or connection.held:
            self._waiting[connection] = None

    def _resume(self) -> None:
        """Go on with requests that waited: for the results of earlier ones, or for room for their answers."""
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            if connection.closed:
                continue
            queue = connection.queue
            try:
                while queue and not (connection.last_words or connection.clogged):
                    if connection.outstanding and queue[0][1] not in WRITES:
                        break
                    self._handle(connection, *queue.popleft())
                if connection.held and not (connection.full or connection.last_words):
                    self._consume(connection)
            except Exception as error:
                self._fail(connection, error)

    def _on_lost(self, tokens: list[Write | Token]) -> None:
        """The channel begins anew; what was on its way may or may not happen."""
        self._touch_sent_s = None
        self.resets += 1
        self._drop_all()

    # Time

    def _watch_time(self, now_s: float) -> None:
        if self._listener is None and now_s >= self._bind_due_s:
            self._bind()
        if now_s >= self._sessionless_due_s:
            self._sessionless_due_s = now_s + SESSIONLESS_INTERVAL_S
            self._drop_sessionless(now_s)
        if self._channel.id == 0:
            return
        if self._touch_sent_s is not None:
            if not self.stalled and now_s - self._touch_sent_s > 2 * self.settings.tick_time_ms / 1e3:
                self.stalled = True
                self.stalls += 1
                self._drop_all()
            return
        if now_s >= self._touch_due_s or (
            (self._pinging or self._heard) and now_s >= self._touch_due_s - TIME_INTERVAL_S + TOUCH_INTERVAL_S
        ):
            self._touch(now_s)

    def _drop_sessionless(self, now_s: float) -> None:
        """Nobody waits that long for a session, and one that is not asked for is not to take a place for ever."""
        for connection in list(self.connections.values()):
            if connection.session == 0 and now_s - connection.opened_s > SESSIONLESS_S:
                self._drop(connection)

    def _touch(self, now_s: float) -> None:
        sessions = list(islice(self._heard, TOUCHED_MAX))
        for session in sessions:
            del self._heard[session]
        pinging, self._pinging = self._pinging, []
        collect = now_s >= self._collect_due_s
        if collect:
            self._collect_due_s = now_s + self.settings.collect_interval_ms / 1e3
        self._touch_sent_s, self._touch_due_s = now_s, now_s + TIME_INTERVAL_S
        # Whether the site is served shows in how long this takes, not in how much waits here.
        touch = commands.touch(sessions, collect)
        self._channel.order(touch, lambda result: self._on_touched(result.counter, pinging), first=True)

    def _on_touched(self, zxid: int, pinging: list[Connection]) -> None:
        self._touch_sent_s, self.stalled = None, False
        for connection in pinging:
            if not connection.closed:
                self._send(connection, _framed(PING_XID, zxid, commands.DONE))

    # Inside

    def _order(self, payload: bytes, token: Token) -> None:
        self._channel.order(payload, token)

    def _reply(self, connection: Connection, xid: int, code: int, body: bytes = b"") -> None:
        self._send(connection, _HEADER.pack(16 + len(body), xid, self.zxid, code) + body)

    def _send(self, connection: Connection, data: bytes) -> None:
        connection.send(data)
        self.sent += 1
        self._changed.add(connection)

    def _flush(self) -> None:
        changed, self._changed = self._changed, set()
        for connection in changed:
            if connection.closed:
                continue
            try:
                connection.flush()
            except Closed:
                self._drop(connection)
                continue
            if (connection.queue or connection.held) and not connection.clogged:
                self._waiting[connection] = None
            interest = connection.interest()
            if interest is not None:
                self._epoll.modify(connection.descriptor, interest)

    def _fail(self, connection: Connection, error: Exception) -> None:
        """What one client sends can end its own connection, and nothing else: a fault of ours is shown, not spread."""
        self.ended_connections += 1
        if not isinstance(error, Closed | JuteError):
            self.fault = f"{type(error).__name__}: {error}"
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection.closed:
            return
        self._epoll.unregister(connection.descriptor)
        del self.connections[connection.descriptor]
        left = self._by_address[connection.address] - 1
        if left:
            self._by_address[connection.address] = left
        else:
            del self._by_address[connection.address]
        if self._by_session.get(connection.session) is connection:
            del self._by_session[connection.session]
        self.watches.drop(connection)
        connection.close()

    def _drop_all(self) -> None:
        for connection in list(self.connections.values()):
            self._drop(connection)
        self._pinging = []
        self._heard = {}


#: Reads that can leave a watch.
_WATCHING: dict[int, Kind] = {
    Op.EXISTS: Kind.DATA,
    Op.GET_DATA: Kind.DATA,
    Op.GET_CHILDREN: Kind.CHILD,
    Op.GET_CHILDREN2: Kind.CHILD,
}


def _framed(xid: int, zxid: int, answer: bytes) -> bytes:
    """A reply whose error code and body are there as one."""
    return pack_int(12 + len(answer)) + pack_int(xid) + pack_long(zxid) + answer


def _connect_response(timeout_ms: int, session: int, password: bytes) -> bytes:
    body = pack_int(0) + pack_int(timeout_ms) + pack_long(session) + pack_buffer(password) + b"\0"
    return pack_int(len(body)) + body


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
