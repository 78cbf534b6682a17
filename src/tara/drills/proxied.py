"""A cluster on local Spark whose links between sites can be made bad."""

import os
from pathlib import Path
from typing import Any

from tara.configuration.settings import load_settings
from tara.drills.bad_network import Network, ProxiedRegistry
from tara.live.spark import Cluster
from tara.operations import health
from tara.operations.deployment import START_TIMEOUT_S, Deployment


class Proxied(Deployment):
    """Its driver is this process: who tells containers where the others are can send them through a proxy."""

    def __init__(self, data_dir: Path, seed: int = 1) -> None:
        super().__init__(data_dir)
        self.network = Network(3, seed)
        self._cluster: Cluster | None = None

    def start(self) -> None:
        settings = load_settings(environment={}, flags={"data_dir": str(self.data_dir)})
        self.network.start()
        try:
            self._cluster = Cluster(settings, registry=ProxiedRegistry(settings, self.network))
            self._cluster.start()
            self.await_status(health.full_strength, "full strength after the start", START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def status(self, digests: bool = False) -> dict[str, Any]:
        assert self._cluster is not None
        registry = self._cluster.registry
        if digests:
            registry.want_digests()
        return registry.status()

    def pids(self) -> dict[str, int]:
        containers = {container["container"]: container["pid"] for container in self._containers()}
        return {"driver": os.getpid(), **containers}

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
        self.network.stop()
