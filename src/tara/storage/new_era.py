"""What a new era begins with: the newest checkpoint of which an intact copy is left, and no slot below it ever used.

Pure, over disks: `tara recover` does this for an operator (`tara.operations.recovery`), a restored backup begins like
that, and so does the simulator.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.protocol.graph import Graph, Stage
from tara.protocol.nodes.executor import ExecutorState
from tara.protocol.sessions import ERA_COMMANDS, SessionsState
from tara.protocol.state_digest import checkpoint_of
from tara.storage.disk import LOCAL, Disk
from tara.storage.store import (
    StoreError,
    checkpoint_directory,
    checkpoint_path,
    read_checkpoint,
    write_checkpoint,
)


class RecoveryError(TaraError):
    """A new era that cannot, or should not, be begun."""


class Copy(NamedTuple):
    """Of a checkpoint; its name is its number."""

    path: Path
    disk: Disk = LOCAL


class Best(NamedTuple):
    """The checkpoint that a new era begins with."""

    loaded: t.Loaded
    path: Path
    #: How many intact copies there are; f+1 of them: it is stable.
    copies: int
    #: What was looked at before, and is of no use.
    problems: list[str]

    @property
    def number(self) -> int:
        assert self.loaded.checkpoint is not None
        return self.loaded.checkpoint.number

    @property
    def sessions(self) -> SessionsState:
        return msgspec.msgpack.decode(self.loaded.state, type=ExecutorState).sessions


class NoCheckpoint(RecoveryError):
    """There is no intact checkpoint."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def best_checkpoint(copies: Sequence[Copy], cluster: int, era: int) -> Best:
    """The newest checkpoint of which there is an intact copy: any state of an executor follows from decisions only, so
    also one that is not stable will do."""
    problems: list[str] = []
    for number in sorted({int(copy.path.stem) for copy in copies}, reverse=True):
        intact: dict[bytes, tuple[Path, t.Loaded]] = {}
        holders: Counter[bytes] = Counter()
        for path, disk in copies:
            if int(path.stem) != number:
                continue
            try:
                loaded = read_checkpoint(path, cluster, era, disk)
            except (OSError, StoreError) as error:
                problems.append(f"{path}: {error}")
                continue
            assert loaded.checkpoint is not None
            intact.setdefault(loaded.checkpoint.digest, (path, loaded))
            holders[loaded.checkpoint.digest] += 1
        if holders:
            digest, count = _most(number, intact, holders)
            return Best(intact[digest][1], intact[digest][0], count, problems)
    raise NoCheckpoint(problems)


def _most(number: int, intact: dict[bytes, tuple[Path, t.Loaded]], holders: Counter[bytes]) -> tuple[bytes, int]:
    """What most copies are; if they differ and none has more copies than the others, that is for an operator."""
    first, *rest = holders.most_common()
    if rest and rest[0][1] == first[1]:
        paths = ", ".join(str(path) for path, _ in intact.values())
        raise RecoveryError(f"copies of checkpoint {number} differ: {paths}; move those away that are not to be used")
    return first


def first_counter(counter: int) -> int:
    """Where the command counter of the next era stands at its beginning."""
    return (counter // ERA_COMMANDS + 1) * ERA_COMMANDS


def first_sessions(old: SessionsState, now_ms: int) -> SessionsState:
    """Sessions go on. Their clock begins to move with the second request: all of them have their full time then."""
    sessions = [msgspec.structs.replace(session, active_ms=old.clock_ms) for session in old.sessions]
    return SessionsState(first_counter(old.counter), max(old.time_ms, now_ms), 0, old.clock_ms, sessions)


def first_threshold(numbers: Iterable[int]) -> int:
    """The number of the era's first checkpoint: no checkpoint that is left has it."""
    return max(numbers) + 1


def install(
    data_dir: Path,
    cluster: int,
    era: int,
    threshold: int,
    graph: Graph,
    checkpoint_interval: int,
    sessions: SessionsState,
    chunks: list[bytes],
    replicas: Iterable[int],
    disk: Disk = LOCAL,
) -> t.CheckpointId:
    """Write the first checkpoint of an era, with these sessions and this state of the application, to the directories
    of these executors. Durable on return."""
    sources = graph.replicas(Stage.REQUEST_SOURCE)
    progress: list[list[tuple[int, int, list[int]]]]
    progress = [[(0, 0, []) for _ in range(sources)] for _ in range(graph.partitions)]
    state = t.encode(ExecutorState(threshold * checkpoint_interval, progress, sessions))
    checkpoint = checkpoint_of(t.Save(threshold, state, chunks))
    for replica in replicas:
        store = checkpoint_directory(data_dir, replica)
        disk.make_directory(store)
        write_checkpoint(checkpoint_path(store, threshold), cluster, era, checkpoint, state, chunks, disk)
    return checkpoint
