"""Drills that last: no harm for a long time, or random harm all the time. Throughput and memory must stay level."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple

from tara.bench.filling import missing_values
from tara.bench.processors import work_s
from tara.drills.bad_network import random_fault
from tara.drills.drill_run import DrillRun, DrillVerdict
from tara.drills.proxied import Proxied
from tara.operations.deployment import DrillError, Say, children, send

#: A process has its size by then.
WARM_S = 120
#: Less would not tell a drift from noise.
FLAT_MINUTES_MIN = 4.0
#: How often memory and files are looked at: more often than bases are written.
LOOK_S = 5.0
#: The length of a value of the state.
VALUE_BYTES = 1000


class _Second(NamedTuple):
    at_s: float
    rate: int
    #: What a fixed piece of work took then: what a processor does in a second may change by a fifth within minutes.
    work_s: float


class _Look(NamedTuple):
    at_s: float
    resident_mb: dict[str, float]
    disk_mb: float


def flat(directory: Path, say: Say, minutes: float = 10.0, state_mb: int = 0) -> DrillVerdict:
    """No harm, but a long time, and perhaps a large state: throughput, memory and files are to stay as they are. Of the
    time after the warm-up, the last quarter is compared with the second one; throughput by the machine's own speed."""
    if minutes < FLAT_MINUTES_MIN:
        raise DrillError(f"flat needs {FLAT_MINUTES_MIN:.0f} minutes at least, and not {minutes:.0f}")
    values = state_mb * 1_000_000 // VALUE_BYTES
    drill = DrillRun("flat", directory, say, seconds=60.0 * minutes, values=values, value_bytes=VALUE_BYTES)
    try:
        seconds: list[_Second] = []
        looks: list[_Look] = []
        for at_s, rate in drill.load.seconds():
            seconds.append(_Second(at_s, rate, work_s()))
            if not looks or at_s >= looks[-1].at_s + LOOK_S:
                looks.append(_Look(at_s, _resident_mb(drill.cluster.pids()), _disk_mb(drill.cluster.data_dir)))
            if len(seconds) % 30 == 0:
                _tell(say, seconds[-30:], looks[-1])
        verdict = drill.verdict()
        _compare(verdict, seconds, looks)
        if values:
            say("flat: every value is read")
            verdict.missing = missing_values(drill.cluster.endpoints, values, VALUE_BYTES)
        return verdict
    finally:
        drill.cluster.stop()


def _tell(say: Say, seconds: list[_Second], look: _Look) -> None:
    rate, work_ms = fmean(found.rate for found in seconds), fmean(found.work_s for found in seconds) * 1e3
    sizes = " ".join(f"{name} {size:.0f}" for name, size in look.resident_mb.items())
    say(
        f"flat: {seconds[-1].at_s:4.0f} s  {rate:.0f} commands/s  MB: {sizes} files {look.disk_mb:.0f}  "
        f"a fixed piece of work: {work_ms:.2f} ms"
    )


def _compare(verdict: DrillVerdict, seconds: list[_Second], looks: list[_Look]) -> None:
    quarter_s = (seconds[-1].at_s - WARM_S) / 4
    begin_s, end_s = WARM_S + quarter_s, WARM_S + 3 * quarter_s

    def before(at_s: float) -> bool:
        return begin_s <= at_s < begin_s + quarter_s

    first, last = [found for found in seconds if before(found.at_s)], [f for f in seconds if f.at_s >= end_s]
    machine = fmean(found.work_s for found in first) / fmean(found.work_s for found in last)
    rates = fmean(found.rate for found in last) / fmean(found.rate for found in first)
    verdict.drift, verdict.machine_drift = round(rates / machine - 1, 3), round(machine - 1, 3)
    # Both go up and down, with what is in flight and with bases: the highest is compared with the highest.
    early, late = [look for look in looks if before(look.at_s)], [look for look in looks if look.at_s >= end_s]
    growth = {
        name: max(look.resident_mb[name] for look in late) - max(look.resident_mb[name] for look in early)
        for name in early[0].resident_mb
    }
    verdict.growth_mb = round(max(growth.values()), 1)
    verdict.disk_growth = round(max(look.disk_mb for look in late) / max(look.disk_mb for look in early) - 1, 3)


def chaos(directory: Path, say: Say, minutes: float = 60.0, seed: int = 1) -> DrillVerdict:
    """Random containers are killed or stopped, random links between sites cut, stalled, slowed or made lossy, every few
    seconds, at most f sites at a time."""
    random = Random(seed)
    cluster = Proxied(directory / "chaos", seed)
    drill = DrillRun("chaos", directory, say, cluster=cluster)
    try:
        began_s = time.monotonic()
        end_s, before_s = began_s + 60.0 * minutes, began_s + min(WARM_S, 12.0 * minutes)
        before: dict[str, float] = {}
        while time.monotonic() < end_s:
            if not before and time.monotonic() >= before_s:
                before = _resident_mb(drill.cluster.pids())
            victim = random.choice(drill.cluster.status()["containers"])
            kind = random.random()
            if kind < 0.4:
                fault = random_fault(cluster.network, random)
                say(f"chaos: {fault.weather} {fault.what}")
                drill.faults += 1
                cluster.network.turn(fault.weather, fault.links)
                time.sleep(random.uniform(0.5, 4.0))
                cluster.network.heal()
                drill.await_full_strength()
            elif kind < 0.75:
                drill.harm(victim["container"], victim["pid"], signal.SIGKILL)
                drill.await_full_strength((victim["container"], victim["life"]))
            else:
                drill.harm(victim["container"], victim["pid"], signal.SIGSTOP)
                time.sleep(random.uniform(0.1, 3.0))
                send(victim["pid"], signal.SIGCONT)
                drill.await_full_strength()
            time.sleep(random.uniform(0.0, 3.0))
        after = _resident_mb(drill.cluster.pids())
        say("chaos: MB " + "  ".join(f"{name} {before[name]:.0f} → {after[name]:.0f}" for name in before))
        verdict = drill.verdict()
        verdict.growth_mb = round(max(after[name] - before[name] for name in before), 1)
        return verdict
    finally:
        drill.cluster.stop()


def _resident_mb(pids: Mapping[str, int]) -> dict[str, float]:
    """The memory of the processes and, for the driver, of its JVM. (The load may be a child of the driver, too; it
    remembers the whole history.)"""
    sizes = {name: _rss_mb(pid) for name, pid in pids.items()}
    jvms = [child for child in children(pids["driver"]) if _command(child) == "java"]
    if not jvms:
        raise DrillError(f"the driver, process {pids['driver']}, has no JVM")
    return {**sizes, "jvm": sum(map(_rss_mb, jvms))}


def _disk_mb(data_dir: Path) -> float:
    """Of all files that are there; some go meanwhile."""
    total = 0
    for root, _, names in os.walk(data_dir):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(root) / name).stat().st_size
    return total / 1e6


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        # It has just ended.
        return ""


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
