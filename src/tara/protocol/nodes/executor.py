"""The executor: a learner of every partition, and one copy of the application.

Commits from the committers come in; results go to the reply sink of the site, progress to the controllers, status
and checkpoints to the gc sinks. Partitions are merged round-robin: execution number n is slot n // P of partition
n mod P. After every `checkpoint_interval` slots the state goes to the store of the host; the checkpoint is
announced when it is durable there. An executor whose slots were garbage-collected elsewhere loads a checkpoint.
"""

from hashlib import blake2b

import msgspec
from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple, NodeHalted
from tara.protocol.graph import STORE, Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.nodes.learner import Learner
from tara.protocol.observer import Observer
from tara.protocol.progress import SourceProgress
from tara.protocol.sessions import Application, Context, Sessions, SessionsState


class _Run:
    """Requests that were executed in one go, and what came of each."""

    __slots__ = ("counter", "counters", "ends", "first", "requests", "times")

    def __init__(self, first: int, counter: int) -> None:
        self.first = first
        self.counter = counter
        self.counters: list[int] = []
        self.requests: list[t.Request] = []
        self.ends: list[int] = []
        self.times: list[int] = []

    def note(self, request: t.Request, sessions: Sessions) -> None:
        self.requests.append(request)
        self.ends.append(len(sessions.results))
        self.times.append(sessions.time_ms)
        self.counters.append(sessions.counter)


class ExecutorState(Struct, array_like=True):
    """The protocol's part of a checkpoint; canonical, like the application's part."""

    next: int
    progress: list[list[tuple[int, int, list[int]]]]
    sessions: SessionsState


class Executor(Node):
    def __init__(
        self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox, application: Application
    ) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {
            t.Commit: self._on_commit,
            t.Stable: self._on_stable,
            t.Saved: self._on_saved,
            t.Loaded: self._on_loaded,
        }
        self.application = application
        self.sessions = Sessions(application, limits)
        sources = graph.replicas(Stage.REQUEST_SOURCE)
        self._learners = [
            Learner(partition, limits.replicas, sources, limits.quorum, limits.window)
            for partition in range(limits.partitions)
        ]
        #: The executed requests of each source, per partition; part of the snapshot.
        self._progress = [[SourceProgress() for _ in range(sources)] for _ in range(limits.partitions)]
        #: The next execution number. Never falls.
        self.next = 0
        #: The newest stable checkpoint it knows of.
        self.stable = Observer(limits.replicas, limits.quorum)
        #: The checkpoints that are durable here, oldest first; none is older than the stable one.
        self.checkpoints: list[t.CheckpointId] = []
        self._round = 0
        self._reply_sink = graph.one(Stage.REPLY_SINK, name.replica)
        self._gc_sinks = graph.all(Stage.GC_SINK)
        self._controllers = [graph.all(Stage.CONTROLLER, partition) for partition in range(limits.partitions)]
        #: Until the store has told what it has, this executor has no state: it neither votes nor reports.
        self._restored = boot.genesis and boot.threshold == 0
        #: The checkpoint that the store was asked for, while it has not answered.
        self._loading = not self._restored
        if self._loading:
            self.emit(t.Load(0, (name.replica,)), STORE)

    # Request handling

    def _on_commit(self, commit: t.Commit) -> None:
        if self._restored and self._learners[commit.partition].commit(commit):
            self._execute()

    def _execute(self) -> None:
        """Execute what is decided and due, in order, up to the first slot that is missing."""
        learners, partitions, interval = self._learners, self.limits.partitions, self.limits.checkpoint_interval
        run = _Run(self.next, self.sessions.counter)
        while learners[self.next % partitions].decided:
            partition = self.next % partitions
            request = learners[partition].decided.popleft()
            self._perform(partition, request)
            run.note(request, self.sessions)
            self.next += 1
            if self.next % interval == 0:
                self._publish(run)
                run = _Run(self.next, self.sessions.counter)
                self._checkpoint()
        if run.requests:
            self._publish(run)

    def _perform(self, partition: int, request: t.Request) -> None:
        if request.source < 0:
            return
        self._progress[partition][request.source].note(request.epoch, request.number)
        sessions = self.sessions
        sessions.pass_time(request.time, moves_sessions=partition == 0)
        try:
            commands = t.decode_commands(request.body)
        except MalformedTuple:
            # Every replica has the same bytes and skips them alike; the source checks what it takes.
            return
        for command in commands:
            sessions.execute(command)

    def _publish(self, run: "_Run") -> None:
        sessions = self.sessions
        results, events = sessions.results.copy(), sessions.events.copy()
        sessions.results.clear()
        sessions.events.clear()
        commands, sessions.executed = sessions.executed, []
        self.emit(
            t.Executed(run.first, run.requests, results, run.ends, run.times, run.counter, run.counters, commands),
            STORE,
        )
        for some in t.split(results, self.limits.run_length_max, self.limits.run_bytes_max):
            self.emit(t.Results(self.index, some, []), self._reply_sink)
        for few in t.split(events, self.limits.run_length_max, self.limits.run_bytes_max):
            self.emit(t.Results(self.index, [], few), self._reply_sink)

    def read(self, question: bytes) -> bytes:
        """Ask the application as it is here and now: no order, possibly behind the others."""
        context = Context([])
        context.counter, context.time_ms = self.sessions.counter, self.sessions.time_ms
        return self.application.query(question, context)

    def digest(self) -> bytes:
        """Of the whole replicated state: equal on all executors that have executed equally much."""
        digest = blake2b(t.encode(self.sessions.state()), digest_size=16)
        for chunk in self.application.snapshot():
            digest.update(chunk)
        return digest.digest()

    # Garbage collection

    def _checkpoint(self) -> None:
        number = self.next // self.limits.checkpoint_interval
        state = ExecutorState(
            self.next,
            [
                [(progress.epoch, progress.low, sorted(progress.early)) for progress in partition]
                for partition in self._progress
            ],
            self.sessions.state(),
        )
        chunks = self.application.snapshot()
        if not self.application.concurrent_snapshot:
            chunks = iter(list(chunks))
        self.emit(t.Save(number, t.encode(state), chunks), STORE)

    def _on_saved(self, saved: t.Saved) -> None:
        known = [checkpoint for checkpoint in self.checkpoints if checkpoint.number != saved.checkpoint.number]
        if saved.checkpoint.number >= self.stable.current:
            self.checkpoints = sorted([*known, saved.checkpoint], key=lambda checkpoint: checkpoint.number)
        self._announce()

    def _on_stable(self, stable: t.Stable) -> None:
        checkpoint = stable.checkpoint
        for own in self.checkpoints:
            if own.number == checkpoint.number and checkpoint.digest not in (b"", own.digest):
                raise NodeHalted(
                    f"checkpoint {own.number}: this replica's state has digest {own.digest.hex()}, "
                    f"but f+1 others have {checkpoint.digest.hex()}: it diverged"
                )
        if self.stable.update(stable.source, checkpoint.number):
            threshold = self.stable.current
            self.checkpoints = [own for own in self.checkpoints if own.number >= threshold]
            self.emit(t.Discard(threshold), STORE)
        if self.next < self.stable.current * self.limits.checkpoint_interval and not self._loading:
            holders = [
                status.executor
                for status in stable.executors
                if status.checkpoints and status.checkpoints[-1].number >= self.stable.current
            ]
            self._loading = True
            self.emit(t.Load(self.stable.current, holders), STORE)

    def _on_loaded(self, loaded: t.Loaded) -> None:
        self._loading = False
        self._restored = True
        checkpoint = loaded.checkpoint
        if checkpoint is None or checkpoint.number * self.limits.checkpoint_interval <= self.next:
            return
        state = msgspec.msgpack.decode(loaded.state, type=ExecutorState)
        assert state.next == checkpoint.number * self.limits.checkpoint_interval, (state.next, checkpoint)
        self.application.restore(loaded.chunks)
        self.sessions.restore(state.sessions)
        self.next = state.next
        self._progress = _restored(state)
        for learner, progress in zip(self._learners, _restored(state), strict=True):
            learner.jump(self.next // self.limits.partitions, progress)
        # Announced when it is durable here, too; a store that has it already says so at once.
        self.emit(t.Save(checkpoint.number, loaded.state, loaded.chunks), STORE)
        self._execute()

    # Reports

    def report(self) -> None:
        if not self._restored:
            return
        self._announce()
        positions = [learner.position for learner in self._learners]
        window_end = self.stable.current * self.limits.checkpoint_slots + self.limits.window
        for partition, controllers in enumerate(self._controllers):
            progress = [source.reach for source in self._learners[partition].progress]
            self.emit(
                t.Progress(
                    self.index,
                    partition,
                    progress,
                    positions[partition],
                    max(positions),
                    min(positions),
                    window_end,
                ),
                controllers,
            )

    def tick(self, now_ms: float) -> None:
        super().tick(now_ms)
        # Somebody waits for another partition: let its proposer know at once that it has to skip.
        if self._restored and any(learner.decided for learner in self._learners):
            self._announce()

    def _announce(self) -> None:
        self._round += 1
        self.emit(
            t.ExecutorStatus(
                self.index,
                self.boot.life,
                self._round,
                [learner.position for learner in self._learners],
                [[source.reach for source in learner.progress] for learner in self._learners],
                self.checkpoints,
                self.stable.current,
                len(self.sessions),
            ),
            self._gc_sinks,
        )


def _restored(state: ExecutorState) -> list[list[SourceProgress]]:
    return [[SourceProgress(epoch, low, set(early)) for epoch, low, early in sources] for sources in state.progress]
