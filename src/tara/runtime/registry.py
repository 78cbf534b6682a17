"""The registry: the driver's side of the control plane. Knows where every container is, and which life it is in.

It hands out lives and first starts, and writes both down before it answers: a container that Spark starts again gets a
higher life, and genesis happens once. It is not on the request path: containers go on without it for a while.
"""

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

from tara.protocol.errors import MalformedTuple
from tara.protocol.graph import Graph
from tara.runtime import control
from tara.runtime.cluster import ClusterState, Settings, StateFile, placement_of

#: A container that has been silent for so long counts as down in the status.
SILENT_S = 3.0


class Member:
    """What is known of one container."""

    def __init__(self) -> None:
        self.identity: bytes | None = None
        self.pid = 0
        self.peer_address: str | None = None
        self.client_address: str | None = None
        self.heard_at = 0.0
        self.status: dict[str, Any] = {}


class Registry:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.graph = Graph(settings.limits.f, settings.limits.partitions)
        self.placement = placement_of(self.graph, settings.packing)
        self._file = StateFile(Path(settings.data_dir))
        self.state: ClusterState = self._file.open(settings)
        self.members = [Member() for _ in self.placement]
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.bind_to_random_port(f"tcp://{settings.host}")
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        #: Ask executors for digests of their states: costs them a snapshot per heartbeat.
        self.want_digests = False
        self.down = threading.Event()
        self._first_lives = list(self.state.lives)
        self._thread = threading.Thread(target=self._serve, name="registry", daemon=True)
        self._thread.start()

    @property
    def endpoints(self) -> list[str]:
        """Where clients connect: the front end of each container that has one and runs."""
        return [member.client_address for member in self.members if member.client_address is not None]

    @property
    def gateways(self) -> list[str]:
        """Where clients of the application's own protocol connect, if it has one."""
        statuses = [member.status.get("gateway") for member in self.members]
        return [status["address"] for status in statuses if status and status["address"]]

    def gateways_serve(self) -> bool:
        """Whether all front ends of the application's own protocol are ready for clients."""
        statuses = [member.status.get("gateway") for member in self.members]
        return all(status is not None and status["serving"] and status["address"] for status in statuses)

    @property
    def gateway_problems(self) -> list[str]:
        """Front ends that could not be started, and why."""
        statuses = [(self.label(index), member.status.get("gateway")) for index, member in enumerate(self.members)]
        return [f"{label}: {status['error']}" for label, status in statuses if status and status["error"]]

    def ready(self) -> bool:
        return all(member.status for member in self.members)

    def executors(self) -> list[dict[str, Any]]:
        """What the executors last said of themselves."""
        return [member.status["executor"] for member in self.members if "executor" in member.status]

    def stop(self) -> None:
        self.down.set()
        self._thread.join(timeout=5)

    # On the thread

    def _serve(self) -> None:
        announced = 0.0
        while not self.down.is_set():
            if self._socket.poll(100):
                identity, data = self._socket.recv_multipart()[:2]
                try:
                    self._handle(identity, control.decode(data))
                except MalformedTuple:
                    continue
            if time.monotonic() - announced > 1.0:
                announced = time.monotonic()
                self._announce()
        for member in self.members:
            self._send(member.identity, control.Stop())
        self._socket.close()
        self._context.term()

    def _send(self, identity: bytes | None, message: control.Message) -> None:
        if identity is not None:
            self._socket.send_multipart((identity, control.encode(message)))

    def _handle(self, identity: bytes, message: control.Message) -> None:
        match message:
            case control.Register():
                self._register(identity, message)
            case control.Founded(container, life):
                if life == self.state.lives[container]:
                    self.state.founded[container] = True
                    self._file.write(self.state)
                    self._send(identity, control.Go(life))
            case control.Heartbeat(container, life, status):
                member = self.members[container]
                if life == self.state.lives[container]:
                    member.heard_at = time.monotonic()
                    member.status = msgspec.json.decode(status)
            case control.AskStatus():
                self._send(identity, control.Answer(True, msgspec.json.encode(self.status())))
            case control.AskKill(target):
                self._kill(identity, target)
            case control.AskDown():
                self._send(identity, control.Answer(True, b"the cluster goes down"))
                self.down.set()

    def _register(self, identity: bytes, register: control.Register) -> None:
        container = register.container
        self.state.lives[container] += 1
        member = self.members[container]
        member.identity, member.pid = identity, register.pid
        member.peer_address, member.client_address = register.peer_address, register.client_address
        member.heard_at, member.status = time.monotonic(), {}
        self.state.registry, self.state.endpoints = self.address, self.endpoints
        self._file.write(self.state)
        genesis = not self.state.founded[container]
        self._send(identity, control.Welcome(self.state.lives[container], genesis))
        self._announce()

    def _announce(self) -> None:
        peers = [member.peer_address for member in self.members]
        addresses = control.Addresses(peers, self.want_digests)
        for member in self.members:
            self._send(member.identity, addresses)

    def _kill(self, identity: bytes, target: str) -> None:
        container = self.container_of(target)
        if container is None:
            self._send(identity, control.Answer(False, f"no such node or site: {target}".encode()))
            return
        member = self.members[container]
        self._send(member.identity, control.Die(self.state.lives[container]))
        self._send(identity, control.Answer(True, f"{target}: process {member.pid} gets SIGKILL".encode()))

    def container_of(self, target: str) -> int | None:
        """The container of a node or site, by name."""
        for container, numbers in enumerate(self.placement):
            names = {self.graph.label(number) for number in numbers}
            if target in names or target == self.label(container):
                return container
        return None

    def label(self, container: int) -> str:
        if self.settings.packing == "site":
            return f"site-{container}"
        return self.graph.label(self.placement[container][0])

    def status(self) -> dict[str, Any]:
        containers = []
        for container, member in enumerate(self.members):
            silent_s = time.monotonic() - member.heard_at
            containers.append(
                {
                    "container": self.label(container),
                    "pid": member.pid,
                    "life": self.state.lives[container],
                    "restarts": self.state.lives[container] - self._first_lives[container] - 1,
                    "up": bool(member.status) and silent_s < SILENT_S,
                    "endpoint": member.client_address,
                    **member.status,
                }
            )
        return {
            "cluster": f"{self.state.cluster:x}",
            "era": self.state.era,
            "f": self.state.f,
            "partitions": self.state.partitions,
            "packing": self.state.packing,
            "durability": self.state.durability,
            "endpoints": self.endpoints,
            "containers": containers,
        }
