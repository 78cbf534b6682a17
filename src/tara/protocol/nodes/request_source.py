"""The request source: numbers the commands of the clients that are connected to its site.

Commands come from the host; requests go to all proposers of the partition, and the target (how many there are) to
its controllers. A source keeps its requests until they are decided and sends the oldest again when they do not
move. Its identity is (index, epoch): each start is a new epoch, whose numbers begin at 0.
"""

from collections import deque
from itertools import islice

from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.observer import Observer
from tara.protocol.resend import BACKOFF_MAX


class RequestSource(Node):
    def __init__(self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {t.Submit: self._on_submit, t.Stable: self._on_stable, t.View: self._on_view}
        self.epoch = boot.life
        #: The number of the next request. Never falls.
        self.next = 0
        #: Requests that are not known to be decided, oldest first: the numbers [next - len(pending), next).
        self._pending: deque[t.Request] = deque()
        self._backlog: deque[t.Command] = deque()
        self._batch_since_ms = boot.now_ms
        self._silent_since_ms = boot.now_ms
        self._sessions_open = False
        self._views = Observer(limits.replicas, limits.quorum)
        #: The oldest pending number at the last report, and for how many reports it has been that.
        self._oldest = 0
        self._stuck = 0
        #: Reports without movement before the oldest requests are sent again; grows while that does not help.
        self._pause = limits.resend_rounds
        self._proposers = graph.all(Stage.PROPOSER, name.partition)
        self._controllers = graph.all(Stage.CONTROLLER, name.partition)

    @property
    def capacity(self) -> int:
        """How many more commands it takes now; the host makes clients wait for the rest."""
        return self.limits.source_backlog_max - len(self._backlog)

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def backlog(self) -> int:
        return len(self._backlog)

    # Request handling

    def _on_submit(self, submit: t.Submit) -> None:
        """Take commands. The host has asked `capacity` and refused commands that are too long, with an answer to the
        client; here they would vanish."""
        if not self._backlog:
            self._batch_since_ms = self.now_ms
        for command in islice(submit.commands, max(self.capacity, 0)):
            if len(command.payload) <= self.limits.command_bytes_max:
                self._backlog.append(command)
        self._pump()

    def _pump(self) -> None:
        """Make requests of waiting commands, as far as bounds and batching allow."""
        size, backlog = self.limits.batch_size, self._backlog
        room = self.limits.source_pending_max - len(self._pending)
        requests: list[t.Request] = []
        while backlog and len(requests) < room:
            if len(backlog) < size and self.now_ms - self._batch_since_ms < self.limits.batch_delay_ms:
                break
            batch = [backlog.popleft() for _ in range(min(size, len(backlog)))]
            requests.append(t.Request(self.index, self.epoch, self.next, 0, t.encode(batch)))
            self.next += 1
            self._batch_since_ms = self.now_ms
        if requests:
            self._silent_since_ms = self.now_ms
            self._pending.extend(requests)
            self._send(requests)

    def _send(self, requests: list[t.Request]) -> None:
        for run in t.split(requests, self.limits.run_length_max, self.limits.run_bytes_max):
            self.emit(t.Requests(run), self._proposers)

    def tick(self, now_ms: float) -> None:
        super().tick(now_ms)
        silent_ms = self.now_ms - self._silent_since_ms
        if self._sessions_open and not self._backlog and silent_ms >= self.limits.keepalive_interval_ms:
            self._backlog.append(t.Command(0, 0, 0, b"", t.KEEPALIVE))
        if self._backlog:
            self._pump()

    # What became of the requests

    def _on_stable(self, stable: t.Stable) -> None:
        self._sessions_open = any(status.sessions for status in stable.executors)
        for status in stable.executors:
            epoch, low = status.progress[self.partition][self.index]
            if epoch == self.epoch:
                while self._pending and self._pending[0].number < low:
                    self._pending.popleft()
        if self._backlog:
            self._pump()

    def _on_view(self, view: t.View) -> None:
        """The new view's proposer may have missed requests while it was down."""
        if self._views.update(view.source, view.view):
            self._resend()

    def report(self) -> None:
        self.emit(t.Target(self.index, self.partition, (self.epoch, self.next)), self._controllers)
        oldest = self.next - len(self._pending)
        if oldest == self._oldest and self._pending:
            self._stuck += 1
        else:
            self._stuck, self._pause = 0, self.limits.resend_rounds
        self._oldest = oldest
        if self._stuck >= self._pause:
            self._stuck = 0
            self._pause = min(2 * self._pause, BACKOFF_MAX * self.limits.resend_rounds)
            self._resend()

    def _resend(self) -> None:
        if self._pending:
            oldest = list(islice(self._pending, self.limits.resend_burst))
            self.resent += len(oldest)
            self._send(oldest)
