"""Names of hosts: what their addresses are, without anybody having to wait for a resolver.

A resolver may take many seconds, and the loop of a container, on which everything waits, none. So each look-up has a
thread of its own, and whoever wants to connect before it is over is told to try again, as after any failure.
"""

import socket
import threading
import time
from collections.abc import Callable

from tara.net.errors import Broken

#: A look-up that was over so recently is not repeated: who connects in vain does so many times in a second.
FRESH_S = 1.0
#: After so long without an answer, the address that was the last good one has to do.
PATIENCE_S = 1.0
#: Names that are remembered, and look-ups at once, of one who connects.
NAMES_MAX = 64

#: From a host as somebody wrote it to its address; raises `Broken`.
AddressOf = Callable[[str], str]


def is_numeric(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, host)
    except (OSError, ValueError):
        return False
    return True


def look_up(host: str) -> str:
    """Waits for the resolver: for those who keep nobody else waiting."""
    if is_numeric(host):
        return host
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, ValueError) as error:
        raise Broken(f"{host}: {error}") from error


class _LookUp:
    """A question to the resolver, on a thread of its own."""

    def __init__(self, host: str) -> None:
        self.address = ""
        self.error = f"{host}: the resolver has not answered yet"
        self.began_s = time.monotonic()
        self.over_s = 0.0
        self.over = threading.Event()
        threading.Thread(target=self._run, args=(host,), name="look-up", daemon=True).start()

    def _run(self, host: str) -> None:
        try:
            self.address = look_up(host)
        except Broken as broken:
            self.error = str(broken)
        finally:
            self.over_s = time.monotonic()
            self.over.set()


class Names:
    """The names that somebody connects to. One thread uses it."""

    def __init__(self, wait_s: float = 0.0) -> None:
        """`wait_s`: how long `address_of` may wait."""
        self._wait_s = wait_s
        self._look_ups: dict[str, _LookUp] = {}
        #: What the last look-up said that found something.
        self._good: dict[str, str] = {}

    def address_of(self, host: str) -> str:
        """To be asked for every attempt to connect: a host may have moved since the one before. Raises `Broken` if the
        address is not known, or not yet."""
        if is_numeric(host):
            return host
        look_up = self._current(host)
        if self._wait_s:
            look_up.over.wait(self._wait_s)
        over = look_up.over.is_set()
        self._keep(host, look_up)
        if host not in self._good or not (over or time.monotonic() - look_up.began_s >= PATIENCE_S):
            raise Broken(look_up.error)
        return self._good[host]

    def _keep(self, host: str, look_up: _LookUp) -> None:
        if look_up.over.is_set() and look_up.address:
            self._good[host] = look_up.address

    def _current(self, host: str) -> _LookUp:
        """The look-up that goes on, or was over a moment ago."""
        look_up = self._look_ups.get(host)
        if look_up is not None:
            if not look_up.over.is_set() or time.monotonic() - look_up.over_s < FRESH_S:
                return look_up
            self._keep(host, look_up)
        elif len(self._look_ups) >= NAMES_MAX:
            self._forget_one()
        try:
            look_up = self._look_ups[host] = _LookUp(host)
        except RuntimeError as error:
            # There are too many threads on this host.
            raise Broken(f"{host}: {error}") from error
        return look_up

    def _forget_one(self) -> None:
        oldest = next((host for host, look_up in self._look_ups.items() if look_up.over.is_set()), None)
        if oldest is None:
            raise Broken("too many names are being looked up")
        del self._look_ups[oldest]
        self._good.pop(oldest, None)
