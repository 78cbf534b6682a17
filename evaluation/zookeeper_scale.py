"""Many znodes and sessions: memory, what a base costs the clients, and how long a killed site needs to return."""

import os
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from evaluation.zookeeper_load import LoadError, ZooKeeperLoad
from tara.apps.coordination import jute
from tara.apps.coordination.acl import OPEN
from tara.apps.coordination.codes import Op
from tara.configuration.settings import load_settings
from tara.live import control
from tara.live.spark import Cluster
from tara.operations.fresh_checkpoint import next_checkpoint
from tara.operations.registry_client import ask
from tara.storage.base_format import base_directory, list_bases

NODES_PER_PARENT = 1_000
NODES_PER_MULTI = 200
#: Slots between checkpoints: few, so that the base begins soon, and several more happen while we look.
CHECKPOINT_INTERVAL = 1_000
PROBE_SESSIONS = 8
RESTART_TIMEOUT_S = 120.0


class ScaleReport(Struct, kw_only=True):
    nodes: int
    sessions: int
    creations_per_s: float
    memory_mb: list[float]
    checkpoints: int
    #: Of the base that was taken meanwhile.
    base_bytes: int
    latency_ms_p50: float
    #: The longest that any client waited for a write, checkpoints and the base included.
    latency_ms_max: float
    restart_s: float


def measure(
    nodes: int, sessions: int, seconds: float, value_bytes: int = 64, say: Callable[[str], None] = lambda line: None
) -> ScaleReport:
    with tempfile.TemporaryDirectory(prefix="tara-scale-") as directory:
        data = Path(directory) / "data"
        flags = {
            "data_dir": str(data),
            "app": "coordination",
            "checkpoint_interval": CHECKPOINT_INTERVAL,
            "window": 4 * CHECKPOINT_INTERVAL,
            "gateway": {"port": 0, "max_client_connections": 0},
        }
        cluster = Cluster(load_settings(environment={}, flags=flags))
        try:
            cluster.start()
            cluster.await_gateways()
            endpoints = ",".join(cluster.registry.gateways)
            say(f"{nodes} nodes")
            began_s = time.monotonic()
            _create(cluster.registry.gateways[0], nodes, value_bytes)
            created_s = time.monotonic() - began_s
            say(f"{sessions} sessions")
            crowd = ZooKeeperLoad(endpoints, sessions, value_bytes)
            before = _stable(cluster)
            say("writes while a base is taken")
            probe = ZooKeeperLoad(endpoints, PROBE_SESSIONS, value_bytes)
            ask(data, control.AskBase(next_checkpoint(data)))
            report = probe.run("setData", seconds)
            memory_mb = [_memory_mb(member.pid) for member in cluster.registry.members]
            checkpoints = _stable(cluster) - before
            sizes = [path.stat().st_size for site in range(3) for path in list_bases(base_directory(data, site))]
            say("one site is killed")
            restart_s = _restart(cluster)
            probe.abandon()
            crowd.abandon()
        finally:
            cluster.stop()
    return ScaleReport(
        nodes=nodes,
        sessions=sessions,
        creations_per_s=round(nodes / created_s),
        memory_mb=memory_mb,
        checkpoints=checkpoints,
        base_bytes=max(sizes, default=0),
        latency_ms_p50=report.latency_ms_p50,
        latency_ms_max=report.latency_ms_max,
        restart_s=round(restart_s, 2),
    )


def _create(address: str, nodes: int, value_bytes: int) -> None:
    """Through one session, many at a time."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        stream = sock.makefile("rwb")

        def call(body: bytes) -> bytes:
            stream.write(jute.pack_int(len(body)) + body)
            stream.flush()
            head = stream.read(4)
            if len(head) < 4:
                raise LoadError("the server closed the connection")
            return stream.read(jute.unpack_int(head)[0])

        call(struct.pack(">iqiq", 0, 0, 40_000, 0) + jute.pack_buffer(bytes(16)) + b"\0")
        paths = []
        for first in range(0, nodes, NODES_PER_PARENT):
            parent = f"/scale-{first // NODES_PER_PARENT}"
            paths.append(parent)
            paths += [f"{parent}/node-{index:08}" for index in range(first, min(first + NODES_PER_PARENT, nodes) - 1)]
        value = jute.pack_buffer(b"v" * value_bytes) + jute.pack_acl(OPEN) + jute.pack_int(0)
        for first in range(0, len(paths), NODES_PER_MULTI):
            parts = [
                jute.MULTI_HEADER.pack(Op.CREATE, False, -1) + jute.pack_text(path) + value
                for path in paths[first : first + NODES_PER_MULTI]
            ]
            body = jute.REQUEST_HEADER.pack(1, Op.MULTI) + b"".join(parts) + jute.MULTI_HEADER.pack(-1, True, -1)
            answer = call(body)
            if jute.REPLY_HEADER.unpack_from(answer)[2] or jute.unpack_int(answer, jute.REPLY_HEADER.size)[0] == -1:
                raise LoadError("a multi was refused")
        call(jute.REQUEST_HEADER.pack(2, Op.CLOSE_SESSION))


def _stable(cluster: Cluster) -> int:
    """The newest stable checkpoint; heartbeats tell, twice a second."""
    time.sleep(1.1)
    return max(int(executor["stable"]) for executor in cluster.registry.executors())


def _memory_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def _restart(cluster: Cluster) -> float:
    """From the kill until its front end serves again."""
    registry = cluster.registry
    life, killed_s = registry.state.lives[0], time.monotonic()
    os.kill(registry.members[0].pid, signal.SIGKILL)
    while registry.state.lives[0] == life or not registry.gateways_serve():
        if time.monotonic() - killed_s > RESTART_TIMEOUT_S:
            raise LoadError(f"the site did not come back within {RESTART_TIMEOUT_S:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - killed_s
