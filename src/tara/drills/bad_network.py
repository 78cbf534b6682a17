"""A bad network between the containers of a live cluster: a proxy on every directed link between peer ports.

Each link can be cut (connections end, none comes about), stalled (nothing arrives any more, but nobody is told), slow,
or lossy (connections break in the middle of a frame). One way or both, between all sites or some. The control plane and
the clients are not affected.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import NamedTuple

from tara.bench.load_process import LoadPlan, LoadProcess
from tara.configuration.settings import Settings
from tara.drills.process_cluster import ProcessCluster
from tara.drills.safety import Safety
from tara.live import control
from tara.live.registry import Registry
from tara.operations import health
from tara.operations.deployment import Say
from tara.simulator.checks.linearizability import KeyValueModel, check

CHUNK_BYTES = 1 << 16
SLOW_S = 0.03
#: Of a lossy link, how many chunks end their connection.
LOSSES = 0.02
CLIENTS = 16
FAULT_S = (2.5, 5.0)
FULL_STRENGTH_S = 30.0
#: Views that one fault may cost: one or two where the leader is lost, some more where the network flickers.
VIEWS_PER_FAULT_MAX = 10


class Weather(StrEnum):
    FINE = "fine"
    CUT = "cut"
    STALLED = "stalled"
    SLOW = "slow"
    LOSSY = "lossy"


class Link:
    """From one container to the peer port of another one. Everything but `weather` belongs to the network's thread."""

    def __init__(self, network: "Network", name: str) -> None:
        self._network = network
        self.name = name
        self.target: str | None = None
        self.address = ""
        self.weather = Weather.FINE
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"tcp://{host}:{port}"
        return server

    def turn(self, weather: Weather) -> None:
        """On the thread."""
        self.weather = weather
        if weather is Weather.CUT:
            for writer in self._open:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self.target is not None and self.weather is not Weather.CUT:
                host, _, port = self.target.removeprefix("tcp://").rpartition(":")
                beyond, onward = await asyncio.open_connection(host, int(port))
                self._open.add(onward)
                try:
                    await self._forward(reader, onward, beyond)
                finally:
                    self._open.discard(onward)
                    onward.transport.abort()
        except OSError:
            pass  # Either side is gone, which ends the other one.
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, onward: asyncio.StreamWriter, beyond: asyncio.StreamReader
    ) -> None:
        # Nobody answers on a link: what can be read beyond it is its end.
        end = asyncio.ensure_future(beyond.read(1))
        try:
            while True:
                chunk = asyncio.ensure_future(reader.read(CHUNK_BYTES))
                await asyncio.wait((chunk, end), return_when=asyncio.FIRST_COMPLETED)
                if end.done():
                    chunk.cancel()
                    return
                data = chunk.result()
                while self.weather is Weather.STALLED:
                    await asyncio.sleep(0.01)
                if not data:
                    return
                if self.weather is Weather.SLOW:
                    await asyncio.sleep(SLOW_S)
                if self.weather is Weather.LOSSY and self._network.random.random() < LOSSES:
                    onward.write(data[: len(data) // 2])
                    await onward.drain()
                    return
                onward.write(data)
                await onward.drain()
        finally:
            end.cancel()


class Network:
    """The links between so many containers, served by a thread."""

    def __init__(self, containers: int, seed: int = 1) -> None:
        self.random = Random(seed)
        self.containers = containers
        self.links = {
            (here, there): Link(self, f"{here}-{there}")
            for here in range(containers)
            for there in range(containers)
            if here != there
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)

    def __enter__(self) -> "Network":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()
        for link in self.links.values():
            asyncio.run_coroutine_threadsafe(link.listen(), self._loop).result()

    def stop(self) -> None:
        async def end() -> None:
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()

        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def address(self, here: int, there: int, target: str | None) -> str | None:
        """Where `here` finds `there`, which listens at `target`."""
        if here == there or target is None:
            return target
        link = self.links[here, there]
        link.target = target
        return link.address

    def turn(self, weather: Weather, links: Iterable[tuple[int, int]]) -> None:
        for pair in links:
            self._loop.call_soon_threadsafe(self.links[pair].turn, weather)

    def heal(self) -> None:
        self.turn(Weather.FINE, self.links)

    def isolated(self, container: int, inward: bool = True, outward: bool = True) -> list[tuple[int, int]]:
        """The links from and to a container."""
        return [
            (here, there)
            for here, there in self.links
            if (outward and here == container) or (inward and there == container)
        ]


class ProxiedRegistry(Registry):
    """Tells each container its own ways to the others."""

    def __init__(self, settings: Settings, network: Network) -> None:
        self._network = network
        super().__init__(settings)

    def _announce(self) -> None:
        peers, files = self._peers_and_files()
        for here, member in enumerate(self.members):
            ways = [self._network.address(here, there, address) for there, address in enumerate(peers)]
            self._send(member.identity, control.Addresses(ways, self.with_digests(), self.endpoints, files))


class Fault(NamedTuple):
    what: str
    weather: Weather
    links: list[tuple[int, int]]


def random_fault(network: Network, random: Random) -> Fault:
    """One that leaves a majority of sites that hear each other, be it slowly."""
    site = random.randrange(network.containers)
    other = (site + random.randrange(1, network.containers)) % network.containers
    broken = random.choice((Weather.CUT, Weather.STALLED))
    bad = random.choice((Weather.SLOW, Weather.LOSSY))
    return random.choice(
        [
            Fault(f"site {site} alone", broken, network.isolated(site)),
            Fault(f"site {site} is not heard", broken, network.isolated(site, inward=False)),
            Fault(f"site {site} hears nothing", broken, network.isolated(site, outward=False)),
            Fault(f"between sites {site} and {other}", broken, [(site, other), (other, site)]),
            Fault(f"from site {site} to {other}", broken, [(site, other)]),
            Fault(f"around site {site}", bad, network.isolated(site)),
            Fault("everywhere", bad, list(network.links)),
        ]
    )


class NetworkVerdict(Safety, kw_only=True):
    drill: str = "network"
    seed: int
    faults: int
    #: Faults during which no command was executed.
    standstills: list[str]
    #: Views that each fault cost, and seconds from its end to full strength.
    views: list[int]
    full_strength_s: list[float]
    died: list[str]
    throughput_per_s: float
    gap_ms_max: float

    @property
    def failures(self) -> list[str]:
        """What is not as promised, in words."""
        found = self.violations
        found += [f"{name} has ended" for name in self.died]
        found += [f"no progress during: {what}" for what in self.standstills]
        found += [f"a fault cost {views} views" for views in self.views if views > VIEWS_PER_FAULT_MAX]
        return found

    @property
    def summary(self) -> str:
        slowest = max(self.full_strength_s, default=0.0)
        return (
            f"{self.faults} faults, at most {max(self.views, default=0)} views for one, full strength within "
            f"{slowest:.1f} s, {self.throughput_per_s:.0f} commands/s, longest gap {self.gap_ms_max:.0f} ms, "
            f"{self.in_short}"
        )


def network(directory: Path, say: Say, seconds: float = 60.0, seed: int = 1) -> NetworkVerdict:
    """Links between sites that are cut, stalled, slow or lossy, one way or both, at random, under load."""
    random = Random(seed)
    sizes = {"checkpoint_interval": 2000, "window": 8000}
    with contextlib.ExitStack() as stack:
        links = stack.enter_context(Network(3, seed))
        cluster = stack.enter_context(
            ProcessCluster.whole(directory / "network", sizes, lambda settings: ProxiedRegistry(settings, links))
        )
        load = LoadProcess(
            LoadPlan(
                endpoints=cluster.endpoints, clients=CLIENTS, seconds=24 * 3600.0, reads=0.2, recorded_keys=CLIENTS // 2
            )
        )
        stack.callback(load.stop)
        standstills: list[str] = []
        views: list[int] = []
        full_strength_s: list[float] = []
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            fault = random_fault(links, random)
            say(f"network: {fault.weather} {fault.what}")
            before = cluster.status()
            links.turn(fault.weather, fault.links)
            time.sleep(random.uniform(*FAULT_S))
            if health.counter(cluster.status()) <= health.counter(before):
                standstills.append(f"{fault.weather} {fault.what}")
            links.heal()
            began_s = time.monotonic()
            status = cluster.await_status(health.full_strength, "full strength", FULL_STRENGTH_S)
            full_strength_s.append(round(time.monotonic() - began_s, 2))
            views.append(health.view(status) - health.view(before))
            say(f"network: full strength after {full_strength_s[-1]:.1f} s, {views[-1]} views")
            time.sleep(random.uniform(0.0, 1.0))
        load.stop()
        report = load.finish()
        cluster.want_digests()
        status = cluster.await_status(lambda found: health.replicas_equal(found) is not None, "equally far replicas")
        return NetworkVerdict(
            seed=seed,
            faults=len(views),
            standstills=standstills,
            views=views,
            full_strength_s=full_strength_s,
            died=cluster.died,
            halted=cluster.halted,
            throughput_per_s=report.throughput_per_s,
            gap_ms_max=report.gap_ms_max,
            lost=report.lost,
            duplicated=max(health.counter(status) - 2 * CLIENTS - report.ordered, 0),
            linearizable=check(load.history, KeyValueModel()).linearizable,
            recorded=len(load.history),
            replicas_equal=bool(health.replicas_equal(status)),
        )
