"""The controller: notices that a partition makes no progress, and asks for the next view.

Request sources say how many requests there are, executors how many are decided. A source with undecided requests
that has made no progress for the time-out, or a partition that does not skip although others wait for it, means
that the active proposer is gone. f+1 of the 2f+1 controllers must think so at the same time: progress withdraws what a
controller has asked for. Only the slowest partition is judged:
the others may just be waiting for it.

What travels takes time, and more of it where links are slow. So the time-out is longer while large requests are
undecided: by the time that they would take on a slow link, or by several times what requests of that size have taken
here lately. A process that waits for its disk stands still, and its controller with it: that time does not count, and
others are allowed to stand still as long (`tara.protocol.stalls`). And in a new view it counts as progress that
records arrive and slots are accepted again: a view that gets something done is allowed to finish.

The clock of a source runs from its last progress, not from its last new request: otherwise new requests would hide
a dead proposer. The time-out doubles with every view that it asks for, up to a maximum, and falls back by and by while
less would do: where work takes long, views that each get a little done would follow each other for ever.
"""

from collections.abc import Callable

from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.observer import Observer
from tara.protocol.opinions import ProgressOpinions, Reach
from tara.protocol.stalls import Stalls
from tara.protocol.transfer import Transfer

#: A time-out that was doubled is halved when half of it would have done for so many times as long, and for so many of
#: the shortest time-outs.
CALM_TIMES = 4
CALM_TIMEOUTS = 8
#: While requests of others are decided, the proposer is alive, and a source may be overtaken for so many times as long:
#: its requests may have a longer way, or long ones before them.
OVERTAKEN_TIMES = 5


class Controller(Node):
    def __init__(self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {
            t.Target: self._on_target,
            t.Progress: self._on_progress,
            t.Advance: self._on_advance,
            t.View: self._on_view,
        }
        sources = graph.replicas(Stage.REQUEST_SOURCE)
        self._target: list[Reach] = [(0, 0)] * sources
        self._ordered = ProgressOpinions(limits.replicas, sources)
        self._actual: list[Reach] = [(0, 0)] * sources
        #: What each executor last said of the partition's place among the others.
        self._places: list[t.Progress | None] = [None] * limits.replicas
        self._heard_ms = [boot.now_ms] * limits.replicas
        self._position = 0
        #: Per source, and last for the partition's skips: since when it waits without progress.
        self._since_ms: list[float | None] = [None] * (sources + 1)
        self.timeout_ms = limits.controller_timeout_ms
        #: When requests were decided last, or nothing waited; and since when that has never taken long.
        self._moved_ms = self._calm_since_ms = boot.now_ms
        self._transfer = Transfer()
        self._stalls = Stalls(boot.now_ms, 2 * limits.report_interval_ms)
        #: When it last lost patience.
        self._lost_patience_ms = boot.now_ms - 1
        #: How far the beginning of the current view is.
        self._begun = (0, 0)
        #: The view it asks for, until it comes or progress makes it needless.
        self.asked: int | None = None
        #: Numbers the votes of this life.
        self._round = 0
        self._views = Observer(limits.replicas, limits.quorum)
        self._view_sinks = graph.all(Stage.VIEW_SINK, name.partition)

    @property
    def patience_ms(self) -> float:
        """How long something may make no progress."""
        return self.timeout_ms + self._transfer.allowance_ms + self._stalls.allowance_ms

    def _on_target(self, target: t.Target) -> None:
        self._transfer.expect(target.source, target.bytes)
        if target.reach > self._target[target.source]:
            self._target[target.source] = target.reach
            self._watch(target.source, advanced=False)

    def _on_progress(self, progress: t.Progress) -> None:
        self._ordered.update(progress.executor, progress.progress)
        self._heard_ms[progress.executor] = self.now_ms
        known = self._places[progress.executor]
        if known is None or _order(progress) >= _order(known):
            self._places[progress.executor] = progress
        began_ms = self._wait_began_ms()
        moved = progress.position > self._position
        self._position = max(self._position, progress.position)
        advanced = False
        for source, actual in enumerate(self._actual):
            reached = self._ordered.highest(source, self.limits.quorum)
            self._actual[source] = max(reached, actual)
            self._watch(source, advanced=reached > actual)
            advanced = advanced or reached > actual
        self._watch(len(self._actual), advanced=moved)
        self._transfer.note(progress, began_ms if advanced else None, self.now_ms)
        if advanced or moved:
            self._withdraw()
        # Skips alone do not shorten the time-out: a view that has to catch up first needs time for the requests.
        if advanced or self._nothing_waits():
            self._calm_down()

    def _on_advance(self, advance: t.Advance) -> None:
        """The view that it is in gets something done, although nothing new is decided."""
        begun = (advance.slots, advance.records)
        if advance.view != self._views.current or begun <= self._begun:
            return
        self._begun = begun
        self._withdraw()
        for item in range(len(self._since_ms)):
            self._watch(item, advanced=True)

    def _wait_began_ms(self) -> float | None:
        """Since when it has waited, if it did not lose patience meanwhile: what that shows is seen to."""
        began_ms = min([since_ms for since_ms in self._since_ms if since_ms is not None], default=self.now_ms)
        return began_ms if began_ms > self._lost_patience_ms else None

    def _calm_down(self) -> None:
        """Halve the time-out if that would have been enough for a while."""
        shortest = self.limits.controller_timeout_ms
        if self.now_ms - self._moved_ms >= self.timeout_ms / 2:
            self._calm_since_ms = self.now_ms
        elif self.now_ms - self._calm_since_ms >= max(CALM_TIMES * self.timeout_ms, CALM_TIMEOUTS * shortest):
            self._calm_since_ms = self.now_ms
            self.timeout_ms = max(self.timeout_ms / 2, shortest)
            self._transfer.forget()
        self._moved_ms = self.now_ms

    def _nothing_waits(self) -> bool:
        """As far as it can tell: in a new view it has to hear of the sources first."""
        heard = sum(epoch > 0 for epoch, _ in self._target)
        return heard >= self.limits.quorum and not any(map(self._is_open, range(len(self._since_ms))))

    def _watch(self, item: int, advanced: bool) -> None:
        """Start, restart or stop the clock of a source (or of the skips)."""
        if not self._waits(item):
            self._since_ms[item] = None
        elif advanced or self._since_ms[item] is None:
            self._since_ms[item] = self.now_ms

    def _waits(self, item: int) -> bool:
        return self._is_open(item) and not self._is_excused()

    def _is_open(self, item: int) -> bool:
        if item == len(self._actual):
            behind = any(place.position < place.frontier for place in self._fresh())
            return behind and not self._agree(lambda place: place.position >= place.frontier)
        epoch, wanted = self._target[item]
        reached_epoch, reached = self._actual[item]
        return epoch >= reached_epoch and wanted > (reached if epoch == reached_epoch else 0)

    def _is_excused(self) -> bool:
        """Whether somebody else has to move first. A partition that is ahead may be held up by the slowest, one whose
        window is full by the checkpoints; a new view would only make that worse."""
        return self._agree(lambda place: place.position > place.slowest or place.position >= place.window_end)

    def _agree(self, condition: Callable[[t.Progress], bool]) -> bool:
        """Whether f+1 executors say so that are alive: what a dead one said last may never have been true elsewhere."""
        return sum(map(condition, self._fresh())) >= self.limits.quorum

    def _fresh(self) -> list[t.Progress]:
        """What executors said of the partition's place within the time-out."""
        since_ms = self.now_ms - self.limits.controller_timeout_ms
        return [
            place
            for place, heard_ms in zip(self._places, self._heard_ms, strict=True)
            if place is not None and heard_ms >= since_ms
        ]

    def _on_view(self, view: t.View) -> None:
        if not self._views.update(view.source, view.view):
            return
        self.asked, self._calm_since_ms, self._begun = None, self.now_ms, (0, 0)
        # All waits begin anew, perhaps at the time at which patience was lost.
        self._lost_patience_ms = self.now_ms - 1
        # Living sources report again at once. A dead one may have died with requests that nobody else has.
        self._target = [(0, 0)] * len(self._target)
        self._transfer.enter()
        for item in range(len(self._since_ms)):
            self._watch(item, advanced=True)

    def tick(self, now_ms: float) -> None:
        super().tick(now_ms)
        if stall_ms := self._stalls.tick(self.now_ms):
            # Nobody could reach it.
            self._since_ms = [None if since_ms is None else since_ms + stall_ms for since_ms in self._since_ms]
        if self.asked is not None:
            return
        for item in range(len(self._since_ms)):
            # An executor that has fallen silent may have been what excused the partition.
            self._watch(item, advanced=False)
        waiting = [since_ms for since_ms in self._since_ms if since_ms is not None]
        others_move = self.now_ms < self._moved_ms + self.patience_ms
        patience_ms = self.patience_ms * (OVERTAKEN_TIMES if others_move else 1)
        if waiting and self.now_ms >= min(waiting) + patience_ms:
            if min(waiting) > self._lost_patience_ms:
                # Once for each wait, however often it is interrupted.
                self._transfer.was_too_short()
            self._lost_patience_ms = self.now_ms
            self.suspect()

    def suspect(self) -> None:
        """Take the active proposer for dead."""
        self.timeout_ms = min(2 * self.timeout_ms, self.limits.controller_timeout_ms_max)
        self.asked = self._views.current + 1
        self._ask()

    def report(self) -> None:
        if self.asked is not None:
            self._ask()

    def _ask(self) -> None:
        self._round += 1
        vote = t.Vote(self.index, self.partition, self.boot.life, self._round, self.asked or 0)
        self.emit(vote, self._view_sinks)

    def _withdraw(self) -> None:
        """What it asked for is needless. Should this get lost, the vote does not count for much longer."""
        if self.asked is not None:
            self.asked = None
            self._ask()


def _order(progress: t.Progress) -> tuple[int, int, int]:
    """Which of two reports of an executor is the newer one."""
    return (progress.life, progress.position, progress.slowest)
