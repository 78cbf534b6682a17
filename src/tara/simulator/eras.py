"""A new era within a run: more was lost than the protocol survives, and an operator goes on from what is left.

What executed up to the command that he goes on from is there, and nothing else is. So each era is judged by itself:
the former one up to its end, the new one from the state at that command on.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from tara.application import KeyValueStore
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.simulator.checks.linearizability import Operation
from tara.simulator.workload import audited_store, operation_of
from tara.storage.new_era import first_sessions, first_threshold, install
from tara.storage.rebuild import History, NothingLeft, Rebuilt, numbers_in, rebuild, source_of
from tara.storage.registration import of_next_era

if TYPE_CHECKING:
    from pathlib import Path

    from tara.simulator.checks.monitor import Monitor
    from tara.simulator.world import World

_Executed = list[tuple[int, int]]


@dataclass(frozen=True)
class FormerEra:
    """What is left of an era that is over."""

    ended_ms: float
    monitor: "Monitor"
    #: What had been executed in the state that the next era began with, reads among it: their results are kept for
    #: their sessions; and what the application held there.
    executed: set[int]
    values: dict[str, bytes]


def can_begin(world: "World") -> bool:
    """Only the store has a model that can begin anywhere."""
    return world.plan.app == "key-value" and not world.former and world.fatal is None


def begin(world: "World", data_dir: "Path", everywhere: bool) -> bool:
    """Begin a new era, if there is anything to begin with. All containers are down. `everywhere`: the first base is
    written for all executors, and not for one only."""
    holders = [container for container in world.containers if world.executors_of(container)]
    sources = [
        source_of(data_dir, world.graph.names[number].replica, container.disk)
        for container in holders
        for number in world.executors_of(container)
    ]
    history = History(world.cluster, world.era, world.threshold, world.plan.limits, world.application)
    try:
        best = rebuild(sources, history)
    except NothingLeft:
        return False
    _check_best(world, best)
    old = best.execution.sessions.state()
    chunks = list(best.execution.application.snapshot())
    executed = {operation for operation, _ in msgspec.msgpack.decode(chunks[0], type=_Executed)}
    commands = [world.monitor.command(number) for number in range(1, old.counter + 1)]
    _check_executed(world, executed, commands)
    former = FormerEra(world.now_ms, world.monitor, executed | _operations(commands, t.QUERY), _values(chunks))
    world.former.append(former)
    world.era += 1
    world.records = of_next_era(world.records)
    world.threshold = first_threshold(numbers_in(sources))
    sessions = first_sessions(old, int(1_000_000 + world.now_ms))
    world.begin_era(old.counter)
    for container in holders if everywhere else holders[:1]:
        checkpoint = install(
            data_dir,
            world.cluster,
            world.era,
            world.threshold,
            world.graph,
            world.plan.limits.checkpoint_interval,
            sessions,
            lambda: chunks,
            [world.graph.names[number].replica for number in world.executors_of(container)],
            container.disk,
        )
        world.monitor.saved(checkpoint)
        world.wiped.pop(container.index, None)
    return True


def _values(chunks: list[bytes]) -> dict[str, bytes]:
    replica = audited_store()
    replica.restore(chunks)
    assert isinstance(replica.application, KeyValueStore)
    return dict(replica.application._values.items())


def _check_best(world: "World", best: Rebuilt) -> None:
    """Nothing that is left leads further."""
    reached = [
        world.stores.reach(number, intact=True)
        for number, name in enumerate(world.graph.names)
        if name.stage is Stage.EXECUTOR
    ]
    world.monitor.require(
        best.checkpoint.number >= max(reached), "recovery", "{} was taken, there are {}", best.checkpoint, reached
    )


def _check_executed(world: "World", executed: set[int], commands: list[t.Command | None]) -> None:
    """The checkpoint has what was executed up to its last command, and nothing else."""
    expected = _operations(commands, t.EXECUTE)
    same = executed == expected if None not in commands else executed >= expected
    world.monitor.require(same, "recovery", "{} differ", len(commands))


def _operations(commands: list[t.Command | None], kind: int) -> set[int]:
    """Those of a kind that are known."""
    return {
        operation_of(command.payload)
        for command in commands
        if command is not None and command.kind == kind and command.payload
    }


def histories(world: "World", history: list[Operation]) -> list[list[Operation]]:
    """What has to be explained in each era, by itself."""
    if not world.former:
        return [history]
    era, ended = world.former[0], round(world.former[0].ended_ms * 1000)
    names = {client.index for client in world.clients if getattr(client, "name", "")}
    before, after = (
        [],
        [Operation(-1, ended, ended, key, ("put", value), None) for key, value in sorted(era.values.items())],
    )
    for operation in history:
        in_checkpoint, returned = operation.id in era.executed, operation.returned
        if operation.invoked <= ended:
            before.append(_before(operation, ended, in_checkpoint))
        if in_checkpoint:
            continue
        if returned is None or returned > ended:
            after.append(replace(operation, invoked=max(operation.invoked, ended + 1)))
        elif operation.client in names:
            # Its writer may write it again: what it has claimed it has lost.
            after.append(replace(operation, invoked=ended + 1, returned=None, result=None))
    return [before, after]


def _before(operation: Operation, ended: int, in_checkpoint: bool) -> Operation:
    """As it looked when the era ended. The answer of what executed before may come later."""
    if operation.returned is None or operation.returned <= ended:
        return operation
    if in_checkpoint:
        return replace(operation, returned=ended)
    return replace(operation, returned=None, result=None)
