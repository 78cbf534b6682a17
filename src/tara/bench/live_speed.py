"""The load on a real cluster, with what it cost: started for the purpose, or one that runs already."""

import os
import tempfile
from pathlib import Path

import msgspec

from tara.bench.load import LoadReport
from tara.bench.load_process import LoadPlan, LoadProcess
from tara.configuration.settings import Settings
from tara.live.spark import Cluster
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.operations import health

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class LiveReport(LoadReport, kw_only=True):
    #: Commands that executed more often than once; only known for sessions with one in flight, on a cluster
    #: that was started for the load.
    duplicated: int = 0
    #: CPU cores that the load and the containers used while it was measured.
    cpu_client: float = 0.0
    cpu_server: float = 0.0


def measure(settings: Settings, plan: LoadPlan, with_keys: bool = False) -> LiveReport:
    """Run the plan on the cluster that it names, or, if it names none, on one that is started for it, with keys that
    are made for it."""
    if plan.endpoints:
        return _drive(plan, [])
    with tempfile.TemporaryDirectory(prefix="tara-bench-") as directory:
        settings = msgspec.structs.replace(settings, data_dir=str(Path(directory) / "data"))
        if with_keys:
            make_cluster_keys(Path(directory) / "keys")
            client = make_client_keys(Path(directory) / "keys", "bench")
            settings = msgspec.structs.replace(settings, keys=str(Path(directory) / "keys"))
            plan = msgspec.structs.replace(plan, keys=str(client))
        cluster = Cluster(settings)
        try:
            cluster.start()
            registry = cluster.registry
            pids = [member.pid for member in registry.members]
            report = _drive(msgspec.structs.replace(plan, endpoints=",".join(registry.endpoints)), pids)
            if plan.in_flight == 1:
                # The opening and the end of each session count, too.
                executed = health.counter(registry.status()) - 2 * plan.clients
                report.duplicated = max(executed - report.ordered, 0)
            return report
        finally:
            cluster.stop()


def _drive(plan: LoadPlan, pids: list[int]) -> LiveReport:
    load = LoadProcess(plan)
    before_s = sum(map(_cpu_s, pids))
    report = load.finish()
    used_s = sum(map(_cpu_s, pids)) - before_s
    return LiveReport(
        **msgspec.to_builtins(report),
        cpu_client=round(load.cpu_s / load.elapsed_s, 2),
        cpu_server=round(used_s / load.elapsed_s, 2),
    )


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
