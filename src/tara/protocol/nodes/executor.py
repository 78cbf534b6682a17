"""The executor: a learner of every partition, and one copy of the application.

Commits from the committers come in; results go to the reply sink of the site, progress to the controllers, status
and checkpoints to the gc sinks. Partitions are merged round-robin: execution number n is slot n // P of partition
n mod P. After every `checkpoint_interval` slots the state goes to the store of the host; the checkpoint is
announced when it is durable there. An executor whose slots were garbage-collected elsewhere loads a checkpoint.

What the application raises is the result of its command, except for a `MemoryError`, which another replica may not see:
then this executor halts, alone and visibly. It goes on learning what is decided, but executes nothing until a stable
checkpoint takes it past the command. A snapshot or a restoration that fails halts it, too. And so does one that has
ended the process before, as the host found in the cell where the executor writes down what it lets the application do.

An operator can have the command skipped, by all replicas or by none (`tara.protocol.skips`). Therefore a halted
executor looks through what is decided behind the command; and after every start but genesis an executor first learns
from the committers what may be decided, as for a read, and looks through all of that before it executes anything.
"""

from array import array
from collections.abc import Callable
from itertools import cycle, islice

import msgspec
from msgspec import Struct

from tara.protocol import depth, places
from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import STORE, Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.nodes.learner import Learner
from tara.protocol.nodes.reads import ANSWERED_BYTES_MAX, Reads, StartIndex
from tara.protocol.observer import Observer
from tara.protocol.places import CELLS, EXECUTED, EXECUTING, Cell
from tara.protocol.progress import SourceProgress, note_all
from tara.protocol.sessions import Application, Sessions, SessionsState, raised
from tara.protocol.skips import ENDED, MARK, Barred, Skips
from tara.protocol.state_digest import digest_of


class ExecutorState(Struct, array_like=True):
    """The protocol's part of a checkpoint; canonical, like the application's part."""

    next: int
    progress: list[list[tuple[int, int, list[int]]]]
    sessions: SessionsState


class Executor(Node):
    runs_application = True

    def __init__(
        self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox, make: Callable[[], Application]
    ) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {
            t.Commit: self._on_commit,
            t.Stable: self._on_stable,
            t.Saved: self._on_saved,
            t.Unsaved: self._on_unsaved,
            t.Loaded: self._on_loaded,
            t.PendingReads: self._on_pending_reads,
            t.SubmitStaleReads: self._on_stale_reads,
            t.ReadIndex: self._on_read_index,
        }
        self._make = make
        #: Commands that it must not execute.
        self.skips = Skips(place for place in boot.barred if place < places.SNAPSHOT)
        self._cell: Cell = array("Q", [0] * CELLS) if boot.cell is None else boot.cell
        self._renew()
        #: The newest stable checkpoint it knows of.
        self.stable = Observer(limits.replicas, limits.quorum)
        #: The checkpoints that are durable here, oldest first; none is older than the stable one.
        self.checkpoints: list[t.CheckpointId] = []
        self._reads = Reads(graph, limits.quorum, limits.reads_max, limits.reads_bytes_max)
        self._round = 0
        #: How often it has started over in this life.
        self.starts = 0
        #: Why it does not execute; None: it does.
        self.halted: t.Halted | None = None
        #: Its host found it broken: from then on it does nothing but say so.
        self._broken = False
        #: The newest checkpoint that the application could not restore.
        self._not_restored = 0
        self._reply_sink = graph.one(Stage.REPLY_SINK, name.replica)
        self._gc_sinks = graph.all(Stage.GC_SINK)
        self._controllers = [graph.all(Stage.CONTROLLER, partition) for partition in range(limits.partitions)]
        #: Until the store has told what it has, this executor has no state: it neither votes nor reports.
        self._restored = boot.genesis and boot.threshold == 0
        #: The checkpoint that the store was asked for, while it has not answered.
        self._loading = not self._restored
        if self._loading:
            self.emit(t.Load(0, (name.replica,)), STORE)
        #: Requests below this execution number were looked through for skips.
        self._looked = 0
        #: It has to know what is decided before it executes anything: up to where, when the committers have told.
        self._must_look = not boot.genesis
        self._horizon = StartIndex(graph, limits.quorum)

    def _renew(self) -> None:
        """Begin with a new application and nothing learned, as at the very beginning."""
        limits, sources = self.limits, self.graph.replicas(Stage.REQUEST_SOURCE)
        self.application = self._make()
        self.sessions = Sessions(self.application, limits, self._cell, self.skips)
        self._learners = [
            Learner(partition, limits.replicas, sources, limits.quorum, limits.window)
            for partition in range(limits.partitions)
        ]
        #: The executed requests of each source, per partition; part of the snapshot.
        self._progress = [[SourceProgress() for _ in range(sources)] for _ in range(limits.partitions)]
        #: The next execution number. Falls only when it starts over.
        self.next = 0

    # Request handling

    def _on_commit(self, commit: t.Commit) -> None:
        if self._restored and self._learners[commit.partition].commit(commit):
            self._execute()

    def needs_commit(self, partition: int, end: int) -> bool:
        """Not if all these slots are decided."""
        return partition >= len(self._learners) or self._learners[partition].position < end

    def _execute(self) -> None:
        """Execute what is decided and due, in order, up to the first slot that is missing."""
        self._mind_skips()
        if self._must_look:
            return
        interval = self.limits.checkpoint_interval
        while self.halted is None and (run := self._due(interval - self.next % interval)):
            self._perform(run)
            if self.halted is None and self.next % interval == 0:
                self._checkpoint()
            self._mind_skips()
        self._answer()

    def _due(self, count: int) -> list[t.Request]:
        """The next requests to execute, at most `count`: the partitions take turns."""
        partitions = self.limits.partitions
        queues = [self._learners[(self.next + turn) % partitions].decided for turn in range(partitions)]
        for turn, queue in enumerate(queues):
            count = min(count, len(queue) * partitions + turn)
        return [queues[position % partitions].popleft() for position in range(count)]

    def _perform(self, run: list[t.Request]) -> None:
        """Execute a run of requests, and publish what came of it."""
        sessions, partitions = self.sessions, self.limits.partitions
        execute, pass_time, results = sessions.execute, sessions.pass_time, sessions.results
        first, partition = self.next, self.next % partitions
        counter, listens, done = sessions.counter, self.boot.listens, 0
        #: Per request: how many results there are, the times, and the counter, when it was executed.
        trace: list[tuple[int, int, int, int]] = []
        former = depth.enter()
        try:
            for request in run:
                if request.source >= 0:
                    pass_time(request.time, partition == 0)
                    for command in t.decode_commands(request.body):
                        execute(command)
                if listens:
                    trace.append((len(results), sessions.time_ms, sessions.counter, sessions.clock_ms))
                done += 1
                partition = (partition + 1) % partitions
        except MemoryError as error:
            self._halt(raised(error))
        except Barred as barred:
            self._halt(str(barred))
        finally:
            self._cell[EXECUTING] = 0
            depth.leave(former)
        for turn in range(partitions):
            note_all(self._progress[(first + turn) % partitions], run[turn:done:partitions])
        self.next += done
        if sessions.counter > self._cell[EXECUTED]:
            self._cell[EXECUTED] = sessions.counter - (self.halted is not None)
        commands, sessions.executed = sessions.executed, []
        events = sessions.events.copy()
        if done < len(run):
            # What came before the command that failed is as good as ever. What it did itself is not.
            events = [event for event in events if event.counter < sessions.counter]
            self._give_back(run[done:])
        if trace:
            ends, times, counters, clocks = map(list, zip(*trace, strict=True))
            commands = commands[: counters[-1] - counter]
            self.emit(
                t.Executed(first, run[:done], results[: ends[-1]], ends, times, counter, counters, commands, clocks),
                STORE,
            )
        self._publish(results.copy(), events)
        results.clear()
        sessions.events.clear()

    def _give_back(self, run: list[t.Request]) -> None:
        """These are decided, and not executed."""
        for position, request in reversed(list(enumerate(run, self.next))):
            self._learners[position % self.limits.partitions].decided.appendleft(request)

    def _publish(self, results: list[t.Result], events: list[t.Event]) -> None:
        limits = self.limits
        for some in t.split(results, limits.run_length_max, limits.run_bytes_max):
            self.emit(t.Results(self.index, some, []), self._reply_sink)
        for few in t.split(events, limits.run_length_max, limits.run_bytes_max):
            self.emit(t.Results(self.index, [], few), self._reply_sink)

    # Reads

    def _on_pending_reads(self, pending: t.PendingReads) -> None:
        self._reads.add(pending)
        self._answer()

    def _on_read_index(self, index: t.ReadIndex) -> None:
        if index.nonce == t.START_NONCE:
            if index.epoch == self.boot.life:
                self._horizon.index(index)
                if self._restored:
                    self._execute()
            return
        self._reads.index(index)
        self._answer()

    def _answer(self) -> None:
        if not self._restored or self.halted is not None:
            return
        results: list[t.ReadResult] = []
        room = ANSWERED_BYTES_MAX
        for read in self._reads.due(self.next):
            status, payload = self._answer_to(read) if room > 0 else (t.OVERLOADED, b"")
            room -= len(payload)
            results.append(t.ReadResult(read.ticket, status, payload, read.life))
        for some in t.split(results, self.limits.run_length_max, self.limits.run_bytes_max):
            self.emit(t.ReadResults(self.index, some), self._reply_sink)

    def _on_stale_reads(self, submitted: t.SubmitStaleReads) -> None:
        """Any state will do, and here is one, unless it has not been loaded yet."""
        results: list[t.ReadResult] = []
        room = submitted.bytes_max if self._restored else 0
        for read in submitted.reads:
            found = self.read(read.payload, read.principal) if room > 0 else (t.OVERLOADED, b"")
            room -= len(found[1])
            results.append(t.ReadResult(read.ticket, *found, read.life))
        for some in t.split(results, self.limits.run_length_max, self.limits.run_bytes_max):
            self.emit(t.ReadResults(self.index, some), self._reply_sink)

    def _answer_to(self, read: t.ReadRequest) -> tuple[int, bytes]:
        if read.subject == t.SESSIONS:
            return self.sessions.listing(read.payload)
        return self.read(read.payload, read.principal)

    def read(self, payload: bytes, principal: bytes) -> tuple[int, bytes]:
        """Read the application as it is now: status and payload of a result."""
        if self.halted is not None:
            return t.HALTED, self.halted.reason.encode()
        place = places.read(payload)
        if place in self.boot.barred:
            return t.FAILED, ENDED.encode()
        former = depth.enter()
        self._cell[EXECUTING] = place
        try:
            return self.sessions.read(payload, principal)
        finally:
            self._cell[EXECUTING] = 0
            depth.leave(former)

    @property
    def restored(self) -> bool:
        """Whether it knows its state: before that it does nothing."""
        return self._restored

    @property
    def executed(self) -> int | None:
        """The last command that it has executed, in any life that is remembered; None while it catches up, unless that
        is known from a life before."""
        known = self.boot.executed or None
        if not self.ready and self.halted is None:
            return known
        at_command = self.halted is not None and not self.halted.checkpoint
        return max(self.sessions.counter - at_command, self.boot.executed)

    @property
    def ready(self) -> bool:
        """Whether it executes what is decided, at once."""
        return self._restored and not self._must_look and self.halted is None

    def digest(self) -> bytes:
        """Of the whole replicated state: equal on all executors that have executed equally much."""
        return digest_of(t.encode(self.sessions.state()), self.application.snapshot())

    # Halting

    def give_up(self, reason: str) -> bool:
        """From now on it does nothing but say so, to the front end of its site."""
        self._broken = True
        self.handlers = {}
        self._halt(reason)
        return True

    def _halt(self, reason: str, checkpoint: int = 0) -> None:
        self.halted = t.Halted(self.index, self.sessions.counter, checkpoint, reason[: t.REASON_LENGTH_MAX])
        self.emit(self.halted, STORE)
        self.emit(self.halted, self._reply_sink)

    def _go_on(self) -> None:
        """It executes again."""
        if self.halted is not None:
            self.halted = None
            self.emit(t.Halted(self.index, 0, 0, ""), STORE)
            self.emit(t.Halted(self.index, 0, 0, ""), self._reply_sink)

    # Skips

    @property
    def skip_asked(self) -> bool:
        """Whether it has halted at a command that an operator wants skipped: it will not execute it, in no life, unless
        the operator withdraws."""
        return self.halted is not None and not self.halted.checkpoint and self.halted.counter in self.skips.asked

    def _mind_skips(self) -> None:
        if self._must_look or self.halted is not None:
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Look through what is decided and not executed, as far as it goes without a gap."""
        begin = max(self._looked, self.next)
        withdrawn: set[int] = set()
        undone = self._undone(begin)
        for request in undone:
            if MARK in request.body:
                withdrawn |= self.skips.look(t.decode_commands(request.body))
        self._looked = begin + len(undone)
        if self._must_look:
            until = self._horizon.until
            self._must_look = until is None or self._looked < until
        elif self.halted is not None and not self.halted.checkpoint and self._restored:
            self._act_on_skip(self.halted.counter, withdrawn)

    def _act_on_skip(self, counter: int, withdrawn: set[int]) -> None:
        """It has halted at this command."""
        if counter in withdrawn:
            self.skips.unbar(counter)
            self.emit(t.Unbarred(counter), STORE)
        if counter in self.skips.confirmed or (counter in withdrawn and counter not in self.skips.known):
            self._start_over()

    def _start_over(self) -> None:
        """What the command had half done is not to stay: begin with the newest checkpoint, as after a start. What was
        learned of skips stays."""
        self._renew()
        self.starts += 1
        self._restored, self._loading, self._not_restored = False, True, 0
        self._go_on()
        self.emit(t.Load(0, (self.index,)), STORE)

    def _undone(self, begin: int) -> list[t.Request]:
        """The decided requests from this execution number on, without a gap."""
        partitions = self.limits.partitions
        queues = []
        for position in range(begin, begin + partitions):
            learner = self._learners[position % partitions]
            first = learner.position - len(learner.decided)
            queues.append(islice(learner.decided, max(position // partitions - first, 0), None))
        found: list[t.Request] = []
        for queue in cycle(queues):
            request = next(queue, None)
            if request is None:
                return found
            found.append(request)
        return found

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
        place = places.SNAPSHOT | number
        if place in self.boot.barred:
            self._halt(ENDED, number)
            return
        former = depth.enter()
        self._cell[EXECUTING] = place
        try:
            chunks = self.application.snapshot()
            if self.application.concurrent_snapshot:
                chunks = places.marked(chunks, self._cell, place)
            else:
                chunks = iter(list(chunks))
        except BaseException as error:
            self._halt(f"{raised(error)} when it was to give a snapshot for checkpoint {number}", number)
            return
        finally:
            self._cell[EXECUTING] = 0
            depth.leave(former)
        self.emit(t.Save(number, t.encode(state), chunks), STORE)

    def _on_saved(self, saved: t.Saved) -> None:
        known = [checkpoint for checkpoint in self.checkpoints if checkpoint.number != saved.checkpoint.number]
        if saved.checkpoint.number >= self.stable.current:
            self.checkpoints = sorted([*known, saved.checkpoint], key=lambda checkpoint: checkpoint.number)
        self._announce()

    def _on_unsaved(self, unsaved: t.Unsaved) -> None:
        if unsaved.number > self.stable.current:
            self._halt(
                f"{unsaved.reason} when it was to give a snapshot for checkpoint {unsaved.number}", unsaved.number
            )

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
        if self.halted is not None and self._restored and 0 < self.halted.checkpoint <= self.stable.current:
            # Others have the checkpoint that this one could not take.
            self._go_on()
            self._execute()
        behind = self.next < self.stable.current * self.limits.checkpoint_interval
        if behind and not self._loading and self.stable.current > self._not_restored:
            holders = [
                status.executor
                for status in stable.executors
                if status.checkpoints and status.checkpoints[-1].number >= self.stable.current
            ]
            self._loading = True
            self.emit(t.Load(self.stable.current, holders), STORE)

    def _on_loaded(self, loaded: t.Loaded) -> None:
        self._loading = False
        checkpoint = loaded.checkpoint
        if checkpoint is None or checkpoint.number * self.limits.checkpoint_interval <= self.next:
            self._restored = self._restored or not self._not_restored
            self._learn_horizon()
            return
        if checkpoint.number > self._not_restored and self._restore(checkpoint.number, loaded):
            # Announced when it is durable here, too; a store that has it already says so at once.
            self.emit(t.Save(checkpoint.number, loaded.state, loaded.chunks), STORE)
            self._go_on()
            self._learn_horizon()
            self._execute()

    def _learn_horizon(self) -> None:
        """Ask the committers how far something may be decided."""
        if self._must_look and self._horizon.until is None:
            self.emit(t.StartIndexRequest(self.index, self.boot.life), self._reply_sink)

    def _restore(self, number: int, loaded: t.Loaded) -> bool:
        """Take the state of a checkpoint; false if the application could not. Then it has none."""
        state = msgspec.msgpack.decode(loaded.state, type=ExecutorState)
        if state.next != number * self.limits.checkpoint_interval:
            raise NodeHalted(f"checkpoint {number} is of execution number {state.next}")
        if self.halted is not None:
            self._renew()
        place = places.RESTORATION | number
        former = depth.enter()
        self._cell[EXECUTING] = place
        try:
            if place in self.boot.barred:
                raise Barred
            self.application.restore(loaded.chunks)
        except BaseException as error:
            self._restored, self._not_restored = False, number
            said = ENDED if isinstance(error, Barred) else f"{raised(error)} when it was to restore checkpoint {number}"
            self._halt(said, number)
            return False
        finally:
            self._cell[EXECUTING] = 0
            depth.leave(former)
        self._restored, self._not_restored = True, 0
        self.sessions.restore(state.sessions)
        self.next = state.next
        self._progress = _restored(state)
        for learner, progress in zip(self._learners, _restored(state), strict=True):
            learner.jump(self.next // self.limits.partitions, progress)
        return True

    # Reports

    def report(self) -> None:
        if self.halted is not None:
            self.emit(self.halted, self._reply_sink)
        if not self._restored or self._broken:
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
                    self.boot.life,
                    progress,
                    positions[partition],
                    max(positions),
                    min(positions),
                    window_end,
                    self._learners[partition].bytes,
                ),
                controllers,
            )

    def tick(self, now_ms: float) -> None:
        super().tick(now_ms)
        if self._restored and not self._broken:
            # At its start its site may not have reached the others yet, and nothing is executed before they answer.
            self._learn_horizon()
        # Somebody waits for another partition: let its proposer know at once that it has to skip.
        waits = self._restored and self.halted is None and any(learner.decided for learner in self._learners)
        if waits:
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
                # Where nobody executes, no time is to pass for sessions.
                len(self.sessions) if self.ready else 0,
            ),
            self._gc_sinks,
        )


def _restored(state: ExecutorState) -> list[list[SourceProgress]]:
    return [[SourceProgress(epoch, low, set(early)) for epoch, low, early in sources] for sources in state.progress]
