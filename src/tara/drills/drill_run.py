"""A drill as it goes: a cluster under a load whose history is recorded, faults, and what came of it.

At the end of each: was anything lost, executed twice, answered out of order, and do the replicas agree?
"""

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tara.bench.filling import write_all
from tara.bench.load_process import UNTIL_STOPPED_S, LoadPlan, LoadProcess
from tara.drills.safety import Safety
from tara.operations import health
from tara.operations.deployment import Deployment, Say, send
from tara.simulator.checks.linearizability import KeyValueModel, check

CLIENTS = 64
RECORDED_KEYS = 8
#: What the longest gap without a reply may be when the leader, or its whole server, dies or hangs.
GAP_MS_MAX = 1_000.0
GROWTH_MB_MAX = 50.0
THROUGHPUT_DRIFT_MAX = 0.10
DISK_GROWTH_MAX = 0.10
#: How much longer it may take to be back after a loss of everything than to start for the first time: medians of ten
#: differ by so much on a shared machine when nothing is different.
SLOWER_MAX = 1.25


class DrillVerdict(Safety, kw_only=True):
    """What came of a drill. A field that a drill does not judge is None."""

    drill: str
    faults: int
    throughput_per_s: float
    latency_ms_p50: float
    latency_ms_p99: float
    gap_ms_max: float
    #: Seconds from each fault to full strength.
    full_strength_s: list[float]
    restarts: int
    gap_ms_limit: float | None = None
    #: How much higher throughput was late than early, on a machine of constant speed; and what the machine's own speed
    #: did meanwhile.
    drift: float | None = None
    machine_drift: float | None = None
    #: The largest growth of a process after the second minute; and by how much more there was on the disk, late.
    growth_mb: float | None = None
    disk_growth: float | None = None
    #: Values of the state that are not what was written.
    missing: int | None = None
    #: Committers that rejoined without their journals, and bases that came from other servers.
    rejoined: int | None = None
    fetched: int | None = None
    #: Seconds from `tara up` to the first answered write, after a loss of everything and at a first start, in turns;
    #: medians, and each. And where these seconds went, as the driver tells (`tara.live.start_phases`).
    answers_s: float | None = None
    first_start_answers_s: float | None = None
    answers_s_each: list[float] | None = None
    first_start_answers_s_each: list[float] | None = None
    first_start_full_strength_s: list[float] | None = None
    phases_s: dict[str, float] | None = None
    first_start_phases_s: dict[str, float] | None = None

    @property
    def summary(self) -> str:
        return (
            f"{self.faults} faults, {self.restarts} restarts, {self.throughput_per_s:.0f} commands/s, longest gap "
            f"{self.gap_ms_max:.0f} ms, {self.in_short}"
        )

    @property
    def failures(self) -> list[str]:
        """What is not as promised, in words."""
        found = self.violations
        if self.gap_ms_limit is not None and self.gap_ms_max >= self.gap_ms_limit:
            found.append(f"a gap of {self.gap_ms_max:.0f} ms")
        if self.drift is not None and abs(self.drift) > THROUGHPUT_DRIFT_MAX:
            found.append(f"throughput changed by {self.drift:+.0%} more than the machine's speed")
        if self.growth_mb is not None and self.growth_mb > GROWTH_MB_MAX:
            found.append(f"a process grew by {self.growth_mb:.0f} MB")
        if self.disk_growth is not None and self.disk_growth > DISK_GROWTH_MAX:
            found.append(f"files grew by {self.disk_growth:.0%}")
        if self.missing:
            found.append(f"{self.missing} values are not what was written")
        if (
            self.answers_s is not None
            and self.first_start_answers_s is not None
            and self.answers_s > SLOWER_MAX * self.first_start_answers_s
        ):
            found.append(f"{self.answers_s:.1f} s to be back, and {self.first_start_answers_s:.1f} s to start")
        if self.rejoined == 0:
            found.append("no committer had to rejoin without its journal")
        if self.fetched == 0:
            found.append("no base had to be fetched from another server")
        return found


class Others(NamedTuple):
    """Sessions, and commands in them, that are not of the load: they count as executed, too."""

    sessions: int = 0
    commands: int = 0


class DrillRun:
    """One drill as it goes: a cluster under a recorded load."""

    def __init__(
        self,
        name: str,
        directory: Path,
        say: Say,
        settings: Mapping[str, str] | None = None,
        seconds: float = UNTIL_STOPPED_S,
        environment: Mapping[str, str] | None = None,
        cluster: Deployment | None = None,
        values: int = 0,
        value_bytes: int = 64,
    ) -> None:
        """With a cluster that is not to be `tara up`: settings and environment are its own. With so many values, those
        are written first, and then again and again; nobody's history is recorded then."""
        self.name = name
        self.say = say
        self.cluster = cluster or Deployment(directory / name, settings, environment=environment)
        self.cluster.start()
        self._filled = Others()
        if values:
            say(f"{name}: {values} values of {value_bytes} bytes are written")
            filled = write_all(self.cluster.endpoints, values, value_bytes)
            self._filled = Others(filled.sessions, filled.ordered)
        plan = LoadPlan(
            endpoints=self.cluster.endpoints,
            clients=CLIENTS,
            seconds=seconds,
            payload_bytes=value_bytes,
            values=values,
            reads=0.2,
            recorded_keys=0 if values else RECORDED_KEYS,
        )
        self.load = LoadProcess(plan)
        self.faults = 0
        self.full_strength_s: list[float] = []

    def harm(self, what: str, pid: int, number: signal.Signals) -> None:
        self.say(f"{self.name}: {number.name} to {what}, process {pid}")
        self.faults += 1
        send(pid, number)

    def await_full_strength(self, life: tuple[str, int] | None = None) -> None:
        """Wait until all is well again; with (container, life), until that container has a newer life."""
        began_s = time.monotonic()

        def healed(status: dict[str, Any]) -> bool:
            lives = {container["container"]: container["life"] for container in status["containers"]}
            return health.full_strength(status) and (life is None or lives[life[0]] > life[1])

        self.cluster.await_status(healed, "full strength")
        self.full_strength_s.append(round(time.monotonic() - began_s, 2))
        self.say(f"{self.name}: full strength after {self.full_strength_s[-1]:.1f} s")

    def verdict(self, gap_ms_limit: float | None = None, others: Others | None = None) -> DrillVerdict:
        """`others`: what was done beside the load."""
        self.load.stop()
        report = self.load.finish()
        linearizable = check(self.load.history, KeyValueModel()).linearizable
        status = self.cluster.await_status(
            lambda found: health.replicas_equal(found) is not None, "replicas that are equally far", digests=True
        )
        # Every command counts once, and so do the opening and the end of every session.
        others, filled = others or Others(), self._filled
        sessions = report.sessions + others.sessions + filled.sessions
        executed = health.counter(status) - 2 * sessions - others.commands - filled.commands
        return DrillVerdict(
            drill=self.name,
            faults=self.faults,
            throughput_per_s=report.throughput_per_s,
            latency_ms_p50=report.latency_ms_p50,
            latency_ms_p99=report.latency_ms_p99,
            gap_ms_max=report.gap_ms_max,
            full_strength_s=self.full_strength_s,
            restarts=sum(container["restarts"] for container in status["containers"]),
            lost=report.lost,
            duplicated=max(executed - report.ordered, 0),
            linearizable=linearizable,
            replicas_equal=bool(health.replicas_equal(status)),
            recorded=len(self.load.history),
            halted=health.halted(status),
            gap_ms_limit=gap_ms_limit,
        )


def count_events(directory: Path, event: str) -> int:
    """How often the containers that keep their files below this directory logged it."""
    lines = (line for path in directory.rglob("logs/*.log") for line in path.read_bytes().splitlines())
    return sum(msgspec.json.decode(line)["event"] == event for line in lines)
