"""Mutants of the protocol: amendments to the paper, and rules that everything rests on."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tara.host import peer_wire
from tara.host.admission import Arrivals
from tara.host.nodes import Nodes
from tara.host.skipping import ReplicaReport, Step
from tara.protocol import depth
from tara.protocol import tuples as t
from tara.protocol.acceptor import Acceptor
from tara.protocol.base_taker import BaseTaker
from tara.protocol.execution import Execution, ExecutionState, RunningDigest
from tara.protocol.graph import Graph
from tara.protocol.nodes import controller as controller_module
from tara.protocol.nodes import proposer as proposer_module
from tara.protocol.nodes import reads as reads_module
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import Controller
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.gc_source import GcSource
from tara.protocol.nodes.learner import Learner
from tara.protocol.nodes.proposer import HeldRequests, Mode, Proposer
from tara.protocol.nodes.reads import Reads
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.nodes.view_source import ViewSource
from tara.protocol.observer import Observer
from tara.protocol.opinions import ProgressOpinions, highest
from tara.protocol.progress import SourceProgress, note_all
from tara.protocol.sessions import Session, Sessions
from tara.protocol.skips import Skips
from tara.protocol.transfer import Transfer
from tara.protocol.window import Window
from tara.simulator.faults import fatal_command as fatal_command_module
from tara.simulator.mutants.registry import mutant, nothing, replace


@mutant("S1: a newer accept overwrites the record of an older view")
def stale_records() -> Iterator[None]:
    original = Window.put

    def put(self: Window[Any], index: int, value: Any) -> None:
        if index == self.pos:
            original(self, index, value)

    with replace(Window, "put", put):
        yield


@mutant("S2: the records decide what a new view proposes again")
def records_ignored() -> Iterator[None]:
    with replace(proposer_module, "_newest", lambda records, first: []):
        yield


@mutant("S3: the next slot lies past everything proposed again")
def next_off_by_one() -> Iterator[None]:
    original = Proposer._publish

    def publish(self: Proposer, run: list[t.Request]) -> None:
        fresh = self.proposals.pos == self.proposals.min
        original(self, run)
        if fresh and self._start is not None and self._start.next > self._start.first:
            last = self.proposals.slice(self.proposals.min, self.proposals.pos - 1)
            self.proposals.clear()
            self.proposals.extend(last)

    with replace(Proposer, "_publish", publish):
        yield


@mutant("S4: an observer never falls")
def observer_falls() -> Iterator[None]:
    def update(self: Observer, replica: int, value: int) -> bool:
        if value <= self._values[replica]:
            return False
        self._values[replica] = value
        old, self.current = self.current, highest(self._values, self._threshold)
        return self.current != old

    with replace(Observer, "update", update):
        yield


@mutant("S5: a proposer starts idle")
def proposer_starts_active() -> Iterator[None]:
    original = Proposer.__init__

    def init(self: Proposer, *arguments: Any) -> None:
        original(self, *arguments)
        self._views.raise_to(1)
        if self.graph.proposer_of(1) == self.index:
            self.mode = Mode.ACTIVE
            incarnations = [self.boot.incarnation] * self.graph.members
            self._start = t.Start(self.index, self.partition, 1, incarnations, [], 0, 0)
            self.emit(self._start, self._to_committers)

    with replace(Proposer, "__init__", init):
        yield


@mutant("R1: a proposer is active only in a view that names this life of it")
def any_life_may_lead() -> Iterator[None]:
    def usable(self: Proposer) -> list[Any]:
        return [parts for parts in self._records.values() if parts.complete]

    # The view sources would soon move on to a view with another proposer.
    with replace(Proposer, "_usable_records", usable), replace(Proposer, "report", _report_without_presence):
        yield


def _report_without_presence(self: Proposer) -> None:
    if self.mode is Mode.ACTIVE:
        self._resend()


@mutant("S9: votes count together only in the same view")
def votes_of_any_view() -> Iterator[None]:
    def decide(self: Learner, view: int) -> bool:
        position = self.position
        voters = [votes for votes in self._votes if votes.first <= position < votes.end]
        if len(voters) < self._quorum:
            return False
        newest = max(voters, key=lambda votes: votes.view)
        self.decided.append(newest.requests[0])
        note_all(self.progress, newest.requests[:1])
        self.position += 1
        for votes in self._votes:
            votes.drop_below(self.position)
        return True

    with replace(Learner, "_decide", decide):
        yield


@mutant("S11: an error result carries nothing that differs between replicas")
def error_with_address() -> Iterator[None]:
    original = Sessions._run

    def run(self: Sessions, session: Session, command: t.Command, freed: int = 0) -> None:
        before = len(self.results)
        original(self, session, command, freed)
        for index, result in enumerate(self.results[before:], before):
            if result.status == t.FAILED:
                leaky = msgspec.structs.replace(result, payload=str(id(self)).encode())
                session.results[result.number] = self.results[index] = leaky

    with replace(Sessions, "_run", run):
        yield


@mutant("a slot is decided by f+1 committers")
def one_vote_decides() -> Iterator[None]:
    original = Learner.__init__

    def init(self: Learner, partition: int, committers: int, sources: int, quorum: int, capacity: int) -> None:
        original(self, partition, committers, sources, quorum - 1, capacity)

    with replace(Learner, "__init__", init):
        yield


@mutant("a view starts from f+1 records")
def too_few_records() -> Iterator[None]:
    original = Proposer._usable_records

    def usable(self: Proposer) -> list[Any]:
        found = original(self)
        return found * 2 if len(found) == self.limits.f else found

    with replace(Proposer, "_usable_records", usable):
        yield


@mutant("a committer does not vote below the view it has promised")
def votes_in_any_view() -> Iterator[None]:
    def on_proposal(self: Committer, proposal: t.Proposal) -> None:
        if not self.acceptor.commits.min <= proposal.first <= self.acceptor.commits.pos:
            return
        requests = proposal.requests[self.acceptor.commits.pos - proposal.first :][: self.acceptor.commits.room]
        if requests:
            first = self.acceptor.commits.pos
            self.acceptor.commits.extend(requests)
            self.persist(t.Voted(proposal.view, first, requests))
            self.emit(t.Commit(self.index, self.partition, proposal.view, first, requests), self._executors)

    with replace(Committer, "_on_proposal", on_proposal):
        yield


@mutant("what a step persisted is synced before what it emitted leaves", durability="disk")
def send_before_sync() -> Iterator[None]:
    original = Nodes.collect

    def collect(self: Nodes, number: int) -> None:
        outbox = self.all[number].outbox
        outbox.told, outbox.emitted = outbox.told + outbox.emitted, []
        original(self, number)

    with replace(Nodes, "collect", collect):
        yield


@mutant("the journal keeps the promised view", durability="disk")
def promise_forgotten() -> Iterator[None]:
    original = Acceptor._redo

    def redo(self: Acceptor, entry: t.JournalEntry) -> None:
        # The votes survive as if they had been cast in view 0; the promise does not.
        if isinstance(entry, t.Voted):
            for slot, request in enumerate(entry.requests, entry.first):
                self.records.put(slot, t.Accepted(0, request))
        elif not isinstance(entry, t.Promised | t.Started):
            original(self, entry)

    with replace(Acceptor, "_redo", redo):
        yield


@mutant("a committer that lost a part of its journal sends no record", durability="disk")
def record_with_holes() -> Iterator[None]:
    original = Committer._send_record

    def send_record(self: Committer) -> None:
        holes, self.acceptor.holes = self.acceptor.holes, set()
        original(self)
        self.acceptor.holes = holes

    with replace(Committer, "_send_record", send_record):
        yield


@mutant("a stable checkpoint has f+1 copies")
def one_copy_is_stable() -> Iterator[None]:
    original = GcSource._on_executor_status

    def on_status(self: GcSource, status: t.ExecutorStatus) -> None:
        original(self, status)
        if status.checkpoints:
            self._raise(status.checkpoints[-1])

    with replace(GcSource, "_on_executor_status", on_status):
        yield


@mutant("a checkpoint is announced when it is durable")
def announced_before_durable() -> Iterator[None]:
    original = Executor._checkpoint

    def checkpoint(self: Executor) -> None:
        original(self)
        number = self.next // self.limits.checkpoint_interval
        self._has_durable(t.CheckpointId(number, b"not yet"))

    with replace(Executor, "_checkpoint", checkpoint):
        yield


@mutant("the stamp of a request is part of it, in every view")
def stamped_again() -> Iterator[None]:
    original = Proposer._publish

    def publish(self: Proposer, run: list[t.Request]) -> None:
        now = int(self.now_ms)
        original(self, [t.Request(r.source, r.epoch, r.number, now, r.body) if r.source >= 0 else r for r in run])

    with replace(Proposer, "_publish", publish):
        yield


@mutant("L13: the learner does not jump over slots that it has not executed")
def learner_jumps() -> Iterator[None]:
    original = Learner.commit

    def commit(self: Learner, commit: t.Commit) -> bool:
        if commit.view > max(votes.view for votes in self._votes) and commit.first > self.position:
            self.position = commit.first
        return original(self, commit)

    with replace(Learner, "commit", commit):
        yield


@mutant("S7: a committer without its journal promises nothing")
def amnesiac_votes() -> Iterator[None]:
    original = Committer._start

    def start(self: Committer, journal: list[t.ReplayedEntry]) -> None:
        original(self, journal)
        if self.acceptor.recovering:
            self.acceptor.recovering, self.acceptor.incarnation = False, 1
            self.persist(self.acceptor.resumed())

    with replace(Committer, "_start", start):
        yield


@mutant(
    "a committer without its journal is not in the head of a journal segment",
    partitions=2,
    durability="disk",
    fault="half_remembered",
)
def recovering_committer_in_segment_head() -> Iterator[None]:
    with replace(Committer, "promised", lambda self: self.acceptor.resumed()):
        yield


@mutant("a command executes at most once")
def no_duplicate_filter() -> Iterator[None]:
    original = Sessions.execute

    def execute(self: Sessions, command: t.Command) -> None:
        session = self._sessions.get(command.session)
        if session is not None and command.kind < t.OPEN and command.number < session.next:
            after = session.next
            self._run(session, command)
            session.next = after
        else:
            original(self, command)

    with replace(Sessions, "execute", execute):
        yield


@mutant("L16: a command that was ordered too early waits for its turn")
def early_command_executes() -> Iterator[None]:
    original = Sessions.execute

    def execute(self: Sessions, command: t.Command) -> None:
        session = self._sessions.get(command.session)
        if session is not None and command.kind < t.OPEN and command.number > session.next:
            session.next = command.number
        original(self, command)

    with replace(Sessions, "execute", execute):
        yield


@mutant("the snapshot holds the results")
def results_not_in_snapshot() -> Iterator[None]:
    original = Sessions.restore

    def restore(self: Sessions, state: Any) -> None:
        for session in state.sessions:
            session.results.clear()
        original(self, state)

    with replace(Sessions, "restore", restore):
        yield


@mutant("L18: an exception of the application is a result")
def poison_kills() -> Iterator[None]:
    original = Sessions._run

    def run(self: Sessions, session: Session, command: t.Command, freed: int = 0) -> None:
        original(self, session, command, freed)
        assert self.results[-1].status != t.FAILED, "the application raised"

    with replace(Sessions, "_run", run):
        yield


@mutant("an executor that starts looks for skips in all that may be decided before it executes", kind="fatal")
def starts_without_looking() -> Iterator[None]:
    def learn_horizon(self: Executor) -> None:
        self._must_look = False

    with replace(Executor, "_learn_horizon", learn_horizon):
        yield


@mutant("a command that a replica has executed is not skipped", kind="fatal")
def skips_what_was_executed() -> Iterator[None]:
    def next_step(reports: Sequence[ReplicaReport], counter: int) -> tuple[Step, str]:
        halted = [report for report in reports if report.halted_at == counter]
        return (Step.CONFIRM if all(report.asked for report in halted) else Step.ASK, "") if halted else (Step.WAIT, "")

    with replace(fatal_command_module, "next_step", next_step):
        yield


@mutant("a read asks f+1 committers")
def one_committer_knows_the_end() -> Iterator[None]:
    def position(graph: Graph, quorum: int, answers: dict[int, t.ReadIndex]) -> int | None:
        return min((answer.position for answer in answers.values()), default=None)

    with replace(reads_module, "_position", position):
        yield


@mutant("a read waits until its executor is as far as the committers said")
def read_does_not_wait() -> Iterator[None]:
    original = Reads.due

    with replace(Reads, "due", lambda self, executed: original(self, 1 << 60)):
        yield


@mutant("a committer without its journal does not say how far it has accepted requests", fault="forgetful_witness")
def recovering_committer_answers_reads() -> Iterator[None]:
    original = Committer._on_index_request

    def on_read(self: Committer, read: t.IndexRequest) -> None:
        recovering, self.acceptor.recovering = self.acceptor.recovering, False
        original(self, read)
        self.acceptor.recovering = recovering

    with replace(Committer, "_on_index_request", on_read):
        yield


@mutant("R3: a committer takes part in a view only if the start names its own incarnation", fault="given_up_alive")
def any_incarnation_may_vote() -> Iterator[None]:
    original = Committer._on_start

    def on_start(self: Committer, start: t.Start) -> None:
        if not self.acceptor.recovering and start.incarnations[self._member] != self.acceptor.incarnation:
            incarnations = start.incarnations.copy()
            incarnations[self._member] = self.acceptor.incarnation
            start = msgspec.structs.replace(start, incarnations=incarnations)
        original(self, start)

    with replace(Committer, "_on_start", on_start), _any_life_is_heard():
        yield


@contextlib.contextmanager
def _any_life_is_heard() -> Iterator[None]:
    """Who has heard of a newer life of a container drops what an older one sends. But not everybody has heard."""
    original = Arrivals._meet

    def meet(self: Arrivals, header: peer_wire.Header) -> None:
        if header.container in range(len(self.lives)):
            self.lives[header.container] = min(self.lives[header.container], header.life)
        original(self, header)

    with replace(Arrivals, "_meet", meet):
        yield


@mutant("R2: a record counts only if no other one knows a newer incarnation of its sender", fault="outdated_record")
def records_of_past_incarnations() -> Iterator[None]:
    def usable(self: Proposer) -> list[proposer_module.RecordParts]:
        complete = [parts for parts in self._records.values() if parts.complete]
        return [parts for parts in complete if parts.credential.incarnations[self._member] == self.boot.incarnation]

    with replace(Proposer, "_usable_records", usable):
        yield


@mutant("a committer is restored from a view that f+1 others recorded for, knowing of its loss")
def any_start_restores_memory() -> Iterator[None]:
    with replace(Committer, "_knows_me", lambda self, start: True):
        yield


@mutant(
    "what a restarted executor says of its place replaces what its former life said",
    partitions=2,
    durability="disk",
    fault="former_places",
)
def place_of_a_former_life() -> Iterator[None]:
    def order(progress: t.Progress) -> tuple[int, int]:
        return (progress.position, progress.slowest)

    with replace(controller_module, "_order", order):
        yield


@mutant("L1: f+1 of 2f+1 controllers are enough")
def unanimous_controllers() -> Iterator[None]:
    original = ViewSource.__init__

    def init(self: ViewSource, *arguments: Any) -> None:
        original(self, *arguments)
        self.limits = msgspec.structs.replace(self.limits, f=2 * self.limits.f)

    with replace(ViewSource, "__init__", init):
        yield


@mutant("f+1 controllers suspect the active proposer at the same time")
def suspicions_add_up() -> Iterator[None]:
    def asked(self: ViewSource) -> list[int]:
        return [0 if vote is None else vote.view for vote in self._votes]

    with replace(ViewSource, "_asked", asked), replace(Controller, "_withdraw", _withdraw_silently):
        yield


def _withdraw_silently(self: Controller) -> None:
    self.asked = None


@mutant(
    "a proposer announces itself until the views name it, and again when they do not",
    durability="disk",
    fault="forgotten_standby",
)
def presence_announced_once() -> Iterator[None]:
    on_view = Proposer._on_view

    def remember(self: Proposer, view: t.View) -> None:
        known = set(self._known_to)
        on_view(self, view)
        self._known_to |= known

    with replace(Proposer, "_on_view", remember):
        yield


@mutant("the time-out allows for the transfer of long requests", kind="bulk")
def long_requests_have_no_time() -> Iterator[None]:
    with replace(Transfer, "allowance_ms", property(lambda self: 0.0)):
        yield


@mutant("records that arrive, and slots that are accepted again, count as progress of a new view", kind="bulk")
def beginning_is_no_progress() -> Iterator[None]:
    with replace(Controller, "_on_advance", nothing):
        yield


@mutant("the next portion of a long record leaves when the last one has come", kind="bulk")
def portions_wait_for_time() -> Iterator[None]:
    def on_collecting(self: Committer, collecting: t.Collecting) -> None:
        if collecting.view == self.acceptor.view:
            self._record_missing = dict(collecting.missing).get(self.index, -1)

    with replace(Committer, "_on_collecting", on_collecting):
        yield


@mutant("a client whose long command waits is told that it is on its way", kind="bulk")
def who_waits_is_not_told() -> Iterator[None]:
    with replace(RequestSource, "_tell_who_waits", nothing):
        yield


@mutant("L3: the clock runs from the last progress")
def new_requests_hide_a_dead_proposer() -> Iterator[None]:
    original = Controller._watch

    def watch(self: Controller, item: int, advanced: bool) -> None:
        original(self, item, advanced=True)

    with replace(Controller, "_watch", watch):
        yield


@mutant("L4: a controller asks until the view comes, and the view is announced again")
def asks_once() -> Iterator[None]:
    with replace(Controller, "report", nothing), replace(ViewSource, "report", nothing):
        yield


@mutant("L5: progress is a maximum, and part of the snapshot")
def progress_falls() -> Iterator[None]:
    original = Learner.jump

    def jump(self: Learner, slot: int, progress: list[SourceProgress]) -> None:
        original(self, slot, [SourceProgress() for _ in progress])

    def update(self: ProgressOpinions, executor: int, progress: list[Any]) -> None:
        self._opinions[executor] = list(progress)

    with replace(Learner, "jump", jump), replace(ProgressOpinions, "update", update):
        yield


@mutant("L6: each start of a request source is an epoch of its own")
def source_without_epoch() -> Iterator[None]:
    original = RequestSource.__init__

    def init(self: RequestSource, *arguments: Any) -> None:
        original(self, *arguments)
        self.epoch = 1

    with replace(RequestSource, "__init__", init):
        yield


@mutant("L7: a request that does not arrive is sent again")
def requests_sent_once() -> Iterator[None]:
    def on_view(self: RequestSource, view: t.View) -> None:
        if self._views.update(view.source, view.view):
            self._active = self.graph.request_receivers(self.partition, self._views.current)

    with replace(RequestSource, "_resend", nothing), replace(RequestSource, "_on_view", on_view):
        yield


@mutant("L8: requests are held until they are decided")
def forgotten_when_proposed() -> Iterator[None]:
    with replace(HeldRequests, "rewind", lambda self: self.again.clear()):
        yield


@mutant("L9: commits are sent again")
def commits_sent_once() -> Iterator[None]:
    with replace(Committer, "_resend", nothing):
        yield


@mutant("L9: proposals are sent again")
def proposals_sent_once() -> Iterator[None]:
    with replace(Proposer, "_resend", nothing):
        yield


@mutant("L9: positions and the threshold are announced again")
def threshold_announced_once() -> Iterator[None]:
    with replace(GcSource, "tick", nothing):
        yield


@mutant("L10: a tuple of a view not learned yet teaches it")
def early_tuples_dropped() -> Iterator[None]:
    on_start, on_record = Committer._on_start, Proposer._on_record

    def strict_start(self: Committer, start: t.Start) -> None:
        if start.view == self.acceptor.view:
            on_start(self, start)

    def strict_record(self: Proposer, record: t.Record) -> None:
        if record.view == self.view:
            on_record(self, record)

    def record_once(self: Committer) -> None:
        if self._record_repeats == 0:
            send_record(self)

    send_record = Committer._send_record
    # Sending again would mask it.
    with (
        replace(Committer, "_on_start", strict_start),
        replace(Proposer, "_on_record", strict_record),
        replace(Committer, "_send_record", record_once),
        replace(Proposer, "_resend", nothing),
    ):
        yield


@mutant("an executor that got further by what its store had asks again at once", partitions=2)
def who_arrives_pauses() -> Iterator[None]:
    original = Executor._arrive

    def arrive(self: Executor) -> None:
        due_ms = self._load_due_ms
        original(self)
        self._load_due_ms = due_ms

    with replace(Executor, "_arrive", arrive):
        yield


@mutant("L12: a failed load is tried again")
def load_tried_once() -> Iterator[None]:
    original = Executor._on_loaded

    def on_loaded(self: Executor, loaded: t.Loaded) -> None:
        original(self, loaded)
        if loaded.base is None and not loaded.until and self.stable.current:
            self._loading = True

    with replace(Executor, "_on_loaded", on_loaded):
        yield


@mutant("L14: an idle partition skips", partitions=3)
def idle_partition_stalls() -> Iterator[None]:
    with replace(Proposer, "_skip", nothing):
        yield


@mutant("L17: a committer corrects a view source that lags", durability="disk")
def lagging_view_sources() -> Iterator[None]:
    original = Committer._on_view

    def on_view(self: Committer, view: t.View) -> None:
        original(self, view)
        self._lagging_sources = False

    tick = Controller.tick

    def tick_in_a_view(self: Controller, now_ms: float) -> None:
        if self._views.current > 0:
            tick(self, now_ms)

    # Controllers that know no view would ask for one after the other, until they reach the committers'.
    with replace(Committer, "_on_view", on_view), replace(Controller, "tick", tick_in_a_view):
        yield


@mutant("gc and view sources tell each other, for their sinks may be down")
def sources_do_not_gossip() -> Iterator[None]:
    with replace(GcSource, "_on_stable", nothing), replace(ViewSource, "_on_view", nothing):
        yield


@mutant("a threshold outlives those who vouched for it")
def threshold_forgotten() -> Iterator[None]:
    original = GcSource._raise

    def raise_(self: GcSource, checkpoint: t.CheckpointId) -> None:
        if checkpoint.digest:
            original(self, checkpoint)

    with replace(GcSource, "_raise", raise_), replace(GcSource, "_on_stable", nothing):
        yield


@mutant("a base is the state at its checkpoint, however late it is drawn")
def base_of_a_later_state() -> Iterator[None]:
    original = BaseTaker._begin

    def begin(self: BaseTaker, execution: Execution) -> None:
        original(self, execution)
        if self._capture is not None:
            # Nothing is captured before the first piece is drawn.
            self._capture._chunks = (chunk for _ in range(1) for chunk in execution.application.snapshot())

    with replace(BaseTaker, "_begin", begin):
        yield


@mutant("a base has the sessions as they were at its checkpoint, however late they are encoded")
def sessions_change_while_they_are_encoded() -> Iterator[None]:
    with replace(Sessions, "_keep", nothing):
        yield


@mutant("the running digest goes on from a base")
def digest_begins_anew() -> Iterator[None]:
    original = Execution.restore

    def restore(self: Execution, state: ExecutionState) -> None:
        original(self, state)
        self._digest = RunningDigest()

    with replace(Execution, "restore", restore):
        yield


@mutant("learners pass over what was executed again")
def learners_stay_behind() -> Iterator[None]:
    with replace(Executor, "_jump", nothing):
        yield


@mutant("an executor is not further ahead of its durable checkpoint than a window")
def executor_runs_ahead() -> Iterator[None]:
    original = Executor._execute

    def execute(self: Executor) -> None:
        self._ahead_max = 1 << 40
        original(self)

    with replace(Executor, "_execute", execute):
        yield


@mutant("what was skipped is skipped when it is executed again", kind="fatal")
def skipped_is_executed_again() -> Iterator[None]:
    with replace(Skips, "settle", nothing):
        yield


@mutant("R1: the view moves on when the active proposer has restarted")
def restarted_proposer_waits() -> Iterator[None]:
    def learn(
        self: ViewSource, view: int, incarnations: list[int], entered: list[int], entries: dict[int, list[int]]
    ) -> None:
        # Its incarnation is not spread, either: no later view may name it.
        if view > self.view:
            self._raise(view, entered)
        if view == self.view:
            self._entries.update(entries)

    with replace(ViewSource, "_learn", learn):
        yield


@mutant("a command executes in a session of its sender only")
def owner_not_compared() -> Iterator[None]:
    original = Sessions.execute

    def execute(self: Sessions, command: t.Command) -> None:
        session = self._sessions.get(command.session)
        original(self, msgspec.structs.replace(command, principal=session.owner) if session else command)

    with replace(Sessions, "execute", execute):
        yield


@mutant("a session of a former era whose client is ahead of it ends")
def former_session_waits() -> Iterator[None]:
    with replace(Sessions, "_is_former", lambda self, session: False):
        yield


@mutant("an application may recurse equally deep wherever it is called from")
def depth_is_absolute() -> Iterator[None]:
    with replace(depth, "depth", lambda: 100):
        yield


@mutant("the sessions of a gateway's former lives end when it opens another", app="coordination", durability="disk")
def former_gateways_keep_their_sessions() -> Iterator[None]:
    with replace(Sessions, "_end_former", lambda self, gateway: None):
        yield
