"""Tara's coordination service and Apache ZooKeeper side by side: the same load program, the same machine, one run.

Three sites against three servers. `disk`: both sync to disk before they answer. `memory`: ZooKeeper's data directories
are in memory (`/dev/shm`), and Tara does not write votes down. One service runs at a time.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from evaluation.zookeeper_load import ZooKeeperLoad, ZooKeeperLoadReport
from evaluation.zookeeper_peer import PeerError, ZooKeeperEnsemble, installed
from tara.configuration.settings import load_settings
from tara.live.spark import Cluster

OPERATIONS = ("setData", "getData")
MEMORY = Path("/dev/shm")
WARM_UP_SESSIONS = 64


class Measurement(Struct, kw_only=True):
    service: str
    durability: str
    report: ZooKeeperLoadReport


class SpeedReport(Struct, kw_only=True):
    value_bytes: int
    measurements: list[Measurement]


def measure(
    services: Sequence[str],
    durabilities: Sequence[str],
    sessions: Sequence[int],
    seconds: float,
    value_bytes: int = 64,
    warm_up_s: float = 5.0,
    say: Callable[[str], None] = lambda line: None,
) -> SpeedReport:
    if "zookeeper" in services and not installed():
        raise PeerError("ZooKeeper is not installed (Debian: apt-get install zookeeper); or measure tara alone")
    measurements = []
    for durability in durabilities:
        for service in services:
            with (_tara if service == "tara" else _zookeeper)(durability) as endpoints:
                say(f"{service}, {durability}: {endpoints}")
                _load(endpoints, WARM_UP_SESSIONS, value_bytes, warm_up_s)
                for count in sessions:
                    for report in _load(endpoints, count, value_bytes, seconds):
                        say(
                            f"  {report.operation} {count:4} sessions  {report.throughput_per_s:8.0f}/s  "
                            f"p50 {report.latency_ms_p50} ms  p99 {report.latency_ms_p99} ms"
                        )
                        measurements.append(Measurement(service=service, durability=durability, report=report))
    return SpeedReport(value_bytes=value_bytes, measurements=measurements)


def _load(endpoints: str, sessions: int, value_bytes: int, seconds: float) -> list[ZooKeeperLoadReport]:
    load = ZooKeeperLoad(endpoints, sessions, value_bytes)
    reports = [load.run(operation, seconds) for operation in OPERATIONS]
    load.close()
    return reports


@contextmanager
def _tara(durability: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tara-bench-") as directory:
        flags = {
            "data_dir": str(Path(directory) / "data"),
            "app": "coordination",
            "durability": durability,
            "gateway": {"port": 0, "max_client_connections": 0},
        }
        cluster = Cluster(load_settings(environment={}, flags=flags))
        try:
            cluster.start()
            cluster.await_gateways()
            yield ",".join(cluster.registry.gateways)
        finally:
            cluster.stop()


@contextmanager
def _zookeeper(durability: str) -> Iterator[str]:
    memory = str(MEMORY) if durability == "memory" else None
    with (
        tempfile.TemporaryDirectory(prefix="zookeeper-bench-", dir=memory) as directory,
        ZooKeeperEnsemble(Path(directory), servers=3) as ensemble,
    ):
        yield ensemble.endpoints
