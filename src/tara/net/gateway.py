"""Gateways: front ends for other wire protocols, inside a site's container, beside the replica they serve.

An application names its gateway in `StateMachine.gateway`. The container's loop drives it, on its own thread: a gateway
sees the replica only between two turns, and what it sends leaves after the journal is synced. Its commands go through a
session of its own in the replicated log (`tara.host.gateway_session`).
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Protocol

from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.protocol.limits import Limits
from tara.protocol.sessions import Application

Options = dict[str, str | int | float | bool]


class GatewayHost(Protocol):
    """What a container offers to its gateway."""

    @property
    def site(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def data_dir(self) -> Path: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def application(self) -> Application:
        """The replica that is here: to be read, never changed."""

    @property
    def counter(self) -> int:
        """How many commands it has executed."""

    def submit(self, commands: list[t.Command]) -> None:
        """Order commands, stamped as the gateway's; results come through `Gateway.take`."""


class Gateway(Protocol):
    def fileno(self) -> int:
        """Readable when `receive` has something to do."""

    def receive(self) -> None:
        """Take what clients have sent. What executed before is durable; what they ask may be answered from it."""

    def take(self, results: list[t.Result]) -> None:
        """Results of submitted commands, in order."""

    def respond(self, now_s: float) -> None:
        """Called at the end of every turn of the loop, after the sync: answer what can be answered."""

    def status(self) -> dict[str, object]:
        """For `tara status`; has the address under `address`."""

    def close(self) -> None: ...


def make_gateway(name: str, site: GatewayHost, options: Options) -> Gateway:
    """The gateway `module:function`."""
    try:
        factory: Callable[[GatewayHost, Options], Gateway] = getattr(_module_of(name), name.partition(":")[2])
    except AttributeError as error:
        raise ConfigurationError(f"gateway = {name}: {error}") from error
    return factory(site, options)


def check_gateway(name: str, host: str | None, options: Options) -> None:
    """Let the gateway's module refuse these options before anything starts, so that the operator is told at once. A
    module that wants to check them has a function `check(host, options)`; the host is None if only the container will
    know its name."""
    check: Callable[[str | None, Options], None] | None = getattr(_module_of(name), "check", None)
    if check is not None:
        check(host, options)


def _module_of(name: str) -> ModuleType:
    try:
        return importlib.import_module(name.partition(":")[0])
    except ImportError as error:
        raise ConfigurationError(f"gateway = {name}: {error}") from error
