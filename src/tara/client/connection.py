"""A client over sockets: one thread that moves frames, and futures for those who wait."""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec
import zmq

from tara.client import wire
from tara.client.errors import ClientClosed, ClientError, NotReachable, Refused
from tara.client.keys import load_keys
from tara.client.reads import Question, Reads
from tara.client.refusals import stop_watching, take_failures, watch_handshakes
from tara.client.session import Call, Session, State
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError, MalformedTuple

DEFAULT_TIMEOUT_S = 10.0
SESSION_TIMEOUT_MS = 30_000

#: Hears the events that the application publishes, each with the counter of its command: in their order, but those that
#: are published while the client is between two front ends are lost. Called on the client's thread; must not wait.
OnEvent = Callable[[int, bytes], object]


def parse_endpoints(endpoints: str) -> list[str]:
    """`host:port,host:port` as ZeroMQ addresses."""
    found = [part.strip().removeprefix("tcp://") for part in endpoints.split(",") if part.strip()]
    for part in found:
        host, separator, port = part.rpartition(":")
        if not separator or not host or not port.isdigit():
            raise ConfigurationError(f"endpoint {part!r}: must be host:port")
    if not found:
        raise ConfigurationError("no endpoints given")
    return [f"tcp://{part}" for part in found]


class ClientOptions(TypedDict, total=False):
    """What every client can be told beside its endpoints; see `Client`."""

    timeout_s: float
    on_state: Callable[[State], None]
    keys: str | Path | None


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
    ) -> None:
        """With a name, the session is the one of that name: it never expires, and is shared by all who know the name.
        They have to agree what they send by `claim`. `keys` is the directory with this client's keys; a cluster that
        has keys refuses clients without."""
        self._endpoints = parse_endpoints(endpoints)
        self._keys = None if keys is None else load_keys(keys)
        #: Why the last connection did not come about, if ZeroMQ knows.
        self._refusal: str | None = None
        self._timeout_s = timeout_s
        self._on_state = on_state
        self._on_event = on_event
        self._state = State.CONNECTING
        self._context = zmq.Context()
        self._calls: deque[Call] = deque()
        self._questions: deque[Question] = deque()
        self._reads = Reads()
        self._closing = False
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_in.bind("inproc://wake")
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_out.connect("inproc://wake")
        self._lock = threading.Lock()
        self._current = int.from_bytes(os.urandom(2), "big") % len(self._endpoints)
        self._session = Session(SESSION_TIMEOUT_MS, lambda: int.from_bytes(os.urandom(7), "big") + 1, name)
        self._ever_heard = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tara-client", daemon=True)
        self._thread.start()

    # For users

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
        self._questions.append(Question(question, stale, self._deadline_s(timeout_s), done))
        self._notify()
        return future

    def claim(self, key: int, value: bytes, timeout_s: float | None = None) -> t.Claim:
        """In a session with a name: what the key stands for, which is this value if nobody was first. The commands that
        are submitted next have the numbers from the answer's `next` on."""
        answer = self._submit(t.encode(t.Claim(key, value)), t.CLAIM, timeout_s).result()
        return msgspec.msgpack.decode(answer, type=t.Claim)

    def close(self) -> None:
        self._closing = True
        self._wake()
        self._thread.join(timeout=5)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, payload: bytes, kind: int, timeout_s: float | None) -> Future[bytes]:
        future, done = self._future()
        self._calls.append(Call(payload, kind, self._deadline_s(timeout_s), done))
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
        where = ", ".join(self._endpoints)
        if self._refusal is not None:
            return Refused(f"no connection to {where}: {self._refusal}")
        return NotReachable(f"no answer from {where}")

    def _deadline_s(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _wake(self) -> bool:
        """Whether there is somebody to wake."""
        with self._lock:
            if self._wake_out.closed:
                return False
            self._wake_out.send(b"")
            return True

    # On the thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            # Whoever waits, or asks later, is told.
            self._failure = error
        finally:
            self._closing = True
            with self._lock:
                self._wake_out.close(0)
            self._wake_in.close(0)
            self._fail_all()
            self._context.destroy(0)

    def _fail_all(self) -> None:
        """Nobody is to wait for a thread that is gone."""
        reason = ClientClosed(f"the client failed: {self._failure!r}" if self._failure else "the client is closed")
        with self._lock:
            while self._calls:
                self._session.submit(self._calls.popleft())
            while self._questions:
                self._reads.submit(self._questions.popleft())
            self._session.fail(reason)
            self._reads.fail(reason)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_in, zmq.POLLIN)
        socket, monitor = self._connect(poller)
        while not self._closing:
            now_s = time.monotonic()
            while self._calls:
                self._session.submit(self._calls.popleft())
            while self._questions:
                self._reads.submit(self._questions.popleft())
            for late in self._reads.late(now_s):
                self._session.submit(Call(late.payload, t.QUERY, late.deadline_s, late.done))
            commands = self._session.due(now_s)
            if self._session.move_on or self._reads.move_on:
                # What is due goes to the next front end: this one has been silent.
                self._session.move_on = self._reads.move_on = False
                self._tell(State.LOST)
                self._disconnect(poller, socket, monitor)
                self._current = (self._current + 1) % len(self._endpoints)
                socket, monitor = self._connect(poller)
            self._send(socket, commands)
            wait_s = min(self._session.wait_s(now_s), self._reads.wait_s(now_s))
            ready = dict(poller.poll(int(wait_s * 1000) + 1))
            if self._wake_in in ready:
                self._drain_wake()
            if monitor in ready:
                self._refusal = take_failures(monitor, self._keys is not None)[-1]
            if socket in ready:
                self._receive(socket)
        self._disconnect(poller, socket, monitor)

    def _connect(self, poller: zmq.Poller) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A socket to the current front end, and one that tells if that refuses."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        if self._keys is not None:
            self._keys.secure_connecting(socket)
        monitor = watch_handshakes(socket)
        socket.connect(self._endpoints[self._current])
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        return socket, monitor

    def _disconnect(self, poller: zmq.Poller, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        poller.unregister(socket)
        poller.unregister(monitor)
        stop_watching(socket, monitor)
        socket.close(0)

    def _drain_wake(self) -> None:
        while self._wake_in.poll(0):
            self._wake_in.recv()

    def _send(self, socket: zmq.Socket[bytes], commands: list[t.Command]) -> None:
        reads = self._reads.due(time.monotonic())
        if commands or reads:
            socket.send(wire.encode(wire.ClientRequest(t.FORMAT_VERSION, commands, reads)), zmq.NOBLOCK)

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        now_s = time.monotonic()
        while True:
            try:
                reply = wire.decode_reply(socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except MalformedTuple:
                continue
            self._ever_heard = True
            self._tell(State.CONNECTED)
            for event in reply.events:
                self._on_event(event.counter, event.payload)
            for result in reply.results:
                self._session.hear(result, now_s)
            if reply.endpoints:
                self._learn(reply.endpoints)
            for id_, status, payload in reply.answers:
                self._reads.hear(id_, status, payload)

    def _learn(self, endpoints: list[str]) -> None:
        """The service has moved, or has front ends that we were not told of."""
        here = self._endpoints[self._current]
        self._endpoints = endpoints if here in endpoints else [here, *endpoints]
        self._current = self._endpoints.index(here)

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
