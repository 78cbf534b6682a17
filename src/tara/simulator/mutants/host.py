"""Mutants of the host: what enters and leaves a site, and where answers go."""

from collections.abc import Iterator

from tara.host import outgoing
from tara.host.client_desk import ClientDesk
from tara.host.fair_table import FairTable
from tara.host.fragments import Assembly, Fragment
from tara.host.open_reads import OpenReads
from tara.host.outgoing import Outgoing
from tara.host.routes import Routes
from tara.protocol import tuples as t
from tara.protocol.graph import Graph
from tara.protocol.nodes.reads import Reads
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.session_quotas import SessionQuotas
from tara.simulator.mutants.registry import mutant, replace


@mutant("an answer goes to the connection that its session was last heard on")
def answers_the_wrong_connection() -> Iterator[None]:
    original = Routes.of_result

    def of_result(self: Routes, result: t.Result) -> bytes | None:
        found = original(self, result)
        others = sorted(self._sessions.owners() - {found})
        return others[0] if found is not None and others and result.number % 3 == 0 else found

    with replace(Routes, "of_result", of_result):
        yield


@mutant("a session that is heard on another connection is answered there")
def keeps_an_old_route() -> Iterator[None]:
    original = Routes.learn

    def learn(self: Routes, connection: bytes, command: t.Command) -> None:
        if not command.session or self.of_command(command) is None:
            original(self, connection, command)

    with replace(Routes, "learn", learn):
        yield


@mutant("the route of a session is kept while there is room")
def routes_are_forgotten() -> Iterator[None]:
    original = FairTable.get

    def get(self: FairTable[tuple[bytes, int], bytes], key: tuple[bytes, int]) -> bytes | None:
        return None if key[1] % 2 else original(self, key)

    with replace(FairTable, "get", get):
        yield


@mutant("a result counts only if it is of a read of this life", fault="late_answers", packing="node", durability="disk")
def answers_of_a_former_life() -> Iterator[None]:
    original = OpenReads.route

    def route(self: OpenReads, results: t.ReadResults) -> None:
        ours = [t.ReadResult(one.ticket, one.status, one.payload, self.life) for one in results.results]
        original(self, t.ReadResults(results.executor, ours))

    with replace(OpenReads, "route", route):
        yield


@mutant("a result goes to the read whose ticket it has")
def answers_another_read() -> Iterator[None]:
    original = OpenReads.route

    def route(self: OpenReads, results: t.ReadResults) -> None:
        some = results.results
        moved = [
            t.ReadResult(one.ticket, other.status, other.payload, one.life)
            for one, other in zip(some, [*some[1:], *some[:1]], strict=True)
        ]
        original(self, t.ReadResults(results.executor, moved))

    with replace(OpenReads, "route", route):
        yield


@mutant("a front end says who sends a command, and not the client")
def sender_says_who_it_is() -> Iterator[None]:
    original = ClientDesk._take_commands

    def take_commands(
        self: ClientDesk,
        connection: bytes,
        principal: bytes,
        commands: list[t.Command],
        by_partition: list[list[t.Command]],
    ) -> None:
        for command in commands:
            original(self, connection, command.principal or principal, [command], by_partition)

    with replace(ClientDesk, "_take_commands", take_commands):
        yield


@mutant("fragments make a tuple only in their order")
def fragments_in_any_order() -> Iterator[None]:
    def add(self: Assembly, sender: int, life: int, fragment: Fragment) -> bytes | None:
        key = (sender, fragment.lane)
        _, first, data = self._begun.setdefault(key, (life, fragment, bytearray()))
        data += fragment.data
        self.kept_bytes += len(fragment.data)
        return None if len(data) < first.total else bytes(self._forget(key))

    with replace(Assembly, "add", add):
        yield


@mutant("what a link did not take is not lost while the link lives")
def clears_what_waits() -> Iterator[None]:
    original = Outgoing.take

    def take(self: Outgoing, everything: bool) -> object:
        pieces = original(self, everything)
        return pieces[: (len(pieces) + 1) // 2] if len(pieces) > 3 else pieces

    with replace(Outgoing, "take", take):
        yield


@mutant("control does not wait behind bulk", kind="bulk")
def control_waits_behind_bulk() -> Iterator[None]:
    class OneLane(dict[type[t.Tuple], int]):
        def get(self, *asked: object) -> int:
            return outgoing.OTHERS

    with replace(outgoing, "_LANE_OF", OneLane()):
        yield


@mutant("a front end that has no room for a command says so")
def overload_is_not_told() -> Iterator[None]:
    original = ClientDesk._refuse

    def refuse(self: ClientDesk, connection: bytes, command: t.Command, status: int, message: bytes) -> None:
        # It is answered as if it had been executed.
        told = t.OK if status == t.OVERLOADED and command.session else status
        original(self, connection, command, told, b"\xc0" if told == t.OK else message)

    with replace(ClientDesk, "_refuse", refuse):
        yield


@mutant("a read is answered from the copy that is here only if any state will do")
def every_read_is_stale() -> Iterator[None]:
    original = ClientDesk._take_reads

    def take_reads(self: ClientDesk, message: object, principal: bytes, reads: list[object]) -> None:
        changed = [type(read)(read.id, read.payload, True, read.subject) for read in reads]  # type: ignore
        original(self, message, principal, changed)  # type: ignore[arg-type]

    with replace(ClientDesk, "_take_reads", take_reads):
        yield


@mutant("waiting commands are bounded in bytes, not in number only")
def backlog_counts_commands() -> Iterator[None]:
    original = RequestSource._take

    def take(self: RequestSource, commands: list[t.Command], bytes_max: int) -> list[t.Command]:
        return original(self, commands, 0)

    with replace(RequestSource, "_take", take):
        yield


@mutant("waiting reads are bounded in bytes, not in number only")
def reads_are_counted() -> Iterator[None]:
    original = Reads.__init__

    def init(self: Reads, graph: Graph, quorum: int, capacity: int, bytes_max: int) -> None:
        original(self, graph, quorum, capacity, 1 << 62)

    with replace(Reads, "__init__", init):
        yield


@mutant("what is written down as kept is what is kept")
def quota_forgets_acknowledgements() -> Iterator[None]:
    original = SessionQuotas.add_results

    def add_results(self: SessionQuotas, principal: bytes, size: int) -> None:
        if size > 0:
            original(self, principal, size)

    with replace(SessionQuotas, "add_results", add_results):
        yield
