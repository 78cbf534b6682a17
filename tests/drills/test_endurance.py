"""What the drills that last make of what they have seen; they themselves: `make soak`."""

from pathlib import Path

import pytest

from tara.drills.drill_run import DrillVerdict
from tara.drills.endurance import _compare, _disk_mb, _Look, _Second, flat
from tara.operations.deployment import DrillError

#: After two minutes, quarters of two minutes each.
END_S = 600


def verdict() -> DrillVerdict:
    return DrillVerdict(
        drill="flat",
        faults=0,
        throughput_per_s=1.0,
        latency_ms_p50=1.0,
        latency_ms_p99=1.0,
        gap_ms_max=1.0,
        full_strength_s=[],
        restarts=0,
        lost=0,
        duplicated=0,
        linearizable=True,
        replicas_equal=True,
        recorded=0,
        halted={},
    )


def judged(
    rates: tuple[int, int] = (1000, 1000),
    works_s: tuple[float, float] = (0.01, 0.01),
    resident: tuple[float, float] = (100.0, 100.0),
    disk: tuple[float, float] = (300.0, 300.0),
) -> DrillVerdict:
    """Each pair is what was so in the first half, and then."""
    found = verdict()
    seconds = [_Second(float(at), rates[at >= 400], works_s[at >= 400]) for at in range(END_S + 1)]
    looks = [
        # Bases come and go.
        _Look(float(at), {"site-0": resident[at >= 400] - 40 * (at % 20 > 5)}, disk[at >= 400] / (1 + (at % 30 > 5)))
        for at in range(0, END_S, 5)
    ]
    _compare(found, seconds, looks)
    return found


def test_what_stays_level_passes() -> None:
    found = judged()

    assert (found.drift, found.machine_drift, found.growth_mb, found.disk_growth) == (0.0, 0.0, 0.0, 0.0)
    assert found.failures == []


def test_what_drifts_fails_the_drill() -> None:
    assert judged(rates=(1000, 850)).failures == ["throughput changed by -15% more than the machine's speed"]
    assert judged(resident=(100.0, 160.0)).failures == ["a process grew by 60 MB"]
    assert judged(disk=(300.0, 360.0)).failures == ["files grew by 20%"]
    lacking = judged()
    lacking.missing = 2
    assert lacking.failures == ["2 values are not what was written"]


def test_a_slower_machine_is_no_drift() -> None:
    found = judged(rates=(1000, 800), works_s=(0.01, 0.0125))

    assert (found.drift, found.machine_drift, found.failures) == (0.0, -0.2, [])


def test_too_short_a_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DrillError, match="flat needs 4 minutes at least, and not 1"):
        flat(tmp_path, print, minutes=1.0)


def test_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "log-0").mkdir()
    (tmp_path / "log-0" / "a").write_bytes(bytes(1_500_000))
    (tmp_path / "b").write_bytes(bytes(500_000))

    assert _disk_mb(tmp_path) == 2.0
