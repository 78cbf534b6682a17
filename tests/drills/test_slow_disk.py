"""Slow disks under a live cluster; longer: `make soak`."""

import threading
import time
from pathlib import Path

from tara.drills.slow_disk import EVEN_MIN, Carrier, SlowDisk, SlowDiskVerdict, slow_disk
from tests.patience import await_condition


def test_clients_are_slowed_down_evenly(tmp_path: Path) -> None:
    verdict = slow_disk(tmp_path, print, seconds=15.0)

    # How evenly clients are served, and whether one loses patience, says something on a quiet machine only.
    assert [
        failure for failure in verdict.failures if "one client" not in failure and "sent again" not in failure
    ] == []
    assert verdict.errors == 0
    assert verdict.client_least > 10
    assert verdict.recorded > 100


def test_what_is_synced_takes_its_time_whoever_wrote_it(tmp_path: Path) -> None:
    disk = SlowDisk(1_000_000)
    files = [disk.create(tmp_path / name) for name in ("a", "b")]
    began_s = time.monotonic()
    for file in files:
        file.append(bytes(100_000))
    assert time.monotonic() - began_s < 0.09
    files[1].sync()
    assert 0.1 <= time.monotonic() - began_s < 0.19
    again = disk.open(tmp_path / "a")
    again.sync()
    assert time.monotonic() - began_s >= 0.2
    for file in (*files, again):
        file.close()
    assert (tmp_path / "a").read_bytes() == bytes(100_000)


def test_a_carrier_serves_first_who_comes_first() -> None:
    carrier, began_s = Carrier(1_000_000), time.monotonic()
    thread = threading.Thread(target=carrier.carry, args=(200_000,))
    thread.start()
    await_condition(lambda: carrier._free_at_s, "a long one is on its way")
    carrier.carry(1_000)
    assert time.monotonic() - began_s >= 0.201
    thread.join()


def verdict_of(**changes: object) -> SlowDiskVerdict:
    fields: dict[str, object] = {
        "bytes_per_s": 1,
        "seconds": 1.0,
        "throughput_per_s": 1.0,
        "latency_ms_p50": 1.0,
        "latency_ms_p99": 1.0,
        "gap_ms_max": 1.0,
        "client_least": 60,
        "client_most": 100,
        "bases": 3,
        "view_changes": 0,
        "resent": 0,
        "errors": 0,
        "died": [],
        "halted": {},
        "lost": 0,
        "duplicated": 0,
        "linearizable": True,
        "recorded": 1,
        "replicas_equal": True,
    }
    return SlowDiskVerdict(**{**fields, **changes})  # type: ignore[arg-type]


def test_what_is_not_as_promised_fails_the_drill() -> None:
    assert verdict_of().failures == []
    for changes in (
        {"view_changes": 1},
        {"resent": 1},
        {"errors": 1},
        {"client_least": int(100 * EVEN_MIN) - 1},
        {"bases": 0},
        {"lost": 1},
        {"died": ["site-0"]},
        {"linearizable": False},
        {"replicas_equal": False},
    ):
        assert len(verdict_of(**changes).failures) == 1, changes
