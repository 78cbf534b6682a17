"""One client session over ZooKeeper's protocol, for asyncio: connects, comes back elsewhere, and watches on.

Requests and answers are bytes here; `client.py` gives them names and types. A request that was on its way when the
connection broke fails with `ConnectionLoss`: whether it was executed is unknown. The session lives on at the next front
end; if the service says that it has ended, a new one is opened, and the listeners hear `LOST` in between.
"""

import asyncio
import contextlib
import enum
import inspect
import os
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, NamedTuple

from tara.apps.coordination import jute
from tara.apps.coordination.codes import Code, Event, Op
from tara.apps.coordination.errors import CoordinationError, error_of
from tara.apps.coordination.jute import Reader
from tara.apps.coordination.paths import ancestors
from tara.protocol.errors import ConfigurationError

FRAME_BYTES_MAX = 64 << 20
#: Paths in one request of a client that comes back and has many watches.
SET_WATCHES_BYTES = 128 << 10
RECONNECT_S = 0.05
RECONNECT_S_MAX = 1.0
NOTIFICATION_XID = -1
PING_XID = -2
AUTH_XID = -4
SET_WATCHES_XID = -8


class State(enum.Enum):
    """What listeners are told."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"
    CLOSED = "closed"


class WatchEvent(NamedTuple):
    """What a watch tells."""

    event: Event
    path: str


#: May be a coroutine function; it then runs as a task.
Watcher = Callable[[WatchEvent], Any]
Listener = Callable[[State], Any]
OnAnswer = Callable[[int], None]


class _Pending(NamedTuple):
    path: str
    future: asyncio.Future[tuple[int, bytes]]
    on_answer: OnAnswer | None


class WatchKind(enum.Enum):
    """In the order of a setWatches2 request."""

    DATA = "data"
    EXISTS = "exists"
    CHILD = "child"
    PERSISTENT = "persistent"
    RECURSIVE = "recursive"


_TOLD = {
    Event.CREATED: (WatchKind.DATA, WatchKind.EXISTS),
    Event.DATA_CHANGED: (WatchKind.DATA, WatchKind.EXISTS),
    Event.DELETED: (WatchKind.DATA, WatchKind.EXISTS, WatchKind.CHILD),
    Event.CHILDREN_CHANGED: (WatchKind.CHILD,),
}


def parse_hosts(hosts: str) -> list[tuple[str, int]]:
    found = []
    for part in hosts.split(","):
        host, separator, port = part.strip().rpartition(":")
        if not separator or not host or not port.isdigit():
            raise ConfigurationError(f"host {part!r}: must be host:port")
        found.append((host, int(port)))
    return found


class Session:
    def __init__(self, hosts: str, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._hosts = parse_hosts(hosts)
        self._next_host = Random(os.urandom(4)).randrange(len(self._hosts))
        self._timeout_ms = int(timeout_s * 1e3)
        self._tls = tls
        self.id = 0
        self._password = bytes(16)
        self.last_zxid = 0
        self.state = State.SUSPENDED
        self._listeners: list[Listener] = []
        self._credentials: list[tuple[str, bytes]] = []
        self._watchers: dict[WatchKind, dict[str, list[Watcher]]] = {kind: {} for kind in WatchKind}
        self._xid = 0
        #: Requests without an answer, by xid.
        self._pending: dict[int, _Pending] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._heard_s = 0.0
        self._sent_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._tasks: set[asyncio.Future[Any]] = set()

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_connected(self) -> None:
        await self._connected.wait()

    async def stop(self) -> None:
        """End the session."""
        if self._task is None:
            return
        if self._connected.is_set():
            with contextlib.suppress(CoordinationError, TimeoutError):
                await asyncio.wait_for(self.request(Op.CLOSE_SESSION), 3)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        self._disconnect(Code.CONNECTION_LOSS)
        self._tell(State.CLOSED)

    def add_listener(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def request(self, op: int, body: bytes = b"", path: str = "", on_answer: OnAnswer | None = None) -> bytes:
        """The body of the answer; errors are raised."""
        code, answer = await self.raw_request(op, body, path, on_answer)
        if code != Code.OK:
            raise error_of(code, path)
        return answer

    async def raw_request(
        self, op: int, body: bytes = b"", path: str = "", on_answer: OnAnswer | None = None
    ) -> tuple[int, bytes]:
        """Error code and body. `on_answer` hears the code before anything that came after the answer is looked at:
        an event may follow at once."""
        if self._writer is None or not self._connected.is_set():
            raise error_of(Code.CONNECTION_LOSS, path)
        self._xid = self._xid % 0x7FFFFFFF + 1
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._pending[self._xid] = _Pending(path, future, on_answer)
        self._write(self._xid, op, body)
        return await future

    def watch(self, kind: WatchKind, path: str, watcher: Watcher) -> None:
        self._watchers[kind].setdefault(path, []).append(watcher)

    def forget(self, kinds: Iterable[WatchKind], path: str) -> None:
        for kind in kinds:
            self._watchers[kind].pop(path, None)

    async def authenticate(self, scheme: str, credentials: bytes) -> None:
        """Prove an identity, now and on every connection to come."""
        if (scheme, credentials) not in self._credentials:
            self._credentials.append((scheme, credentials))
        await self.request(Op.AUTH, _auth(scheme, credentials))

    async def _run(self) -> None:
        """The task that keeps the session connected."""
        pause_s = RECONNECT_S
        while True:
            host, port = self._hosts[self._next_host]
            self._next_host = (self._next_host + 1) % len(self._hosts)
            try:
                # Within a session's time-out, every host gets its chance.
                async with asyncio.timeout(self._timeout_ms / 1e3 / len(self._hosts)):
                    reader, self._writer = await asyncio.open_connection(host, port, ssl=self._tls)
                    joined = await self._join(reader)
                if joined:
                    pause_s = RECONNECT_S
                    await self._serve(reader)
                else:
                    self._lose()
                    continue
            except (OSError, EOFError, TimeoutError, ValueError):
                pass
            finally:
                self._disconnect(Code.CONNECTION_LOSS)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RECONNECT_S_MAX)

    async def _join(self, reader: asyncio.StreamReader) -> bool:
        """Open the session, or come back with it; false if it has ended."""
        assert self._writer is not None
        body = struct.pack(">iqiq", 0, self.last_zxid, self._timeout_ms, self.id)
        body += jute.pack_buffer(self._password) + b"\0"
        self._writer.write(jute.pack_int(len(body)) + body)
        answer = Reader(await _frame(reader))
        answer.number()
        timeout_ms, session, password = answer.number(), answer.long(), answer.buffer()
        if timeout_ms <= 0:
            return False
        self._timeout_ms, self.id, self._password = timeout_ms, session, password or b""
        for scheme, credentials in self._credentials:
            self._write(AUTH_XID, Op.AUTH, _auth(scheme, credentials))
        for batch in _batches({kind: list(watchers) for kind, watchers in self._watchers.items()}):
            parts = (jute.pack_texts(batch[kind]) for kind in WatchKind)
            self._write(SET_WATCHES_XID, Op.SET_WATCHES2, jute.pack_long(self.last_zxid) + b"".join(parts))
        return True

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        self._heard_s = self._sent_s = loop.time()
        self._connected.set()
        self._tell(State.CONNECTED)
        pinging = loop.create_task(self._ping())
        try:
            while True:
                frame = await _frame(reader)
                self._heard_s = loop.time()
                self._hear(frame)
        finally:
            pinging.cancel()

    async def _ping(self) -> None:
        """Keep the session alive; a server that is silent for too long counts as gone."""
        loop = asyncio.get_running_loop()
        interval_s = self._timeout_ms / 3e3
        while True:
            await asyncio.sleep(interval_s / 4)
            if loop.time() - self._heard_s > 2 * interval_s and self._writer is not None:
                self._writer.close()
                return
            if loop.time() - self._sent_s >= interval_s:
                self._write(PING_XID, Op.PING, b"")

    def _write(self, xid: int, op: int, body: bytes) -> None:
        assert self._writer is not None
        self._sent_s = asyncio.get_running_loop().time()
        self._writer.write(jute.pack_int(8 + len(body)) + jute.REQUEST_HEADER.pack(xid, op) + body)

    def _hear(self, frame: bytes) -> None:
        if len(frame) < jute.REPLY_HEADER.size:
            raise jute.JuteError("a reply without a header")
        xid, zxid, error = jute.REPLY_HEADER.unpack_from(frame)
        if xid == NOTIFICATION_XID:
            reader = Reader(frame, jute.REPLY_HEADER.size)
            event, _, path = reader.number(), reader.number(), reader.text()
            self._notify(WatchEvent(Event(event), path))
            return
        if zxid > 0:
            self.last_zxid = zxid
        found = self._pending.pop(xid, None)
        if found is None:
            return
        if found.on_answer is not None:
            found.on_answer(error)
        if not found.future.done():
            found.future.set_result((error, frame[jute.REPLY_HEADER.size :]))

    def _notify(self, event: WatchEvent) -> None:
        called: list[Watcher] = []
        for kind in _TOLD[event.event]:
            called += self._watchers[kind].pop(event.path, ())
        called += self._watchers[WatchKind.PERSISTENT].get(event.path, ())
        if event.event is not Event.CHILDREN_CHANGED and self._watchers[WatchKind.RECURSIVE]:
            for ancestor in ancestors(event.path):
                called += self._watchers[WatchKind.RECURSIVE].get(ancestor, ())
        for watcher in called:
            self._call(watcher, event)

    def _call(self, function: Callable[[Any], Any], argument: object) -> None:
        try:
            outcome = function(argument)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a callback raised {type(error).__name__}", "exception": error}
            )
            return
        if inspect.isawaitable(outcome):
            task = asyncio.ensure_future(outcome)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _tell(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            for listener in list(self._listeners):
                self._call(listener, state)

    def _disconnect(self, code: Code) -> None:
        self._connected.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        pending, self._pending = self._pending, {}
        for request in pending.values():
            if not request.future.done():
                request.future.set_exception(error_of(code, request.path))
        if self.state is State.CONNECTED:
            self._tell(State.SUSPENDED)

    def _lose(self) -> None:
        """The session has ended: its watches are gone, and the next one begins with nothing."""
        self._disconnect(Code.SESSION_EXPIRED)
        self.id, self._password, self.last_zxid = 0, bytes(16), 0
        for watchers in self._watchers.values():
            watchers.clear()
        self._tell(State.LOST)


def _batches(paths: dict[WatchKind, list[str]]) -> Iterator[dict[WatchKind, list[str]]]:
    """The paths in portions that fit a request each: a server refuses one that is too long."""
    batch: dict[WatchKind, list[str]] = {kind: [] for kind in WatchKind}
    size = 0
    for kind, some in paths.items():
        for path in some:
            if size > SET_WATCHES_BYTES:
                yield batch
                batch, size = {kind: [] for kind in WatchKind}, 0
            batch[kind].append(path)
            size += 4 + len(path.encode())
    if size:
        yield batch


async def _frame(reader: asyncio.StreamReader) -> bytes:
    length: int = jute.unpack_int(await reader.readexactly(4))[0]
    if not 0 <= length <= FRAME_BYTES_MAX:
        raise jute.JuteError(f"a frame of {length} bytes")
    return await reader.readexactly(length)


def _auth(scheme: str, credentials: bytes) -> bytes:
    return jute.pack_int(0) + jute.pack_text(scheme) + jute.pack_buffer(credentials)
