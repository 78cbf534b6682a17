"""Fault drills on real clusters: `tara up` on local Spark, load, kills, and all checks. Long ones: `make soak`."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tara.client import KeyValueClient
from tara.experiments import drills
from tara.experiments.drills import Deployment, Verdict
from tara.experiments.load_process import LoadPlan, LoadProcess
from tara.operations import health
from tara.simulator.linearizability import KeyValueModel, check

pytestmark = pytest.mark.spark


def passed(verdict: Verdict) -> bool:
    assert verdict.failures == []
    assert verdict.recorded > 100
    return True


def test_the_leader_is_killed_and_then_the_next_one(tmp_path: Path) -> None:
    verdict = drills.kill_twice(tmp_path, print)
    assert passed(verdict)
    assert verdict.restarts == 2


def test_the_leader_hangs_and_is_replaced(tmp_path: Path) -> None:
    verdict = drills.hang(tmp_path, print, {"hung_after_s": "3"})
    assert passed(verdict)
    assert verdict.restarts == 1


def test_everything_dies_and_clients_just_retry(tmp_path: Path) -> None:
    verdict = drills.loss(tmp_path, print, times=2)
    assert passed(verdict)
    assert verdict.faults == 2


@pytest.mark.soak
def test_a_site_is_lost_with_its_driver_and_another_one_with_its_disk(tmp_path: Path) -> None:
    verdict = drills.sites(tmp_path, print, down_s=1.0)
    assert passed(verdict)
    assert verdict.faults == 2


def test_committers_without_a_disk_are_killed_one_after_the_other(tmp_path: Path) -> None:
    verdict = drills.memory(tmp_path, print, kills=3)
    assert passed(verdict)
    assert verdict.restarts == 3


@pytest.fixture(params=["partitions", "node"])
def unusual(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    settings = {"partitions": {"partitions": "3"}, "node": {"packing": "node"}}[request.param]
    cluster = Deployment(tmp_path / "data", {"durability": "memory", **settings})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_other_shapes_serve_clients(unusual: Deployment) -> None:
    plan = LoadPlan(endpoints=unusual.endpoints, clients=12, seconds=2.0, warm_up_s=0.5, reads=0.3, recorded_keys=6)
    load = LoadProcess(plan)
    rates = [rate for _, rate in load.seconds()]
    report = load.finish()

    assert 2 <= len(rates) <= 4
    assert sum(rates) <= report.answered
    assert (report.lost, report.errors) == (0, 0)
    assert report.answered > 100
    assert check(load.history, KeyValueModel()).linearizable
    status = unusual.await_status(lambda found: health.replicas_equal(found) is not None, "digests", digests=True)
    assert health.replicas_equal(status)
    assert health.counter(status) == report.ordered + 2 * plan.clients


def test_a_pause_of_the_driver_harms_nobody(tmp_path: Path) -> None:
    """It hears nobody for longer than a container may be silent; they go on, and none of them is to blame."""
    cluster = Deployment(tmp_path / "data", {"hung_after_s": "3"})
    try:
        cluster.start()
        driver = cluster.pids()["driver"]
        with KeyValueClient(cluster.endpoints) as client:
            os.killpg(driver, signal.SIGSTOP)
            try:
                for number in range(50):
                    client.put("city", str(number).encode())
                    time.sleep(0.1)
            finally:
                os.killpg(driver, signal.SIGCONT)
            time.sleep(2.0)
            assert client.get("city") == b"49"
        status = cluster.await_status(health.full_strength, "full strength")
        assert [container["restarts"] for container in status["containers"]] == [0, 0, 0]
    finally:
        cluster.stop()
