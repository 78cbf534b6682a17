"""The clients of a site: what they ask, whom the answers are for, and what they are refused.

A client has a connection to the site's front end; the gateway, where there is one, is a client without. Commands go to
the request source of their session's partition, reads through the graph or, if any state will do, to the replica that
is here.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

from tara.host import client_wire
from tara.host.client_wire import ClientReply
from tara.host.counters import Counters
from tara.host.effects import Effect, Hand, Message, Replies, Reply, Trouble
from tara.host.executor_condition import SiteCondition
from tara.host.latency import LatencySampler
from tara.host.open_reads import OpenReads
from tara.host.routes import Routes
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.protocol.nodes.reads import ANSWERED_BYTES_MAX
from tara.protocol.principals import gateway_of, is_operator
from tara.protocol.skips import is_order

#: What is answered to stale reads in one step at least, however much waits for those who do not read; and what waits
#: for one connection, beyond which its reads are not answered: it has to ask again.
ANSWERED_BYTES_MIN = 1 << 20
UNREAD_ANSWERS_BYTES_MAX = 8 << 20
#: Stands for the gateway where a client connection is named; no connection has an empty name.
GATEWAY = b""
#: Secrets of which it is remembered whom they stand for.
PRINCIPALS_CACHED = 16_384


class ClientDesk:
    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        site: int,
        life: int,
        principal_of: Callable[[bytes, bytes, bool], bytes],
        counters: Counters,
        trouble: Callable[[Trouble], None],
        deliver: Callable[[t.Tuple, int], None],
        is_here: Callable[[int], bool],
    ) -> None:
        """`principal_of` says whom a secret, a key and a membership stand for; `deliver` queues a tuple for a node of
        this container."""
        self._site = site
        self._limits = limits
        self._counters = counters
        self._trouble = trouble
        self._deliver = deliver
        self._is_here = is_here
        self.latency = LatencySampler()
        self._now_ms = 0.0
        self._sources = [graph.number(Stage.REQUEST_SOURCE, site, partition) for partition in range(limits.partitions)]
        self._executor = graph.number(Stage.EXECUTOR, site)
        #: Where answers go, and who sends: by what a connection presents.
        self._routes = Routes()
        self._principal_of = lru_cache(maxsize=PRINCIPALS_CACHED)(principal_of)
        #: What commands came to, by connection.
        self._results: dict[bytes, list[t.Result]] = {}
        self._reads = OpenReads(limits.reads_max)
        self._reads.life = life
        #: What the application has published, by connection.
        self._published: dict[bytes, list[t.Event]] = {}
        #: What is to be said before any result.
        self._first: list[Reply] = []
        #: Where the front ends are, and which connections have been told.
        self._front_ends: list[str] = []
        self._told: set[bytes] = set()
        #: Whether the executor of this site executes, as far as its front end knows.
        self._condition = SiteCondition(limits)

    def know_front_ends(self, front_ends: list[str]) -> None:
        """Let the clients know of new ones."""
        if front_ends != self._front_ends:
            self._front_ends = front_ends
            self._told.clear()

    def receive(self, messages: list[Message], unread_bytes: int, now_ms: float) -> None:
        self._now_ms = now_ms
        by_partition: list[list[t.Command]] = [[] for _ in self._sources]
        for message in messages:
            try:
                request = client_wire.decode_request(message.data)
            except MalformedTuple as error:
                self._counters.frames_bad += 1
                self._trouble(Trouble("bad_frame", "client", str(error)))
                continue
            self.latency.arrived(request.commands, self._now_ms / 1e3)
            if message.connection not in self._told:
                self._tell_front_ends(message.connection)
            principal = self._principal_of(request.secret, message.key, message.is_member)
            self._take_commands(message.connection, principal, request.commands, by_partition)
            if request.reads:
                self._take_reads(message, principal, request.reads)
        self._submit(by_partition, self._limits.source_backlog_bytes_max)
        if reads := self._reads.take_new():
            if self._is_here(self._sources[0]):
                self._deliver(t.SubmitReads(reads), self._sources[0])
            else:
                self._reads.refuse(reads)
        if reads := self._reads.take_new_stale():
            # The less of what was answered before has been read, the less is answered at once.
            room = max(ANSWERED_BYTES_MAX - unread_bytes, ANSWERED_BYTES_MIN)
            self._deliver(t.SubmitStaleReads(reads, room), self._executor)

    def forget(self, connections: list[bytes]) -> None:
        """They are closed: nobody waits there any more."""
        for connection in connections:
            self._routes.forget(connection)
            self._reads.forget(connection)
            self._told.discard(connection)

    def _tell_front_ends(self, connection: bytes) -> None:
        if len(self._told) >= self._limits.sessions_max:
            self._told.clear()
        self._told.add(connection)
        # Whoever sends much more than that is hung up on, and would send it again.
        bytes_max = self._limits.command_bytes_max
        reply = ClientReply(t.FORMAT_VERSION, [], endpoints=self._front_ends, command_bytes_max=bytes_max)
        self._first.append(_reply(connection, reply))

    def _take_commands(
        self, connection: bytes, principal: bytes, commands: list[t.Command], by_partition: list[list[t.Command]]
    ) -> None:
        """Stamp commands with who sends them, remember where the answers go, and give each to its session's
        partition."""
        self._counters.commands += len(commands)
        routes, partitions = self._routes, len(by_partition)
        bytes_max = self._limits.command_bytes_max
        halted = None if connection == GATEWAY else self._condition.halted(self._now_ms)
        for sent in commands:
            command = t.Command(sent.session, sent.number, sent.acknowledged, sent.payload, sent.kind, principal)
            if not principal:
                self._refuse(connection, command, t.FORBIDDEN, b"a command needs a secret (16 to 64 bytes), or a key")
            elif halted is not None and not is_order(command):
                self._refuse(connection, command, t.HALTED, halted)
            elif len(command.payload) > bytes_max:
                self._counters.too_large += 1
                self._refuse(connection, command, t.TOO_LARGE, f"a command may have {bytes_max} bytes".encode())
            else:
                routes.learn(connection, command)
                by_partition[(command.session or command.number) % partitions].append(command)

    def _submit(self, by_partition: list[list[t.Command]], bytes_max: int = 0) -> None:
        """Pass commands on to the request sources."""
        for number, commands in zip(self._sources, by_partition, strict=True):
            if not commands:
                continue
            if self._is_here(number):
                self._deliver(t.Submit(commands, bytes_max), number)
            else:
                self._refuse_all(commands)

    def _refuse_all(self, commands: list[t.Command]) -> None:
        """A request source has no room for them."""
        self._counters.overloaded += len(commands)
        for command in commands:
            connection = self._routes.of_command(command)
            if connection is not None:
                self._refuse(connection, command, t.OVERLOADED, b"")

    def _refuse(self, connection: bytes, command: t.Command, status: int, message: bytes) -> None:
        result = t.Result(command.session, command.number, 0, status, message, command.principal)
        self._results.setdefault(connection, []).append(result)

    def _take_reads(self, message: Message, principal: bytes, reads: list[client_wire.ReadMessage]) -> None:
        """Pass reads on to the nodes. Refused at once: those of a client that does not fetch its answers, those for
        operators that come from others, and those that this site cannot answer now."""
        connection, open_reads = message.connection, self._reads
        if message.unread_bytes > UNREAD_ANSWERS_BYTES_MAX:
            # Who does not read the answers that wait for him gets no more of them.
            for read in reads:
                open_reads.answer(connection, (read.id, t.OVERLOADED, b""))
            return
        halted, here = self._condition.halted(self._now_ms), self._is_here(self._executor)
        for read in reads:
            if read.subject != t.APPLICATION and not is_operator(principal):
                open_reads.answer(connection, (read.id, t.FORBIDDEN, b"only an operator may ask for this"))
            elif halted is not None:
                open_reads.answer(connection, (read.id, t.HALTED, halted))
            elif read.stale and read.subject == t.APPLICATION and not here:
                open_reads.answer(connection, (read.id, t.OVERLOADED, b""))
            else:
                open_reads.open(connection, principal, read)

    def _tell_who_waits(self, commands: list[t.Command]) -> None:
        """Long commands wait for their turn, and the queue moves."""
        told: dict[bytes, list[t.Result]] = {}
        for command in commands:
            connection = self._routes.of_command(command)
            if connection is not None and connection != GATEWAY:
                result = t.Result(command.session, command.number, 0, t.WAITING, b"", command.principal)
                told.setdefault(connection, []).append(result)
        for connection, results in told.items():
            self._first.append(_reply(connection, ClientReply(t.FORMAT_VERSION, results)))

    def take(self, tuple_: t.Tuple, now_ms: float) -> None:
        """Of a reply sink or a request source of this site."""
        if type(tuple_) is t.Results:
            self._route_results(tuple_)
        elif type(tuple_) is t.ReadResults:
            self._reads.route(tuple_)
        elif type(tuple_) is t.Refused:
            self._refuse_all(tuple_.commands)
        elif type(tuple_) is t.Waiting:
            self._tell_who_waits(tuple_.commands)
        elif type(tuple_) is t.StartIndexRequest:
            self._deliver(tuple_, self._sources[0])
        else:
            assert type(tuple_) is t.Halted, tuple_
            self._condition.hear(tuple_, now_ms)
            for source in self._sources:
                self._deliver(tuple_, source)

    def _route_results(self, results: t.Results) -> None:
        routes, results_of = self._routes, self._results
        for result in results.results:
            connection = routes.of_result(result)
            if result.status == t.UNACKNOWLEDGED:
                source = self._sources[result.session % len(self._sources)]
                self._deliver(t.Unkept(result.session, result.number, result.principal), source)
            if connection is not None:
                waiting = results_of.get(connection)
                if waiting is None:
                    results_of[connection] = [result]
                else:
                    waiting.append(result)
        for event in results.events:
            for receiver in routes.of_event(event) - {GATEWAY}:
                self._published.setdefault(receiver, []).append(event)

    def answer(self) -> Iterator[Effect]:
        """Everything that was promised is durable: what clients are told."""
        replies, self._first = self._first, []
        # Events first: who has a result has heard of everything up to it.
        if self._published:
            published, self._published = self._published, {}
            for connection, events in published.items():
                replies.append(_reply(connection, ClientReply(t.FORMAT_VERSION, [], events)))
        if self._results:
            results_of, self._results = self._results, {}
            for connection, results in results_of.items():
                self._counters.results += len(results)
                if connection == GATEWAY:
                    yield Hand(results)
                else:
                    reply = ClientReply(t.FORMAT_VERSION, results)
                    replies.append(Reply(connection, client_wire.encode_reply(reply), results))
        for connection, answers in self._reads.take_outcomes().items():
            self._counters.answers += len(answers)
            replies.append(_reply(connection, ClientReply(t.FORMAT_VERSION, [], [], answers)))
        if replies:
            yield Replies(replies)

    def submit(self, commands: list[t.Command]) -> None:
        """Commands of the gateway, for the next step."""
        by_partition: list[list[t.Command]] = [[] for _ in self._sources]
        self._take_commands(GATEWAY, gateway_of(self._site), commands, by_partition)
        # What it has on its way at once is bounded there.
        self._submit(by_partition)


def _reply(connection: bytes, reply: ClientReply) -> Reply:
    """One that has no results of commands in it."""
    return Reply(connection, client_wire.encode_reply(reply), [])
