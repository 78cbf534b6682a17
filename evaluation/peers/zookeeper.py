"""Apache ZooKeeper, from Debian's package: three servers, its own default settings."""

import shutil
import socket
from pathlib import Path

from evaluation.peers.closed_loop import Dialect
from evaluation.peers.servers import (
    SERVERS,
    PeerMeasurement,
    PeerPlan,
    ServerProcess,
    await_condition,
    drive,
)
from evaluation.peers.zookeeper_wire import ZooKeeperDialect, create_nodes
from tara.net.addresses import free_ports

JAR = Path("/usr/share/java/zookeeper.jar")
#: Sessions that the clients share.
CONNECTIONS = 4
_LOGGING = """log4j.rootLogger=WARN, A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.SimpleLayout
"""


class _Make:
    """Makes dialects; can be sent to another process."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def __call__(self, server: str) -> Dialect:
        return ZooKeeperDialect(self._value)


class ZooKeeper:
    name = "zookeeper"
    how_to_install = "apt-get install zookeeper"
    caveat = "3 servers with default settings (forceSync on); 4 sessions spread over all servers"

    @staticmethod
    def version() -> str | None:
        """None if it is not installed."""
        if not JAR.exists() or shutil.which("java") is None:
            return None
        numbered = sorted(JAR.parent.glob("zookeeper-[0-9]*.jar"))
        return numbered[-1].stem.rpartition("-")[2] if numbered else "unknown"

    def __init__(self, directory: Path, durable: bool) -> None:
        """Where `directory` is decides where the data are; ZooKeeper always syncs."""
        ports = free_ports(3 * SERVERS)
        self._addresses = [f"127.0.0.1:{port}" for port in ports[:SERVERS]]
        members = [
            f"server.{index + 1}=127.0.0.1:{ports[SERVERS + index]}:{ports[2 * SERVERS + index]}"
            for index in range(SERVERS)
        ]
        (directory / "log4j.properties").write_text(_LOGGING)
        self._servers = [
            self._start(directory / f"server-{index + 1}", index + 1, ports[index], members) for index in range(SERVERS)
        ]
        try:
            await_condition(lambda: self._leader() is not None, "ZooKeeper elects a leader", self._servers)
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def _start(home: Path, number: int, port: int, members: list[str]) -> ServerProcess:
        home.mkdir()
        (home / "myid").write_text(f"{number}\n")
        lines = [
            "tickTime=2000",
            "initLimit=10",
            "syncLimit=5",
            f"dataDir={home}",
            f"clientPort={port}",
            "clientPortAddress=127.0.0.1",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            *members,
        ]
        configuration = home / "zoo.cfg"
        configuration.write_text("\n".join(lines) + "\n")
        command = ["java", "-Xmx1g", "-cp", f"{home.parent}:{JAR}"]
        return ServerProcess(
            [*command, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)],
            home.parent / f"server-{number}.out",
        )

    def _mode(self, server: int) -> str:
        """What a server says that it is; nothing if it does not serve."""
        host, port = self._addresses[server].rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port)), timeout=2) as sock:
                sock.sendall(b"srvr")
                text = b"".join(iter(lambda: sock.recv(4096), b"")).decode(errors="replace")
        except OSError:
            return ""
        return next((line.partition(": ")[2] for line in text.splitlines() if line.startswith("Mode: ")), "")

    def _leader(self) -> int | None:
        """The leader, when all servers serve."""
        modes = [self._mode(server) for server in range(SERVERS)]
        return modes.index("leader") if all(modes) and "leader" in modes else None

    def measure(self, plan: PeerPlan) -> PeerMeasurement:
        return self._drive(plan)

    def measure_kill(self, plan: PeerPlan, after_s: float) -> PeerMeasurement:
        """The leader is killed so many seconds into the measurement, and stays dead."""
        leader = self._leader()
        assert leader is not None
        return self._drive(plan, after_s, leader)

    def _drive(self, plan: PeerPlan, after_s: float = 0.0, victim: int | None = None) -> PeerMeasurement:
        value = bytes(plan.payload_bytes)
        create_nodes(self._addresses[0], plan.clients, value)
        do = None if victim is None else self._servers[victim].kill
        pids = [server.pid for server in self._servers]
        return drive(self._addresses, _Make(value), plan, pids, CONNECTIONS, after_s, do)

    def stop(self) -> None:
        for server in self._servers:
            server.stop()
