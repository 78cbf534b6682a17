"""Gateways in the virtual world: the front ends of an application's own wire protocol, and clients that speak it.

An application that has a gateway names a `Wire` in its `Simulation`. It brings the gateway's logic, without sockets,
and clients that talk to it in bytes, and judge what they get.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tara.protocol import tuples as t
from tara.protocol.limits import Limits
from tara.protocol.node import Replica
from tara.protocol.sessions import Application
from tara.simulator.checks.linearizability import Operation

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World


class WireClient(Protocol):
    """A client, as a run sees it."""

    index: int
    history: list[Operation]
    answered: int

    @property
    def done(self) -> bool: ...
    @property
    def in_flight(self) -> Sequence[int]: ...
    @property
    def waiting_since_ms(self) -> float: ...
    def wake(self, now_ms: float) -> None: ...
    def restart(self, orderly: bool = False) -> None: ...
    def pause(self, until_ms: float) -> None: ...
    def burst(self) -> None: ...
    def poison(self) -> None: ...
    def finish(self) -> None: ...


class WireGateway(Protocol):
    """The gateway of one life of a site."""

    @property
    def busy(self) -> bool:
        """Whether it can go on at once."""
        ...

    @property
    def serving(self) -> bool:
        """Whether clients are served."""
        ...

    def receive(self) -> None:
        """Take what clients have sent."""
        ...

    def take(self, results: list[t.Result]) -> None: ...

    def respond(self, now_s: float) -> None: ...

    def close(self) -> None:
        """Its process has ended, or its replica executes no more: its clients notice."""
        ...


class Wire(Protocol):
    def clients(self, count: int) -> Sequence[WireClient]: ...

    def open(self, site: "GatewaySite") -> WireGateway: ...


class GatewaySite:
    """A site as its gateway sees it (`tara.net.gateway.GatewayHost`)."""

    def __init__(self, world: "World", container: "SimulatedContainer", replica: Replica) -> None:
        self._world = world
        self._container = container
        self._replica = replica
        self.site = container.site
        self.limits: Limits = world.plan.limits
        self.application: Application = replica.application
        self.submit: Callable[[list[t.Command]], None] = container.running.submit

    @property
    def host(self) -> str:
        return "virtual"

    @property
    def data_dir(self) -> Any:
        return None

    @property
    def counter(self) -> int:
        return self._replica.counter

    def wake(self) -> None:
        """Something has come for the gateway."""
        self._world.wake_gateway(self._container)
