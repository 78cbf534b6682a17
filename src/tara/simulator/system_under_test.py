"""The application that is simulated: what replicas run, what clients do to it, and how the results are judged.

The key-value store has a model of its own, which is independent of all code that runs it. Any other application is
its own model: run alone, one command after the other, it must give the results that the clients got.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tara.application import Execute, KeyValueStore, Query, Simulation, StateMachine
from tara.client.errors import ClientError
from tara.named import application_of, attribute_of
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.protocol.limits import Limits
from tara.simulator.checks import linearizability, sequential
from tara.simulator.checks.linearizability import Operation
from tara.simulator.checks.violation import Violation
from tara.simulator.gateways import Wire
from tara.simulator.workload import Audited, Call, audited_store, draw_call, principal_of_client

if TYPE_CHECKING:
    from tara.simulator.world import World


class Caller(Protocol):
    """What one client does."""

    def next(self, draw: random.Random, operation: int) -> Call: ...
    def heard(self, call: Call, status: int, payload: bytes) -> None: ...


class Subject(Protocol):
    #: Statuses that a command may come back with, unless it was poison.
    statuses: tuple[int, ...]
    #: What to suspect when replicas with equal commands have different results or states.
    suspicion: str

    def replica(self) -> StateMachine: ...
    def caller(self) -> Caller: ...
    def principal(self, client: int) -> bytes:
        """Who this client is."""

    def result(self, status: int, payload: bytes) -> Any:
        """What the history says about an answer."""

    def check(self, replica: StateMachine) -> None:
        """Raise a violation if a replica is in a state that must not be."""

    def check_stale(self, call: Call, outcome: bytes | ClientError) -> None:
        """Raise a violation if no state that ever was can have given this answer to a stale read."""

    def judge(self, history: list[Operation], log: list[t.Request], limits: Limits) -> None:
        """Raise a violation if nothing explains the clients' history."""

    def wire(self, world: "World") -> Wire | None:
        """Its gateways, if there are to be any."""


def subject_of(name: str, keys: int, value_bytes: int = 0, long_share: float = 0.0) -> Subject:
    """The subject of this name; a clear error if it cannot be simulated."""
    application = application_of(name)
    if application is KeyValueStore:
        return KeyValueSubject(keys, value_bytes, long_share)
    return ApplicationSubject(name, application, simulation_of(name, application))


def simulation_of(name: str, application: type[StateMachine]) -> type[Simulation]:
    found: object = application.simulation
    if found is None:
        raise ConfigurationError(
            f"app = {name}: does not say how to simulate it; set {application.__name__}.simulation to a subclass of "
            "tara.application.Simulation (docs/simulator.md)"
        )
    if isinstance(found, str):
        found = attribute_of("simulation", found)
    if not (isinstance(found, type) and issubclass(found, Simulation)):
        raise ConfigurationError(f"simulation = {found}: is not a subclass of tara.application.Simulation")
    return found


class KeyValueSubject:
    statuses: tuple[int, ...] = (t.OK,)
    suspicion = ""

    def __init__(self, keys: int, value_bytes: int, long_share: float) -> None:
        self._keys = keys
        self._value_bytes = value_bytes
        self._long_share = long_share
        #: By key, what anybody wanted to write there.
        self._written: dict[str, set[bytes]] = {}

    def replica(self) -> StateMachine:
        return audited_store()

    def principal(self, client: int) -> bytes:
        return principal_of_client(KeyValueStore, client)

    def caller(self) -> Caller:
        return self

    def next(self, draw: random.Random, operation: int) -> Call:
        call = draw_call(draw, self._keys, operation, self._value_bytes, self._long_share)
        if call.model[0] in ("put", "cas"):
            self.note_written(call.key, call.model[-1])
        return call

    def note_written(self, key: str, value: bytes) -> None:
        self._written.setdefault(key, set()).add(value)

    def heard(self, call: Call, status: int, payload: bytes) -> None:
        """Its clients learn nothing."""

    def check_stale(self, call: Call, outcome: bytes | ClientError) -> None:
        value = msgspec.msgpack.decode(outcome) if isinstance(outcome, bytes) else outcome
        if value is not None and value not in self._written.get(call.key, ()):
            raise Violation("stale_reads", f"{call.key}: {value!r}, which nobody wrote")

    def result(self, status: int, payload: bytes) -> Any:
        return msgspec.msgpack.decode(payload)

    def check(self, replica: StateMachine) -> None:
        """Every state is allowed."""

    def judge(self, history: list[Operation], log: list[t.Request], limits: Limits) -> None:
        verdict = linearizability.check(history, linearizability.KeyValueModel())
        if not verdict.linearizable:
            raise Violation("linearizable", f"key {verdict.key}: {verdict.operations[-6:]}")

    def wire(self, world: "World") -> Wire | None:
        return None


class ApplicationSubject:
    statuses: tuple[int, ...] = (t.OK, t.FAILED)

    def __init__(self, name: str, application: type[StateMachine], simulation: type[Simulation]) -> None:
        self._application = application
        self._simulation = simulation
        #: Whether its clients speak to gateways.
        self._wired = False
        self.suspicion = f"; {name} is not deterministic, or its snapshots are not canonical"

    def replica(self) -> StateMachine:
        return self._application() if self._wired else Audited(self._application())

    def wire(self, world: "World") -> Wire | None:
        if not (world.plan.wire and self._simulation.wire and world.plan.packing == "site"):
            return None
        self._wired = True
        wire: Wire = attribute_of("wire", self._simulation.wire)(world)  # type: ignore[operator]
        return wire

    def principal(self, client: int) -> bytes:
        return principal_of_client(self._application, client)

    def caller(self) -> Caller:
        return _SimulationCaller(self._simulation())

    def result(self, status: int, payload: bytes) -> Any:
        return status, payload

    def check_stale(self, call: Call, outcome: bytes | ClientError) -> None:
        """Which states there were, only the log knows."""

    def check(self, replica: StateMachine) -> None:
        check_state(self._simulation, replica.application if isinstance(replica, Audited) else replica)

    def judge(self, history: list[Operation], log: list[t.Request], limits: Limits) -> None:
        if self._wired:
            # Its clients have judged what they got.
            return
        make: Callable[[], Audited] = lambda: Audited(self._application())  # noqa: E731 - needs the type
        sequential.judge(history, log, limits, make, self.check, self.principal)


def check_state(simulation: type[Simulation], application: StateMachine) -> None:
    try:
        simulation.check(application)
    except Exception as error:
        raise Violation("invariant", f"{simulation.__name__}.check: {type(error).__name__}: {error}") from error


class _SimulationCaller:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def next(self, draw: random.Random, operation: int) -> Call:
        call: object = self._simulation.next(draw)
        if not isinstance(call, Execute | Query):
            name = type(self._simulation).__name__
            raise ConfigurationError(f"{name}.next returned {call!r}: must be an Execute or a Query")
        is_read = isinstance(call, Query)
        return Call("", ("query" if is_read else "execute", call.payload, operation), call.payload, is_read)

    def heard(self, call: Call, status: int, payload: bytes) -> None:
        made = Query(call.payload or b"") if call.is_read else Execute(call.payload or b"")
        self._simulation.heard(made, payload if status == t.OK else None)
