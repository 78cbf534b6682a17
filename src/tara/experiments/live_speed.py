"""The load on a real cluster, with what it cost: started for the purpose, or one that runs already."""

import multiprocessing
import os
import tempfile
from multiprocessing.queues import Queue
from typing import Any

import msgspec

from tara.experiments.load import Load, LoadReport
from tara.runtime.cluster import Settings
from tara.runtime.spark import Cluster

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class LiveReport(LoadReport, kw_only=True):
    #: Commands that executed more often than once; only known for a cluster that was started for the load.
    duplicated: int = 0
    #: CPU cores that the load and the containers used while it was measured.
    cpu_client: float = 0.0
    cpu_server: float = 0.0


def measure(
    settings: Settings,
    endpoints: str | None,
    clients: int,
    seconds: float,
    payload_bytes: int,
    reads: float,
    target: int | None,
) -> LiveReport:
    if endpoints is not None:
        return _drive(endpoints, clients, seconds, payload_bytes, reads, target, [])
    with tempfile.TemporaryDirectory(prefix="tara-bench-") as directory:
        cluster = Cluster(msgspec.structs.replace(settings, data_dir=directory))
        try:
            cluster.start()
            registry = cluster.registry
            pids = [member.pid for member in registry.members]
            report = _drive(",".join(registry.endpoints), clients, seconds, payload_bytes, reads, target, pids)
            executed = max(executor["counter"] for executor in registry.executors())
            # The opening and the end of each session count, too.
            report.duplicated = max(executed - report.answered - 2 * clients, 0)
            return report
        finally:
            cluster.stop()


def _drive(
    endpoints: str, clients: int, seconds: float, payload_bytes: int, reads: float, target: int | None, pids: list[int]
) -> LiveReport:
    context = multiprocessing.get_context("spawn")
    results: Queue[Any] = context.Queue()
    arguments = (endpoints, clients, seconds, payload_bytes, reads, target, pids, results)
    process = context.Process(target=_load, args=arguments)
    process.start()
    report: LiveReport = results.get()
    process.join()
    return report


def _load(
    endpoints: str,
    clients: int,
    seconds: float,
    payload_bytes: int,
    reads: float,
    target: int | None,
    pids: list[int],
    results: "Queue[LiveReport]",
) -> None:
    """In a process of its own, so that it is not in the way of the driver."""
    load = Load(endpoints, clients, payload_bytes, reads, target=target)
    load.open()
    before = (_cpu_s(os.getpid()), sum(map(_cpu_s, pids)))
    report = load.run(seconds)
    used = (_cpu_s(os.getpid()) - before[0], sum(map(_cpu_s, pids)) - before[1])
    load.close()
    elapsed_s = seconds + 2.0
    results.put(
        LiveReport(
            **msgspec.to_builtins(report),
            cpu_client=round(used[0] / elapsed_s, 2),
            cpu_server=round(used[1] / elapsed_s, 2),
        )
    )


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
