"""The committer: a Paxos acceptor for the slots of one partition.

Proposals of the current view come in, in slot order; each accepted run leaves as a commit to all executors. When a
higher view comes, what was accepted becomes the record that the new view's proposer starts from.

What it remembers, and by which rules, is in `tara.protocol.acceptor`; view, votes and threshold are persisted in the
step that emits what they promise.
- With holes in what it knows it votes on in the view that it is in and says how far it is, but sends no record: a
  record must not show a slot as empty, or with an older accept. It asks for a new view with the same proposer, which
  proposes again what may have been decided, and so fills the holes.
- Without its journal it promises nothing: no record, no vote. It joins with a new incarnation, and is full again when a
  view that f+1 others have recorded for, knowing that number, has told it everything that may have been decided before.
"""

from collections.abc import Iterable
from functools import partial

from tara.protocol import tuples as t
from tara.protocol.acceptor import Acceptor
from tara.protocol.backoff import BACKOFF_MAX, Backoff
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.observer import Observer
from tara.protocol.resend import Laggards, burst, length, rounds_for
from tara.protocol.status import Newest


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
        self._member = graph.member(Stage.COMMITTER, name.replica)
        self.acceptor = Acceptor(limits, self._member, graph.members, boot.incarnation)
        self._holes_backoff = Backoff(limits.resend_rounds)
        self._holes_due = 0
        #: The views that this life has entered. For those who watch; nothing depends on it.
        self.views_entered = 0
        #: While recovering: the slots below must be known before it is full again.
        self._install_until = 0
        #: While recovering: a started view did not know of it.
        self._left_out = False
        self._views = Observer(limits.replicas, limits.quorum)
        self._thresholds = Observer(limits.replicas, limits.quorum)
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
        self._start(list(journal))

    def _start(self, journal: list[t.ReplayedEntry]) -> None:
        own = self.acceptor
        if self.boot.genesis:
            own.move(self.boot.threshold * self.limits.checkpoint_slots)
            own.know_itself()
            # From now on there is a journal: a start without one means that it was lost.
            self.persist(own.resumed())
            return
        own.replay(journal)
        if own.view > 0:
            self._follow_view()

    def _follow_view(self) -> None:
        own = self.acceptor
        self._views.raise_to(own.view)
        self._executors = self.graph.commit_receivers(self.index, self.partition, own.view)

    def _on_proposal(self, proposal: t.Proposal) -> None:
        own = self.acceptor
        if proposal.view != own.view or not own.started:
            return
        self._collect(proposal.stable)
        position = own.commits.pos
        if proposal.first > position:
            return
        requests = proposal.requests[position - proposal.first :][: own.commits.room]
        if own.recovering:
            self._install(requests)
            return
        if not requests:
            return
        own.vote(position, requests)
        self.persist(t.Voted(own.view, position, requests))
        self.emit(t.Commit(self.index, self.partition, own.view, position, requests), self._executors)

    def _on_index_request(self, request: t.IndexRequest) -> None:
        """Tell how far it has accepted requests, in any view. Without its journal it does not know. Whether these are
        on disk does not matter: a reader that waits for too much has waited for enough."""
        own = self.acceptor
        if own.recovering:
            return
        position = max(own.commits.pos, own.records.pos)
        index = t.ReadIndex(
            self.index,
            self.partition,
            own.incarnation,
            own.known,
            request.source,
            request.epoch,
            request.nonce,
            position,
        )
        self.tell(index, self._executor[request.executor])

    def _on_view(self, view: t.View) -> None:
        own = self.acceptor
        own.learn(view.incarnations)
        if view.view < own.view:
            self._lagging_sources = True
        if self._views.update(view.source, view.view):
            self._enter(self._views.current)

    def _on_start(self, start: t.Start) -> None:
        own = self.acceptor
        # A proposer that starts a view has seen f+1 committers in it: the view is real, whoever missed it.
        if start.incarnations[self._member] != own.incarnation or (own.recovering and not self._knows_me(start)):
            self._left_out = own.recovering and start.view >= own.view
            return
        own.learn(start.incarnations)
        self._enter(start.view)
        if start.view != own.view or own.started:
            return
        # The records that the start came from begin there, so a stable checkpoint covers what is below.
        self._collect(start.first)
        own.begin(start.next)
        if own.recovering:
            self._install_until = start.next
            self._install([])
        else:
            self.persist(t.Started(own.view, start.first, start.next))

    def _enter(self, view: int) -> None:
        """Promise a higher view, and tell its proposer what was accepted below it."""
        own = self.acceptor
        if view <= own.view:
            return
        own.promise(view, own.known)
        self._follow_view()
        self.views_entered += 1
        self._laggards.reset()
        self._left_out = False
        if own.recovering:
            own.records.clear()
            return
        self.persist(t.Promised(view, own.known))
        self._record_repeats, self._record_missing = 0, -1
        self._send_record()

    def _on_collecting(self, collecting: t.Collecting) -> None:
        """The proposer says how far the records have come. While this one comes, there is no need to send it again; and
        when all has come that was sent, the next portion is due."""
        own = self.acceptor
        if collecting.view != own.view or own.started or own.recovering:
            return
        missing = dict(collecting.missing).get(self.index, -1)
        if missing > self._record_missing:
            part = self.limits.run_bytes_max + self.limits.command_bytes_max
            self._record_due = self._round + max(self.limits.resend_rounds, rounds_for(part))
        self._record_missing = missing
        if self._record_sent <= missing < own.records.pos:
            self._send_record()

    def _send_record(self) -> None:
        """Send what the proposer lacks of the record, through one sink, another one each time that nothing comes: f of
        them may be down. With holes it has none.

        What is longer than what may wait for a link goes portion by portion: sent at once, its end would be dropped
        each time, and the proposer would never have it."""
        own = self.acceptor
        minimum, end = own.records.min, own.records.pos
        if own.holes:
            return
        sink = self._record_sinks[(self.index + self._record_repeats) % len(self._record_sinks)]
        first = max(self._record_missing, minimum)
        rest = own.records.slice(first, end)
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
        head = (self.index, self.partition, own.view, own.incarnation, own.incarnations, minimum, end)
        for part in [*t.split(slots, self.limits.run_length_max, self.limits.run_bytes_max)] or [[]]:
            self.emit(t.Record(*head, first, part), sink)
            first += len(part)

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
        own = self.acceptor
        if slot > own.commits.min:
            own.move(slot)
            if not own.recovering:
                self.persist(t.Collected(slot))

    def report(self) -> None:
        own = self.acceptor
        self._round += 1
        position = own.commits.pos if own.started else -1
        stable = own.commits.min // self.limits.checkpoint_slots
        status = t.CommitterStatus(
            self.index, self.partition, self.boot.life, self._round, own.incarnation, own.view, position, stable
        )
        self.emit(status, self._gc_sinks)
        if own.recovering:
            self._join()
            return
        if self._lagging_sources:
            self._lagging_sources = False
            self._be_present(own.incarnations)
        lacks_record = not own.started and own.view > 0 and self._record_missing < own.records.pos
        if lacks_record and self._round >= self._record_due:
            self._record_repeats += 1
            self._send_record()
        if own.holes:
            self._ask_for_view()
        if own.started:
            self._resend()

    def _resend(self) -> None:
        own = self.acceptor
        end = self._decidable_end()
        self._laggards.next_round(end)
        for executor, status in self._statuses:
            position = max(status.positions[self.partition], own.commits.min)
            heard = (status.life, status.round)
            missing = partial(self._missing, position, end)
            if self._laggards.lags(executor, position, heard, partial(length, missing)) and position < end:
                requests = missing()
                self._laggards.resent(executor, position + len(requests))
                self.resent += len(requests)
                for run in t.split(requests, self.limits.run_length_max, self.limits.run_bytes_max):
                    commit = t.Commit(self.index, self.partition, own.view, position, run)
                    self.emit(commit, self._executor[executor])
                    position += len(run)

    def _missing(self, begin: int, end: int) -> list[t.Request]:
        """What an executor is sent again that has decided nothing from this slot on."""
        own = self.acceptor
        end = min([end, *[hole for hole in own.holes if hole >= begin]])
        return burst(own.commits.slice(min(begin, end), end), self.limits)

    def _decidable_end(self) -> int:
        """The slots below have been accepted by f+1 committers in this view, as far as it knows. What is not accepted
        by f+1 does not get decided by being sent again."""
        own = self.acceptor
        others = [
            status.position
            for committer, status in self._committers
            if committer != self.index and status.view == own.view
        ]
        others += [0] * self.limits.replicas
        accepted = sorted([own.commits.pos, *others], reverse=True)[self.limits.f]
        return max(min(accepted, own.commits.pos), own.commits.min)

    def promised(self) -> t.Resumed | None:
        """While it is recovering, nothing: at the next start an entry of it would pass for the whole."""
        return None if self.acceptor.recovering else self.acceptor.resumed()

    def remembered(self) -> t.Restored | None:
        return None if self.acceptor.recovering else self.acceptor.restored()

    def _ask_for_view(self) -> None:
        """Ask for a view that proposes the holes again; not while one is on its way, and ever less often."""
        own = self.acceptor
        if not own.started or self._round < self._holes_due:
            return
        self._holes_due = self._round + self._holes_backoff.pause
        self._holes_backoff.attempted()
        incarnations = own.incarnations.copy()
        incarnations[self._member] = own.incarnation - 1
        self._be_present(incarnations)

    def _join(self) -> None:
        """Ask for a view that knows of this incarnation; and again if one was started that does not."""
        own = self.acceptor
        incarnations = own.known.copy()
        incarnations[self._member] = own.incarnation - 1 if self._left_out else own.incarnation
        self._be_present(incarnations)

    def _be_present(self, incarnations: list[int]) -> None:
        own = self.acceptor
        presence = t.Presence(self._member, self.partition, own.incarnation, own.view, incarnations)
        self.emit(presence, self._view_sinks)

    def _knows_me(self, start: t.Start) -> bool:
        """Whether f+1 others gave the records of this view, and each knew of this incarnation when it did."""
        others = [
            credential
            for credential in start.credentials
            if credential.committer != self.index and credential.incarnations[self._member] == self.acceptor.incarnation
        ]
        return len(others) >= self.limits.quorum

    def _install(self, requests: list[t.Request]) -> None:
        """Take what the view proposes again; when that is all there, it is restored."""
        own = self.acceptor
        own.commits.extend(requests)
        if own.commits.pos < self._install_until:
            return
        first = own.commits.min
        installed = t.Installed(
            own.incarnation,
            own.view,
            own.incarnations,
            first,
            own.commits.slice(first, own.commits.pos),
        )
        own.install(installed)
        self.persist(installed)
        for run in t.split(installed.requests, self.limits.run_length_max, self.limits.run_bytes_max):
            self.emit(t.Commit(self.index, self.partition, own.view, first, run), self._executors)
            first += len(run)
