"""A real Spark standalone cluster on this machine: a master, and workers on loopback addresses of their own.

Every daemon is a process of the installed Spark, with a work directory and a disk for Tara of its own. Losing a worker
means what it means for a server: the worker, its executor and the container in it get SIGKILL together.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from tara.protocol.errors import TaraError

START_TIMEOUT_S = 60.0
#: The resource of which every worker has one: at most one container runs there.
TOKEN = "tara"
#: Variables of a worker that containers see.
HOST_VARIABLE = "SPARK_LOCAL_IP"
DISK_VARIABLE = "TARA_DISK"

_PR_SET_PDEATHSIG = 1
_DEFAULTS = """\
spark.executor.memory                 512m
spark.executor.cores                  1
spark.network.timeout                 30s
spark.network.timeoutInterval         10s
spark.executor.heartbeatInterval      5s
"""
_AUTHENTICATED = """\
spark.authenticate                    true
spark.authenticate.secret             {}
spark.network.crypto.enabled          true
"""
_DISCOVERY = f"""\
#!/bin/sh
echo '{{"name": "{TOKEN}", "addresses": ["0"]}}'
"""


class StandaloneError(TaraError):
    """Spark's master or a worker did not start."""


class Daemon:
    """A master or worker, in a session of its own: whatever it starts can be found by that."""

    def __init__(self, log: Path, host: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.host = host
        self._log = log
        home = _home("pyspark")
        # Containers are to run this Tara, wherever it is.
        path = os.pathsep.join([str(_home("tara").parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
        daemon = {"SPARK_HOME": str(home), HOST_VARIABLE: host, "SPARK_DAEMON_MEMORY": "256m"}
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments],
                env=os.environ | python | daemon | environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def await_line(self, pattern: str) -> re.Match[str]:
        """The first line of its log that matches."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end_s and self._process.poll() is None:
            match = re.search(pattern, self._log.read_text(errors="replace"))
            if match:
                return match
            time.sleep(0.1)
        raise StandaloneError(f"{self.host}: not started; see {self._log}")

    def pids(self) -> list[int]:
        """Of all that it started, and its own."""
        everybody = map(int, filter(str.isdigit, os.listdir("/proc")))
        return [pid for pid in everybody if _session(pid) == self._process.pid]

    def kill(self) -> int:
        """SIGKILL to all its processes at once; how many there were."""
        pids = self.pids()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        return len(pids)


def _end_with_parent() -> None:
    """In the daemon, before it begins: Linux is to end it when whoever started it is gone, however that came."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _home(package: str) -> Path:
    found = find_spec(package)
    assert found is not None and found.origin is not None
    return Path(found.origin).resolve().parent


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


class Standalone:
    def __init__(self, directory: Path, secret: str = "") -> None:
        """With a secret, only who knows it may connect to the master, the workers, their executors and the driver."""
        self._directory = directory
        directory.mkdir(parents=True)
        (directory / "conf").mkdir()
        defaults = directory / "conf" / "spark-defaults.conf"
        defaults.touch(0o600)
        defaults.write_text(_DEFAULTS + (_AUTHENTICATED.format(secret) if secret else ""))
        self._discovery = directory / "token.sh"
        self._discovery.write_text(_DISCOVERY)
        self._discovery.chmod(0o755)
        self.workers: dict[str, Daemon] = {}
        self.master: Daemon | None = None
        self.url = ""

    def start(self, workers: int) -> None:
        arguments = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self.master = Daemon(self._directory / "master.log", "127.0.0.1", arguments, self.environment)
        self.url = self.master.await_line(r"Starting Spark master at (spark://\S+)")[1]
        started = [self._start_worker(index) for index in range(workers)]
        for worker in started:
            worker.await_line(r"Successfully registered with master")

    def add_worker(self) -> str:
        """One more, with an empty disk; returns its address."""
        worker = self._start_worker(len(self.workers))
        worker.await_line(r"Successfully registered with master")
        return worker.host

    def _start_worker(self, index: int) -> Daemon:
        host = f"127.0.0.{index + 2}"
        work, disk = self._directory / f"work-{index}", self._directory / f"disk-{index}"
        for path in (work, disk):
            path.mkdir()
        resource = f"-Dspark.worker.resource.{TOKEN}"
        environment = {
            **self.environment,
            DISK_VARIABLE: str(disk),
            "SPARK_WORKER_OPTS": f"{resource}.amount=1 {resource}.discoveryScript={self._discovery}",
        }
        arguments = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1"]
        arguments += ["--memory", "1g", "--work-dir", str(work), self.url]
        log = self._directory / f"worker-{index}.log"
        worker = self.workers[host] = Daemon(log, host, arguments, environment)
        return worker

    @property
    def environment(self) -> dict[str, str]:
        """For the driver, and for the daemons."""
        return {"SPARK_CONF_DIR": str(self._directory / "conf")}

    @property
    def settings(self) -> dict[str, str]:
        """For `tara up`."""
        return {
            "master": self.url,
            "token": TOKEN,
            "container_host": f"${HOST_VARIABLE}",
            "container_dir": f"${DISK_VARIABLE}",
        }

    def stop(self) -> None:
        for daemon in (*self.workers.values(), *filter(None, [self.master])):
            daemon.kill()
