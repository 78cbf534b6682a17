"""The decided log from the front ends of real containers, which are killed meanwhile: every command once, in order."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tara.application import Put
from tara.cli import app
from tara.client import Client, Forbidden
from tara.client.remote_log import RemoteLogReader
from tara.drills.process_cluster import ProcessCluster, start_container
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.operations import health
from tara.storage.log import log_directory
from tara.storage.log_reader import LogReader
from tests.patience import DEADLINE_S, await_condition

FLAGS = {"checkpoint_interval": 256, "window": 2048, "log": True}
AT_ONCE = 100


def put(client: Client, start: int, count: int) -> None:
    for first in range(start, start + count, AT_ONCE):
        commands = [msgspec.msgpack.encode(Put(f"key-{n}", b"%d" % n)) for n in range(first, first + AT_ONCE)]
        for future in [client.submit(command) for command in commands]:
            future.result()


class Following:
    """Reads on a thread, until it is told up to where."""

    def __init__(self, endpoints: str) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.end = 0
        self.error: Exception | None = None
        self._endpoints = endpoints
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with RemoteLogReader(self._endpoints, timeout_s=DEADLINE_S) as reader:
                for batch in reader.follow(1, lambda: bool(self.end) and self.seen >= self.end, poll_s=0.02):
                    self.batches.append(batch)
        except Exception as error:
            self.error = error

    @property
    def seen(self) -> int:
        """The counter behind the newest row."""
        return 1 + sum(batch.num_rows for batch in list(self.batches))

    def finish(self, end: int) -> pa.Table:
        self.end = end
        self._thread.join(DEADLINE_S)
        assert self.error is None
        assert not self._thread.is_alive()
        return pa.Table.from_batches(self.batches)


@contextmanager
def killed(cluster: ProcessCluster, container: int) -> Iterator[None]:
    """SIGKILL; it is started again at the end."""
    process = cluster.processes[container]
    assert process.pid is not None
    process.kill()
    process.join()
    yield
    cluster.processes[container] = start_container(cluster.registries[0], container)
    cluster.await_status(health.full_strength, "full strength again")


@pytest.mark.slow
def test_a_reader_has_every_command_once_though_every_site_is_killed(tmp_path: Path) -> None:
    with ProcessCluster.whole(tmp_path, FLAGS) as cluster:
        following = Following(cluster.endpoints)
        with Client(cluster.endpoints, timeout_s=DEADLINE_S) as client:
            put(client, 0, 1_000)
            for container in range(3):
                await_condition(lambda: following.seen > 500, "it reads")
                with killed(cluster, container):
                    put(client, 1_000 * (container + 1), 1_000)
        logs = [LogReader(log_directory(tmp_path, site)) for site in range(3)]
        end = 1 + 1 + 4_000 + 1
        await_condition(lambda: min(log.bounds().end for log in logs) >= end, "all sites have everything")
        table = following.finish(end)
        assert table.column("counter").to_pylist()[: end - 1] == list(range(1, end))
        for log in logs:
            # A site that was killed may have a base and less of the log; it fetches the rest.
            await_condition(lambda log=log: log.bounds().first == 1, "the whole log is there")  # type: ignore[misc]
            assert log.read(1, end).equals(table.slice(0, end - 1))
        result = CliRunner().invoke(
            app, ["log", "--endpoints", cluster.endpoints, "--from", "2", "--to", "4", "--json"]
        )
        assert result.exit_code == 0, result.output
        rows = [json.loads(line) for line in result.output.splitlines()]
        assert [(row["counter"], row["command"]["key"]) for row in rows] == [(2, "key-0"), (3, "key-1")]


def test_a_stopped_site_is_passed_over(tmp_path: Path) -> None:
    """It takes connections, and says nothing."""
    with ProcessCluster.whole(tmp_path, FLAGS) as cluster, Client(cluster.endpoints, timeout_s=DEADLINE_S) as client:
        put(client, 0, 100)
        with RemoteLogReader(cluster.endpoints, timeout_s=DEADLINE_S) as reader:
            end = reader.bounds().end
            cluster.await_status(
                lambda status: [container.get("log_readers") for container in status["containers"]] == [1, 1, 1],
                "one reader at each site",
            )
            pid = cluster.processes[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                assert reader.read(1, end).num_rows == end - 1
                assert reader.bounds().end >= end
            finally:
                os.kill(pid, signal.SIGCONT)


def test_with_keys_observers_read_and_clients_do_not(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_cluster_keys(keys)
    alice, auditor = make_client_keys(keys, "alice"), make_client_keys(keys, "auditor", observer=True)
    with ProcessCluster.whole(tmp_path / "data", {**FLAGS, "keys": str(keys)}) as cluster:
        with Client(cluster.endpoints, timeout_s=DEADLINE_S, keys=alice) as client:
            put(client, 0, 100)
            with RemoteLogReader(cluster.endpoints, alice) as reader, pytest.raises(Forbidden):
                reader.bounds()
            with RemoteLogReader(cluster.endpoints, auditor, DEADLINE_S) as reader:
                # An answer does not wait for the log.
                await_condition(lambda: reader.bounds().end >= 102, "some site has them")
                rows = reader.read(1, 102)
        log = LogReader(log_directory(tmp_path / "data", 0))
        await_condition(lambda: log.bounds().end >= 102, "this site has them, too")
        assert rows.equals(log.read(1, 102))
        (keys / "observers" / "auditor.pub").unlink()
        with RemoteLogReader(cluster.endpoints, auditor) as reader, pytest.raises(Forbidden):
            reader.bounds()
