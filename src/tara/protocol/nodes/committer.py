"""The committer: a Paxos acceptor for the slots of one partition.

Proposals of the current view come in, in slot order; each accepted run leaves as a commit to all executors. When a
higher view comes, what was accepted becomes the record that the new view's proposer starts from.

The rules that make it safe:
- It votes only in the view it is in, and its view never falls; it enters a view before the view's first vote.
- Per slot it remembers the request that it accepted in the highest view; a newer one overwrites.
- The record of a view is what it had accepted when it entered that view. It never changes afterwards.
- View, votes and threshold are persisted in the step that emits what they promise.
- Of a damaged journal it keeps what it has promised. It has *holes*: slots in which it accepted something that it does
  not know any more. It votes on in the view that it is in and says how far it is, but sends no record while it has
  holes: a record must not show a slot as empty, or with an older accept. It asks for a new view with the same proposer,
  which proposes again what may have been decided, and so fills the holes.
- Without its journal, unless it is the very first start, it promises nothing: no record, no vote. It joins with
  a new incarnation, and is full again when a view that f+1 others have recorded for, knowing that number, has told
  it everything that may have been decided before.
"""

from collections.abc import Iterable
from functools import partial

from tara.protocol import tuples as t
from tara.protocol.backoff import BACKOFF_MAX, Backoff
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.incarnations import FIRST_INCARNATION, newest
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.observer import Observer
from tara.protocol.resend import Laggards, burst, length, rounds_for
from tara.protocol.status import Newest
from tara.protocol.window import Window


class Committer(Node):
    def __init__(
        self,
        name: Name,
        graph: Graph,
        limits: Limits,
        boot: Boot,
        outbox: Outbox,
        journal: Iterable[t.ReplayedEntry] = (),
    ) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {
            t.Proposal: self._on_proposal,
            t.Start: self._on_start,
            t.Collecting: self._on_collecting,
            t.Stable: self._on_stable,
            t.View: self._on_view,
            t.IndexRequest: self._on_index_request,
        }
        #: What was accepted in the current view, in slot order.
        self.commits: Window[t.Request] = Window(0, limits.window)
        #: What was accepted in lower views: per slot, the newest. Same minimum as `commits`.
        self.records: Window[t.Accepted] = Window(0, limits.window)
        #: Slots of the window in which it accepted something newer than it knows; see above.
        self.holes: set[int] = set()
        self._holes_backoff = Backoff(limits.resend_rounds)
        self._holes_due = 0
        #: The view it has promised; no vote in a lower one. Never falls.
        self.view = 0
        #: Whether the start of the current view has come: before that it cannot vote in it.
        self.started = False
        #: The views that this life has entered. For those who watch; nothing depends on it.
        self.views_entered = 0
        #: The incarnations under which it entered the current view.
        self.incarnations = [FIRST_INCARNATION] * graph.members
        #: The highest incarnations it has heard of.
        self._known = self.incarnations
        #: Names what it remembers; another one after every loss of the journal.
        self.incarnation = boot.incarnation
        #: It has lost its journal and is not restored.
        self.recovering = False
        #: While recovering: the slots below must be known before it is full again.
        self._install_until = 0
        #: While recovering: a started view did not know of it.
        self._left_out = False
        self._views = Observer(limits.replicas, limits.quorum)
        self._thresholds = Observer(limits.replicas, limits.quorum)
        self._member = graph.member(Stage.COMMITTER, name.replica)
        self._round = 0
        #: How often the record of this view was sent although nothing of it had come.
        self._record_repeats = 0
        self._record_due = 0
        #: What has been sent of it ends there; and the first slot that the proposer lacks, as it said last (-1: it has
        #: nothing).
        self._record_sent = 0
        self._record_missing = -1
        self._lagging_sources = False
        self._executors = graph.all(Stage.EXECUTOR)
        self._executor = [graph.one(Stage.EXECUTOR, index) for index in range(limits.replicas)]
        self._record_sinks = [graph.one(Stage.RECORD_SINK, index, name.partition) for index in range(limits.replicas)]
        self._gc_sinks = graph.all(Stage.GC_SINK)
        self._view_sinks = graph.all(Stage.VIEW_SINK, name.partition)
        self._statuses: Newest[t.ExecutorStatus] = Newest(limits.replicas)
        self._committers: Newest[t.CommitterStatus] = Newest(limits.replicas)
        self._laggards = Laggards(limits.replicas, limits.resend_rounds)
        self._recover(list(journal))

    # Request handling

    def _on_proposal(self, proposal: t.Proposal) -> None:
        if proposal.view != self.view or not self.started:
            return
        self._collect(proposal.stable)
        position = self.commits.pos
        if proposal.first > position:
            return
        requests = proposal.requests[position - proposal.first :][: self.commits.room]
        if self.recovering:
            self._install(requests)
            return
        if not requests:
            return
        self._vote(position, requests)
        self.persist(t.Voted(self.view, position, requests))
        self.emit(t.Commit(self.index, self.partition, self.view, position, requests), self._executors)

    def _vote(self, first: int, requests: list[t.Request]) -> None:
        if not self.started or first != self.commits.pos or len(requests) > self.commits.room:
            raise NodeHalted(
                f"votes from slot {first} on (started: {self.started}), but slot {self.commits.pos} is next"
            )
        self.commits.extend(requests)
        if self.holes:
            self.holes.difference_update(range(first, first + len(requests)))

    def _on_index_request(self, request: t.IndexRequest) -> None:
        """Tell how far it has accepted requests, in any view. Without its journal it does not know. Whether these are
        on disk does not matter: a reader that waits for too much has waited for enough."""
        if self.recovering:
            return
        position = max(self.commits.pos, self.records.pos)
        index = t.ReadIndex(
            self.index,
            self.partition,
            self.incarnation,
            self._known,
            request.source,
            request.epoch,
            request.nonce,
            position,
        )
        self.tell(index, self._executor[request.executor])

    # View change

    def _on_view(self, view: t.View) -> None:
        self._learn(view.incarnations)
        if view.view < self.view:
            self._lagging_sources = True
        if self._views.update(view.source, view.view):
            self._enter(self._views.current)

    def _on_start(self, start: t.Start) -> None:
        # A proposer that starts a view has seen f+1 committers in it: the view is real, whoever missed it.
        if start.incarnations[self._member] != self.incarnation or (self.recovering and not self._knows_me(start)):
            self._left_out = self.recovering and start.view >= self.view
            return
        self._learn(start.incarnations)
        self._enter(start.view)
        if start.view != self.view or self.started:
            return
        # The records that the start came from begin there, so a stable checkpoint covers what is below.
        self._collect(start.first)
        self._begin(start.next)
        if self.recovering:
            self._install_until = start.next
            self._install([])
        else:
            self.persist(t.Started(self.view, start.first, start.next))

    def _learn(self, incarnations: list[int]) -> None:
        self._known = newest((self._known, incarnations))

    def _know_myself(self) -> None:
        own = [FIRST_INCARNATION] * self.graph.members
        own[self._member] = self.incarnation
        self._learn(own)

    def _enter(self, view: int) -> None:
        """Promise a higher view, and tell its proposer what was accepted below it."""
        if view <= self.view:
            return
        self._promise(view, self._known)
        self.views_entered += 1
        self._laggards.reset()
        self._left_out = False
        if self.recovering:
            self.records.clear()
            return
        self.persist(t.Promised(view, self._known))
        self._record_repeats, self._record_missing = 0, -1
        self._send_record()

    def _promise(self, view: int, incarnations: list[int]) -> None:
        if view <= self.view:
            raise NodeHalted(f"view {view} after view {self.view}")
        for slot in range(self.commits.min, self.commits.pos):
            self.records.put(slot, t.Accepted(self.view, self.commits[slot]))
        self.commits.clear()
        self.view, self.incarnations, self.started = view, incarnations, False
        self._views.raise_to(view)
        self._executors = self.graph.commit_receivers(self.index, self.partition, view)

    def _begin(self, next_: int) -> None:
        self.started = True
        self.commits.clear()
        # The view starts from f+1 records that have nothing from there on: whatever was accepted there in a lower view
        # was not decided, and never will be.
        for slot in [slot for slot in self.holes if slot >= next_]:
            self.holes.remove(slot)
            self.records.put(slot, t.Accepted(0, t.NOOP))

    def _on_collecting(self, collecting: t.Collecting) -> None:
        """The proposer says how far the records have come. While this one comes, there is no need to send it again; and
        when all has come that was sent, the next portion is due."""
        if collecting.view != self.view or self.started or self.recovering:
            return
        missing = dict(collecting.missing).get(self.index, -1)
        if missing > self._record_missing:
            part = self.limits.run_bytes_max + self.limits.command_bytes_max
            self._record_due = self._round + max(self.limits.resend_rounds, rounds_for(part))
        self._record_missing = missing
        if self._record_sent <= missing < self.records.pos:
            self._send_record()

    def _send_record(self) -> None:
        """Send what the proposer lacks of the record, through one sink, another one each time that nothing comes: f of
        them may be down. With holes it has none.

        What is longer than what may wait for a link goes portion by portion: sent at once, its end would be dropped
        each time, and the proposer would never have it."""
        minimum, end = self.records.min, self.records.pos
        if self.holes:
            return
        sink = self._record_sinks[(self.index + self._record_repeats) % len(self._record_sinks)]
        first = max(self._record_missing, minimum)
        rest = self.records.slice(first, end)
        slots = next(t.split(rest, len(rest), self.limits.link_bytes_max // 2), [])
        size = sum([len(slot.request.body) for slot in slots])
        # All sinks in turn first: with f sinks and f sources down, one way may be all that is left. Then less often.
        # A long record is on its way for longer.
        rotations = self._record_repeats // len(self._record_sinks)
        bursts = 1 + size // self.limits.resend_bytes_max
        pause = min(bursts, max(BACKOFF_MAX // len(self._record_sinks), 1)) << rotations
        rounds = self.limits.resend_rounds * min(pause, BACKOFF_MAX)
        self._record_due = self._round + max(rounds, rounds_for(size))
        self.resent += self._record_repeats > 0
        self._record_sent = first + len(slots)
        head = (self.index, self.partition, self.view, self.incarnation, self.incarnations, minimum, end)
        for part in [*t.split(slots, self.limits.run_length_max, self.limits.run_bytes_max)] or [[]]:
            self.emit(t.Record(*head, first, part), sink)
            first += len(part)

    # Garbage collection and re-sending

    def _on_stable(self, stable: t.Stable) -> None:
        if self._thresholds.update(stable.source, stable.checkpoint.number):
            self._collect(self._thresholds.current * self.limits.checkpoint_slots)
        for status in stable.executors:
            self._statuses.update(status.executor, status)
        for report in stable.committers:
            if report.partition == self.partition:
                self._committers.update(report.committer, report)

    def _collect(self, slot: int) -> None:
        """Forget the slots below; a stable checkpoint has their effects."""
        if slot > self.commits.min:
            self._move(slot)
            if not self.recovering:
                self.persist(t.Collected(slot))

    def _move(self, slot: int) -> None:
        self.commits.move(slot)
        self.records.move(slot)
        if self.holes:
            self.holes = {hole for hole in self.holes if hole >= slot}

    def report(self) -> None:
        self._round += 1
        position = self.commits.pos if self.started else -1
        stable = self.commits.min // self.limits.checkpoint_slots
        status = t.CommitterStatus(
            self.index, self.partition, self.boot.life, self._round, self.incarnation, self.view, position, stable
        )
        self.emit(status, self._gc_sinks)
        if self.recovering:
            self._join()
            return
        if self._lagging_sources:
            self._lagging_sources = False
            presence = t.Presence(self._member, self.partition, self.incarnation, self.view, self.incarnations)
            self.emit(presence, self._view_sinks)
        lacks_record = not self.started and self.view > 0 and self._record_missing < self.records.pos
        if lacks_record and self._round >= self._record_due:
            self._record_repeats += 1
            self._send_record()
        if self.holes:
            self._ask_for_view()
        if self.started:
            self._resend()

    def _resend(self) -> None:
        end = self._decidable_end()
        self._laggards.next_round(end)
        for executor, status in self._statuses:
            position = max(status.positions[self.partition], self.commits.min)
            heard = (status.life, status.round)
            missing = partial(self._missing, position, end)
            if self._laggards.lags(executor, position, heard, partial(length, missing)) and position < end:
                requests = missing()
                self._laggards.resent(executor, position + len(requests))
                self.resent += len(requests)
                for run in t.split(requests, self.limits.run_length_max, self.limits.run_bytes_max):
                    commit = t.Commit(self.index, self.partition, self.view, position, run)
                    self.emit(commit, self._executor[executor])
                    position += len(run)

    def _missing(self, begin: int, end: int) -> list[t.Request]:
        """What an executor is sent again that has decided nothing from this slot on."""
        end = min([end, *[hole for hole in self.holes if hole >= begin]])
        return burst(self.commits.slice(min(begin, end), end), self.limits)

    def _decidable_end(self) -> int:
        """The slots below have been accepted by f+1 committers in this view, as far as it knows. What is not accepted
        by f+1 does not get decided by being sent again."""
        others = [
            status.position
            for committer, status in self._committers
            if committer != self.index and status.view == self.view
        ]
        others += [0] * self.limits.replicas
        accepted = sorted([self.commits.pos, *others], reverse=True)[self.limits.f]
        return max(min(accepted, self.commits.pos), self.commits.min)

    # Recovery with a journal

    def _recover(self, journal: list[t.ReplayedEntry]) -> None:
        if self.boot.genesis:
            self._move(self.boot.threshold * self.limits.checkpoint_slots)
            # From now on there is a journal: a start without one means that it was lost.
            self._know_myself()
            self.persist(self.resumed())
            return
        self.recovering = not journal
        if journal and not isinstance(journal[0], t.Resumed | t.Installed | t.Restored | t.Lost):
            raise NodeHalted(f"the journal begins with {type(journal[0]).__name__}: its head is missing")
        #: What follows a gap, up to the next statement of what it had promised.
        after_gap: list[t.JournalEntry] | None = None
        for position, entry in enumerate(journal):
            if isinstance(entry, t.Lost):
                after_gap = []
            elif isinstance(entry, t.Resumed) and after_gap is not None:
                self._bridge(after_gap, entry)
                after_gap = None
            elif isinstance(entry, t.Installed | t.Restored):
                after_gap = None
                self._replay(entry)
            elif after_gap is not None:
                after_gap.append(entry)
            elif not isinstance(entry, t.Resumed):
                self._replay(entry)
            elif position == 0:
                self._bridge([], entry)
            elif entry != self.resumed():
                raise NodeHalted(f"the journal says {entry}, but what stands before that comes to {self.resumed()}")
        if after_gap is not None:
            raise NodeHalted("the end of the journal is missing: nobody knows what it has promised")
        self._know_myself()

    def _replay(self, entry: t.JournalEntry) -> None:
        """Redo what a former life wrote. Entries come in the order in which they were persisted."""
        match entry:
            case t.Promised(view, incarnations):
                self._promise(view, incarnations)
                self._learn(incarnations)
            case t.Installed():
                self._take_memory(entry)
            case t.Restored():
                self._restore(entry)
            case t.Started(_, _, next_):
                self._begin(next_)
            case t.Voted(_, first, requests):
                self._vote(first, requests)
            case t.Collected(stable):
                self._move(stable)

    def _bridge(self, entries: list[t.JournalEntry], after: t.Resumed) -> None:
        """Entries are missing; then come these, and after them it had promised this. At the first segment that is left,
        what stood before it is missing, and stands for nothing unless slots of it are still in the window.

        Views only rise in a journal, and a view has one request per slot. So an accept that stands behind the gap is
        the newest of its slot, whatever is missing. One that stands before it is the newest only if there was no vote
        for its slot in the gap: if it was cast in the view in which the gap ends, because there its turn was over."""
        known = self._accepted_before(entries, after)
        for entry in entries:
            if isinstance(entry, t.Voted):
                for slot, request in enumerate(entry.requests, entry.first):
                    known[slot] = t.Accepted(entry.view, request)
        end = max(after.commits, after.records)
        holes = [slot for slot in range(after.minimum, end) if slot not in known]
        commits, records = [], []
        for slot in range(after.minimum, end):
            accepted = known.get(slot, t.Accepted(0, t.NOOP))
            if slot < after.commits:
                if slot in known and accepted.view != after.view:
                    # It accepted something else there since.
                    holes.append(slot)
                commits.append(accepted.request)
            if slot < after.records:
                records.append(accepted)
        self._restore(
            t.Restored(
                after.incarnation,
                after.view,
                after.incarnations,
                after.started,
                after.minimum,
                commits,
                records,
                sorted(holes),
            )
        )

    def _accepted_before(self, entries: list[t.JournalEntry], after: t.Resumed) -> dict[int, t.Accepted]:
        """What it knows from before a gap and can rely on."""
        first = next((entry for entry in entries if isinstance(entry, t.Voted | t.Started | t.Promised)), None)
        if isinstance(first, t.Promised) or self.incarnation != after.incarnation:
            # The gap ends in a view below, nobody knows which; or in another incarnation.
            return {}
        if (after.view if first is None else first.view) != self.view:
            return {}
        return {
            slot: t.Accepted(self.view, self.commits[slot])
            for slot in range(self.commits.min, self.commits.pos)
            if slot not in self.holes
        }

    def _restore(self, entry: t.Restored) -> None:
        """Go on with what is known."""
        self._enter_as(entry.incarnation, entry.view, entry.incarnations, entry.started, entry.minimum)
        self.commits.extend(entry.commits)
        self.records.extend(entry.records)
        self.holes = {slot for slot in entry.holes if slot >= self.commits.min}

    def promised(self) -> t.Resumed | None:
        """While it is recovering, nothing: at the next start an entry of it would pass for the whole."""
        return None if self.recovering else self.resumed()

    def remembered(self) -> t.Restored | None:
        return None if self.recovering else self.restored()

    def resumed(self) -> t.Resumed:
        commits, records = self.commits, self.records
        return t.Resumed(
            self.incarnation, self.view, self.incarnations, self.started, commits.min, commits.pos, records.pos
        )

    def restored(self) -> t.Restored:
        commits, records = self.commits, self.records
        return t.Restored(
            self.incarnation,
            self.view,
            self.incarnations,
            self.started,
            commits.min,
            commits.slice(commits.min, commits.pos),
            records.slice(records.min, records.pos),
            sorted(self.holes),
        )

    def _ask_for_view(self) -> None:
        """Ask for a view that proposes the holes again; not while one is on its way, and ever less often."""
        if not self.started or self._round < self._holes_due:
            return
        self._holes_due = self._round + self._holes_backoff.pause
        self._holes_backoff.attempted()
        incarnations = self.incarnations.copy()
        incarnations[self._member] = self.incarnation - 1
        self.emit(t.Presence(self._member, self.partition, self.incarnation, self.view, incarnations), self._view_sinks)

    # Recovery without one

    def _join(self) -> None:
        """Ask for a view that knows of this incarnation; and again if one was started that does not."""
        incarnations = self._known.copy()
        incarnations[self._member] = self.incarnation - 1 if self._left_out else self.incarnation
        self.emit(t.Presence(self._member, self.partition, self.incarnation, self.view, incarnations), self._view_sinks)

    def _knows_me(self, start: t.Start) -> bool:
        """Whether f+1 others gave the records of this view, and each knew of this incarnation when it did."""
        others = [
            credential
            for credential in start.credentials
            if credential.committer != self.index and credential.incarnations[self._member] == self.incarnation
        ]
        return len(others) >= self.limits.quorum

    def _install(self, requests: list[t.Request]) -> None:
        """Take what the view proposes again; when that is all there, it is restored."""
        self.commits.extend(requests)
        if self.commits.pos < self._install_until:
            return
        first = self.commits.min
        installed = t.Installed(
            self.incarnation, self.view, self.incarnations, first, self.commits.slice(first, self.commits.pos)
        )
        self._take_memory(installed)
        self.persist(installed)
        for run in t.split(installed.requests, self.limits.run_length_max, self.limits.run_bytes_max):
            self.emit(t.Commit(self.index, self.partition, self.view, first, run), self._executors)
            first += len(run)

    def _take_memory(self, entry: t.Installed) -> None:
        self._enter_as(entry.incarnation, entry.view, entry.incarnations, True, entry.first)
        self.commits.extend(entry.requests)

    def _enter_as(self, incarnation: int, view: int, incarnations: list[int], started: bool, minimum: int) -> None:
        """Be in this view in this incarnation; what it had accepted is void."""
        self.recovering = False
        self.incarnation, self.view, self.incarnations, self.started = incarnation, view, incarnations, started
        self._views.raise_to(view)
        if view > 0:
            self._executors = self.graph.commit_receivers(self.index, self.partition, view)
        self._learn(incarnations)
        self.commits.clear()
        self.records.clear()
        self.holes.clear()
        self._move(minimum)
