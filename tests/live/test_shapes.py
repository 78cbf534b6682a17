"""Clusters of other shapes than the usual one, on real Spark: several partitions, a process per node; and a driver that
stands still."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tara.bench.load_process import LoadPlan, LoadProcess
from tara.client import KeyValueClient
from tara.drills.drill_run import count_events
from tara.operations import health
from tara.operations.deployment import Deployment
from tara.simulator.checks.linearizability import KeyValueModel, check

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: Longer than a slow machine stands still, shorter than the driver does below.
HUNG_AFTER_S = 6.0
PAUSE_S = 8.0


@contextmanager
def deployed(directory: Path, **settings: object) -> Iterator[Deployment]:
    cluster = Deployment(directory / "data", {key: str(value) for key, value in settings.items()})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def partitioned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("partitioned")
    with deployed(directory, durability="memory", partitions=3, hung_after_s=HUNG_AFTER_S) as cluster:
        yield cluster


def check_service(cluster: Deployment) -> None:
    """A load on a cluster that nobody has used: nothing lost, nothing executed twice, in one order everywhere."""
    plan = LoadPlan(endpoints=cluster.endpoints, clients=12, seconds=2.0, warm_up_s=0.5, reads=0.3, recorded_keys=6)
    load = LoadProcess(plan)
    rates = [rate for _, rate in load.seconds()]
    report = load.finish()

    assert 1 <= len(rates) <= 4
    assert sum(rates) <= report.answered
    assert (report.lost, report.errors) == (0, 0)
    assert report.answered >= plan.clients
    assert check(load.history, KeyValueModel()).linearizable
    executed = report.ordered + 2 * report.sessions
    status = cluster.await_status(
        lambda found: health.replicas_equal(found) is not None and health.counter(found) >= executed,
        "equally far replicas",
        digests=True,
    )
    assert health.replicas_equal(status)
    assert health.counter(status) == executed


def test_a_process_per_node_serves_clients(tmp_path: Path) -> None:
    # Dozens of processes on few processors: each is silent now and then.
    with deployed(tmp_path, durability="memory", packing="node", hung_after_s=120) as cluster:
        check_service(cluster)


def test_several_partitions_serve_clients(partitioned: Deployment) -> None:
    check_service(partitioned)


def test_a_pause_of_the_driver_harms_nobody(partitioned: Deployment) -> None:
    """It hears nobody for longer than a container may be silent; they go on, and none of them is to blame."""
    driver, before = partitioned.pids()["driver"], health.counter(partitioned.status())
    with KeyValueClient(partitioned.endpoints, timeout_s=60) as client:
        os.killpg(driver, signal.SIGSTOP)
        try:
            end_s, number = time.monotonic() + PAUSE_S, 0
            while time.monotonic() < end_s:
                number += 1
                client.put("city", str(number).encode())
                time.sleep(0.1)
        finally:
            os.killpg(driver, signal.SIGCONT)
        assert client.get("city") == str(number).encode()
    # It has heard every container since, so it finds nobody silent any more.
    status = partitioned.await_status(
        lambda found: (
            health.full_strength(found)
            and all(executor["counter"] >= before + number for executor in health.executors(found))
        ),
        "full strength, and news of every container",
    )
    assert [container["restarts"] for container in status["containers"]] == [0, 0, 0]
    assert count_events(partitioned.data_dir, "hung") == 0
