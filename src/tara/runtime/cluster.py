"""What a cluster is: its settings, its identity, and which nodes share a container.

Settings come from a TOML file, then environment variables `TARA_…`, then flags, in rising precedence; an unknown key or
a contradiction is an error that names the key. The identity (cluster, era, lives) is kept in the data directory and
outlives every process.
"""

import fcntl
import os
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from tara.named import NAMED
from tara.protocol.errors import ConfigurationError
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.runtime.gateway import Options
from tara.runtime.journal import sync_directory
from tara.runtime.site_address import check_sites
from tara.runtime.where import check_host, free_ports, is_fixed

STATE_FILE = "cluster.json"
#: What faces the clients.
FRONT_END = (Stage.REQUEST_SOURCE, Stage.REPLY_SINK)
#: Several heartbeats.
HUNG_AFTER_S_MIN = 3.0
LOCK_FILE = "cluster.lock"
#: The state of all sites, or of one that is not known yet.
ANY_SITE = -1
#: Settings that an application needs to be other than usual: for one, ZooKeeper's limit on a request is close to the
#: usual limit on a command, without its envelope.
DEFAULTS: dict[str, dict[str, Any]] = {"coordination": {"batch_size": 16, "command_bytes_max": (1 << 20) + (1 << 17)}}


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
    #: The address that the driver's registry binds; and containers, unless `container_host` says otherwise.
    host: str = "127.0.0.1"
    #: The address that each container binds on its host: may name environment variables; `auto`: the one that faces
    #: the registry. Empty: as `host` where Spark is local, else `auto`.
    container_host: str = ""
    #: Where each container keeps its files on its host: may name environment variables. Empty: as `data_dir`.
    container_dir: str = ""
    #: The directory with the cluster's keys, on every host; may name environment variables. Empty: no keys.
    keys: str = ""
    #: `host:port` of every site, in their order, where each has a driver of its own (`tara site`); see
    #: `tara.runtime.site_address`. Empty: one driver runs them all.
    sites: str = ""
    #: Of Spark's executors, a resource (such as `tara`) of which each has one, and each container needs one.
    token: str = ""
    #: The port of the first front end, on `host`, the others follow; 0: free ones, which the cluster then keeps.
    port: int = 0
    #: A container that has been silent for so long is taken for hung, and replaced.
    hung_after_s: float = 15.0
    #: Where the Prometheus endpoint is, which knows no keys; port 0: any free one.
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    #: Whether executors keep the decided commands in files, and how many bytes of them each keeps.
    log: bool = True
    log_retention_bytes: int = 1 << 30
    #: Options of the application's gateway, if it has one; the coordination service's are in its documentation.
    gateway: Options = {}
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for key, port in (("port", self.port), ("metrics_port", self.metrics_port)):
            if not 0 <= port <= 65_535:
                raise ConfigurationError(f"{key} = {port}: must be between 0 and 65535")
        if not self.hung_after_s >= HUNG_AFTER_S_MIN:
            raise ConfigurationError(f"hung_after_s = {self.hung_after_s}: must be at least {HUNG_AFTER_S_MIN}")
        _one_of("durability", self.durability, ("disk", "memory"))
        _one_of("packing", self.packing, ("site", "node"))
        if self.log_retention_bytes < 1:
            raise ConfigurationError(f"log_retention_bytes = {self.log_retention_bytes}: must be positive")
        if self.app in NAMED and self.packing != "site":
            raise ConfigurationError(f"packing = {self.packing}: the front end of {self.app} needs `site`")
        if not is_fixed(self.host):
            raise ConfigurationError(f"host = {self.host}: must be an address")
        check_host("host", self.host, bool(self.keys))
        check_host("container_host", self.container_host, bool(self.keys))
        if self.token and self.packing != "site":
            raise ConfigurationError(f"token = {self.token}: one container per executor needs packing = site")
        if self.sites:
            check_sites(self.sites, self.limits.replicas, bool(self.keys))
            if self.packing != "site":
                raise ConfigurationError(f"packing = {self.packing}: a driver per site needs packing = site")
            if self.port:
                raise ConfigurationError(f"port = {self.port}: with sites, their addresses say the ports")
        if self.token and self.local:
            raise ConfigurationError(f"token = {self.token}: there are none in Spark's local mode")

    @property
    def local(self) -> bool:
        """Whether Spark runs on this host alone."""
        return self.master.startswith("local")


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{key} = {value}: must be one of {', '.join(choices)}")


class Setting(NamedTuple):
    """A value as somebody gave it, and who did."""

    value: Any
    origin: str


def known_settings() -> list[str]:
    """The names of all settings; those of `Limits` are written like any other."""
    return [name for name in Settings.__struct_fields__ if name != "limits"] + list(Limits.__struct_fields__)


def given_settings(
    path: Path | None = None, environment: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None
) -> dict[str, Setting]:
    """What file, environment and flags say, in rising precedence; the origin tells which of them a value is from."""
    given: dict[str, Setting] = {}
    if path is not None:
        given.update({key: Setting(value, str(path)) for key, value in _read_file(path).items()})
    known = set(known_settings())
    for name, value in environment.items():
        key = name.removeprefix("TARA_").lower()
        if name.startswith("TARA_") and key in known - {"gateway"}:
            given[key] = Setting(value, name)
    for key, value in (flags or {}).items():
        if value is not None:
            given[key] = Setting(value, "--" + key.replace("_", "-"))
    app = str(given["app"].value) if "app" in given else ""
    for key, value in DEFAULTS.get(app, {}).items():
        given.setdefault(key, Setting(value, f"app = {app}"))
    for key, setting in given.items():
        if key not in known:
            raise ConfigurationError(f"unknown setting {key!r} ({setting.origin})")
    return given


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def load_settings(
    path: Path | None = None, environment: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None
) -> Settings:
    """File, then environment, then flags."""
    given = given_settings(path, environment, flags)
    limits = {key: setting.value for key, setting in given.items() if key in Limits.__struct_fields__}
    others = {key: setting.value for key, setting in given.items() if key not in Limits.__struct_fields__}
    try:
        return msgspec.convert({**others, "limits": limits}, Settings, strict=False)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, ConfigurationError):
            raise cause from None
        what, _, where = str(error).partition(" - at ")
        key = where.strip("`").removeprefix("$.").removeprefix("limits.")
        if key in given:
            raise ConfigurationError(f"{key} = {given[key].value} ({given[key].origin}): {what}") from error
        raise ConfigurationError(f"settings: {error}") from error


#: Limits that only say when something is done: replicas may differ in them, for instance while they are changed.
_LOCAL_LIMITS = frozenset(
    {
        "batch_delay_ms",
        "proposer_rate_max",
        "keepalive_interval_ms",
        "report_interval_ms",
        "resend_rounds",
        "resend_burst",
        "skip_delay_ms",
        "controller_timeout_ms",
        "controller_timeout_ms_max",
    }
)


#: Limits that decide what a command results in, or what journals and checkpoints mean: fixed when a cluster is made.
_FIXED_LIMITS = (
    "window",
    "checkpoint_interval",
    "result_bytes_max",
    "sessions_max",
    "session_pipeline_max",
    "session_timeout_ms_min",
    "session_timeout_ms_max",
    "session_clock_step_ms_max",
)


def shape_of(settings: Settings) -> int:
    """A number that is equal where nodes may talk to each other: it stands for everything that must agree."""
    limits = {key: value for key, value in msgspec.to_builtins(settings.limits).items() if key not in _LOCAL_LIMITS}
    agreed = msgspec.json.encode([settings.app, settings.packing, sorted(limits.items())])
    return int.from_bytes(blake2b(agreed, digest_size=6).digest(), "big")


def placement_of(graph: Graph, packing: str) -> list[list[int]]:
    """The node numbers of each container. What faces the clients of a site stays together in any case: the answer to a
    command comes out where the command went in."""
    numbers = range(len(graph.names))
    by_site = [[number for number in numbers if graph.site(graph.names[number]) == site] for site in range(graph.sites)]
    if packing == "site":
        return by_site
    front_ends = [[number for number in site if graph.names[number].stage in FRONT_END] for site in by_site]
    return front_ends + [[number] for number in numbers if graph.names[number].stage not in FRONT_END]


def serves_clients(graph: Graph, numbers: Iterable[int]) -> bool:
    """Whether a container with these nodes is a front end."""
    return any(graph.names[number].stage is Stage.REPLY_SINK for number in numbers)


def container_label(graph: Graph, packing: str, numbers: list[int]) -> str:
    site = graph.site(graph.names[numbers[0]])
    if packing == "site":
        return f"site-{site}"
    return f"front-end-{site}" if serves_clients(graph, numbers) else graph.label(numbers[0])


def _front_end_ports(settings: Settings, graph: Graph, placement: list[list[int]], known: list[int]) -> list[int]:
    """The port of each container's front end, 0 where there is none: as set, else as before, else free ones."""
    serving = [serves_clients(graph, numbers) for numbers in placement]
    if settings.port == 0 and len(known) == len(placement):
        return known
    if settings.port == 0:
        ports = iter(free_ports(sum(serving), settings.host))
    else:
        ports = iter(range(settings.port, settings.port + sum(serving)))
    return [next(ports) if serves else 0 for serves in serving]


class ClusterState(Struct, kw_only=True):
    """What must survive the driver: who the cluster is, and which lives and first starts it has handed out."""

    cluster: int
    era: int
    #: What must not change between two starts on the same data.
    f: int
    partitions: int
    packing: str
    durability: str
    lives: list[int]
    #: Containers whose first start is complete: their journals exist.
    founded: list[bool]
    #: The name of each container's current journal: one that is found under another name, on a host where the container
    #: once was, lacks the votes that were cast elsewhere since.
    journals: list[str] = []
    #: The servers where these journals are.
    servers: list[str] = []
    #: The checkpoint that this era was founded with, if it was restored from a backup or another era; else 0.
    threshold: int = 0
    #: What was executed here last.
    app: str = ""
    registry: str = ""
    endpoints: list[str] = []
    #: The ports of the front ends: every life of a container tries to get the same one, so that clients find it again.
    ports: list[int] = []
    metrics: str = ""
    #: The directory with the keys, as the driver knows it; empty: none.
    keys: str = ""
    #: The limits that must not change either.
    fixed: dict[str, int] = {}
    #: What each site brought to the founding, if they have a driver each and this one was there.
    nonces: list[str] = []
    #: The site whose driver knows its own containers only.
    site: int = ANY_SITE

    @property
    def checkpoint_interval(self) -> int:
        return self.fixed["checkpoint_interval"]

    @property
    def awaits_founding(self) -> bool:
        """Whether it begins with a checkpoint, and nothing of it has run yet."""
        return self.threshold > 0 and not any(self.founded)


class DirectoryInUse(ConfigurationError):
    """Another process has claimed the data directory."""


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
        except OSError as error:
            raise ConfigurationError(f"{self._path}: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{self._path}: {error}") from error

    def lock(self) -> int:
        """Claim the directory for this process; a second cluster here would hand out the same lives again. The lock
        ends with the process, or when the descriptor is closed."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._directory / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise ConfigurationError(f"data_dir = {self._directory}: cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise DirectoryInUse(
                f"data_dir = {self._directory}: a cluster runs here already (`tara down` ends it)"
            ) from error
        return lock

    def write(self, state: ClusterState) -> None:
        temporary = self._path.with_suffix(".tmp")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(state)))
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self._path)
            sync_directory(self._directory)
        except OSError as error:
            raise ConfigurationError(f"data_dir = {self._directory}: cannot be written: {error.strerror}") from error

    def open(self, settings: Settings) -> ClusterState:
        """The state of the cluster that lives here, or that of a new one. In memory, every start is a new cluster,
        except the first one of an era that begins with a checkpoint."""
        graph = Graph(settings.limits.f, settings.limits.partitions)
        placement = placement_of(graph, settings.packing)
        ports: list[int] = []
        if self.exists():
            state = self.check(settings)
            if state.site != ANY_SITE:
                raise ConfigurationError(
                    f"data_dir = {self._directory}: is of site {state.site} only: start it with `tara site`"
                )
            ports = state.ports
            if settings.durability == "disk" or state.awaits_founding:
                state.app, state.ports = settings.app, _front_end_ports(settings, graph, placement, ports)
                self.write(state)
                return state
        state = new_state(settings)
        state.ports = _front_end_ports(settings, graph, placement, ports)
        self.write(state)
        return state

    def check(self, settings: Settings) -> ClusterState:
        """The state of the cluster that lives here, if these settings are for it."""
        state = self.read()
        self._compare("f", state.f, settings.limits.f)
        self._compare("partitions", state.partitions, settings.limits.partitions)
        self._compare("packing", state.packing, settings.packing)
        self._compare("durability", state.durability, settings.durability)
        if settings.durability == "disk" or settings.sites or state.awaits_founding:
            for name, value in _fixed_limits(settings).items():
                self._compare(name, state.fixed.get(name, value), value)
        return state

    def _compare(self, name: str, old: object, new: object) -> None:
        if old != new:
            raise ConfigurationError(f"{name} = {new}: the cluster in {self._directory} was made with {old}")


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
        app=settings.app,
        lives=[0] * containers,
        founded=[False] * containers,
        fixed=_fixed_limits(settings),
    )


def _fixed_limits(settings: Settings) -> dict[str, int]:
    return {name: getattr(settings.limits, name) for name in _FIXED_LIMITS}
