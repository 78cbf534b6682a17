"""What one request costs, step by step: the real code of every site in one process, with a clock around each step.

The nodes, the frames between sites, the frames of the clients and the journal are timed; what a live cluster uses
beyond their sum is its loop, its sockets and the kernel. Sites share frames as under load: all clients send at once.
"""

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from msgspec import Raw

from tara.bench.protocol_speed import InProcessCluster, measure
from tara.host import client_wire, peer_wire
from tara.host.effects import Emit
from tara.host.placement import placement_of
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.journal import Written
from tara.protocol.limits import Limits
from tara.protocol.node import Node
from tara.protocol.nodes.factory import create
from tara.storage.journal import FileJournal, Identity

_HEADER = peer_wire.Header(t.FORMAT_VERSION, 1, 1, 0, 1, 0)

CLIENT_FRAMES = "frames of the clients"
PEER_FRAMES = "frames between sites"
JOURNAL = "journal: write and sync"
REPORTS = "reports, garbage collection, view change"
#: The stages that each request passes; all others only report now and then.
_STEPS = {
    Stage.REQUEST_SOURCE: "request source",
    Stage.PROPOSER: "proposers",
    Stage.COMMITTER: "committers",
    Stage.EXECUTOR: "executors",
    Stage.REPLY_SINK: "reply sinks",
}


class TimedCluster(InProcessCluster):
    def __init__(self, limits: Limits, journals: Path) -> None:
        self.nanoseconds: defaultdict[str, int] = defaultdict(int)
        self._journals = [
            FileJournal(journals / f"journal-{site}", Identity(1, 1, site)) for site in range(limits.replicas)
        ]
        for journal in self._journals:
            journal.replay()
        graph = Graph(limits.f, limits.partitions)
        self._sites = [graph.site(name) for name in graph.names]
        super().__init__(limits, placement_of(graph, "site"), self._make)

    def _make(self, name: Name, *arguments: Any) -> Node:
        """A node, with a clock around what it does."""
        node = create(name, *arguments)
        process, tick, step = node.process, node.tick, _STEPS.get(name.stage, REPORTS)

        def timed_process(tuple_: t.Tuple) -> None:
            began = time.perf_counter_ns()
            process(tuple_)
            self.nanoseconds[step] += time.perf_counter_ns() - began

        def timed_tick(now_ms: float) -> None:
            began = time.perf_counter_ns()
            tick(now_ms)
            self.nanoseconds[REPORTS] += time.perf_counter_ns() - began

        node.process, node.tick = timed_process, timed_tick  # type: ignore[method-assign]
        return node

    def submit(self, commands: list[t.Command]) -> None:
        """As a front end gets them: in one frame."""
        data = peer_wire.encode(client_wire.ClientRequest(t.FORMAT_VERSION, commands))
        began = time.perf_counter_ns()
        taken = client_wire.decode_request(data).commands
        self.nanoseconds[CLIENT_FRAMES] += time.perf_counter_ns() - began
        super().submit(taken)

    def take_results(self) -> list[t.Result]:
        results = super().take_results()
        if results:
            began = time.perf_counter_ns()
            peer_wire.encode(client_wire.ClientReply(t.FORMAT_VERSION, results))
            self.nanoseconds[CLIENT_FRAMES] += time.perf_counter_ns() - began
        return results

    def sync(self, entries: list[Written]) -> None:
        began = time.perf_counter_ns()
        self._journals[self._sites[entries[0][0]]].append(entries)
        self.nanoseconds[JOURNAL] += time.perf_counter_ns() - began

    def carry(self, emit: Emit) -> None:
        """Encode it once, and frame and decode it for each other site."""
        others: dict[int, tuple[int, ...]] = {}
        for receiver in emit.receivers.numbers:
            site = self._sites[receiver]
            if site != self._sites[emit.sender]:
                others[site] = (*others.get(site, ()), receiver)
        began = time.perf_counter_ns()
        raw = Raw(peer_wire.encode(emit.tuple))
        for numbers in others.values():
            peer_wire.decode_frame(peer_wire.encode(peer_wire.OutgoingFrame(_HEADER, [(numbers, raw)], [], [])))
        self.nanoseconds[PEER_FRAMES] += time.perf_counter_ns() - began
        super().carry(emit)

    def close(self) -> None:
        for journal in self._journals:
            journal.close()


def step_costs(requests: int, clients: int, payload_bytes: int, journals: Path) -> dict[str, float]:
    """Microseconds per request by step, all sites together."""
    made: list[TimedCluster] = []

    def make(limits: Limits) -> InProcessCluster:
        made.append(TimedCluster(limits, journals))
        return made[0]

    try:
        report = measure(requests, clients, payload_bytes, Limits(), make)
    finally:
        for cluster in made:
            cluster.close()
    spent = made[0].nanoseconds
    order = [CLIENT_FRAMES, *_STEPS.values(), PEER_FRAMES, REPORTS, JOURNAL]
    return {step: round(spent[step] / report.requests / 1e3, 2) for step in order}
