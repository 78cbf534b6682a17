"""The decided log, a backup and a restored cluster on local Spark: real processes and kills."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tara.bench.load import Load
from tara.client import KeyValueClient
from tara.configuration.settings import Settings, load_settings
from tara.live.spark import Cluster
from tara.operations.backup import back_up, restore
from tara.operations.fresh_checkpoint import await_fresh_checkpoint
from tara.storage.base_format import base_directory
from tara.storage.log import log_directory
from tara.storage.log_reader import LogReader
from tests.patience import DEADLINE_S, await_condition, patient

pytestmark = pytest.mark.spark


def settings_for(directory: Path) -> Settings:
    flags = {"data_dir": str(directory), "checkpoint_interval": 256, "window": 2048, "log": True}
    return load_settings(environment={}, flags=flags)


def client_at(cluster: Cluster, container: int) -> KeyValueClient:
    endpoint = cluster.registry.members[container].client_address
    assert endpoint is not None
    return patient(endpoint)


def is_back(cluster: Cluster, container: int) -> bool:
    return cluster.registry.state.lives[container] >= 2 and cluster.registry.ready()


def counters(cluster: Cluster) -> list[int]:
    return [found["counter"] for found in cluster.registry.executors()]


def whole_logs_agree(cluster: Cluster, logs: list[LogReader], last: int) -> bool:
    """Whether all logs have what was executed, and this command at least (what the registry knows of executors may be
    of a moment ago), and are equal where they overlap. Reading checks that nothing is missing."""
    end = max(last, *counters(cluster)) + 1
    bounds = [log.bounds() for log in logs]
    if min(found.end for found in bounds) < end:
        return False
    first = max(found.first for found in bounds)
    tables = [log.read(first, end) for log in logs]
    assert all(table.equals(tables[0]) for table in tables)
    assert tables[0].column("counter").to_pylist() == list(range(first, end))
    return True


def test_a_cluster_is_backed_up_under_load_and_restored_as_another(tmp_path: Path) -> None:
    old = Cluster(settings_for(tmp_path / "old"))
    try:
        old.start()
        with client_at(old, 0) as client:
            client.put("city", b"Erlangen")
            # Three commands so far: without help it would be long before there is a checkpoint.
            fresh = await_fresh_checkpoint(tmp_path / "old")
            assert back_up(tmp_path / "old", tmp_path / "early").checkpoint == fresh == 1
            load = Load(",".join(old.registry.endpoints), clients=16)
            load.open()
            victims = [old.registry.members[1].pid]
            loaded_s = time.monotonic()

            def kill_once(now_s: float, count: int) -> None:
                if victims:
                    os.kill(victims.pop(), signal.SIGKILL)

            def enough() -> bool:
                """Some seconds, and more checkpoints than there were, on however slow a machine."""
                stable = max((found["stable"] for found in old.registry.executors()), default=0)
                return not victims and stable > fresh + 1 and time.monotonic() > loaded_s + 2.5

            load.run(seconds=DEADLINE_S, warm_up_s=0.5, on_second=kill_once, stop=enough)
            header = back_up(tmp_path / "old", tmp_path / "file")
            client.put("city", b"Bamberg")
            load.close()
            await_condition(lambda: is_back(old, 1), "the killed container's next life")
            assert header.counter > 256
            logs = [LogReader(log_directory(tmp_path / "old", replica)) for replica in range(3)]
            await_condition(lambda: whole_logs_agree(old, logs, header.counter), "the logs of all replicas")
            assert [log.bounds().first for log in logs] == [1, 1, 1]
    finally:
        old.stop()

    restore(tmp_path / "file", settings_for(tmp_path / "new"))
    # One executor has lost its disk before it ever started: it must not begin with an empty state.
    shutil.rmtree(base_directory(tmp_path / "new", 2))
    new = Cluster(settings_for(tmp_path / "new"))
    try:
        new.start()
        assert new.registry.state.cluster != header.cluster
        with client_at(new, 1) as client:
            assert client.get("city") == b"Erlangen"
            client.put("city", b"Hof")
            os.kill(new.registry.members[0].pid, signal.SIGKILL)
            assert client.get("city") == b"Hof"
        await_condition(lambda: is_back(new, 0), "the killed container's next life")
        for container in range(3):
            with client_at(new, container) as one:
                await_condition(lambda: one.get("city", stale=True) == b"Hof", f"the state of {container}")
        logs = [LogReader(log_directory(tmp_path / "new", replica)) for replica in range(3)]
        await_condition(lambda: whole_logs_agree(new, logs, header.counter + 1), "the logs of all replicas")
        assert [log.bounds().first for log in logs] == [header.counter + 1] * 3
    finally:
        new.stop()
