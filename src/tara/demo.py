"""`tara demo`: a guided tour on local Spark. Writes, two killed leaders, and the proof that nothing was lost.

Three sites, durable, 64 clients. The process of the active proposer gets SIGKILL; the other proposer takes over, Spark
starts the dead container again, it rejoins; then the new leader gets SIGKILL, too. At the end the clients' history is
checked for linearizability, and the replicas are compared.
"""

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from msgspec import Struct

from tara.experiments.load import Load, LoadReport
from tara.runtime.cluster import load_settings
from tara.runtime.registry import Registry
from tara.runtime.spark import Cluster
from tara.simulator.linearizability import KeyValueModel, Operation, check

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

    @property
    def passed(self) -> bool:
        return self.lost == 0 and self.duplicated == 0 and self.linearizable and self.replicas_equal


def run(say: Callable[[str], None], seconds: float = 20.0) -> DemoReport:
    with tempfile.TemporaryDirectory(prefix="tara-demo-") as directory:
        settings = load_settings(environment={}, flags={"data_dir": str(Path(directory) / "data")})
        say("Starting Spark, and on it three containers: one per site, each a Spark task.")
        cluster = Cluster(settings)
        try:
            cluster.start()
            say(f"Up. Spark's own view of it: {cluster.ui}. Clients connect to {' '.join(cluster.registry.endpoints)}.")
            return _tour(cluster.registry, say, seconds)
        finally:
            cluster.stop()


def _tour(registry: Registry, say: Callable[[str], None], seconds: float) -> DemoReport:
    context = multiprocessing.get_context("spawn")
    results: Queue[Any] = context.Queue()
    endpoints = ",".join(registry.endpoints)
    load = context.Process(target=_load, args=(endpoints, seconds, results), daemon=True)
    load.start()
    drill = threading.Thread(target=_drill, args=(registry, say, seconds), daemon=True)
    while True:
        kind, value = results.get()
        if kind == "started":
            drill.start()
        elif kind == "rate":
            say(f"  {value[0]:4.0f} s  {value[1]:6d} commands/s   {_shape(registry)}")
        else:
            break
    report, history = value
    load.join(timeout=10)
    drill.join(timeout=FULL_STRENGTH_TIMEOUT_S)
    verdict = check(history, KeyValueModel())
    say(f"History of {len(history)} operations on {RECORDED_KEYS} keys: linearizable: {verdict.linearizable}.")
    equal, counter = _compare(registry)
    # Every command counts once, and so do the opening and the end of every session.
    executed = counter - 2 * CLIENTS
    duplicated = max(executed - report.answered, 0)
    say(f"Commands answered: {report.answered}, executed: {executed}. Replicas equal: {equal}.")
    restarts = sum(container["restarts"] for container in registry.status()["containers"])
    return DemoReport(
        throughput_per_s=report.throughput_per_s,
        latency_ms_p50=report.latency_ms_p50,
        latency_ms_p99=report.latency_ms_p99,
        gap_ms_max=report.gap_ms_max,
        restarts=restarts,
        lost=report.lost,
        duplicated=duplicated,
        linearizable=verdict.linearizable,
        replicas_equal=equal,
        history=len(history),
    )


def _load(endpoints: str, seconds: float, results: "Queue[Any]") -> None:
    """In a process of its own."""
    load = Load(endpoints, CLIENTS, reads=0.2, recorded_keys=RECORDED_KEYS)
    load.open()
    results.put(("started", None))
    started_s = time.monotonic()
    report: LoadReport = load.run(
        seconds, on_second=lambda now_s, count: results.put(("rate", (now_s - started_s, count)))
    )
    load.close()
    history: list[Operation] = load.history
    results.put(("done", (report, history)))


def _drill(registry: Registry, say: Callable[[str], None], seconds: float) -> None:
    """Kill the leader twice."""
    time.sleep(2.0 + seconds * 0.15)
    for _ in range(2):
        leader = _leader(registry)
        if leader is None:
            say("No active proposer to kill.")
            return
        member = registry.members[leader]
        life, killed_s = registry.state.lives[leader], time.monotonic()
        say(f"SIGKILL to process {member.pid}: {registry.label(leader)}, which hosts the active proposer.")
        os.kill(member.pid, signal.SIGKILL)
        while registry.state.lives[leader] == life:
            time.sleep(0.01)
        say(f"Spark has started {registry.label(leader)} again, after {time.monotonic() - killed_s:.2f} s.")
        if _await_full_strength(registry):
            say(f"Full strength {time.monotonic() - killed_s:.1f} s after the kill: {_shape(registry)}")
        time.sleep(seconds * 0.15)


def _await_full_strength(registry: Registry) -> bool:
    """Every committer votes in one view, and every executor holds the newest stable checkpoint."""
    end_s = time.monotonic() + FULL_STRENGTH_TIMEOUT_S
    while time.monotonic() < end_s:
        statuses = [member.status for member in registry.members]
        partitions = [status["partitions"]["0"] for status in statuses if status]
        executors = registry.executors()
        if (
            len(partitions) == len(statuses)
            and len({partition["view"] for partition in partitions}) == 1
            and all(partition["committer"]["started"] for partition in partitions)
            and all(max(e["checkpoints"], default=0) >= max(o["stable"] for o in executors) for e in executors)
        ):
            return True
        time.sleep(0.05)
    return False


def _leader(registry: Registry) -> int | None:
    for container, member in enumerate(registry.members):
        proposer = member.status.get("partitions", {}).get("0", {}).get("proposer", {})
        if proposer.get("mode") == "active":
            return container
    return None


def _shape(registry: Registry) -> str:
    leader = _leader(registry)
    views = [member.status.get("partitions", {}).get("0", {}).get("view", "-") for member in registry.members]
    lives = [str(life) for life in registry.state.lives]
    at = registry.label(leader) if leader is not None else "nobody"
    return f"view {max(map(str, views))}, leader {at}, lives {' '.join(lives)}"


def _compare(registry: Registry, timeout_s: float = 20.0) -> tuple[bool, int]:
    """Whether all executors have the same state; and the command counter. Waits until they are equally far."""
    registry.want_digests = True
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        executors = registry.executors()
        digests = {executor.get("digest") for executor in executors}
        equally_far = len(executors) == len(registry.members) and len({e["next"] for e in executors}) == 1
        if equally_far and None not in digests:
            return len(digests) == 1, int(executors[0]["counter"])
        time.sleep(0.05)
    return False, max((int(executor["counter"]) for executor in registry.executors()), default=0)
