"""How soon a cluster answers: what is measured, and what is judged."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tara.drills import processes
from tara.drills.drill_run import SLOWER_MAX, DrillVerdict
from tara.drills.starts import MeasuredStart, Starts
from tara.live import worker_daemon
from tara.live.start_phases import PHASES, StartPhases, process_began_s


def verdict(answers_s: float | None, first_start_answers_s: float | None) -> DrillVerdict:
    return DrillVerdict(
        drill="loss",
        faults=1,
        throughput_per_s=1.0,
        latency_ms_p50=1.0,
        latency_ms_p99=1.0,
        gap_ms_max=1.0,
        full_strength_s=[],
        restarts=0,
        lost=0,
        duplicated=0,
        linearizable=True,
        recorded=1,
        replicas_equal=True,
        halted={},
        answers_s=answers_s,
        first_start_answers_s=first_start_answers_s,
    )


def test_a_loss_may_cost_no_more_than_a_first_start() -> None:
    assert verdict(None, None).failures == []
    assert verdict(8.0 * SLOWER_MAX, 8.0).failures == []
    assert verdict(14.0, 8.0).failures == ["14.0 s to be back, and 8.0 s to start"]


def test_medians_are_of_all_starts() -> None:
    starts = Starts()
    for seconds in (9.0, 1.0, 2.0):
        starts.add(MeasuredStart(seconds, seconds + 1, dict.fromkeys(PHASES, seconds)))

    assert starts.answers_s == [9.0, 1.0, 2.0]
    assert (starts.answers_s_median, starts.phases_s_median) == (2.0, dict.fromkeys(PHASES, 2.0))


def test_phases_add_up_from_the_beginning_of_the_process() -> None:
    began_s = process_began_s()
    phases = StartPhases(began_s)
    for phase in PHASES:
        phases.end(phase)
    age_s = time.monotonic() - began_s

    assert list(phases.seconds) == list(PHASES)
    assert sum(phases.seconds.values()) == pytest.approx(age_s, abs=0.1)
    # Not older than this machine, and younger than its parent's children may be.
    assert 0.0 < age_s < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_container_finds_its_modules_loaded() -> None:
    """Whatever a container imports by itself, the process that it is forked from has imported before."""
    script = (
        "import json, sys\n"
        "from importlib import import_module\n"
        f"for name in {worker_daemon.PRELOADED!r}: import_module(name)\n"
        "before = set(sys.modules)\n"
        "import tara.live.hosting, tara.live.container, tara.storage.journal, tara.protocol.nodes.factory\n"
        "print(json.dumps([sorted(set(sys.modules) - before), 'pyspark' in before, 'tara.live.registry' in before]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    # Nothing is left to load; and nothing of the driver's is loaded, nor PySpark, which is there anyway.
    assert json.loads(done.stdout) == [[], False, False]


@pytest.mark.soak
def test_after_a_loss_of_everything_a_cluster_is_back_as_soon_as_it_starts(tmp_path: Path) -> None:
    found = processes.loss(tmp_path, print, times=3)

    assert found.failures == []
    assert found.answers_s is not None
    assert found.phases_s is not None
    assert set(found.phases_s) == set(PHASES)
    assert sum(found.phases_s.values()) == pytest.approx(found.answers_s, rel=0.5)
