"""Makes the node for a name: the one place that knows which class plays which stage."""

from collections.abc import Callable, Iterable

from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import Controller
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.gc_source import GcSource
from tara.protocol.nodes.proposer import Proposer
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.nodes.sink import RecordSource, Sink
from tara.protocol.nodes.view_source import ViewSource
from tara.protocol.sessions import Application

NODE_TYPES: dict[Stage, type[Node]] = {
    Stage.REQUEST_SOURCE: RequestSource,
    Stage.PROPOSER: Proposer,
    Stage.COMMITTER: Committer,
    Stage.EXECUTOR: Executor,
    Stage.CONTROLLER: Controller,
    Stage.GC_SOURCE: GcSource,
    Stage.VIEW_SOURCE: ViewSource,
    Stage.RECORD_SOURCE: RecordSource,
    Stage.REPLY_SINK: Sink,
    Stage.GC_SINK: Sink,
    Stage.VIEW_SINK: Sink,
    Stage.RECORD_SINK: Sink,
}


def create(
    name: Name,
    graph: Graph,
    limits: Limits,
    boot: Boot,
    outbox: Outbox,
    application: Callable[[], Application],
    journal: Iterable[t.ReplayedEntry] = (),
    types: dict[Stage, type[Node]] = NODE_TYPES,
) -> Node:
    """A node as it is right after a start. `journal` is what a committer's former lives persisted."""
    kind = types[name.stage]
    if issubclass(kind, Committer):
        return kind(name, graph, limits, boot, outbox, journal)
    if issubclass(kind, Executor):
        return kind(name, graph, limits, boot, outbox, application)
    return kind(name, graph, limits, boot, outbox)
