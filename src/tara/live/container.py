"""A container: the driver of one site (or of one node of it) in one process, with sockets, files and a clock.

A turn of the loop: take what has arrived, from peers, clients and stores; let the site make a step of it, and do what
it wants done, one after the other (`tara.host.site`).
"""

import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from tara.host.counters import Counters
from tara.host.effects import (
    Effect,
    Executes,
    Halt,
    Hand,
    Inputs,
    Listen,
    Message,
    Replies,
    Respond,
    Send,
    Store,
    Sync,
    Trouble,
    Unbar,
)
from tara.host.executor_condition import described
from tara.host.latency import Histogram
from tara.host.placement import serves_clients
from tara.host.site import Site, SiteSpec
from tara.live.observability.events import EventLog
from tara.live.reporting import status_report
from tara.net import bounds
from tara.net.budget import Budget
from tara.net.certificates import load_member_keys
from tara.net.file_exchange import FetchedFiles, FileServer
from tara.net.gateway import Gateway, Options, make_gateway
from tara.net.links import Links
from tara.net.log_server import LogServer
from tara.net.port import Terms
from tara.net.principal import Kind, Principal
from tara.net.server import Address, Server, clients_max
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Node, Replica
from tara.protocol.sessions import Application
from tara.storage.base_format import base_directory
from tara.storage.disk import LOCAL, Disk
from tara.storage.journal import SEGMENT_BYTES
from tara.storage.log import log_directory
from tara.storage.remote import BASES, INCOMING, LOG
from tara.storage.site_storage import LifeStart, SiteStorage, StorageSpec
from tara.storage.worker import Worker

TICK_MS = 5.0


class ContainerSpec(Struct, frozen=True, kw_only=True):
    """What a container is told before it starts. Travels in a Spark closure: no secrets here."""

    cluster: int
    era: int
    container: int
    #: All containers: the numbers of their nodes.
    placement: list[list[int]]
    limits: Limits
    durability: str
    data_dir: str
    host: str
    #: Where its front end should be, if that port is free.
    port: int
    #: Where it takes tuples and serves files; 0: at any free port. Given ports are known to others beforehand, so
    #: the container must have exactly these.
    peer_port: int = 0
    files_port: int = 0
    #: How the container is called in logs and listings.
    label: str = ""
    #: Stands for everything that must agree between containers; see `tara.configuration.settings.shape_of`.
    shape: int = 0
    #: The checkpoint that the cluster was founded with; 0: none.
    threshold: int = 0
    #: Bytes of the decided log that each executor keeps, beyond what its bases need.
    log_retention_bytes: int = 0
    #: Options of the application's gateway.
    gateway: Options = {}
    #: The directory with the cluster's keys; empty: none. The path travels, the keys do not.
    keys: str = ""
    #: The digest of the operator's secret, where there are no keys.
    operator: bytes = b""
    #: Bytes after which the journal begins a new segment.
    segment_bytes: int = SEGMENT_BYTES

    def of_site(self) -> SiteSpec:
        return SiteSpec(
            cluster=self.cluster,
            era=self.era,
            shape=self.shape,
            container=self.container,
            placement=self.placement,
            limits=self.limits,
            journal=self.durability == "disk",
            operator=self.operator,
        )


class Container:
    def __init__(
        self,
        spec: ContainerSpec,
        application: Callable[[], Application],
        events: EventLog | None = None,
        disk: Disk = LOCAL,
    ) -> None:
        self.spec = spec
        self.graph = Graph(spec.limits.f, spec.limits.partitions)
        self.counters = Counters()
        #: For what several threads count.
        self._counting = threading.Lock()
        self.events = events or EventLog(None, spec.cluster, spec.label)
        self._application = application
        self._keys = load_member_keys(spec.keys) if spec.keys else None
        #: What all ports of this process may keep together.
        self.budget = Budget()
        self._links = self._make_links()
        #: Connections of clients that are closed, for the next step.
        self._gone: list[bytes] = []
        self._front_end = self._make_front_end()
        self._log_server = self._make_log_server()
        self._files = self._serve_files()
        #: Where each container serves the files of its executors, as far as known.
        self.files_at: list[str | None] = []
        #: Where the front ends of all sites are, as far as known.
        self._front_ends: list[str] = []
        #: Written by the stores' threads when they have an answer.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._addresses: list[str | None] = [None] * len(spec.placement)
        self._container_of = {
            number: container for container, numbers in enumerate(spec.placement) for number in numbers
        }
        self._site: Site | None = None
        self.storage = SiteStorage(
            spec.of_site(),
            StorageSpec(
                data_dir=Path(spec.data_dir),
                segment_bytes=spec.segment_bytes,
                log_retention_bytes=spec.log_retention_bytes,
                threshold=spec.threshold,
            ),
            self.events,
            self.counters,
            self._remote_files,
            lambda: os.eventfd_write(self._wake, 1),
            disk,
        )
        #: What an operator wants of nodes here, for the next step.
        self._orders: list[tuple[t.Tuple, int]] = []
        #: The threads of its logs and stores.
        self._workers: list[Worker] = []
        self.sync_times = Histogram()
        self.gateway: Gateway | None = None
        self._clock_base_ms = time.time() * 1e3 - time.monotonic() * 1e3
        self._next_tick_ms = 0.0
        self._doing: dict[type[Effect], Callable[[Any], None]] = {
            Sync: self._sync,
            Send: self._send,
            Replies: self._answer,
            Listen: self._listen,
            Hand: self._hand,
            Respond: self._respond,
            Store: self._store,
            Unbar: lambda unbar: self.storage.records[unbar.number].unbar(unbar.counter),
            Executes: self._on_executes,
            Halt: self._on_halt,
            Trouble: lambda trouble: self.events.flood(trouble.kind, sender=trouble.sender, reason=trouble.reason),
        }
        self.stopping = False

    def _make_links(self) -> Links:
        spec = self.spec
        with self._binding(spec.peer_port):
            return Links(
                spec.host,
                spec.peer_port,
                len(spec.placement),
                spec.limits.frame_bytes_max,
                partial(self._on_bad_frame, "peer"),
                self._keys,
                partial(self._on_refused, "peers"),
                self.budget,
            )

    def _make_front_end(self) -> Server | None:
        spec = self.spec
        if not serves_clients(self.graph, spec.placement[spec.container]):
            return None
        # Where peers have fixed addresses, so have front ends.
        address = Address(spec.host, spec.port, elsewhere=not spec.peer_port)
        terms = Terms(
            min(spec.limits.frame_bytes_max, bounds.CLIENT_FRAME_COMMANDS * spec.limits.command_bytes_max),
            clients_max(),
            None if self._keys is None else self._keys.members_and_clients(),
            partial(self._on_bad_frame, "client"),
            partial(self._on_refused, "clients"),
            self._gone.append,
        )
        with self._binding(spec.port):
            return Server(address, terms, self.budget)

    def _make_log_server(self) -> LogServer:
        """For the log of this site's executor, which may be in another process on this host."""
        spec = self.spec
        site = self.graph.site(self.graph.names[spec.placement[spec.container][0]])
        observers = None if self._keys is None else self._keys.observers()

        def admits(principal: Principal) -> bool:
            return observers is None or principal.kind is Kind.MEMBER or principal.digest in observers.now()

        return LogServer(
            log_directory(Path(spec.data_dir), site), admits, lambda: list(self._front_ends), self._on_bad_ask
        )

    def _serve_files(self) -> FileServer:
        spec = self.spec
        address = Address(spec.host, spec.files_port)
        with self._binding(spec.files_port):
            return FileServer(
                address,
                (spec.cluster, spec.era),
                self._keys,
                self.budget,
                self._on_bad_ask,
                partial(self._on_refused, "files"),
            )

    def _on_bad_ask(self, reason: str) -> None:
        """On the thread of the server of files, or of the log."""
        with self._counting:
            self.counters.asks_bad += 1
        self.events.flood("bad_ask", reason=reason)

    def _remote_files(self, kind: str, directory: Path) -> FetchedFiles:
        """What the executors on other hosts have of this kind."""

        def address_of(replica: int) -> str | None:
            container = self._container_of[self.graph.number(Stage.EXECUTOR, replica)]
            return self.files_at[container] if container < len(self.files_at) else None

        identity = (self.spec.cluster, self.spec.era)
        return FetchedFiles(kind, identity, directory / INCOMING, address_of, self._keys)

    def _on_refused(self, port: str, reason: str) -> None:
        """On the thread that serves the port."""
        with self._counting:
            self.counters.connections_refused += 1
        self.events.flood("connection_refused", at=port, reason=reason)

    @contextmanager
    def _binding(self, port: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigurationError(f"{self.spec.host}:{port}: cannot be bound: {error.strerror}") from error

    @property
    def peer_address(self) -> str:
        return self._links.address

    @property
    def files_address(self) -> str:
        return self._files.address

    @property
    def client_address(self) -> str:
        return "" if self._front_end is None else self._front_end.address

    def start(self, start: LifeStart) -> None:
        """Make the nodes: with what the journal has, if there is one."""
        self.events.life = start.life
        storage = self.storage
        self._site = storage.start(start, partial(self._make_site, start.life), self._application, self._now_ms())
        for store in storage.stores.values():
            for name, part in (("decided-log", store.log), ("bases", store)):
                worker = Worker(name, part.work)
                part.wake = worker.wake
                self._workers.append(worker)
        self._files.start(
            {
                (kind, replica): path(Path(self.spec.data_dir), replica)
                for replica in (self.graph.names[number].replica for number in storage.stores)
                for kind, path in ((BASES, base_directory), (LOG, log_directory))
            }
        )
        self._start_gateway()

    def _make_site(self, life: int) -> Site:
        site = Site(self.spec.of_site(), life, self.counters)
        site.know_front_ends(self._front_ends)
        return site

    def _start_gateway(self) -> None:
        replica = self.site.replica
        if replica is not None:
            name = getattr(replica.application, "gateway", None)
            if name is not None:
                self.gateway = make_gateway(name, _Site(self, replica), self.spec.gateway)

    @property
    def site(self) -> Site:
        """What it drives; there when it has started."""
        assert self._site is not None
        return self._site

    def connect(self, addresses: Iterable[str | None], front_ends: list[str]) -> None:
        """(Re)connect to peers whose address is new; and let the clients know of new front ends."""
        self._front_ends = front_ends
        if self._site is not None:
            self._site.know_front_ends(front_ends)
        for container, address in enumerate(addresses):
            if container == self.spec.container or address == self._addresses[container]:
                continue
            self._addresses[container] = address
            self._links.connect(container, address)

    def take_bases(self, number: int) -> None:
        """An operator wants the executors here to take a base at this checkpoint."""
        self._orders += self._for_executors(t.TakeBase(number, by_operator=True))

    def draw_digests(self) -> None:
        """An operator wants to compare the states: the executors here draw some more of the digests of theirs."""
        self._orders += self._for_executors(t.DrawDigest(begins=False))

    def _for_executors(self, order: t.Tuple) -> list[tuple[t.Tuple, int]]:
        return [(order, executor) for executor in self.storage.stores]

    def found(self) -> None:
        """Make what the nodes persisted when they were made durable, before anything leaves."""
        for effect in self.site.begin():
            self._do(effect)

    def run(self, on_tick: Callable[[], None]) -> None:
        """Loop until `stopping` is set; `on_tick` is called about every tick."""
        links, wake = self._links.fileno(), self._wake
        clients = -1 if self._front_end is None else self._front_end.fileno()
        watched, gateway = None, -1
        epoll = select.epoll()
        for descriptor in (links, clients, wake):
            if descriptor >= 0:
                epoll.register(descriptor, select.EPOLLIN)
        while not self.stopping:
            if self.gateway is not watched:
                # One that was closed has left by itself.
                watched, gateway = self.gateway, -1
                if watched is not None:
                    gateway = watched.fileno()
                    epoll.register(gateway, select.EPOLLIN)
            wait_s = max(self._next_tick_ms / 1e3 - time.monotonic(), 0.0) if self.site.is_idle else 0.0
            news = [descriptor for descriptor, _ in epoll.poll(wait_s)]
            self.turn(links in news, clients in news, wake in news, gateway in news, on_tick)
        epoll.close()
        self._close()

    def turn(self, links: bool, clients: bool, stores: bool, gateway: bool, on_tick: Callable[[], None]) -> None:
        self.counters.turns += 1
        site, inputs = self.site, Inputs()
        if links:
            inputs.frames = self._links.receive()
        # Also of links that were broken or replaced in the meantime: what waited there is gone.
        for container in self._links.take_writable():
            site.drained(container)
        if clients and self._front_end is not None:
            inputs.messages = self._receive_messages(self._front_end)
            inputs.unread_bytes = self.budget.kept_bytes
        if self._gone:
            inputs.gone = self._gone.copy()
            self._gone.clear()
        if stores:
            os.eventfd_read(self._wake)
            inputs.tuples = self.storage.answers()
        if self._orders:
            inputs.tuples = [*inputs.tuples, *self._orders]
            self._orders.clear()
        inputs.gateway = gateway
        monotonic_ms = time.monotonic() * 1e3
        inputs.tick = monotonic_ms >= self._next_tick_ms
        self._step(inputs, monotonic_ms)
        if inputs.tick:
            self._next_tick_ms = monotonic_ms + TICK_MS
            self._links.tick()
            if self._front_end is not None:
                self._front_end.tick()
            on_tick()

    def _step(self, inputs: Inputs, monotonic_ms: float) -> None:
        for effect in self.site.step(inputs, self._clock_base_ms + monotonic_ms):
            self._do(effect)

    def _now_ms(self) -> float:
        return self._clock_base_ms + time.monotonic() * 1e3

    def _now_s(self) -> float:
        return self._now_ms() / 1e3

    def _receive_messages(self, front_end: Server) -> list[Message]:
        received = self._log_server.take_readers(front_end, front_end.receive())
        if self._keys is None and not self.budget.kept_bytes:
            # Nobody has keys, and everybody reads.
            return [Message(connection, data) for connection, data in received]
        messages = []
        for connection, data in received:
            peer = front_end.principal(connection)
            if self._keys is not None and not peer.digest:
                # It is gone already, and with it who it was.
                continue
            unread_bytes = front_end.unread_bytes(connection)
            messages.append(Message(connection, data, peer.digest, peer.kind is Kind.MEMBER, unread_bytes))
        return messages

    def _on_bad_frame(self, sender: str, reason: str) -> None:
        """Not even a frame."""
        self.counters.frames_bad += 1
        self.events.flood("bad_frame", sender=sender, reason=reason)

    def _do(self, effect: Effect) -> None:
        self._doing[type(effect)](effect)

    def _sync(self, sync: Sync) -> None:
        if self.storage.journal is None:
            return
        started_s = time.monotonic()
        while pause_s := self.storage.sync(sync.entries, sync.collected, started_s):
            time.sleep(pause_s)
            started_s = time.monotonic()
        self.sync_times.add(time.monotonic() - started_s)
        self.counters.journal_syncs += 1

    def _send(self, send: Send) -> None:
        links, container = self._links, send.container
        taken = sum([links.send(container, frame) for frame in send.frames])
        self.site.sent(send, taken, full=links.unsent_bytes(container) > 0)

    def _answer(self, answer: Replies) -> None:
        assert self._front_end is not None, "whoever asked came in there"
        send, answered = self._front_end.send, self.site.latency.answered
        for reply in answer.replies:
            for message in reply.messages:
                send(reply.connection, message)
            answered(reply.results, self._now_s)

    def _listen(self, listen: Listen) -> None:
        if self.gateway is not None:
            self.gateway.receive()

    def _hand(self, hand: Hand) -> None:
        self.site.latency.answered(hand.results, self._now_s)
        if self.gateway is not None:
            self.gateway.take(hand.results)

    def _respond(self, respond: Respond) -> None:
        if self.gateway is not None:
            self.gateway.respond(time.monotonic())

    def _store(self, store: Store) -> None:
        self.storage.stores[store.number].submit(store.job)

    def _on_executes(self, executes: Executes) -> None:
        """Its gateway reads the state of an executor, and ends with it."""
        label, halted = self.graph.label(executes.number), executes.halted
        if self.gateway is not None:
            self.gateway.close()
            self.gateway = None
        if halted.reason:
            self.counters.halted[label] = described(halted)
            self.events.error(
                "halted", label, counter=halted.counter, checkpoint=halted.checkpoint, reason=halted.reason
            )
        else:
            if self.counters.halted.pop(label, None) is not None:
                self.events.info("executes_again", label)
            self._start_gateway()

    def _on_halt(self, halt: Halt) -> None:
        label = self.graph.label(halt.number)
        self.counters.halted[label] = halt.reason
        self.events.error("halted", label, reason=halt.reason)

    @property
    def log_readers(self) -> int:
        """Readers of the decided log who are connected here."""
        return self._log_server.readers

    def status(self, digest: bool = False) -> dict[str, object]:
        """For `tara status`: what the nodes here are doing; and the digests of the executors' states, if they can be
        drawn at once, or were drawn meanwhile."""
        if digest:
            self._step(Inputs(tuples=self._for_executors(t.DrawDigest(begins=True))), time.monotonic() * 1e3)
        return status_report(self)

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The nodes that run here, by number. To be looked at only."""
        return self.site.nodes

    def release(self) -> None:
        """Let go of what the next life needs."""
        self.storage.close()
        self._files.stop()

    def _close(self) -> None:
        if self.gateway is not None:
            self.gateway.close()
        for store in self.storage.stores.values():
            store.interrupt()
        for worker in self._workers:
            worker.close()
        self.release()
        self._log_server.stop()
        self.events.info("stopped")
        self._links.close()
        if self._front_end is not None:
            self._front_end.close()
        os.close(self._wake)


class _Site:
    """The container as its gateway sees it."""

    def __init__(self, container: Container, replica: Replica) -> None:
        self._replica = replica
        self.site = container.site.number
        self.host = container.spec.host
        self.data_dir = Path(container.spec.data_dir)
        self.limits = container.spec.limits
        self.application = replica.application
        self.submit = container.site.submit

    @property
    def counter(self) -> int:
        return self._replica.counter
