"""The examples run as their texts say."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tara.application import KeyValueCommand, Put
from tara.client import KeyValueClient
from tara.client.remote_log import RemoteLogReader
from tara.operations.deployment import Deployment
from tara.protocol.tuples import EXECUTE
from tests.patience import DEADLINE_S, await_condition

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.spark
def test_the_ledger(tmp_path: Path) -> None:
    cluster = Deployment(tmp_path / "data", {"app": "ledger:Ledger"}, EXAMPLES)
    try:
        cluster.start()
        for _ in range(2):  # the second time it finds what the first has left
            command = [sys.executable, "ledger.py", cluster.endpoints]
            done = subprocess.run(
                command, cwd=EXAMPLES, capture_output=True, text=True, check=False, timeout=DEADLINE_S
            )
            assert done.returncode == 0, done.stderr
            assert "10000 before, 10000 after" in done.stdout
    finally:
        cluster.stop()


def run_pipeline(directory: Path, endpoints: str) -> None:
    """As a user runs it."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "TARA_ENDPOINTS": endpoints,
        "TARA_STAGING": str(directory / "staging"),
    }
    done = subprocess.run(
        [str(home / "bin" / "spark-pipelines"), "--conf", "spark.sql.catalogImplementation=hive", "run"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def keys_put(log: RemoteLogReader) -> list[str]:
    """In the order of the log."""
    rows = [row["command"] for row in log.read(1).to_pylist() if row["kind"] == EXECUTE]
    commands = [msgspec.msgpack.decode(command, type=KeyValueCommand) for command in rows]
    return [command.key for command in commands if isinstance(command, Put)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.soak, id="again")])
def test_the_pipeline(tmp_path: Path, again: bool) -> None:
    """(Every run of a pipeline starts a Java virtual machine of its own.)"""
    directory = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "pipeline", directory)
    spec = directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/tara-pipeline", f"file://{directory}/storage"))
    cluster = Deployment(tmp_path / "data", {"log": "true"})
    try:
        cluster.start()
        with KeyValueClient(cluster.endpoints, timeout_s=DEADLINE_S) as client:
            for number, wanted in enumerate((10, 100, 250)):
                client.put(f"order-bolt-{number}", b"%d" % wanted)
            run_pipeline(directory, cluster.endpoints)
            assert client.get("large-bolt-0") is None
            assert (client.get("large-bolt-1"), client.get("large-bolt-2")) == (b"100", b"250")
            if again:
                client.put("order-nut-3", b"300")
                run_pipeline(directory, cluster.endpoints)
                assert client.get("large-nut-3") == b"300"
            # A row for every command: each large order was put exactly once.
            client.put("last", b"")
            with RemoteLogReader(cluster.endpoints, timeout_s=DEADLINE_S) as log:
                await_condition(lambda: "last" in keys_put(log), "everything is in the log")
                large = [key for key in keys_put(log) if key.startswith("large-")]
    finally:
        cluster.stop()
    assert sorted(large) == ["large-bolt-1", "large-bolt-2", *(["large-nut-3"] if again else [])]
