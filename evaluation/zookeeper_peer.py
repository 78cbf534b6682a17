"""Apache ZooKeeper itself, from Debian's package, as the peer to compare with: real servers on loopback."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tara.net.addresses import free_ports
from tara.protocol.errors import TaraError

JAR = Path("/usr/share/java/zookeeper.jar")
CLI = Path("/usr/share/zookeeper/bin/zkCli.sh")
START_TIMEOUT_S = 40.0

_LOGGING = """log4j.rootLogger=WARN, FILE
log4j.appender.FILE=org.apache.log4j.FileAppender
log4j.appender.FILE.File=${zookeeper.log.dir}/zookeeper.log
log4j.appender.FILE.layout=org.apache.log4j.PatternLayout
log4j.appender.FILE.layout.ConversionPattern=%d %p %c %m%n
"""


class PeerError(TaraError):
    """ZooKeeper is not installed, or did not start."""


def installed() -> bool:
    return JAR.exists() and shutil.which("java") is not None


def four_letter_word(address: str, word: bytes, timeout_s: float = 5.0) -> str:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=timeout_s) as sock:
        sock.sendall(word)
        data = b""
        while part := sock.recv(65_536):
            data += part
    return data.decode(errors="replace")


class ZooKeeperEnsemble:
    """So many servers; one is a standalone server. A context manager."""

    def __init__(self, directory: Path, servers: int = 1, tick_time_ms: int = 2000) -> None:
        if not installed():
            raise PeerError("ZooKeeper is not installed (Debian: apt-get install zookeeper)")
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        ports = free_ports(3 * servers)
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:servers]]
        for number in range(servers):
            home = directory / f"server-{number + 1}"
            (home / "data").mkdir(parents=True, exist_ok=True)
            (home / "data" / "myid").write_text(str(number + 1))
            (home / "log4j.properties").write_text(_LOGGING)
            lines = [
                f"tickTime={tick_time_ms}",
                "initLimit=20",
                "syncLimit=10",
                f"dataDir={home / 'data'}",
                f"clientPort={ports[number]}",
                "clientPortAddress=127.0.0.1",
                "maxClientCnxns=0",
                "admin.enableServer=false",
                "4lw.commands.whitelist=*",
            ]
            if servers > 1:
                lines += [
                    f"server.{peer + 1}=127.0.0.1:{ports[servers + peer]}:{ports[2 * servers + peer]}"
                    for peer in range(servers)
                ]
            (home / "zoo.cfg").write_text("\n".join(lines) + "\n")

    @property
    def endpoints(self) -> str:
        return ",".join(self.addresses)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self) -> None:
        for number in range(len(self.addresses)):
            home = self._directory / f"server-{number + 1}"
            command = [
                "java",
                "-Xmx512m",
                f"-Dzookeeper.log.dir={home}",
                "-Dzookeeper.extendedTypesEnabled=true",
                "-cp",
                f"{home}:{JAR}",
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                str(home / "zoo.cfg"),
            ]
            with (home / "output").open("wb") as output:
                self._processes.append(
                    subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ))
                )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for address in self.addresses:
            while not self._serves(address):
                if time.monotonic() > deadline_s or any(process.poll() is not None for process in self._processes):
                    self.stop()
                    raise PeerError(f"ZooKeeper did not start: see {self._directory}")
                time.sleep(0.1)

    def _serves(self, address: str) -> bool:
        try:
            return "Mode:" in four_letter_word(address, b"srvr")
        except OSError:
            return False

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []

    def __enter__(self) -> "ZooKeeperEnsemble":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
