"""The four-letter words: what operators and monitoring ask a front end on a fresh connection."""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tara import __version__
from tara.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tara.apps.coordination.gateway.front_end import FrontEnd

#: Clients and tools look at the version's form; the numbers are those of the protocol that is spoken here.
VERSION = f"3.8.0-tara-{__version__}"


class Latencies:
    """Of ordered requests, in milliseconds: over the whole life, and the newest ones."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.min_ms = 0.0
        self.max_ms = 0.0
        self._newest: deque[float] = deque(maxlen=1024)

    def note(self, seconds: float) -> None:
        latency_ms = seconds * 1e3
        self.min_ms = min(self.min_ms, latency_ms) if self.count else latency_ms
        self.max_ms = max(self.max_ms, latency_ms)
        self.sum_ms += latency_ms
        self.count += 1
        self._newest.append(latency_ms)

    @property
    def mean_ms(self) -> float:
        return self.sum_ms / self.count if self.count else 0.0


def allowed(names: str) -> frozenset[bytes]:
    """What an operator allows to be asked."""
    if names.strip() == "*":
        return frozenset(WORDS)
    found = frozenset(name.strip().encode() for name in names.split(",") if name.strip())
    unknown = sorted(word.decode() for word in found - set(WORDS))
    if unknown:
        raise ConfigurationError(f"gateway.four_letter_words: {', '.join(unknown)}: not one of {_names(WORDS)}")
    return found


def _names(words: Iterable[bytes]) -> str:
    return ", ".join(sorted(word.decode() for word in words))


def answer(front_end: "FrontEnd", word: bytes) -> bytes:
    if word not in front_end.words:
        return word + b" is not executed because it is not in the whitelist.\n"
    if word == b"ruok":
        return b"imok"
    if not front_end.serving and word not in (b"conf", b"envi"):
        return b"This ZooKeeper instance is not currently serving requests\n"
    return "".join(f"{line}\n" for line in WORDS[word](front_end)).encode()


def _server(front_end: "FrontEnd") -> list[str]:
    latencies = front_end.latencies
    return [
        f"Zookeeper version: {VERSION}, built on 2026-01-01 00:00 UTC",
        f"Latency min/avg/max: {latencies.min_ms:.0f}/{latencies.mean_ms:.4f}/{latencies.max_ms:.0f}",
        f"Received: {front_end.received}",
        f"Sent: {front_end.sent}",
        f"Connections: {len(front_end.connections)}",
        f"Outstanding: {front_end.outstanding}",
        f"Zxid: {front_end.zxid:#x}",
        "Mode: follower",
        f"Node count: {len(front_end.tree.nodes)}",
    ]


def _stat(front_end: "FrontEnd") -> list[str]:
    version, *rest = _server(front_end)
    return [version, "Clients:", *(f" {line}" for line in _connections(front_end, brief=True)), "", *rest]


def _connections(front_end: "FrontEnd", brief: bool = False) -> list[str]:
    lines = []
    for connection in front_end.connections:
        details = f"queued={len(connection.queue)},recved={connection.received},sent={connection.sent}"
        if not brief:
            details += f",sid={connection.session:#x},to={connection.timeout_ms}"
        lines.append(f"/{connection.address}:{connection.port}[{int(connection.session != 0)}]({details})")
    return lines


def _monitor(front_end: "FrontEnd") -> list[str]:
    latencies, tree = front_end.latencies, front_end.tree
    values = {
        "version": VERSION,
        "server_state": "follower",
        "peer_state": "following - broadcast",
        "avg_latency": f"{latencies.mean_ms:.4f}",
        "min_latency": f"{latencies.min_ms:.0f}",
        "max_latency": f"{latencies.max_ms:.0f}",
        "packets_received": front_end.received,
        "packets_sent": front_end.sent,
        "num_alive_connections": len(front_end.connections),
        "outstanding_requests": front_end.outstanding,
        "znode_count": len(tree.nodes),
        "watch_count": len(front_end.watches),
        "ephemerals_count": sum(len(paths) for paths in tree.ephemerals.values()),
        "approximate_data_size": tree.size,
        "global_sessions": len(front_end.service.sessions),
        "uptime": int(front_end.uptime_s * 1e3),
    }
    return [f"zk_{name}\t{value}" for name, value in values.items()]


def _configuration(front_end: "FrontEnd") -> list[str]:
    settings = front_end.settings
    low, high = settings.timeouts_ms
    return [
        f"clientPort={front_end.port}",
        f"tickTime={settings.tick_time_ms}",
        f"maxClientCnxns={settings.max_client_connections}",
        f"minSessionTimeout={low}",
        f"maxSessionTimeout={high}",
        f"jute.maxbuffer={settings.jute_max_buffer}",
    ]


def _environment(front_end: "FrontEnd") -> list[str]:
    return ["Environment:", f"zookeeper.version={VERSION}"]


def _watches(front_end: "FrontEnd") -> list[str]:
    watches = front_end.watches
    return [f"{watches.watchers} connections watching {watches.paths} paths", f"Total watches:{len(watches)}"]


def _dump(front_end: "FrontEnd") -> list[str]:
    sessions, ephemerals = front_end.service.sessions, front_end.tree.ephemerals
    lines = [f"Sessions ({len(sessions)}):", *(f"{session:#x}" for session in sessions)]
    lines.append(f"Sessions with Ephemerals ({len(ephemerals)}):")
    for session in ephemerals:
        lines += (f"{session:#x}:", *(f"\t{path}" for path in front_end.tree.ephemerals_of(session)))
    return lines


def _read_only(front_end: "FrontEnd") -> list[str]:
    return ["rw"]


WORDS = {
    b"ruok": _read_only,
    b"srvr": _server,
    b"stat": _stat,
    b"mntr": _monitor,
    b"conf": _configuration,
    b"cons": _connections,
    b"envi": _environment,
    b"wchs": _watches,
    b"dump": _dump,
    b"isro": _read_only,
}
