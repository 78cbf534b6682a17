"""Turns what nodes do into events, by looking at them now and then: nodes do not know that they are watched.

A view that lasted for less than a look is not seen, but counted: `views_entered` is the node's own count.
"""

from collections.abc import Mapping

from tara.host.counters import Counters
from tara.live.observability.events import EventLog
from tara.protocol.graph import Graph
from tara.protocol.node import Node
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.proposer import Mode, Proposer

LOOK_S = 0.02
#: An overload is over when no command was refused for so long.
OVERLOAD_OVER_S = 3.0


class NodeEvents:
    def __init__(self, graph: Graph, nodes: Mapping[int, Node], counters: Counters, events: EventLog) -> None:
        self._graph = graph
        self._nodes = nodes
        self._counters = counters
        self._events = events
        #: What each committer and proposer was doing at the last look.
        self._views = {number: node.acceptor.view for number, node in nodes.items() if isinstance(node, Committer)}
        self._recovering: dict[int, bool] = {}
        self._active: dict[int, bool] = {}
        self._overloaded = 0
        self._overloaded_at_begin = 0
        self._overload_s: float | None = None
        self._due_s = 0.0

    def look(self, now_s: float) -> None:
        if now_s < self._due_s:
            return
        self._due_s = now_s + LOOK_S
        for number, node in self._nodes.items():
            if isinstance(node, Committer):
                self._look_at_committer(number, node)
            elif isinstance(node, Proposer):
                self._look_at_proposer(number, node)
        self._look_at_load(now_s)

    def _look_at_committer(self, number: int, node: Committer) -> None:
        if node.acceptor.view != self._views[number]:
            self._views[number] = node.acceptor.view
            self._events.info("view_entered", self._graph.label(number), node.acceptor.view)
        if node.acceptor.recovering != self._recovering.get(number, False):
            self._recovering[number] = node.acceptor.recovering
            event = "rejoining" if node.acceptor.recovering else "rejoined"
            self._events.info(
                event, self._graph.label(number), node.acceptor.view, incarnation=node.acceptor.incarnation
            )

    def _look_at_proposer(self, number: int, node: Proposer) -> None:
        active = node.mode is Mode.ACTIVE
        if active != self._active.get(number, False):
            self._active[number] = active
            self._events.info("became_active" if active else "became_idle", self._graph.label(number), node.view)

    def _look_at_load(self, now_s: float) -> None:
        refused = self._counters.overloaded
        if refused != self._overloaded:
            if self._overload_s is None:
                self._overloaded_at_begin = self._overloaded
                self._events.warning("overload_begin")
            self._overloaded, self._overload_s = refused, now_s
        elif self._overload_s is not None and now_s - self._overload_s > OVERLOAD_OVER_S:
            self._overload_s = None
            self._events.info("overload_end", refused=refused - self._overloaded_at_begin)
