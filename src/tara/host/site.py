"""A site: the nodes of one container, and everything that has an order, a bound or a policy around them. Pure.

A driver gives it what has arrived and does what it wants done, in the order given: one step of a site is

- what has arrived, from peers, clients and stores, is taken in;
- the nodes work until they have nothing left to say to each other;
- time passes, if it is due;
- what was persisted is synced, then frames leave for the peers, and answers for the clients.

Frames leave in the middle of it, too: what the others say does not wait for committers that write a journal, and the
votes of those do not wait for an execution. Therefore `step` gives one effect after the other, each when it is to be
done. A process that ends between two of them is a crash like any other.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from msgspec import Struct

from tara.host import client_wire, peer_wire
from tara.host.admission import Admission, Arrivals, ForeignFrame
from tara.host.condition import SiteCondition
from tara.host.counters import Counters
from tara.host.effects import Effect, Executes, Halt, Hand, Inputs, Message, Reply, Send, Store, Sync, Trouble, Unbar
from tara.host.fragments import Assembly, Fragment
from tara.host.latency import LatencySampler
from tara.host.outgoing import PIECE_BYTES, Outgoing
from tara.host.questions import OpenQuestions
from tara.host.routes import Routes
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple, NodeHalted
from tara.protocol.graph import Graph, Receivers, Stage
from tara.protocol.journal import Written
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.factory import create
from tara.protocol.nodes.reads import ANSWERED_BYTES_MAX
from tara.protocol.principals import gateway_of, is_operator, principal_of
from tara.protocol.sessions import Application
from tara.protocol.skips import is_order

#: While a site with a journal is asked this many questions per tick, its proposer makes a run of requests when there
#: are this many, or this long after the last run: each run costs every site a sync, and readers wait meanwhile.
BUSY_QUESTIONS = 12
BUSY_RUN = 24
BUSY_PAUSE_MS = 4.0
#: What is answered to stale reads in one step at least, however much waits for those who do not read; and what waits
#: for one connection, beyond which its reads are not answered: it has to ask again.
ANSWERED_BYTES_MIN = 1 << 20
UNREAD_ANSWERS_BYTES_MAX = 8 << 20
#: Stands for the gateway where a client connection is named; no connection has an empty name.
GATEWAY = b""
#: Secrets of which it is remembered whom they stand for.
PRINCIPALS_CACHED = 16_384

Delivery = tuple[t.Tuple | peer_wire.Vote, int]


class SiteSpec(Struct, frozen=True, kw_only=True):
    cluster: int
    era: int
    #: Stands for everything that must agree between containers.
    shape: int
    container: int
    #: All containers: the numbers of their nodes.
    placement: list[list[int]]
    limits: Limits
    #: Whether what committers persist is written to a journal.
    journal: bool
    #: The digest of the operator's secret, where there are no keys.
    operator: bytes = b""


class Route(NamedTuple):
    """Which receivers of a tuple are here, and which are behind which peer."""

    local: tuple[int, ...]
    remote: tuple[tuple[int, tuple[int, ...]], ...]
    patient: tuple[tuple[int, tuple[int, ...]], ...]


class Site:
    def __init__(self, spec: SiteSpec, life: int, counters: Counters, make: Callable[..., Node] = create) -> None:
        """`make` makes the nodes, as `tara.protocol.nodes.factory.create` does."""
        self.spec = spec
        self.graph = Graph(spec.limits.f, spec.limits.partitions)
        self.number = self.graph.site(self.graph.names[spec.placement[spec.container][0]])
        self.counters = counters
        self._make = make
        self.latency = LatencySampler()
        self.nodes: dict[int, Node] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._now_ms = 0.0
        # Peers
        self._header = peer_wire.Header(t.FORMAT_VERSION, spec.cluster, spec.era, spec.container, life, spec.shape)
        self._admission = Admission(self.graph, spec.limits, spec.placement[spec.container])
        self._arrivals = Arrivals((spec.cluster, spec.era, spec.shape), len(spec.placement), self._admission)
        self._assembly = Assembly(spec.limits.frame_bytes_max)
        piece_bytes = min(PIECE_BYTES, spec.limits.frame_bytes_max // 4)
        self.outgoing = [Outgoing(self.graph.names, piece_bytes) for _ in spec.placement]
        #: The links that take no more for now, as the driver says.
        self.full = [False] * len(spec.placement)
        #: Also what is patient leaves now.
        self._ticked = False
        # Nodes
        self._container_of = {
            number: container for container, numbers in enumerate(spec.placement) for number in numbers
        }
        self._routes: dict[Receivers, Route] = {}
        self._queue: deque[Delivery] = deque()
        #: Without a journal, committers need no turn of their own.
        self._for_committers: deque[Delivery] = deque() if spec.journal else self._queue
        self._for_executors: deque[Delivery] = deque()
        queues = {Stage.COMMITTER: self._for_committers, Stage.EXECUTOR: self._for_executors}
        self._queues = [queues.get(name.stage, self._queue) for name in self.graph.names]
        self._persisted: list[Written] = []
        #: What is to be done at the end of the step.
        self._effects: list[Effect] = []
        # Clients
        self._sources = [
            self.graph.number(Stage.REQUEST_SOURCE, self.number, partition)
            for partition in range(spec.limits.partitions)
        ]
        self._executor = self.graph.number(Stage.EXECUTOR, self.number)
        #: Where answers go, and who sends: by what a connection presents.
        self._client_routes = Routes()
        self.principal_of: Callable[[bytes, bytes, bool], bytes]
        self.principal_of = lru_cache(maxsize=PRINCIPALS_CACHED)(partial(principal_of, operator=spec.operator))
        self._replies: dict[bytes, list[t.Result]] = {}
        self._questions = OpenQuestions(spec.limits.reads_max)
        self._questions.life = life
        #: What the application has published, by connection.
        self._published: dict[bytes, list[t.Event]] = {}
        #: Where the front ends are, and which connections have been told.
        self._front_ends: list[str] = []
        self._told: set[bytes] = set()
        #: Whether the executor of this site executes, as far as its front end knows.
        self._condition = SiteCondition(spec.limits)
        # Pacing
        #: How many questions came since the last tick, and whether they were many in the tick before.
        self._asked = 0
        self._busy = False
        #: Requests that have come for nodes here, and when the last ones were passed on.
        self._requests: dict[int, list[t.Request]] = {}
        self._run_ms = 0.0

    # Starting

    def create(
        self, number: int, boot: Boot, application: Callable[[], Application], journal: list[t.ReplayedEntry]
    ) -> None:
        """Make a node, with what the journal has of it. Nothing leaves before the first step."""
        self._now_ms = boot.now_ms
        outbox = self._outboxes[number] = Outbox()
        name = self.graph.names[number]
        self.nodes[number] = self._make(name, self.graph, self.spec.limits, boot, outbox, application, journal)

    def begin(self) -> Iterator[Effect]:
        """All nodes are there: what they persisted when they were made is synced."""
        for number in self.nodes:
            self._collect(number)
        if self._persisted:
            yield self._sync()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do until something arrives."""
        return not self._queue

    @property
    def lives(self) -> list[int]:
        """The newest life of each container that was heard of."""
        return self._arrivals.lives

    @property
    def asked(self) -> int:
        """How many questions it has asked, in this life."""
        return self._questions.asked

    @property
    def executor(self) -> Executor | None:
        """The replica that is here, if there is one."""
        node = self.nodes.get(self._executor)
        return node if isinstance(node, Executor) else None

    def committers(self) -> dict[int, Committer]:
        """One that has halted is not sure of anything any more."""
        return {number: node for number, node in self.nodes.items() if isinstance(node, Committer)}

    # A step

    def step(self, inputs: Inputs, now_ms: float) -> Iterator[Effect]:
        """What is to be done, one after the other."""
        self._now_ms = now_ms
        self._receive_frames(inputs.frames)
        if inputs.messages:
            self._receive_messages(inputs.messages, inputs.unread_bytes)
        for tuple_, number in inputs.tuples:
            self._deliver(tuple_, number)
        yield from self._work()
        if inputs.tick:
            self._tick()
            yield from self._work()
            self._ticked = True
        yield from self._send_frames()
        yield from self._answer()

    def _work(self) -> Iterator[Effect]:
        """Let the nodes work until they have nothing left to say to each other. Committers with a journal come late:
        what the others say does not depend on it, and leaves before it is written. Executors come last: others wait for
        the votes that leave here, but nobody waits for an execution except the clients of this site."""
        self._settle()
        while self._for_committers or self._for_executors:
            for late in (self._for_committers, self._for_executors):
                if late:
                    yield from self._send_frames()
                    self._process(late)
                    self._settle()

    def _settle(self) -> None:
        """Process what is in the queue; then the requests that have come, which become one run."""
        self._process(self._queue)
        if not self._requests:
            return
        few = sum(map(len, self._requests.values())) < BUSY_RUN
        if not (self._busy and few and self._now_ms - self._run_ms < BUSY_PAUSE_MS):
            self._queue.extend([(t.Requests(requests), number) for number, requests in self._requests.items()])
            self._requests, self._run_ms = {}, self._now_ms
            self._process(self._queue)

    def _process(self, queue: deque[Delivery]) -> None:
        nodes = self.nodes
        self.counters.tuples_in += len(queue)
        while queue:
            tuple_, number = queue.popleft()
            node = nodes.get(number)
            if node is None:
                continue
            try:
                if not isinstance(tuple_, peer_wire.Vote):
                    node.process(tuple_)
                elif not (isinstance(node, Executor) and node.has_decided(tuple_.partition, tuple_.end)):
                    node.process(self._admission.open(tuple_))
            except MalformedTuple as error:
                self._refuse_frame("peer", str(error))
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
        # Partitions do not wait: the others would have to, in the merged order.
        paced = self.spec.journal and self.spec.limits.partitions == 1
        self._busy, self._asked = paced and self._asked >= BUSY_QUESTIONS, 0
        for number, node in list(self.nodes.items()):
            try:
                node.tick(self._now_ms)
            except (NodeHalted, AssertionError) as error:
                self._halt(number, error)
                continue
            self._collect(number)

    def _halt(self, number: int, error: Exception) -> None:
        """A broken invariant stops one node, as if it had crashed, and shows."""
        node = self.nodes[number]
        if isinstance(node, Executor):
            # It stays, to tell the front end of its site.
            node.give_up(repr(error))
            self._collect(number)
            return
        del self.nodes[number]
        self._effects.append(Halt(number, repr(error)))

    # What nodes say

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
                data = peer_wire.encode(tuple_)
                for container, numbers in route.remote:
                    self.outgoing[container].add(numbers, tuple_, data)
                for container, numbers in route.patient:
                    self.outgoing[container].add(numbers, tuple_, data, urgent=False)
            elif receivers.numbers[0] < 0:
                self._take(number, tuple_, receivers.stage)
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

    def _deliver(self, tuple_: t.Tuple, number: int) -> None:
        if type(tuple_) is t.Stable:
            for outgoing in self.outgoing:
                outgoing.heard(tuple_)
        if type(tuple_) is t.Requests:
            self._requests.setdefault(number, []).extend(tuple_.requests)
        else:
            # How far a committer is, is no promise: it can be told before the journal is written.
            (self._queue if type(tuple_) is t.Read else self._queues[number]).append((tuple_, number))

    def _take(self, number: int, tuple_: t.Tuple, stage: Stage | None) -> None:
        """What a node has for its host: for a client, a store, or the front end."""
        if type(tuple_) is t.Results:
            self._route_results(tuple_)
        elif type(tuple_) is t.Answers:
            self._questions.route(tuple_)
        elif type(tuple_) is t.Halted:
            if stage is Stage.CLIENT:
                self._condition.hear(tuple_, self._now_ms)
                self._queue.extend([(tuple_, source) for source in self._sources])
            else:
                self._effects.append(Executes(number, tuple_))
        elif type(tuple_) is t.AskIndex:
            self._queue.append((tuple_, self._sources[0]))
        elif type(tuple_) is t.Refused:
            self._refuse_all(tuple_.commands)
        elif type(tuple_) is t.Waiting:
            self._tell_who_waits(tuple_.commands)
        elif type(tuple_) is t.Unbarred:
            self._effects.append(Unbar(number, tuple_.counter))
        else:
            self._effects.append(Store(number, tuple_))

    # Peers

    def _receive_frames(self, frames: list[bytes]) -> None:
        for data in frames:
            self.counters.frames_in += 1
            try:
                frame = self._arrivals.open(data)
            except ForeignFrame as error:
                self.counters.frames_foreign += 1
                self._effects.append(Trouble("foreign_frame", "peer", str(error)))
                continue
            except MalformedTuple as error:
                self._refuse_frame("peer", str(error))
                continue
            # First the end of what began in a former frame: what is whole in this one has left after it.
            for fragment in frame.fragments:
                self._receive_fragment(frame.header, fragment)
            for numbers, tuple_ in frame.parcels:
                for number in numbers:
                    self._deliver(tuple_, number)
            for numbers, vote in frame.votes:
                self._for_executors.extend([(vote, number) for number in numbers])

    def _receive_fragment(self, header: peer_wire.Header, fragment: Fragment) -> None:
        try:
            data = self._assembly.add(header.container, header.life, fragment)
            if data is None:
                return
            tuple_ = t.decode_tuple(data)
        except MalformedTuple as error:
            self._refuse_frame("peer", str(error))
            return
        refusal = self._admission.refusal(peer_wire.Frame(header, [(fragment.numbers, tuple_)], [], []))
        if refusal is not None:
            self._refuse_frame("peer", refusal)
            return
        for number in fragment.numbers:
            self._deliver(tuple_, number)

    def _refuse_frame(self, sender: str, reason: str) -> None:
        self.counters.frames_bad += 1
        self._effects.append(Trouble("bad_frame", sender, reason))

    def _sync(self) -> Sync:
        entries, self._persisted = self._persisted, []
        self.counters.journal_entries += len(entries)
        return Sync(entries, any(type(entry) is t.Collected for _, entry in entries))

    def _send_frames(self) -> Iterator[Effect]:
        """Sync, then frames for each peer, as far as its link takes them."""
        if self._persisted:
            yield self._sync()
        everything = self._ticked
        for container, outgoing in enumerate(self.outgoing):
            while outgoing.is_due(everything) and not self.full[container]:
                pieces = outgoing.take(everything)
                frame = peer_wire.frame_of(self._header, pieces)
                frames = peer_wire.encode_frame(frame, self.spec.limits.frame_bytes_max)
                yield Send(container, frames, len(pieces))
        self._ticked = False

    def sent(self, send: Send, taken: int, full: bool) -> None:
        """So many of the frames are on their way; and whether the link takes more."""
        self.counters.frames_out += taken
        self.counters.frames_dropped += len(send.frames) - taken
        self.counters.tuples_out += send.tuples if taken else 0
        self.full[send.container] = full
        if taken < len(send.frames):
            # Nobody is there; what waits is sent again by the protocol, if it is needed.
            self.outgoing[send.container].clear()

    # Clients

    def know_front_ends(self, front_ends: list[str]) -> None:
        """Let the clients know of new ones."""
        if front_ends != self._front_ends:
            self._front_ends = front_ends
            self._told.clear()

    def _receive_messages(self, messages: list[Message], unread_bytes: int) -> None:
        by_partition: list[list[t.Command]] = [[] for _ in self._sources]
        for message in messages:
            try:
                request = client_wire.decode_request(message.data)
            except MalformedTuple as error:
                self._refuse_frame("client", str(error))
                continue
            self.latency.arrived(request.commands, self._now_ms / 1e3)
            if message.connection not in self._told:
                self._tell_front_ends(message.connection)
            principal = self.principal_of(request.secret, message.key, message.is_member)
            self._take_commands(message.connection, principal, request.commands, by_partition)
            if request.reads:
                self._take_reads(message, principal, request.reads)
        self._submit(by_partition, self.spec.limits.source_backlog_bytes_max)
        if questions := self._questions.take_asked():
            self._asked += len(questions)
            self._queue.append((t.Ask(questions), self._sources[0]))
        if questions := self._questions.take_asked_here():
            # The less of what was answered before has been read, the less is answered at once.
            room = max(ANSWERED_BYTES_MAX - unread_bytes, ANSWERED_BYTES_MIN)
            self._deliver(t.AskHere(questions, room), self._executor)

    def _tell_front_ends(self, connection: bytes) -> None:
        if len(self._told) >= self.spec.limits.sessions_max:
            self._told.clear()
        self._told.add(connection)
        self._reply(connection, client_wire.ClientReply(t.FORMAT_VERSION, [], endpoints=self._front_ends))

    def _take_commands(
        self, connection: bytes, principal: bytes, commands: list[t.Command], by_partition: list[list[t.Command]]
    ) -> None:
        """Stamp commands with who sends them, remember where the answers go, and give each to its session's
        partition."""
        self.counters.commands += len(commands)
        routes, partitions = self._client_routes, len(by_partition)
        bytes_max = self.spec.limits.command_bytes_max
        halted = None if connection == GATEWAY else self._condition.halted(self._now_ms)
        for sent in commands:
            command = t.Command(sent.session, sent.number, sent.acknowledged, sent.payload, sent.kind, principal)
            if not principal:
                self._refuse(connection, command, t.FORBIDDEN, b"a command needs a secret (16 to 64 bytes), or a key")
            elif halted is not None and not is_order(command):
                self._refuse(connection, command, t.HALTED, halted)
            elif len(command.payload) > bytes_max:
                self.counters.too_large += 1
                self._refuse(connection, command, t.TOO_LARGE, f"a command may have {bytes_max} bytes".encode())
            else:
                routes.learn(connection, command)
                by_partition[(command.session or command.number) % partitions].append(command)

    def _submit(self, by_partition: list[list[t.Command]], bytes_max: int = 0) -> None:
        """Pass commands on to the request sources."""
        for number, commands in zip(self._sources, by_partition, strict=True):
            if not commands:
                continue
            if number in self.nodes:
                self._queue.append((t.Submit(commands, bytes_max), number))
            else:
                self._refuse_all(commands)

    def _refuse_all(self, commands: list[t.Command]) -> None:
        """A request source has no room for them."""
        self.counters.overloaded += len(commands)
        for command in commands:
            connection = self._client_routes.of_command(command)
            if connection is not None:
                self._refuse(connection, command, t.OVERLOADED, b"")

    def _refuse(self, connection: bytes, command: t.Command, status: int, message: bytes) -> None:
        result = t.Result(command.session, command.number, 0, status, message, command.principal)
        self._replies.setdefault(connection, []).append(result)

    def _take_reads(self, message: Message, principal: bytes, reads: list[client_wire.Read]) -> None:
        """Have them answered by the nodes, as far as anybody may ask, and is to be answered now."""
        connection, questions = message.connection, self._questions
        if message.unread_bytes > UNREAD_ANSWERS_BYTES_MAX:
            # Who does not read the answers that wait for him gets no more of them.
            for read in reads:
                questions.answer(connection, (read.id, t.OVERLOADED, b""))
            return
        halted, here = self._condition.halted(self._now_ms), self._executor in self.nodes
        for read in reads:
            if read.subject != t.APPLICATION and not is_operator(principal):
                questions.answer(connection, (read.id, t.FORBIDDEN, b"only an operator may ask for this"))
            elif halted is not None:
                questions.answer(connection, (read.id, t.HALTED, halted))
            elif read.stale and read.subject == t.APPLICATION and not here:
                questions.answer(connection, (read.id, t.OVERLOADED, b""))
            else:
                questions.ask(connection, principal, read)

    def _tell_who_waits(self, commands: list[t.Command]) -> None:
        """Long commands wait for their turn, and the queue moves."""
        told: dict[bytes, list[t.Result]] = {}
        for command in commands:
            connection = self._client_routes.of_command(command)
            if connection is not None and connection != GATEWAY:
                result = t.Result(command.session, command.number, 0, t.WAITING, b"", command.principal)
                told.setdefault(connection, []).append(result)
        for connection, results in told.items():
            self._reply(connection, client_wire.ClientReply(t.FORMAT_VERSION, results))

    def _route_results(self, results: t.Results) -> None:
        routes, replies = self._client_routes, self._replies
        for result in results.results:
            connection = routes.of_result(result)
            if result.status == t.UNACKNOWLEDGED:
                source = self._sources[result.session % len(self._sources)]
                self._queue.append((t.Unkept(result.session, result.number, result.principal), source))
            if connection is not None:
                waiting = replies.get(connection)
                if waiting is None:
                    replies[connection] = [result]
                else:
                    waiting.append(result)
        for event in results.events:
            for receiver in routes.of_event(event) - {GATEWAY}:
                self._published.setdefault(receiver, []).append(event)

    def _reply(self, connection: bytes, reply: client_wire.ClientReply) -> None:
        """At the end of the step, but before results."""
        self._effects.append(Reply(connection, client_wire.encode_reply(reply), []))

    def _answer(self) -> Iterator[Effect]:
        """Everything that was promised is durable: let the rest out."""
        if self._effects:
            effects, self._effects = self._effects, []
            yield from effects
        # Events first: who has a result has heard of everything up to it.
        if self._published:
            published, self._published = self._published, {}
            for connection, events in published.items():
                reply = client_wire.ClientReply(t.FORMAT_VERSION, [], events)
                yield Reply(connection, client_wire.encode_reply(reply), [])
        if self._replies:
            replies, self._replies = self._replies, {}
            for connection, results in replies.items():
                self.counters.results += len(results)
                if connection == GATEWAY:
                    yield Hand(results)
                else:
                    reply = client_wire.ClientReply(t.FORMAT_VERSION, results)
                    yield Reply(connection, client_wire.encode_reply(reply), results)
        for connection, answers in self._questions.take_answers().items():
            self.counters.answers += len(answers)
            reply = client_wire.ClientReply(t.FORMAT_VERSION, [], [], answers)
            yield Reply(connection, client_wire.encode_reply(reply), [])

    # The gateway

    def submit(self, commands: list[t.Command]) -> None:
        """Commands of the gateway, for the next step."""
        by_partition: list[list[t.Command]] = [[] for _ in self._sources]
        self._take_commands(GATEWAY, gateway_of(self.number), commands, by_partition)
        # What it has on its way at once is bounded there.
        self._submit(by_partition)
