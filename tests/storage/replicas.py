"""Executors with their stores, on any disk: without threads, a step at a time."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tara.application import KeyValueStore
from tara.protocol import tuples as t
from tara.protocol.graph import STORE, Stage
from tara.protocol.nodes.executor import Executor
from tara.storage.base_format import base_directory
from tara.storage.bases import Bases
from tara.storage.disk import LOCAL, Disk
from tara.storage.log import DecidedLog, log_directory
from tara.storage.log_format import LogIdentity
from tara.storage.log_writer import LogSettings
from tara.storage.pacer import Pacer
from tara.storage.remote import RemoteFiles
from tara.storage.store import ExecutorStore
from tests.protocol.driver import Bench, Driven, Step, commits

CLUSTER, ERA = 7, 1
INTERVAL = 8
REPLICAS = range(3)
#: Steps without an answer after which nothing is expected any more; and steps that anything may take.
QUIET = 5
ROUNDS_MAX = 5_000


def bench(**settings: int) -> Bench:
    """Bases are taken often."""
    usual = {"window": 4096, "checkpoint_interval": INTERVAL, "base_bytes_min": 500}
    return Bench(**(usual | {"sessions_max": 6, "session_pipeline_max": 4} | settings))


class StoredReplica:
    """One life of an executor and its store."""

    def __init__(
        self,
        root: Path,
        replica: int = 0,
        disk: Disk = LOCAL,
        life: int = 1,
        retention_bytes: int = 0,
        made_by: Bench | None = None,
        remote: Callable[[str], RemoteFiles | None] = lambda kind: None,
        cluster: int = CLUSTER,
        era: int = ERA,
        peers: Iterable[int] = REPLICAS,
    ) -> None:
        self.bench = bench() if made_by is None else made_by
        others = [other for other in peers if other != replica]
        self.now_s = 0.0
        directory = base_directory(root, replica)
        known = {other: base_directory(root, other) for other in others}
        self.bases = Bases(
            directory, cluster, era, known, remote("bases"), disk, Pacer(lambda: self.now_s, lambda seconds: None)
        )
        settings = LogSettings(
            identity=LogIdentity(cluster, era),
            partitions=self.bench.limits.partitions,
            checkpoint_interval=self.bench.limits.checkpoint_interval,
            retention_bytes=retention_bytes,
        )
        logs = {other: log_directory(root, other) for other in others}
        own = log_directory(root, replica)
        self.log = DecidedLog(replica, own, settings, self.bases, logs, remote("log"), disk, lambda: self.now_s)
        self.store = ExecutorStore(self.bases, self.log, lambda: None)
        self.executor: Driven[Executor] = self.bench.make(
            Executor, Stage.EXECUTOR, replica, genesis=life == 1, life=life, application=KeyValueStore
        )
        #: The checkpoints that were said to be durable, and what else the store has said.
        self.saved: list[t.CheckpointId] = []
        self.answers: list[t.Tuple] = []
        self._hand_over(self.executor.take())
        self._hand_over(self.executor.tick(self.bench.limits.report_interval_ms))
        # There are no orders of operators here.
        self.executor.node._must_look = False

    @property
    def node(self) -> Executor:
        return self.executor.node

    def feed(self, *tuples: t.Tuple) -> Step:
        step = self.executor.feed(*tuples)
        self._hand_over(step)
        return step

    def decide(self, requests: Sequence[t.Request], pieces: int = 5) -> None:
        """Let it have these, from the first that it lacks on, a few at a time, and its store work meanwhile."""
        first = self.node._learners[0].position
        for begin in range(first, len(requests), pieces):
            self.feed(*commits(requests[begin : begin + pieces], first=begin))
            self.step()
        self.settle()

    def step(self) -> bool:
        """What the threads of the store do in a while; whether there were answers."""
        self.now_s += 10.0
        self.log.work()
        self.store.work()
        answers = list(self.store.take())
        self.answers += answers
        for answer in answers:
            if isinstance(answer, t.Saved):
                self.saved.append(answer.checkpoint)
            self.feed(answer)
        return bool(answers)

    def settle(self) -> None:
        """Until nothing happens any more."""
        quiet = 0
        for _ in range(ROUNDS_MAX):
            quiet = 0 if self.step() else quiet + 1
            if quiet == QUIET:
                return
        raise AssertionError("it never ends")

    def come_back(self) -> int:
        """After a start: the checkpoint that it comes to by itself."""
        self.settle()
        if not self.node.restored:
            # The disk did not give what it had a moment ago: it asks again.
            self._hand_over(self.executor.tick(1_000.0))
            self.settle()
        assert self.node.restored
        return self.node.execution.checkpoint.number

    def follow(self, others: "Sequence[StoredReplica]") -> None:
        """Learn of the newest checkpoint of the others, and load what leads there."""
        newest = min(other.saved[-1].number for other in others)
        holders = [
            self.bench.status(other.node.index, checkpoints=[other.saved[-1]]) for other in others if other.saved
        ]
        for turn in itertools.count(1):
            self.executor.tick(turn * 1_000.0)
            self.feed(*self.bench.stables(newest, digest=b"", executors=holders))
            self.settle()
            if self.node.next >= newest * INTERVAL or turn > 30:
                return

    def errors(self) -> list[str]:
        return [*self.log.errors, *self.store.errors]

    def _hand_over(self, step: Step) -> None:
        for tuple_, receivers in step.emitted:
            if receivers == STORE and not isinstance(tuple_, t.Halted | t.Unbarred):
                self.store.submit(tuple_)


def undisturbed(requests: Sequence[t.Request], made_by: Bench | None = None) -> dict[int, tuple[bytes, bytes]]:
    """What every executor has, by execution number: its running digest, and that of its state."""
    node = (made_by or bench()).make(Executor, Stage.EXECUTOR, 0, application=KeyValueStore)
    found = {0: (b"", node.node.digest())}
    for number, request in enumerate(requests):
        step = node.feed(*commits([request], first=number))
        node.feed(*(t.Saved(mark.checkpoint) for mark in step.of(t.Mark)))
        found[number + 1] = (node.node.execution.checkpoint.digest, node.node.digest())
    return found
