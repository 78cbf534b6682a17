"""Runs a container: what a Spark task does from its start to its end.

It binds its sockets, registers, starts its nodes with what the registry says, and loops. It ends when it is told to,
when its parent process is gone, or when the driver has been silent for a minute: nothing is orphaned, and a short pause
of the driver harms nobody.
"""

import os
import signal
import time
from typing import TypeVar

import msgspec
import zmq

from tara.protocol.errors import TaraError
from tara.runtime import control
from tara.runtime.cluster import application_of
from tara.runtime.container import Container, ContainerSpec, Start
from tara.runtime.wire import readable

Kind = TypeVar("Kind")

REGISTER_TIMEOUT_S = 30.0
DRIVER_SILENT_S = 60.0
HEARTBEAT_S = 0.5


class HostingError(TaraError):
    """The container could not start."""


def run_container(spec_json: bytes, app: str, registry: str) -> None:
    """The whole life of a container. Returns when the cluster goes down; anything else ends the process."""
    spec = msgspec.json.decode(spec_json, type=ContainerSpec)
    Hosted(spec, app, registry).run()


class Hosted:
    def __init__(self, spec: ContainerSpec, app: str, registry: str) -> None:
        self._context = zmq.Context()
        self._control = self._context.socket(zmq.DEALER)
        self._control.setsockopt(zmq.LINGER, 0)
        self._control.connect(registry)
        self._container = Container(spec, application_of(app), self._context)
        self._parent = os.getppid()
        self._driver_heard_s = time.monotonic()
        self._heartbeat_due_s = 0.0
        self._life = 0
        self._orderly = False
        self._with_digest = False

    def run(self) -> None:
        welcome = self._register()
        self._life = welcome.life
        self._container.start(Start(life=welcome.life, genesis=welcome.genesis))
        if welcome.genesis:
            # Nothing has left the container yet. Only when its first start is on record may it begin.
            self._container.found()
            self._say(control.Founded(self._container.spec.container, self._life))
            self._expect(control.Go)
        self._container.run(self._on_tick)
        if not self._orderly:
            # The Spark task must fail, so that Spark starts it again if there is still a driver.
            os.kill(os.getpid(), signal.SIGKILL)

    def _register(self) -> control.Welcome:
        spec, container = self._container.spec, self._container
        self._say(control.Register(spec.container, os.getpid(), container.peer_address, container.client_address))
        return self._expect(control.Welcome)

    def _say(self, message: control.Message) -> None:
        self._control.send(control.encode(message))

    def _expect(self, kind: type[Kind]) -> Kind:
        deadline = time.monotonic() + REGISTER_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._control.poll(200):
                message = control.decode(self._control.recv())
                if isinstance(message, kind):
                    return message
                self._take(message)
        raise HostingError(f"container {self._container.spec.container}: the registry does not answer")

    def _take(self, message: control.Message) -> None:
        self._driver_heard_s = time.monotonic()
        match message:
            case control.Addresses(peers, digest):
                self._container.connect(peers)
                self._with_digest = digest
            case control.Die(life) if life == self._life:
                os.kill(os.getpid(), signal.SIGKILL)
            case control.Stop():
                self._orderly = True
                self._container.stopping = True

    def _on_tick(self) -> None:
        while readable(self._control):
            self._take(control.decode(self._control.recv()))
        now_s = time.monotonic()
        if now_s < self._heartbeat_due_s:
            return
        self._heartbeat_due_s = now_s + HEARTBEAT_S
        status = msgspec.json.encode(self._container.status(self._with_digest))
        self._say(control.Heartbeat(self._container.spec.container, self._life, status))
        if os.getppid() != self._parent or now_s - self._driver_heard_s > DRIVER_SILENT_S:
            self._container.stopping = True
