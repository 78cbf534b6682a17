"""The load of clients that pipeline, on a real cluster."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tara.bench.load_process import LoadPlan, LoadProcess
from tara.cli import app
from tara.drills.process_cluster import ProcessCluster
from tara.operations import health


def test_every_command_of_every_pipeline_is_answered_and_counted(tmp_path: Path) -> None:
    with ProcessCluster.whole(tmp_path, {"durability": "memory"}) as cluster:
        plan = LoadPlan(
            endpoints=cluster.endpoints, clients=3, in_flight=5, seconds=1.0, warm_up_s=0.2, payload_bytes=50_000
        )
        report = LoadProcess(plan).finish()
        # Everything that was answered has executed. The status comes a little later.
        cluster.await_status(lambda status: health.counter(status) >= report.answered, "the count of all commands")
    assert (report.lost, report.errors, report.sessions) == (0, 0, 3)
    assert report.answered > 3 + 15
    assert 0 < report.latency_ms_p50 <= report.latency_ms_p99
    assert 0 < report.throughput_per_s * report.seconds <= report.answered


@pytest.mark.parametrize("flags", [["--reads", "0.5"], ["--target", "0"]])
def test_what_pipelines_cannot_do_is_refused(flags: list[str]) -> None:
    result = CliRunner().invoke(app, ["bench", "load", "--in-flight", "2", *flags])
    assert result.exit_code == 2
    assert "clients that pipeline only write" in " ".join(result.output.replace("│", " ").split())
