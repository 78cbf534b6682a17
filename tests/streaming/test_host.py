"""The nodes in micro-batches, without Spark: operators in a row, and a queue from each micro-batch to the next."""

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tara.application import AppendRegister, StateMachine
from tara.protocol.errors import ConfigurationError
from tara.protocol.nodes.executor import Executor
from tara.protocol.sessions import Context
from tara.streaming import clients, executed, packing, queue, rows
from tara.streaming.config import StreamingConfig
from tara.streaming.errors import StreamingError
from tara.streaming.host import Host
from tara.streaming.rows import Row
from tara.streaming.seats import Seat
from tests.streaming.commands import write_commands
from tests.streaming.stores import MemoryStore

Result = tuple[int, str, int, str, bytes, int | None]


class Query:
    """What Spark does with the operators."""

    def __init__(
        self, app: type[StateMachine] = AppendRegister, seed: int = 0, keeps: bool = True, **settings: object
    ) -> None:
        self.config = StreamingConfig(checkpoint="none", **settings)  # type: ignore[arg-type]
        self.app = app
        self.host = Host(self.config, app, keeps=keeps)
        self.graph = self.host.graph
        self.stores: dict[int, MemoryStore] = defaultdict(MemoryStore)
        self.queue = queue.QueueFile(queue.FILE_VERSION, True, [])
        self.batch = 0
        self.results: list[Result] = []
        self.events: list[tuple[int, int, str | None, bytes]] = []
        self.random = random.Random(seed)

    def run(self, commands: Sequence[tuple[str, int, bytes | None]] = (), tick: bool = True) -> None:
        self.batch += 1
        flow = [Row(*row) for row in self.queue.rows]
        if tick:
            flow += queue.ticks(self.graph, self.batch, 1_000_000 + 700 * self.batch)
        flow += self._packed(commands)
        for _, stages in rows.OPERATORS:
            flow = self._operator(stages, flow)
        self.queue, outcomes = queue.Sinks(self.graph, self.config.limits).split(flow)
        table, events = queue.published_tables(outcomes)
        if events is not None:
            self.events += [tuple(row.values()) for row in events.to_pylist()]
        if table is not None:
            self.results += [tuple(row.values()) for row in table.to_pylist()]

    def _packed(self, commands: Sequence[tuple[str, int, bytes | None]]) -> list[Row]:
        """As the tasks that read them do: in some order, and in any number of rows."""
        found = [(sum(client.encode()) % self.graph.sites, *command) for command in commands for client in command[:1]]
        self.random.shuffle(found)
        out: list[Row] = []
        while found:
            count = self.random.randint(1, len(found))
            some, found = found[:count], found[count:]
            columns = dict(zip(packing.INPUT, map(list, zip(*some, strict=True)), strict=True))
            schema = pa.schema([("key", pa.int32()), ("client", pa.string()), ("number", pa.int64())])
            batch = pa.RecordBatch.from_pydict(columns, schema.append(pa.field("payload", pa.binary())))
            out += [Row(*row.values()) for packed in packing.pack([batch]) for row in packed.to_pylist()]
        return out

    def _operator(self, stages: tuple[object, ...], flow: list[Row]) -> list[Row]:
        self.random.shuffle(flow)
        groups: dict[int, list[Row]] = defaultdict(list)
        for row in flow:
            groups[row.key].append(row)
        out: list[Row] = []
        for key, taken in groups.items():
            if key < 0 or self.graph.names[key].stage not in stages:
                out += taken
            else:
                out += self._turn(key, taken)
        return out

    def _turn(self, key: int, taken: list[Row]) -> list[Row]:
        return self.host.turn(key, self.stores[key], taken)

    @property
    def states(self) -> dict[int, object]:
        """Without the tokens, which are always new."""
        return {key: store.content for key, store in self.stores.items()}

    def seat(self, key: int) -> Seat:
        """As the state store has it."""
        return Host(self.config, self.app).load(key, self.stores[key])

    def settle(self, batches_max: int = 60) -> None:
        for _ in range(batches_max):
            self.run()
            if not self.queue.busy:
                return
        raise AssertionError("the query does not come to rest")


def payloads(results: list[Result]) -> list[tuple[str, int, str]]:
    return [(client, number, status) for _, client, number, status, _, _ in results]


def executors(query: Query) -> list[Executor]:
    """As they are after the last micro-batch."""
    keys = [key for key, name in enumerate(query.graph.names) if name.stage == "executor"]
    nodes = [query.seat(key).nodes[0] for key in keys]
    return [node for node in nodes if isinstance(node, Executor)]


def test_commands_execute_once_and_in_the_order_of_their_clients() -> None:
    query = Query()
    sent = [(f"client-{c}", n, b"%d/%d" % (c, n)) for n in range(20) for c in range(5)]
    for start in range(0, 100, 10):
        query.run(sent[start : start + 10])
    query.settle()
    assert sorted(payloads(query.results)) == sorted((client, number, "ok") for client, number, _ in sent)
    assert [counter for counter, *_ in query.results] == list(range(1, 101))
    for c in range(5):
        assert [number for _, client, number, *_ in query.results if client == f"client-{c}"] == list(range(20))
    assert {view for *_, view in query.results} == {1}


def test_input_in_no_order_and_with_repetitions(tmp_path: Path) -> None:
    """As the tests with kills have it."""
    sent = write_commands(tmp_path, files=8, per_file=20, untidy=random.Random(3))
    query, lines = Query(), 0
    for path in sorted(tmp_path.iterdir()):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        lines += len(found)
        query.run([(row["client"], row["number"], row["payload"].encode()) for row in found])
    query.settle()
    assert lines > 1.2 * len(sent)
    assert sorted(payloads(query.results)) == sorted((client, number, "ok") for client, number, _ in sent)
    # The register answers with its length, a MessagePack integer.
    answers = [result for _, _, _, _, result, _ in query.results]
    assert [answer[-1] for answer in answers] == [length % 256 for length in range(1, len(sent) + 1)]


def test_long_commands_may_wait() -> None:
    """A request source tells its clients when much waits for long; front ends need not know."""
    query = Query(silenced={"proposer-1": (3, 8)})
    sent = [("a", n, random.Random(n).randbytes(50_000)) for n in range(12)]
    for n in range(12):
        query.run(sent[n : n + 1])
    query.settle()
    assert payloads(query.results) == [("a", n, "ok") for n in range(12)]


def test_rows_in_another_order_change_nothing() -> None:
    """Spark may execute a micro-batch again, with its rows in another order."""
    queries = [Query(seed=seed) for seed in range(3)]
    for query in queries:
        for n in range(8):
            query.run([(client, n, f"{client}{n}".encode()) for client in "abcde"])
        query.settle()
    assert queries[0].results == queries[1].results == queries[2].results
    assert queries[0].states == queries[1].states == queries[2].states


def test_states_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executed, "RUNS_BYTES_MIN", 4_000)
    query = Query(app=Last)
    sizes = []
    for n in range(80):
        query.run([(client, n, b"x" * 1000) for client in "abcde"])
        states = sum(store.size for store in query.stores.values())
        sizes.append(states + sum(len(row.data) for row in query.queue.rows))
    assert max(sizes[50:]) < 1.1 * max(sizes[20:50])


def test_long_commands_may_wait_for_several_micro_batches() -> None:
    """A source says then who waits for long."""
    query = Query(app=Last)
    for n in range(6):
        query.run([(client, n, query.random.randbytes(150_000)) for client in "abcde"])
    query.settle()
    assert len(query.results) == 30
    assert {status for _, _, _, status, _, _ in query.results} == {"ok"}


def test_what_a_source_has_no_room_for_waits_and_keeps_its_order() -> None:
    query = Query(app=AppendRegister, request_commands_max=1)
    source_max = query.host.config.limits.source_backlog_max
    sent = [("a", n, b"%d" % n) for n in range(source_max + 500)]
    query.run()
    query.run()
    query.run()
    query.run(sent)
    (front_end,) = [
        seat.front_end
        for key, name in enumerate(query.graph.names)
        if name.stage == "request_source" and (seat := query.seat(key)).front_end is not None
        if seat.front_end.waiting
    ]
    assert len(front_end.waiting) == 500
    query.settle()
    assert [number for _, _, number, *_ in query.results] == list(range(len(sent)))


class Last(AppendRegister):
    """Remembers one command."""

    def apply(self, command: bytes, context: object) -> bytes:
        self._values = [command]
        return b""


@pytest.mark.parametrize("silence", [(5, 1000), (5, 20)])
def test_a_silent_proposer_is_replaced(silence: tuple[int, int]) -> None:
    query = Query(silenced={"proposer-1": silence})
    for n in range(30):
        query.run([(client, n, b"x") for client in "abc"])
    query.settle()
    assert sorted(payloads(query.results)) == sorted((client, n, "ok") for client in "abc" for n in range(30))
    assert [counter for counter, *_ in query.results] == list(range(1, 91))
    assert query.results[0][5] == 1
    assert query.results[-1][5] in (2, 3)


@pytest.mark.parametrize("label", ["executor-0", "committer-2", "gc_source-1", "controller-0", "view_source-2"])
def test_one_silent_replica_of_a_stage_harms_nobody_and_comes_back(label: str) -> None:
    query = Query(silenced={label: (4, 12)})
    for n in range(30):
        query.run([(client, n, b"x") for client in "abc"])
    query.settle()
    assert sorted(payloads(query.results)) == sorted((client, n, "ok") for client in "abc" for n in range(30))
    for _ in range(20):
        query.run()
    assert len({executor.digest() for executor in executors(query)}) == 1


class RunsOut(AppendRegister):
    """Runs out of memory once, on whichever replica is first, when half of a command is done."""

    left = 0

    def apply(self, command: bytes, context: Context) -> bytes:
        answer = super().apply(command, context)
        if command == b"much" and RunsOut.left:
            RunsOut.left -= 1
            raise MemoryError
        return answer


@pytest.mark.parametrize("keeps", [True, False])
def test_one_that_ran_out_of_memory_comes_back_by_the_state_of_another(keeps: bool) -> None:
    query = Query(app=RunsOut, keeps=keeps)
    RunsOut.left = 1
    sent = [(client, n, b"much" if n == 10 else b"x") for n in range(20) for client in "abc"]
    halted = []
    for start in range(0, 60, 3):
        query.run(sent[start : start + 3])
        halted.append(sum(executor.halted is not None for executor in executors(query)))
    query.settle()
    assert max(halted) == 1
    for _ in range(20):
        query.run()
    assert sorted(payloads(query.results)) == sorted((client, number, "ok") for client, number, _ in sent)
    assert [counter for counter, *_ in query.results] == list(range(1, 61))
    assert all(executor.ready for executor in executors(query))
    assert len({executor.digest() for executor in executors(query)}) == 1


def test_no_base_is_ever_due() -> None:
    query = Query()
    for n in range(10):
        query.run([("a", n, b"x" * 100_000)])
    query.settle()
    assert all(not executor.bases.known and executor.bases.trouble == "" for executor in executors(query))


def test_input_that_is_ten_times_too_fast_is_served_as_it_comes() -> None:
    """What a micro-batch brings is decided in it, and forgotten soon: nothing piles up, however long it lasts."""

    def run(times: int) -> tuple[list[int], list[int]]:
        query = Query(Last)
        served, sizes = [], []
        for n in range(24):
            query.run([("a", n * times + place, random.Random(n).randbytes(200_000)) for place in range(times)])
            served.append(len(query.results))
            states = sum(store.size for key, store in query.stores.items() if not store.runs)
            sizes.append(states + sum(len(row.data) for row in query.queue.rows))
        return served, sizes

    (usual, small), (fast, large) = run(6), run(60)
    # 12 MB in each micro-batch: more than what requests may be pending elsewhere.
    assert fast[6:] == [10 * count for count in usual[6:]]
    assert max(large[12:]) <= 1.01 * max(large[6:12])
    assert max(large) < 11 * max(small)


def test_a_micro_batch_that_is_too_large_is_refused_with_advice() -> None:
    query = Query(waiting_bytes_max=100_000)
    query.run([("a", 0, b"x" * 50_000)])
    with pytest.raises(StreamingError, match=r"waiting_bytes_max = 100000.*maxFilesPerTrigger"):
        query.run([("a", 1, b"x" * 50_000), ("a", 2, b"x" * 60_000)])


def test_commands_wait_while_nothing_is_decided_but_not_without_bound() -> None:
    silent = {"committer-0": (3, 12), "committer-1": (3, 12)}
    query = Query(silenced=silent, waiting_bytes_max=1_000_000)
    sent = [("a", n, random.Random(n).randbytes(40_000)) for n in range(12)]
    for n in range(12):
        query.run(sent[n : n + 1])
    query.settle()
    assert payloads(query.results) == [("a", n, "ok") for n in range(12)]

    query = Query(silenced=dict.fromkeys(silent, (3, 1000)), waiting_bytes_max=1_000_000)
    with pytest.raises(StreamingError, match=r"bytes of commands wait in .* and none is decided"):
        for n in range(60):
            query.run([("a", n, random.Random(n).randbytes(40_000))])


class Town(AppendRegister):
    """Publishes what it is told: to all, to the client, and to nobody that there is."""

    def apply(self, command: bytes, context: Context) -> bytes:
        context.publish(b"to all: " + command)
        if command == b"more":
            context.publish(b"to you", context.session)
            context.publish(b"to nobody", 77)
        return super().apply(command, context)


@pytest.mark.parametrize("keeps", [True, False])
def test_events_of_the_application_come_once(keeps: bool) -> None:
    query = Query(Town, keeps=keeps)
    query.run([("a", 0, b"x"), ("b", 0, b"more"), ("a", 0, b"x")])
    query.settle()
    query.run([("b", 0, b"more"), ("b", 1, b"y")])
    query.settle()
    found = [(client, event) for _, _, client, event in query.events]
    assert sorted(found[:4], key=str) == [
        ("b", b"to you"), (None, b"to all: more"), (None, b"to all: x"), (None, b"to nobody")
    ]  # fmt: skip
    assert found[4:] == [(None, b"to all: y")]
    by_counter = defaultdict(list)
    for counter, place, *_ in query.events:
        by_counter[counter].append(place)
    assert sorted(by_counter.values()) == [[0], [0], [0, 1, 2]]


def test_a_command_that_comes_early_waits_for_its_turn() -> None:
    query = Query()
    query.run([("a", 2, b"two"), ("a", 1, b"one")])
    query.settle()
    assert query.results == []
    query.run([("a", 0, b"zero")])
    query.settle()
    assert [number for _, _, number, *_ in query.results] == [0, 1, 2]


def test_a_repetition_has_no_second_result_but_a_contradiction_is_told() -> None:
    query = Query()
    query.run([("a", 0, b"pay 5")])
    query.settle()
    query.run([("a", 0, b"pay 5"), ("a", 0, b"pay 7")])
    query.settle()
    assert payloads(query.results) == [("a", 0, "ok"), ("a", 0, "conflict")]
    assert query.results[1][0] is None


def test_a_null_payload_fails_and_is_counted() -> None:
    query = Query()
    query.run([("a", 0, None), ("a", 1, b"x")])
    query.settle()
    assert payloads(query.results) == [("a", 0, "failed"), ("a", 1, "ok")]


def test_without_client_or_number_a_command_is_rejected() -> None:
    query = Query()
    query.run([("a", -1, b"x")])
    query.settle()
    assert payloads(query.results) == [("a", -1, "rejected")]


def test_bounds_on_clients_and_on_early_commands() -> None:
    query = Query(clients_max=1, early_max=1, command_bytes_max=4)
    query.run([("a", 0, b"too long"), ("a", 3, b"x"), ("a", 4, b"x"), ("d", 0, b"x")])
    query.settle()
    assert sorted(payloads(query.results)) == [("a", 0, "failed"), ("a", 4, "rejected"), ("d", 0, "full")]


class Watched(Query):
    """Notes what committers and executors say to each other about commits."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.forms: list[tuple[str, str, int]] = []

    def _turn(self, key: int, taken: list[Row]) -> list[Row]:
        said = super()._turn(key, taken)
        for row in said:
            names = {self.graph.names[number].stage for number in (key, row.node) if number >= 0}
            if names == {"committer", "executor"} and (row.form != rows.PLAIN or len(row.data) > 1_000):
                self.forms.append((self.graph.label(key), self.graph.label(row.node), row.form))
        return said


def test_a_body_is_sent_to_each_executor_once() -> None:
    query = Watched()
    for n in range(6):
        query.run([("a", n, random.Random(n).randbytes(5_000))])
    query.settle()
    assert payloads(query.results) == [("a", n, "ok") for n in range(6)]
    whole = [(sender, receiver) for sender, receiver, form in query.forms if form == rows.PLAIN]
    assert {(f"committer-{n}", f"executor-{n}") for n in range(3)} <= set(whole)
    assert len(whole) < 3 * 6 + 6
    assert rows.SHORT in {form for _, _, form in query.forms}
    assert rows.RETURNED not in {form for _, _, form in query.forms}


def test_an_executor_asks_for_bodies_that_have_not_come() -> None:
    """The committer of its own replica is silent, which would have sent them."""
    query = Watched(silenced={"committer-1": (5, 40)})
    for n in range(16):
        query.run([("a", n, random.Random(n).randbytes(5_000))])
    query.settle()
    returned = {(sender, receiver) for sender, receiver, form in query.forms if form == rows.RETURNED}
    assert returned == {("executor-1", "committer-0"), ("executor-1", "committer-2")}
    assert payloads(query.results) == [("a", n, "ok") for n in range(16)]
    # It keeps up, a micro-batch behind the others, and needs nobody's state.
    ahead, behind = executors(query)[0], executors(query)[1]
    assert ahead.next - behind.next <= 1
    assert behind.starts == 0
    assert len({executor.execution.checkpoint for executor in executors(query)}) == 1


def test_a_state_of_another_version_is_refused() -> None:
    query = Query()
    query.run()
    with pytest.raises(StreamingError, match="another version"):
        Query().host.load(0, MemoryStore.of(query.stores[0], node=b"something"))
    other = Query(f=2)
    other.run()
    with pytest.raises(StreamingError, match="f=2"):
        Query().host.load(0, other.stores[0])


@pytest.mark.parametrize("place", [40, -20, -1])
def test_a_damaged_state_is_refused(place: int) -> None:
    query = Query()
    query.run()
    damaged = bytearray(query.stores[0].node())
    damaged[place] ^= 1
    with pytest.raises(StreamingError, match=r"is damaged: .* put a copy of the whole checkpoint directory back"):
        Query().host.load(0, MemoryStore.of(query.stores[0], node=bytes(damaged)))


@pytest.mark.parametrize(
    "settings",
    [
        {"checkpoint": ""},
        {"checkpoint": "x", "f": 11},
        {"checkpoint": "x", "early_max": 0},
        {"checkpoint": "x", "silenced": {"proposer-9": (1, 2)}},
        {"checkpoint": "x", "silenced": {"request_source-0": (1, 2)}},
        {"checkpoint": "x", "silenced": {"gc_sink-0": (1, 2)}},
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        StreamingConfig(**settings)  # type: ignore[arg-type]


def test_the_clients_are_part_of_the_snapshot() -> None:
    def make() -> clients.Clients:
        return clients.Clients(AppendRegister(), 10, 10, 4, 100)

    first, second = make(), make()
    context = Context([])
    first.apply(clients.pack_rows([("a", 0, b"x"), ("a", 2, b"z"), ("b", 0, b"y")]), context)
    second.restore(list(first.snapshot()))
    more = clients.pack_rows([("a", 1, b"y"), ("b", 0, b"other")])
    assert first.apply(more, context) == second.apply(more, context)
    assert list(first.snapshot()) == list(second.snapshot())
