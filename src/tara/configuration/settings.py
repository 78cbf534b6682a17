"""The settings of a cluster.

They come from a TOML file, then environment variables `TARA_…`, then flags, in rising precedence; an unknown key or a
contradiction is an error that names the key.
"""

import os
import sys
import tomllib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from tara.named import NAMED
from tara.net import bounds
from tara.net.addresses import check_host, is_fixed
from tara.net.gateway import Options
from tara.net.site_address import check_sites
from tara.protocol.errors import ConfigurationError
from tara.protocol.limits import Limits
from tara.storage.journal import SEGMENT_BYTES

#: Several heartbeats.
HUNG_AFTER_S_MIN = 3.0
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
    #: `tara.net.site_address`. Empty: one driver runs them all.
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
    #: Where Spark's UI is, which knows no login.
    ui_host: str = "127.0.0.1"
    #: Whether executors keep more of the decided log than their bases need; by default where anything is kept that
    #: outlives the processes, with `disk`. And how many bytes of it each keeps.
    log: bool | None = None
    log_retention_bytes: int = 1 << 30
    #: Bytes after which a journal begins a new segment; old ones are dropped as a whole.
    journal_segment_bytes: int = SEGMENT_BYTES
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
        if self.journal_segment_bytes < 1:
            raise ConfigurationError(f"journal_segment_bytes = {self.journal_segment_bytes}: must be positive")
        if self.app in NAMED and self.packing != "site":
            raise ConfigurationError(f"packing = {self.packing}: the front end of {self.app} needs `site`")
        if self.limits.result_bytes_max > bounds.UNREAD_BYTES_MAX:
            raise ConfigurationError(
                f"result_bytes_max = {self.limits.result_bytes_max}: must be at most {bounds.UNREAD_BYTES_MAX}: "
                "a front end keeps no more for a client that has not read it"
            )
        if not is_fixed(self.host):
            raise ConfigurationError(f"host = {self.host}: must be an address")
        check_host("host", self.host, bool(self.keys))
        check_host("container_host", self.container_host, bool(self.keys))
        if not is_fixed(self.ui_host):
            raise ConfigurationError(f"ui_host = {self.ui_host}: must be an address")
        # It shows nothing that keys protect, and whoever wants it elsewhere has to say so.
        check_host("ui_host", self.ui_host, keyed=True)
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
    def keeps_log(self) -> bool:
        return self.durability == "disk" if self.log is None else self.log

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
        "resend_bytes_max",
        "source_pending_bytes_max",
        "source_backlog_bytes_max",
        "link_bytes_max",
        "skip_delay_ms",
        "controller_timeout_ms",
        "controller_timeout_ms_max",
    }
)


def shape_of(settings: Settings) -> int:
    """A number that is equal where nodes may talk to each other: it stands for everything that must agree."""
    limits = {key: value for key, value in msgspec.to_builtins(settings.limits).items() if key not in _LOCAL_LIMITS}
    # What an application may do before it fails, and the texts of its errors, are Python's and the decoder's.
    versions = [*sys.version_info[:2], msgspec.__version__]
    agreed = msgspec.json.encode([settings.app, settings.packing, sorted(limits.items()), versions])
    return int.from_bytes(blake2b(agreed, digest_size=6).digest(), "big")
