"""Where a container is: what the settings say of every host becomes what holds on this one.

`container_host`, `container_dir` and `keys` may name environment variables (`$SPARK_LOCAL_IP`, `${TARA_DISK}/tara`),
which each container looks up in its own process: Spark's workers hand theirs on to it. `auto` as a host is the address
from which this host reaches the registry.
"""

import contextlib
import ipaddress
import os
import re
import secrets
import socket
from pathlib import Path
from typing import Protocol

from tara.protocol.errors import ConfigurationError

AUTO = "auto"
WILDCARDS = ("0.0.0.0", "::", "*")
_ROWS = (10_000, 32_000)
_ROWS_TRIED = 100
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class NeedsKeys(ConfigurationError):
    """An address that others can reach, and no keys."""


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(key: str, host: str, keyed: bool) -> None:
    """Whether this address may be bound and told to others. One that names variables, or `auto`, is not known yet."""
    if host in WILDCARDS:
        raise ConfigurationError(f"{key} = {host}: must be an address that others can connect to")
    if host and host != AUTO and not _VARIABLE.search(host) and not keyed and not is_loopback(host):
        raise NeedsKeys(
            f"{key} = {host}: only loopback addresses (127.…) are served without keys; "
            "make some with `tara keygen DIR` and set keys = DIR"
        )


def expand(key: str, text: str) -> str:
    """With the variables of this process; an unknown one is an error, not an empty string."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not os.environ.get(name):
            raise ConfigurationError(f"{key} = {text}: the environment variable {name} is not set on this host")
        return os.environ[name]

    return _VARIABLE.sub(value, text)


def is_fixed(text: str) -> bool:
    """Whether it means the same on every host."""
    return text != AUTO and not _VARIABLE.search(text)


def same_everywhere(path: str) -> str:
    """A path as it may be told to other processes: without variables, independent of their working directory."""
    return str(Path(path).resolve()) if path and is_fixed(path) else path


class Placed(Protocol):
    """What `here` needs to know of a container."""

    @property
    def host(self) -> str: ...
    @property
    def data_dir(self) -> str: ...
    @property
    def keys(self) -> str: ...


def here(spec: Placed, registry: str) -> dict[str, str]:
    """The fields of the specification that depend on the host, as they are on this one."""
    host = expand("container_host", spec.host)
    if host == AUTO:
        host = _address_towards(registry)
    check_host("container_host", host, bool(spec.keys))
    return {
        "host": host,
        "data_dir": expand("container_dir", spec.data_dir),
        "keys": expand("keys", spec.keys),
    }


def _address_towards(registry: str) -> str:
    """The address of the interface through which packets to the registry leave. Nothing is sent."""
    host, _, port = registry.removeprefix("tcp://").rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigurationError(f"container_host = {AUTO}: no way to the registry at {registry}: {error}") from error


def free_row(count: int, host: str = "127.0.0.1") -> int:
    """The first of so many ports in a row that nobody uses just now, below those that the system hands out."""
    for _ in range(_ROWS_TRIED):
        first = secrets.choice(range(*_ROWS))
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind((host, port))
            except OSError:
                continue
            return first
    raise ConfigurationError(f"{host}: no {count} free ports in a row")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that nobody uses just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]
