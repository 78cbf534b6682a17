"""The invariants, checked while the run goes on. It sees everything: what every node of every life persisted and
emitted, and the replicas' states. A violation ends the run. What is checked is in `tara.simulator.checks.kinds`.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from tara.host.site import Site
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.journal import Written
from tara.protocol.node import Node
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.proposer import Mode, Proposer
from tara.protocol.nodes.request_source import ORDERS_MAX, RequestSource
from tara.protocol.nodes.view_source import ViewSource
from tara.protocol.principals import is_operator
from tara.simulator.checks.byte_bounds import Kept, of_node, of_site
from tara.simulator.checks.violation import Violation
from tara.simulator.workload import Audited, operation_of

if TYPE_CHECKING:
    from tara.simulator.client import Client
    from tara.simulator.container import Emission
    from tara.simulator.world import World


Acceptor = tuple[int, int]

#: How far a node's time may be behind: it passes in ticks.
_CLOCK_LAG_MS = 20.0


class Monitor:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._limits = world.plan.limits
        self.checks: Counter[str] = Counter()
        self.view_changes = 0
        #: The newest stable checkpoint that any gc source announced.
        self.stable = 0
        #: By execution number, what executors executed.
        self.log: dict[int, t.Request] = {}
        self._outcomes: dict[int, tuple[int, list[t.Result]]] = {}
        self._commands: dict[int, t.Command] = {}
        #: Who opened each session.
        self._owners: dict[int, bytes] = {}
        #: By counter, the execution number of the request in which it executed.
        self._requests: dict[int, int] = {}
        self._results: dict[tuple[int, int], t.Result] = {}
        #: What was answered, though no executor has got past the request with it: it halted at a later command there.
        self._ahead: set[tuple[int, int]] = set()
        self._digests: dict[int, bytes] = {}
        self._base_digests: dict[int, bytes] = {}
        self._proposals: dict[tuple[int, int], dict[int, t.Request]] = {}
        self._active: dict[tuple[int, int], tuple[int, int]] = {}
        self._voters: dict[tuple[int, int, int], set[int]] = {}
        self._chosen: dict[tuple[int, int], tuple[int, t.Request]] = {}
        #: All requests that are chosen: partition, source, epoch and number.
        self._chosen_requests: set[tuple[int, int, int, int]] = set()
        #: Of each committer and disk: a committer with another disk is another acceptor.
        self._accepted: dict[Acceptor, dict[int, t.Accepted]] = {}
        self._promised: dict[Acceptor, int] = {}
        #: Of each committer, over all lives and disks: per slot, the highest view in which it voted for it.
        self._voted: dict[int, dict[int, int]] = {}
        #: Slots of which a view has started since without anything there: what was accepted in them means nothing.
        self._void: dict[Acceptor, set[int]] = {}
        self._views: dict[int, int] = {}
        #: By partition: since when a higher view is promised by some committer and has started for none; and how long
        #: that has taken where one did.
        self._between_views_ms: dict[int, float] = {}
        self._beginnings_ms: list[float] = []
        self._seen: dict[tuple[int, int, int], tuple[int, ...]] = {}
        #: Of each life of a view source: when which controller's votes reached it, and for which view.
        self._suspicions: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
        #: The highest view of it that was looked at.
        self._judged: dict[tuple[int, int], int] = {}
        #: Of each life of an executor: the execution number below which it has executed everything.
        self._reached: dict[tuple[int, int], int] = {}
        #: By site, the front end's life and ticket: what anybody had executed when the read was sent.
        self._sent_reads: dict[tuple[int, int, int], int] = {}
        #: By operation, what any replica's application answered to it.
        self._replied: dict[int, set[int]] = {}

    def of_next_era(self, counter: int) -> "Monitor":
        """What goes on in another era: its sessions, and what was answered up to the command that it begins with."""
        after = Monitor(self._world)
        after.checks, after.view_changes = self.checks, self.view_changes
        after.stable = self._world.threshold
        after._owners, after._commands, after._replied = self._owners, self._commands, self._replied
        after._results = {key: result for key, result in self._results.items() if result.counter <= counter}
        return after

    @property
    def longest_beginning_ms(self) -> float:
        """How long a partition was between two views, or has been so far."""
        begun = [self._world.now_ms - since_ms for since_ms in self._between_views_ms.values()]
        return max([*begun, *self._beginnings_ms], default=0.0)

    def violation(self, kind: str, detail: str) -> NoReturn:
        raise Violation(kind, detail)

    def require(self, condition: bool, kind: str, detail: str, *values: object) -> None:
        """The values are written into the detail only if it is needed: a request may be long."""
        self.checks[kind] += 1
        if not condition:
            raise Violation(kind, detail.format(*values)[:2000])

    def persisted(self, written: list[Written], disk: int) -> None:
        """These entries of committers are durable: votes are cast with that."""
        for number, entry in written:
            name, acceptor = self._world.graph.names[number], (number, disk)
            if isinstance(entry, t.Promised):
                before = self._promised.get(acceptor, 0)
                self.require(entry.view > before, "promises", "{} promised {} after {}", number, entry.view, before)
                self._promised[acceptor] = entry.view
                if entry.view > self._views.get(name.partition, 1):
                    self._views[name.partition] = entry.view
                    self._between_views_ms.setdefault(name.partition, self._world.now_ms)
                    self.view_changes += 1
            elif isinstance(entry, t.Installed):
                self.require(acceptor not in self._promised, "promises", "{} installed over a promise", number)
                self._promised[acceptor] = entry.view
            elif isinstance(entry, t.Started):
                if entry.view == self._views.get(name.partition):
                    since_ms = self._between_views_ms.pop(name.partition, self._world.now_ms)
                    self._beginnings_ms.append(self._world.now_ms - since_ms)
                behind = {slot for slot in self._accepted.get(acceptor, {}) if slot >= entry.next}
                self._void.setdefault(acceptor, set()).update(behind)
            if isinstance(entry, t.Voted | t.Installed):
                before = self._promised.get(acceptor, 0)
                self.require(entry.view == before, "promises", "{} voted in {}, is in {}", number, entry.view, before)
                accepted = self._accepted.setdefault(acceptor, {})
                voted = self._voted.setdefault(number, {})
                self._void.get(acceptor, set()).difference_update(range(entry.first, entry.first + len(entry.requests)))
                for slot, request in enumerate(entry.requests, entry.first):
                    accepted[slot] = t.Accepted(entry.view, request)
                    voted[slot] = max(entry.view, voted.get(slot, 0))
                    self._vote(name.partition, slot, entry.view, name.replica, request)

    def _incarnation(self, number: int, node: Committer) -> None:
        """Whatever became of its lives and disks: it must not count as one that knows, and not know."""
        voted = self._voted.get(number, {})
        for slot in [slot for slot in voted if slot < node.acceptor.commits.min]:
            del voted[slot]
        if node.acceptor.recovering:
            return
        for slot, view in voted.items():
            chosen = self._chosen.get((node.partition, slot))
            if chosen is None or view < chosen[0] or slot in node.acceptor.holes:
                continue
            held = None
            if slot < node.acceptor.commits.pos:
                held = node.acceptor.commits[slot]
            elif slot < node.acceptor.records.pos:
                held = node.acceptor.records[slot].request
            self.require(
                held == chosen[1],
                "promises_kept",
                "{} voted for slot {}, which is chosen: {}; it has {}",
                self._world.graph.label(number),
                slot,
                chosen,
                held,
            )

    def _passed_over(self, number: int, node: Proposer) -> None:
        proposed: set[tuple[int, int, int]] | None = None
        for source in node._held:
            for request in [held for place, held in source.held.items() if place < source.cursor]:
                if proposed is None:
                    window = node.proposals.slice(node.proposals.min, node.proposals.pos)
                    proposed = {(of.source, of.epoch, of.number) for of in window}
                place = (request.source, request.epoch, request.number)
                self.require(
                    place in proposed or (node.partition, *place) in self._chosen_requests,
                    "held",
                    "{} neither proposes {} in view {}, nor was it decided",
                    number,
                    request,
                    node.view,
                )

    def _vote(self, partition: int, slot: int, view: int, committer: int, request: t.Request) -> None:
        voters = self._voters.setdefault((partition, slot, view), set())
        voters.add(committer)
        if len(voters) != self._limits.quorum:
            return
        known = self._chosen.get((partition, slot))
        where = (partition, slot)
        if known is not None:
            self.require(
                known[1] == request,
                "chosen",
                "partition, slot {}: {} and then in view {} {}",
                where,
                known,
                view,
                request,
            )
        if known is None or view < known[0]:
            self._chosen[partition, slot] = (view, request)
            self._chosen_requests.add((partition, request.source, request.epoch, request.number))
            for later, proposed in self._proposals.get((partition, slot), {}).items():
                if later > view:
                    self.require(
                        proposed == request,
                        "chosen",
                        "partition, slot {}: chosen in {}, but proposed in {}: {}",
                        where,
                        view,
                        later,
                        proposed,
                    )

    def emitted(self, said: "Emission", life: int, disk: int) -> None:
        """What a node has said is about to leave."""
        number, tuple_ = said.number, said.tuple
        match tuple_:
            case t.Proposal():
                self._proposal(tuple_)
            case t.Start():
                self._start(tuple_, life)
            case t.Record():
                self._record((number, disk), tuple_)
            case t.Executed():
                self._executed(tuple_)
                end = tuple_.first + len(tuple_.requests)
                self._reached[number, life] = max(end, self._reached.get((number, life), 0))
            case t.PendingReads():
                for read in tuple_.reads:
                    self._sent_reads.setdefault((tuple_.source, read.life, read.ticket), said.executed)
            case t.ReadResults() if self._world.graph.names[number].stage is Stage.EXECUTOR:
                self._read_results(number, life, tuple_)
            case t.Stable():
                self._stable(tuple_)
            case t.View():
                self._view(number, life, tuple_, said.at_ms)

    def processes(self, number: int, life: int, tuple_: t.Tuple) -> None:
        """A node is about to process a tuple."""
        if type(tuple_) is t.Vote and self._world.graph.names[number].stage is Stage.VIEW_SOURCE:
            heard = self._suspicions.setdefault((number, life), [])
            heard.append((self._world.now_ms, tuple_.controller, tuple_.view))

    def processed(self, number: int, life: int, tuple_: t.Tuple, node: Node) -> None:
        """It has processed it: of a state that was restored, or executed again, nothing else tells."""
        if isinstance(tuple_, t.Loaded | t.Resume) and isinstance(node, Executor):
            # Also where it starts over.
            self._reached[number, life] = node.next
        elif isinstance(tuple_, t.Replay) and isinstance(node, Executor):
            self._reached[number, life] = max(node.next, self._reached.get((number, life), 0))
        elif isinstance(tuple_, t.DrawDigest) and isinstance(node, Executor) and node.drawn_digest is not None:
            whole = node.digest()
            self.require(node.drawn_digest == whole, "digests", "{} drew {}, not {}", number, node.drawn_digest, whole)

    def _view(self, number: int, life: int, view: t.View, at_ms: float) -> None:
        container = self._world.host_of(number)
        node = container.nodes.get(number)
        if container.life != life or not isinstance(node, ViewSource) or node.voted != view.view:
            return
        since_ms = at_ms - self._limits.controller_timeout_ms / container.clock_rate - _CLOCK_LAG_MS
        if view.view <= self._judged.get((number, life), 0):
            return
        self._judged[number, life] = view.view
        heard = [vote for vote in self._suspicions[number, life] if vote[0] >= since_ms]
        self._suspicions[number, life] = heard
        suspicious = {controller for _, controller, asked in heard if asked >= view.view}
        self.require(
            len(suspicious) >= self._limits.quorum,
            "suspicions",
            "{} published view {} for controllers {}: {}",
            self._world.graph.label(number),
            view.view,
            suspicious,
            heard,
        )

    def _read_results(self, number: int, life: int, results: t.ReadResults) -> None:
        reached = self._reached.get((number, life), 0)
        for result in results.results:
            needed = self._sent_reads.get((results.executor, result.life, result.ticket), 0)
            self.require(
                reached >= needed,
                "reads",
                "{} answered read {} when it had executed {}; {} were executed when it was sent",
                self._world.graph.label(number),
                result.ticket,
                reached,
                needed,
            )

    def _proposal(self, proposal: t.Proposal) -> None:
        for slot, request in enumerate(proposal.requests, proposal.first):
            proposals = self._proposals.setdefault((proposal.partition, slot), {})
            where = (proposal.partition, slot, proposal.view)
            known = proposals.setdefault(proposal.view, request)
            self.require(known == request, "one_proposal", "partition, slot, view {}: {} and {}", where, known, request)
            chosen = self._chosen.get((proposal.partition, slot))
            if chosen is not None and proposal.view > chosen[0]:
                self.require(
                    request == chosen[1],
                    "chosen",
                    "partition, slot, view {}: {} proposed, but {} is chosen",
                    where,
                    request,
                    chosen,
                )

    def _start(self, start: t.Start, life: int) -> None:
        known = self._active.setdefault((start.partition, start.view), (start.proposer, life))
        self.require(
            known == (start.proposer, life), "one_proposal", "view {}: {} and life {}", start.view, known, life
        )

    def _record(self, acceptor: Acceptor, record: t.Record) -> None:
        accepted = self._accepted.get(acceptor, {})
        if record.first == record.minimum:
            beyond = [slot for slot, known in accepted.items() if slot >= record.end and known.view < record.view]
            self.require(not beyond, "records", "{} view {}: the record lacks slots {}", acceptor, record.view, beyond)
        for slot, recorded in enumerate(record.slots, record.first):
            known = accepted.get(slot)
            # A vote in the record's own view may have come since: the record was frozen before.
            if known is not None and known.view < record.view:
                if recorded == t.Accepted(0, t.NOOP) and slot in self._void.get(acceptor, ()):
                    continue
                self.require(
                    known == recorded, "records", "{} slot {}: {}, accepted {}", acceptor, slot, recorded, known
                )

    def _executed(self, executed: t.Executed) -> None:
        partitions = self._limits.partitions
        for index, request in enumerate(executed.requests, executed.first):
            known = self.log.setdefault(index, request)
            self.require(known == request, "agreement", "log index {}: {} and {}", index, known, request)
            chosen = self._chosen.get((index % partitions, index // partitions))
            self.require(
                chosen is not None and chosen[1] == request,
                "agreement",
                "log index {}: {}, not {}",
                index,
                request,
                chosen,
            )
            first = executed.ends[index - executed.first - 1] if index > executed.first else 0
            last = executed.ends[index - executed.first]
            outcome = (executed.times[index - executed.first], executed.results[first:last])
            before = self._outcomes.setdefault(index, outcome)
            suspicion = self._world.subject.suspicion
            self.require(before == outcome, "agreement", "log index {}: {} and {}{}", index, before, outcome, suspicion)
        numbers = range(executed.counter + 1, executed.counters[-1] + 1)
        commands = executed.command_of()
        self.require(list(numbers) == list(commands), "agreement", "{}: {} commands", numbers, len(commands))
        done = executed.counter
        for index, after in enumerate(executed.counters, executed.first):
            self._requests.update(dict.fromkeys(range(done + 1, after + 1), index))
            done = after
        for number, command in commands.items():
            first_heard = self._commands.setdefault(number, command)
            self.require(first_heard == command, "agreement", "command {}: {} and {}", number, first_heard, command)
            self._owned(number, command)
        for result in executed.results:
            # A claim executes nothing, and says how far its session is.
            if result.session and result.counter and result.status in (t.OK, t.FAILED, t.SKIPPED):
                self._ahead.discard((result.session, result.number))
                answer = self._results.setdefault((result.session, result.number), result)
                self.require(answer == result, "exactly_once", "{} and {}", answer, result)

    def _owned(self, number: int, command: t.Command) -> None:
        """What executes in a session was sent by whoever opened it."""
        if command.kind == t.OPEN:
            self._owners[number] = command.principal
        elif command.session in self._owners and not is_operator(command.principal):
            owner = self._owners[command.session]
            self.require(command.principal == owner, "owners", "{} is not of the session's owner {}", command, owner)

    def _stable(self, stable: t.Stable) -> None:
        number = stable.checkpoint.number
        if number > self.stable:
            self.stable = number
            copies = self._world.stores.copies(number, harmed=True)
            # Of the f+1 that held it when they said so, some may have lost their disks since, or a file.
            needed = self._limits.quorum - sum(1 for lost in self._world.wiped.values() if lost >= number)
            self.require(copies >= max(needed, 1), "stability", "checkpoint {} has {} copies", number, copies)

    def saved(self, checkpoint: t.CheckpointId) -> None:
        known = self._digests.setdefault(checkpoint.number, checkpoint.digest)
        suspicion = self._world.subject.suspicion
        self.require(known == checkpoint.digest, "digests", "checkpoint {}{}", checkpoint.number, suspicion)

    def base_saved(self, saved: t.BaseSaved) -> None:
        known = self._base_digests.setdefault(saved.number, saved.digest)
        self.require(known == saved.digest, "digests", "base {}{}", saved.number, self._world.subject.suspicion)

    def same_committer(self, number: int, node: Node | None, twin: Node) -> None:
        """A committer and what its journal would make of it."""
        assert isinstance(node, Committer), node
        assert isinstance(twin, Committer), twin
        states = [
            (
                committer.acceptor.incarnation,
                committer.acceptor.view,
                committer.acceptor.started,
                committer.acceptor.incarnations,
                sorted(committer.acceptor.holes),
                committer.acceptor.commits.slice(committer.acceptor.commits.min, committer.acceptor.commits.pos),
                committer.acceptor.records.slice(committer.acceptor.records.min, committer.acceptor.records.pos),
            )
            for committer in (node, twin)
        ]
        self.require(states[0] == states[1], "replay", "{}: {} would come back as {}", number, states[0], states[1])

    def answered(self, client: "Client", result: t.Result) -> None:
        key, fatal = (result.session, result.number), self._world.fatal
        halted = fatal is not None and result.counter < fatal.counter and not self.was_executed(fatal.counter)
        if halted and key not in self._results:
            # The commands before the one that is fatal have their results, but their request is not done.
            self._results[key] = result
            self._ahead.add(key)
        known = self._results.get(key)
        self.require(known == result, "exactly_once", "client {} got {}, executed was {}", client.index, result, known)

    def replied(self, operation: int, answer: object) -> None:
        """The application of some replica has answered a read."""
        if isinstance(answer, bytes):
            self._replied.setdefault(operation, set()).add(hash(answer))

    def read_answered(self, client: "Client", operation: int, answer: bytes) -> None:
        known = hash(answer) in self._replied.get(operation, ())
        self.require(known, "answers", "client {}: read {} was answered {}", client.index, operation, answer)

    def finish(self) -> None:
        """Everything is executed that ever will be."""
        self.require(not self._ahead, "exactly_once", "{} were answered, and never executed", self._ahead)

    def skipped(self, operation: int) -> None:
        fatal = self._world.fatal
        known = fatal is not None and fatal.operation == operation
        self.require(known, "results", "operation {} was skipped, though replicas can execute it", operation)

    def event(self, client: int, counter: int, payload: bytes) -> None:
        """A client was told of something that was published: perhaps again, by a replica that executed it again."""
        command = self._commands.get(counter)
        published = None if command is None else b"%d" % operation_of(command.payload)
        self.require(published == payload, "events", "client {}: {} told of {}", client, counter, payload)

    def command(self, counter: int) -> t.Command | None:
        """What was executed under this number, as far as anybody told."""
        return self._commands.get(counter)

    def was_executed(self, counter: int) -> bool:
        return counter in self._commands

    def request_of(self, counter: int) -> int:
        """The execution number of the request with this command; if nobody has got past it, a very high one."""
        return self._requests.get(counter, 1 << 62)

    def inspect_site(self, site: Site) -> None:
        """What waits for its peers, and what has begun to come from them."""
        self._require_bytes(site.number, of_site(site))

    def inspect_bytes(self, number: int, node: Node) -> None:
        self._require_bytes(number, of_node(node, self._world.wire is not None))

    def _require_bytes(self, number: int, found: Iterable[Kept]) -> None:
        for kept in found:
            self.require(kept.holds, "bytes", "{} keeps {}", number, kept)

    def _inspect_log(self, number: int, life: int) -> None:
        """What an executor has handed to its log is bounded, however slow its disk is."""
        container, limits = self._world.host_of(number), self._limits
        if container.storage is None or container.life != life or number not in container.storage.stores:
            return
        waiting = container.storage.stores[number].log.waiting
        most = max(limits.window // limits.checkpoint_slots, 2) * limits.checkpoint_interval
        self.require(waiting <= most, "bounds", "{} has {} requests that wait for its log", number, waiting)

    def inspect(self, number: int, life: int, node: Node) -> None:
        """Look into a node: does it keep within its bounds, and did nothing fall?"""
        self.inspect_bytes(number, node)
        limits, slots = self._limits, self._limits.checkpoint_slots
        starts = 0
        values: tuple[int, ...] = ()
        match node:
            case Committer():
                values = (node.acceptor.view, node.acceptor.commits.min)
                self.require(
                    node.acceptor.commits.min <= self.stable * slots,
                    "stability",
                    "{} at {}",
                    number,
                    node.acceptor.commits.min,
                )
                if life == self._world.host_of(number).life:
                    # What an older life knows, others know to be outdated.
                    self._incarnation(number, node)
            case Proposer():
                values = (node.view,)
                self.require(
                    node.mode is not Mode.ACTIVE or node.proposals.min <= self.stable * slots,
                    "stability",
                    "{} at {}",
                    number,
                    node.proposals.min,
                )
                held = max(len(source.held) for source in node._held)
                most = 2 * (limits.source_pending_max + ORDERS_MAX)
                self.require(held <= most, "bounds", "{} holds {} requests", number, held)
                if node.mode is Mode.ACTIVE:
                    self._passed_over(number, node)
            case Executor():
                values = (node.next, node.sessions.counter, node.sessions.time_ms, node.stable.current)
                # One that starts over is where its newest checkpoint is, until it has caught up.
                starts = node.starts
                self._inspect_log(number, life)
                for learner in node._learners:
                    waiting = max(len(learner.decided), *(len(votes.requests) for votes in learner._votes))
                    self.require(waiting <= limits.window, "bounds", "{} has {} votes or decisions", number, waiting)
                for session in node.sessions._sessions.values():
                    kept = max(len(session.early), len(session.results))
                    self.require(kept <= limits.session_pipeline_max, "bounds", "session {} keeps {}", session.id, kept)
                application = node.application
                if isinstance(application, Audited) and not node.is_restoring:
                    twice = application.twice
                    self.require(not twice, "exactly_once", "{} executed operations {} twice", number, twice)
                    self.checks["invariant"] += 1
                    self._world.subject.check(application)
            case RequestSource():
                values = (node.next,)
                most = limits.source_pending_max + ORDERS_MAX
                self.require(node.pending <= most, "bounds", "{}: {} pending", number, node.pending)
                self.require(node.capacity >= -1, "bounds", "{}: backlog above its limit", number)
        before = self._seen.get((number, life, starts), values)
        self.require(all(map(int.__le__, before, values)), "monotonic", "{}: {} then {}", number, before, values)
        self._seen[number, life, starts] = values
