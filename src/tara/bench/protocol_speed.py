"""How fast is the pure code? The whole graph in one process, without sockets, files or clocks.

Closed-loop clients submit commands; every node of every site runs, with checkpoints and garbage collection. What is
measured is the protocol alone: it bounds every runtime that hosts it. One core does the work of all sites.
"""

import time
from collections.abc import Callable, Iterable

import msgspec

from tara.application import KeyValueStore, Put
from tara.host.bare_site import BareSite
from tara.host.effects import Effect, Emit, Halt, Inputs, Store, Sync, Trouble
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.incarnations import FIRST_INCARNATION
from tara.protocol.journal import Written
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node
from tara.protocol.nodes.factory import create


class SpeedReport(msgspec.Struct):
    requests_per_s: float
    requests: int
    seconds: float
    clients: int
    checkpoints: int
    microseconds_per_request: float


class InProcessCluster:
    """All sites beside each other, with what is around them: stores that keep nothing, and clients at site 0."""

    def __init__(
        self, limits: Limits, placement: list[list[int]] | None = None, make: Callable[..., Node] = create
    ) -> None:
        """`placement` has the numbers of the nodes that share a site; without it, all nodes share one. Nobody hears
        what is said to nodes that are in none."""
        self.graph = Graph(limits.f, limits.partitions)
        self.results: list[t.Result] = []
        self.checkpoints = 0
        self.now_ms = 0.0
        self._reply_sink = self.graph.number(Stage.REPLY_SINK, 0)
        self._site_of: dict[int, BareSite] = {}
        #: What has come for nodes and was not given to them yet.
        self._waiting: dict[BareSite, list[tuple[t.Tuple, int]]] = {}
        boot = Boot(life=1, incarnation=FIRST_INCARNATION, genesis=True, now_ms=0.0, keeps_bases=False)
        for here in placement or [list(range(len(self.graph.names)))]:
            site = BareSite(self.graph, limits, here, make=make)
            for number in here:
                site.create(number, boot, KeyValueStore)
                self._site_of[number] = site
            self._do_all(site.begin())

    def tick(self, now_ms: float) -> None:
        self.now_ms = now_ms
        for site in dict.fromkeys(self._site_of.values()):
            self._do_all(site.step(Inputs(tick=True), now_ms))
        self._settle()

    def submit(self, commands: list[t.Command]) -> None:
        """All commands enter at site 0, those of one session in one partition."""
        partitions = self.graph.partitions
        for partition in range(partitions):
            share = commands if partitions == 1 else [c for c in commands if c.session % partitions == partition]
            if share:
                self._send(t.Submit(share), self.graph.number(Stage.REQUEST_SOURCE, 0, partition))
        self._settle()

    def give(self, tuple_: t.Tuple, number: int) -> None:
        """Have a node process a tuple, and the others what comes of it."""
        self._send(tuple_, number)
        self._settle()

    def take_results(self) -> list[t.Result]:
        results, self.results = self.results, []
        return results

    def _send(self, tuple_: t.Tuple, number: int) -> None:
        if number in self._site_of:
            self._waiting.setdefault(self._site_of[number], []).append((tuple_, number))

    def _settle(self) -> None:
        while self._waiting:
            site = next(iter(self._waiting))
            self._do_all(site.step(Inputs(tuples=self._waiting.pop(site)), self.now_ms))

    def _do_all(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Emit(_, _, receivers) if receivers.stage is Stage.CLIENT:
                    self.reply(effect.sender, effect.tuple)
                case Emit():
                    self.carry(effect)
                case Sync(entries):
                    self.sync(entries)
                case Store(number, t.Mark(checkpoint)):
                    self.checkpoints += 1
                    self._send(t.Saved(checkpoint), number)
                case Halt(number, reason):
                    raise AssertionError(f"{self.graph.label(number)}: {reason}")
                case Trouble(_, _, reason):
                    raise AssertionError(reason)

    def reply(self, sender: int, tuple_: t.Tuple) -> None:
        """What a site has for its clients."""
        if isinstance(tuple_, t.Results) and sender == self._reply_sink:
            self.results.extend(tuple_.results)

    def carry(self, emit: Emit) -> None:
        """From one site to others."""
        here = self._site_of[emit.sender]
        for number in emit.receivers.numbers:
            if self._site_of.get(number) is not here:
                self._send(emit.tuple, number)

    def sync(self, entries: list[Written]) -> None:
        """What the nodes of a site have persisted."""


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
