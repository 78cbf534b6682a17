"""Spark's own standalone master in its high-availability mode, with this service in ZooKeeper's place."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tara.net.addresses import free_ports
from tests.apps.coordination.live import kazoo
from tests.patience import await_condition

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOME = Path(pyspark.__file__).parent


class Master:
    def __init__(self, hosts: str, directory: Path) -> None:
        port, self._ui = free_ports(2)
        options = {
            "spark.deploy.recoveryMode": "ZOOKEEPER",
            "spark.deploy.zookeeper.url": hosts,
            "spark.deploy.zookeeper.dir": "/spark-masters",
        }
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            # Where its UI is; all addresses otherwise.
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(f"-D{key}={value}" for key, value in options.items()),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        command = [str(HOME / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(self._ui)]
        with (directory / f"master-{port}.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def status(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui}/json/", timeout=30) as answer:
                return str(json.load(answer)["status"])
        except (OSError, ValueError):
            return ""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def masters(hosts: str, tmp_path: Path) -> Iterator[list[Master]]:
    started = [Master(hosts, tmp_path) for _ in range(2)]
    yield started
    for master in started:
        master.kill()


def test_the_standby_master_takes_over(hosts: str, masters: list[Master]) -> None:
    def statuses() -> list[str]:
        return sorted(master.status() for master in masters)

    await_condition(lambda: statuses() == ["ALIVE", "STANDBY"], "one active master and one in reserve")
    active = next(master for master in masters if master.status() == "ALIVE")
    standby = next(master for master in masters if master is not active)
    active.kill()
    await_condition(lambda: standby.status() == "ALIVE", "the standby master to take over")
    with kazoo(hosts) as client:
        assert "leader_election" in client.get_children("/spark-masters")
        client.delete("/spark-masters", recursive=True)
