"""The request source: numbers the commands of the clients that are connected to its site.

Commands come from the host; requests go to the partition's active proposer, and the target (how many there are) to its
controllers. A source keeps its requests until they are decided. A new view's proposer is sent all of them, and when
they do not move, the oldest go to all proposers, and to the other sources, which pass them on: of two sites that do not
hear each other, each would depose the other one's proposer, for ever. Its identity is (index, epoch): each start is a
new epoch, whose numbers begin at 0.

Reads are not ordered: the committers are asked how far the order is, and the executor of the source's site answers
when it is that far.
"""

from collections import deque
from collections.abc import Iterator

from tara.protocol import tuples as t
from tara.protocol.backoff import Backoff
from tara.protocol.graph import CLIENT, Graph, Name, Receivers, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.observer import Observer
from tara.protocol.principals import SYSTEM
from tara.protocol.resend import burst, rounds_for
from tara.protocol.skips import is_order
from tara.protocol.status import Newest

#: Orders of operators that are not known to be decided, beside the other requests; they are few.
ORDERS_MAX = 16
#: Signs of life in one request.
SIGNS_PER_REQUEST = 64
#: Where so much waits, and so much for each command, some wait for long: their clients are told that they do. With
#: less, sending a command again costs no more than that.
LONG_BYTES = 64 << 10
TOLD_BYTES = 1 << 10
#: How often: well within their patience.
WAITING_TOLD_MS = 150.0
#: An executor that has not been heard of for so many of the controllers' time-outs is taken for gone.
SILENT_TIMEOUTS = 4
#: They are told nothing any more when nothing has been decided for so long, or, while requests of others are decided,
#: none of these for so long: another source may do better.
STANDSTILL_MS = 3_000.0
OVERTAKEN_MS = 5 * STANDSTILL_MS
#: Of those that are decided, so many are remembered.
UNANSWERED_MAX = 1024
#: Reports of an executor that has halted that may be missed.
HALTED_REPORTS = 20


class RequestSource(Node):
    def __init__(self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {
            t.Submit: self._on_submit,
            t.Unkept: self._on_unkept,
            t.Requests: self._on_requests,
            t.SubmitReads: self._on_reads,
            t.StartIndexRequest: self._on_start_index,
            t.Halted: self._on_halted,
            t.Stable: self._on_stable,
            t.View: self._on_view,
        }
        self.epoch = boot.life
        #: The number of the next request. Never falls.
        self.next = 0
        #: Requests that are not known to be decided, oldest first: the numbers [next - len(pending), next).
        self._pending: deque[t.Request] = deque()
        #: What is in them and in the backlog. A client that loses patience sends its commands again; they are taken
        #: once, or an overload would feed itself.
        self._taken: set[tuple[int, int, int, bytes]] = set()
        self._pending_bytes = self.backlog_bytes = 0
        self._commands: deque[list[t.Command]] = deque()
        self._backlog: deque[t.Command] = deque()
        #: Signs of life, which do not wait behind what is long: a session is not to expire while its commands wait.
        self._signs: deque[t.Command] = deque()
        #: When anything was last decided; when requests of this source were; and which were there when clients were
        #: last told, those below this number.
        self._order_moved_ms = boot.now_ms
        self._moved_ms = boot.now_ms
        self._late = 0
        #: Commands of those that are decided, with the numbers of their requests, but not by the executor of its site,
        #: which answers; how far that one is, and when it last got further.
        self._unanswered: deque[tuple[int, t.Command]] = deque(maxlen=UNANSWERED_MAX)
        self._answered = 0
        self._answered_ms = boot.now_ms
        self._told_ms = 0.0
        #: An operator's, which wait for nothing: they may be what everything else waits for.
        self._orders: deque[t.Command] = deque()
        #: Those of them that wait or are pending.
        self._orders_open = 0
        #: Until then, the executor of its site counts as halted: windows are not to fill with what nobody executes.
        self._halted_until_ms = 0.0
        #: The newest stable checkpoint that it knows of, and the slots of its partition that are known to be decided.
        self._stable = self._decided = 0
        self._batch_since_ms = boot.now_ms
        self._silent_since_ms = boot.now_ms
        self._sessions_open = False
        self._views = Observer(limits.replicas, limits.quorum)
        #: What executors said last, and when.
        self._executors: Newest[t.ExecutorStatus] = Newest(limits.replicas)
        self._heard_ms = [boot.now_ms] * limits.replicas
        #: The oldest pending number at the last report, and for how many reports it has been that.
        self._oldest = 0
        self._stuck = 0
        #: Reports without movement before the oldest requests are sent again; grows while that does not help.
        self._backoff = Backoff(limits.resend_rounds)
        #: Numbers the reads of this epoch.
        self._nonce = 0
        self._committers = graph.everywhere(Stage.COMMITTER)
        self._executor = graph.one(Stage.EXECUTOR, name.replica)
        self._proposers = graph.all(Stage.PROPOSER, name.partition)
        self._others = graph.others(Stage.REQUEST_SOURCE, name.replica, name.partition)
        self._active = self._proposers
        self._controllers = graph.all(Stage.CONTROLLER, name.partition)

    @property
    def capacity(self) -> int:
        """How many more commands it takes now; the host makes clients wait for the rest."""
        return self.limits.source_backlog_max - len(self._backlog) - len(self._signs)

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def backlog(self) -> int:
        return len(self._backlog) + len(self._signs)

    def _on_submit(self, submit: t.Submit) -> None:
        refused = self._take(submit.commands, submit.bytes_max)
        if refused:
            self.emit(t.Refused(refused), CLIENT)
        self._pump()

    def _take(self, commands: list[t.Command], bytes_max: int) -> list[t.Command]:
        """Let commands wait for their turn. Gives back those that there is no room for. The front end has refused those
        that are too long, with an answer; here they would vanish."""
        if not self._backlog:
            self._batch_since_ms = self.now_ms
            if not self._pending:
                self._moved_ms = self.now_ms
        limit, taken, room, size = self.limits.command_bytes_max, self._taken, self.capacity, self.backlog_bytes
        refused = []
        for command in commands:
            key, length = _key(command), len(command.payload)
            if key in taken or length > limit:
                continue
            if command.kind == t.SKIP and is_order(command):
                if self._orders_open < ORDERS_MAX:
                    taken.add(key)
                    self._orders.append(command)
                    self._orders_open += 1
                else:
                    refused.append(command)
                continue
            if room <= 0 or (bytes_max and length and size >= bytes_max):
                refused.append(command)
                continue
            taken.add(key)
            room -= 1
            if command.kind == t.KEEPALIVE and not length:
                self._signs.append(command)
                continue
            self._backlog.append(command)
            size += length
        self.backlog_bytes = size
        return refused

    def _on_unkept(self, unkept: t.Unkept) -> None:
        """That the command is decided is heard only later. Until then the repetition would pass for one that is still
        on its way."""
        for kind in (t.EXECUTE, t.QUERY):
            self._taken.discard((unkept.session, unkept.number, kind, unkept.principal))

    def _pump(self) -> None:
        """Make requests of waiting commands, as far as bounds and batching allow."""
        size, backlog, first = self.limits.batch_size, self._backlog, self.next
        full, rest = divmod(len(backlog), size)
        if rest and self.now_ms - self._batch_since_ms >= self.limits.batch_delay_ms:
            full += 1
        room = self.limits.source_pending_max - len(self._pending)
        batches: list[list[t.Command]] = [[order] for order in self._orders]
        self._orders.clear()
        self._pending_bytes += sum(map(_length, batches))
        if self.now_ms < self._halted_until_ms or self._nobody_executes:
            room = 0
        if self._signs and room > 0:
            batches.append([self._signs.popleft() for _ in range(min(len(self._signs), SIGNS_PER_REQUEST))])
            room -= 1
        count = len(batches) + min(full, room)
        while len(batches) < count and self._pending_bytes < self.limits.source_pending_bytes_max:
            batch = [backlog.popleft()] if size == 1 else self._next_batch()
            length = _length(batch)
            self._pending_bytes += length
            self.backlog_bytes -= length
            batches.append(batch)
        if not batches:
            return
        encode, source, epoch = t.encode, self.index, self.epoch
        requests = [t.Request(source, epoch, number, 0, encode(batch)) for number, batch in enumerate(batches, first)]
        self.next += len(requests)
        self._batch_since_ms = self._silent_since_ms = self.now_ms
        self._pending.extend(requests)
        self._commands.extend(batches)
        self._send(requests, self._active)

    @property
    def _nobody_executes(self) -> bool:
        """Whether more is decided behind the stable checkpoint than the smallest window holds. Executors that are well
        have taken another checkpoint long before. Those that end in a command again and again, and cannot say so, have
        not; and the windows need room for the operator's orders."""
        slots = self.limits.checkpoint_slots
        return self._decided - self._stable * slots >= 2 * slots

    def _next_batch(self) -> list[t.Command]:
        """A request is not to become much longer than a tuple, however many commands it may hold."""
        batch: list[t.Command] = []
        room = self.limits.run_bytes_max
        while self._backlog and len(batch) < self.limits.batch_size and room > 0:
            batch.append(self._backlog.popleft())
            room -= len(batch[-1].payload)
        return batch

    def _send(self, requests: list[t.Request], receivers: Receivers) -> None:
        for run in t.split(requests, self.limits.run_length_max, self.limits.run_bytes_max):
            self.emit(t.Requests(run), receivers)

    def _on_requests(self, requests: t.Requests) -> None:
        """Of another source, which may not reach the active proposer."""
        self._send(requests.requests, self._active)

    def _on_reads(self, submitted: t.SubmitReads) -> None:
        """Have reads answered without ordering them. Nothing is sent again: a client that gets no answer in time has
        its read ordered."""
        for some in t.split(submitted.reads, self.limits.run_length_max, self.limits.run_bytes_max):
            self._nonce += 1
            self.emit(t.PendingReads(self.index, self.epoch, self._nonce, some), self._executor)
            self.emit(t.IndexRequest(self.index, self.epoch, self._nonce, self.index), self._committers)

    def _on_halted(self, halted: t.Halted) -> None:
        """The executor of its site has halted, or executes again. It says so again and again while it has."""
        patience_ms = HALTED_REPORTS * self.limits.report_interval_ms
        self._halted_until_ms = self.now_ms + patience_ms if halted.reason else 0.0

    def _on_start_index(self, start: t.StartIndexRequest) -> None:
        """On behalf of an executor that has started. It asks again until it has its answers."""
        self.emit(t.IndexRequest(self.index, start.life, t.START_NONCE, start.executor), self._committers)

    def tick(self, now_ms: float) -> None:
        super().tick(now_ms)
        silent_ms = self.now_ms - self._silent_since_ms
        # While nothing is decided no time is to pass: it would pass at once when the stall is over.
        idle = not self.backlog and not self._pending
        if self._sessions_open and idle and silent_ms >= self.limits.keepalive_interval_ms:
            self._backlog.append(t.Command(0, 0, 0, b"", t.KEEPALIVE, SYSTEM))
        if self._backlog or self._orders or self._signs:
            self._pump()
        if self.now_ms >= self._told_ms + WAITING_TOLD_MS:
            self._told_ms = self.now_ms
            self._tell_who_waits()
            self._late = self.next

    def _tell_who_waits(self) -> None:
        """Who is told that a command waits, and that the queue moves, does not send it again elsewhere, where it would
        be ordered a second time."""
        since_ms = self.now_ms - STANDSTILL_MS
        waiting: list[t.Command] = []
        if self._waits_for_long and self._moves:
            waiting = [command for number, batch in self._numbered() if number < self._late for command in batch]
            waiting += self._backlog
        if self._unanswered and self._answered_ms > since_ms:
            waiting += [command for _, command in self._unanswered]
        if waiting:
            self.emit(t.Waiting(list(map(_without_payload, waiting))), CLIENT)

    @property
    def _moves(self) -> bool:
        """Whether the requests that are pending are on their way, as far as it can tell: where links are slow, those of
        another source may be decided for seconds before one of these is."""
        since_ms = self.now_ms - STANDSTILL_MS
        if self._moved_ms > since_ms:
            return True
        return self._order_moved_ms > since_ms and self._moved_ms > self.now_ms - OVERTAKEN_MS

    @property
    def _waits_for_long(self) -> bool:
        """Whether the oldest request was there when clients were last told, and there is much before the others."""
        if not self._pending or self._pending[0].number >= self._late:
            return False
        count = len(self._pending) + len(self._backlog)
        return self._pending_bytes + self.backlog_bytes >= max(LONG_BYTES, TOLD_BYTES * count)

    def _numbered(self) -> Iterator[tuple[int, list[t.Command]]]:
        """The commands of the requests that are pending, with the numbers of these."""
        return zip([request.number for request in self._pending], self._commands, strict=True)

    def _on_stable(self, stable: t.Stable) -> None:
        self._sessions_open = any(status.sessions for status in stable.executors)
        self._stable = max(self._stable, stable.checkpoint.number)
        for status in stable.executors:
            if self._executors.update(status.executor, status):
                self._heard_ms[status.executor] = self.now_ms
            self._stable = max(self._stable, status.stable)
            if status.positions[self.partition] > self._decided:
                self._decided = status.positions[self.partition]
                self._order_moved_ms = self.now_ms
            epoch, low = status.progress[self.partition][self.index]
            if epoch == self.epoch:
                if status.executor == self.index and low > self._answered:
                    self._answered, self._answered_ms = low, self.now_ms
                told = self._waits_for_long
                while self._pending and self._pending[0].number < low:
                    number = self._pending.popleft().number
                    commands = self._commands.popleft()
                    self._taken.difference_update(map(_key, commands))
                    self._pending_bytes -= _length(commands)
                    # An order has a request of its own.
                    self._orders_open -= commands[0].kind == t.SKIP and is_order(commands[0])
                    self._moved_ms = self.now_ms
                    if told and number < self._late:
                        self._unanswered.extend([(number, _without_payload(command)) for command in commands])
        while self._unanswered and self._unanswered[0][0] < self._answered:
            self._unanswered.popleft()
        if self._backlog or self._signs:
            self._pump()

    def _on_view(self, view: t.View) -> None:
        """The new view's proposer has to propose what is not decided."""
        if self._views.update(view.source, view.view):
            self._active = self.graph.request_receivers(self.partition, self._views.current)
            self.resent += len(self._pending)
            self._send(list(self._pending), self._active)

    def report(self) -> None:
        # A decision is about a run of requests, with the rest of another one before it.
        size = min(self._pending_bytes, 2 * self.limits.run_bytes_max)
        self.emit(t.Target(self.index, self.partition, (self.epoch, self._wanted), size), self._controllers)
        oldest = self.next - len(self._pending)
        if oldest == self._oldest and self._pending:
            self._stuck += 1
        else:
            self._stuck = 0
            self._backoff.reset()
        self._oldest = oldest
        if self._stuck >= max(self._backoff.pause, rounds_for(min(self._pending_bytes, self.limits.resend_bytes_max))):
            self._stuck = 0
            self._backoff.attempted()
            self._resend()

    @property
    def _wanted(self) -> int:
        """How many requests there are, or would be. What is held back because nobody executes takes no slot, but
        counts if too few executors have what the next checkpoint takes: it may be the proposer that is gone, and an
        executor that lacks what only the next view brings. If they have it, a checkpoint takes its time, or cannot be
        taken; another proposer would not help."""
        held_back = self.backlog > 0 and self._nobody_executes and self.now_ms >= self._halted_until_ms
        return self.next + (held_back and self._executors_lack())

    def _executors_lack(self) -> bool:
        """Whether less than f+1 executors that are alive know what was decided up to the next checkpoint."""
        needed = (self._stable + 1) * self.limits.checkpoint_slots
        since_ms = self.now_ms - SILENT_TIMEOUTS * self.limits.controller_timeout_ms
        there = [
            executor
            for executor, status in self._executors
            if status.positions[self.partition] >= needed and self._heard_ms[executor] >= since_ms
        ]
        return len(there) < self.limits.quorum

    def _resend(self) -> None:
        """They may have been lost, or sent to the proposer of a view that is over."""
        oldest = burst(self._pending, self.limits)
        self.resent += len(oldest)
        self._send(oldest, self._proposers)
        if self._others.numbers:
            self._send(oldest, self._others)


def _key(command: t.Command) -> tuple[int, int, int, bytes]:
    """What tells one command from another; a keep-alive has no number of its own. Two principals never send the same
    one: whoever guesses what the owner of a session will send next does not keep it out. An operator who orders the
    same again while nothing is decided has ordered it."""
    if command.kind == t.SKIP and is_order(command):
        return (0, 0, command.kind, command.principal + command.payload)
    return (command.session, command.number, command.kind, command.principal)


def _without_payload(command: t.Command) -> t.Command:
    return t.Command(command.session, command.number, 0, b"", command.kind, command.principal)


def _length(commands: list[t.Command]) -> int:
    return sum([len(command.payload) for command in commands])
