"""Keys: who may talk to a cluster, as files in a directory.

A cluster has one CURVE key pair, which its containers, its registry and its operators share; each client has one of its
own. `tara keygen` makes them:

    DIR/cluster.key             the cluster's secret key: containers, registry and operators read it
    DIR/cluster.pub             the cluster's public key
    DIR/authorized/NAME.pub     the public key of a client that may connect to the front ends
    DIR/clients/NAME/           what the client NAME gets: client.key (secret) and cluster.pub

A directory is named by its path everywhere: in settings, in Spark closures, on command lines. Keys themselves stay in
files that only their owner may read, and in the memory of the processes that use them.
"""

import os
import re
import stat
from pathlib import Path
from typing import NoReturn

import zmq

from tara.protocol.errors import ConfigurationError

CLUSTER_KEY = "cluster.key"
CLUSTER_PUBLIC = "cluster.pub"
CLIENT_KEY = "client.key"
AUTHORIZED = "authorized"
CLIENTS = "clients"
#: Characters of a key in its printed form (Z85).
KEY_CHARACTERS = 40
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Keys:
    """A key pair, and the public key of the cluster. Cannot be pickled, and does not show its secret."""

    def __init__(self, directory: Path, secret: bytes, cluster: bytes | None = None) -> None:
        self.directory = directory
        self._secret = secret
        self.public = zmq.curve_public(secret)
        #: The public key that servers of the cluster prove to have.
        self.cluster = cluster or self.public

    def __repr__(self) -> str:
        return f"Keys({str(self.directory)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys do not travel: send the path of their directory")

    @property
    def is_cluster(self) -> bool:
        """Whether this is the cluster's own pair, and not a client's."""
        return self.public == self.cluster

    def secure_connecting(self, socket: zmq.Socket[bytes]) -> None:
        """Before `connect`: prove who we are, and accept nobody but the cluster."""
        self._set_pair(socket)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.cluster)

    def secure_binding(self, socket: zmq.Socket[bytes], domain: str) -> None:
        """Before `bind`: whoever connects is asked for a key. Without a gate in the context, nobody gets in."""
        self._set_pair(socket)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def _set_pair(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)


def load_keys(directory: str | Path) -> Keys:
    """The keys in a directory, of a cluster or of a client."""
    directory = Path(directory)
    if (directory / CLUSTER_KEY).exists():
        return Keys(directory, _read_secret(directory / CLUSTER_KEY))
    if (directory / CLIENT_KEY).exists():
        return Keys(directory, _read_secret(directory / CLIENT_KEY), read_public(directory / CLUSTER_PUBLIC))
    raise ConfigurationError(
        f"keys = {directory}: no {CLUSTER_KEY} or {CLIENT_KEY} there (make one with `tara keygen`)"
    )


def load_cluster_keys(directory: str | Path) -> Keys:
    """The keys of a cluster, for who is part of it."""
    keys = load_keys(directory)
    if not keys.is_cluster:
        raise ConfigurationError(f"keys = {directory}: these are a client's keys, not a cluster's")
    return keys


def _read_secret(path: Path) -> bytes:
    key = _read(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigurationError(f"{path}: others may read this secret key (mode {mode:o}): chmod 600 {path}")
    return key


def read_public(path: Path) -> bytes:
    return _read(path)


def _read(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    try:
        zmq.curve_public(key)
    except (zmq.ZMQError, ValueError) as error:
        raise ConfigurationError(f"{path}: is not a key") from error
    return key


def make_cluster_keys(directory: Path) -> None:
    """A new pair for a cluster; never in the place of another one."""
    secret_path = directory / CLUSTER_KEY
    _refuse_existing(secret_path)
    public, secret = zmq.curve_keypair()
    _make_directory(directory)
    _make_directory(directory / AUTHORIZED)
    # The secret comes last: without it the directory counts as empty, and the next attempt begins anew.
    _write_public(directory / CLUSTER_PUBLIC, public)
    _write_secret(secret_path, secret)


def make_client_keys(directory: Path, name: str) -> Path:
    """A new pair for a client, which is authorized by that. Returns the directory for the client."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"client {name!r}: a name has up to 64 letters, digits, dots, dashes and underscores")
    cluster = load_cluster_keys(directory)
    target = directory / CLIENTS / name
    _refuse_existing(target / CLIENT_KEY)
    public, secret = zmq.curve_keypair()
    for path in (directory / AUTHORIZED, directory / CLIENTS, target):
        _make_directory(path)
    _write_public(target / CLUSTER_PUBLIC, cluster.public)
    _write_public(directory / AUTHORIZED / f"{name}.pub", public)
    _write_secret(target / CLIENT_KEY, secret)
    return target


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise ConfigurationError(f"{path}: exists; a new key in its place would lock out whoever uses this one")


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be made: {error.strerror}") from error


def _write_public(path: Path, key: bytes) -> None:
    _write_temporary(path, key, 0o644).replace(path)


def _write_secret(path: Path, key: bytes) -> None:
    temporary = _write_temporary(path, key, 0o600)
    try:
        # Unlike a renaming, a link fails if the name is taken.
        os.link(temporary, path)
    except FileExistsError:
        _refuse_existing(path)
    finally:
        temporary.unlink()


def _write_temporary(path: Path, key: bytes, mode: int) -> Path:
    """The key in a file beside `path`, with no more permissions than it may have from the first moment on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigurationError(f"{temporary}: cannot be written: {error.strerror}") from error
    return temporary
