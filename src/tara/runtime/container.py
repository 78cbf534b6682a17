"""The container loop: hosts the nodes of one site (or one node) in one process.

A turn of the loop: take what has arrived, from peers and clients; let local nodes work until they have nothing left to
say to each other; let time pass if it is due; sync the journal once if anything was persisted; then send one frame per
peer and one reply per client connection. This is the host's side of the node contract (`tara.protocol.node`).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import zmq
from msgspec import Raw, Struct

from tara.client import wire as client_wire
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple, NodeHalted
from tara.protocol.graph import PARTITIONED, Graph, Receivers, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import GENESIS_MEMORY, Boot, Node, Outbox
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.factory import create
from tara.protocol.nodes.proposer import Proposer
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.sessions import Application
from tara.runtime import wire
from tara.runtime.journal import FileJournal, Identity
from tara.runtime.log import DecidedLog, LogIdentity, LogSettings, log_directory
from tara.runtime.store import CheckpointStore, checkpoint_directory

TICK_MS = 5.0
#: Frames taken in one turn from one socket: bounds how long a turn can be.
FRAMES_PER_TURN = 64
#: Frames that may wait for a slow peer, or for this process; more are dropped, and sent again by the protocol.
QUEUED_FRAMES_MAX = 10_000


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
    #: The checkpoint that the cluster was founded with; 0: none.
    threshold: int = 0
    #: Bytes of the decided log that each executor keeps; None: it keeps no log.
    log_retention_bytes: int | None = None


class Start(Struct, frozen=True, kw_only=True):
    """What the registry tells a container when it has registered."""

    life: int
    genesis: bool


class Counters(Struct):
    """What the container has done since it started."""

    frames_in: int = 0
    frames_out: int = 0
    frames_bad: int = 0
    frames_foreign: int = 0
    frames_dropped: int = 0
    tuples_in: int = 0
    commands: int = 0
    results: int = 0
    journal_syncs: int = 0
    journal_entries: int = 0
    turns: int = 0
    halted: dict[str, str] = {}


class Container:
    def __init__(
        self,
        spec: ContainerSpec,
        application: Callable[[], Application],
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.spec = spec
        self.graph = Graph(spec.limits.f, spec.limits.partitions)
        self.counters = Counters()
        self._application = application
        self._context = context or zmq.Context()
        self._inbox = self._bind(zmq.PULL)
        self._clients = self._bind(zmq.ROUTER)
        self._wake_in = self._context.socket(zmq.PULL)
        self._wake_in.bind(f"inproc://wake-{id(self)}")
        self._peers: list[zmq.Socket[bytes] | None] = [None] * len(spec.placement)
        self._addresses: list[str | None] = [None] * len(spec.placement)
        #: The newest life that was heard of each container; frames of older ones are dropped.
        self._lives = [0] * len(spec.placement)
        self._container_of = {
            number: container for container, numbers in enumerate(spec.placement) for number in numbers
        }
        self._routes: dict[Receivers, tuple[tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]]] = {}
        self._queue: deque[tuple[t.Tuple, int]] = deque()
        self._to_peers: list[list[tuple[tuple[int, ...], Raw]]] = [[] for _ in spec.placement]
        self._persisted: list[tuple[int, t.JournalEntry]] = []
        self._store_jobs: list[tuple[int, t.Tuple]] = []
        #: Which connection a session (or, while it opens, a nonce) was last heard on.
        self._session_routes: dict[int, bytes] = {}
        self._opening: dict[int, bytes] = {}
        self._replies: dict[bytes, list[t.Result]] = {}
        self._nodes: dict[int, Node] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._stores: dict[int, CheckpointStore] = {}
        self._journal: FileJournal | None = None
        self._clock_base_ms = time.time() * 1e3 - time.monotonic() * 1e3
        self._next_tick_ms = 0.0
        self.stopping = False

    def _bind(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, QUEUED_FRAMES_MAX)
        socket.setsockopt(zmq.SNDHWM, QUEUED_FRAMES_MAX)
        socket.setsockopt(zmq.MAXMSGSIZE, self.spec.limits.frame_bytes_max)
        socket.bind_to_random_port(f"tcp://{self.spec.host}")
        return socket

    @property
    def peer_address(self) -> str:
        return self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def client_address(self) -> str:
        return self._clients.getsockopt_string(zmq.LAST_ENDPOINT)

    # Starting

    def start(self, start: Start) -> None:
        """Make the nodes: with what the journal has, if there is one."""
        spec = self.spec
        self._header = wire.Header(t.FORMAT_VERSION, spec.cluster, spec.era, spec.container, start.life)
        journals: dict[int, list[t.JournalEntry]] = {}
        directory = Path(spec.data_dir)
        if spec.durability == "disk":
            identity = Identity(t.FORMAT_VERSION, spec.cluster, spec.era, spec.container)
            self._journal = FileJournal(directory / f"journal-{spec.container}", identity)
            journals = self._journal.replay()
        now_ms = self._now_ms()
        for number in spec.placement[spec.container]:
            name = self.graph.names[number]
            memory = GENESIS_MEMORY if start.genesis else start.life
            outbox = self._outboxes[number] = Outbox()
            boot = Boot(start.life, memory, start.genesis, now_ms, spec.threshold)
            self._nodes[number] = create(
                name, self.graph, spec.limits, boot, outbox, self._application, journals.get(number, [])
            )
            if name.stage is Stage.EXECUTOR:
                stores = [checkpoint_directory(directory, replica) for replica in range(self.graph.sites)]
                self._stores[number] = CheckpointStore(
                    stores[name.replica],
                    spec.cluster,
                    spec.era,
                    stores,
                    self._make_wake(),
                    self._make_log(name.replica),
                )
        for number in self._nodes:
            self._collect(number)
        self._sources = [
            self.graph.number(Stage.REQUEST_SOURCE, self.site, partition) for partition in range(spec.limits.partitions)
        ]

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
        return DecidedLog(directories[replica], settings, directories)

    def _make_wake(self) -> Callable[[], None]:
        socket = self._context.socket(zmq.PUSH)
        socket.connect(f"inproc://wake-{id(self)}")
        return lambda: socket.send(b"")

    @property
    def site(self) -> int:
        return self.graph.site(self.graph.names[self.spec.placement[self.spec.container][0]])

    def connect(self, addresses: Iterable[str | None]) -> None:
        """(Re)connect to peers whose address is new."""
        for container, address in enumerate(addresses):
            if container == self.spec.container or address == self._addresses[container]:
                continue
            self._addresses[container] = address
            old = self._peers[container]
            if old is not None:
                old.close(0)
                self._peers[container] = None
            if address is not None:
                socket = self._context.socket(zmq.PUSH)
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.SNDHWM, QUEUED_FRAMES_MAX)
                socket.setsockopt(zmq.RECONNECT_IVL, 20)
                socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
                socket.connect(address)
                self._peers[container] = socket

    # The loop

    def found(self) -> None:
        """Make what the nodes persisted when they were made durable, before anything leaves."""
        if self._persisted:
            self._sync()

    def run(self, control: zmq.Socket[bytes], on_control: Callable[[], None], on_idle: Callable[[float], None]) -> None:
        """Loop until `stopping` is set."""
        poller = zmq.Poller()
        for socket in (self._inbox, self._clients, self._wake_in):
            poller.register(socket, zmq.POLLIN)
        poller.register(control, zmq.POLLIN)
        while not self.stopping:
            wait_ms = max(self._next_tick_ms - time.monotonic() * 1e3, 0.0)
            ready = dict(poller.poll(int(wait_ms + 0.999)))
            if control in ready:
                on_control()
            self.turn(ready)
            on_idle(time.monotonic())
        self._close()

    def turn(self, ready: dict[object, int]) -> None:
        self.counters.turns += 1
        if self._inbox in ready:
            self._receive_frames()
        if self._clients in ready:
            self._receive_requests()
        if self._wake_in in ready:
            self._receive_from_stores()
        self._work()
        monotonic_ms = time.monotonic() * 1e3
        if monotonic_ms >= self._next_tick_ms:
            self._next_tick_ms = monotonic_ms + TICK_MS
            self._tick()
        self._flush()

    def _now_ms(self) -> float:
        return self._clock_base_ms + time.monotonic() * 1e3

    def _receive_frames(self) -> None:
        receive, queue = self._inbox.recv, self._queue
        for _ in range(FRAMES_PER_TURN):
            try:
                data = receive(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.counters.frames_in += 1
            try:
                frame = wire.decode_frame(data)
            except MalformedTuple:
                self.counters.frames_bad += 1
                continue
            if not self._accept(frame.header):
                self.counters.frames_foreign += 1
                continue
            for numbers, tuple_ in frame.parcels:
                for number in numbers:
                    queue.append((tuple_, number))

    def _accept(self, header: wire.Header) -> bool:
        """Whether it is of our cluster and era, and not of a life that is over."""
        mine = self._header
        if (header.cluster, header.era) != (mine.cluster, mine.era) or not 0 <= header.container < len(self._lives):
            return False
        if header.life < self._lives[header.container]:
            return False
        self._lives[header.container] = header.life
        return True

    def _receive_requests(self) -> None:
        by_partition: list[list[t.Command]] = [[] for _ in range(self.spec.limits.partitions)]
        for _ in range(FRAMES_PER_TURN):
            try:
                parts = self._clients.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                identity, data = parts
                request = client_wire.decode_request(data)
            except (ValueError, MalformedTuple):
                self.counters.frames_bad += 1
                continue
            self.counters.commands += len(request.commands)
            for command in request.commands:
                self._take_command(identity, command, by_partition)
            if request.reads:
                self._read_locally(identity, request.reads)
        for source, commands in zip(self._sources, by_partition, strict=True):
            if commands:
                self._queue.append((t.Submit(commands), source))

    def _take_command(self, identity: bytes, command: t.Command, by_partition: list[list[t.Command]]) -> None:
        """Pass a command on to the source of its partition, or say at once why not."""
        partition = (command.session or command.number) % len(by_partition)
        waiting = by_partition[partition]
        source = self._nodes.get(self._sources[partition])
        if command.session:
            self._session_routes[command.session] = identity
        else:
            self._opening[command.number] = identity
        if len(command.payload) > self.spec.limits.command_bytes_max:
            limit = self.spec.limits.command_bytes_max
            self._refuse(identity, command, t.TOO_LARGE, f"a command may have {limit} bytes".encode())
        elif not isinstance(source, RequestSource) or source.capacity <= len(waiting):
            self._refuse(identity, command, t.OVERLOADED, b"")
        else:
            waiting.append(command)

    def _refuse(self, identity: bytes, command: t.Command, status: int, message: bytes) -> None:
        result = t.Result(command.session, command.number, 0, status, message)
        self._replies.setdefault(identity, []).append(result)

    def _read_locally(self, identity: bytes, reads: list[client_wire.LocalRead]) -> None:
        """Ask the copy of the application that is here: an answer without order, possibly an old one."""
        executor = self._nodes.get(self.graph.number(Stage.EXECUTOR, self.site))
        answers = []
        for read in reads:
            if not isinstance(executor, Executor):
                answers.append((read.id, t.FAILED, b"no executor here"))
                continue
            try:
                answers.append((read.id, t.OK, executor.read(read.question)))
            except Exception as error:
                answers.append((read.id, t.FAILED, f"{type(error).__name__}: {error}".encode()))
        self._clients.send_multipart(
            (identity, wire.encode(client_wire.ClientReply(t.FORMAT_VERSION, [], [], answers))), zmq.NOBLOCK
        )

    def _receive_from_stores(self) -> None:
        while True:
            try:
                self._wake_in.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
        for number, store in self._stores.items():
            self._queue.extend((answer, number) for answer in store.take())

    def _work(self) -> None:
        queue, nodes = self._queue, self._nodes
        self.counters.tuples_in += len(queue)
        while queue:
            tuple_, number = queue.popleft()
            node = nodes.get(number)
            if node is None:
                continue
            try:
                node.process(tuple_)
            except (NodeHalted, AssertionError) as error:
                self._halt(number, error)
                continue
            self._collect(number)

    def _tick(self) -> None:
        now_ms = self._now_ms()
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
        del self._nodes[number]
        self.counters.halted[self.graph.label(number)] = repr(error)

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
            local, remote = route
            for receiver in local:
                self._queue.append((tuple_, receiver))
            if remote:
                raw = Raw(wire.encode(tuple_))
                for container, numbers in remote:
                    self._to_peers[container].append((numbers, raw))
            elif receivers.numbers[0] < 0:
                if type(tuple_) is t.Results:
                    self._route_results(tuple_)
                elif type(tuple_) is not t.Executed or self.spec.log_retention_bytes is not None:
                    self._store_jobs.append((number, tuple_))
        outbox.emitted = []

    def _make_route(self, receivers: Receivers) -> tuple[tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]]:
        """Which receivers are here, and which are behind which peer."""
        local: list[int] = []
        remote: dict[int, list[int]] = {}
        for number in receivers.numbers:
            if number < 0:
                continue
            container = self._container_of[number]
            if container == self.spec.container:
                local.append(number)
            else:
                remote.setdefault(container, []).append(number)
        return tuple(local), tuple((container, tuple(numbers)) for container, numbers in remote.items())

    def _route_results(self, results: t.Results) -> None:
        routes, replies = self._session_routes, self._replies
        for result in results.results:
            identity = routes.get(result.session) if result.session else self._opening.pop(result.number, None)
            if identity is not None:
                waiting = replies.get(identity)
                if waiting is None:
                    replies[identity] = [result]
                else:
                    waiting.append(result)

    def _flush(self) -> None:
        """Sync, then let everything out."""
        if self._persisted:
            self._sync()
        for container, parcels in enumerate(self._to_peers):
            if parcels:
                self._to_peers[container] = []
                peer = self._peers[container]
                if peer is None:
                    self.counters.frames_dropped += 1
                    continue
                try:
                    peer.send(wire.encode(wire.OutgoingFrame(self._header, parcels)), zmq.NOBLOCK)
                    self.counters.frames_out += 1
                except zmq.Again:
                    self.counters.frames_dropped += 1
        if self._replies:
            for identity, results in self._replies.items():
                self.counters.results += len(results)
                self._clients.send_multipart(
                    (identity, wire.encode(client_wire.ClientReply(t.FORMAT_VERSION, results))), zmq.NOBLOCK
                )
            self._replies = {}
        if self._store_jobs:
            for number, job in self._store_jobs:
                self._stores[number].submit(job)  # type: ignore[arg-type]
            self._store_jobs = []

    def _sync(self) -> None:
        self.counters.journal_entries += len(self._persisted)
        if self._journal is not None:
            self._journal.append(self._persisted)
            self.counters.journal_syncs += 1
            if any(type(entry) is t.Collected for _, entry in self._persisted):
                committers = {n: node for n, node in self._nodes.items() if isinstance(node, Committer)}
                self._journal.roll(
                    lambda: [(number, node.resumed()) for number, node in committers.items()],
                    lambda number: committers[number].commits.min if number in committers else 0,
                )
        self._persisted = []

    def status(self, digest: bool = False) -> dict[str, object]:
        """For `tara status`: what the nodes here are doing."""
        partitions: dict[str, dict[str, object]] = {}
        status: dict[str, object] = {"counters": msgspec.to_builtins(self.counters)}
        for number, node in self._nodes.items():
            name = self.graph.names[number]
            here = partitions.setdefault(str(name.partition), {}) if name.stage in PARTITIONED else {}
            match node:
                case Committer():
                    here["view"] = node.view
                    here["committer"] = {
                        "position": node.commits.pos,
                        "started": node.started,
                        "recovering": node.recovering,
                    }
                case Proposer():
                    here["proposer"] = {"index": node.index, "mode": node.mode.value, "view": node.view}
                case RequestSource():
                    here["pending"] = node.pending
                case Executor():
                    status["executor"] = {
                        "next": node.next,
                        "counter": node.sessions.counter,
                        "sessions": len(node.sessions),
                        "stable": node.stable.current,
                        "checkpoints": [checkpoint.number for checkpoint in node.checkpoints],
                        "digest": node.digest().hex() if digest else None,
                    }
                    log = self._stores[number].log
                    if log is not None:
                        status["log"] = log.status()
        status["partitions"] = partitions
        return status

    def _close(self) -> None:
        for store in self._stores.values():
            store.close()
        if self._journal is not None:
            self._journal.close()
        self._context.destroy(0)
