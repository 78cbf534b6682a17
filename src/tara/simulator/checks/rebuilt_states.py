"""What operators can rebuild from bases and logs when all is over (`tara.storage.rebuild`): the furthest state, those
as of a command, the one that enough replicas have; also where files are damaged. Each has what was executed up to its
last command, and nothing else."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.nodes.executor import Executor
from tara.simulator.disk import VirtualDisk
from tara.simulator.workload import Audited, operation_of
from tara.storage.rebuild import History, NothingLeft, OutOfReach, Rebuilt, Source, rebuild, source_of

if TYPE_CHECKING:
    from tara.simulator.world import World

#: Beyond all commands.
NEVER = 1 << 62
#: How many states as of a command are rebuilt; and how often from damaged files, of which there are so many.
TIMES = 2
DAMAGED_TIMES = 3
DAMAGES = 4


def check_rebuilt(world: "World", data_dir: Path) -> None:
    draw, require = random.Random(f"rebuilt-{world.plan.seed}"), world.monitor.require
    holders = [
        (number, container)
        for container in world.containers
        for number in world.executors_of(container)
        if not container.lost
    ]
    sources = [source_of(data_dir, world.graph.names[number].replica, box.disk) for number, box in holders]
    history = History(world.cluster, world.era, world.threshold, world.plan.limits, world.application)
    ranges = _ranges(sources, history)
    if not ranges:
        return
    furthest = rebuild(sources, history)
    require(furthest.counter == ranges[-1][1], "rebuilding", "{} is the furthest of {}", furthest.counter, ranges)
    for number, container in holders:
        node = container.nodes.get(number)
        if isinstance(node, Executor) and node.ready:
            require(furthest.counter >= node.counter, "rebuilding", "{} has executed {}", number, node.counter)
            same = furthest.counter > node.counter or furthest.execution.digest() == node.digest()
            require(same, "rebuilding", "{} has another state than what is rebuilt", number)
    for _ in range(TIMES):
        until = draw.randint(*draw.choice(ranges))
        state = rebuild(sources, history, until)
        require(state.counter <= until, "rebuilding", "{} is there as of {}", state.counter, until)
        _check(world, state)
    for _ in range(DAMAGED_TIMES):
        _check_damaged(world, sources, history, draw)


def _ranges(sources: list[Source], history: History) -> list[tuple[int, int]]:
    try:
        rebuild(sources, history, NEVER)
    except OutOfReach as error:
        return error.ranges
    raise AssertionError("nobody has executed that much")


def _check_damaged(world: "World", sources: list[Source], history: History, draw: random.Random) -> None:
    """What of it is still there is as right as ever."""
    twins: dict[int, VirtualDisk] = {}
    copies: list[Source] = []
    for source in sources:
        assert isinstance(source.disk, VirtualDisk)
        twin = twins.setdefault(id(source.disk), source.disk.clone())
        twin.draw = draw
        copies.append(source._replace(disk=twin))
    for source in draw.choices(copies, k=DAMAGES):
        assert isinstance(source.disk, VirtualDisk)
        paths = source.disk.paths(draw.choice((source.bases, source.log)), (".base", ".segment", ".tail"))
        if paths:
            source.disk.damage(draw.choice(paths), paths)
    for enough in (0, world.plan.limits.quorum):
        try:
            state = rebuild(copies, history, copies=enough)
        except NothingLeft:
            continue
        _check(world, state)


def _check(world: "World", state: Rebuilt) -> None:
    """Of an era that began with another one's state, it is not known here what that was."""
    application = state.execution.application
    if not isinstance(application, Audited) or world.former:
        return
    commands = [world.monitor.command(number) for number in range(1, state.counter + 1)]
    expected = {
        operation_of(command.payload)
        for command in commands
        if command is not None and command.kind == t.EXECUTE and command.payload
    }
    executed = set(application.operations)
    if world.fatal is not None:
        # It may have been skipped.
        executed.discard(world.fatal.operation)
        expected.discard(world.fatal.operation)
    same = executed == expected if None not in commands else executed >= expected
    world.monitor.require(same, "rebuilding", "as of {}: {} differ", state.counter, executed ^ expected)
