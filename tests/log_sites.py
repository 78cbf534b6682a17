"""Sites that serve a log and nothing else: a front end that gives readers away, as a container does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tara.net.certificates import Keys
from tara.net.log_server import LogServer
from tara.net.principal import Kind, Principal
from tara.net.server import Address
from tests.net.terms import serve


class LogSite:
    def __init__(self, directory: Path, keys: Keys | None = None, port: int = 0) -> None:
        self.bad: list[str] = []
        #: Where it says that all front ends are.
        self.endpoints: list[str] = []
        observers = None if keys is None else keys.observers()

        def admits(principal: Principal) -> bool:
            return observers is None or principal.kind is Kind.MEMBER or principal.digest in observers.now()

        guard = None if keys is None else keys.members_and_clients()
        self._front_end = serve(on_bad=self.bad.append, guard=guard, address=Address("127.0.0.1", port))
        self.log = LogServer(directory, admits, lambda: self.endpoints, self.bad.append)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return self._front_end.address.removeprefix("tcp://")

    def _run(self) -> None:
        while not self._stopping:
            self._front_end.wait(0.05)
            self._front_end.tick()
            assert self.log.take_readers(self._front_end, self._front_end.receive()) == []
        self._front_end.close()

    def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._thread.join()
            self.log.stop()


@contextmanager
def log_sites(*directories: Path, keys: Keys | None = None) -> Iterator[list[LogSite]]:
    sites = [LogSite(directory, keys) for directory in directories]
    try:
        yield sites
    finally:
        for site in sites:
            site.stop()


def endpoints_of(sites: list[LogSite]) -> str:
    return ",".join(site.endpoint for site in sites)
