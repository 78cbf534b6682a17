"""PySyncObj, from PyPI: replication in Python, as a library. Three processes, each with a node."""

import importlib.metadata
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from evaluation.peers.closed_loop import PeerError
from evaluation.peers.servers import (
    LOAD_GRACE_S,
    SERVERS,
    START_TIMEOUT_S,
    PeerMeasurement,
    PeerPlan,
    ServerProcess,
    await_condition,
)
from tara.bench.processors import CpuMeter
from tara.net.addresses import free_ports

_MODULE = "evaluation.peers.pysyncobj_node"


class PySyncObj:
    name = "pysyncobj"
    how_to_install = "pip install pysyncobj"
    caveat = (
        "3 processes, sending every 2 ms (as shipped: every 100 ms); its journal is never synced to disk, so `disk` "
        "means less than for the others; the load runs inside the leader, because the library has no clients, and is "
        "counted as the server's; when the leader is killed, inside a fourth process that does not vote"
    )

    @staticmethod
    def version() -> str | None:
        """None if it is not installed."""
        try:
            return importlib.metadata.version("pysyncobj")
        except importlib.metadata.PackageNotFoundError:
            return None

    def __init__(self, directory: Path, durable: bool) -> None:
        self._directory = directory
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(SERVERS)]
        self._servers = [
            self._start(
                f"node-{index}",
                address,
                [other for other in self._addresses if other != address],
                str(directory / f"journal-{index}") if durable else None,
            )
            for index, address in enumerate(self._addresses)
        ]
        try:
            await_condition(lambda: self._leader() is not None, "PySyncObj elects a leader", self._servers)
        except BaseException:
            self.stop()
            raise

    def _start(self, name: str, address: str | None, partners: list[str], journal: str | None) -> ServerProcess:
        options = msgspec.json.encode({"address": address, "partners": partners, "journal": journal}).decode()
        command, output = [sys.executable, "-m", _MODULE, options], self._directory / f"{name}.out"
        # It finds the modules that we have found, wherever that was.
        return ServerProcess(command, output, piped=True, environment={"PYTHONPATH": os.pathsep.join(sys.path)})

    def _leader(self) -> int | None:
        """The leader, when all nodes know it."""
        leaders = {self._status(server)["leader"] for server in self._servers}
        return self._addresses.index(leaders.pop()) if len(leaders) == 1 and leaders != {None} else None

    def _status(self, server: ServerProcess) -> dict[str, Any]:
        _order(server, {"type": "status"})
        return _answer(server, "status")

    def measure(self, plan: PeerPlan) -> PeerMeasurement:
        leader = self._leader()
        if leader is None:
            raise PeerError("PySyncObj has lost its leader")
        return self._drive(self._servers[leader], plan, inside=True)

    def measure_kill(self, plan: PeerPlan, after_s: float) -> PeerMeasurement:
        """The leader is killed so many seconds into the measurement, and stays dead."""
        leader = self._leader()
        assert leader is not None
        attached = self._start("attached", None, self._addresses, None)
        try:
            await_condition(lambda: bool(self._status(attached)["ready"]), "PySyncObj takes a client", [attached])
            return self._drive(attached, plan, False, after_s, self._servers[leader])
        finally:
            attached.stop()

    def _drive(
        self,
        loader: ServerProcess,
        plan: PeerPlan,
        inside: bool,
        after_s: float = 0.0,
        victim: ServerProcess | None = None,
    ) -> PeerMeasurement:
        _order(loader, {"type": "load", **msgspec.to_builtins(plan)})
        _answer(loader, "measuring", plan.warm_up_s + LOAD_GRACE_S)
        meter = CpuMeter([server.pid for server in self._servers], None if inside else loader.pid)
        if victim is not None:
            time.sleep(after_s)
            victim.kill()
        report = _answer(loader, "done", plan.seconds + LOAD_GRACE_S)["report"]
        return msgspec.convert({"report": report, "cpu": msgspec.to_builtins(meter.stop())}, PeerMeasurement)

    def stop(self) -> None:
        for server in self._servers:
            server.stop()


def _order(server: ServerProcess, order: object) -> None:
    assert server.process.stdin is not None
    try:
        server.process.stdin.write(msgspec.json.encode(order) + b"\n")
        server.process.stdin.flush()
    except BrokenPipeError:
        raise PeerError(f"PySyncObj ended: {server.log.read_bytes()[-500:]!r}") from None


def _answer(server: ServerProcess, kind: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
    assert server.process.stdout is not None
    if not select.select([server.process.stdout], [], [], timeout_s)[0]:
        raise PeerError(f"PySyncObj did not say {kind!r} in {timeout_s:.0f} s")
    line = server.process.stdout.readline()
    if not line:
        raise PeerError(f"PySyncObj ended: {server.log.read_bytes()[-500:]!r}")
    answer: dict[str, Any] = msgspec.json.decode(line)
    if answer["type"] != kind:
        raise PeerError(f"PySyncObj said {answer['type']!r}, and not {kind!r}")
    return answer
