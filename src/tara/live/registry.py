"""The registry: the driver's side of the control plane. Knows where every container is, and which life it is in.

It hands out lives and first starts, and writes both down before it answers: a container that Spark starts again gets a
higher life, and genesis happens once. It is not on the request path: containers go on without it for a while.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import msgspec

from tara.configuration.settings import Settings, shape_of
from tara.configuration.state import ClusterState, StateFile
from tara.host.placement import container_label, placement_of
from tara.live import control
from tara.live.observability.events import EventLog, log_path
from tara.live.observability.heartbeats import decode_status
from tara.live.observability.metrics import Recent, recent_report
from tara.live.observability.prometheus import MetricsServer, render
from tara.live.observability.supervised import describe_end, supervised
from tara.live.recent_demand import RecentDemand
from tara.net import bounds
from tara.net.addresses import expand, same_everywhere
from tara.net.certificates import load_member_keys
from tara.net.port import Terms
from tara.net.server import Address, Server
from tara.protocol.errors import ConfigurationError, MalformedTuple, TaraError
from tara.protocol.graph import Graph
from tara.storage.registration import Granted, StartClaim, admit, found

#: A container that has been silent for so long counts as down in the status.
SILENT_S = 3.0
#: How long what is said last, that containers are to stop, may take to arrive.
_LAST_WORDS_S = 0.5
_POLL_S = 0.1
#: A life in which a container was heard of for a shorter time was a short one.
SHORT_LIFE_S = 10.0
#: Clocks of containers may differ so much from the driver's when a cluster is founded.
CLOCKS_DIFFER_S_MAX = 60.0
_TOKEN_BYTES = 16
#: For so long after it was last asked for, executors tell digests of their states.
DIGESTS_S = 120.0


class RegistryFailed(TaraError):
    """The driver cannot go on."""


class Member:
    """What is known of one container."""

    def __init__(self) -> None:
        self.identity: bytes | None = None
        #: What only its present life says; before it has registered here, nobody.
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.pid = 0
        self.peer_address: str | None = None
        self.client_address: str | None = None
        self.files_address: str | None = None
        self.heard_at = 0.0
        self.status: dict[str, Any] = {}
        self.recent = Recent()
        self.host = ""
        self.registered_at = 0.0
        self.short_lives = 0

    @property
    def server(self) -> str:
        """The address where it is: what two sites should not have in common."""
        return (self.peer_address or "").removeprefix("tcp://").rpartition(":")[0]


class Ports(NamedTuple):
    """The ports of a container that are known before it starts; 0: it takes any."""

    clients: int
    peers: int = 0
    files: int = 0


class Registry:
    def __init__(self, settings: Settings, stderr: TextIO | None = None) -> None:
        self.settings = settings
        self.shape = shape_of(settings)
        self.graph = Graph(settings.limits.f, settings.limits.partitions)
        self.placement = placement_of(self.graph, settings.packing)
        self._file = StateFile(Path(settings.data_dir))
        #: What Spark's UI is called, once it is known.
        self.ui = ""
        self.members = [Member() for _ in self.placement]
        #: Whether somebody here wants to know the digests of the executors' states.
        self._digests = RecentDemand(DIGESTS_S)
        #: The newest checkpoint at which an operator wanted bases, and whether that was not long ago.
        self._base_wanted, self._bases = 0, RecentDemand(DIGESTS_S)
        self.down = threading.Event()
        #: Why the registry had to give up; None while it works.
        self.failure: TaraError | None = None
        self.connections_refused = 0
        #: What could not be read, and was dropped.
        self.messages_bad = 0
        #: Threads without which the driver goes on, and why they ended.
        self.threads_ended: list[str] = []
        self._server: Server | None = None
        self._lock = self._file.lock()
        try:
            self._open(stderr)
        except BaseException:
            os.close(self._lock)
            if self._server is not None:
                self._server.close()
            raise
        self._thread = self.thread("registry", self._serve)
        self._thread.start()

    def thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """A thread without which the driver is of no use: if it ends before the cluster goes down, the cluster does."""
        run = supervised(name, target, self.down.is_set, self.fail)
        return threading.Thread(target=run, name=name, daemon=True)

    def fail(self, name: str, error: BaseException | None) -> None:
        """On any thread: this one has ended, and must not have."""
        # Without the registry the containers end, too: better at once and with a reason.
        failure = error if isinstance(error, TaraError) else RegistryFailed(describe_end(name, error))
        self.failure = self.failure or failure
        self.down.set()
        self.events.error("registry_failed", thread=name, reason=str(failure))

    def _open(self, stderr: TextIO | None) -> None:
        settings = self.settings
        self.state: ClusterState = self._load_state()
        self._first_lives = list(self.state.lives)
        self.state.journals = self.state.journals or [""] * len(self.placement)
        self.state.servers = self.state.servers or [""] * len(self.placement)
        self.state.begun = self.state.begun or [0] * len(self.placement)
        self.events = EventLog(log_path(settings.data_dir, "registry"), self.state.cluster, "registry", stderr)
        self.state.keys = same_everywhere(settings.keys)
        keys = load_member_keys(expand("keys", settings.keys)) if settings.keys else None
        guard = None if keys is None else keys.members_only()
        terms = Terms(bounds.CONTROL_BYTES_MAX, bounds.CONTROLLERS_MAX, guard, self._on_bad, self._on_refused)
        self._server = self._bind(terms)
        self.address = self._server.address
        self.metrics_address = ""
        self._metrics = MetricsServer(
            settings.metrics_host,
            settings.metrics_port,
            lambda: render(self.own_status()),
            lambda reason: self.events.flood("metrics_error", reason=reason),
            self._metrics_ended,
        )
        self.metrics_address = self._metrics.address
        for problem in self._file.problems:
            self.events.error("state_repaired", reason=problem)
        self.events.info(
            "registry_started", address=self.address, metrics=self.metrics_address, containers=len(self.placement)
        )

    def _metrics_ended(self, name: str, error: BaseException | None) -> None:
        """On its thread. The cluster serves without metrics, but whoever looks is to see it."""
        self.events.error("thread_ended", thread=name, reason=describe_end(name, error))
        self.threads_ended.append(describe_end(name, error))

    def _load_state(self) -> ClusterState:
        if self.settings.sites:
            raise ConfigurationError("sites: each of them has a driver of its own: start it with `tara site`")
        return self._file.open(self.settings)

    def _bind(self, terms: Terms) -> Server:
        try:
            return Server(Address(self.settings.host, 0), terms)
        except OSError as error:
            raise ConfigurationError(f"host = {self.settings.host}: cannot be bound: {error.strerror}") from error

    @property
    def hosted(self) -> list[int]:
        """The containers that this driver runs."""
        return list(range(len(self.placement)))

    def ports(self, container: int) -> Ports:
        return Ports(self.state.ports[container])

    @property
    def endpoints(self) -> list[str]:
        """Where clients connect: the front end of each container that has one and runs."""
        return [member.client_address for member in self.members if member.client_address]

    def silent_s(self) -> list[float]:
        """For how long nothing has been heard of each container; 0 of one that has not registered yet."""
        now_s = time.monotonic()
        return [now_s - member.heard_at if member.registered_at else 0.0 for member in self.members]

    def forgive(self, containers: Iterable[int]) -> None:
        """Begin to count their silence anew."""
        for container in containers:
            self.members[container].heard_at = time.monotonic()

    def site_of(self, container: int) -> int:
        return self.graph.site(self.graph.names[self.placement[container][0]])

    @property
    def gateways(self) -> list[str]:
        """Where clients of the application's own protocol connect, if it has one."""
        statuses = [member.status.get("gateway") for member in self.members]
        return [status["address"] for status in statuses if status and status["address"]]

    def gateways_serve(self) -> bool:
        """Whether all front ends of the application's own protocol are ready for clients."""
        statuses = [self.members[container].status.get("gateway") for container in self.hosted]
        return all(status is not None and status["serving"] and status["address"] for status in statuses)

    @property
    def gateway_problems(self) -> list[str]:
        """Front ends that could not be started, and why."""
        statuses = [(self.label(index), member.status.get("gateway")) for index, member in enumerate(self.members)]
        return [f"{label}: {status['error']}" for label, status in statuses if status and status["error"]]

    def is_registered(self, container: int) -> bool:
        return self.members[container].registered_at > 0

    def ready(self) -> bool:
        return all(self.members[container].status for container in self.hosted)

    def executors(self) -> list[dict[str, Any]]:
        """What the executors last said of themselves."""
        return [member.status["executor"] for member in self.members if "executor" in member.status]

    def stop(self) -> None:
        """Tell the containers to stop, and let go of the data directory."""
        self.tell_stop()
        self.release()

    def tell_stop(self) -> None:
        self.down.set()
        self._thread.join(timeout=5)

    def release(self) -> None:
        """From now on another cluster may start in this data directory."""
        if self._lock >= 0:
            self._metrics.stop()
            self.events.info("registry_stopped")
            self.events.close()
            os.close(self._lock)
            self._lock = -1

    def _serve(self) -> None:
        """The registry's thread."""
        try:
            self._loop()
        except BaseException as error:
            self.fail("registry", error)
        for member in self.members:
            self._send(member.identity, control.Stop())
        assert self._server is not None
        self._server.close(_LAST_WORDS_S)

    def _on_refused(self, reason: str) -> None:
        self.connections_refused += 1
        self.events.flood("connection_refused", at="registry", reason=reason)

    def _on_bad(self, reason: str) -> None:
        self.messages_bad += 1
        self.events.flood("bad_control_message", reason=reason)

    def _loop(self) -> None:
        assert self._server is not None
        announced = 0.0
        while not self.down.is_set():
            self._server.wait(_POLL_S)
            self._server.tick()
            for identity, data in self._server.receive():
                try:
                    self._handle(identity, control.decode(data))
                except MalformedTuple as error:
                    self._on_bad(str(error))
                except ConfigurationError as error:
                    # What could not be written down was not handed out; whoever asked will ask again.
                    self.events.flood("state_not_written", reason=str(error))
            if time.monotonic() - announced > 1.0:
                announced = time.monotonic()
                self._announce()

    def _send(self, identity: bytes | None, message: control.Message) -> None:
        if identity is not None and self._server is not None:
            self._server.send(identity, control.encode(message))

    def _handle(self, identity: bytes, message: control.Message) -> None:
        match message:
            case control.Register():
                self._register(identity, message)
            case control.Founded(container, life, journal, token) if self._is_current(container, life):
                self._check_token(container, token)
                self._found(container, journal)
                self._send(identity, control.Go(life))
            case control.Heartbeat(container, life, status, token) if self._is_current(container, life):
                self._check_token(container, token)
                member = self.members[container]
                # Its connection may be another one than before.
                member.identity = identity
                self._note_begun(container, life)
                member.status = decode_status(status)
                member.heard_at = time.monotonic()
                member.recent.add(member.heard_at, member.status)
            case control.Heartbeat(container, life):
                # It may be of an era, or of a life, that is over; it is to end rather than to wait for something.
                self._refuse(identity, f"life {life} of container {container} is over")
            case control.Warned(_, lines):
                for line in lines:
                    self.events.show(line)
            case control.AskStatus() | control.AskKill() | control.AskDown() | control.AskSite() | control.AskBase():
                self._answer(identity, message)

    def _found(self, container: int, journal: str) -> None:
        """The container has a new journal, and no other one counts any more. A start that did not get so far changes
        nothing: a disk that is missing for a moment costs nobody its journal."""
        state = self.state
        before = state.founded[container], state.journals[container], state.servers[container]
        found(state, container, journal)
        state.servers[container] = self.members[container].server
        try:
            self._file.write(state)
        except ConfigurationError:
            state.founded[container], state.journals[container], state.servers[container] = before
            raise

    def _note_begun(self, container: int, life: int) -> None:
        """It runs in this life: from now on its directory knows of it."""
        before = self.state.begun[container]
        if before != life:
            self.state.begun[container] = life
            try:
                self._file.write(self.state)
            except ConfigurationError:
                self.state.begun[container] = before
                raise

    def _is_current(self, container: int, life: int) -> bool:
        return 0 <= container < len(self.members) and life == self.state.lives[container]

    def _check_token(self, container: int, token: bytes) -> None:
        """Refuse others that speak for a container: they would get its answers, and it would think
        that its driver is gone."""
        if not secrets.compare_digest(token, self.members[container].token):
            raise MalformedTuple(f"{self.label(container)}: somebody else speaks for it")

    def _answer(self, identity: bytes, question: control.Question) -> None:
        if question.cluster not in (0, self.state.cluster):
            reason = f"this is the registry of cluster {self.state.cluster:x}, not of {question.cluster:x}"
            self._send(identity, control.Answer(False, reason.encode()))
            return
        match question:
            case control.AskStatus(digests=digests):
                if digests:
                    self.want_digests()
                self._send(identity, control.Answer(True, msgspec.json.encode(self.status())))
            case control.AskKill(target):
                self._kill(identity, target)
            case control.AskDown():
                self._send(identity, control.Answer(True, b"the cluster goes down"))
                self.events.info("going_down")
                self.down.set()
            case control.AskBase(number):
                self._send(identity, control.Answer(True, b""))
                self._want_base(number)
            case control.AskSite():
                self._send(identity, control.Answer(False, b"this driver runs a whole cluster, and not one site"))

    def _register(self, identity: bytes, register: control.Register) -> None:
        container = register.container
        known = container in self.hosted
        if not known or (register.cluster, register.era) != (self.state.cluster, self.state.era):
            self.events.flood(
                "registration_refused",
                their_cluster=f"{register.cluster:x}",
                their_era=register.era,
                their_container=container,
            )
            self._refuse(identity, "this is none of its containers")
            return
        if not self._check_clock(identity, register):
            return
        member, now_s = self.members[container], time.monotonic()
        again = member.registered_at > 0
        short = again and member.heard_at - member.registered_at < SHORT_LIFE_S
        member.short_lives = member.short_lives + 1 if short else 0
        admission = self._admit(register)
        member.identity, member.pid, member.host = identity, register.pid, register.host
        member.token = secrets.token_bytes(_TOKEN_BYTES)
        member.peer_address, member.client_address = register.peer_address, register.client_address
        member.files_address = register.files_address or None
        member.heard_at, member.registered_at = now_s, now_s
        member.status, member.recent = {}, Recent()
        if admission.journal and admission.journal == self.state.journals[container]:
            # With its disk, or its address, it may have moved.
            self.state.servers[container] = member.server
        self.state.registry, self.state.endpoints = self.address, self.endpoints
        self.state.metrics = self.metrics_address
        self._file.write(self.state)
        log = self.events.warning if again else self.events.info
        log(
            "restarted" if again else "registered",
            container=self.label(container),
            life=admission.life,
            pid=register.pid,
            host=register.host,
            endpoint=register.client_address,
            genesis=admission.genesis,
            short_lives=member.short_lives,
            hosted=[self.graph.label(number) for number in self.placement[container]],
        )
        if not self.settings.local:
            self._check_placement(container)
        self._send(
            identity,
            control.Welcome(
                admission.life,
                admission.genesis,
                member.short_lives,
                admission.keep_journal,
                admission.journal,
                member.token,
            ),
        )
        self._announce()

    def _check_clock(self, identity: bytes, register: control.Register) -> bool:
        """Whether the container may start. The first request fixes the agreed time, which never falls: a cluster is not
        founded with clocks that differ. Later, a wrong clock moves the agreed time by small steps only."""
        ahead_s = register.clock_ms / 1e3 - time.time()
        if not register.clock_ms or abs(ahead_s) <= CLOCKS_DIFFER_S_MAX:
            return True
        container = register.container
        founded = self.state.founded[container]
        self.events.flood("clock_differs", container=self.label(container), seconds=round(ahead_s), refused=not founded)
        if not founded:
            where = "ahead of" if ahead_s > 0 else "behind"
            self._refuse(
                identity,
                f"its clock is {abs(ahead_s):.0f} s {where} the driver's, and the cluster has not been founded yet: "
                "set the clocks first",
            )
        return founded

    def _admit(self, register: control.Register) -> Granted:
        """Give the container its next life, and say so if an older copy of something was put back."""
        container, before = register.container, self.state.lives[register.container]
        claim = StartClaim(
            container=container,
            life=register.life,
            begun=register.begun,
            journal=register.journal,
            fresh_journal=register.fresh_journal,
        )
        admission = admit(self.state, claim)
        if admission.older_records:
            self.events.warning(
                "older_state",
                container=self.label(container),
                life=before,
                their_life=register.life,
                begun=register.begun,
            )
        if admission.older_directory:
            self.events.error(
                "older_directory",
                container=self.label(container),
                life=register.life,
                newest=self.state.begun[container],
            )
        return admission

    def _refuse(self, identity: bytes, reason: str) -> None:
        state = self.state
        self._send(identity, control.Refuse(f"{reason} (registry of cluster {state.cluster:x}, era {state.era})"))

    def _check_placement(self, container: int) -> None:
        """Two sites on one server fall together: nobody wants that, but it is better than to have one of them only."""
        shared = self.sharing(container)
        if shared:
            self.events.warning(
                "shared_server",
                container=self.label(container),
                server=self.members[container].server,
                others=[self.label(other) for other in shared],
            )

    def sharing(self, container: int) -> list[int]:
        """The containers of other sites that were last seen on the same server."""
        server = self.members[container].server
        return [
            other
            for other, member in enumerate(self.members)
            if server and member.server == server and not self._sites(other) & self._sites(container)
        ]

    def _sites(self, container: int) -> set[int]:
        return {self.graph.site(self.graph.names[number]) for number in self.placement[container]}

    def _want_base(self, number: int) -> None:
        """Have executors take a base there. Once: one that has taken it would take another one."""
        if number > self._base_wanted:
            self._base_wanted = number
            self._bases.renew(time.monotonic())
            self.events.info("base_wanted", base=number)
            for container in self.hosted:
                self._send(self.members[container].identity, control.BaseWanted(number))

    def base_wanted(self) -> int:
        """The checkpoint at which an operator wants bases now; 0: none."""
        return self._base_wanted if self._bases.holds(time.monotonic()) else 0

    def want_digests(self) -> None:
        """Have executors tell the digests of their states for a while. It costs them a snapshot per heartbeat."""
        self._digests.renew(time.monotonic())

    def with_digests(self) -> bool:
        """Whether the containers here are to tell digests now."""
        return self._digests.holds(time.monotonic())

    def _announce(self) -> None:
        peers, files = self._peers_and_files()
        addresses = control.Addresses(peers, self.with_digests(), self.endpoints, files)
        for member in self.members:
            self._send(member.identity, addresses)

    def _peers_and_files(self) -> tuple[list[str | None], list[str | None]]:
        """Where containers take each other's tuples, and where they serve files."""
        return [member.peer_address for member in self.members], [member.files_address for member in self.members]

    def _kill(self, identity: bytes, target: str) -> None:
        container = self.container_of(target)
        if container is None:
            self._send(identity, control.Answer(False, f"no such node or site: {target}".encode()))
            return
        member = self.members[container]
        self.events.warning("kill", target=target, container=self.label(container), pid=member.pid)
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
        return container_label(self.graph, self.settings.packing, self.placement[container])

    def own_status(self) -> dict[str, Any]:
        """Of what this driver runs: what its metrics are made of."""
        return self.status()

    def _container_status(self, container: int) -> dict[str, Any]:
        member = self.members[container]
        up = self._is_up(member)
        return {
            "container": self.label(container),
            "host": member.host,
            "server": member.server,
            "sites": sorted(self._sites(container)),
            "pid": member.pid,
            "life": self.state.lives[container],
            "restarts": max(self.state.lives[container] - self._first_lives[container] - 1, 0),
            "up": up,
            "endpoint": member.client_address,
            "hosted": [self.graph.label(number) for number in self.placement[container]],
            "recent": recent_report([member.recent] if up else []),
            **member.status,
        }

    def _is_up(self, member: Member) -> bool:
        return bool(member.status) and time.monotonic() - member.heard_at < SILENT_S

    def status(self) -> dict[str, Any]:
        containers = [self._container_status(container) for container in self.hosted]
        running = [member.recent for member in self.members if self._is_up(member)]
        return {
            "cluster": f"{self.state.cluster:x}",
            "era": self.state.era,
            "f": self.state.f,
            "partitions": self.state.partitions,
            "checkpoints_per_window": self.settings.limits.window // self.settings.limits.checkpoint_slots,
            "packing": self.state.packing,
            "durability": self.state.durability,
            "app": self.settings.app,
            "shape": f"{self.shape:x}",
            "registry": self.address,
            "metrics": self.metrics_address,
            "spark_ui": self.ui,
            "connections_refused": self.connections_refused,
            "messages_bad": self.messages_bad,
            "log_errors": self.events.errors,
            "threads_ended": self.threads_ended,
            "endpoints": self.endpoints,
            "recent": recent_report(running),
            "containers": containers,
        }
