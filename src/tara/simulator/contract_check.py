"""Looks whether an application keeps its contract, before anything is simulated: equal commands give equal results and
equal snapshots, a restored copy goes on like the original, and a read changes nothing.

Twins in this process are compared step by step; one more copy runs in a process of its own, whose strings hash
differently, and must do the same. What depends on a clock, on chance, on an address, or on the order of a set shows.
"""

import os
import random
import subprocess
import sys
from hashlib import blake2b

import msgspec
from msgspec import Struct

from tara.application import Execute, KeyValueStore, Query, StateMachine
from tara.named import application_of
from tara.protocol.errors import ConfigurationError, TaraError
from tara.protocol.limits import Limits
from tara.protocol.sessions import Context, call
from tara.simulator.checks.violation import Violation
from tara.simulator.system_under_test import check_state, simulation_of
from tara.simulator.workload import principal_of_client

STEPS = 300
#: How often snapshots are compared, and a restored copy takes a twin's place.
_INTERVAL = 15
_CLIENTS = 3
_PROCESS_TIMEOUT_S = 120.0


class ContractStep(Struct, array_like=True, frozen=True):
    """What was asked, and what came of it; everything that must not depend on the process."""

    call: Execute | Query
    status: int
    result: bytes
    #: Of the snapshot, where snapshots are compared.
    digest: bytes = b""


class NotDeterministic(TaraError):
    """The application breaks its contract; the message says where."""


def broken_contract(name: str) -> str | None:
    """How the application breaks its contract, in words; None if it does not."""
    if application_of(name) is KeyValueStore:
        return None  # it has a workload and a model of its own
    try:
        check_contract(name)
    except (NotDeterministic, Violation) as error:
        return str(error)
    return None


def check_contract(name: str, seed: int = 0, steps: int = STEPS) -> int:
    """Compare copies of the application; how many steps there were. Raises NotDeterministic, or Violation if the
    application reaches a state that its own simulation forbids."""
    here = _perform(name, seed, steps)
    there = _perform_elsewhere(name, seed, steps)
    for number, (mine, other) in enumerate(zip(here, there, strict=True)):
        if mine.call != other.call:
            raise NotDeterministic(
                f"app = {name}: step {number}: another process draws {other.call}, this one {mine.call}: "
                "what `Simulation.next` returns must depend on `draw` and on what was heard only"
            )
        if mine != other:
            what = "result" if (mine.status, mine.result) != (other.status, other.result) else "snapshot"
            raise _different(name, number, mine.call, f"another process has another {what}", mine, other)
    return len(here)


def _perform(name: str, seed: int, steps: int) -> list[ContractStep]:
    application = application_of(name)
    simulation = simulation_of(name, application)
    clients = [simulation() for _ in range(_CLIENTS)]
    draw = random.Random(f"rehearsal-{seed}")
    first, second = application(), application()
    performed: list[ContractStep] = []
    for number in range(steps):
        client = clients[number % _CLIENTS]
        call_ = client.next(draw)
        if not isinstance(call_, Execute | Query):
            raise ConfigurationError(f"{simulation.__name__}.next returned {call_!r}: must be an Execute or a Query")
        before = _digest(first) if isinstance(call_, Query) else b""
        status, result = _apply(first, call_, number)
        other = _apply(second, call_, number)
        if (status, result) != other:
            raise _different(name, number, call_, "two replicas have different results", (status, result), other)
        if before and _digest(first) != before:
            raise NotDeterministic(f"app = {name}: step {number}: {call_} is a read, but it changed the state")
        check_state(simulation, first)
        digest = b""
        if number % _INTERVAL == _INTERVAL - 1:
            digest = _digest(first)
            second = _same_snapshots(name, number, application, first, second)
        client.heard(call_, result if status == 0 else None)
        performed.append(ContractStep(call_, status, result, digest))
    return performed


def _same_snapshots(
    name: str, number: int, application: type[StateMachine], first: StateMachine, second: StateMachine
) -> StateMachine:
    """Compare; the restored copy that takes the second one's place."""
    if _digest(first) != _digest(second):
        raise NotDeterministic(
            f"app = {name}: after step {number}, two replicas that did the same have different snapshots; "
            "the application is not deterministic, or its snapshot is not canonical (sort what has no order)"
        )
    restored = application()
    restored.restore(iter(list(first.snapshot())))
    if _digest(restored) != _digest(first):
        raise NotDeterministic(f"app = {name}: after step {number}, a restored copy has another snapshot")
    return restored


def _apply(application: StateMachine, call_: Execute | Query, number: int) -> tuple[int, bytes]:
    context = Context([])
    context.counter, context.session = number + _CLIENTS + 1, number % _CLIENTS + 1
    context.time_ms, context.clock_ms = 1_000_000 + 7 * number, 7 * number
    context.principal = principal_of_client(type(application), number % _CLIENTS)
    return call(application, isinstance(call_, Query), call_.payload, context, Limits().result_bytes_max)


def _digest(application: StateMachine) -> bytes:
    digest = blake2b(digest_size=16)
    for chunk in application.snapshot():
        digest.update(chunk)
    return digest.digest()


def _different(name: str, number: int, call_: object, what: str, mine: object, other: object) -> NotDeterministic:
    return NotDeterministic(
        f"app = {name}: the application is not deterministic: step {number}, {call_}: {what}: {mine} and {other}"
    )


def _perform_elsewhere(name: str, seed: int, steps: int) -> list[ContractStep]:
    """In a process whose hash seed is another one than ours."""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command = [sys.executable, "-m", "tara.simulator.contract_check", name, str(seed), str(steps)]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=_PROCESS_TIMEOUT_S)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise NotDeterministic(f"app = {name}: in another process, the check fails: {''.join(last)}")
    return msgspec.msgpack.decode(done.stdout, type=list[ContractStep])


def main(arguments: list[str]) -> None:
    name, seed, steps = arguments
    output, sys.stdout = sys.stdout.buffer, sys.stderr  # an application may print
    try:
        performed = _perform(name, int(seed), int(steps))
    except (TaraError, Violation) as error:
        sys.exit(str(error))
    output.write(msgspec.msgpack.encode(performed))


if __name__ == "__main__":
    main(sys.argv[1:])
