"""A client of the coordination service that counts in a node, in a process of its own: it is not in the way of the
registries, nor they in its."""

import multiprocessing
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from types import TracebackType

from tara.coordination.client import CoordinationClient
from tara.experiments.nuisances import LARGE_BYTES, LARGE_PATH
from tara.net.certificates import load_keys
from tara.protocol.errors import TaraError

PATH = "/count"
#: For the start of the process, and for its end.
_WAIT_S = 60.0


class CountingFailed(TaraError):
    """An increment was not acknowledged."""


class Increments:
    """Counts while the context lasts, or until it is told to `finish`."""

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
        """The value in the end."""
        self._stop.set()
        value = int(self._hear("value"))
        self._process.join(_WAIT_S)
        return value

    def _hear(self, expected: str) -> str:
        kind, value = self._messages.get(timeout=_WAIT_S)
        if kind != expected:
            raise CountingFailed(value)
        return value


def _work(
    hosts: str, keys: str | None, done: "Synchronized[int]", stop: Event, messages: "Queue[tuple[str, str]]"
) -> None:
    try:
        client = CoordinationClient(hosts, tls=None if keys is None else load_keys(keys).blocking_context)
        client.start()
        client.create(PATH, b"0")
        client.create(LARGE_PATH, bytes(LARGE_BYTES))
        messages.put(("started", ""))
        while not stop.is_set():
            value, stat = client.get(PATH)
            client.set(PATH, b"%d" % (int(value) + 1), stat.version)
            done.value += 1
        client.sync(PATH)
        messages.put(("value", client.get(PATH)[0].decode()))
        client.stop()
    except Exception as error:
        messages.put(("failed", f"{type(error).__name__}: {error}"))
        raise
