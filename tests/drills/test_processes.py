"""Faults on a real cluster: `tara up` on local Spark, load, kills, and all checks.

What must hold on any machine is judged here. How long a gap may be is a promise for a machine with nothing else to do:
`make soak` runs the same drills one by one, with that judgement, and the long ones.
"""

import signal
from pathlib import Path

import pytest

from tara.drills import processes, servers
from tara.drills.drill_run import DrillRun
from tara.drills.processes import harm_leader, lose_everything
from tara.operations import health

pytestmark = pytest.mark.spark


def await_load(drill: DrillRun, commands: int = 500) -> None:
    """Until the clients of the load have had so many more commands executed."""
    before = health.counter(drill.cluster.status())
    drill.cluster.await_status(lambda found: health.counter(found) >= before + commands, f"{commands} commands")


@pytest.mark.slow
def test_leaders_die_and_hang_and_then_everything_dies(tmp_path: Path) -> None:
    """The leader is killed, then the next one; the one after it hangs, and is replaced without anybody's help; at last
    every process is killed, the driver as well, and started again. The clients of one load just retry."""
    # A machine that stands still for some seconds is not to pass for a container that hangs.
    drill = DrillRun("all", tmp_path, print, {"hung_after_s": "6"})
    try:
        for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP):
            await_load(drill)
            harm_leader(drill, number)
        replaced = sum(container["restarts"] for container in drill.cluster.status()["containers"])
        await_load(drill)
        lose_everything(drill)
        await_load(drill)
        verdict = drill.verdict()
    finally:
        drill.cluster.stop()
    assert verdict.failures == []
    assert verdict.recorded > 100
    assert verdict.faults == 4
    assert replaced >= 3


@pytest.mark.soak
def test_a_site_is_lost_with_its_driver_and_another_one_with_its_disk(tmp_path: Path) -> None:
    verdict = servers.sites(tmp_path, print, down_s=1.0)
    assert verdict.failures == []
    assert verdict.recorded > 100
    assert verdict.faults == 2


def test_committers_without_a_disk_are_killed_one_after_the_other(tmp_path: Path) -> None:
    verdict = processes.memory(tmp_path, print, kills=3)
    assert verdict.failures == []
    assert verdict.restarts == 3
