"""Proposer failures: throughput over time, while the active proposer is killed twice, and what happened when."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from evaluation.plan import SOME_CLIENTS, Plan
from evaluation.results import Moment, Timeline
from tara.bench.load_process import LoadPlan, LoadProcess
from tara.live.observability.events import Event
from tara.operations import health
from tara.operations.deployment import FULL_STRENGTH_TIMEOUT_S, Deployment, DrillError, Say
from tara.operations.registry_client import NoRegistry

INTERVAL_S = 0.25
POLL_S = 0.05

CRASH, VIEW_CHANGE, RESTART, FULL_STRENGTH = "crash", "view change", "restart", "full strength"
#: The events of the containers' logs, and of the registry's, that a reader of the figure looks for.
_KINDS = {"became_active": VIEW_CHANGE, "restarted": RESTART}


class _Watcher:
    """Kills on time, and looks when all is well again."""

    def __init__(self, cluster: Deployment, crashes_at_s: tuple[float, ...], end_s: float, say: Say) -> None:
        self._cluster = cluster
        self._crashes_at_s = crashes_at_s
        self._end_s = end_s
        self._say = say
        self._began_s = time.time()
        self.moments: list[Moment] = []
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def began_s(self) -> float:
        return self._began_s

    def _now_s(self) -> float:
        return time.time() - self._began_s

    def _run(self) -> None:
        try:
            # After the last crash it is waited for, even if the load has ended.
            ends_s = (*self._crashes_at_s[1:], self._end_s + FULL_STRENGTH_TIMEOUT_S)
            for at_s, until_s in zip(self._crashes_at_s, ends_s, strict=True):
                time.sleep(max(at_s - self._now_s(), 0.0))
                self._crash_leader(until_s)
        except (DrillError, NoRegistry, OSError) as error:
            self.failure = error

    def _crash_leader(self, until_s: float) -> None:
        leader = self._cluster.await_leader()
        os.kill(leader["pid"], signal.SIGKILL)
        self._note(CRASH, leader["container"])
        while self._now_s() < until_s:
            try:
                status = self._cluster.status()
            except NoRegistry:
                continue
            if self._healed(status, leader):
                self._note(FULL_STRENGTH, "all")
                return
            time.sleep(POLL_S)

    @staticmethod
    def _healed(status: dict[str, Any], victim: dict[str, Any]) -> bool:
        lives = {container["container"]: container["life"] for container in status["containers"]}
        return bool(health.full_strength(status)) and lives[victim["container"]] > victim["life"]

    def _note(self, kind: str, what: str) -> None:
        self.moments.append(Moment(at_s=round(self._now_s(), 3), kind=kind, what=what))
        self._say(f"    {self._now_s():6.1f} s  {kind}: {what}")

    def finish(self) -> list[Moment]:
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        return self.moments


def measure(cluster: Deployment, plan: Plan, say: Say) -> Timeline:
    load = LoadProcess(
        LoadPlan(
            endpoints=cluster.endpoints,
            clients=SOME_CLIENTS,
            seconds=plan.failures_seconds,
            warm_up_s=0.0,
            interval_s=INTERVAL_S,
        )
    )
    watcher = _Watcher(cluster, plan.crashes_at_s, plan.failures_seconds, say)
    rates, before_s = [], 0.0
    for at_s, count in load.seconds():
        rates.append((round(at_s, 3), round(count / (at_s - before_s), 1)))
        before_s = at_s
    report = load.report
    assert report is not None
    moments = watcher.finish()
    crashed_s = min((moment.at_s for moment in moments), default=0.0)
    logged = [moment for moment in _logged(cluster.data_dir, watcher.began_s) if moment.at_s >= crashed_s]
    return Timeline(
        interval_s=INTERVAL_S,
        rates=rates,
        moments=sorted([*moments, *logged], key=lambda moment: moment.at_s),
        gap_ms_max=report.gap_ms_max,
        lost=report.lost,
    )


def _logged(data_dir: Path, began_s: float) -> Iterator[Moment]:
    """What containers and registry have written down since then."""
    for path in sorted((data_dir / "logs").glob("*.log")):
        for line in path.read_bytes().splitlines():
            event = msgspec.json.decode(line, type=Event)
            at_s = datetime.fromisoformat(event.time).timestamp() - began_s
            if event.event in _KINDS and at_s >= 0:
                what = event.node or str(event.details.get("container", event.container))
                yield Moment(at_s=round(at_s, 3), kind=_KINDS[event.event], what=what)


def service_after_last_crash(timeline: Timeline) -> float:
    """Throughput in the last quarter of the time after the last crash, as a share of that before the first."""
    crashes = [moment.at_s for moment in timeline.moments if moment.kind == CRASH]
    if not crashes or not timeline.rates:
        return 0.0
    end_s = timeline.rates[-1][0]
    late = [rate for at_s, rate in timeline.rates if at_s > end_s - (end_s - crashes[-1]) / 4]
    # Without the first second, in which the load begins, and the interval of the crash.
    early = [rate for at_s, rate in timeline.rates if 1.0 < at_s < crashes[0]]
    if not late or not early or not sum(early):
        return 0.0
    return (sum(late) / len(late)) / (sum(early) / len(early))
