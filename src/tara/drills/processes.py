"""Drills that kill or stop processes: `tara up` as a user runs it on local Spark, real load, real signals."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tara.client import KeyValueClient
from tara.drills.drill_run import GAP_MS_MAX, DrillRun, DrillVerdict, Others, count_events
from tara.drills.starts import SITES, Starts, first_start, measure
from tara.net.addresses import free_row
from tara.operations.deployment import START_TIMEOUT_S, Say


def kill(directory: Path, say: Say) -> DrillVerdict:
    """SIGKILL of the active proposer's container."""
    return _harm_leaders("kill", directory, say, [signal.SIGKILL])


def kill_twice(directory: Path, say: Say) -> DrillVerdict:
    """The same, and when all is well again, the next leader."""
    return _harm_leaders("kill-twice", directory, say, [signal.SIGKILL, signal.SIGKILL])


def hang(directory: Path, say: Say) -> DrillVerdict:
    """SIGSTOP of the active proposer's container: hung, not dead. It is to be replaced without anybody's help."""
    return _harm_leaders("hang", directory, say, [signal.SIGSTOP])


def _harm_leaders(name: str, directory: Path, say: Say, signals: Sequence[signal.Signals]) -> DrillVerdict:
    drill = DrillRun(name, directory, say)
    try:
        time.sleep(4.0)
        for number in signals:
            harm_leader(drill, number)
            time.sleep(2.0)
        return drill.verdict(GAP_MS_MAX)
    finally:
        drill.cluster.stop()


def harm_leader(drill: DrillRun, number: signal.Signals) -> None:
    """Send a signal to the active proposer's container, and wait until all is well again."""
    leader = drill.cluster.await_leader()
    drill.harm(leader["container"], leader["pid"], number)
    drill.await_full_strength((leader["container"], leader["life"]))


def loss(directory: Path, say: Say, times: int = 10) -> DrillVerdict:
    """SIGKILL of every process, driver included, under load; then a start on the same data. The clients just retry. In
    turns with it, a new cluster is started for the first time: a loss should cost no more than that."""
    hosts = {"port": str(free_row(SITES))}
    drill = DrillRun("loss", directory, say, hosts)
    lost, first = Starts(), Starts()
    try:
        with KeyValueClient(drill.cluster.endpoints, timeout_s=START_TIMEOUT_S) as client:
            # Its session is there before anything is lost. (That its opening and end count is known by `verdict`.)
            client.put("loss", b"")
            for number in range(times):
                time.sleep(3.0)
                _kill_everything(drill)
                first.add(first_start(directory / f"first-{number}", say))
                lost.add(measure(drill.cluster, lambda: client.put("loss", b"")))
                drill.full_strength_s.append(lost.full_strength_s[-1])
                say(f"loss: again {lost.said}")
        time.sleep(2.0)
        verdict = drill.verdict(others=Others(sessions=1, commands=1 + times))
        verdict.answers_s, verdict.answers_s_each = lost.answers_s_median, lost.answers_s
        verdict.first_start_answers_s, verdict.first_start_answers_s_each = first.answers_s_median, first.answers_s
        verdict.first_start_full_strength_s = first.full_strength_s
        verdict.phases_s, verdict.first_start_phases_s = lost.phases_s_median, first.phases_s_median
        return verdict
    finally:
        drill.cluster.stop()


def _kill_everything(drill: DrillRun) -> None:
    drill.say(f"{drill.name}: SIGKILL to the driver and all containers")
    drill.faults += 1
    drill.cluster.kill_everything()


def lose_everything(drill: DrillRun) -> None:
    """SIGKILL to every process, and a start on the same data."""
    _kill_everything(drill)
    began_s = time.monotonic()
    drill.cluster.start()
    drill.full_strength_s.append(round(time.monotonic() - began_s, 2))
    drill.say(f"{drill.name}: up again after {drill.full_strength_s[-1]:.1f} s")


def memory(directory: Path, say: Say, kills: int = 50) -> DrillVerdict:
    """Durability in memory: SIGKILL of each committer's process in turn, at full strength each time."""
    drill = DrillRun("memory", directory, say, {"durability": "memory"})
    try:
        time.sleep(2.0)
        for number in range(kills):
            containers = drill.cluster.status()["containers"]
            victim = containers[number % len(containers)]
            drill.harm(victim["container"], victim["pid"], signal.SIGKILL)
            drill.await_full_strength((victim["container"], victim["life"]))
        verdict = drill.verdict()
        verdict.rejoined = count_events(directory / "memory", "rejoined")
        return verdict
    finally:
        drill.cluster.stop()
