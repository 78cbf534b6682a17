"""What the decided logs must be when all is over: the same commands as those that were executed, and nothing between
that is missing."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.nodes.executor import Executor
from tara.simulator.checks.violation import Violation
from tara.simulator.disk import VirtualDisk
from tara.storage.log import DecidedLog, log_directory
from tara.storage.log_format import LogError, LoggedCommand, list_segments, list_tails, runs_of
from tara.storage.log_rows import commands_of

if TYPE_CHECKING:
    from tara.simulator.world import World

#: Gaps are filled by calls of `work`, with pauses in between; so many are enough.
CALLS_MAX = 3_000


def check_logs(world: "World", data_dir: Path, led: bool) -> None:
    """`led`: every partition has a proposer. Without one, nobody is sent what it lacks: an executor that came back is
    where its checkpoint is, and its log where it was."""
    for container in world.containers:
        storage = container.storage
        for number, store in storage.stores.items() if storage is not None else ():
            node = container.nodes.get(number)
            if isinstance(node, Executor):
                _settle(world, number, store.log, node, led)
                _compare(world, number, store.log, container.disk, log_directory(data_dir, node.index))


def _settle(world: "World", number: int, log: DecidedLog, node: Executor, led: bool) -> None:
    """Until nothing is missing, or nobody has it any more. What was damaged since the start is noticed at the next one,
    which is as if it began here."""
    log.work()
    assert log._writer is not None
    log._writer.segments.look_at_all()
    for _ in range(CALLS_MAX):
        # Time does not pass any more.
        log.look_due_s = 0.0
        log.work()
        status = log.status()
        if not status["gaps"] and not status["unread"] and not status["waiting"]:
            break
    last = status["last"]
    assert isinstance(last, int)
    # Of a log that went on behind a base, it is not known before there is something in it.
    last = last or node.sessions.counter
    world.monitor.require(
        not status["gaps"] and (last == node.sessions.counter or (last > node.sessions.counter and not led)),
        "log",
        "{}: executed {} commands, its log is {}",
        world.graph.label(number),
        node.sessions.counter,
        status,
    )


def _compare(world: "World", number: int, log: DecidedLog, disk: VirtualDisk, directory: Path) -> None:
    found = _commands(disk, directory)
    status = log.status()
    first, last = status["first"], status["last"]
    assert isinstance(last, int)
    for counter in range(first, last + 1) if isinstance(first, int) else ():
        command, row = world.monitor.command(counter), found.get(counter)
        same = row is not None and (
            command is None
            or (row.session, row.number, row.payload, row.kind, row.principal)
            == (command.session, command.number, command.payload, command.kind, command.principal)
        )
        world.monitor.require(same, "log", "{}: {} is {}, not {}", world.graph.label(number), counter, row, command)


def _commands(disk: VirtualDisk, directory: Path) -> dict[int, t.Command | LoggedCommand]:
    """By counter, what the files have."""
    found: dict[int, t.Command | LoggedCommand] = {}
    for path in [file.path for file in (*list_segments(directory, disk), *list_tails(directory, disk))]:
        file = io.BytesIO(disk.read(path))
        try:
            for run in runs_of(file, path):
                found.update(enumerate(commands_of(run), run.counter + 1))
        except LogError as error:
            raise Violation("log", str(error)) from error
    return found
