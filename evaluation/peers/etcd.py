"""etcd, from Debian's package: three members, its own default settings."""

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from evaluation.peers.etcd_wire import EtcdDialect
from evaluation.peers.servers import (
    SERVERS,
    PeerMeasurement,
    PeerPlan,
    ServerProcess,
    await_condition,
    drive,
)
from tara.net.addresses import free_ports

#: Connections that the clients share.
CONNECTIONS = 4


class Etcd:
    name = "etcd"
    how_to_install = "apt-get install etcd-server"
    caveat = (
        "3 members with default settings; the load goes to the leader, over 4 connections; when the leader is killed, "
        "to all"
    )

    @staticmethod
    def version() -> str | None:
        """None if it is not installed."""
        if shutil.which("etcd") is None:
            return None
        text = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout
        return text.splitlines()[0].rpartition(" ")[2]

    def __init__(self, directory: Path, durable: bool) -> None:
        """Where `directory` is decides where the data are; etcd always syncs."""
        ports = free_ports(2 * SERVERS)
        self._clients = [f"127.0.0.1:{port}" for port in ports[:SERVERS]]
        peers = [f"http://127.0.0.1:{port}" for port in ports[SERVERS:]]
        cluster = ",".join(f"member-{index}={url}" for index, url in enumerate(peers))
        self._servers = [
            ServerProcess(
                [
                    "etcd",
                    f"--name=member-{index}",
                    f"--data-dir={directory / f'member-{index}'}",
                    f"--listen-client-urls=http://{client}",
                    f"--advertise-client-urls=http://{client}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster={cluster}",
                    "--initial-cluster-state=new",
                ],
                directory / f"member-{index}.out",
            )
            for index, (client, peer) in enumerate(zip(self._clients, peers, strict=True))
        ]
        try:
            await_condition(lambda: self._leader() is not None, "etcd elects a leader", self._servers)
        except BaseException:
            self.stop()
            raise

    def _status(self, member: int) -> dict[str, Any] | None:
        url = f"http://{self._clients[member]}/v3/maintenance/status"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data=b"{}"), timeout=2) as answer:
                return dict(json.load(answer))
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None

    def _leader(self) -> int | None:
        """The leader, when all members know it."""
        statuses = [self._status(member) for member in range(SERVERS)]
        known = [status for status in statuses if status is not None]
        leaders = {status.get("leader") for status in known}
        if len(known) < SERVERS or len(leaders) != 1 or leaders == {None}:
            return None
        return [status["header"]["member_id"] for status in known].index(leaders.pop())

    def measure(self, plan: PeerPlan) -> PeerMeasurement:
        leader = self._leader()
        addresses = self._clients if leader is None else [self._clients[leader]]
        return self._drive(addresses, plan)

    def measure_kill(self, plan: PeerPlan, after_s: float) -> PeerMeasurement:
        """The leader is killed so many seconds into the measurement, and stays dead."""
        leader = self._leader()
        assert leader is not None
        return self._drive(self._clients, plan, after_s, leader)

    def _drive(
        self, addresses: list[str], plan: PeerPlan, after_s: float = 0.0, victim: int | None = None
    ) -> PeerMeasurement:
        share = -(-plan.clients // min(CONNECTIONS, plan.clients))
        make = partial(EtcdDialect, value=bytes(plan.payload_bytes), clients=share)
        do = None if victim is None else self._servers[victim].kill
        return drive(addresses, make, plan, [server.pid for server in self._servers], CONNECTIONS, after_s, do)

    def stop(self) -> None:
        for server in self._servers:
            server.stop()
