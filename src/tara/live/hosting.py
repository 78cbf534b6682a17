"""Runs a container: what a Spark task does from its start to its end.

It binds its sockets, registers, starts its nodes with what the registry says, and loops. It ends when it is told to,
when its parent process is gone, or when the driver has been silent for a minute: nothing is orphaned, and a short pause
of the driver harms nobody.

A container that cannot go on says why, waits, and ends with an error, so that Spark starts it again: the sooner its
lives end one after another, the longer it waits.
"""

import contextlib
import os
import random
import resource
import secrets
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import msgspec

from tara.live import control
from tara.live.container import Container, ContainerSpec
from tara.live.node_events import NodeEvents
from tara.live.observability.events import EventLog, log_path, show
from tara.live.observability.supervised import describe_end, report_all_threads
from tara.named import application_of
from tara.net import bounds
from tara.net.addresses import here
from tara.net.allocator import give_memory_back
from tara.net.certificates import load_member_keys
from tara.net.channel import SteadyChannel
from tara.protocol.errors import ConfigurationError, TaraError
from tara.storage.disk import LOCAL, Disk
from tara.storage.files import DamagedFile
from tara.storage.journal import journal_directory, journal_name
from tara.storage.lives import Lives, read_lives, write_lives
from tara.storage.registration import must_be_founded
from tara.storage.site_storage import LifeStart

Kind = TypeVar("Kind")

REGISTER_TIMEOUT_S = 30.0
DRIVER_SILENT_S = 60.0
HEARTBEAT_S = 0.5
#: The pause before a container that failed ends: doubles with each short life before, up to a maximum.
FAILED_PAUSE_S = 0.5
FAILED_PAUSE_S_MAX = 15.0
#: What a container says last, why it failed, is to arrive.
LAST_WORDS_S = 0.5


class HostingError(TaraError):
    """The container could not start."""


class ContainerTask:
    """What travels to the Python worker. It is defined here, where a container's own code is, and not with what starts
    it: unpickling it imports this module, and nothing of the driver's."""

    def __init__(self, spec: bytes, app: str, registry: str) -> None:
        self._arguments = (spec, app, registry)

    def __call__(self, _: object) -> None:
        run_container(*self._arguments)


def run_container(spec_json: bytes, app: str, registry: str, disk: Disk = LOCAL) -> None:
    """The whole life of a container. Returns when the cluster goes down; anything else ends the process."""
    spec = msgspec.json.decode(spec_json, type=ContainerSpec)
    _allow_many_connections()
    give_memory_back()
    _ignore_interrupts()
    _keep_files_private()
    try:
        spec = msgspec.structs.replace(spec, **here(spec, registry))
        events = EventLog(log_path(spec.data_dir, spec.label), spec.cluster, spec.label)
        hosted = Hosted(spec, registry, events, disk)
        report_all_threads(hosted.on_thread_end)
    except ConfigurationError as error:
        # There is no way to the registry yet: only Spark's log of this worker can tell.
        with contextlib.suppress(OSError):
            show(sys.stderr, f"tara: {spec.label}: {error}\n".encode())
        time.sleep(FAILED_PAUSE_S_MAX)
        raise
    try:
        hosted.start(app)
        hosted.run()
    except Exception as error:
        hosted.fail(error)
        raise


def _allow_many_connections() -> None:
    """As many open files as this process may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_files_private() -> None:
    """Whatever is made in this process, by us or by the application, is for its user only: the state of all clients,
    their passwords, and what was answered to them."""
    os.umask(0o077)


def _ignore_interrupts() -> None:
    """No signal is to raise an exception here: inside the application it would pass for a result of the command. Who
    interrupts the driver at a terminal interrupts its workers, too; the driver tells them when to end."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class Hosted:
    def __init__(self, spec: ContainerSpec, registry: str, events: EventLog, disk: Disk = LOCAL) -> None:
        self._spec = spec
        #: Where journals, logs and bases are.
        self._disk = disk
        self._events = events
        keys = load_member_keys(spec.keys) if spec.keys else None
        self._control = SteadyChannel(registry, keys, bounds.CONTROL_BYTES_MAX)
        self._parent = os.getppid()
        self._driver_heard_s = time.monotonic()
        self._heartbeat_due_s = 0.0
        self._life = 0
        self._token = b""
        #: The name of the journal that was here.
        self._journal = ""
        self._short_lives = 0
        self._orderly = False
        self._with_digest = False
        #: Which of the container's threads ended, and why; None while all run.
        self._ended: str | None = None
        #: What has to be given back when this life fails.
        self._resources = ExitStack()

    def start(self, app: str) -> None:
        """Up to the point where the nodes may begin."""
        self._container = Container(self._spec, application_of(app), self._events, self._disk)
        self._resources.callback(self._container.release)
        known = self._known_lives()
        welcome = self._register(known)
        self._life, self._token, self._short_lives = welcome.life, welcome.token, welcome.short_lives
        self._container.start(
            LifeStart(
                life=welcome.life,
                genesis=welcome.genesis,
                keep_journal=welcome.keep_journal,
                journal=welcome.journal,
            )
        )
        if must_be_founded(welcome.genesis, welcome.journal, self._journal):
            # Nothing has left the container yet. Only when its new journal is on record may it begin.
            self._container.found()
            self._say(control.Founded(self._spec.container, self._life, welcome.journal, self._token))
            self._expect(control.Go)
        # Not before: an older life is what shows that the directory is an older copy. Who ends before its outdated
        # journal is set aside has to be found out again. And nothing of this life has left the container yet.
        self._note(msgspec.structs.replace(known, life=welcome.life, begun=True))
        self._node_events = NodeEvents(
            self._container.graph, self._container.nodes, self._container.counters, self._events
        )

    def run(self) -> None:
        self._container.run(self._on_tick)
        self._control.close(LAST_WORDS_S)
        if not self._orderly:
            # The Spark task must fail, so that Spark starts it again if there is still a driver.
            os.kill(os.getpid(), signal.SIGKILL)

    def on_thread_end(self, name: str, error: BaseException | None) -> None:
        """On that thread. The container cannot do without it, so this life ends."""
        self._ended = describe_end(name, error)

    def fail(self, error: Exception) -> None:
        """Say why this life ends, let go of what the next one needs, and do not hurry to it."""
        pause_s = min(FAILED_PAUSE_S * 2**self._short_lives, FAILED_PAUSE_S_MAX)
        self._events.error("failed", reason=f"{type(error).__name__}: {error}", pause_s=pause_s)
        self._hand_on_warnings()
        self._resources.close()
        self._control.close(LAST_WORDS_S)
        time.sleep(pause_s)

    def _known_lives(self) -> Lives:
        spec = self._spec
        try:
            return read_lives(Path(spec.data_dir), spec.cluster, spec.era, spec.container)
        except (DamagedFile, OSError) as error:
            # The registry knows, too.
            self._events.error("life_unknown", reason=str(error))
            return Lives(cluster=spec.cluster, era=spec.era, container=spec.container)

    def _note(self, lives: Lives) -> None:
        try:
            write_lives(Path(self._spec.data_dir), lives)
        except OSError as error:
            raise HostingError(f"{self._spec.data_dir}: cannot be written: {error.strerror}") from error

    def _register(self, known: Lives) -> control.Welcome:
        spec, container = self._spec, self._container
        self._journal = journal_name(journal_directory(Path(spec.data_dir), spec.container))
        self._say(
            control.Register(
                spec.container,
                os.getpid(),
                container.peer_address,
                container.client_address,
                spec.cluster,
                spec.era,
                socket.gethostname(),
                container.files_address,
                self._journal,
                secrets.token_hex(8) if spec.durability == "disk" else "",
                known.life,
                known.begun,
                int(time.time() * 1e3),
            )
        )
        return self._expect(control.Welcome)

    def _say(self, message: control.Message) -> None:
        self._control.send(control.encode(message))

    def _expect(self, kind: type[Kind]) -> Kind:
        deadline = time.monotonic() + REGISTER_TIMEOUT_S
        while time.monotonic() < deadline:
            self._control.wait(0.2)
            messages = [control.decode(data) for data in self._control.receive()]
            wanted = next((message for message in messages if isinstance(message, kind)), None)
            for message in messages:
                if message is not wanted:
                    self._take(message)
            if wanted is not None:
                return wanted
        reason = f": {self._control.refusal}" if self._control.refusal else ""
        raise HostingError(f"{self._spec.label}: the registry does not answer{reason}")

    def _take(self, message: control.Message) -> None:
        self._driver_heard_s = time.monotonic()
        match message:
            case control.Addresses(peers, digest, front_ends, files):
                self._container.connect(peers, front_ends)
                self._container.files_at = files
                self._with_digest = digest
            case control.BaseWanted(number):
                self._container.take_bases(number)
            case control.Die(life) if life == self._life:
                os.kill(os.getpid(), signal.SIGKILL)
            case control.Refuse(reason):
                raise HostingError(f"{self._spec.label}: the registry refuses: {reason}")
            case control.Stop():
                self._orderly = True
                self._container.stopping = True

    def _on_tick(self) -> None:
        if self._ended is not None:
            raise HostingError(f"{self._spec.label}: {self._ended}")
        for data in self._control.receive():
            self._take(control.decode(data))
        now_s = time.monotonic()
        self._node_events.look(now_s)
        if self._with_digest:
            self._container.draw_digests()
        if now_s < self._heartbeat_due_s:
            return
        # Where commands come in step with heartbeats, replicas would never seem equally far: these lose the step.
        self._heartbeat_due_s = now_s + HEARTBEAT_S * (random.random() if self._with_digest else 1.0)
        status = msgspec.json.encode(self._container.status(self._with_digest))
        self._say(control.Heartbeat(self._spec.container, self._life, status, self._token))
        self._hand_on_warnings()
        if os.getppid() != self._parent or now_s - self._driver_heard_s > DRIVER_SILENT_S:
            self._events.warning("orphaned", driver_silent_s=round(now_s - self._driver_heard_s, 1))
            self._container.stopping = True

    def _hand_on_warnings(self) -> None:
        lines = self._events.take_warnings()
        if lines:
            self._say(control.Warned(self._spec.container, lines))
