"""What a large state costs: a small one, on a real cluster; and proof that the figures can be bad."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tara.bench import state
from tara.bench.base_watch import BaseWatch, SeenBase
from tara.bench.filling import missing_values
from tara.bench.load import key_of, value_of
from tara.cli import app
from tara.client import KeyValueClient
from tara.drills.process_cluster import ProcessCluster
from tara.storage.base_format import base_directory


@pytest.mark.spark
@pytest.mark.slow
def test_a_cluster_with_many_values_is_measured_beside_an_empty_one() -> None:
    result = CliRunner().invoke(
        app,
        ["bench", "state", "--values", "5000", "--value-bytes", "2000", "--seconds", "3", "--turns", "1", "--json"],
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["state_bytes"] > 5000 * 2000
    assert (len(report["empty_per_s"]), len(report["full_per_s"])) == (2, 1)
    for name in ("throughput_ratio", "p99_ratio", "loading_per_s", "recovery_s", "transfer_s", "recovery_p99_ratio"):
        assert report[name] > 0, name
    assert len(report["memory_mb"]) == len(report["base_s"]) == 3
    assert report["capture_memory_ratio"] >= 1.0
    # Once to the journal, once to the log.
    assert report["written_per_command_byte"] > 2.0
    assert (report["lost"], report["errors"], report["missing"], report["unequal"]) == (0, 0, 0, False)


def test_each_turn_is_compared_with_those_beside_it() -> None:
    assert state._ratio([10.0, 30.0, 9.0], [10.0, 30.0, 10.0, 10.0]) == 0.9


def test_a_base_is_seen_while_it_is_written(tmp_path: Path) -> None:
    directory = base_directory(tmp_path, 0)
    directory.mkdir()
    (directory / "000000000007.base").write_bytes(b"x" * 100)
    watch = BaseWatch(tmp_path, {0: 1})
    watch.stop()
    seen = [(0.0, 10, False), (1.0, 11, False), (2.0, 15, True), (3.0, 13, True), (4.0, 12, False)]
    watch._seen[0] = seen
    assert watch.stop() == [SeenBase(bytes=100, seconds=1.0, before=11, most=15, after=12)]
    watch._seen[0] = [(0.0, 10, False)]
    assert watch.stop() == []


def test_values_that_are_not_there_are_counted(tmp_path: Path) -> None:
    report = state.StateReport(values=10, value_bytes=50, clients=state.CLIENTS, turns=1)
    with ProcessCluster.whole(tmp_path, {"durability": "memory"}) as cluster:
        with KeyValueClient(cluster.endpoints) as client:
            for index in range(10):
                client.put(key_of(index), value_of(50) if index != 3 else b"another")
            client.delete(key_of(7))
        assert missing_values(cluster.endpoints, report.values, report.value_bytes) == 2
    assert report.all_is_there
    report.missing = 2
    assert not report.all_is_there
