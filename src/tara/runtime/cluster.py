"""What a cluster is: its settings, its identity, and which nodes share a container.

Settings come from a TOML file, then environment variables `TARA_…`, then flags, in rising precedence; an unknown key or
a contradiction is an error that names the key. The identity (cluster, era, lives) is kept in the data directory and
outlives every process.
"""

import importlib
import os
import secrets
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tara.application import KeyValueStore, StateMachine
from tara.protocol.errors import ConfigurationError
from tara.protocol.graph import Graph
from tara.protocol.limits import Limits
from tara.runtime.journal import sync_directory

STATE_FILE = "cluster.json"
BUILT_IN: dict[str, type[StateMachine]] = {"key-value": KeyValueStore}


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: A built-in application, or `module:Class`.
    app: str = "key-value"
    data_dir: str = "tara-data"
    #: Where Spark runs; by default inside the process that starts the cluster.
    master: str = "local"
    #: `disk`: a vote leaves when it is on disk. `memory`: at once.
    durability: str = "disk"
    #: `site`: one container per site. `node`: one per node.
    packing: str = "site"
    #: The address that containers bind.
    host: str = "127.0.0.1"
    #: Whether executors keep the decided commands in files, and how many bytes of them each keeps.
    log: bool = True
    log_retention_bytes: int = 1 << 30
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        _one_of("durability", self.durability, ("disk", "memory"))
        _one_of("packing", self.packing, ("site", "node"))
        if self.log_retention_bytes < 1:
            raise ConfigurationError(f"log_retention_bytes = {self.log_retention_bytes}: must be positive")
        if not self.host.startswith("127.") and self.host != "localhost":
            raise ConfigurationError(f"host = {self.host}: only loopback addresses (127.…) are served without keys")


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{key} = {value}: must be one of {', '.join(choices)}")


def load_settings(
    path: Path | None = None, environment: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None
) -> Settings:
    """File, then environment, then flags. A setting of `Limits` is written like any other."""
    merged: dict[str, Any] = {}
    if path is not None:
        try:
            merged.update(tomllib.loads(path.read_text()))
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{path}: {error}") from error
    known = {*Settings.__struct_fields__, *Limits.__struct_fields__} - {"limits"}
    for name, value in environment.items():
        if name.startswith("TARA_") and name.removeprefix("TARA_").lower() in known:
            merged[name.removeprefix("TARA_").lower()] = value
    merged.update({key: value for key, value in (flags or {}).items() if value is not None})
    unknown = sorted(set(merged) - known)
    if unknown:
        raise ConfigurationError(f"unknown setting {unknown[0]!r}")
    limits = {key: value for key, value in merged.items() if key in Limits.__struct_fields__}
    others = {key: value for key, value in merged.items() if key not in Limits.__struct_fields__}
    try:
        return msgspec.convert({**others, "limits": limits}, Settings, strict=False)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, ConfigurationError):
            raise cause from None
        raise ConfigurationError(f"settings: {error}") from error


def application_of(name: str) -> Callable[[], StateMachine]:
    """The class that plays the application; a clear error if there is none."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ConfigurationError(f"app = {name}: must be one of {', '.join(BUILT_IN)}, or module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"app = {name}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, StateMachine)):
        raise ConfigurationError(f"app = {name}: is not a subclass of tara.application.StateMachine")
    return found


def placement_of(graph: Graph, packing: str) -> list[list[int]]:
    """The node numbers of each container."""
    numbers = range(len(graph.names))
    if packing == "node":
        return [[number] for number in numbers]
    return [[number for number in numbers if graph.site(graph.names[number]) == site] for site in range(graph.sites)]


class ClusterState(Struct, kw_only=True):
    """What must survive the driver: who the cluster is, and which lives and first starts it has handed out."""

    cluster: int
    era: int
    #: What must not change between two starts on the same data.
    f: int
    partitions: int
    packing: str
    durability: str
    #: 0 in a state that was written before this was recorded.
    checkpoint_interval: int = 0
    lives: list[int]
    #: Containers whose first start is complete: their journals exist.
    founded: list[bool]
    #: The checkpoint that the cluster was founded with, if it was restored from a backup; else 0.
    threshold: int = 0
    #: What was executed here last.
    app: str = ""
    registry: str = ""
    endpoints: list[str] = []


class StateFile:
    """The cluster state in the data directory, written durably."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / STATE_FILE

    def exists(self) -> bool:
        return self._path.exists()

    def read(self) -> ClusterState:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=ClusterState)
        except FileNotFoundError as error:
            raise ConfigurationError(f"{self._directory}: no cluster here (start one with `tara up`)") from error
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{self._path}: {error}") from error

    def write(self, state: ClusterState) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(state)))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._path)
        sync_directory(self._directory)

    def open(self, settings: Settings) -> ClusterState:
        """The state of the cluster that lives here, or that of a new one. In memory, every start is a new cluster."""
        limits = settings.limits
        wanted = (limits.f, limits.partitions, settings.packing, settings.durability, limits.checkpoint_interval)
        if self.exists():
            state = self.read()
            interval = state.checkpoint_interval or limits.checkpoint_interval
            if settings.durability == "memory":
                # Nothing of the old cluster goes on.
                interval = limits.checkpoint_interval
            found = (state.f, state.partitions, state.packing, state.durability, interval)
            if found != wanted:
                names = ("f", "partitions", "packing", "durability", "checkpoint_interval")
                name, old, new = next((n, a, b) for n, a, b in zip(names, found, wanted, strict=True) if a != b)
                raise ConfigurationError(f"{name} = {new}: the cluster in {self._directory} was made with {old}")
            if settings.durability == "disk":
                state.app, state.checkpoint_interval = settings.app, settings.limits.checkpoint_interval
                self.write(state)
                return state
        state = new_state(settings)
        self.write(state)
        return state


def new_state(settings: Settings) -> ClusterState:
    """A cluster that nobody has heard of yet."""
    containers = len(placement_of(Graph(settings.limits.f, settings.limits.partitions), settings.packing))
    return ClusterState(
        cluster=secrets.randbits(48),
        era=1,
        f=settings.limits.f,
        partitions=settings.limits.partitions,
        packing=settings.packing,
        durability=settings.durability,
        checkpoint_interval=settings.limits.checkpoint_interval,
        app=settings.app,
        lives=[0] * containers,
        founded=[False] * containers,
    )
