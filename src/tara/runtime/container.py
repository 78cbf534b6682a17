"""A container: the driver of one site (or of one node of it) in one process, with sockets, files and a clock.

A turn of the loop: take what has arrived, from peers, clients and stores; let the site make a step of it, and do what
it wants done, one after the other (`tara.host.site`).
"""

import os
import select
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from tara.host.condition import described
from tara.host.counters import Counters
from tara.host.effects import Effect, Executes, Halt, Hand, Inputs, Message, Reply, Send, Store, Sync, Trouble, Unbar
from tara.host.placement import serves_clients
from tara.host.site import Site, SiteSpec
from tara.net import bounds
from tara.net.budget import Budget
from tara.net.certificates import load_member_keys
from tara.net.file_exchange import CHECKPOINTS, INCOMING, LOG, FileServer, RemoteFiles
from tara.net.links import Links
from tara.net.port import Terms
from tara.net.principal import Kind
from tara.net.server import Address, Server, clients_max
from tara.observability.events import EventLog
from tara.protocol import places
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError, NodeHalted
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import GENESIS_MEMORY, Boot, Node
from tara.protocol.nodes.committer import segment_head
from tara.protocol.nodes.executor import Executor
from tara.protocol.sessions import Application
from tara.runtime.reporting import status_report
from tara.storage.execution_record import ExecutionRecord, record_path
from tara.storage.journal import SEGMENT_BYTES, FileJournal, Identity, StaleJournal, journal_directory
from tara.storage.log import DecidedLog, log_directory
from tara.storage.log_format import LogIdentity
from tara.storage.log_writer import LogSettings
from tara.storage.store import CheckpointStore, checkpoint_directory
from tara.transport.gateway import Gateway, Options, make_gateway

TICK_MS = 5.0
#: Problems of a journal that an event tells of.
DAMAGE_SHOWN = 20


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
    #: Where it takes tuples and serves files; 0: at any free port. If they are given, others know them beforehand, and
    #: it does without none of its ports.
    peer_port: int = 0
    files_port: int = 0
    #: How the container is called in logs and listings.
    label: str = ""
    #: Stands for everything that must agree between containers; see `tara.configuration.settings.shape_of`.
    shape: int = 0
    #: The checkpoint that the cluster was founded with; 0: none.
    threshold: int = 0
    #: Bytes of the decided log that each executor keeps; None: it keeps no log.
    log_retention_bytes: int | None = None
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


class Start(Struct, frozen=True, kw_only=True):
    """What the registry tells a container when it has registered."""

    life: int
    genesis: bool
    #: Whether the journal that is here is the one that the last life wrote; and its name from now on.
    keep_journal: bool = True
    journal: str = ""


class Container:
    def __init__(
        self,
        spec: ContainerSpec,
        application: Callable[[], Application],
        events: EventLog | None = None,
    ) -> None:
        self.spec = spec
        self.graph = Graph(spec.limits.f, spec.limits.partitions)
        self.counters = Counters()
        self.events = events or EventLog(None, spec.cluster, spec.label)
        self._application = application
        self._keys = load_member_keys(spec.keys) if spec.keys else None
        #: What all ports of this process may keep together.
        self.budget = Budget()
        self._links = self._make_links()
        self._front_end = self._make_front_end()
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
        self.stores: dict[int, CheckpointStore] = {}
        self._records: dict[int, ExecutionRecord] = {}
        self.journal: FileJournal | None = None
        self.gateway: Gateway | None = None
        self._clock_base_ms = time.time() * 1e3 - time.monotonic() * 1e3
        self._next_tick_ms = 0.0
        self._doing: dict[type[Effect], Callable[[Any], None]] = {
            Sync: self._sync,
            Send: self._send,
            Reply: self._reply,
            Hand: self._hand,
            Store: self._store,
            Unbar: lambda unbar: self._records[unbar.number].unbar(unbar.counter),
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
        )
        with self._binding(spec.port):
            return Server(address, terms, self.budget)

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
        """On the file server's thread."""
        self.counters.asks_bad += 1
        self.events.flood("bad_ask", reason=reason)

    def _remote_files(self, kind: str, directory: Path) -> RemoteFiles:
        """What the executors on other hosts have of this kind."""

        def address_of(replica: int) -> str | None:
            container = self._container_of[self.graph.number(Stage.EXECUTOR, replica)]
            return self.files_at[container] if container < len(self.files_at) else None

        identity = (self.spec.cluster, self.spec.era)
        return RemoteFiles(kind, identity, directory / INCOMING, address_of, self._keys)

    def _on_refused(self, port: str, reason: str) -> None:
        """On the thread that serves the port."""
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

    # Starting

    def start(self, start: Start) -> None:
        """Make the nodes: with what the journal has, if there is one."""
        spec = self.spec
        self.events.life = start.life
        journals: dict[int, list[t.ReplayedEntry]] = {}
        directory = Path(spec.data_dir)
        if spec.durability == "disk":
            identity = Identity(spec.cluster, spec.era, spec.container)
            self.journal = FileJournal(
                journal_directory(directory, spec.container),
                identity,
                spec.segment_bytes,
                on_trouble=lambda error: self.events.flood("journal_waits", reason=str(error)),
            )
            if not start.keep_journal and not self.journal.is_empty:
                self._set_aside(self.journal, StaleJournal("this container has run elsewhere since it was written"))
            if start.journal:
                self.journal.rename(start.journal)
            journals = self._replay(self.journal)
        try:
            self._create_nodes(start, journals)
        except (NodeHalted, AssertionError) as error:
            # A journal that reads well but makes no sense is as good as none.
            if self.journal is None or not journals:
                raise
            self._set_aside(self.journal, error)
            self._create_nodes(start, {})
        if self.journal is not None:
            self._go_on_with(self.journal)
        self._files.start(
            {
                (kind, replica): path(directory, replica)
                for replica in (self.graph.names[number].replica for number in self.stores)
                for kind, path in ((CHECKPOINTS, checkpoint_directory), (LOG, log_directory))
            }
        )
        entries = sum(map(len, journals.values()))
        self.events.info(
            "started", how="genesis" if start.genesis else "rejoined", journal_entries=entries, nodes=len(self.nodes)
        )
        self._start_gateway()

    def _start_gateway(self) -> None:
        executor = self.site.executor
        if executor is not None:
            name = getattr(executor.application, "gateway", None)
            if name is not None:
                self.gateway = make_gateway(name, _Site(self, executor), self.spec.gateway)

    def _go_on_with(self, journal: FileJournal) -> None:
        """The committers have come back from the journal: say what was damaged, and what they do not know any more."""
        committers = self.site.committers()
        journal.resumed = lambda: segment_head(self.site.committers())
        aside = None
        if journal.broken:
            aside = journal.restore(
                [(number, node.restored()) for number, node in committers.items() if not node.recovering]
            )
        else:
            journal.mark()
        if journal.problems:
            self.counters.journals_repaired += 1
            self.events.error(
                "journal_repaired",
                damage=journal.problems[:DAMAGE_SHOWN],
                holes={self.graph.label(number): len(node.holes) for number, node in committers.items()},
                kept_in=str(aside) if aside is not None else None,
            )

    def _replay(self, journal: FileJournal) -> dict[int, list[t.ReplayedEntry]]:
        """What the journal has. From one that cannot be trusted, nothing: the committers rejoin without memory, under
        the number of this life, which no life before it had."""
        try:
            return journal.replay()
        except StaleJournal as error:
            self._set_aside(journal, error)
            return {}

    def _set_aside(self, journal: FileJournal, reason: Exception) -> None:
        name = journal.name
        target = journal.set_aside()
        journal.rename(name)
        self.counters.journals_set_aside += 1
        self.events.error("journal_set_aside", reason=f"{type(reason).__name__}: {reason}", kept_in=str(target))

    def _create_nodes(self, start: Start, journals: dict[int, list[t.ReplayedEntry]]) -> None:
        spec, now_ms = self.spec, self._now_ms()
        directory = Path(spec.data_dir)
        site = self._site = Site(spec.of_site(), start.life, self.counters)
        site.know_front_ends(self._front_ends)
        for number in spec.placement[spec.container]:
            name = self.graph.names[number]
            memory = GENESIS_MEMORY if start.genesis else start.life
            boot = Boot(start.life, memory, start.genesis, now_ms, spec.threshold, spec.log_retention_bytes is not None)
            if name.stage is Stage.EXECUTOR:
                record = self._execution_record(number)
                barred = frozenset(record.strikes.barred)
                boot = boot._replace(cell=record.cell, barred=barred, executed=record.executed)
            site.create(number, boot, self._application, journals.get(number, []))
            if name.stage is Stage.EXECUTOR:
                stores = [checkpoint_directory(directory, replica) for replica in range(self.graph.sites)]
                store = CheckpointStore(
                    stores[name.replica],
                    spec.cluster,
                    spec.era,
                    stores,
                    lambda: os.eventfd_write(self._wake, 1),
                    self._make_log(name.replica),
                    self._remote_files(CHECKPOINTS, stores[name.replica]),
                )
                store.on_event = partial(self._on_store_event, self.graph.label(number))
                self.stores[number] = store

    def _execution_record(self, number: int) -> ExecutionRecord:
        """Opened once in a life: that is a new beginning for it."""
        if number in self._records:
            return self._records[number]
        spec, label = self.spec, self.graph.label(number)
        path = record_path(Path(spec.data_dir), self.graph.names[number].replica)
        record = self._records[number] = ExecutionRecord(path, spec.cluster, spec.era)
        if record.trouble is not None:
            self.events.warning("execution_record_refused", label, reason=record.trouble)
        for place, times in zip(record.strikes.places, record.strikes.counts, strict=True):
            if place:
                self.events.warning("ended_in_application", label, at=places.describe(place), times=times)
        return record

    def _make_log(self, replica: int) -> DecidedLog | None:
        spec, limits = self.spec, self.spec.limits
        if spec.log_retention_bytes is None:
            return None
        directories = [log_directory(Path(spec.data_dir), index) for index in range(self.graph.sites)]
        settings = LogSettings(
            identity=LogIdentity(spec.cluster, spec.era),
            partitions=limits.partitions,
            checkpoint_interval=limits.checkpoint_interval,
            retention_bytes=spec.log_retention_bytes,
        )
        remote = self._remote_files(LOG, directories[replica])
        log = DecidedLog(directories[replica], settings, directories, remote)
        log.on_problem = lambda reason: self.events.flood("log_problem", reason=reason)
        return log

    def _on_store_event(self, node: str, event: str, detail: int | str) -> None:
        """On the store's thread."""
        if event in ("checkpoint_saved", "checkpoint_loaded", "checkpoint_fetched"):
            self.events.info(event, node, checkpoint=detail)
        else:
            self.events.flood(event, node, reason=detail)

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

    # The loop

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
            site.full[container] = False
        if clients and self._front_end is not None:
            inputs.messages = self._receive_messages(self._front_end)
            inputs.unread_bytes = self.budget.kept_bytes
        if stores:
            os.eventfd_read(self._wake)
            inputs.tuples = [(answer, number) for number, store in self.stores.items() for answer in store.take()]
        if gateway and self.gateway is not None:
            self.gateway.receive()
        monotonic_ms = time.monotonic() * 1e3
        inputs.tick = monotonic_ms >= self._next_tick_ms
        for effect in site.step(inputs, self._clock_base_ms + monotonic_ms):
            self._do(effect)
        if inputs.tick:
            self._next_tick_ms = monotonic_ms + TICK_MS
            self._links.tick()
            if self._front_end is not None:
                self._front_end.tick()
            on_tick()
        if self.gateway is not None:
            self.gateway.respond(monotonic_ms / 1e3)

    def _now_ms(self) -> float:
        return self._clock_base_ms + time.monotonic() * 1e3

    def _now_s(self) -> float:
        return self._now_ms() / 1e3

    def _receive_messages(self, front_end: Server) -> list[Message]:
        received = front_end.receive()
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

    # Effects

    def _do(self, effect: Effect) -> None:
        self._doing[type(effect)](effect)

    def _sync(self, sync: Sync) -> None:
        journal = self.journal
        if journal is None:
            return
        journal.append(sync.entries)
        self.counters.journal_syncs += 1
        if sync.collected:
            committers = self.site.committers()
            journal.roll(lambda number: committers[number].commits.min if number in committers else 0)

    def _send(self, send: Send) -> None:
        links, container = self._links, send.container
        taken = sum([links.send(container, frame) for frame in send.frames])
        self.site.sent(send, taken, full=links.unsent_bytes(container) > 0)

    def _reply(self, reply: Reply) -> None:
        if self._front_end is not None:
            for message in reply.messages:
                self._front_end.send(reply.connection, message)
        self.site.latency.answered(reply.results, self._now_s)

    def _hand(self, hand: Hand) -> None:
        self.site.latency.answered(hand.results, self._now_s)
        if self.gateway is not None:
            self.gateway.take(hand.results)

    def _store(self, store: Store) -> None:
        self.stores[store.number].submit(store.job)  # type: ignore[arg-type]

    def _on_executes(self, executes: Executes) -> None:
        """Its gateway reads the state of an executor, and ends with it."""
        label, halted = self.graph.label(executes.number), executes.halted
        if halted.reason:
            self.counters.halted[label] = described(halted)
            self.events.error(
                "halted", label, counter=halted.counter, checkpoint=halted.checkpoint, reason=halted.reason
            )
            if self.gateway is not None:
                self.gateway.close()
                self.gateway = None
        else:
            self.counters.halted.pop(label, None)
            self.events.info("executes_again", label)
            self._start_gateway()

    def _on_halt(self, halt: Halt) -> None:
        label = self.graph.label(halt.number)
        self.counters.halted[label] = halt.reason
        self.events.error("halted", label, reason=halt.reason)

    def status(self, digest: bool = False) -> dict[str, object]:
        """For `tara status`: what the nodes here are doing."""
        return status_report(self, digest)

    @property
    def nodes(self) -> dict[int, Node]:
        """The nodes that run here, by number. To be looked at only."""
        return self.site.nodes

    def release(self) -> None:
        """Let go of what the next life needs."""
        if self.journal is not None:
            self.journal.close()
        self._files.stop()

    def _close(self) -> None:
        if self.gateway is not None:
            self.gateway.close()
        for store in self.stores.values():
            store.close()
        self.release()
        self.events.info("stopped")
        self._links.close()
        if self._front_end is not None:
            self._front_end.close()
        os.close(self._wake)


class _Site:
    """The container as its gateway sees it."""

    def __init__(self, container: Container, executor: Executor) -> None:
        self._executor = executor
        self.site = container.site.number
        self.host = container.spec.host
        self.data_dir = Path(container.spec.data_dir)
        self.limits = container.spec.limits
        self.application = executor.application
        self.capacity = container.site.capacity
        self.submit = container.site.submit

    @property
    def counter(self) -> int:
        return self._executor.sessions.counter
