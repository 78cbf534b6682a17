"""Drills that last: no harm for a long time, or random harm all the time. Throughput and memory must stay level."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random

from tara.bench.processors import work_s
from tara.drills.bad_network import random_fault
from tara.drills.drill_run import DrillRun, DrillVerdict
from tara.drills.proxied import Proxied
from tara.operations.deployment import DrillError, Say, children, send

#: A process has its size by then.
WARM_S = 120


def flat(directory: Path, say: Say, minutes: float = 10.0) -> DrillVerdict:
    """No harm, but a long time: throughput and memory are to stay as they are. Machines do not: what a processor does
    in a second may change by a fifth within minutes, so it is measured all the time, and the ratio is judged."""
    drill = DrillRun("flat", directory, say, seconds=60.0 * minutes)
    try:
        rates: list[int] = []
        works_s: list[float] = []
        before: dict[str, float] = {}
        after: dict[str, float] = {}
        for second, rate in drill.load.seconds():
            rates.append(rate)
            works_s.append(work_s())
            if int(second) == WARM_S + 2:
                before = _resident_mb(drill.cluster.pids())
            if int(second) % 30 == 0:
                after = _resident_mb(drill.cluster.pids())
                sizes = " ".join(f"{name} {size:.0f}" for name, size in after.items())
                work_ms = sum(works_s[-30:]) / len(works_s[-30:]) * 1e3
                say(
                    f"flat: {second:4.0f} s  {sum(rates[-30:]) / 30:.0f} commands/s  MB: {sizes}  "
                    f"a fixed piece of work: {work_ms:.2f} ms"
                )
        verdict = drill.verdict()
        machine = sum(works_s[62 : WARM_S + 2]) / sum(works_s[-61:-1])
        verdict.drift = round(sum(rates[-61:-1]) / sum(rates[62 : WARM_S + 2]) / machine - 1, 3)
        verdict.machine_drift = round(machine - 1, 3)
        verdict.growth_mb = round(max(after[name] - before[name] for name in before), 1)
        return verdict
    finally:
        drill.cluster.stop()


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


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        # It has just ended.
        return ""


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
