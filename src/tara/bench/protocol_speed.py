"""How fast is the pure code? The whole graph in one process, without sockets, files or clocks.

Closed-loop clients submit commands; every node of every site runs, with checkpoints and garbage collection. What is
measured is the protocol alone: it bounds every runtime that hosts it. One core does the work of all sites.
"""

import time
from collections.abc import Callable

import msgspec

from tara.application import KeyValueStore, Put
from tara.host.nodes import Nodes
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Receivers, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Outbox
from tara.protocol.nodes.factory import create
from tara.protocol.state_digest import digest_of


class SpeedReport(msgspec.Struct):
    requests_per_s: float
    requests: int
    seconds: float
    clients: int
    checkpoints: int
    microseconds_per_request: float


class InProcessCluster(Nodes):
    """All nodes of all sites beside each other, with what is around them: a store that keeps nothing, and clients at
    site 0."""

    def __init__(self, limits: Limits) -> None:
        self.graph = Graph(limits.f, limits.partitions)
        super().__init__(self.graph, range(len(self.graph.names)), holds=False, outside=self)
        self.results: list[t.Result] = []
        self.checkpoints = 0
        self._reply_sink = self.graph.number(Stage.REPLY_SINK, 0)
        boot = Boot(life=1, incarnation=1, genesis=True, now_ms=0.0)
        for number, name in enumerate(self.graph.names):
            self.add(number, create(name, self.graph, limits, boot, Outbox(), KeyValueStore))

    def tick(self, now_ms: float) -> None:
        super().tick(now_ms)
        self.work()

    def submit(self, commands: list[t.Command]) -> None:
        """All commands enter at site 0, those of one session in one partition."""
        partitions = self.graph.partitions
        for partition in range(partitions):
            share = commands if partitions == 1 else [c for c in commands if c.session % partitions == partition]
            if share:
                self.deliver(t.Submit(share), self.graph.number(Stage.REQUEST_SOURCE, 0, partition))
        self.work()

    def leave(self, sender: int, tuple_: t.Tuple, receivers: Receivers) -> None:
        if isinstance(tuple_, t.Results) and sender == self._reply_sink:
            self.results.extend(tuple_.results)
        elif isinstance(tuple_, t.Save):
            self.checkpoints += 1
            self.deliver(t.Saved(t.CheckpointId(tuple_.number, digest_of(tuple_.state, tuple_.chunks))), sender)

    def stop(self, number: int, reason: str) -> None:
        raise AssertionError(f"{self.graph.label(number)}: {reason}")

    def refuse(self, reason: str) -> None:
        raise AssertionError(reason)

    def take_results(self) -> list[t.Result]:
        results, self.results = self.results, []
        return results


def _advance(cluster: InProcessCluster, now_ms: float) -> float:
    cluster.tick(now_ms + 10.0)
    return now_ms + 10.0


def measure(
    requests: int,
    clients: int,
    payload_bytes: int,
    limits: Limits,
    make: Callable[[Limits], InProcessCluster] = InProcessCluster,
) -> SpeedReport:
    """Run `requests` writes of closed-loop clients through the graph."""
    cluster = make(limits)
    now_ms = 0.0
    while now_ms < 500:
        now_ms += limits.report_interval_ms
        cluster.tick(now_ms)
    timeout = msgspec.msgpack.encode(60_000)
    cluster.submit([t.Command(0, nonce, 0, timeout, t.OPEN) for nonce in range(clients)])
    sessions: list[int] = []
    while len(sessions) < clients:
        now_ms = _advance(cluster, now_ms)
        sessions += [msgspec.msgpack.decode(result.payload)[0] for result in cluster.take_results()]
    payloads = {session: msgspec.msgpack.encode(Put(f"key-{session}", bytes(payload_bytes))) for session in sessions}
    cluster.submit([t.Command(session, 0, 0, payloads[session]) for session in sessions])
    done, checkpoints_before = 0, cluster.checkpoints
    started = time.perf_counter()
    next_tick = started
    while done < requests:
        results = cluster.take_results()
        waited_ms = 0
        while not results:
            # Partitions wait for each other to skip; that takes time, which passes only here.
            waited_ms += 10
            if waited_ms > 5_000:
                raise RuntimeError(f"the graph stopped after {done} requests")
            now_ms = _advance(cluster, now_ms)
            results = cluster.take_results()
        done += len(results)
        cluster.submit(
            [
                t.Command(result.session, result.number + 1, result.number + 1, payloads[result.session])
                for result in results
            ]
        )
        if time.perf_counter() >= next_tick:
            next_tick += 0.01
            now_ms = _advance(cluster, now_ms)
    seconds = time.perf_counter() - started
    return SpeedReport(
        requests_per_s=round(done / seconds, 1),
        requests=done,
        seconds=round(seconds, 3),
        clients=clients,
        checkpoints=cluster.checkpoints - checkpoints_before,
        microseconds_per_request=round(seconds / done * 1e6, 2),
    )
