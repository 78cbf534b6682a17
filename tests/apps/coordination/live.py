"""A live cluster with the coordination service, and clients for it."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from tara.apps.coordination import jute
from tara.apps.coordination.acl import OPEN
from tara.apps.coordination.codes import Op
from tara.configuration.settings import load_settings
from tara.live.container import Container
from tara.live.spark import Cluster
from tests.patience import DEADLINE_S, await_condition


def start_cluster(directory: Path, **options: Any) -> Cluster:
    """Time-outs that are short, so that tests do not wait for long, but longer than a slow machine stands still."""
    gateway = {
        "port": 0,
        # A front end that is not served for two ticks closes its connections.
        "tick_time_ms": 3_000,
        "session_timeout_ms_min": 2_000,
        "session_timeout_ms_max": 10_000,
        "max_client_connections": 0,
        "collect_interval_ms": 200,
        "four_letter_words": "*",
        **options,
    }
    flags = {
        "data_dir": str(directory),
        "app": "coordination",
        "gateway": gateway,
        "checkpoint_interval": 512,
        "window": 2048,
        # Tests stop processes for a while: nobody is to replace them.
        "hung_after_s": 600,
    }
    cluster = Cluster(load_settings(environment={}, flags=flags))
    cluster.start()
    cluster.await_gateways()
    return cluster


def serving(cluster: Cluster) -> bool:
    return cluster.registry.gateways_serve()


def endpoints(cluster: Cluster) -> str:
    return ",".join(cluster.registry.gateways)


@contextlib.contextmanager
def kazoo(hosts: str, **options: Any) -> Iterator[KazooClient]:
    client = KazooClient(hosts=hosts, **{"timeout": 10.0, **options})
    client.start(timeout=DEADLINE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def address_of(site: Container) -> str:
    """Of the front end of a single site, when it serves."""
    await_condition(lambda: site.status()["gateway"]["serving"], "the front end to serve")  # type: ignore[index]
    return str(site.status()["gateway"]["address"])  # type: ignore[index]


class Wire:
    """ZooKeeper's protocol by hand, for what no client would send."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self.session = 0
        self.password = bytes(16)
        self.timeout_ms = 0

    def connect(self, last_zxid: int = 0, timeout_ms: int = 10_000, session: int = 0, password: bytes = b"") -> bool:
        """Whether there is a session now."""
        body = struct.pack(">iqiq", 0, last_zxid, timeout_ms, session)
        self.frame(body + jute.pack_buffer(password or bytes(16)) + b"\0")
        answer = self.receive()
        if answer is None:
            return False
        reader = jute.Reader(answer)
        reader.number()
        self.timeout_ms, self.session = reader.number(), reader.long()
        self.password = reader.buffer() or b""
        return self.session != 0

    def frame(self, body: bytes) -> None:
        self.socket.sendall(jute.pack_int(len(body)) + body)

    def request(self, xid: int, op: int, body: bytes = b"") -> None:
        self.frame(jute.REQUEST_HEADER.pack(xid, op) + body)

    def receive(self) -> bytes | None:
        """One frame; None if the connection was closed."""
        head = self._exactly(4)
        return None if head is None else self._exactly(jute.unpack_int(head)[0])

    def reply(self) -> tuple[int, int, int, bytes] | None:
        """xid, zxid, error, body."""
        data = self.receive()
        if data is None:
            return None
        xid, zxid, error = jute.REPLY_HEADER.unpack_from(data)
        return xid, zxid, error, data[16:]

    def call(self, op: int, body: bytes = b"", xid: int = 1) -> tuple[int, bytes]:
        """Error and body of the answer, which must be the next one."""
        self.request(xid, op, body)
        answer = self.reply()
        assert answer is not None, "the connection was closed"
        assert answer[0] == xid, answer
        return answer[2], answer[3]

    def create(self, path: str, data: bytes = b"", flags: int = 0) -> int:
        return self.call(
            Op.CREATE, jute.pack_text(path) + jute.pack_buffer(data) + jute.pack_acl(OPEN) + jute.pack_int(flags)
        )[0]

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        return data

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
