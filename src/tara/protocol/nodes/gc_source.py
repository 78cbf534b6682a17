"""The gc source: raises the stability threshold, and spreads everybody's positions.

Status reports come through the queue of its gc sink, and so does what the other gc sources publish. A checkpoint is
stable when f+1 executors hold it with the same digest: then one of them survives, and a replica that diverged finds
itself alone. The source republishes the newest report of each node with the threshold, again and again: this is what
all re-sending is driven by.
"""

from collections import Counter

from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.status import Newest


class GcSource(Node):
    def __init__(self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {
            t.ExecutorStatus: self._on_executor_status,
            t.CommitterStatus: self._on_committer_status,
            t.Stable: self._on_stable,
        }
        #: The newest stable checkpoint. Its number never falls.
        self.stable = t.CheckpointId(0, b"")
        self._executors: Newest[t.ExecutorStatus] = Newest(limits.replicas)
        self._committers: list[Newest[t.CommitterStatus]] = [Newest(limits.replicas) for _ in range(limits.partitions)]
        #: An executor's position is newer than what was published.
        self._news = False
        self._receivers = [
            graph.others(Stage.GC_SOURCE, name.replica),
            graph.everywhere(Stage.PROPOSER),
            graph.everywhere(Stage.COMMITTER),
            graph.all(Stage.EXECUTOR),
            graph.everywhere(Stage.REQUEST_SOURCE),
        ]

    def _on_executor_status(self, status: t.ExecutorStatus) -> None:
        if not self._executors.update(status.executor, status):
            return
        self._news = True
        holders = Counter(
            (checkpoint.number, checkpoint.digest)
            for report in self._executors.values()
            for checkpoint in report.checkpoints
        )
        agreed = [key for key, count in holders.items() if count >= self.limits.quorum]
        number, digest = max(agreed, default=(0, b""))
        self._raise(t.CheckpointId(number, digest))
        self._raise(t.CheckpointId(status.stable, b""))

    def tick(self, now_ms: float) -> None:
        super().tick(now_ms)
        # Proposers of idle partitions skip when they hear of the others' positions, and everybody waits for that.
        if self._news and self.limits.partitions > 1:
            self.report()

    def _on_committer_status(self, status: t.CommitterStatus) -> None:
        self._committers[status.partition].update(status.committer, status)
        self._raise(t.CheckpointId(status.stable, b""))

    def _on_stable(self, stable: t.Stable) -> None:
        """What another source publishes: it may have heard what our sink missed while it was down."""
        for status in stable.committers:
            self._on_committer_status(status)
        for report in stable.executors:
            self._on_executor_status(report)
        self._raise(stable.checkpoint)

    def _raise(self, checkpoint: t.CheckpointId) -> None:
        if checkpoint.number > self.stable.number:
            self.stable = checkpoint
            self.report()
        elif checkpoint.number == self.stable.number and checkpoint.digest:
            self.stable = checkpoint

    def report(self) -> None:
        committers = [status for partition in self._committers for status in partition.values()]
        stable = t.Stable(self.index, self.stable, self._executors.values(), committers)
        for receivers in self._receivers:
            if receivers.numbers:
                self.emit(stable, receivers)
        self._news = False
