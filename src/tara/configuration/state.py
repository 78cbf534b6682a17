"""The identity of a cluster (its number, era and lives): kept in the data directory, it outlives every process.

It is in two files with equal contents, `cluster.json` and `cluster.copy.json`, each under a checksum and with a
revision that rises with every write: the newer one of those that are intact counts. So a file that is damaged, removed,
or older than it was, is noticed and costs nothing.
"""

import contextlib
import fcntl
import os
import secrets
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from tara.configuration.settings import Settings
from tara.host.placement import placement_of, serves_clients
from tara.net.addresses import free_ports
from tara.protocol.errors import ConfigurationError
from tara.protocol.graph import Graph
from tara.storage.disk import LOCAL
from tara.storage.files import set_aside, write_whole

STATE_FILE = "cluster.json"
COPY_FILE = "cluster.copy.json"
FORMAT = "tara-cluster"
FORMAT_VERSION = 3
CHECKSUM_BYTES = 16
#: What only a cluster leaves in a data directory.
_TRACES = ("journal-*/*.journal", "bases-*/*.base", "checkpoints-*/*.checkpoint", "log-*/*.segment", "life-*")
LOCK_FILE = "cluster.lock"
#: Where there are no keys: whoever can read it is an operator.
OPERATOR_SECRET = "operator.secret"
#: The state of all sites, or of one that is not known yet.
ANY_SITE = -1
#: Limits that decide what a command results in, or what journals, bases and logs mean: fixed when a cluster is made.
_FIXED_LIMITS = (
    "window",
    "checkpoint_interval",
    "result_bytes_max",
    "sessions_max",
    "principal_sessions_max",
    "session_bytes_max",
    "principal_bytes_max",
    "sessions_bytes_max",
    "session_pipeline_max",
    "session_timeout_ms_min",
    "session_timeout_ms_max",
    "session_clock_step_ms_max",
)


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


def operator_secret(data_dir: str | Path) -> Path:
    return Path(data_dir) / OPERATOR_SECRET


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
    #: The newest life of each container that has run: a directory that knows an older one only is an older copy.
    begun: list[int] = []
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


class StoredState(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file's contents."""

    format: str
    version: int
    revision: int
    state: ClusterState
    #: Of everything else, in hexadecimal; the text as a whole is canonical.
    checksum: str


def pack_state(state: ClusterState, revision: int) -> bytes:
    stored = StoredState(format=FORMAT, version=FORMAT_VERSION, revision=revision, state=state, checksum="")
    checksum = blake2b(msgspec.json.encode(stored), digest_size=CHECKSUM_BYTES).hexdigest()
    return msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(stored, checksum=checksum))) + b"\n"


def unpack_state(data: bytes) -> StoredState:
    """`ConfigurationError` unless it is, byte for byte, what was written."""
    try:
        version = msgspec.json.decode(data, type=dict[str, object]).get("version", 1)
        if version != FORMAT_VERSION:
            raise ConfigurationError(f"is of format version {version}; this Tara reads {FORMAT_VERSION}")
        stored = msgspec.json.decode(data, type=StoredState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"is damaged: {error}") from error
    if pack_state(stored.state, stored.revision) != data:
        raise ConfigurationError("is damaged: its checksum does not match")
    return stored


class DirectoryInUse(ConfigurationError):
    """Another process has claimed the data directory."""


class StateFile:
    """The cluster state in the data directory, written durably."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._paths = [directory / STATE_FILE, directory / COPY_FILE]
        #: The newest revision that was read or written; None: not known yet.
        self._revision: int | None = None
        #: What `read` found wrong with the two files, although one of them could be used.
        self.problems: list[str] = []

    def exists(self) -> bool:
        return any(path.exists() for path in self._paths)

    def read(self) -> ClusterState:
        """The newest intact state."""
        found: list[StoredState] = []
        problems: list[str] = []
        for path in self._paths:
            try:
                found.append(unpack_state(path.read_bytes()))
            except FileNotFoundError:
                problems.append(f"{path}: is missing")
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
            except ConfigurationError as error:
                problems.append(f"{path}: {error}")
        if not self.exists():
            raise ConfigurationError(f"{self._directory}: no cluster here (start one with `tara up`)")
        if not found:
            raise ConfigurationError(
                f"{'; '.join(problems)}. Put any older copy of {STATE_FILE} back: containers tell how far they are "
                "when they start"
            )
        newest = max(found, key=lambda stored: stored.revision)
        if len(found) == 2 and found[0].revision - found[1].revision not in (0, 1):
            # One more is a crash between the two writes.
            older = self._paths[found[0].revision > found[1].revision]
            problems.append(f"{older}: is older than it was")
        self._revision, self.problems = newest.revision, problems
        return newest.state

    def require_founding(self, found: bool) -> None:
        """Refuse to begin a new cluster where that may be a mistake: in a directory that is there already, as one on
        which a disk is not mounted. A directory that is not there is made."""
        if self.exists() or not self._directory.exists() or found:
            return
        raise ConfigurationError(
            f"data_dir = {self._directory}: exists but holds no cluster; pass --found to create one, or check that the "
            "disk is mounted"
        )

    def lock(self) -> int:
        """Claim the directory for this process; a second cluster here would hand out the same lives again. The lock
        ends with the process, or when the descriptor is closed."""
        try:
            LOCAL.make_directory(self._directory)
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
        try:
            if self._revision is None and self.exists():
                self.read()
            revision = (self._revision or 0) + 1
            LOCAL.make_directory(self._directory)
            data = pack_state(state, revision)
            write_whole(self._paths[0], (data,))
            self._revision = revision
        except OSError as error:
            raise ConfigurationError(f"data_dir = {self._directory}: cannot be written: {error.strerror}") from error
        # With that it is decided. A copy that is not written now is old, and the next start says so.
        with contextlib.suppress(OSError):
            write_whole(self._paths[1], (data,))

    def _set_damaged_aside(self) -> None:
        """Before it is written over."""
        for path in self._paths:
            try:
                unpack_state(path.read_bytes())
            except (FileNotFoundError, ConfigurationError):
                if path.exists():
                    set_aside(path)

    def open(self, settings: Settings) -> ClusterState:
        """The state of the cluster that lives here, or that of a new one. In memory, every start is a new cluster,
        except the first one of an era that begins with a checkpoint."""
        graph = Graph(settings.limits.f, settings.limits.partitions)
        placement = placement_of(graph, settings.packing)
        ports: list[int] = []
        if not self.exists():
            self._require_no_traces()
        else:
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

    def _require_no_traces(self) -> None:
        for pattern in _TRACES:
            if trace := next(self._directory.glob(pattern), None):
                raise ConfigurationError(
                    f"data_dir = {self._directory}: {STATE_FILE} is missing, but {trace.name} is here: put any older "
                    "copy of it back, or begin in another directory"
                )

    def check(self, settings: Settings) -> ClusterState:
        """The state of the cluster that lives here, if these settings are for it. For whoever is going to write it."""
        state = self.read()
        if self.problems:
            self._set_damaged_aside()
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
