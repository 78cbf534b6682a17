"""How soon a cluster answers: from `tara up` to the first answered write, and to full strength."""

import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from tara.client import KeyValueClient
from tara.live.observability.events import log_path
from tara.live.start_phases import PHASES
from tara.net.addresses import free_row
from tara.operations import health
from tara.operations.deployment import START_TIMEOUT_S, Deployment, DrillError, Say

#: Of a cluster with f = 1.
SITES = 3


class MeasuredStart(Struct, frozen=True):
    answers_s: float
    full_strength_s: float
    phases_s: dict[str, float]


class Starts:
    """Several of one kind."""

    def __init__(self) -> None:
        self._all: list[MeasuredStart] = []

    def add(self, start: MeasuredStart) -> None:
        self._all.append(start)

    @property
    def answers_s(self) -> list[float]:
        return [start.answers_s for start in self._all]

    @property
    def full_strength_s(self) -> list[float]:
        return [start.full_strength_s for start in self._all]

    @property
    def answers_s_median(self) -> float:
        return round(statistics.median(self.answers_s), 2)

    @property
    def phases_s_median(self) -> dict[str, float]:
        return {phase: round(statistics.median(start.phases_s[phase] for start in self._all), 2) for phase in PHASES}

    @property
    def said(self) -> str:
        """Of the last one."""
        return describe(self._all[-1])


def describe(start: MeasuredStart) -> str:
    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in start.phases_s.items())
    return f"answers after {start.answers_s:.1f} s, full strength after {start.full_strength_s:.1f} s ({phases})"


def measure(deployment: Deployment, write: Callable[[], None]) -> MeasuredStart:
    """Start it, while somebody wants to write: `write` returns when it is answered."""
    began_s = time.monotonic()

    def answered_s() -> float:
        write()
        return time.monotonic() - began_s

    with ThreadPoolExecutor(1) as executor:
        deployment.launch()
        try:
            answered = executor.submit(answered_s)
            deployment.await_endpoints()
            deployment.await_status(health.full_strength, "full strength after the start", START_TIMEOUT_S)
            full_strength_s = time.monotonic() - began_s
            answers_s = answered.result()
        except BaseException:
            deployment.stop()
            raise
    return MeasuredStart(round(answers_s, 2), round(full_strength_s, 2), _phases_s(deployment.data_dir))


def first_start(directory: Path, say: Say) -> MeasuredStart:
    """Of a new cluster, which is not left running."""
    port = free_row(SITES)
    endpoints = ",".join(f"127.0.0.1:{port + site}" for site in range(SITES))
    deployment = Deployment(directory, {"port": str(port)})

    def write() -> None:
        with KeyValueClient(endpoints, timeout_s=START_TIMEOUT_S) as client:
            client.put("first", b"")

    try:
        found = measure(deployment, write)
    finally:
        deployment.stop()
        shutil.rmtree(directory, ignore_errors=True)
    say(f"first start: {describe(found)}")
    return found


def _phases_s(data_dir: Path) -> dict[str, float]:
    """Of the last start, as its driver told."""
    lines = log_path(data_dir, "registry").read_bytes().splitlines()
    events = [msgspec.json.decode(line) for line in lines if b'"cluster_started"' in line]
    if not events:
        raise DrillError(f"{data_dir}: the driver did not tell of its start")
    return dict(events[-1]["details"]["seconds"])
