"""Sinks end the graph; a feedback queue takes what they collect back to a source. All work alike.

The gc, view and record sinks feed the source of their site, the reply sink feeds the clients of its site. The
record source is the other end of such a queue and only passes on.
"""

from tara.protocol import tuples as t
from tara.protocol.graph import CLIENT, Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox

_FEEDS = {
    Stage.GC_SINK: Stage.GC_SOURCE,
    Stage.VIEW_SINK: Stage.VIEW_SOURCE,
    Stage.RECORD_SINK: Stage.RECORD_SOURCE,
}


class Sink(Node):
    """Hands over everything at once, so its queue holds nothing that could be lost or grow."""

    def __init__(self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        if name.stage is Stage.REPLY_SINK:
            self._receivers = CLIENT
        else:
            self._receivers = graph.one(_FEEDS[name.stage], name.replica, name.partition)

    def process(self, tuple_: t.Tuple) -> None:
        if self._receivers.stage in self._edges.get(type(tuple_), ()):
            self.emit(tuple_, self._receivers)


class RecordSource(Node):
    """Passes a committer's record to the proposer of the record's view, and to no other."""

    def __init__(self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {t.Record: self._on_record}

    def _on_record(self, record: t.Record) -> None:
        proposer = self.graph.proposer_of(record.view)
        if proposer is not None:
            self.emit(record, self.graph.one(Stage.PROPOSER, proposer, self.partition))
