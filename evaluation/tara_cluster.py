"""Tara itself under the evaluation's loads: clusters as a user runs them, one at a time, used as often as they fit."""

import os
import signal
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from evaluation.plan import SOME_CLIENTS, Plan
from evaluation.results import Sample
from tara.bench.load import LoadReport
from tara.bench.load_process import LoadPlan, LoadProcess
from tara.operations.deployment import Deployment, Say, children


class Clusters:
    """Holds at most one running cluster. A context manager."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._key: tuple[int, Mapping[str, str]] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._deployment: Deployment | None = None

    def get(self, repetition: int, durability: str, **settings: object) -> Deployment:
        """A cluster with these settings that has seen some load. Each repetition has a new one, except in a hurry."""
        wanted = {"durability": durability, **{key: str(value) for key, value in settings.items()}}
        key = (0 if self._plan.quick else repetition, wanted)
        if self._deployment is None or key != self._key:
            self.close()
            self._start(wanted)
            self._key = key
        assert self._deployment is not None
        return self._deployment

    def new(self, durability: str, **settings: object) -> Deployment:
        """One that nobody has used, for experiments that do harm."""
        self.close()
        return self.get(0, durability, **settings)

    def _start(self, settings: dict[str, str]) -> None:
        self._say(f"  a cluster with {', '.join(f'{key} {value}' for key, value in settings.items())}")
        where = self._plan.disk if settings["durability"] == "disk" else self._plan.memory
        self._directory = tempfile.TemporaryDirectory(prefix="tara-bench-", dir=where)
        self._deployment = Deployment(Path(self._directory.name) / "data", settings)
        self._deployment.start()
        warm_up = LoadPlan(
            endpoints=self._deployment.endpoints,
            clients=SOME_CLIENTS,
            seconds=self._plan.first_warm_up_s,
            warm_up_s=0.0,
        )
        LoadProcess(warm_up).finish()

    def close(self) -> None:
        if self._deployment is not None:
            self._deployment.stop()
        if self._directory is not None:
            self._directory.cleanup()
        self._key = self._deployment = self._directory = None

    def __enter__(self) -> "Clusters":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def measure(cluster: Deployment, plan: Plan, clients: int, payload_bytes: int = 64, reads: float = 0.0) -> Sample:
    load = LoadProcess(
        LoadPlan(
            endpoints=cluster.endpoints,
            clients=clients,
            seconds=plan.seconds,
            warm_up_s=plan.warm_up_s,
            payload_bytes=payload_bytes,
            reads=reads,
            watched_pids=tuple(server_pids(cluster)),
        )
    )
    sample = sample_of(load.finish())
    sample.cpu = load.cpu_use
    return sample


def measure_kill(cluster: Deployment, clients: int, before_s: float, after_s: float) -> Sample:
    """The container of the active proposer is killed so many seconds into the measurement."""
    plan = LoadPlan(endpoints=cluster.endpoints, clients=clients, seconds=before_s + after_s, warm_up_s=1.0)
    load = LoadProcess(plan)
    victim = int(cluster.await_leader()["pid"])
    killer = threading.Timer(plan.warm_up_s + before_s, os.kill, (victim, signal.SIGKILL))
    killer.start()
    try:
        return sample_of(load.finish())
    finally:
        killer.cancel()


def sample_of(report: LoadReport) -> Sample:
    return Sample(
        throughput_per_s=report.throughput_per_s,
        latency_ms_p50=report.latency_ms_p50,
        latency_ms_p99=report.latency_ms_p99,
        gap_ms_max=report.gap_ms_max,
        errors=report.errors + report.lost,
    )


def server_pids(cluster: Deployment) -> list[int]:
    """Everything that makes up the cluster: the containers, the driver, and Spark's virtual machine."""
    pids = cluster.pids()
    return [*pids.values(), *children(pids["driver"])]
