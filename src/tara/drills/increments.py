"""Clients of the coordination service, each of which counts in a node. They have a process of their own: they are not
in the way of the registries, nor those in theirs."""

import multiprocessing
import threading
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from types import TracebackType

from tara.apps.coordination.client import CoordinationClient
from tara.drills.nuisances import LARGE_BYTES, LARGE_PATH
from tara.net.certificates import load_keys
from tara.protocol.errors import TaraError

#: How many count.
CLIENTS = 4
#: For the start of the process, and for its end.
_WAIT_S = 60.0


class CountingFailed(TaraError):
    """An increment was not acknowledged."""


class Increments:
    """They count while the context lasts, or until they are told to `finish`."""

    def __init__(self, hosts: str, keys: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._done: Synchronized[int] = context.Value("q", 0)
        self._stop = context.Event()
        self._messages: Queue[tuple[str, str]] = context.Queue()
        arguments = (hosts, keys, self._done, self._stop, self._messages)
        self._process = context.Process(target=_work, args=arguments, daemon=True)

    @property
    def done(self) -> int:
        """Increments that were acknowledged."""
        return self._done.value

    def __enter__(self) -> "Increments":
        self._process.start()
        self._hear("started")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.join()

    def finish(self) -> int:
        """The sum of the values in the end."""
        self._stop.set()
        value = int(self._hear("value"))
        self._process.join(_WAIT_S)
        return value

    def _hear(self, expected: str) -> str:
        kind, value = self._messages.get(timeout=_WAIT_S)
        if kind != expected:
            raise CountingFailed(value)
        return value


class _Counter(threading.Thread):
    def __init__(self, hosts: str, keys: str | None, index: int, done: "Synchronized[int]", stop: Event) -> None:
        super().__init__(daemon=True)
        self._client = CoordinationClient(hosts, tls=None if keys is None else load_keys(keys).blocking_context)
        self._client.start()
        self._path = f"/count-{index}"
        self._client.create(self._path, b"0")
        if index == 0:
            self._client.create(LARGE_PATH, bytes(LARGE_BYTES))
        self._done = done
        self._stopped = stop
        self._failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                value, stat = self._client.get(self._path)
                self._client.set(self._path, b"%d" % (int(value) + 1), stat.version)
                with self._done.get_lock():
                    self._done.value += 1
        except Exception as error:
            self._failure = error

    def finish(self) -> int:
        """The value in the end."""
        self.join()
        if self._failure is not None:
            raise self._failure
        self._client.sync(self._path)
        value = int(self._client.get(self._path)[0])
        self._client.stop()
        return value


def _work(
    hosts: str, keys: str | None, done: "Synchronized[int]", stop: Event, messages: "Queue[tuple[str, str]]"
) -> None:
    try:
        counters = [_Counter(hosts, keys, index, done, stop) for index in range(CLIENTS)]
        messages.put(("started", ""))
        for counter in counters:
            counter.start()
        messages.put(("value", str(sum([counter.finish() for counter in counters]))))
    except Exception as error:
        messages.put(("failed", f"{type(error).__name__}: {error}"))
        raise
