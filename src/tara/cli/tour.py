"""`tara demo`: a guided tour on local Spark. Writes, two killed leaders, and the proof that nothing was lost.

Three sites, durable, 64 clients. The process of the active proposer gets SIGKILL; the other proposer takes over, Spark
starts the dead container again, it rejoins; then the new leader gets SIGKILL, too. At the end the clients' history is
checked for linearizability, the replicas are compared, and Spark SQL reads the decided log.
"""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from tara.bench.load_process import LoadPlan, LoadProcess
from tara.cli.tour_log import ViewWatch, show_log
from tara.configuration.settings import load_settings
from tara.live.registry import Registry
from tara.live.spark import Cluster
from tara.operations import health
from tara.simulator.checks.linearizability import KeyValueModel, check

CLIENTS = 64
RECORDED_KEYS = 8
FULL_STRENGTH_TIMEOUT_S = 30.0


class DemoReport(Struct, kw_only=True):
    throughput_per_s: float
    latency_ms_p50: float
    latency_ms_p99: float
    gap_ms_max: float
    restarts: int
    lost: int
    duplicated: int
    linearizable: bool
    replicas_equal: bool
    history: int
    #: What Spark read from the decided log: all executed commands, the longest time between two of them, and the views
    #: that the cluster was in meanwhile.
    log_commands: int
    log_complete: bool
    log_pause_ms_max: int
    views: list[int]

    @property
    def passed(self) -> bool:
        right = self.linearizable and self.replicas_equal and self.log_complete
        return right and self.lost == 0 and self.duplicated == 0


def run(say: Callable[[str], None], seconds: float = 20.0) -> DemoReport:
    with tempfile.TemporaryDirectory(prefix="tara-demo-") as directory:
        settings = load_settings(environment={}, flags={"data_dir": str(Path(directory) / "data")})
        say("Starting Spark, and on it three containers: one per site, each a Spark task.")
        cluster = Cluster(settings)
        try:
            cluster.start()
            say(f"Up. Spark's own view of it: {cluster.ui}. Clients connect to {' '.join(cluster.registry.endpoints)}.")
            return _tour(cluster, say, seconds)
        finally:
            cluster.stop()


def _tour(cluster: Cluster, say: Callable[[str], None], seconds: float) -> DemoReport:
    registry = cluster.registry
    plan = LoadPlan(
        endpoints=",".join(registry.endpoints), clients=CLIENTS, seconds=seconds, reads=0.2, recorded_keys=RECORDED_KEYS
    )
    watch = ViewWatch(lambda: _view(registry))
    load = LoadProcess(plan)
    drill = threading.Thread(target=_drill, args=(registry, say, seconds), daemon=True)
    drill.start()
    for second, rate in load.seconds():
        say(f"  {second:4.0f} s  {rate:6d} commands/s   {_shape(registry)}")
    report = load.finish()
    drill.join(timeout=FULL_STRENGTH_TIMEOUT_S)
    verdict = check(load.history, KeyValueModel())
    say(f"History of {len(load.history)} operations on {RECORDED_KEYS} keys: linearizable: {verdict.linearizable}.")
    registry.want_digests()
    _await(lambda: health.replicas_equal(registry.status()) is not None)
    status = registry.status()
    # Every command counts once, and so do the opening and the end of every session.
    counter = health.counter(status)
    executed = counter - 2 * CLIENTS
    equal = bool(health.replicas_equal(status))
    say(f"Answered: {report.answered}, ordered: {report.ordered}, executed: {executed}. Replicas equal: {equal}.")
    found = show_log(cluster.session(), Path(registry.settings.data_dir), counter, watch.end(), say)
    return DemoReport(
        throughput_per_s=report.throughput_per_s,
        latency_ms_p50=report.latency_ms_p50,
        latency_ms_p99=report.latency_ms_p99,
        gap_ms_max=report.gap_ms_max,
        restarts=sum(container["restarts"] for container in status["containers"]),
        lost=report.lost,
        duplicated=max(executed - report.ordered, 0),
        linearizable=verdict.linearizable,
        replicas_equal=equal,
        history=len(load.history),
        log_commands=found.commands,
        log_complete=found.commands == counter,
        log_pause_ms_max=found.pause_ms_max,
        views=found.views,
    )


def _drill(registry: Registry, say: Callable[[str], None], seconds: float) -> None:
    """Kill the leader twice."""
    time.sleep(2.0 + seconds * 0.15)
    for _ in range(2):
        leader = health.leader(registry.status())
        if leader is None:
            say("No active proposer to kill.")
            return
        name, life, killed_s = leader["container"], leader["life"], time.monotonic()
        say(f"SIGKILL to process {leader['pid']}: {name}, which hosts the active proposer.")
        os.kill(leader["pid"], signal.SIGKILL)
        if not _await(lambda: _life(registry, name) > life):  # noqa: B023 - called at once
            say(f"{name} has not come back.")
            return
        say(f"Spark has started {name} again, after {time.monotonic() - killed_s:.2f} s.")
        if _await(lambda: health.full_strength(registry.status())):
            say(f"Full strength {time.monotonic() - killed_s:.1f} s after the kill: {_shape(registry)}")
        time.sleep(seconds * 0.15)


def _life(registry: Registry, name: str) -> int:
    return next(int(each["life"]) for each in registry.status()["containers"] if each["container"] == name)


def _await(condition: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + FULL_STRENGTH_TIMEOUT_S
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


def _shape(registry: Registry) -> str:
    status = registry.status()
    leader = health.leader(status)
    lives = " ".join(str(container["life"]) for container in status["containers"])
    return f"view {_view(registry)}, leader {leader['container'] if leader else 'nobody'}, lives {lives}"


def _view(registry: Registry) -> int:
    containers = registry.status()["containers"]
    return max(int(container.get("partitions", {}).get("0", {}).get("view", 0)) for container in containers)
