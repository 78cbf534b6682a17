"""The order of requests and answers at one front end. Pure: bytes, results and the time come in, bytes go out.

Writes are ordered, through one session of the log; reads are answered from the replica that is here, between two
steps of it, so that each sees one state. Requests of a connection are answered in their order: a read waits for the
writes before it.

What a replica does is heard in its order (`service.Observer`), together with the results: before a client gets an
answer of the state at some zxid, it has been sent every watch event up to that zxid.

Whoever has the sockets calls `admit`, `receive` and `respond`, sends what is in `Connection.out` of the connections in
`unsettled`, says so by `flushed`, and closes those in `dropped`.
"""

from collections import deque
from collections.abc import Callable

from tara.apps.coordination import commands, limits
from tara.apps.coordination.codes import Code, Op, Refusal
from tara.apps.coordination.gateway import four_letter_words, replies
from tara.apps.coordination.gateway.arrivals import Arrivals
from tara.apps.coordination.gateway.connection import Closed, Connection
from tara.apps.coordination.gateway.notifications import Notifications
from tara.apps.coordination.gateway.pressure import Pressure
from tara.apps.coordination.gateway.reads import Reads
from tara.apps.coordination.gateway.sessions import Sessions
from tara.apps.coordination.gateway.uploads import Uploads
from tara.apps.coordination.jute import JuteError, Reader
from tara.apps.coordination.service import CoordinationService
from tara.apps.coordination.settings import GatewaySettings
from tara.apps.coordination.tree import Change
from tara.host.gateway_session import GatewaySession
from tara.net.gateway import GatewayHost
from tara.protocol import tuples as t

#: Errors after which a connection is of no use.
_FATAL = frozenset((Code.MARSHALLING_ERROR, Code.SESSION_EXPIRED, Code.SESSION_MOVED))

#: What is to be done with the result of an ordered command.
Token = Callable[[t.Result], None]


class Write:
    """The token of a client's write: plain data, because there are many."""

    __slots__ = ("connection", "op", "sent_s", "size", "xid")

    def __init__(self, connection: Connection, xid: int, op: int, size: int, sent_s: float) -> None:
        self.size = size
        self.connection = connection
        self.xid = xid
        self.op = op
        self.sent_s = sent_s


class FrontEnd:
    """Serves the connections of one site."""

    def __init__(
        self, site: GatewayHost, settings: GatewaySettings, clock: Callable[[], float], random: Callable[[int], bytes]
    ) -> None:
        application = site.application
        assert isinstance(application, CoordinationService), application
        self._site = site
        self._clock = clock
        self.settings = settings
        self.words = four_letter_words.allowed(settings.four_letter_words)
        self.service = application
        self.service.observer = self
        self.tree = application.tree
        self.log_session: GatewaySession[Write | Token] = GatewaySession(site, self._on_lost, random)
        #: A command is the request and its envelope.
        self._payload_max = site.limits.command_bytes_max
        self._sessionless_due_s = 0.0
        self.connections: dict[Connection, None] = {}
        self._by_address: dict[str, int] = {}
        self._arrivals = Arrivals()
        self.uploads = Uploads()
        self.pressure = Pressure()
        self._pressure_due_s = 0.0
        self.sessions = Sessions(self, settings, random, clock(), site.limits.command_bytes_max)
        notifications = Notifications(self.tree, settings, self.send)
        self.watches = notifications.watches
        self._notifications = notifications
        self._reads = Reads(self.tree, notifications)
        self._results: deque[t.Result] = deque()
        #: What the replica did since the last turn: the zxid, and what follows from it here.
        self._happened: deque[tuple[int, Callable[[], None]]] = deque()
        #: Connections whose waiting requests may move on: a result has come, or answers have been fetched.
        self._waiting: dict[Connection, None] = {}
        #: Connections that have sent more than is dealt with at once, in the order of their turns.
        self._backlog: dict[Connection, None] = {}
        #: When the last turn ended.
        self._rested_s = clock()
        #: Connections whose requests wait because too much is held for all of them.
        self._deferred: dict[Connection, None] = {}
        #: When this half of the turn began, and when the time for requests is over in it.
        self._now_s = clock()
        self._deadline_s = self._now_s + limits.TURN_S
        #: Something can be done at once that there was no time for.
        self.busy = False
        #: Connections that have something to send, or may be read again.
        self.unsettled: set[Connection] = set()
        #: Connections that are closed here; their sockets are not yet.
        self.dropped: list[Connection] = []
        #: How often that session had to begin anew.
        self.resets = 0
        #: Connections that ended, by what their clients sent or by themselves.
        self.ended_connections = 0
        self.started_s = clock()
        self.received = 0
        self.sent = 0
        self.latencies = four_letter_words.Latencies()
        #: Where it listens; 0 while it does not.
        self.port = 0
        #: The last error here that should not have been.
        self.fault = ""

    @property
    def serving(self) -> bool:
        return self.log_session.id != 0 and not self.sessions.stalled

    @property
    def zxid(self) -> int:
        return self._site.counter

    @property
    def uptime_s(self) -> float:
        return self._clock() - self.started_s

    @property
    def outstanding(self) -> int:
        return sum(connection.outstanding + len(connection.queue) for connection in self.connections)

    def close(self) -> None:
        for connection in list(self.connections):
            self.drop(connection)
        self.service.observer = None

    def admit(self, address: str, port: int, greeting: bool = False) -> Connection | None:
        """A new connection, if its address may have one more; `greeting` while the handshake of TLS is not over."""
        limit = self.settings.max_client_connections
        if limit and self._by_address.get(address, 0) >= limit:
            return None
        crowded = self._arrivals.crowded(address)
        if crowded is not None:
            self.drop(crowded)
        connection = Connection(address, port, self._clock())
        connection.greeting = greeting
        self.connections[connection] = None
        self._by_address[address] = self._by_address.get(address, 0) + 1
        self._arrivals.add(connection)
        return connection

    def fail(self, connection: Connection, error: Exception) -> None:
        """What one client sends can end its own connection, and nothing else: a fault of ours is shown, not spread."""
        self.ended_connections += 1
        if not isinstance(error, Closed | JuteError):
            self.fault = f"{type(error).__name__}: {error}"
        self.drop(connection)

    def drop(self, connection: Connection) -> None:
        if connection.closed:
            return
        del self.connections[connection]
        left = self._by_address[connection.address] - 1
        if left:
            self._by_address[connection.address] = left
        else:
            del self._by_address[connection.address]
        self._arrivals.discard(connection)
        if connection.uploads:
            self.unsettled.update(self.uploads.done(connection, self._now_s))
        self.pressure.forget(connection)
        self._deferred.pop(connection, None)
        self._backlog.pop(connection, None)
        self.sessions.forget(connection)
        self.watches.drop(connection)
        connection.close()
        self.dropped.append(connection)

    def drop_all(self) -> None:
        for connection in list(self.connections):
            self.drop(connection)
        self.sessions.forget_all()

    def flushed(self, connection: Connection, moved: bool = True, unsent: int = 0) -> bool:
        """What could be sent has been; so many bytes are still on their way. Whether the connection stays."""
        connection.encrypted = unsent
        if moved or not connection.unsent:
            connection.moved_s = self._now_s
        self.pressure.weigh(connection)
        if connection.unsent > limits.UNSENT_BYTES_CLOSED or (connection.last_words and not connection.unsent):
            self.drop(connection)
            return False
        if connection.ready:
            self._waiting[connection] = None
            self.busy = True
        return True

    @property
    def full(self) -> bool:
        """Whether no connection may be read now: too much waits to be ordered."""
        return self.log_session.waiting_bytes > limits.ORDERED_BYTES_MAX or len(self.log_session) > limits.ORDERED_MAX

    @property
    def calm(self) -> bool:
        """Whether everybody may be read who is readable."""
        return not (self.pressure.high or self.full)

    def may_read(self, connection: Connection) -> bool:
        return connection.readable and not self.full and self.pressure.may_read(connection)

    def begin(self) -> None:
        """From here on, there is time for requests."""
        self._now_s = self._clock()
        self._deadline_s = self._now_s + limits.TURN_S

    @property
    def out_of_time(self) -> bool:
        return self._clock() > self._deadline_s

    def receive(self, connection: Connection, data: bytes) -> None:
        """Take what a client has sent. What it raises ends the connection (`fail`)."""
        connection.heard_s = self._now_s
        connection.feed(data)
        if connection.session == 0 and not connection.joining:
            word = connection.beginning
            if word in four_letter_words.WORDS:
                self.send(connection, four_letter_words.answer(self, word))
                connection.last_words = True
                return
        self._consume(connection)
        if connection.session:
            self.sessions.heard(connection)
        if connection not in self.unsettled and not connection.readable:
            self.unsettled.add(connection)

    def received_all(self) -> None:
        """All that has come in this turn has been taken."""
        self.log_session.pump(self._clock())

    def _consume(self, connection: Connection) -> None:
        """Look at the frames that have arrived, as far as there is room for their answers."""
        connection.held = False
        length_max, handled = self._frame_max(connection), 0
        while self._may_answer(connection):
            frame = connection.next_frame(length_max)
            if frame is None:
                self._expect(connection)
                return
            self.received += 1
            if connection.uploads:
                self.unsettled.update(self.uploads.done(connection, self._now_s))
            if connection.session:
                self._request(connection, frame)
            elif connection.joining:
                raise Closed("a request before the session is there")
            else:
                self.sessions.connect(connection, frame, self.serving)
                self._arrivals.discard(connection)
            if not connection.has_more or connection.closed or connection.last_words:
                return
            if connection.full:
                break
            handled += 1
            if handled >= limits.REQUESTS_AT_ONCE or self.out_of_time:
                self._postpone(connection)
                break
        connection.held = True
        self.pressure.weigh(connection)

    def _postpone(self, connection: Connection) -> None:
        self._backlog[connection] = None
        self.busy = True

    def _may_answer(self, connection: Connection) -> bool:
        if not (self.pressure.high and connection.session) or self.pressure.may_answer(connection):
            return True
        self._deferred[connection] = None
        return False

    def _expect(self, connection: Connection) -> None:
        """The beginning of a request is there."""
        if connection.awaited:
            self.uploads.expect(connection, connection.awaited, self._now_s)
        self.pressure.weigh(connection)

    def _frame_max(self, connection: Connection) -> int:
        longest = self.settings.jute_max_buffer
        return longest if connection.session else min(longest, limits.JOIN_BYTES_MAX)

    def _request(self, connection: Connection, frame: bytes) -> None:
        reader = Reader(frame)
        xid, op = reader.number(), reader.number()
        if op == Op.PING:
            self.sessions.ping(connection)
            return
        if connection.queue or connection.task or (connection.outstanding and op not in commands.ORDERED):
            connection.queue.append((xid, op, frame))
            connection.request_bytes += len(frame)
            self.pressure.add(connection, len(frame))
            return
        self._handle(connection, xid, op, frame)

    def _handle(self, connection: Connection, xid: int, op: int, frame: bytes) -> None:
        if op in commands.ORDERED:
            payload = connection.envelope(op) + frame[8:]
            if len(payload) > self._payload_max:
                raise Closed("a request with its envelope is longer than a command may be")
            connection.outstanding += 1
            connection.request_bytes += len(frame)
            self.pressure.add(connection, len(frame))
            connection.ending = connection.ending or op == Op.CLOSE_SESSION
            self.log_session.order(payload, Write(connection, xid, op, len(frame), self._clock()))
            return
        if op in (Op.SET_WATCHES, Op.SET_WATCHES2):
            connection.task = (xid, self._notifications.set(connection, Reader(frame, 8), op))
            self._go_on(connection)
            return
        try:
            body = self._reads.answer(connection, op, Reader(frame, 8))
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

    def _go_on(self, connection: Connection) -> None:
        """With a request that may take more than one turn."""
        if connection.task is None:
            return
        xid, task = connection.task
        code = Code.OK
        try:
            for handled, _ in enumerate(task, 1):
                if connection.clogged:
                    return
                if handled >= limits.PATHS_AT_ONCE or self.out_of_time:
                    self._postpone(connection)
                    return
        except Refusal as refusal:
            code = refusal.code
        except JuteError:
            code = Code.MARSHALLING_ERROR
        connection.task = None
        self._reply(connection, xid, code)
        # Clients do not look at the answer, and would wait for events that never come.
        connection.last_words = connection.last_words or code is not Code.OK

    # What the replica does; told while it executes, dealt with at the end of the turn

    def changed(self, change: Change, zxid: int) -> None:
        if self.watches.watchers:
            self._happened.append((zxid, lambda: self._notifications.trigger(change)))

    def attached(self, session: int, attachment: int) -> None:
        self._happened.append((attachment, lambda: self.sessions.on_attached(session, attachment)))

    def ended(self, session: int, zxid: int) -> None:
        self._happened.append((zxid, lambda: self.sessions.on_ended(session)))

    def restored(self) -> None:
        """Events are missing, and results: begin anew, and let clients find out by coming back."""
        self._happened.clear()
        self._results.clear()
        self.drop_all()
        self.log_session.reset()

    def take(self, results: list[t.Result]) -> None:
        self._results.extend(results)

    def respond(self, now_s: float) -> None:
        """Results and events in the order of their zxids; then requests that waited, which see the state after them."""
        happened = self._happened
        while self._results:
            result = self._results.popleft()
            while happened and happened[0][0] <= result.counter:
                happened.popleft()[1]()
            token = self.log_session.hear(result)
            if isinstance(token, Write):
                self._on_written(token, result, now_s)
            elif token is not None:
                token(result)
        while happened:
            happened.popleft()[1]()
        self.begin()
        self._relieve(now_s)
        if self._waiting:
            self._resume()
        if self._backlog or self.watches.leaving:
            self._work_off()
        self.busy = bool(self._backlog) or self.watches.leaving
        if now_s >= self._sessionless_due_s:
            self._sessionless_due_s = now_s + limits.SESSIONLESS_INTERVAL_S
            self._drop_sessionless(now_s)
        if self.log_session.id != 0:
            self.sessions.pass_time(now_s)
        self.log_session.pump(now_s)
        self._rested_s = self._clock()

    def _on_written(self, write: Write, result: t.Result, now_s: float) -> None:
        connection = write.connection
        if connection.closed:
            return
        connection.outstanding -= 1
        connection.request_bytes -= write.size
        self.pressure.add(connection, -write.size)
        self.latencies.note(now_s - write.sent_s)
        if result.status != t.OK:
            self.drop(connection)
            return
        answer = result.payload
        self.send(connection, replies.written(write.xid, result.counter, answer))
        if commands.error_of(answer) in _FATAL or write.op == Op.CLOSE_SESSION:
            connection.last_words = True
            return
        if connection.ready:
            self._waiting[connection] = None

    def _resume(self) -> None:
        """Go on with requests that waited: for the results of earlier ones, or for room for their answers."""
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            if self.out_of_time:
                self._postpone(connection)
            else:
                self._resume_one(connection)

    def _work_off(self) -> None:
        """Go on with requests of those that have sent many, one after the other."""
        others_s = self._now_s - self._rested_s
        self._deadline_s = self._clock() + min(max(others_s, limits.BACKLOG_S), limits.TURN_S)
        self.watches.sweep(limits.SWEPT_AT_ONCE)
        while self._backlog:
            connection = next(iter(self._backlog))
            del self._backlog[connection]
            self._resume_one(connection)
            if self.out_of_time:
                return
        while self.watches.leaving and not self.out_of_time:
            self.watches.sweep(limits.SWEPT_AT_ONCE)

    def _resume_one(self, connection: Connection) -> None:
        try:
            self._resume_requests(connection)
        except Exception as error:
            self.fail(connection, error)

    def _resume_requests(self, connection: Connection) -> None:
        handled = 0
        while connection.ready and self._may_answer(connection):
            if handled >= limits.REQUESTS_AT_ONCE or connection in self._backlog:
                self._postpone(connection)
                return
            handled += 1
            if connection.task:
                self._go_on(connection)
            elif connection.queue:
                xid, op, frame = connection.queue.popleft()
                connection.request_bytes -= len(frame)
                self.pressure.add(connection, -len(frame))
                self._handle(connection, xid, op, frame)
            else:
                self._consume(connection)
                self.unsettled.add(connection)

    def _relieve(self, now_s: float) -> None:
        """Close those that hold what others need; then go on with those that waited for it."""
        if now_s >= self._pressure_due_s:
            self._pressure_due_s = now_s + limits.PRESSURE_INTERVAL_S
            for connection in (*self.uploads.late(now_s), *self.pressure.greedy(self.connections, now_s)):
                self.fail(connection, Closed("it holds what others need"))
        for connection in list(self._deferred):
            if self.pressure.may_answer(connection):
                del self._deferred[connection]
                self._waiting[connection] = None

    def _on_lost(self, tokens: list[Write | Token]) -> None:
        """The session in the log begins anew; what was on its way may or may not happen."""
        self.sessions.on_lost()
        self.resets += 1
        self.drop_all()

    def _drop_sessionless(self, now_s: float) -> None:
        """Nobody waits that long for a session, and one that is not asked for is not to take a place for ever."""
        for connection in list(self.connections):
            if connection.session == 0:
                patience_s = limits.HANDSHAKE_S if connection.greeting else limits.SESSIONLESS_S
                if now_s - connection.opened_s > patience_s:
                    self.drop(connection)

    def order(self, payload: bytes, on_result: Token, first: bool = False) -> None:
        self.log_session.order(payload, on_result, first)

    def send(self, connection: Connection, data: bytes) -> None:
        if not (connection.out or connection.encrypted):
            connection.moved_s = self._now_s
        connection.send(data)
        self.pressure.add_unsent(connection, len(data))
        self.sent += 1
        self.unsettled.add(connection)

    def _reply(self, connection: Connection, xid: int, code: int, body: bytes = b"") -> None:
        self.send(connection, replies.reply(xid, self.zxid, code, body))
