"""A cluster without Spark: the real registries in this process, each container in a process of its own.

It starts in a second. A container that ends is not started again, so a drill sees whether hostile frames or a bad
network have ended one.
"""

import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import msgspec

from tara.configuration.settings import Settings, load_settings
from tara.live.hosting import run_container
from tara.live.registry import Registry
from tara.live.sites.site import SiteRegistry
from tara.live.spark import spec_of
from tara.net.addresses import free_row
from tara.net.site_address import PORTS
from tara.operations import health
from tara.protocol.errors import TaraError

TIMEOUT_S = 60.0
Status = dict[str, Any]


class ClusterTrouble(TaraError):
    """The cluster did not do what it was waited for."""


def start_container(
    registry: Registry, container: int, run: Callable[[bytes, str, str], None] = run_container
) -> SpawnProcess:
    """As a Spark task would run it."""
    arguments = (msgspec.json.encode(spec_of(registry, container)), registry.settings.app, registry.address)
    process = multiprocessing.get_context("spawn").Process(target=run, args=arguments, daemon=True)
    process.start()
    return process


class ProcessCluster:
    """`registries` has one for all containers, or one per site; `run` is what the containers' processes do."""

    def __init__(self, registries: list[Registry], run: Callable[[bytes, str, str], None] = run_container) -> None:
        self.registries = registries
        self._run = run
        self.processes: dict[int, SpawnProcess] = {}

    @classmethod
    def whole(
        cls,
        directory: Path,
        flags: Mapping[str, Any],
        make: Callable[[Settings], Registry] = Registry,
        run: Callable[[bytes, str, str], None] = run_container,
    ) -> "ProcessCluster":
        """With one driver for all sites."""
        settings = load_settings(environment={}, flags={**flags, "data_dir": str(directory)})
        return cls([make(settings)], run)

    @classmethod
    def sites(cls, directory: Path, flags: Mapping[str, Any], count: int = 3) -> "ProcessCluster":
        """With a driver per site, as `tara site` starts them."""
        hosts = [f"127.0.0.{site + 2}" for site in range(count)]
        sites = ",".join(f"{host}:{free_row(PORTS, host)}" for host in hosts)

        def registry(site: int) -> Registry:
            chosen = {**flags, "sites": sites, "data_dir": str(directory / f"site-{site}")}
            return SiteRegistry(load_settings(environment={}, flags=chosen), site, found=True)

        with ThreadPoolExecutor(count) as threads:
            return cls(list(threads.map(registry, range(count))))

    def __enter__(self) -> "ProcessCluster":
        try:
            for registry in self.registries:
                for container in registry.hosted:
                    self.processes[container] = start_container(registry, container, self._run)
            self.await_status(health.full_strength, "full strength after the start")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for registry in self.registries:
            registry.stop()
        for process in self.processes.values():
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()

    @property
    def endpoints(self) -> str:
        return ",".join(self.registries[0].endpoints)

    def status(self) -> Status:
        """As the first driver tells it: of one whose container does not run yet, little is known."""
        return self.registries[0].status()

    def want_digests(self) -> None:
        for registry in self.registries:
            registry.want_digests()

    def await_status(self, condition: Callable[[Status], object], what: str, timeout_s: float = TIMEOUT_S) -> Status:
        """The first status for which the condition holds."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            status = self.status()
            if condition(status):
                return status
            time.sleep(0.05)
        raise ClusterTrouble(f"not within {timeout_s:.0f} s: {what}")

    @property
    def died(self) -> list[str]:
        """Containers whose process has ended."""
        registry = self.registries[0]
        return [registry.label(container) for container, process in self.processes.items() if not process.is_alive()]

    @property
    def halted(self) -> dict[str, str]:
        """Nodes that a broken invariant stopped, and why."""
        return health.halted(self.status())
