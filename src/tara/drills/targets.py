"""A port under attack: where it is, what it takes, and which keys the attacker has."""

import socket
import ssl
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from tara.net.certificates import load_keys
from tara.protocol.limits import Limits

#: How long an answer may take.
TIMEOUT_S = 60.0


class AttackTarget(Struct, frozen=True, kw_only=True):
    #: `peers`, `clients`, `log`, `files`, `registry`, `zookeeper` or `metrics`.
    kind: str
    #: `plain` or `keyed`.
    mode: str
    address: str
    count: int
    rate_per_s: float
    seed: str
    #: The directory with the attacker's keys, and one with keys of another authority; empty: there are none.
    keys: str = ""
    foreign_keys: str = ""
    #: What correct frames say; the nodes that are there; and the lives of the containers that a registry has.
    cluster: int = 0
    era: int = 0
    shape: int = 0
    sender: int = 0
    life: int = 0
    here: list[int] = []
    containers: int = 0
    #: The attacker may not read the decided log.
    forbidden: bool = False
    #: Whose files are there.
    replica: int = 0
    limits: Limits = Limits()
    lives: dict[int, int] = {}

    @property
    def port(self) -> str:
        return f"{self.mode}/{self.kind}"

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.address.removeprefix("tcp://").removeprefix("http://").split("/")[0].rpartition(":")
        return host, int(port)

    def open(self, timeout_s: float = TIMEOUT_S) -> socket.socket:
        """A connection, and nothing more."""
        return socket.create_connection(self.place, timeout=timeout_s)

    def connect(self) -> socket.socket:
        """A connection, with a handshake if the port has keys."""
        sock = self.open()
        if not self.keys:
            return sock
        try:
            return _context(self.keys).wrap_socket(sock)
        except OSError:
            sock.close()
            raise


@lru_cache(maxsize=8)
def _context(directory: str) -> ssl.SSLContext:
    return load_keys(Path(directory)).blocking_context


def foreign_context(directory: str) -> ssl.SSLContext:
    """Of somebody who does not look at whom he talks to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if directory:
        context.load_cert_chain(Path(directory) / "client.pem", Path(directory) / "client.key")
    return context
