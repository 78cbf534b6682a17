"""The gc source: raises the stability threshold, and spreads everybody's positions.

Status reports come through the queue of its gc sink. A checkpoint is stable when f+1 executors hold it with the
same digest: then one of them survives, and a replica that diverged finds itself alone. The source republishes the
newest report of each node with the threshold, again and again: this is what all re-sending is driven by.
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
        }
        #: The newest stable checkpoint. Its number never falls.
        self.stable = t.CheckpointId(0, b"")
        self._executors: Newest[t.ExecutorStatus] = Newest(limits.replicas)
        self._committers: list[Newest[t.CommitterStatus]] = [Newest(limits.replicas) for _ in range(limits.partitions)]
        self._receivers = [
            graph.everywhere(Stage.PROPOSER),
            graph.everywhere(Stage.COMMITTER),
            graph.all(Stage.EXECUTOR),
            graph.everywhere(Stage.REQUEST_SOURCE),
        ]

    def _on_executor_status(self, status: t.ExecutorStatus) -> None:
        if not self._executors.update(status.executor, status):
            return
        holders = Counter(
            (checkpoint.number, checkpoint.digest)
            for report in self._executors.values()
            for checkpoint in report.checkpoints
        )
        agreed = [key for key, count in holders.items() if count >= self.limits.quorum]
        number, digest = max(agreed, default=(0, b""))
        if number > self.stable.number:
            self.stable = t.CheckpointId(number, digest)
            self.report()

    def _on_committer_status(self, status: t.CommitterStatus) -> None:
        self._committers[status.partition].update(status.committer, status)

    def report(self) -> None:
        committers = [status for partition in self._committers for status in partition.values()]
        stable = t.Stable(self.index, self.stable, self._executors.values(), committers)
        for receivers in self._receivers:
            self.emit(stable, receivers)
