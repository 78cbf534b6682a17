"""The executor: a learner of every partition, and one copy of the application.

Commits from the committers come in; results go to the reply sink of the site, progress to the controllers, status
and checkpoints to the gc sinks. Partitions are merged round-robin: execution number n is slot n // P of partition
n mod P.

What it executed goes to the store of the host, which writes the decided log. After every `checkpoint_interval` slots is
a checkpoint: it is announced when the log up to it is durable. Now and then the executor has a base taken there, a
snapshot of the whole state, which is drawn in pieces between other work (`tara.protocol.bases`). After a start, and
when slots that it lacks were garbage-collected elsewhere, it restores a base, its own or a peer's, slice by slice
between other work of its site (`tara.protocol.restoration`), and executes again what follows in the log; one that has a
state goes on from there, if the log leads on from it.

What the application raises is the result of its command, except for a `MemoryError`, which another replica may not see:
then this executor halts, alone and visibly. It goes on learning what is decided, but executes nothing until a base of
another executor takes it past the command. A restoration that fails halts it, too. And so does a command that has ended
the process before, as the host found in the cell where the executor writes down what it lets the application do. A
snapshot that fails costs nothing but the base: the log grows until one succeeds.

An operator can have the command skipped, by all replicas or by none (`tara.protocol.skips`). Therefore a halted
executor looks through what is decided behind the command; and after every start but genesis an executor first learns
from the committers what may be decided, as for a read, and looks through all of that before it executes anything.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle, islice

import msgspec

from tara.protocol import depth, places
from tara.protocol import tuples as t
from tara.protocol.base_taker import BaseTaker
from tara.protocol.bases import DRAW_BYTES, PAUSE_MAX
from tara.protocol.errors import BaseUnreadable, NodeHalted
from tara.protocol.execution import Execution, ExecutionState, Run
from tara.protocol.graph import STORE, Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox, Replica
from tara.protocol.nodes.learner import Learner
from tara.protocol.nodes.reads import ANSWERED_BYTES_MAX, Reads, StartIndex
from tara.protocol.observer import Observer
from tara.protocol.places import CELLS, EXECUTED, EXECUTING, Cell
from tara.protocol.restoration import Restoration
from tara.protocol.sessions import Application, Sessions, raised
from tara.protocol.skips import ENDED, MARK, Barred, Skips
from tara.protocol.state_digest import DrawnDigest

#: Before it asks the store again for what it did not get.
LOAD_PAUSE_MS = 500.0
#: What is drawn at once of a digest that somebody asks for: it may take some hundredths of a second.
DIGEST_BYTES = 4 << 20


class Executor(Node):
    runs_application = True

    def __init__(
        self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox, make: Callable[[], Application]
    ) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self._cell: Cell = array("Q", [0] * CELLS) if boot.cell is None else boot.cell
        self.bases = BaseTaker(limits, boot, self._cell, self._tell_store)
        self.handlers = {
            t.Commit: self._on_commit,
            t.Stable: self._on_stable,
            t.Saved: self._on_saved,
            t.Loaded: self._on_loaded,
            t.Resume: self._on_resume,
            t.Replay: self._on_replay,
            t.Settled: self._on_settled,
            t.Draw: self.bases.draw,
            t.BaseSaved: self._on_base_saved,
            t.GivenUp: self.bases.could_not_be_written,
            t.TakeBase: self._on_take_base,
            t.DrawDigest: self._on_draw_digest,
            t.PendingReads: self._on_pending_reads,
            t.SubmitStaleReads: self._on_stale_reads,
            t.ReadIndex: self._on_read_index,
        }
        self._make = make
        #: Commands that it must not execute.
        self.skips = Skips(place for place in boot.barred if place < places.SNAPSHOT)
        #: How often it has started over in this life; and the last command that it had executed by then.
        self.starts, self._executed = -1, boot.executed
        self._renew()
        #: The newest stable checkpoint it knows of.
        self.stable = Observer(limits.replicas, limits.quorum)
        #: The checkpoints that are durable here, oldest first; none is older than the stable one.
        self.checkpoints: list[t.CheckpointId] = []
        #: The newest checkpoint that is durable here. What is executed is never further ahead of it than this: a store
        #: that is slow holds its executor back.
        self._durable = boot.threshold
        self._ahead_max = max(limits.window // limits.checkpoint_slots, 2) * limits.checkpoint_interval
        #: A digest that is being drawn for an operator, or was; and of which state.
        self._digest: tuple[tuple[int, int], DrawnDigest] | None = None
        self._reads = Reads(graph, limits.quorum, limits.reads_max, limits.reads_bytes_max)
        self._round = 0
        #: Whether clients may wait for results of this life: not for those of all the history before it.
        self._serves = boot.genesis
        #: Why it does not execute; None: it does.
        self.halted: t.Halted | None = None
        #: Its host found it broken: from then on it does nothing but say so.
        self._broken = False
        #: The newest base that the application could not restore.
        self._not_restored = 0
        #: How often it has halted since it last took a base itself. Former lives count by the restorations that have
        #: ended the process; at one of these it will halt again.
        self._breakdowns = max(sum(places.is_restoration(place) for place in boot.barred) - 1, 0)
        self._reply_sink = graph.one(Stage.REPLY_SINK, name.replica)
        self._gc_sinks = graph.all(Stage.GC_SINK)
        self._controllers = [graph.all(Stage.CONTROLLER, partition) for partition in range(limits.partitions)]
        #: Until the store has told what it has, this executor has no state: it neither votes nor reports.
        self._restored = boot.genesis and boot.threshold == 0
        #: Whether it waits for what the store was asked for; and whether it executes again what came of it.
        self._loading = self._replaying = False
        #: The base that is being restored.
        self._restoration: Restoration | None = None
        #: What it has executed again, and led elsewhere; None: nothing.
        self._doubted: t.Doubted | None = None
        #: Not before that it asks the store again, unless it got further by what the store had. What it asks others
        #: need not wait for what its own store said.
        self._load_due_ms = boot.now_ms
        #: Where it was when it asked the store.
        self._asked_at = 0
        #: Not before that it asks for what its own store has alone. If others report meanwhile that they are far ahead,
        #: that is of no use.
        self._own_due_ms = boot.now_ms + limits.report_interval_ms
        #: Requests below this execution number were looked through for skips.
        self._looked = 0
        #: It has to know what is decided before it executes anything: up to where, when the committers have told.
        self._must_look = not boot.genesis
        self._horizon = StartIndex(graph, limits.quorum)

    def _renew(self) -> None:
        """Begin with a new application and nothing learned, as at the very beginning."""
        self._renew_application()
        limits, sources = self.limits, self.graph.replicas(Stage.REQUEST_SOURCE)
        self._learners = [
            Learner(partition, limits.replicas, sources, limits.quorum, limits.window)
            for partition in range(limits.partitions)
        ]

    def _renew_application(self) -> None:
        self.starts += 1
        self._executed = max(self._cell[EXECUTED], self._executed)
        sources = self.graph.replicas(Stage.REQUEST_SOURCE)
        self._execution = Execution(self._make, self.limits, sources, self._cell, self.skips)

    @property
    def execution(self) -> Execution:
        return self._execution

    @property
    def application(self) -> Application:
        return self._execution.application

    @property
    def sessions(self) -> Sessions:
        return self._execution.sessions

    @property
    def counter(self) -> int:
        """How many commands it has executed."""
        return self._execution.sessions.counter

    def replica(self) -> Replica:
        return self

    @property
    def next(self) -> int:
        """The next execution number. Falls only when it starts over."""
        return self._execution.next

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
        end = self._durable * interval + self._ahead_max
        while self.halted is None and self.next < end and (run := self._due(interval - self.next % interval)):
            self._perform(run)
            if self.halted is None and self.next % interval == 0:
                self._checkpoint()
            self._mind_skips()
        if self.bases.is_ordered and self.halted is None and not self._replaying and self.next >= end:
            # It may be that the log cannot become durable without the base.
            self.bases.take_ordered(self._execution)
        self._answer()

    def _due(self, count: int) -> list[t.Request]:
        """The next requests to execute, at most `count`: the partitions take turns."""
        partitions = self.limits.partitions
        queues = [self._learners[(self.next + turn) % partitions].decided for turn in range(partitions)]
        for turn, queue in enumerate(queues):
            count = min(count, len(queue) * partitions + turn)
        return [queues[position % partitions].popleft() for position in range(count)]

    def _perform(self, requests: list[t.Request]) -> None:
        """Execute a run of requests, and publish what came of it."""
        run = self._execution.execute(requests)
        done = len(run.executed.requests)
        if run.failure:
            self._halt(run.failure)
        if done < len(requests):
            self._give_back(requests[done:])
        if done and self.boot.listens:
            self.emit(run.executed, STORE)
        self._serves = True
        self._publish(run)

    def _give_back(self, run: list[t.Request]) -> None:
        """These are decided, and not executed."""
        for position, request in reversed(list(enumerate(run, self.next))):
            self._learners[position % self.limits.partitions].decided.appendleft(request)

    def _publish(self, run: Run) -> None:
        limits = self.limits
        for some in t.split(run.results, limits.run_length_max, limits.run_bytes_max):
            self.emit(t.Results(self.index, some, []), self._reply_sink)
        for few in t.split(run.events, limits.run_length_max, limits.run_bytes_max):
            self.emit(t.Results(self.index, [], few), self._reply_sink)

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
    def is_restoring(self) -> bool:
        """Whether its application has a part of a base, and is not to be looked at."""
        return self._restoration is not None

    @property
    def executed(self) -> int | None:
        """The last command that it has executed, in any life that is remembered; None while it catches up, unless that
        is known from before."""
        if not self.ready and self.halted is None:
            return self._executed or None
        at_command = self.halted is not None and not self.halted.checkpoint
        return max(self.sessions.counter - at_command, self._executed)

    @property
    def ready(self) -> bool:
        """Whether it executes what is decided, at once."""
        return self._restored and not self._must_look and self.halted is None

    def digest(self) -> bytes:
        """Of the whole replicated state: equal on all executors that have executed equally much."""
        return self._execution.digest()

    @property
    def drawn_digest(self) -> bytes | None:
        """The same, as it was drawn (`DrawDigest`). None: there is more to draw, or it was of another state."""
        if self._digest is None or self._digest[0] != (self.starts, self.next) or not self.ready:
            return None
        return self._digest[1].drawn

    def _on_draw_digest(self, draw: t.DrawDigest) -> None:
        at = (self.starts, self.next)
        if self._digest is not None and self._digest[0] != at:
            self._digest = None
        if not self.ready:
            return
        try:
            if self._digest is None and draw.begins:
                self._digest = (at, self._execution.capture_digest())
            if self._digest is not None:
                self._digest[1].go_on(DIGEST_BYTES if draw.begins else DRAW_BYTES)
        except BaseException:
            # It is the application's snapshot that failed: the next base will tell.
            self._digest = None

    def give_up(self, reason: str) -> bool:
        """From now on it does nothing but say so, to the front end of its site."""
        self._broken = True
        self.handlers = {}
        self._halt(reason)
        return True

    def _halt(self, reason: str, checkpoint: int = 0) -> None:
        counter = max(self.sessions.counter, self._executed) if checkpoint else self.sessions.counter
        self.halted = t.Halted(self.index, counter, checkpoint, reason[: t.REASON_LENGTH_MAX])
        self._replaying, self._restoration = False, None
        self._breakdowns += 1
        self.emit(self.halted, STORE)
        self.emit(self.halted, self._reply_sink)

    def _go_on(self) -> None:
        """It executes again."""
        if self.halted is not None:
            self.halted = None
            self.emit(t.Halted(self.index, 0, 0, ""), STORE)
            self.emit(t.Halted(self.index, 0, 0, ""), self._reply_sink)

    @property
    def skip_asked(self) -> bool:
        """Whether it has halted at a command that an operator wants skipped: it will not execute it, in no life, unless
        the operator withdraws."""
        return self.halted is not None and self._is_stuck and self.halted.counter in self.skips.asked

    @property
    def _is_stuck(self) -> bool:
        """Whether it has halted at a command: its state has half of that, and only a base leads past it."""
        return self.halted is not None and not self.halted.checkpoint

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
        elif self.halted is not None and self._is_stuck and self._restored:
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
        self._restored, self._not_restored = False, 0
        self._go_on()
        self._load(0, (self.index,))

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

    def _checkpoint(self) -> None:
        self.emit(t.Mark(self._execution.checkpoint, self.sessions.counter), STORE)
        self.bases.come_to(self._execution)

    def _tell_store(self, told: t.Tuple) -> None:
        self.emit(told, STORE)

    def _on_base_saved(self, saved: t.BaseSaved) -> None:
        if self.bases.saved(saved):
            self._breakdowns = 0

    def _on_take_base(self, take: t.TakeBase) -> None:
        if self.bases.order(take) and self._restored:
            self._execute()

    def _on_saved(self, saved: t.Saved) -> None:
        if self._doubted is not None and self._doubted.checkpoint.number <= saved.checkpoint.number:
            return
        self._has_durable(saved.checkpoint)
        if self._restored:
            self._announce()
            # It may have waited for that.
            self._execute()

    def _has_durable(self, checkpoint: t.CheckpointId) -> None:
        self._durable = max(checkpoint.number, self._durable)
        known = [own for own in self.checkpoints if own.number != checkpoint.number]
        if checkpoint.number >= self.stable.current:
            self.checkpoints = sorted([*known, checkpoint], key=lambda own: own.number)

    def _on_stable(self, stable: t.Stable) -> None:
        self._compare(self.checkpoints, stable.checkpoint, "what it executed")
        self.bases.help(max([status.base_wanted for status in stable.executors], default=0))
        others = Counter(base for status in stable.executors for base in status.bases)
        for base, count in others.items():
            if count >= self.limits.quorum:
                self._compare(self.bases.known, base, "its state")
        if self.stable.update(stable.source, stable.checkpoint.number):
            threshold = self.stable.current
            self.checkpoints = [own for own in self.checkpoints if own.number >= threshold]
        behind = self.next < self.stable.current * self.limits.checkpoint_interval
        if behind and self._may_load:
            holders = [status.executor for status in stable.executors if self._may_lead(status, stable.checkpoint)]
            # Also if nobody else has it: its own store may not have been able to read what it has.
            self._load(self.stable.current, holders)
            if not holders:
                # Who has it may be known with the next report.
                self._load_due_ms = self.now_ms

    def _compare(self, own: list[t.CheckpointId], agreed: t.CheckpointId, what: str) -> None:
        for checkpoint in own:
            if checkpoint.number == agreed.number and agreed.digest not in (b"", checkpoint.digest):
                raise NodeHalted(
                    f"checkpoint {checkpoint.number}: {what} has digest {checkpoint.digest.hex()} at this replica, "
                    f"but f+1 others have {agreed.digest.hex()}: it diverged"
                )

    @property
    def _may_load(self) -> bool:
        busy = self._loading or self._replaying or self._restoration is not None
        return not busy and self.now_ms >= self._load_due_ms

    @property
    def _needed_base(self) -> int:
        """Only a base at this checkpoint or a later one leads on; 0: anything does."""
        if self._is_stuck:
            return self.next // self.limits.checkpoint_interval + 1
        return self._not_restored + 1 if self._not_restored else 0

    @property
    def _wanted_base(self) -> int:
        """The one that others are to take for it, if they have none; 0: it needs none. Ever further away: what breaks
        this replica down again and again is not to cost the others a base each time."""
        needed = self._needed_base
        return needed and needed - 1 + min(1 << max(self._breakdowns - 1, 0), PAUSE_MAX)

    def _may_lead(self, status: t.ExecutorStatus, agreed: t.CheckpointId) -> bool:
        """Whether this executor has come as far as the threshold, and not elsewhere."""
        known = {own.number: own.digest for own in status.checkpoints}
        same = not agreed.digest or known.get(agreed.number, agreed.digest) == agreed.digest
        return same and max(known, default=0) >= self.stable.current

    def _load(self, minimum: int, holders: Sequence[int]) -> None:
        """Ask the store for a way to a checkpoint: from the state that this executor has, if it is of any use."""
        next_, bases_from = self.next, self._needed_base
        if bases_from or (self.next == 0 and self.boot.threshold):
            next_ = -1
        self._loading, self._replaying = True, False
        self._load_due_ms, self._asked_at = self.now_ms + LOAD_PAUSE_MS, self.next
        self.emit(t.Load(minimum, next_, bases_from, holders), STORE)

    def _on_loaded(self, loaded: t.Loaded) -> None:
        self._loading = False
        base = loaded.base
        if base is not None and base.number * self.limits.checkpoint_interval > self.next:
            self._begin_restoration(base, loaded)
        elif self._is_stuck:
            # It was not when it asked, or there is no such base.
            return
        else:
            self._follow(loaded.until)

    def _follow(self, until: int) -> None:
        """Execute again what leads to this checkpoint, if it is not there."""
        if until * self.limits.checkpoint_interval > self.next:
            self._replaying = True
            self.emit(t.More(), STORE)
        else:
            self._restored = self._restored or not self._not_restored
            self._arrive()

    def _arrive(self) -> None:
        """It has come as far as the store leads."""
        self._replaying = False
        if self.next > self._asked_at:
            # The others have gone on meanwhile. Whoever follows them at once stays within their window.
            self._load_due_ms = self.now_ms
        self.emit(t.Arrived(), STORE)
        if self._restored:
            self._announce()
            self._learn_horizon()
            self._execute()

    def _on_replay(self, replay: t.Replay) -> None:
        if not self._replaying:
            return
        if replay.first + len(replay.requests) > self.next:
            run = self._execution.replay(replay.first, replay.requests, replay.skipped)
            self._jump()
            if self._restored and self._serves:
                # Clients may wait for what it did not execute itself.
                self._publish(run)
            if run.failure:
                self._restored, self._replaying = True, False
                self._halt(run.failure)
                return
        if replay.checkpoint is not None:
            if not self._comes_to(replay.checkpoint):
                return
            if replay.durable:
                self._has_durable(replay.checkpoint)
        if replay.last:
            self._restored = True
            self._arrive()
        elif replay.asks:
            self.emit(t.More(), STORE)

    def _comes_to(self, checkpoint: t.CheckpointId) -> bool:
        """Whether what was executed again leads to this checkpoint. If not, that may be another replica's fault: it has
        no state until the store has looked for what others have."""
        own = self._execution.checkpoint
        if own.number > checkpoint.number or own == checkpoint:
            return True
        self._doubted = t.Doubted(checkpoint, own.digest)
        self._restored, self._replaying, self._loading = False, False, True
        self.emit(self._doubted, STORE)
        return False

    def _on_settled(self, settled: t.Settled) -> None:
        doubted, self._doubted = self._doubted, None
        if doubted is None or doubted.checkpoint != settled.checkpoint:
            return
        if settled.again:
            self._start_over()
            return
        checkpoint, own = doubted.checkpoint, self._execution.checkpoint
        if own.number < checkpoint.number:
            raise NodeHalted(f"the log does not lead to checkpoint {checkpoint.number}, but to {self.next}")
        raise NodeHalted(
            f"checkpoint {own.number}: executing the log again gives digest {own.digest.hex()}, but it was "
            f"{checkpoint.digest.hex()}: the application is not deterministic"
        )

    def _jump(self) -> None:
        """Requests were executed that the learners need not learn any more."""
        partitions = self.limits.partitions
        copies = zip(self._learners, self._execution.copy_progress(), strict=True)
        for partition, (learner, progress) in enumerate(copies):
            learner.jump((self.next - partition + partitions - 1) // partitions, progress)

    def _learn_horizon(self) -> None:
        """Ask the committers how far something may be decided."""
        if self._must_look and self._horizon.until is None:
            self.emit(t.StartIndexRequest(self.index, self.boot.life), self._reply_sink)

    def _begin_restoration(self, base: t.CheckpointId, loaded: t.Loaded) -> None:
        """Take the state of a base. The store is asked for each turn, so that the site does its other work meanwhile;
        also for the first one: by then nobody holds the former application, and memory has one state, not two."""
        state = msgspec.msgpack.decode(loaded.state, type=ExecutionState)
        if (state.next, state.digest) != (base.number * self.limits.checkpoint_interval, base.digest):
            raise NodeHalted(f"base {base.number} is of execution number {state.next}, or of another history")
        self._restored, self._digest = False, None
        self.bases.drop()
        if self.halted is not None:
            self._renew()
        elif self.next:
            # What it has learned meanwhile may be what follows.
            self._renew_application()
            # Whoever reads the application is to let go of it.
            self.emit(t.Halted(self.index, 0, 0, ""), STORE)
        self._restoration = Restoration(base, state, loaded)
        self.emit(t.Restoring(base.number), STORE)

    def _on_resume(self, resume: t.Resume) -> None:
        restoration = self._restoration
        if restoration is None or restoration.base.number != resume.number:
            return
        more = self._restore_some(restoration)
        if more:
            self.emit(t.Restoring(resume.number), STORE)
        elif more is not None:
            self._end_restoration(restoration)

    def _restore_some(self, restoration: Restoration) -> bool | None:
        """Whether there is more to restore; None: the application could not. Then it has no state."""
        number = restoration.base.number
        place = places.RESTORATION | number
        former = depth.enter()
        self._cell[EXECUTING] = place
        try:
            if place in self.boot.barred:
                raise Barred
            return restoration.go_on(self.application)
        except BaseUnreadable:
            # It begins again, as after a start.
            self._restoration = None
            self._renew()
            self._go_on()
        except BaseException as error:
            self._not_restored = number
            said = ENDED if isinstance(error, Barred) else f"{raised(error)} when it was to restore base {number}"
            self._halt(said, number)
        finally:
            self._cell[EXECUTING] = 0
            depth.leave(former)
        return None

    def _end_restoration(self, restoration: Restoration) -> None:
        base, state, loaded = restoration.base, restoration.state, restoration.loaded
        self._restoration, self._not_restored = None, 0
        self._execution.restore(state)
        self._jump()
        self._go_on()
        self._has_durable(base)
        own = t.CheckpointId(base.number, loaded.digest)
        self.bases.note(own, loaded.length, state.bytes, state.sessions.time_ms)
        self._follow(loaded.until)

    def report(self) -> None:
        if self.halted is not None:
            self.emit(self.halted, self._reply_sink)
        if self._broken:
            return
        if self._restored or self.halted is not None:
            # One that could not be restored has nothing to tell but which base it needs.
            self._announce()
        if not (self._restored or self._replaying):
            return
        # Also while requests are executed again: all might do so at once, and a new view would not be quicker.
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
        if not self._restored and self.halted is None and self._may_load and now_ms >= self._own_due_ms:
            self._load(self.stable.current, (self.index,))
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
                self.bases.known,
                self._execution.checkpoint.number,
                self._execution.bytes_since,
                self._wanted_base,
                self.stable.current,
                # Where nobody executes, no time is to pass for sessions.
                len(self.sessions) if self.ready else 0,
            ),
            self._gc_sinks,
        )
