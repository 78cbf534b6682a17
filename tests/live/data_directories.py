"""Data directories as executors leave them: real executors, with their bases and logs on a real disk."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from tara.application import KeyValueStore
from tara.protocol import tuples as t
from tara.protocol.graph import STORE, Stage
from tara.protocol.nodes.executor import Executor
from tara.protocol.sessions import Application
from tara.storage.base_format import base_directory
from tara.storage.bases import Bases
from tara.storage.log import DecidedLog, log_directory
from tara.storage.log_format import LogIdentity
from tara.storage.log_writer import LogSettings
from tara.storage.pacer import Pacer
from tara.storage.store import ExecutorStore
from tests.live.histories import bench
from tests.protocol.driver import Bench, Driven, Step, commits


class Hasty(Pacer):
    """Leaves the disk to nobody."""

    @property
    def left_s(self) -> float:
        return 0.0


class StoredReplica:
    """An executor, and what its host keeps for it."""

    def __init__(
        self,
        directory: Path,
        cluster: int,
        era: int = 1,
        replica: int = 0,
        *,
        made_by: Bench | None = None,
        application: Callable[[], Application] = KeyValueStore,
        retention_bytes: int = 1 << 30,
        threshold: int = 0,
    ) -> None:
        made_by = made_by or bench()
        limits = made_by.limits
        bases = Bases(base_directory(directory, replica), cluster, era, {}, None, pacer=Hasty())
        settings = LogSettings(
            identity=LogIdentity(cluster, era),
            partitions=limits.partitions,
            checkpoint_interval=limits.checkpoint_interval,
            retention_bytes=retention_bytes,
        )
        log = DecidedLog(replica, log_directory(directory, replica), settings, bases, {})
        self.store = ExecutorStore(bases, log, lambda: None)
        self.driven: Driven[Executor] = made_by.make(
            Executor, Stage.EXECUTOR, replica, application=application, threshold=threshold
        )
        #: The application's state at every checkpoint that it came to.
        self.states: dict[int, list[bytes]] = {}
        self.counters: dict[int, int] = {}
        self._handle(self.driven.take())
        self._handle(self.driven.tick(self.driven.node.limits.report_interval_ms))

    @property
    def node(self) -> Executor:
        return self.driven.node

    def execute(
        self, requests: Sequence[t.Request], first: int = 0, cuts: Iterable[int] = (), bases: Iterable[int] = ()
    ) -> None:
        """Have these decided, in runs with these ends, and take bases at these checkpoints."""
        interval = self.node.limits.checkpoint_interval
        ends = {0, len(requests), *cuts, *(number * interval - first for number in bases)}
        ends |= {number * interval - first for number in range((first + len(requests)) // interval + 1)}
        for start, end in pairwise(sorted(end for end in ends if 0 <= end <= len(requests))):
            number, rest = divmod(first + end, interval)
            if rest == 0 and number in bases:
                self._handle(self.driven.feed(t.TakeBase(number)))
            self._handle(self.driven.feed(*commits(requests[start:end], first=first + start)))
            if rest == 0:
                self.states[number] = list(self.node.application.snapshot())
                self.counters[number] = self.node.sessions.counter

    def _handle(self, step: Step) -> None:
        """Let the storage work until it has nothing to say."""
        while True:
            for job, receivers in step.emitted:
                if receivers == STORE and not isinstance(job, t.Halted | t.Unbarred):
                    self.store.submit(job)
            self.store.log.work()
            self.store.work()
            answers = list(self.store.take())
            if not answers:
                return
            step = self.driven.feed(*answers)


def replicate(directory: Path, replicas: int = 3) -> None:
    """The other replicas have the same."""
    for replica in range(1, replicas):
        for place in (base_directory, log_directory):
            shutil.copytree(place(directory, 0), place(directory, replica))
