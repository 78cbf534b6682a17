"""The fuzzer: hostile frames at every port of real clusters that serve a load meanwhile.

Two clusters: the key-value store with one driver for all sites, and the coordination service with a driver per site.
At the end: no process has ended, no node has halted, every frame that had to be refused was counted, nothing of the
load was lost or executed twice, what it saw is linearizable, and the replicas are equal.
"""

import abc
import contextlib
import os
import select
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tara.coordination import jute
from tara.coordination.client import CoordinationClient
from tara.coordination.codes import Op
from tara.experiments.contained import ClusterTrouble, Contained
from tara.experiments.deployment import Say
from tara.experiments.hostile import ClientFrames, ControlMessages, FileQuestions, Identity, PeerFrames
from tara.experiments.load_process import LoadPlan, LoadProcess
from tara.experiments.safety import Safety
from tara.net.file_exchange import Ask
from tara.net.framing import framed
from tara.operations import health
from tara.runtime import control
from tara.runtime.registry import Registry
from tara.simulator.linearizability import KeyValueModel, check

#: Of so many frames, how many go to each kind of port. What needs a connection per frame, or an order, gets few.
SHARES = {"peers": 0.64, "clients": 0.29, "files": 0.03, "registry": 0.03, "zookeeper": 0.009, "metrics": 0.001}
#: Frames that are made, and how often they are sent before others are made.
MADE = 400
REPEATED = 5
#: Of a client's messages, how many are well-formed: they are ordered, or asked, like any other.
ODD = 0.02
CLIENTS = 16
#: In the last message of an attack, and in no other.
_MARK = 0x1234_5678_9ABC_DEF0
TIMEOUT_S = 60.0
GROWTH_MB_MAX = 200.0


class FuzzVerdict(Safety, kw_only=True):
    drill: str = "fuzz"
    seed: int
    seconds: float
    #: Frames sent, by kind of port.
    frames: dict[str, int]
    #: Frames that had to be refused, and those that the cluster counted as refused.
    refusable: int
    refused: int
    died: list[str]
    restarts: int
    #: Increments of a node of the coordination service that were acknowledged, and its value.
    increments: int
    value: int
    growth_mb: float
    metrics_served: bool

    @property
    def summary(self) -> str:
        return (
            f"{sum(self.frames.values())} frames in {self.seconds:.0f} s, {self.refused} of {self.refusable} refused "
            f"and counted, {self.increments} increments, {self.in_short}, growth {self.growth_mb:.0f} MB"
        )

    @property
    def failures(self) -> list[str]:
        """What is not as promised, in words."""
        found = self.violations
        found += [f"{name} has ended" for name in self.died]
        if self.refused != self.refusable:
            found.append(f"{self.refused} of {self.refusable} hostile frames were counted as refused")
        if self.restarts:
            found.append(f"{self.restarts} restarts")
        if self.value != self.increments:
            found.append(f"{self.increments} increments were acknowledged, but the value is {self.value}")
        if self.growth_mb > GROWTH_MB_MAX:
            found.append(f"a process grew by {self.growth_mb:.0f} MB")
        if not self.metrics_served:
            found.append("the metrics are not served")
        return found


class Attack(abc.ABC):
    """Frames for one port, on a thread of its own."""

    def __init__(self, kind: str, address: str, count: int) -> None:
        self.kind = kind
        host, _, port = address.removeprefix("tcp://").removeprefix("http://").split("/")[0].rpartition(":")
        self.address = (host, int(port))
        self.count = count
        self.sent = 0
        #: Those of them that the other side has to count.
        self.refusable = 0
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"attack-{kind}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self.attack()
        except Exception as error:
            self.failure = error

    @abc.abstractmethod
    def attack(self) -> None:
        """Send all of them."""

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=TIMEOUT_S)


class FrameAttack(Attack):
    """Many frames per connection, without waiting for answers."""

    def __init__(self, kind: str, address: str, count: int, make: Callable[[], tuple[bytes, bool]]) -> None:
        """`make` gives a frame, and whether it has to be refused."""
        super().__init__(kind, address, count)
        self._make = make

    def attack(self) -> None:
        while self.sent < self.count:
            self._too_long()
            with self.connect() as connection:
                for _ in range(20):
                    made = [self._make() for _ in range(min(MADE, self.count - self.sent))]
                    data = b"".join(framed(frame) for frame, _ in made)
                    refusable = sum(bad for _, bad in made)
                    for _ in range(REPEATED):
                        connection.sendall(data)
                        self.sent += len(made)
                        self.refusable += refusable
                        self._drain(connection)
                    if self.sent >= self.count:
                        break
                self._end(connection)

    def _too_long(self) -> None:
        """A length beyond every limit: ends its connection."""
        with self.connect() as connection:
            connection.sendall(b"\xff\xff\xff\x7f" + b"x" * 100)
            self._end(connection, hang_up=False)
        self.sent += 1
        self.refusable += 1

    @staticmethod
    def _drain(connection: socket.socket) -> None:
        """Answers are of no interest, but in the way."""
        while select.select([connection], [], [], 0)[0] and connection.recv(1 << 16):
            pass

    @staticmethod
    def _end(connection: socket.socket, hang_up: bool = True) -> None:
        """Wait for the other side to close: then it has read everything."""
        if hang_up:
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass


class MessageAttack(Attack):
    """For ports that answer messages; now and then, something that is no frame."""

    def __init__(
        self, kind: str, address: str, count: int, make: Callable[[], tuple[bytes, bool]], last: bytes, mark: bytes
    ) -> None:
        """`last` is a question whose answer contains `mark`: it is answered when everything before it was looked at."""
        super().__init__(kind, address, count)
        self._make = make
        self._last = last
        self._mark = mark

    def attack(self) -> None:
        with self.connect() as connection:
            while self.sent < self.count:
                made = [self._make() for _ in range(min(MADE, self.count - self.sent))]
                connection.sendall(b"".join(framed(frame) for frame, _ in made))
                self.sent += len(made)
                self.refusable += sum(bad for _, bad in made)
                FrameAttack._drain(connection)
                self._noise()
            self._await_end(connection)

    def _await_end(self, connection: socket.socket) -> None:
        connection.sendall(framed(self._last))
        heard = b""
        while self._mark not in heard:
            more = connection.recv(1 << 16)
            if not more:
                raise ClusterTrouble(f"{self.kind} at {self.address}: no answer to the last question")
            heard = heard[-len(self._mark) :] + more

    def _noise(self) -> None:
        """What never becomes a frame, and so is not counted."""
        for noise in (b"GET", b"\xff", b"\x80\x00\x00\x00", b""):
            with self.connect() as connection, contextlib.suppress(OSError):
                connection.sendall(noise)


class MetricsAttack(Attack):
    def __init__(self, address: str, count: int, random: Random) -> None:
        super().__init__("metrics", address, count)
        self._random = random

    def attack(self) -> None:
        requests = (
            b"\x00" * 100,
            b"GET /metrics HTTP/9.9\r\n\r\n",
            b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
            b"POST /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
            b"GET /../../etc/passwd HTTP/1.0\r\n\r\n",
        )
        while self.sent < self.count:
            with self.connect() as connection, contextlib.suppress(OSError):
                connection.sendall(self._random.choice(requests))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
            self.sent += 1


class ZooKeeperAttack(Attack):
    """Sessions of its own, and in them requests that no client would send. Most end their connection."""

    def __init__(self, address: str, count: int, random: Random) -> None:
        super().__init__("zookeeper", address, count)
        self._random = random

    def attack(self) -> None:
        while self.sent < self.count:
            with self.connect() as connection, contextlib.suppress(OSError):
                if self._random.random() < 0.2:
                    connection.sendall(self._random.randbytes(self._random.randrange(1, 200)))
                    self.sent += 1
                else:
                    self._session(connection)

    def _session(self, connection: socket.socket) -> None:
        random = self._random
        session = random.choice((0, 0, 0, 0, 77, -1, 1 << 62))
        connect = struct.pack(
            ">iqiq", 0, random.choice((0, 0, -1, 1 << 62)), random.choice((5000, -1, 1 << 30)), session
        )
        connection.sendall(_framed(connect + jute.pack_buffer(bytes(16)) + b"\0"))
        self.sent += 1
        requests = [self._request() for _ in range(min(5, max(self.count - self.sent, 1)))]
        connection.settimeout(2.0)
        if connection.recv(1 << 16):
            connection.sendall(b"".join(requests))
            self.sent += len(requests)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

    def _request(self) -> bytes:
        random = self._random
        path = jute.pack_text(random.choice(("/", "/fuzz", "/fuzz/a", "", "//", "/a/../b", "/\0", "x" * 500, "/é")))
        body = path + random.choice(
            (
                b"",
                b"\0",
                jute.pack_buffer(b"data") + jute.pack_int(-1),
                jute.pack_buffer(None) + jute.pack_acl(((31, "world", "anyone"),)) + jute.pack_int(random.randrange(9)),
                jute.pack_int(1 << 30),
                jute.pack_int(-7),
                random.randbytes(random.randrange(40)),
            )
        )
        op = random.choice((*Op, 9999, -12, 1 << 30))
        if op == Op.CLOSE_SESSION:
            op = Op.PING
        body = struct.pack(">ii", random.getrandbits(31) - (1 << 30), op) + body
        match random.randrange(8):
            case 0:
                return struct.pack(">i", random.choice((-1, 1 << 30, 3, 0))) + body
            case 1:
                spoiled = bytearray(body)
                spoiled[random.randrange(8, len(spoiled))] ^= 1 << random.randrange(8)
                return _framed(bytes(spoiled))
            case 2:
                return _framed(body[: random.randrange(len(body))])
            case _:
                return _framed(body)


def _framed(body: bytes) -> bytes:
    return jute.pack_int(len(body)) + body


class Increments:
    """A client of the coordination service that counts, in a node, as long as it is left to it."""

    def __init__(self, hosts: str) -> None:
        self.done = 0
        self._client = CoordinationClient(hosts)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="increments", daemon=True)
        self.failure: Exception | None = None

    def __enter__(self) -> "Increments":
        self._client.start()
        self._client.create("/count", b"0")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.stop()

    def finish(self) -> int:
        """The value in the end."""
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._client.sync("/count")
        return int(self._client.get("/count")[0])

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                value, stat = self._client.get("/count")
                self._client.set("/count", b"%d" % (int(value) + 1), stat.version)
                self.done += 1
        except Exception as error:
            self.failure = error


def fuzz(directory: Path, say: Say, frames: int = 30_000, seed: int = 1) -> FuzzVerdict:
    """Random and mutated frames at every port of two clusters under load."""
    began_s = time.monotonic()
    sizes = {"checkpoint_interval": 1024, "window": 4096}
    gateway = {"port": 0, "tick_time_ms": 1_000, "max_client_connections": 0}
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Contained.whole(directory / "store", sizes))
        service = stack.enter_context(
            Contained.sites(directory / "service", {**sizes, "app": "coordination", "gateway": gateway})
        )
        service.await_status(lambda _: all(site.gateways_serve() for site in service.registries), "gateways")
        load = LoadProcess(
            LoadPlan(
                endpoints=store.endpoints, clients=CLIENTS, seconds=24 * 3600.0, reads=0.2, recorded_keys=CLIENTS // 2
            )
        )
        stack.callback(load.stop)
        increments = stack.enter_context(Increments(",".join(g for r in service.registries for g in r.gateways)))
        before_mb = _resident_mb(store, service)
        counted = _Counted([store, service])
        attacks = list(_attacks([store, service], frames, seed))
        say(f"fuzz: {sum(attack.count for attack in attacks)} frames at {len(attacks)} ports, seed {seed}")
        for attack in attacks:
            attack.start()
        for attack in attacks:
            attack.join()
        refusable = sum(attack.refusable for attack in attacks)
        refused = counted.await_total(refusable)
        say(f"fuzz: all sent, {refused} of {refusable} refused and counted")
        load.stop()
        report = load.finish()
        value = increments.finish()
        growth_mb = max(after - before_mb[name] for name, after in _resident_mb(store, service).items())
        statuses = [_settled(cluster) for cluster in (store, service)]
        sent: dict[str, int] = {}
        for attack in attacks:
            sent[attack.kind] = sent.get(attack.kind, 0) + attack.sent
        return FuzzVerdict(
            seed=seed,
            seconds=round(time.monotonic() - began_s, 1),
            frames=sent,
            refusable=refusable,
            refused=refused,
            died=[*store.died, *service.died],
            halted=store.halted | service.halted,
            restarts=sum(container["restarts"] for status in statuses for container in status["containers"]),
            lost=report.lost,
            duplicated=max(health.counter(statuses[0]) - 2 * CLIENTS - report.ordered, 0),
            linearizable=check(load.history, KeyValueModel()).linearizable,
            recorded=len(load.history),
            increments=increments.done,
            value=value,
            replicas_equal=all(health.replicas_equal(status) for status in statuses),
            growth_mb=round(growth_mb, 1),
            metrics_served=all(_metrics_served(registry) for registry in (*store.registries, *service.registries)),
        )


def _attacks(clusters: list[Contained], frames: int, seed: int) -> Iterator[Attack]:
    """One per port. Of each kind, the ports share the frames; each has its own sequence."""
    ports: dict[str, list[Callable[[int, Random], Attack]]] = {kind: [] for kind in SHARES}
    for cluster in clusters:
        for registry in cluster.registries:
            for container in registry.hosted:
                _add_container(ports, cluster, registry, container)
            lives = {container: registry.state.lives[container] for container in registry.hosted}
            ports["registry"].append(partial(_registry_attack, registry.address, lives))
            ports["metrics"].append(partial(MetricsAttack, registry.metrics_address))
            ports["zookeeper"] += [partial(ZooKeeperAttack, address) for address in registry.gateways]
    for kind, makers in ports.items():
        for index, make in enumerate(makers):
            yield make(max(int(frames * SHARES[kind] / len(makers)), 5), Random(f"{seed}/{kind}/{index}"))


def _registry_attack(address: str, lives: dict[int, int], count: int, random: Random) -> Attack:
    last = control.encode(control.AskStatus(_MARK))
    made = _mixed(random, ControlMessages(random, lives), 0.5)
    return MessageAttack("registry", address, count, made, last, b"%x" % _MARK)


def _add_container(
    ports: dict[str, list[Callable[[int, Random], Attack]]], cluster: Contained, registry: Registry, container: int
) -> None:
    member, state = registry.members[container], registry.state
    assert member.peer_address and member.client_address and member.files_address
    other = (container + 1) % len(registry.placement)
    life = _life(cluster, other)
    sender = Identity(state.cluster, state.era, other, life, registry.shape)

    def peers(count: int, random: Random) -> Attack:
        made = PeerFrames(
            random,
            registry.graph,
            registry.settings.limits,
            registry.placement[container],
            sender,
            len(registry.placement),
        )
        return FrameAttack("peers", member.peer_address or "", count, lambda: (made.next(), True))

    def clients(count: int, random: Random) -> Attack:
        return FrameAttack("clients", member.client_address or "", count, _mixed(random, ClientFrames(random), ODD))

    def files(count: int, random: Random) -> Attack:
        made = FileQuestions(random, state.cluster, state.era)
        last = msgspec.msgpack.encode(Ask(_MARK, 0, 0, "", 0))
        mark = msgspec.msgpack.encode(_MARK)
        return MessageAttack("files", member.files_address or "", count, _mixed(random, made, 0.5), last, mark)

    ports["peers"].append(peers)
    ports["clients"].append(clients)
    ports["files"].append(files)


def _life(cluster: Contained, container: int) -> int:
    for registry in cluster.registries:
        if container in registry.hosted:
            return registry.state.lives[container]
    raise AssertionError(f"nobody hosts container {container}")


def _mixed(
    random: Random, made: ClientFrames | ControlMessages | FileQuestions, odd: float
) -> Callable[[], tuple[bytes, bool]]:
    def make() -> tuple[bytes, bool]:
        return (made.odd(), False) if random.random() < odd else (made.bad(), True)

    return make


class _Counted:
    """What the clusters say they have refused since this was made."""

    def __init__(self, clusters: list[Contained]) -> None:
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


def _settled(cluster: Contained) -> dict[str, Any]:
    cluster.want_digests()
    return cluster.await_status(lambda found: health.replicas_equal(found) is not None, "replicas that are equally far")


def _resident_mb(*clusters: Contained) -> dict[str, float]:
    return {
        f"{number}/{name}": int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / (1 << 20)
        for number, cluster in enumerate(clusters)
        for name, process in cluster.processes.items()
        if process.is_alive()
    }


def _metrics_served(registry: Registry) -> bool:
    end_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(registry.metrics_address, timeout=5) as answer:
                return b"tara_frames_bad_total" in answer.read()
        except OSError:
            time.sleep(0.2)
    return False
