"""The fuzzer: hostile frames and connections at every port of real clusters that serve a load meanwhile.

First without keys, then with: each time two clusters, the key-value store with one driver for all sites, and the
coordination service with a driver per site. At the end: no process has ended, no node has halted, every frame that had
to be refused was counted, no process has grown much, those who were served kept at least half of their throughput,
nothing of the load was lost or executed twice, what it saw is linearizable, and the replicas are equal.
"""

import contextlib
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tara.bench.load_process import LoadPlan, LoadProcess
from tara.client import KeyValueClient
from tara.client.remote_log import RemoteLogReader
from tara.drills.attacks import Attackers, Sent
from tara.drills.increments import Increments
from tara.drills.nuisances import LARGE_BYTES, LARGE_KEY
from tara.drills.process_cluster import ProcessCluster
from tara.drills.safety import Safety
from tara.drills.targets import TIMEOUT_S, AttackTarget
from tara.live.registry import Registry
from tara.net.allocator import give_memory_back
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.operations import health
from tara.operations.deployment import Say
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.protocol.graph import Stage
from tara.simulator.checks.linearizability import KeyValueModel, check

#: Of so many frames, how many go to each kind of port. What needs a connection per frame, or an order, gets few.
SHARES = {
    "peers": 0.46,
    "clients": 0.36,
    "log": 0.03,
    "files": 0.06,
    "registry": 0.06,
    "zookeeper": 0.028,
    "metrics": 0.002,
}
PLAIN, KEYED = "plain", "keyed"
#: Frames per second, over all ports of a mode.
RATE_PER_S = 20_000.0
#: Clients of the key-value store: not so many that they alone keep this machine busy, where everybody is.
CLIENTS = 8
#: How long the throughput is measured before the attack; and how long the processes take to have their size.
BEFORE_S = 10.0
WARM_UP_S = 5.0
GROWTH_MB_MAX = 64.0
#: A port may close a connection that is in the way of others; of some hundreds that send frames, few are.
HUNG_UP_MAX = 20
THROUGHPUT_KEPT_MIN = 0.5
_SIZES = {"checkpoint_interval": 1024, "window": 4096}


class Served(Struct):
    """What the clients of a mode got."""

    #: Answers per second of the key-value store before and during the attack; and increments of the other service.
    answers_before: float
    answers_during: float
    increments_before: float
    increments_during: float

    @property
    def kept(self) -> float:
        """The smaller share of what they had before."""
        return min(
            self.answers_during / max(self.answers_before, 0.1),
            self.increments_during / max(self.increments_before, 0.1),
        )


class FuzzVerdict(Safety, kw_only=True):
    drill: str = "fuzz"
    seed: int
    seconds: float
    #: Frames sent, by mode and kind of port.
    frames: dict[str, int]
    #: Connections that misbehave, by kind.
    nuisances: dict[str, int]
    #: Frames that had to be refused, and those that the clusters counted as refused.
    refusable: int
    refused: int
    #: Those of which nobody knows, because the port hung up; and how often one did, while frames were sent.
    unsure: int
    hung_up: int
    died: list[str]
    restarts: int
    #: Increments of nodes of the coordination service that were acknowledged, and the sum of their values.
    increments: int
    value: int
    #: The most that a process grew, and which one.
    growth_mb: float
    grown: str
    served: dict[str, Served]
    #: The smallest share of its throughput that a mode's clients kept.
    throughput_kept: float
    metrics_served: bool
    #: Every front end tells a reader where its log ends.
    log_served: bool

    @property
    def summary(self) -> str:
        return (
            f"{sum(self.frames.values())} frames and {sum(self.nuisances.values())} bad connections in "
            f"{self.seconds:.0f} s, {self.refused} of {self.refusable} refused and counted, "
            f"{self.increments} increments, {self.in_short}, growth {self.growth_mb:.0f} MB, "
            f"{self.throughput_kept:.0%} of the throughput kept"
        )

    @property
    def failures(self) -> list[str]:
        """What is not as promised, in words."""
        found = self.violations
        found += [f"{name} has ended" for name in self.died]
        total = sum(self.frames.values())
        few = [port for port, sent in self.frames.items() if _few(port, sent, total)]
        found += [f"{port} got less than 1 % of the frames" for port in few]
        # A bad connection may count as a bad frame, too.
        if not self.refusable <= self.refused <= self.refusable + self.unsure + sum(self.nuisances.values()):
            found.append(f"{self.refused} of {self.refusable} hostile frames were counted as refused")
        if self.hung_up > HUNG_UP_MAX:
            found.append(f"{self.hung_up} connections were closed while frames were sent")
        if self.restarts:
            found.append(f"{self.restarts} restarts")
        if self.value != self.increments:
            found.append(f"{self.increments} increments were acknowledged, but the value is {self.value}")
        if self.growth_mb > GROWTH_MB_MAX:
            found.append(f"{self.grown} grew by {self.growth_mb:.0f} MB")
        if self.throughput_kept < THROUGHPUT_KEPT_MIN:
            found.append(f"clients kept {self.throughput_kept:.0%} of their throughput")
        if not self.metrics_served:
            found.append("the metrics are not served")
        if not self.log_served:
            found.append("the decided log is not served")
        return found


def _few(port: str, sent: int, total: int) -> bool:
    return not port.endswith("/metrics") and sent < total / 100


class Keyring:
    """Keys of a cluster, of a client, of an observer, and of somebody who has nothing to do with it."""

    def __init__(self, directory: Path) -> None:
        make_cluster_keys(directory / "keys")
        make_cluster_keys(directory / "foreign")
        self.member = str(directory / "keys")
        self.client = str(make_client_keys(directory / "keys", "client"))
        self.observer = str(make_client_keys(directory / "keys", "observer", observer=True))
        self.foreign = str(make_client_keys(directory / "foreign", "stranger"))

    @property
    def gateway(self) -> dict[str, str]:
        """Options of a ZooKeeper port that wants certificates."""
        return {
            "tls_certificate": f"{self.member}/member.pem",
            "tls_key": f"{self.member}/member.key",
            "tls_authorities": f"{self.member}/authority.pem",
        }


class Mode:
    """Two clusters with or without keys, their clients, and what is attacked."""

    def __init__(self, name: str, directory: Path, say: Say) -> None:
        self.name = name
        self._say = say
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._keys = Keyring(directory) if name == KEYED else None

    def run(self, frames: int, seed: int) -> FuzzVerdict:
        began_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            clusters = store, service = list(self._start(stack))
            prepared = self._prepare(store)
            load = LoadProcess(self._plan(store))
            stack.callback(load.stop)
            answers = AnswerCount(load)
            hosts = ",".join(gateway for registry in service.registries for gateway in registry.gateways)
            client = None if self._keys is None else self._keys.client
            increments = stack.enter_context(Increments(hosts, client))
            targets = list(self._targets(clusters, frames, seed))
            attackers = Attackers(targets)
            stack.callback(attackers.stop)
            time.sleep(WARM_UP_S)
            growth = Growth(clusters)
            counted = Counted(clusters)
            before = AttackProgress(answers, increments)
            time.sleep(BEFORE_S)
            during = AttackProgress(answers, increments)
            growth.begin()
            self._say(f"fuzz, {self.name}: {sum(target.count for target in targets)} frames at {len(targets)} ports")
            attackers.attack()
            sent, nuisances = attackers.finish()
            after = AttackProgress(answers, increments)
            refusable = sum(attack.refusable for attack in sent)
            refused = counted.await_total(refusable)
            self._say(f"fuzz, {self.name}: all sent, {refused} of {refusable} refused and counted")
            # Before the load hands its history over to this process.
            grown, growth_mb = growth.end()
            load.stop()
            answers.join()
            report = load.finish()
            value = increments.finish()
            statuses = [_settled(cluster) for cluster in clusters]
            served = during.since(before), after.since(during)
            mode = Served(served[0][0], served[1][0], served[0][1], served[1][1])
            return FuzzVerdict(
                seed=seed,
                seconds=round(time.monotonic() - began_s, 1),
                frames=_by_port(sent),
                nuisances=nuisances,
                refusable=refusable,
                refused=refused,
                unsure=sum(attack.unsure for attack in sent),
                hung_up=sum(attack.hung_up for attack in sent),
                died=[name for cluster in clusters for name in cluster.died],
                halted=store.halted | service.halted,
                restarts=sum(container["restarts"] for status in statuses for container in status["containers"]),
                lost=report.lost,
                duplicated=max(health.counter(statuses[0]) - prepared - 2 * CLIENTS - report.ordered, 0),
                linearizable=check(load.history, KeyValueModel()).linearizable,
                recorded=len(load.history),
                increments=increments.done,
                value=value,
                replicas_equal=all(health.replicas_equal(status) for status in statuses),
                growth_mb=round(growth_mb, 1),
                grown=f"{self.name}: {grown}",
                served={self.name: mode},
                throughput_kept=round(mode.kept, 3),
                metrics_served=all(
                    _metrics_served(registry) for cluster in clusters for registry in cluster.registries
                ),
                log_served=all(self._log_served(cluster) for cluster in clusters),
            )

    def _log_served(self, cluster: ProcessCluster) -> bool:
        keys = None if self._keys is None else self._keys.observer
        for endpoint in [endpoint for registry in cluster.registries for endpoint in registry.endpoints]:
            with RemoteLogReader(endpoint, keys, timeout_s=TIMEOUT_S) as reader:
                try:
                    reader.bounds()
                except TaraError as error:
                    self._say(f"fuzz, {self.name}: {error}")
                    return False
        return True

    def _start(self, stack: contextlib.ExitStack) -> Iterator[ProcessCluster]:
        flags: dict[str, Any] = dict(_SIZES)
        gateway: dict[str, Any] = {"port": 0, "tick_time_ms": 1_000, "max_client_connections": 0}
        if self._keys is not None:
            flags["keys"] = self._keys.member
            gateway |= self._keys.gateway
        yield stack.enter_context(ProcessCluster.whole(self._directory / "store", flags))
        service = ProcessCluster.sites(
            self._directory / "service", {**flags, "app": "coordination", "gateway": gateway}
        )
        stack.enter_context(service)
        service.await_status(lambda _: all(site.gateways_serve() for site in service.registries), "gateways")
        yield service

    def _prepare(self, store: ProcessCluster) -> int:
        """Put something long there; how many commands that took."""
        keys = None if self._keys is None else self._keys.client
        with KeyValueClient(store.endpoints, timeout_s=TIMEOUT_S, keys=keys) as client:
            client.put(LARGE_KEY, bytes(LARGE_BYTES))
            # A session that is left would end by itself in the middle of everything, and count.
            client.client._submit(b"", t.CLOSE, TIMEOUT_S).result()
        counts = [0, -1]
        while counts[-1] != counts[-2] or not counts[-1]:
            # Heartbeats come a little later than what they tell of.
            time.sleep(1.5)
            counts.append(health.counter(store.status()))
        return counts[-1]

    def _plan(self, store: ProcessCluster) -> LoadPlan:
        return LoadPlan(
            endpoints=store.endpoints,
            clients=CLIENTS,
            seconds=24 * 3600.0,
            reads=0.2,
            recorded_keys=CLIENTS // 2,
            keys=None if self._keys is None else self._keys.client,
        )

    def _targets(self, clusters: list[ProcessCluster], frames: int, seed: int) -> Iterator[AttackTarget]:
        """Of each kind, the ports share the frames; each has its own sequence."""
        ports: dict[str, list[AttackTarget]] = {kind: [] for kind in SHARES}
        for cluster in clusters:
            for registry in cluster.registries:
                for target in self._ports_of(cluster, registry):
                    ports[target.kind].append(target)
        for kind, targets in ports.items():
            for index, target in enumerate(targets):
                share = SHARES[kind] / len(targets)
                yield msgspec.structs.replace(
                    target,
                    count=max(int(frames * share), 5),
                    rate_per_s=RATE_PER_S * share,
                    seed=f"{seed}/{self.name}/{kind}/{index}",
                )

    def _ports_of(self, cluster: ProcessCluster, registry: Registry) -> Iterator[AttackTarget]:
        def target(kind: str, address: str, **changes: Any) -> AttackTarget:
            keys = self._keys
            if keys is not None and kind != "metrics":
                own = {"clients": keys.client, "zookeeper": keys.client, "log": keys.observer}
                changes = {"keys": own.get(kind, keys.member), "foreign_keys": keys.foreign, **changes}
            return AttackTarget(kind=kind, mode=self.name, address=address, count=0, rate_per_s=1.0, seed="", **changes)

        state = registry.state
        identity = {"cluster": state.cluster, "era": state.era, "shape": registry.shape}
        for container in registry.hosted:
            member = registry.members[container]
            assert member.peer_address and member.client_address and member.files_address
            sender = (container + 1) % len(registry.placement)
            yield target(
                "peers",
                member.peer_address,
                **identity,
                sender=sender,
                life=_life(cluster, sender),
                here=registry.placement[container],
                containers=len(registry.placement),
                limits=registry.settings.limits,
            )
            yield target("clients", member.client_address)
            yield target("log", member.client_address)
            if self._keys is not None:
                yield target("log", member.client_address, keys=self._keys.client, forbidden=True)
            replicas = [
                registry.graph.names[number].replica
                for number in registry.placement[container]
                if registry.graph.names[number].stage is Stage.EXECUTOR
            ]
            yield target("files", member.files_address, **identity, replica=replicas[0])
        lives = {container: state.lives[container] for container in registry.hosted}
        yield target("registry", registry.address, lives=lives)
        yield target("metrics", registry.metrics_address)
        for address in registry.gateways:
            yield target("zookeeper", address)


def _life(cluster: ProcessCluster, container: int) -> int:
    for registry in cluster.registries:
        if container in registry.hosted:
            return registry.state.lives[container]
    raise AssertionError(f"nobody hosts container {container}")


def _by_port(sent: list[Sent]) -> dict[str, int]:
    found: dict[str, int] = {}
    for attack in sent:
        found[attack.port] = found.get(attack.port, 0) + attack.frames
    return found


class AnswerCount:
    """How many answers the load has got, second by second."""

    def __init__(self, load: LoadProcess) -> None:
        self.count = 0
        self._load = load
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for _, count in self._load.seconds():
            self.count += count

    def join(self) -> None:
        self._thread.join()


class AttackProgress:
    """How far the clients are at one moment."""

    def __init__(self, answers: AnswerCount, increments: Increments) -> None:
        self._at_s = time.monotonic()
        self._answers = answers.count
        self._increments = increments.done

    def since(self, before: "AttackProgress") -> tuple[float, float]:
        """Answers and increments per second."""
        seconds = max(self._at_s - before._at_s, 0.001)
        return (
            round((self._answers - before._answers) / seconds, 1),
            round((self._increments - before._increments) / seconds, 1),
        )


class Growth:
    """How much the processes of the clusters take, and at most took since the beginning."""

    def __init__(self, clusters: list[ProcessCluster]) -> None:
        self._clusters = clusters
        self._before: dict[str, float] = {}
        self._most: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="growth", daemon=True)

    def begin(self) -> None:
        self._before = self._look()
        self._most = dict(self._before)
        self._thread.start()

    def end(self) -> tuple[str, float]:
        """The process that grew most, and by how many megabytes."""
        self._stopping.set()
        self._thread.join()
        grown = {name: most - self._before[name] for name, most in self._most.items()}
        return max(grown.items(), key=lambda each: each[1])

    def _run(self) -> None:
        while not self._stopping.wait(0.5):
            for name, size_mb in self._look().items():
                self._most[name] = max(self._most[name], size_mb)

    def _look(self) -> dict[str, float]:
        found = {"the registries": _resident_mb(os.getpid())}
        for number, cluster in enumerate(self._clusters):
            for name, process in cluster.processes.items():
                with contextlib.suppress(OSError, IndexError):
                    found[f"container {name} of cluster {number}"] = _resident_mb(process.pid or 0)
        return found


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Counted:
    """What the clusters say they have refused since this was made."""

    def __init__(self, clusters: list[ProcessCluster]) -> None:
        self._clusters = clusters
        self._before = self._total()

    def _total(self) -> int:
        total = 0
        for cluster in self._clusters:
            for registry in cluster.registries:
                total += registry.messages_bad
                for container in registry.hosted:
                    counters: dict[str, Any] = registry.members[container].status["counters"]
                    total += sum(counters[name] for name in ("frames_bad", "frames_foreign", "asks_bad"))
        return total

    def await_total(self, expected: int) -> int:
        """Heartbeats come a little later than what they tell of."""
        end_s = time.monotonic() + TIMEOUT_S
        while self._total() - self._before < expected and time.monotonic() < end_s:
            time.sleep(0.05)
        time.sleep(1.0)
        return self._total() - self._before


def fuzz(directory: Path, say: Say, frames: int = 30_000, seed: int = 1) -> FuzzVerdict:
    """Random and mutated frames, and connections that misbehave, at every port: without keys, and with."""
    # As a driver does; here are four of them.
    give_memory_back()
    return _together([Mode(name, directory / name, say).run(frames // 2, seed) for name in (PLAIN, KEYED)])


def _together(modes: list[FuzzVerdict]) -> FuzzVerdict:
    plain, keyed = modes
    worst = max(modes, key=lambda mode: mode.growth_mb)

    def total(value: Callable[[FuzzVerdict], int]) -> int:
        return sum(map(value, modes))

    return FuzzVerdict(
        seed=plain.seed,
        seconds=round(plain.seconds + keyed.seconds, 1),
        frames=plain.frames | keyed.frames,
        nuisances={kind: plain.nuisances.get(kind, 0) + count for kind, count in keyed.nuisances.items()},
        refusable=total(lambda mode: mode.refusable),
        refused=total(lambda mode: mode.refused),
        unsure=total(lambda mode: mode.unsure),
        hung_up=total(lambda mode: mode.hung_up),
        died=plain.died + keyed.died,
        halted=plain.halted | keyed.halted,
        restarts=total(lambda mode: mode.restarts),
        lost=total(lambda mode: mode.lost),
        duplicated=total(lambda mode: mode.duplicated),
        linearizable=plain.linearizable and keyed.linearizable,
        recorded=total(lambda mode: mode.recorded),
        increments=total(lambda mode: mode.increments),
        value=total(lambda mode: mode.value),
        replicas_equal=plain.replicas_equal and keyed.replicas_equal,
        growth_mb=worst.growth_mb,
        grown=worst.grown,
        served=plain.served | keyed.served,
        throughput_kept=min(mode.throughput_kept for mode in modes),
        metrics_served=plain.metrics_served and keyed.metrics_served,
        log_served=plain.log_served and keyed.log_served,
    )


def _settled(cluster: ProcessCluster) -> dict[str, Any]:
    cluster.want_digests()
    return cluster.await_status(lambda found: health.replicas_equal(found) is not None, "replicas that are equally far")


def _metrics_served(registry: Registry) -> bool:
    end_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(registry.metrics_address, timeout=5) as answer:
                return b"tara_frames_bad_total" in answer.read()
        except OSError:
            time.sleep(0.2)
    return False
