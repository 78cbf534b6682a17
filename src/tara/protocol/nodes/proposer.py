"""The proposer: orders the requests of one partition while it is the active proposer of the view.

Requests come from the sources, as a rule to the proposer whose view it is. Whoever gets one holds it until it is
decided; in a new view the sources send theirs again. Proposals go to the committers. A view change brings the
committers' records; from f+1 of them the proposer of the view learns what may have been decided, proposes it again, and
goes on from there.

The rules that make it safe:
- It starts idle. It becomes active in a view only with records that name its own incarnation (rule R1), that is,
  only through a view change that this very life of it has lived through.
- None of those records may know a newer life of another's sender (rule R2).
- It proposes at most one request per slot of the view: `proposals.pos`, the next slot, only rises, past everything
  proposed again.
"""

import enum
from functools import partial

from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.execution import REQUEST_BYTES
from tara.protocol.graph import Graph, Name, Receivers, Stage
from tara.protocol.incarnations import FIRST_INCARNATION, current, newest
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.observer import Observer
from tara.protocol.resend import Laggards, burst, length
from tara.protocol.status import Newest
from tara.protocol.throttle import Throttle
from tara.protocol.window import Window


class Mode(enum.Enum):
    #: Another proposer's view.
    IDLE = "idle"
    #: Its own view, but the records are not complete.
    COLLECTING = "collecting"
    ACTIVE = "active"


class HeldRequests:
    """The undecided requests of one source, in its newest epoch.

    Invariant: held has only numbers in [low, low + capacity); cursor >= low."""

    __slots__ = ("_capacity", "again", "cursor", "epoch", "held", "low")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.epoch = 0
        #: Every number below is decided.
        self.low = 0
        self.held: dict[int, t.Request] = {}
        #: The next number to propose in this view.
        self.cursor = 0
        #: Numbers from `cursor` on that this view has proposed already, again.
        self.again: set[int] = set()

    def open(self, epoch: int) -> bool:
        """Turn to the epoch, if it is not an old one; true when it is the current one now."""
        if epoch > self.epoch:
            self.epoch, self.low, self.cursor = epoch, 0, 0
            self.held, self.again = {}, set()
        return epoch == self.epoch

    def hold(self, request: t.Request) -> None:
        if self.open(request.epoch) and self.low <= request.number < self.low + self._capacity:
            self.held[request.number] = request

    def decided(self, epoch: int, low: int) -> None:
        if not self.open(epoch) or low <= self.low:
            return
        if low - self.low > len(self.held):
            self.held = {number: request for number, request in self.held.items() if number >= low}
        else:
            for number in range(self.low, low):
                self.held.pop(number, None)
        self.low = low
        self.cursor = max(self.cursor, low)

    def rewind(self) -> None:
        """A new view begins: whatever is not decided has to be proposed (again)."""
        self.cursor = self.low
        self.again = set()

    def proposed_again(self, request: t.Request) -> None:
        if self.open(request.epoch) and request.number >= self.cursor:
            self.again.add(request.number)

    def take(self, count: int, stamp_ms: int) -> list[t.Request]:
        """Up to `count` requests to propose next, in number order and without a gap."""
        taken: list[t.Request] = []
        cursor, held = self.cursor, self.held
        while len(taken) < count:
            if cursor in self.again:
                self.again.remove(cursor)
            else:
                request = held.get(cursor)
                if request is None:
                    break
                taken.append(t.Request(request.source, request.epoch, cursor, stamp_ms, request.body))
            cursor += 1
        self.cursor = cursor
        return taken


class RecordParts:
    """One committer's record of the view, as far as it has come.

    Invariant: every slot in [minimum, missing) is in `slots`."""

    __slots__ = ("bytes", "credential", "end", "minimum", "missing", "slots")

    def __init__(self, record: t.Record) -> None:
        self.credential = t.Credential(record.committer, record.incarnation, record.incarnations)
        self.minimum, self.end = record.minimum, record.end
        self.slots: dict[int, t.Accepted] = {}
        #: The first slot that has not come.
        self.missing = record.minimum
        #: Of the requests in the slots.
        self.bytes = 0

    def add(self, record: t.Record) -> None:
        self.minimum = max(record.minimum, self.minimum)
        for slot, accepted in enumerate(record.slots, record.first):
            if slot not in self.slots:
                self.slots[slot] = accepted
                self.bytes += len(accepted.request.body) + 1
        self.missing = max(self.minimum, self.missing)
        while self.missing in self.slots:
            self.missing += 1

    def same(self, record: t.Record) -> bool:
        """Whether it is a part of this one. A stable checkpoint may have moved its lower end since; what it says of a
        slot is frozen."""
        mine = self.credential
        return (mine.incarnation, mine.incarnations, self.end) == (
            record.incarnation,
            record.incarnations,
            record.end,
        )

    @property
    def complete(self) -> bool:
        """Whether what came covers the record without a gap."""
        return self.missing >= self.end


class Proposer(Node):
    def __init__(self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {
            t.Requests: self._on_requests,
            t.Stable: self._on_stable,
            t.View: self._on_view,
            t.Record: self._on_record,
        }
        self.mode = Mode.IDLE
        #: What it proposed in the current view; `proposals.pos` is the next slot. Cleared only with the view.
        self.proposals: Window[t.Request] = Window(0, limits.window)
        self._held = [HeldRequests(2 * limits.source_pending_max) for _ in range(graph.replicas(Stage.REQUEST_SOURCE))]
        #: The source whose turn it is.
        self._turn = 0
        #: Bytes that it has proposed since the last multiple of the checkpoint interval.
        self._bytes = 0
        #: The newest checkpoint that an executor has come by, and the bytes of requests and results since: what a
        #: request answers, only executors know.
        self._logged = (0, 0)
        rate = limits.proposer_rate_max
        self._throttle = Throttle(rate, boot.now_ms) if rate else None
        self._records: dict[int, RecordParts] = {}
        self._start: t.Start | None = None
        self._thresholds = Observer(limits.replicas, limits.quorum)
        self._views = Observer(limits.replicas, limits.quorum)
        self._member = graph.member(Stage.PROPOSER, name.replica)
        #: The view sources whose last view named this life of the proposer. Falls: sources restart, and forget.
        self._known_to: set[int] = set()
        self._executors: Newest[t.ExecutorStatus] = Newest(limits.replicas)
        self._committers: Newest[t.CommitterStatus] = Newest(limits.replicas)
        self._laggards = Laggards(limits.replicas, limits.resend_rounds)
        #: Since when other partitions are ahead while this one has nothing to propose.
        self._behind_since_ms: float | None = None
        self._to_committers = graph.all(Stage.COMMITTER, name.partition)
        self._to_committer = [graph.one(Stage.COMMITTER, index, name.partition) for index in range(limits.replicas)]
        self._view_sinks = graph.all(Stage.VIEW_SINK, name.partition)
        self._controllers = graph.all(Stage.CONTROLLER, name.partition)
        #: What the controllers were told last: view, slots, bytes of records.
        self._advance = (0, 0, 0)

    @property
    def view(self) -> int:
        return self._views.current

    @property
    def is_known(self) -> bool:
        """Whether f+1 view sources name this life: then the next view does, too, and this proposer can lead it."""
        return len(self._known_to) >= self.limits.quorum

    def _on_requests(self, requests: t.Requests) -> None:
        for request in requests.requests:
            self._held[request.source].hold(request)
        if self.mode is Mode.ACTIVE:
            self._propose()

    def _propose(self) -> None:
        """Propose held requests while the window has room, the sources taking turns."""
        if self.mode is not Mode.ACTIVE:
            raise NodeHalted(f"proposes while it is {self.mode.value}")
        if self._has_enough:
            self._skip_to_checkpoint()
        run: list[t.Request] = []
        room, stamp_ms, sources = self.proposals.room, int(self.now_ms), len(self._held)
        if self._throttle is not None:
            room = min(room, self._throttle.allowance(self.now_ms))
        # First a fair share for each, so that no source starves behind another; then what is left.
        for share in (room // sources + 1, room):
            for offset in range(sources):
                held = self._held[(self._turn + offset) % sources]
                run += held.take(min(share, room - len(run)), stamp_ms)
        self._turn = (self._turn + 1) % sources
        if self._throttle is not None:
            self._throttle.take(len(run))
        if run:
            self._publish(run)

    def _publish(self, run: list[t.Request]) -> None:
        first, slots = self.proposals.pos, self.limits.checkpoint_slots
        self.proposals.extend(run)
        if first // slots != self.proposals.pos // slots:
            self._bytes = 0
        self._bytes += sum([len(request.body) for request in run])
        self._send(first, run, self._to_committers)

    @property
    def _has_enough(self) -> bool:
        """Whether the interval that it proposes for is long enough: by what it has proposed in it, or by what has been
        executed of it. What empty requests take in the log does not count: those that it is filled up with do, too."""
        limits, (passed, logged) = self.limits, self._logged
        is_current = passed == self.proposals.pos // limits.checkpoint_slots
        logged_max = limits.checkpoint_bytes_max * limits.partitions + REQUEST_BYTES * limits.checkpoint_interval
        return self._bytes > limits.checkpoint_bytes_max or (is_current and logged > logged_max)

    def _skip_to_checkpoint(self) -> None:
        """Large requests or results: have a checkpoint taken early, as far as the window has room."""
        missing = -self.proposals.pos % self.limits.checkpoint_slots
        if missing <= self.proposals.room:
            self._publish([t.NOOP] * missing)
            self._bytes = 0

    def _send(self, first: int, requests: list[t.Request], receivers: Receivers) -> None:
        limits = self.limits
        for run in t.split(requests, limits.run_length_max, limits.run_bytes_max):
            self.emit(t.Proposal(self.index, self.partition, self.view, first, self.proposals.min, run), receivers)
            first += len(run)

    def _on_stable(self, stable: t.Stable) -> None:
        for status in stable.committers:
            if status.partition == self.partition and self._committers.update(status.committer, status):
                self._learn_view(status.view)
        for report in stable.executors:
            if self._executors.update(report.executor, report):
                self._logged = max((report.passed, report.bytes), self._logged)
                for held, (epoch, low) in zip(self._held, report.progress[self.partition], strict=True):
                    held.decided(epoch, low)
        if self._thresholds.update(stable.source, stable.checkpoint.number):
            self.proposals.move(self._stable_slot)
        if self.mode is Mode.ACTIVE:
            self._propose()

    @property
    def _stable_slot(self) -> int:
        return self._thresholds.current * self.limits.checkpoint_slots

    def _on_view(self, view: t.View) -> None:
        if view.incarnations[self._member] >= self.boot.incarnation:
            self._known_to.add(view.source)
        else:
            self._known_to.discard(view.source)
        if self._views.update(view.source, view.view):
            self._enter()

    def _learn_view(self, view: int) -> None:
        """Somebody is in this view already: it is published, even if the news did not reach us."""
        if self._views.raise_to(view):
            self._enter()

    def _enter(self) -> None:
        mine = self.graph.proposer_of(self.view) == self.index
        self.mode = Mode.COLLECTING if mine else Mode.IDLE
        self._records.clear()
        self._start = None

    def _on_record(self, record: t.Record) -> None:
        self._learn_view(record.view)
        if self.mode is not Mode.COLLECTING or record.view != self.view:
            return
        known = self._records.get(record.committer)
        if known is None or not known.same(record):
            known = self._records[record.committer] = RecordParts(record)
        known.add(record)
        if known.complete:
            self._try_start()

    def _try_start(self) -> None:
        chosen = self._usable_records()
        if len(chosen) < self.limits.quorum:
            return
        self._thresholds.raise_to(max(parts.minimum for parts in chosen) // self.limits.checkpoint_slots)
        first = self._stable_slot
        requests = _newest(chosen, first)
        self.mode = Mode.ACTIVE
        credentials = [parts.credential for parts in chosen]
        incarnations = newest([credential.incarnations for credential in credentials])
        end = first + len(requests)
        self._start = t.Start(self.index, self.partition, self.view, incarnations, credentials, first, end)
        self._records.clear()
        self._laggards.reset()
        self.emit(self._start, self._to_committers)
        self.proposals = Window(first, self.limits.window)
        self._publish(requests)
        for held in self._held:
            held.rewind()
        for request in requests:
            if request.source >= 0:
                self._held[request.source].proposed_again(request)
        self._propose()

    def _usable_records(self) -> list[RecordParts]:
        """Complete records that name this life (R1) and that no other record knows to be outdated (R2)."""
        complete = [parts for parts in self._records.values() if parts.complete]
        named = [parts for parts in complete if parts.credential.incarnations[self._member] == self.boot.incarnation]
        credentials = current([parts.credential for parts in named], self._member_of)
        return [parts for parts in named if parts.credential in credentials]

    def _member_of(self, credential: t.Credential) -> int:
        return self.graph.member(Stage.COMMITTER, credential.committer)

    def tick(self, now_ms: float) -> None:
        super().tick(now_ms)
        if self.mode is not Mode.ACTIVE:
            return
        if self._throttle is not None:
            self._propose()
        if self.limits.partitions > 1:
            self._skip()

    def _skip(self) -> None:
        """Fill the slots that other partitions have passed, so that the merged order goes on."""
        frontier = max((max(status.positions) for status in self._executors.values()), default=0)
        count = min(frontier - self.proposals.pos, self.proposals.room)
        if count <= 0:
            self._behind_since_ms = None
        elif self._behind_since_ms is None:
            self._behind_since_ms = self.now_ms
        elif self.now_ms - self._behind_since_ms >= self.limits.skip_delay_ms:
            self._behind_since_ms = None
            self._publish([t.NOOP] * count)

    def report(self) -> None:
        if not self.is_known:
            incarnations = [FIRST_INCARNATION] * self.graph.members
            presence = t.Presence(self._member, self.partition, self.boot.incarnation, self.view, incarnations)
            self.emit(presence, self._view_sinks)
        self._report_advance()
        if self.mode is Mode.ACTIVE:
            self._resend()

    def _report_advance(self) -> None:
        """Tell the controllers that the view's beginning takes its time, but is on its way; and the committers what is
        missing."""
        records = slots = 0
        if self.mode is Mode.COLLECTING:
            missing = [(committer, parts.missing) for committer, parts in self._records.items()]
            self.emit(t.Collecting(self.index, self.partition, self.view, missing), self._to_committers)
            records = sum([parts.bytes for parts in self._records.values()])
        elif self._start is not None:
            first, end = self._start.first, self._start.next
            positions = [status.position for status in self._committers.values() if status.view == self.view]
            slots = 1 + sum([min(position, end) - first for position in positions if position > first])
        advance = (self.view, slots, records)
        if advance > self._advance:
            self._advance = advance
            self.emit(t.Advance(self.index, self.partition, self.view, records, slots), self._controllers)

    def _resend(self) -> None:
        if self._start is None:
            raise NodeHalted(f"is active in view {self.view}, which it has not started")
        self._laggards.next_round(self.proposals.pos)
        for committer, status in self._committers:
            started = status.view == self.view and status.position >= 0
            heard = (status.life, status.round)
            begin = max(status.position if started else 0, self.proposals.min)
            missing = partial(self._missing, begin)
            if not self._laggards.lags(committer, status.position if started else -1, heard, partial(length, missing)):
                continue
            receiver = self._to_committer[committer]
            if not started:
                self.emit(self._start, receiver)
            if begin < self.proposals.pos:
                requests = missing()
                self.resent += len(requests)
                self._send(begin, requests, receiver)
                self._laggards.resent(committer, begin + len(requests))

    def _missing(self, begin: int) -> list[t.Request]:
        """What a committer is sent again that lacks everything from this slot on."""
        return burst(self.proposals.slice(min(begin, self.proposals.pos), self.proposals.pos), self.limits)


def _newest(records: list[RecordParts], first: int) -> list[t.Request]:
    """Per slot from `first` on, the request that was accepted in the highest view; a no-op where there is none."""
    best: dict[int, t.Accepted] = {}
    for parts in records:
        for slot, accepted in parts.slots.items():
            known = best.get(slot)
            if slot >= first and (known is None or accepted.view > known.view):
                best[slot] = accepted
    end = max(best, default=first - 1) + 1
    return [best[slot].request if slot in best else t.NOOP for slot in range(first, end)]
