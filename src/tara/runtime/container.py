"""The container loop: hosts the nodes of one site (or one node) in one process.

A turn of the loop: take what has arrived, from peers and clients; let local nodes work until they have nothing left to
say to each other; let time pass if it is due; sync the journal once if anything was persisted; then send one frame per
peer and one reply per client connection. This is the host's side of the node contract (`tara.protocol.node`).
"""

import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from tara.client import wire as client_wire
from tara.configuration.placement import serves_clients
from tara.host.condition import SiteCondition, described
from tara.host.fragments import Assembly, Fragment
from tara.host.outgoing import PIECE_BYTES, Outgoing
from tara.host.routes import Routes
from tara.net import bounds
from tara.net.budget import Budget
from tara.net.certificates import load_member_keys
from tara.net.file_exchange import CHECKPOINTS, INCOMING, LOG, FileServer, RemoteFiles
from tara.net.links import Links
from tara.net.port import Terms
from tara.net.principal import Kind
from tara.net.server import Address, Server, clients_max
from tara.observability.events import EventLog
from tara.observability.metrics import Counters, LatencySampler
from tara.protocol import places
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError, MalformedTuple, NodeHalted
from tara.protocol.graph import Graph, Receivers, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import GENESIS_MEMORY, Boot, Node, Outbox
from tara.protocol.nodes.committer import Committer, segment_head
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.factory import create
from tara.protocol.nodes.reads import ANSWERED_BYTES_MAX
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.principals import gateway_of, is_operator, principal_of
from tara.protocol.sessions import Application
from tara.protocol.skips import is_order
from tara.runtime.reporting import status_report
from tara.storage.execution_record import ExecutionRecord, record_path
from tara.storage.journal import SEGMENT_BYTES, FileJournal, Identity, StaleJournal, journal_directory
from tara.storage.log import DecidedLog, log_directory
from tara.storage.log_format import LogIdentity
from tara.storage.log_writer import LogSettings
from tara.storage.store import CheckpointStore, checkpoint_directory
from tara.transport import wire
from tara.transport.admission import Admission, Arrivals, ForeignFrame
from tara.transport.gateway import Gateway, Options, make_gateway
from tara.transport.questions import OpenQuestions

TICK_MS = 5.0
#: While a container with a journal is asked this many questions per tick, its proposer makes a run of requests when
#: there are this many, or this long after the last run: each run costs every site a sync, and readers wait meanwhile.
BUSY_QUESTIONS = 12
BUSY_RUN = 24
BUSY_PAUSE_S = 0.004
#: Problems of a journal that an event tells of.
DAMAGE_SHOWN = 20
#: What is answered to stale reads in one turn at least, however much waits for those who do not read.
ANSWERED_BYTES_MIN = 1 << 20
#: How often clients are told that their long commands wait for their turn: well within their patience.
WAITING_TOLD_MS = 400.0
#: Stands for the gateway where a client connection is named; no connection has an empty identity.
GATEWAY = b""
#: Secrets of which it is remembered whom they stand for.
PRINCIPALS_CACHED = 16_384


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


class Start(Struct, frozen=True, kw_only=True):
    """What the registry tells a container when it has registered."""

    life: int
    genesis: bool
    #: Whether the journal that is here is the one that the last life wrote; and its name from now on.
    keep_journal: bool = True
    journal: str = ""


Delivery = tuple[t.Tuple | wire.Vote, int]


class Route(NamedTuple):
    """Which receivers of a tuple are here, and which are behind which peer."""

    local: tuple[int, ...]
    remote: tuple[tuple[int, tuple[int, ...]], ...]
    patient: tuple[tuple[int, tuple[int, ...]], ...]


class Container:
    def __init__(
        self,
        spec: ContainerSpec,
        application: Callable[[], Application],
        events: EventLog | None = None,
    ) -> None:
        self.spec = spec
        self.graph = Graph(spec.limits.f, spec.limits.partitions)
        self._admission = Admission(self.graph, spec.limits, spec.placement[spec.container])
        origin = (spec.cluster, spec.era, spec.shape)
        self._arrivals = Arrivals(origin, len(spec.placement), self._admission)
        self.counters = Counters()
        self.latency = LatencySampler()
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
        #: Where the front ends are, and which connections have been told.
        self._front_ends: list[str] = []
        self._told: set[bytes] = set()
        #: Written by the stores' threads when they have an answer.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._addresses: list[str | None] = [None] * len(spec.placement)
        self._container_of = {
            number: container for container, numbers in enumerate(spec.placement) for number in numbers
        }
        self._routes: dict[Receivers, Route] = {}
        self._queue: deque[Delivery] = deque()
        #: Without a journal, committers need no turn of their own.
        self._for_committers: deque[Delivery] = deque() if spec.durability == "disk" else self._queue
        self._for_executors: deque[Delivery] = deque()
        queues = {Stage.COMMITTER: self._for_committers, Stage.EXECUTOR: self._for_executors}
        self._queues = [queues.get(name.stage, self._queue) for name in self.graph.names]
        piece_bytes = min(PIECE_BYTES, spec.limits.frame_bytes_max // 4)
        self._outgoing = [Outgoing(self.graph.names, piece_bytes) for _ in spec.placement]
        self._assembly = Assembly(spec.limits.frame_bytes_max)
        #: Also what is patient leaves now.
        self._ticked = False
        self._persisted: list[tuple[int, t.JournalEntry]] = []
        self._store_jobs: list[tuple[int, t.Tuple]] = []
        #: Where answers go, and who sends: by what a connection presents.
        self._client_routes = Routes()
        self._principal_of = lru_cache(maxsize=PRINCIPALS_CACHED)(partial(principal_of, operator=spec.operator))
        self._replies: dict[bytes, list[t.Result]] = {}
        self._questions = OpenQuestions(spec.limits.reads_max)
        #: How many questions came since the last tick, and whether they were many in the tick before.
        self._asked = 0
        self._busy = False
        #: Requests that have come for nodes here, and when the last ones were passed on.
        self._requests: dict[int, list[t.Request]] = {}
        self._run_s = 0.0
        #: Bytes of answers to stale reads that this turn may still give.
        #: What may still be answered to stale reads in this turn; None: nothing was yet.
        self._answer_room: int | None = None
        #: What the application has published, by connection.
        self._published: dict[bytes, list[t.Event]] = {}
        #: Whether the executor of this site executes, as far as its front end knows.
        self._condition = SiteCondition(spec.limits)
        self._nodes: dict[int, Node] = {}
        self._outboxes: dict[int, Outbox] = {}
        self.stores: dict[int, CheckpointStore] = {}
        self._records: dict[int, ExecutionRecord] = {}
        self.journal: FileJournal | None = None
        self.gateway: Gateway | None = None
        self._clock_base_ms = time.time() * 1e3 - time.monotonic() * 1e3
        self._next_tick_ms = 0.0
        self._next_told_ms = 0.0
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
        self._header = wire.Header(t.FORMAT_VERSION, spec.cluster, spec.era, spec.container, start.life, spec.shape)
        self.events.life = self._questions.life = start.life
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
        for number in self._nodes:
            self._collect(number)
        self._files.start(
            {
                (kind, replica): path(directory, replica)
                for replica in (self.graph.names[number].replica for number in self.stores)
                for kind, path in ((CHECKPOINTS, checkpoint_directory), (LOG, log_directory))
            }
        )
        self._sources = [
            self.graph.number(Stage.REQUEST_SOURCE, self.site, partition) for partition in range(spec.limits.partitions)
        ]
        entries = sum(map(len, journals.values()))
        self.events.info(
            "started", how="genesis" if start.genesis else "rejoined", journal_entries=entries, nodes=len(self._nodes)
        )
        self._start_gateway()

    def _start_gateway(self) -> None:
        executor = self._nodes.get(self.graph.number(Stage.EXECUTOR, self.site))
        if isinstance(executor, Executor):
            name = getattr(executor.application, "gateway", None)
            if name is not None:
                self.gateway = make_gateway(name, _Site(self, executor), self.spec.gateway)

    def _go_on_with(self, journal: FileJournal) -> None:
        """The committers have come back from the journal: say what was damaged, and what they do not know any more."""
        committers = self._committers()

        # One that has halted is not sure of anything any more.
        journal.resumed = lambda: segment_head(self._committers())
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

    def _committers(self) -> dict[int, Committer]:
        return {number: node for number, node in self._nodes.items() if isinstance(node, Committer)}

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
        for number in spec.placement[spec.container]:
            name = self.graph.names[number]
            memory = GENESIS_MEMORY if start.genesis else start.life
            outbox = self._outboxes[number] = Outbox()
            boot = Boot(start.life, memory, start.genesis, now_ms, spec.threshold, spec.log_retention_bytes is not None)
            if name.stage is Stage.EXECUTOR:
                record = self._execution_record(number)
                barred = frozenset(record.strikes.barred)
                boot = boot._replace(cell=record.cell, barred=barred, executed=record.executed)
            self._nodes[number] = create(
                name, self.graph, spec.limits, boot, outbox, self._application, journals.get(number, [])
            )
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
    def site(self) -> int:
        return self.graph.site(self.graph.names[self.spec.placement[self.spec.container][0]])

    def connect(self, addresses: Iterable[str | None], front_ends: list[str]) -> None:
        """(Re)connect to peers whose address is new; and let the clients know of new front ends."""
        if front_ends != self._front_ends:
            self._front_ends = front_ends
            self._told.clear()
        for container, address in enumerate(addresses):
            if container == self.spec.container or address == self._addresses[container]:
                continue
            self._addresses[container] = address
            self._links.connect(container, address)

    # The loop

    def found(self) -> None:
        """Make what the nodes persisted when they were made durable, before anything leaves."""
        if self._persisted:
            self._sync()

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
            wait_s = max(self._next_tick_ms / 1e3 - time.monotonic(), 0.0)
            if self._queue:
                wait_s = 0.0
            news = [descriptor for descriptor, _ in epoll.poll(wait_s)]
            self.turn(links in news, clients in news, wake in news, gateway in news, on_tick)
        epoll.close()
        self._close()

    def turn(self, links: bool, clients: bool, stores: bool, gateway: bool, on_tick: Callable[[], None]) -> None:
        self.counters.turns += 1
        if links:
            self._receive_frames()
        if self._front_end is not None and clients:
            self._receive_requests(self._front_end)
        if stores:
            self._receive_from_stores()
        if gateway and self.gateway is not None:
            self.gateway.receive()
        self._work()
        monotonic_ms = time.monotonic() * 1e3
        if monotonic_ms >= self._next_tick_ms:
            self._next_tick_ms = monotonic_ms + TICK_MS
            self._tick()
            self._ticked = True
            if monotonic_ms >= self._next_told_ms:
                self._next_told_ms = monotonic_ms + WAITING_TOLD_MS
                self._tell_who_waits()
            self._links.tick()
            if self._front_end is not None:
                self._front_end.tick()
            on_tick()
        self._flush()
        if self.gateway is not None:
            self.gateway.respond(monotonic_ms / 1e3)

    def _now_ms(self) -> float:
        return self._clock_base_ms + time.monotonic() * 1e3

    def _receive_frames(self) -> None:
        for data in self._links.receive():
            self.counters.frames_in += 1
            try:
                frame = self._arrivals.open(data)
            except ForeignFrame as error:
                self.counters.frames_foreign += 1
                self.events.flood("foreign_frame", reason=str(error))
                continue
            except MalformedTuple as error:
                self._on_bad_frame("peer", str(error))
                continue
            # First the end of what began in a former frame: what is whole in this one has left after it.
            for fragment in frame.fragments:
                self._receive_fragment(frame.header, fragment)
            for numbers, tuple_ in frame.parcels:
                for number in numbers:
                    self._deliver(tuple_, number)
            for numbers, vote in frame.votes:
                self._for_executors.extend([(vote, number) for number in numbers])

    def _receive_fragment(self, header: wire.Header, fragment: Fragment) -> None:
        try:
            data = self._assembly.add(header.container, header.life, fragment)
            if data is None:
                return
            tuple_ = t.decode_tuple(data)
        except MalformedTuple as error:
            self._on_bad_frame("peer", str(error))
            return
        refusal = self._admission.refusal(wire.Frame(header, [(fragment.numbers, tuple_)], [], []))
        if refusal is not None:
            self._on_bad_frame("peer", refusal)
            return
        for number in fragment.numbers:
            self._deliver(tuple_, number)

    def _on_bad_frame(self, sender: str, reason: str) -> None:
        self.counters.frames_bad += 1
        self.events.flood("bad_frame", sender=sender, reason=reason)

    def _deliver(self, tuple_: t.Tuple, number: int) -> None:
        if type(tuple_) is t.Stable:
            for outgoing in self._outgoing:
                outgoing.heard(tuple_)
        if type(tuple_) is t.Requests:
            self._requests.setdefault(number, []).extend(tuple_.requests)
        else:
            # How far a committer is, is no promise: it can be told before the journal is written.
            (self._queue if type(tuple_) is t.Read else self._queues[number]).append((tuple_, number))

    def _receive_requests(self, front_end: Server) -> None:
        by_partition: list[list[t.Command]] = [[] for _ in range(self.spec.limits.partitions)]
        self._answer_room = None
        for identity, data in front_end.receive():
            try:
                request = client_wire.decode_request(data)
            except MalformedTuple as error:
                self._on_bad_frame("client", str(error))
                continue
            self.latency.arrived(request.commands)
            if identity not in self._told:
                self._tell_front_ends(identity)
            peer = front_end.principal(identity)
            if self._keys is not None and not peer.digest:
                # It is gone already, and with it who it was.
                continue
            principal = self._principal_of(request.secret, peer.digest, peer.kind is Kind.MEMBER)
            self._take_commands(identity, principal, request.commands, by_partition)
            if request.reads:
                self._take_reads(identity, principal, request.reads)
        for number, commands in zip(self._sources, by_partition, strict=True):
            if commands:
                self._submit(number, commands, self.spec.limits.source_backlog_bytes_max)
        if questions := self._questions.take_asked():
            self._asked += len(questions)
            self._queue.append((t.Ask(questions), self._sources[0]))

    def _tell_front_ends(self, identity: bytes) -> None:
        if len(self._told) >= self.spec.limits.sessions_max:
            self._told.clear()
        self._told.add(identity)
        self._reply(identity, client_wire.ClientReply(t.FORMAT_VERSION, [], endpoints=self._front_ends))

    def _take_commands(
        self, identity: bytes, principal: bytes, commands: list[t.Command], by_partition: list[list[t.Command]]
    ) -> None:
        """Stamp commands with who sends them, remember where the answers go, and give each to its session's
        partition."""
        self.counters.commands += len(commands)
        routes, partitions = self._client_routes, len(by_partition)
        bytes_max = self.spec.limits.command_bytes_max
        halted = None if identity == GATEWAY else self._condition.halted(self._now_ms())
        for sent in commands:
            command = t.Command(sent.session, sent.number, sent.acknowledged, sent.payload, sent.kind, principal)
            if not principal:
                self._refuse(identity, command, t.FORBIDDEN, b"a command needs a secret (16 to 64 bytes), or a key")
            elif halted is not None and not is_order(command):
                self._refuse(identity, command, t.HALTED, halted)
            elif len(command.payload) > bytes_max:
                self.counters.too_large += 1
                self._refuse(identity, command, t.TOO_LARGE, f"a command may have {bytes_max} bytes".encode())
            else:
                routes.learn(identity, command)
                by_partition[(command.session or command.number) % partitions].append(command)

    def _submit(self, number: int, commands: list[t.Command], bytes_max: int | None) -> None:
        """Pass commands on to a request source, and refuse those that it has no room for."""
        source = self._nodes.get(number)
        refused = source.take(commands, bytes_max) if isinstance(source, RequestSource) else commands
        self.counters.overloaded += len(refused)
        for command in refused:
            identity = self._client_routes.of_command(command)
            if identity is not None:
                self._refuse(identity, command, t.OVERLOADED, b"")
        self._queue.append((t.Submit([]), number))

    def _refuse(self, identity: bytes, command: t.Command, status: int, message: bytes) -> None:
        result = t.Result(command.session, command.number, 0, status, message, command.principal)
        self._replies.setdefault(identity, []).append(result)

    def _tell_who_waits(self) -> None:
        """Long commands may wait for long. Who is told that they do, and that the queue moves, does not send them
        again elsewhere, where they would be ordered a second time."""
        told: dict[bytes, list[t.Result]] = {}
        for number in self._sources:
            source = self._nodes.get(number)
            for command in source.waiting() if isinstance(source, RequestSource) else ():
                identity = self._client_routes.of_command(command)
                if identity is not None and identity != GATEWAY:
                    result = t.Result(command.session, command.number, 0, t.WAITING, b"", command.principal)
                    told.setdefault(identity, []).append(result)
        for identity, results in told.items():
            self._reply(identity, client_wire.ClientReply(t.FORMAT_VERSION, results))

    def _take_reads(self, identity: bytes, principal: bytes, reads: list[client_wire.Read]) -> None:
        """Answer stale reads from the copy of the application that is here; have the others answered by the nodes."""
        if self._front_end is not None and self._front_end.unread_bytes(identity) > bounds.UNREAD_ANSWERS_BYTES_MAX:
            # Who does not read the answers that wait for him gets no more of them.
            for read in reads:
                self._questions.answer(identity, (read.id, t.OVERLOADED, b""))
            return
        if self._answer_room is None:
            # The less of what was answered before has been read, the less is answered at once.
            self._answer_room = max(ANSWERED_BYTES_MAX - self.budget.kept_bytes, ANSWERED_BYTES_MIN)
        executor = self._nodes.get(self.graph.number(Stage.EXECUTOR, self.site))
        halted = self._condition.halted(self._now_ms())
        for read in reads:
            if read.subject != t.APPLICATION and not is_operator(principal):
                self._questions.answer(identity, (read.id, t.FORBIDDEN, b"only an operator may ask for this"))
            elif halted is not None:
                self._questions.answer(identity, (read.id, t.HALTED, halted))
            elif not read.stale or read.subject != t.APPLICATION:
                self._questions.ask(identity, principal, read)
            elif isinstance(executor, Executor) and self._answer_room > 0:
                status, payload = executor.ask(read.question, principal)
                self._answer_room -= len(payload)
                self._questions.answer(identity, (read.id, status, payload))
            else:
                self._questions.answer(identity, (read.id, t.OVERLOADED, b""))

    def _reply(self, identity: bytes, reply: client_wire.ClientReply) -> None:
        if self._front_end is not None:
            for piece in client_wire.encode_reply(reply):
                self._front_end.send(identity, piece)

    def _receive_from_stores(self) -> None:
        os.eventfd_read(self._wake)
        for number, store in self.stores.items():
            self._queue.extend((answer, number) for answer in store.take())

    def _work(self) -> None:
        """Let the nodes work until they have nothing left to say to each other. Committers with a journal come late:
        what the others say does not depend on it, and leaves before it is written. Executors come last: others wait for
        the votes that leave here, but nobody waits for an execution except the clients of this site."""
        self._settle()
        while self._for_committers or self._for_executors:
            for late in (self._for_committers, self._for_executors):
                if late:
                    self._send_frames()
                    self._process(late)
                    self._settle()

    def _settle(self) -> None:
        """Process what is in the queue; then the requests that have come, which become one run."""
        self._process(self._queue)
        if not self._requests:
            return
        now_s = time.monotonic()
        few = sum(map(len, self._requests.values())) < BUSY_RUN
        if not (self._busy and few and now_s - self._run_s < BUSY_PAUSE_S):
            self._queue.extend([(t.Requests(requests), number) for number, requests in self._requests.items()])
            self._requests, self._run_s = {}, now_s
            self._process(self._queue)

    def _process(self, queue: deque[Delivery]) -> None:
        nodes = self._nodes
        self.counters.tuples_in += len(queue)
        while queue:
            tuple_, number = queue.popleft()
            node = nodes.get(number)
            if node is None:
                continue
            try:
                if not isinstance(tuple_, wire.Vote):
                    node.process(tuple_)
                elif not (isinstance(node, Executor) and node.has_decided(tuple_.partition, tuple_.end)):
                    node.process(self._admission.open(tuple_))
            except MalformedTuple as error:
                self._on_bad_frame("peer", str(error))
                continue
            except (NodeHalted, AssertionError) as error:
                self._halt(number, error)
                continue
            except MemoryError as error:
                # What an executor holds is the application's; the others would have lost what they had promised.
                if not isinstance(node, Executor):
                    raise
                self._halt(number, error)
                continue
            self._collect(number)

    def _tick(self) -> None:
        now_ms = self._now_ms()
        # Partitions do not wait: the others would have to, in the merged order.
        paced = self.journal is not None and self.spec.limits.partitions == 1
        self._busy, self._asked = paced and self._asked >= BUSY_QUESTIONS, 0
        for number, node in list(self._nodes.items()):
            try:
                node.tick(now_ms)
            except (NodeHalted, AssertionError) as error:
                self._halt(number, error)
                continue
            self._collect(number)
        self._work()

    def _halt(self, number: int, error: Exception) -> None:
        """A broken invariant stops one node, as if it had crashed, and shows."""
        node, label = self._nodes[number], self.graph.label(number)
        if isinstance(node, Executor):
            # It stays, to tell the front end of its site.
            node.give_up(repr(error))
            self._collect(number)
            return
        del self._nodes[number]
        self.counters.halted[label] = repr(error)
        self.events.error("halted", label, reason=repr(error))

    def _on_halted(self, number: int, halted: t.Halted) -> None:
        """An executor has halted, or executes again. Its gateway reads its state, and ends with it."""
        label = self.graph.label(number)
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

    def _collect(self, number: int) -> None:
        outbox = self._outboxes[number]
        if outbox.persisted:
            self._persisted.extend([(number, entry) for entry in outbox.persisted])
            outbox.persisted = []
        if not outbox.emitted:
            return
        for tuple_, receivers in outbox.emitted:
            route = self._routes.get(receivers)
            if route is None:
                route = self._routes[receivers] = self._make_route(receivers)
            for receiver in route.local:
                self._deliver(tuple_, receiver)
            if route.remote or route.patient:
                data = wire.encode(tuple_)
                for container, numbers in route.remote:
                    self._outgoing[container].add(numbers, tuple_, data)
                for container, numbers in route.patient:
                    self._outgoing[container].add(numbers, tuple_, data, urgent=False)
            elif receivers.numbers[0] < 0:
                if type(tuple_) is t.Results:
                    self._route_results(tuple_)
                elif type(tuple_) is t.Answers:
                    self._questions.route(tuple_)
                elif type(tuple_) is t.Halted:
                    if receivers.stage is Stage.CLIENT:
                        self._condition.hear(tuple_, self._now_ms())
                        self._queue.extend([(tuple_, source) for source in self._sources])
                    else:
                        self._on_halted(number, tuple_)
                elif type(tuple_) is t.AskIndex:
                    self._queue.append((tuple_, self._sources[0]))
                elif type(tuple_) is t.Unbarred:
                    self._records[number].unbar(tuple_.counter)
                else:
                    self._store_jobs.append((number, tuple_))
        outbox.emitted = []

    def _make_route(self, receivers: Receivers) -> Route:
        local: list[int] = []
        remote: dict[int, list[int]] = {}
        patient: dict[int, list[int]] = {}
        for number in receivers.numbers:
            if number < 0:
                continue
            container = self._container_of[number]
            if container == self.spec.container:
                local.append(number)
            else:
                (patient if number in receivers.patient else remote).setdefault(container, []).append(number)
        return Route(tuple(local), *(tuple((c, tuple(n)) for c, n in some.items()) for some in (remote, patient)))

    def _route_results(self, results: t.Results) -> None:
        routes, replies = self._client_routes, self._replies
        for result in results.results:
            identity = routes.of_result(result)
            if identity is not None:
                waiting = replies.get(identity)
                if waiting is None:
                    replies[identity] = [result]
                else:
                    waiting.append(result)
        for event in results.events:
            for receiver in routes.of_event(event) - {GATEWAY}:
                self._published.setdefault(receiver, []).append(event)

    def _send_frames(self) -> None:
        """Sync, then frames for each peer, as far as its link takes them."""
        if self._persisted:
            self._sync()
        links, everything = self._links, self._ticked
        for container, outgoing in enumerate(self._outgoing):
            while outgoing.is_due(everything) and not links.unsent_bytes(container):
                pieces = outgoing.take(everything)
                frames = wire.encode_frame(wire.frame_of(self._header, pieces), self.spec.limits.frame_bytes_max)
                sent = sum([links.send(container, frame) for frame in frames])
                self.counters.frames_out += sent
                self.counters.frames_dropped += len(frames) - sent
                self.counters.tuples_out += len(pieces) if sent else 0
                if sent < len(frames):
                    # Nobody is there; what waits is sent again by the protocol, if it is needed.
                    outgoing.clear()
        self._ticked = False

    def _flush(self) -> None:
        """Let everything out."""
        self._send_frames()
        if self._published or self._replies:
            # Events first: who has a result has heard of everything up to it.
            for identity, published in self._published.items():
                self._reply(identity, client_wire.ClientReply(t.FORMAT_VERSION, [], published))
            for identity, results in self._replies.items():
                self.counters.results += len(results)
                self.latency.answered(results)
                if identity != GATEWAY:
                    self._reply(identity, client_wire.ClientReply(t.FORMAT_VERSION, results))
                elif self.gateway is not None:
                    self.gateway.take(results)
            self._published, self._replies = {}, {}
        for identity, answers in self._questions.take_answers().items():
            self.counters.answers += len(answers)
            self._reply(identity, client_wire.ClientReply(t.FORMAT_VERSION, [], [], answers))
        if self._store_jobs:
            for number, job in self._store_jobs:
                self.stores[number].submit(job)  # type: ignore[arg-type]
            self._store_jobs = []

    def _sync(self) -> None:
        self.counters.journal_entries += len(self._persisted)
        if self.journal is not None:
            self.journal.append(self._persisted)
            self.counters.journal_syncs += 1
            if any(type(entry) is t.Collected for _, entry in self._persisted):
                committers = self._committers()
                self.journal.roll(lambda number: committers[number].commits.min if number in committers else 0)
        self._persisted = []

    def status(self, digest: bool = False) -> dict[str, object]:
        """For `tara status`: what the nodes here are doing."""
        return status_report(self, digest)

    @property
    def nodes(self) -> dict[int, Node]:
        """The nodes that run here, by number. To be looked at only."""
        return self._nodes

    @property
    def lives(self) -> list[int]:
        """The newest life of each container that was heard of."""
        return self._arrivals.lives

    def release(self) -> None:
        """Let go of what the next life needs."""
        if self.journal is not None:
            self.journal.close()
        self._files.stop()

    # For the gateway

    def capacity(self, session: int) -> int:
        source = self._nodes.get(self._sources[session % len(self._sources)])
        return source.capacity if isinstance(source, RequestSource) else 0

    def submit(self, commands: list[t.Command]) -> None:
        by_partition: list[list[t.Command]] = [[] for _ in self._sources]
        self._take_commands(GATEWAY, gateway_of(self.site), commands, by_partition)
        for number, some in zip(self._sources, by_partition, strict=True):
            if some:
                # What it has on its way at once is bounded there, and must not be refused.
                self._submit(number, some, bytes_max=None)

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
        self.site = container.site
        self.host = container.spec.host
        self.data_dir = Path(container.spec.data_dir)
        self.limits = container.spec.limits
        self.application = executor.application
        self.capacity = container.capacity
        self.submit = container.submit

    @property
    def counter(self) -> int:
        return self._executor.sessions.counter
