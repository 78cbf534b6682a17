"""What a new era begins with: the furthest state that can be rebuilt from what is left, and no slot below it ever used.

Pure, over disks: `tara recover` does this for an operator (`tara.operations.recovery`), a restored backup begins like
that, and so does the simulator. How the state is rebuilt is in `tara.storage.rebuild`.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.protocol.execution import ExecutionState
from tara.protocol.graph import Graph, Stage
from tara.protocol.sessions import ERA_COMMANDS, SessionsState
from tara.protocol.state_digest import digest_of
from tara.storage.base_format import base_directory, write_base
from tara.storage.disk import LOCAL, Disk


class RecoveryError(TaraError):
    """A new era that cannot, or should not, be begun."""


def first_counter(counter: int) -> int:
    """Where the command counter of the next era stands at its beginning."""
    return (counter // ERA_COMMANDS + 1) * ERA_COMMANDS


def first_sessions(old: SessionsState, now_ms: int) -> SessionsState:
    """Sessions go on. Their clock begins to move with the second request: all of them have their full time then."""
    sessions = [msgspec.structs.replace(session, active_ms=old.clock_ms) for session in old.sessions]
    return SessionsState(first_counter(old.counter), max(old.time_ms, now_ms), 0, old.clock_ms, sessions)


def first_threshold(numbers: Iterable[int]) -> int:
    """The number of the era's first checkpoint, given those of the checkpoints that are left
    (`tara.storage.rebuild.numbers_in`): none of them has it."""
    return max(numbers, default=0) + 1


def install(
    data_dir: Path,
    cluster: int,
    era: int,
    threshold: int,
    graph: Graph,
    checkpoint_interval: int,
    sessions: SessionsState,
    chunks: Callable[[], Iterable[bytes]],
    replicas: Iterable[int],
    disk: Disk = LOCAL,
) -> t.CheckpointId:
    """Write the first base of an era, with these sessions and this state of the application, to the directories of
    these executors. `chunks` gives the state as often as it is asked. Durable on return."""
    sources = graph.replicas(Stage.REQUEST_SOURCE)
    progress: list[list[tuple[int, int, list[int]]]]
    progress = [[(0, 0, []) for _ in range(sources)] for _ in range(graph.partitions)]
    # The history of the era begins with all of its state.
    digest = digest_of(t.encode(sessions), chunks())
    state = t.encode(ExecutionState(threshold * checkpoint_interval, progress, sessions, digest))
    base = t.CheckpointId(threshold, digest)
    for replica in replicas:
        directory = base_directory(data_dir, replica)
        disk.make_directory(directory)
        write_base(directory, cluster, era, base, state, chunks(), disk)
    return base
