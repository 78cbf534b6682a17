"""A real Kafka broker on this machine: one node, without ZooKeeper (KRaft), in a process of its own."""

import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tara.net.addresses import free_row
from tests.patience import DEADLINE_S

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
num.partitions=2
offsets.topic.replication.factor=1
"""
MEMORY = "-Xmx512m"


class Broker:
    def __init__(self, jars: Path, directory: Path) -> None:
        self._class_path = f"{jars}/broker/*"
        self._properties = directory / "server.properties"
        port = free_row(2)
        self.address = f"127.0.0.1:{port}"
        directory.mkdir()
        self._properties.write_text(PROPERTIES.format(broker=port, controller=port + 1, directory=directory))
        self._output = directory / "broker.out"
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._properties)).wait(
            DEADLINE_S
        )
        self._process = self._run("kafka.Kafka", str(self._properties))
        self._await(port)

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(["java", MEMORY, "-cp", self._class_path, *command], stdout=output, stderr=output)

    def _await(self, port: int) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                return
            except OSError:
                assert self._process.poll() is None, self._output.read_text()[-3000:]
                assert time.monotonic() < end_s, self._output.read_text()[-3000:]
                time.sleep(0.1)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running_broker(jars: Path, directory: Path) -> Iterator[Broker]:
    broker = Broker(jars, directory)
    try:
        yield broker
    finally:
        broker.stop()
