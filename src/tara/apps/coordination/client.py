"""The typed client for threads. The verbs are kazoo's.

An event loop on a thread of its own moves the bytes, another thread calls watches and listeners one after the other.
Recipes wait on the loop. So a callback may use the client as it likes, recipes included, and nothing waits for itself.
"""

import asyncio
import queue
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar, overload

from tara.apps.coordination.async_client import DEFAULT_TIMEOUT_S, AsyncCoordinationClient, AsyncTransaction
from tara.apps.coordination.async_recipes import AsyncElection, AsyncLock
from tara.apps.coordination.jute import Acl, Stat
from tara.apps.coordination.wire_client import State, Watcher, WatchEvent
from tara.protocol.errors import TaraError

Answer = TypeVar("Answer")


class CoordinationClient:
    """`with CoordinationClient("host:port,host:port") as client: …`"""

    def __init__(self, hosts: str, timeout_s: float = DEFAULT_TIMEOUT_S, tls: ssl.SSLContext | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncCoordinationClient(hosts, timeout_s, tls)
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._loop.run_forever, name="coordination-loop", daemon=True),
            threading.Thread(target=self._dispatch, name="coordination-callbacks", daemon=True),
        ]
        self._listeners: dict[Callable[[State], object], Callable[[State], None]] = {}
        self._started = False
        self._closed = False

    def start(self, timeout_s: float = 15.0) -> None:
        if self._closed:
            raise TaraError("this client was stopped; make a new one")
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        self.run(self._client.start(timeout_s))

    def stop(self) -> None:
        """End the session, and its ephemeral nodes with it."""
        if not self._started or self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._client.stop(), self._loop).result()
        self._calls.put(None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)
        self._loop.close()

    def __enter__(self) -> "CoordinationClient":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, work: Coroutine[Any, Any, Answer], timeout_s: float | None = None) -> Answer:
        """Wait for something that runs on the loop."""
        if self._closed or not self._started:
            work.close()
            raise TaraError("this client is not started, or was stopped")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def _dispatch(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                )

    def _watcher(self, watch: Callable[[WatchEvent], object] | None) -> Watcher | None:
        """The callback, moved to the callbacks' thread."""
        if watch is None:
            return None
        return lambda event: self._calls.put(lambda: watch(event))

    @property
    def state(self) -> State:
        return self._client.state

    @property
    def session_id(self) -> int:
        return self._client.session_id

    @property
    def asynchronous(self) -> AsyncCoordinationClient:
        """The client that does the work; for use on its loop, with `run`."""
        return self._client

    def add_listener(self, listener: Callable[[State], object]) -> None:
        def moved(state: State) -> None:
            self._calls.put(lambda: listener(state))

        self._listeners[listener] = moved
        self._client.add_listener(moved)

    def remove_listener(self, listener: Callable[[State], object]) -> None:
        moved = self._listeners.pop(listener, None)
        if moved is not None:
            self._client.remove_listener(moved)

    def add_auth(self, scheme: str, credentials: str) -> None:
        self.run(self._client.add_auth(scheme, credentials))

    def create(
        self,
        path: str,
        value: bytes = b"",
        acl: Acl | None = None,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
        container: bool = False,
        ttl_ms: int = 0,
    ) -> str:
        """Make a node; its path, which a sequential one learns here."""
        return self.run(self._client.create(path, value, acl, ephemeral, sequence, makepath, container, ttl_ms))

    def ensure_path(self, path: str) -> None:
        self.run(self._client.ensure_path(path))

    def exists(self, path: str, watch: Callable[[WatchEvent], object] | None = None) -> Stat | None:
        return self.run(self._client.exists(path, self._watcher(watch)))

    def get(self, path: str, watch: Callable[[WatchEvent], object] | None = None) -> tuple[bytes, Stat]:
        return self.run(self._client.get(path, self._watcher(watch)))

    @overload
    def get_children(
        self, path: str, watch: Callable[[WatchEvent], object] | None = None, include_data: Literal[False] = False
    ) -> list[str]: ...
    @overload
    def get_children(
        self, path: str, watch: Callable[[WatchEvent], object] | None = None, *, include_data: Literal[True]
    ) -> tuple[list[str], Stat]: ...
    def get_children(
        self, path: str, watch: Callable[[WatchEvent], object] | None = None, include_data: bool = False
    ) -> list[str] | tuple[list[str], Stat]:
        names, stat = self.run(self._client.get_children(path, self._watcher(watch), include_data=True))
        return (names, stat) if include_data else names

    def set(self, path: str, value: bytes, version: int = -1) -> Stat:
        return self.run(self._client.set(path, value, version))

    def delete(self, path: str, version: int = -1, recursive: bool = False) -> None:
        self.run(self._client.delete(path, version, recursive))

    def get_acls(self, path: str) -> tuple[Acl, Stat]:
        return self.run(self._client.get_acls(path))

    def set_acls(self, path: str, acl: Acl, version: int = -1) -> Stat:
        return self.run(self._client.set_acls(path, acl, version))

    def sync(self, path: str = "/") -> None:
        self.run(self._client.sync(path))

    def add_watch(self, path: str, watch: Callable[[WatchEvent], object], recursive: bool = False) -> None:
        moved = self._watcher(watch)
        assert moved is not None
        self.run(self._client.add_watch(path, moved, recursive))

    def remove_watches(self, path: str) -> None:
        self.run(self._client.remove_watches(path))

    def transaction(self) -> "Transaction":
        return Transaction(self, self._client.transaction())

    def lock(self, path: str, identifier: str = "") -> "Lock":
        return Lock(self, path, identifier)

    def election(self, path: str, identifier: str = "") -> "Election":
        return Election(self, path, identifier)


class Transaction:
    """Operations that happen together or not at all; leaving a `with` block commits."""

    def __init__(self, client: CoordinationClient, transaction: AsyncTransaction) -> None:
        self._client = client
        self._transaction = transaction
        self.create = transaction.create
        self.set_data = transaction.set_data
        self.delete = transaction.delete
        self.check = transaction.check

    def commit(self) -> list[str | Stat | None]:
        return self._client.run(self._transaction.commit())

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()


class Lock:
    """A fair lock; `with client.lock("/path"): …`"""

    def __init__(self, client: CoordinationClient, path: str, identifier: str = "") -> None:
        self._client = client
        self._lock = AsyncLock(client.asynchronous, path, identifier)

    @property
    def acquired(self) -> bool:
        return self._lock.acquired

    @property
    def lost(self) -> bool:
        """Whether the lock cannot be relied on: the client is cut off, or does not hold it."""
        return self._lock.lost.is_set()

    def acquire(self, blocking: bool = True, timeout_s: float | None = None) -> bool:
        return self._client.run(self._lock.acquire(blocking, timeout_s))

    def release(self) -> None:
        self._client.run(self._lock.release())

    def contenders(self) -> list[str]:
        return self._client.run(self._lock.contenders())

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Election:
    """One leader at a time."""

    def __init__(self, client: CoordinationClient, path: str, identifier: str = "") -> None:
        self._client = client
        self._election = AsyncElection(client.asynchronous, path, identifier)

    def run(self, lead: Callable[[], Answer]) -> Answer:
        """Wait for our turn, lead until the function returns, and step down."""
        with_lock = self._election.lock
        self._client.run(with_lock.acquire())
        try:
            return lead()
        finally:
            self._client.run(with_lock.release())

    def contenders(self) -> list[str]:
        return self._client.run(self._election.contenders())
