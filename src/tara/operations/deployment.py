"""Clusters as users run them, each in processes of its own, for drills, measurements and tests."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tara.configuration.state import StateFile
from tara.live import control
from tara.net.addresses import free_row
from tara.net.site_address import PORTS
from tara.operations import health
from tara.operations.registry_client import NoRegistry, ask
from tara.protocol.errors import TaraError

#: Generous: a slow machine is not a failed drill.
START_TIMEOUT_S = 240.0
FULL_STRENGTH_TIMEOUT_S = 120.0

Say = Callable[[str], None]


class DrillError(TaraError):
    """The cluster did not do what a drill needs in order to go on."""


class Deployment:
    """A cluster as a user runs it: `tara up` in a process of its own."""

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, str] | None = None,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = ("up",),
    ) -> None:
        """Settings as in a file; `directory` is where the command is given."""
        self.data_dir = data_dir
        self._command = command
        self._directory = directory
        self._environment = {f"TARA_{key.upper()}": value for key, value in (settings or {}).items()}
        self._environment |= environment or {}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Until it is at full strength. If it does not get there, nothing of it is left."""
        self.launch()
        try:
            self.await_endpoints()
            self.await_status(health.full_strength, "full strength after the start", START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        program = [sys.executable, "-c", "from tara.cli import main; main()"]
        command = [*program, *self._command, "--data-dir", str(self.data_dir)]
        with (self.data_dir.parent / f"{self.data_dir.name}.out").open("a") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self._directory,
                env=os.environ | self._environment,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    def await_endpoints(self) -> None:
        """It says where they are when all its containers run."""
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("endpoints"):
            raise DrillError(f"`tara {self._command[0]}` said {line!r}, and not its endpoints; see {self.data_dir}.out")

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def endpoints(self) -> str:
        return ",".join(StateFile(self.data_dir).read().endpoints)

    def status(self, digests: bool = False) -> dict[str, Any]:
        return dict(msgspec.json.decode(ask(self.data_dir, control.AskStatus(digests=digests))))

    def await_status(
        self,
        condition: Callable[[dict[str, Any]], object],
        what: str,
        timeout_s: float = FULL_STRENGTH_TIMEOUT_S,
        digests: bool = False,
    ) -> dict[str, Any]:
        """The first status for which the condition holds."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            try:
                status = self.status(digests)
            except NoRegistry:
                continue
            if condition(status):
                return status
            time.sleep(0.05)
        raise DrillError(f"not within {timeout_s:.0f} s: {what}")

    def await_leader(self) -> dict[str, Any]:
        status = self.await_status(health.leader, "an active proposer")
        found = health.leader(status)
        assert found is not None
        return found

    def servers(self) -> dict[str, str]:
        """Where each container is."""
        return {container["container"]: container["server"] for container in self._containers()}

    def pids(self) -> dict[str, int]:
        """The processes of the cluster: the driver, and each container."""
        assert self._process is not None
        containers = {container["container"]: container["pid"] for container in self._containers()}
        return {"driver": self._process.pid, **containers}

    def _containers(self) -> list[dict[str, Any]]:
        """From a driver that may be too busy to answer at once."""
        return list(self.await_status(lambda found: True, "an answer of the registry")["containers"])

    def kill_everything(self) -> None:
        """SIGKILL: the driver and its JVM first, so that nobody starts the containers again."""
        pids = self.pids()
        del pids["driver"]
        self.kill_driver(pids.values())

    def kill_driver(self, containers: Iterable[int]) -> None:
        """And these processes, which it started."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        for pid in containers:
            send(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        try:
            ask(self.data_dir, control.AskDown())
            self._process.wait(timeout=30)
        except (TaraError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Sites(Deployment):
    """A cluster whose sites each have a driver of their own, a data directory and a loopback address: `tara site`."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, count: int = 3) -> None:
        super().__init__(directory, settings)
        directory.mkdir()
        hosts = [f"127.0.0.{site + 2}" for site in range(count)]
        addresses = ",".join(f"{host}:{free_row(PORTS, host)}" for host in hosts)
        settings = {**(settings or {}), "sites": addresses}
        self.sites = [
            Deployment(directory / f"site-{site}", settings, command=("site", "--site", str(site), "--found"))
            for site in range(count)
        ]

    def start(self) -> None:
        for site in self.sites:
            site.launch()
        for site in self.sites:
            site.await_endpoints()
        self.await_status(health.full_strength, "full strength after the start", START_TIMEOUT_S)

    @property
    def endpoints(self) -> str:
        return next(site for site in self.sites if site.runs).endpoints

    def status(self, digests: bool = False) -> dict[str, Any]:
        """As any site tells it whose driver is at work."""
        for site in self.sites:
            if site.runs and StateFile(site.data_dir).exists():
                try:
                    return site.status(digests)
                except NoRegistry:
                    continue
        raise NoRegistry(f"no site of {self.data_dir} answers")

    def kill_site(self, number: int, with_disk: bool = False) -> None:
        """SIGKILL to everything that runs there: the driver, its JVM, the container. With its disk, all is lost."""
        pids = [container["pid"] for container in self._containers() if container["sites"] == [number]]
        site = self.sites[number]
        site.kill_driver(pids)
        if with_disk:
            shutil.rmtree(site.data_dir)

    def stop(self) -> None:
        for site in self.sites:
            site.stop()


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process, if it still exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def children(pid: int) -> Iterator[int]:
    """The child processes of a process."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())
