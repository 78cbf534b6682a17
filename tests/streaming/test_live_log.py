"""`readStream.format("tara")` while the log is written: no gap and no duplicate, over kills of the reading query and
restarts of the whole cluster."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from tara.application import Put
from tara.client import Client
from tara.configuration.settings import load_settings
from tara.live.spark import Cluster
from tara.storage.log_reader import best_log
from tests.streaming.commands import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DEADLINE_S = 240.0

#: A query that copies the log as it grows, in a process that can be killed. It ends when there is a file that says how
#: far it has to get, and it got there.
READER = """
import json, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
data_dir, copy, end = sys.argv[1], sys.argv[2], Path(sys.argv[3])
spark = SparkSession.builder.master("local[1,4]").config("spark.ui.enabled", "false").getOrCreate()
log = spark.readStream.format("tara").option("data_dir", data_dir).option("max_commands_per_batch", 5000).load()
query = (
    log.writeStream.format("parquet").option("checkpointLocation", copy + "-checkpoint")
    .trigger(processingTime="200 milliseconds").start(copy)
)
while True:
    if query.exception() is not None:
        raise query.exception()
    progress = query.lastProgress
    seen = json.loads(progress["sources"][0]["endOffset"])["counter"] if progress else 0
    if end.exists() and seen >= int(end.read_text()):
        break
    time.sleep(0.1)
query.stop()
"""


class Reader:
    """The process with the query."""

    def __init__(self, data_dir: Path, directory: Path) -> None:
        self._end = directory / "end"
        self._arguments = [str(data_dir), str(directory / "copy"), str(self._end)]
        self._output = directory / "reader.log"
        self.copy = directory / "copy"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", READER, *self._arguments],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def finish(self, end: int) -> None:
        """Let it read up to this counter, and wait until it has."""
        assert self._process is not None
        partial = self._end.with_suffix(".partial")
        partial.write_text(str(end))
        partial.rename(self._end)
        assert self._process.wait(DEADLINE_S) == 0, self.said

    @property
    def said(self) -> str:
        return self._output.read_text()[-3000:]

    def files(self) -> list[Path]:
        return list(self.copy.glob("*.parquet"))

    def await_files(self, count: int) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while len(self.files()) < count:
            assert self._process is not None
            assert self._process.poll() is None, self.said
            assert time.monotonic() < deadline_s, self.said
            time.sleep(0.05)

    def committed(self) -> list[int]:
        """The counters in the files that the query has committed, as Spark's own reader finds them."""
        names = set()
        for path in sorted((self.copy / "_spark_metadata").glob("[0-9]*")):
            for line in path.read_text().splitlines()[1:]:
                names.add(Path(json.loads(line)["path"]).name)
        return sorted(
            counter for name in names for counter in pq.read_table(self.copy / name).column("counter").to_pylist()
        )


@contextmanager
def running(data_dir: Path) -> Iterator[Cluster]:
    flags = {"data_dir": str(data_dir), "checkpoint_interval": 256, "window": 2048}
    cluster = Cluster(load_settings(environment={}, flags=flags))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def put(cluster: Cluster, start: int, count: int) -> None:
    with Client(",".join(cluster.registry.endpoints), timeout_s=60) as client:
        for first in range(start, start + count, 100):
            puts = [msgspec.msgpack.encode(Put(f"key-{n}", b"%d" % n)) for n in range(first, first + 100)]
            for future in [client.submit(command) for command in puts]:
                future.result()


@pytest.mark.parametrize(("commands", "rounds"), [(600, 2), pytest.param(20_000, 4, marks=pytest.mark.soak, id="soak")])
def test_a_stream_of_the_log_has_every_command_once(tmp_path: Path, commands: int, rounds: int) -> None:
    """In every round a container is killed. In every further one the cluster has been started again, while the reader
    lived on, and then the reader is killed."""
    data_dir = tmp_path / "data"
    reader = Reader(data_dir, tmp_path)
    try:
        for number in range(rounds):
            with running(data_dir) as cluster:
                put(cluster, number * commands, 100)
                if number == 0:
                    reader.start()
                seen = len(reader.files())
                put(cluster, number * commands, commands)
                reader.await_files(seen + 1)
                if number > 0:
                    # Killed in the middle of it, with commands still coming; the next one begins while they come.
                    reader.kill()
                    reader.start()
                put(cluster, number * commands, commands)
                os.kill(cluster.registry.members[number % 3].pid, signal.SIGKILL)
                put(cluster, number * commands, 100)
        end = best_log(data_dir).bounds().end
        reader.finish(end)
    finally:
        reader.kill()

    assert end > 2 * rounds * commands
    assert reader.committed() == list(range(1, end))
