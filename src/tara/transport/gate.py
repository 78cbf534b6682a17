"""The gate: decides who may connect to the sockets of one process, and counts whom it turned away.

ZeroMQ asks, over an in-process socket (its authentication protocol, ZAP), about every key that a connection proves to
have. The gate answers on a thread of its own, beside the container's loop; only handshakes wait for it. Which client
keys are known is read from the directory, so a key that is added or taken away counts from the next connection on.

There are two kinds of sockets: those for members of the cluster, who have the cluster's own key, and those for clients.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq
from zmq.utils import z85

from tara.client.keys import AUTHORIZED, Keys, read_public
from tara.client.refusals import take_failures, watch_handshakes
from tara.protocol.errors import ConfigurationError

#: For whoever has the cluster's key: other containers, the registry, operators.
MEMBERS = "members"
#: For clients whose key is in the directory of authorized ones, and for members.
CLIENTS = "clients"

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_POLL_MS = 500
#: A directory that changed so recently may change again without showing it in its time.
_SETTLED_NS = 1_000_000_000


class Gate:
    """Made before the sockets that it guards are bound. `on_refused` is told, on the gate's thread, each refusal."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, on_refused: Callable[[str, str], None]
    ) -> None:
        self._keys = keys
        self._on_refused = on_refused
        self._authorized = AuthorizedKeys(keys.directory / AUTHORIZED)
        self._zap = context.socket(zmq.REP)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._zap.bind(_ZAP_ADDRESS)
        self._monitors: dict[zmq.Socket[bytes], str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="gate", daemon=True)

    def guard(self, socket: zmq.Socket[bytes], domain: str) -> None:
        """Before the socket is bound, and before `start`."""
        self._keys.secure_binding(socket, domain)
        self._monitors[watch_handshakes(socket)] = domain

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Before the context ends. Nobody new gets in afterwards."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    # On the thread

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._zap, *self._monitors):
            poller.register(socket, zmq.POLLIN)
        while not self._stopping.is_set():
            for socket, _ in poller.poll(_POLL_MS):
                if socket is self._zap:
                    self._answer(self._zap.recv_multipart())
                else:
                    domain = self._monitors[socket]
                    for reason in take_failures(socket, keyed=True):
                        self._on_refused(domain, reason)
        for socket in (self._zap, *self._monitors):
            socket.close(0)

    def _answer(self, request: list[bytes]) -> None:
        version, request_id, domain, _, _, mechanism, *credentials = request
        known = (
            version == _ZAP_VERSION
            and mechanism == b"CURVE"
            and len(credentials) == 1
            and self._knows(domain.decode(errors="replace"), credentials[0])
        )
        status, text = (b"200", b"") if known else (b"400", b"the key is not authorized")
        self._zap.send_multipart((_ZAP_VERSION, request_id, status, text, b"", b""))

    def _knows(self, domain: str, raw_key: bytes) -> bool:
        key = z85.encode(raw_key)
        if key == self._keys.public:
            return True
        return domain == CLIENTS and key in self._authorized.now()


class AuthorizedKeys:
    """The public keys in a directory; read again when the directory has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._version: int | None = None
        self._keys: frozenset[bytes] = frozenset()

    def now(self) -> frozenset[bytes]:
        """What cannot be read authorizes nobody; whoever is refused for that shows."""
        try:
            version = self._directory.stat().st_mtime_ns
            if version != self._version:
                self._keys = frozenset(self._read())
                self._version = version if time.time_ns() - version > _SETTLED_NS else None
        except OSError:
            self._version, self._keys = None, frozenset()
        return self._keys

    def _read(self) -> list[bytes]:
        found = []
        for path in self._directory.glob("*.pub"):
            try:
                found.append(read_public(path))
            except ConfigurationError:
                continue
        return found
