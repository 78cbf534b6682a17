"""A client over sockets: one thread that moves frames, and futures for those who wait."""

import asyncio
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec

from tara.client.conversation import Conversation
from tara.client.errors import ClientClosed, ClientError, NotReachable, Refused
from tara.client.reads import ReadSubmission
from tara.client.session import Session, State, Submission
from tara.host import client_wire
from tara.net.channel import Channel, Channels
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError, MalformedTuple
from tara.protocol.principals import SECRET_BYTES_MAX, SECRET_BYTES_MIN

DEFAULT_TIMEOUT_S = 10.0
SESSION_TIMEOUT_MS = 30_000
#: Between two connections, when they break at once.
CONNECT_PAUSE_S = 0.05
#: How long the last message may take to leave when a client is closed.
FAREWELL_S = 0.2

#: Hears the events that the application publishes, each with the counter of its command: in their order, but those that
#: are published while the client is between two front ends are lost. Called on the client's thread; must not wait.
OnEvent = Callable[[int, bytes], object]


def parse_endpoints(endpoints: str) -> list[str]:
    """`host:port,host:port` as addresses."""
    found = [part.strip().removeprefix("tcp://") for part in endpoints.split(",") if part.strip()]
    for part in found:
        host, separator, port = part.rpartition(":")
        if not separator or not host or not port.isdigit():
            raise ConfigurationError(f"endpoint {part!r}: must be host:port")
    if not found:
        raise ConfigurationError("no endpoints given")
    return [f"tcp://{part}" for part in found]


def _checked(secret: bytes, needed: bool) -> bytes:
    """The secret to present."""
    if not secret:
        if needed:
            raise ConfigurationError(
                "a session with a name needs a secret (or keys): who opens it again has to show that it is his"
            )
        return os.urandom(SECRET_BYTES_MIN)
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ConfigurationError(f"secret: has {len(secret)} bytes, must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}")
    return secret


class ClientOptions(TypedDict, total=False):
    """What every client can be told beside its endpoints; see `Client`."""

    timeout_s: float
    on_state: Callable[[State], None]
    keys: str | Path | None
    secret: bytes


class Client:
    """A blocking client, for any number of threads. `submit` gives a future, so commands can be pipelined."""

    def __init__(
        self,
        endpoints: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        on_state: Callable[[State], None] = lambda state: None,
        on_event: OnEvent = lambda counter, payload: None,
        name: str = "",
        keys: str | Path | None = None,
        secret: bytes = b"",
    ) -> None:
        """With a name, the session is the one of that name: it never expires, and is shared by all who have the keys
        (or, without keys, the secret) of whoever opened it. They have to agree what they send by `claim`. `keys` is the
        directory with this client's keys; a cluster that has keys refuses clients without. `secret` is what only the
        owner of the session knows, 16 to 64 bytes; by default a random one, which ends with this object."""
        addresses = parse_endpoints(endpoints)
        session = Session(SESSION_TIMEOUT_MS, lambda: int.from_bytes(os.urandom(7), "big") + 1, name)
        first = int.from_bytes(os.urandom(2), "big")
        secret = _checked(secret, bool(name) and keys is None)
        self._conversation = Conversation(addresses, first, session, secret, on_event)
        self._channels = Channels(keys)
        self._connected_s = 0.0
        #: Why the last connection did not come about, if that is known.
        self._refusal: str | None = None
        self._timeout_s = timeout_s
        self._on_state = on_state
        self._state = State.CONNECTING
        self._calls: deque[Submission] = deque()
        self._reads: deque[ReadSubmission] = deque()
        self._closing = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._lock = threading.Lock()
        self._ever_heard = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tara-client", daemon=True)
        self._thread.start()

    def submit(self, command: bytes, timeout_s: float | None = None) -> Future[bytes]:
        """Order a command; the future gives its result, or raises a `ClientError`."""
        return self._submit(command, t.EXECUTE, timeout_s)

    def execute(self, command: bytes, timeout_s: float | None = None) -> bytes:
        return self.submit(command, timeout_s).result()

    def query(self, question: bytes, timeout_s: float | None = None, stale: bool = False) -> bytes:
        """Ask without changing anything. The answer knows of every command that was answered before the call; a stale
        one comes at once, from whatever the next replica has."""
        return self.submit_query(question, timeout_s, stale).result()

    def submit_query(self, question: bytes, timeout_s: float | None = None, stale: bool = False) -> Future[bytes]:
        future, done = self._future()
        self._reads.append(ReadSubmission(question, stale, self._deadline_s(timeout_s), done))
        self._notify()
        return future

    def claim(self, key: int, value: bytes, timeout_s: float | None = None) -> t.Claim:
        """In a session with a name: what the key stands for, which is this value if nobody was first. The commands that
        are submitted next have the numbers from the answer's `next` on."""
        answer = self._submit(t.encode(t.Claim(key, value)), t.CLAIM, timeout_s).result()
        return msgspec.msgpack.decode(answer, type=t.Claim)

    def close(self) -> None:
        """What is not answered yet fails. The session ends, unless it has a name or a command that may still come: then
        it expires."""
        self._closing = True
        self._wake()
        self._thread.join(timeout=5)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, payload: bytes, kind: int, timeout_s: float | None) -> Future[bytes]:
        future, done = self._future()
        self._calls.append(Submission(payload, kind, self._deadline_s(timeout_s), done))
        self._notify()
        return future

    def _notify(self) -> None:
        if not self._wake():
            self._fail_all()

    def _future(self) -> tuple[Future[bytes], Callable[[bytes | ClientError], None]]:
        future: Future[bytes] = Future()
        # Nobody can cancel it: the command is on its way.
        future.set_running_or_notify_cancel()

        def done(outcome: bytes | ClientError) -> None:
            if isinstance(outcome, bytes):
                future.set_result(outcome)
            elif not self._ever_heard and not isinstance(outcome, ClientClosed):
                future.set_exception(self._not_reachable())
            else:
                future.set_exception(outcome)

        return future, done

    def _not_reachable(self) -> NotReachable:
        where = ", ".join(self._conversation.endpoints)
        if self._refusal is not None:
            return Refused(f"no connection to {where}: {self._refusal}")
        return NotReachable(f"no answer from {where}")

    def _deadline_s(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _wake(self) -> bool:
        """Whether there is somebody to wake."""
        with self._lock:
            if self._wake_out.fileno() < 0:
                return False
            with suppress(BlockingIOError):  # It has been woken often enough.
                self._wake_out.send(b"!")
            return True

    def _run(self) -> None:
        """The client's thread."""
        try:
            self._serve()
        except Exception as error:
            # Whoever waits, or asks later, is told.
            self._failure = error
        finally:
            self._closing = True
            with self._lock:
                self._wake_out.close()
            self._wake_in.close()
            self._fail_all()

    def _fail_all(self) -> None:
        """Nobody is to wait for a thread that is gone."""
        reason = ClientClosed(f"the client failed: {self._failure!r}" if self._failure else "the client is closed")
        with self._lock:
            self._pass_on()
            self._conversation.fail(reason)

    def _pass_on(self) -> None:
        while self._calls:
            self._conversation.submit(self._calls.popleft())
        while self._reads:
            self._conversation.read(self._reads.popleft())

    def _serve(self) -> None:
        conversation, channel = self._conversation, self._connect()
        while not self._closing:
            now_s = time.monotonic()
            self._pass_on()
            if conversation.turn(now_s, channel.broken and now_s - self._connected_s >= CONNECT_PAUSE_S):
                self._tell(State.LOST)
                self._disconnect(channel)
                channel = self._connect()
            for message in conversation.messages(now_s):
                channel.send(message)
            self._wait(channel, conversation.wait_s(now_s))
            self._receive(channel)
        self._pass_on()
        for message in conversation.farewell():
            channel.send(message)
        channel.close(FAREWELL_S)

    def _wait(self, channel: Channel, wait_s: float) -> None:
        """For whatever comes first: an answer, a new call, or the end of that time."""
        poller = select.poll()
        poller.register(self._wake_in, select.POLLIN)
        if channel.broken:
            wait_s = min(wait_s, CONNECT_PAUSE_S)
        else:
            poller.register(channel, channel.events)
        if self._wake_in.fileno() in dict(poller.poll(int(wait_s * 1000) + 1)):
            self._wake_in.recv(4096)

    def _connect(self) -> Channel:
        self._connected_s = time.monotonic()
        return self._channels.open(self._conversation.here)

    def _disconnect(self, channel: Channel) -> None:
        self._refusal = channel.refusal or self._refusal
        channel.close()

    def _receive(self, channel: Channel) -> None:
        now_s = time.monotonic()
        for message in channel.receive():
            try:
                reply = client_wire.decode_reply(message)
            except MalformedTuple:
                continue
            self._ever_heard = True
            self._tell(State.CONNECTED)
            self._conversation.hear(reply, now_s)

    def _tell(self, state: State) -> None:
        if state is not self._state:
            self._state = state
            self._on_state(state)


class AsyncClient:
    """The same for asyncio."""

    def __init__(self, endpoints: str, on_event: OnEvent | None = None, **options: Unpack[ClientOptions]) -> None:
        if on_event is None:
            self._client = Client(endpoints, **options)
            return
        loop, hear = asyncio.get_running_loop(), on_event
        self._client = Client(
            endpoints, on_event=lambda counter, payload: loop.call_soon_threadsafe(hear, counter, payload), **options
        )

    async def execute(self, command: bytes, timeout_s: float | None = None) -> bytes:
        return await asyncio.wrap_future(self._client.submit(command, timeout_s))

    async def query(self, question: bytes, timeout_s: float | None = None, stale: bool = False) -> bytes:
        return await asyncio.wrap_future(self._client.submit_query(question, timeout_s, stale))

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
