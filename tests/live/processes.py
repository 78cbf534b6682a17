"""A cluster without Spark: the real registry, and each container in a process of its own. Starts in a second."""

import json
import multiprocessing
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, TextIO

import msgspec

from tara.client.secrets import kept_secret
from tara.configuration.settings import Settings, load_settings
from tara.configuration.state import operator_secret
from tara.live.container import ContainerSpec
from tara.live.hosting import run_container
from tara.live.observability.events import log_path
from tara.live.registry import Registry
from tara.protocol.principals import digest_of_secret
from tests.patience import await_condition


def settings_for(directory: Path, **flags: Any) -> Settings:
    sizes = {"checkpoint_interval": 64, "window": 256}
    return load_settings(environment={}, flags=sizes | {"data_dir": str(directory)} | flags)


class Processes:
    def __init__(self, settings: Settings, stderr: TextIO | None = None, log: bool = False) -> None:
        self.settings = settings
        self._log = log
        #: Where containers are that have moved: another number for `{}`.
        self.moved: dict[int, int] = {}
        self.registry = Registry(settings, stderr)
        self.processes: dict[int, SpawnProcess] = {}

    def __enter__(self) -> "Processes":
        for container in range(len(self.registry.placement)):
            self.start(container)
        await_condition(self.registry.ready, "all containers to report")
        await_condition(lambda: self.active_proposers() > 0, "an active proposer")
        return self

    def __exit__(self, *_: object) -> None:
        self.registry.stop()
        for process in self.processes.values():
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()

    def start(self, container: int) -> None:
        registry = self.registry
        secret = kept_secret(operator_secret(self.settings.data_dir))
        spec = ContainerSpec(
            operator=digest_of_secret(secret),
            cluster=registry.state.cluster,
            era=registry.state.era,
            container=container,
            placement=registry.placement,
            limits=self.settings.limits,
            durability=self.settings.durability,
            data_dir=self.directory(container),
            port=0,
            host=self.settings.container_host or self.settings.host,
            keys=self.settings.keys,
            label=registry.label(container),
            shape=registry.shape,
            threshold=registry.state.threshold,
            log_retention_bytes=self.settings.log_retention_bytes if self._log else 0,
        )
        arguments = (msgspec.json.encode(spec), self.settings.app, registry.address)
        process = multiprocessing.get_context("spawn").Process(target=run_container, args=arguments, daemon=True)
        process.start()
        self.processes[container] = process

    def directory(self, container: int) -> str:
        """Where this container keeps its files: `{}` in the setting stands for its number."""
        where = self.moved.get(container, container)
        return (self.settings.container_dir or self.settings.data_dir).format(where)

    def kill(self, container: int) -> None:
        self.processes[container].kill()
        self.processes[container].join()

    def restart(self, container: int) -> None:
        """Start it again, and wait until it reports in its new life."""
        life = self.registry.state.lives[container]
        self.start(container)
        await_condition(lambda: self.registry.state.lives[container] > life, "the next life")
        await_condition(lambda: self.status(container), "a heartbeat of the next life")

    @property
    def endpoints(self) -> str:
        return ",".join(self.registry.endpoints)

    def status(self, container: int) -> dict[str, Any]:
        return self.registry.members[container].status

    def node(self, container: int, label: str) -> dict[str, Any]:
        return dict(self.status(container).get("nodes", {}).get(label, {}))

    def active_proposers(self) -> int:
        nodes = [node for member in self.registry.members for node in member.status.get("nodes", {}).items()]
        return sum(label.startswith("proposer") and node["state"] == "active" for label, node in nodes)

    def log(self, container: str) -> list[dict[str, Any]]:
        number = self.registry.container_of(container)
        path = log_path(self.settings.data_dir if number is None else self.directory(number), container)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, container: str) -> list[str]:
        return [line["event"] for line in self.log(container)]
