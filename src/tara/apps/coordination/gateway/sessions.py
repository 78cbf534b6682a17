"""The sessions of a front end's connections: joining and coming back, renewing them, and whether anybody is served.

A ping is answered when the session has been renewed by an ordered command, not before: a client that still gets answers
has a session that lives. A front end whose commands are not executed for some time, because its site is cut off or the
service stands still, closes its connections.
"""

from collections.abc import Callable
from itertools import islice
from typing import Protocol

import msgspec

from tara.apps.coordination import commands
from tara.apps.coordination.codes import Code
from tara.apps.coordination.gateway import replies
from tara.apps.coordination.gateway.connection import Closed, Connection
from tara.apps.coordination.jute import Reader
from tara.apps.coordination.settings import GatewaySettings
from tara.protocol import tuples as t

#: Sessions are renewed at most so often, and time is let pass at least so often.
TOUCH_INTERVAL_S = 0.2
TIME_INTERVAL_S = 0.5
#: Sessions in one such command; the others come with the next one. Each takes up to so many bytes.
TOUCHED_MAX = 50_000
TOUCHED_BYTES = 10


class Owner(Protocol):
    """What the sessions need of their front end."""

    @property
    def zxid(self) -> int: ...
    def order(self, payload: bytes, on_result: Callable[[t.Result], None], first: bool = False) -> None: ...
    def send(self, connection: Connection, data: bytes) -> None: ...
    def drop(self, connection: Connection) -> None: ...
    def drop_all(self) -> None: ...


class Sessions:
    def __init__(
        self,
        owner: Owner,
        settings: GatewaySettings,
        random: Callable[[int], bytes],
        now_s: float,
        command_bytes_max: int,
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._random = random
        self._touched_max = min(TOUCHED_MAX, max(command_bytes_max // TOUCHED_BYTES - TOUCHED_BYTES, 1))
        self._by_session: dict[int, Connection] = {}
        #: Sessions that were heard of since they were last renewed.
        self._heard: dict[int, None] = {}
        self._pinging: list[Connection] = []
        self._touch_sent_s: float | None = None
        self._touch_due_s = 0.0
        self._collect_due_s = now_s + settings.collect_interval_ms / 1e3
        #: Commands do not come back: nobody is served.
        self.stalled = False
        #: How often that has happened.
        self.stalls = 0

    def connect(self, connection: Connection, frame: bytes, serving: bool) -> None:
        reader = Reader(frame)
        reader.number()
        last_zxid, timeout_ms, session, password = reader.long(), reader.number(), reader.long(), reader.buffer()
        if not serving or (session == 0 and last_zxid > self._owner.zxid):
            raise Closed("not serving, or behind what the client has seen")
        connection.joining = True
        low, high = self._settings.timeouts_ms
        if session == 0:
            password = self._random(commands.PASSWORD_BYTES)
            payload = commands.create_session(min(max(timeout_ms, low), high), password)
        else:
            payload = commands.attach(session, password or b"")
        secret = password or b""
        self._owner.order(payload, lambda result: self._on_joined(connection, result, last_zxid, secret))

    def _on_joined(self, connection: Connection, result: t.Result, last_zxid: int, password: bytes) -> None:
        if connection.closed:
            return
        if result.status != t.OK or commands.error_of(result.payload) not in (Code.OK, Code.SESSION_EXPIRED):
            self._owner.drop(connection)
            return
        if commands.error_of(result.payload):
            self._owner.send(connection, replies.connected(0, 0, bytes(commands.PASSWORD_BYTES)))
            connection.last_words = True
            return
        if last_zxid > result.counter:
            self._owner.drop(connection)
            return
        session, timeout_ms, attachment = msgspec.msgpack.decode(result.payload[4:], type=tuple[int, int, int])
        connection.joined(session, attachment, timeout_ms)
        self._by_session[session] = connection
        self._heard[session] = None
        self._owner.send(connection, replies.connected(timeout_ms, session, password))

    def heard(self, connection: Connection) -> None:
        self._heard[connection.session] = None

    def ping(self, connection: Connection) -> None:
        connection.pings += 1
        self._pinging.append(connection)

    def on_attached(self, session: int, attachment: int) -> None:
        connection = self._by_session.get(session)
        if connection is not None and connection.attachment != attachment:
            self._owner.drop(connection)

    def on_ended(self, session: int) -> None:
        connection = self._by_session.get(session)
        if connection is not None and not connection.ending:
            self._owner.drop(connection)

    def forget(self, connection: Connection) -> None:
        """It is closed; its session lives on for a while."""
        if self._by_session.get(connection.session) is connection:
            del self._by_session[connection.session]

    def forget_all(self) -> None:
        self._pinging = []
        self._heard = {}

    def on_lost(self) -> None:
        """What was ordered may or may not happen."""
        self._touch_sent_s = None

    def pass_time(self, now_s: float) -> None:
        if self._touch_sent_s is not None:
            if not self.stalled and now_s - self._touch_sent_s > 2 * self._settings.tick_time_ms / 1e3:
                self.stalled = True
                self.stalls += 1
                self._owner.drop_all()
            return
        if now_s >= self._touch_due_s or (
            (self._pinging or self._heard) and now_s >= self._touch_due_s - TIME_INTERVAL_S + TOUCH_INTERVAL_S
        ):
            self._touch(now_s)

    def _touch(self, now_s: float) -> None:
        sessions = list(islice(self._heard, self._touched_max))
        for session in sessions:
            del self._heard[session]
        pinging, self._pinging = self._pinging, []
        collect = now_s >= self._collect_due_s
        if collect:
            self._collect_due_s = now_s + self._settings.collect_interval_ms / 1e3
        self._touch_sent_s, self._touch_due_s = now_s, now_s + TIME_INTERVAL_S
        # Whether the site is served shows in how long this takes, not in how much waits here.
        touch = commands.touch(sessions, collect)
        self._owner.order(touch, lambda result: self._on_touched(result.counter, pinging), first=True)

    def _on_touched(self, zxid: int, pinging: list[Connection]) -> None:
        self._touch_sent_s, self.stalled = None, False
        for connection in pinging:
            if not connection.closed:
                connection.pings -= 1
                self._owner.send(connection, replies.written(replies.PING_XID, zxid, commands.DONE))
