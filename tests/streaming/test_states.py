"""The states of nodes: what is in them, that they lead on wherever they are decoded, and that nobody changes them
without noticing."""

import itertools
import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tara.application import AppendRegister, KeyValueStore, StateMachine
from tara.protocol import tuples as t
from tara.protocol.graph import Graph
from tara.protocol.node import Boot, Outbox
from tara.protocol.nodes.factory import create
from tara.protocol.nodes.gc_source import GcSource
from tara.protocol.sessions import Context
from tara.streaming import executed, seats
from tara.streaming.clients import encode
from tara.streaming.config import StreamingConfig
from tara.streaming.errors import StreamingError
from tara.streaming.host import Host
from tara.streaming.node_fields import STATES, encode_node
from tara.streaming.rows import Row
from tara.streaming.typed_state import LONG_BYTES, Bodies, Fields, Long, TypedState
from tests.streaming.stores import MemoryStore
from tests.streaming.test_host import Query, executors

GOLDEN = Path(__file__).parent / "golden"
#: Drills in which all kinds of tuples flow, records of a view change among them.
DRILLS: list[dict[str, Any]] = [
    {},
    {"silenced": {"proposer-1": (5, 12)}},
    {"silenced": {"executor-0": (4, 12), "committer-1": (14, 18)}},
    {"silenced": {"proposer-1": (8, 1000), "controller-0": (4, 12)}, "timeout_ticks": 2},
]


class Workers(Query):
    """Several processes, as Spark has them: each key is taken now by one, now by another, some of them twice, because
    the first one failed after it had done its work, and now and then a process ends."""

    def __init__(self, app: type[StateMachine], seed: int, processes: int, **settings: Any) -> None:
        super().__init__(app, seed, **settings)
        self.hosts = [Host(self.config, app) for _ in range(processes)]
        self.chance = random.Random(seed)
        self.ended = Host(self.config, app)

    def _turn(self, key: int, taken: list[Row]) -> list[Row]:
        if self.chance.random() < 0.2:
            attempt = taken.copy()
            self.chance.shuffle(attempt)
            self.chance.choice(self.hosts).turn(key, MemoryStore.of(self.stores[key]), attempt)
        if self.chance.random() < 0.02:
            place = self.chance.randrange(len(self.hosts))
            self._count(self.hosts[place])
            self.hosts[place] = Host(self.config, self.app)
        return self.chance.choice(self.hosts).turn(key, self.stores[key], taken)

    def _count(self, host: Host) -> None:
        self.ended.hits += host.hits
        self.ended.stale += host.stale
        self.ended.misses += host.misses

    def counted(self) -> tuple[int, int, int]:
        for host in self.hosts:
            self._count(host)
        return self.ended.hits, self.ended.stale, self.ended.misses


def drive(query: Query, batches: int = 30) -> list[object]:
    """The states after each micro-batch, and the results."""
    seen: list[object] = []
    for n in range(batches):
        # Some are kept and sent under their digests, and some are short.
        length = 2 * LONG_BYTES if n % 3 else 3
        query.run([(client, n, random.Random(f"{client}{n}").randbytes(length)) for client in "abc"])
        seen.append(query.states)
    query.settle()
    return [*seen, query.states, query.results]


@pytest.mark.parametrize("settings", DRILLS)
def test_it_makes_no_difference_where_a_node_was_before(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded each time, kept in one process, or taken by any process that has it, had it, or never had it."""
    monkeypatch.setattr(executed, "RUNS_BYTES_MIN", 20_000)
    queries = [
        Query(AppendRegister, keeps=False, **settings),
        Query(AppendRegister, **settings),
        Workers(AppendRegister, 1, 2, **settings),
        Workers(AppendRegister, 2, 3, **settings),
    ]
    first, *others = [drive(query) for query in queries]
    for other in others:
        for batch, (mine, yours) in enumerate(zip(first, other, strict=True)):
            assert mine == yours, f"micro-batch {batch}"
    assert queries[0].host.hits == queries[0].host.stale == 0
    assert queries[1].host.misses == queries[1].host.stale == 0
    workers = queries[3]
    assert isinstance(workers, Workers)
    hits, stale, misses = workers.counted()
    assert min(hits, stale, misses) > 20


def test_a_state_of_another_attempt_is_not_taken_for_this_one() -> None:
    """Two executions of a micro-batch write states with the same content, but what one of them has in memory is used
    only if it was its state that counted."""
    query = Query()
    query.run([("a", 0, b"x")])
    key = 0
    other = MemoryStore.of(query.stores[key])
    query.host.turn(key, query.stores[key], [])
    hits = query.host.hits
    query.host.turn(key, other, [])
    assert (query.host.hits, query.host.stale) == (hits, 1)
    assert other.token() != query.stores[key].token()
    assert other.content == query.stores[key].content


def test_a_state_that_is_older_than_what_is_in_memory() -> None:
    """Spark may go back a version: the last micro-batch was not committed everywhere."""
    query = Query()
    for n in range(4):
        query.run([("a", n, b"x")])
    before = {key: MemoryStore.of(store) for key, store in query.stores.items()}
    queue, results = query.queue, query.results.copy()
    for n in range(4, 8):
        query.run([("a", n, b"x")])
    after, answered = query.states, query.results
    query.stores.update(before)
    query.queue, query.results, query.batch = queue, results, 4
    for n in range(4, 8):
        query.run([("a", n, b"x")])
    assert (query.states, query.results) == (after, answered)
    assert query.host.stale > 0


class Counted(KeyValueStore):
    """Counts what it executes in this process."""

    applied = 0

    def apply(self, command: bytes, context: Context) -> bytes:
        Counted.applied += 1
        return super().apply(command, context)


def test_an_executor_that_is_behind_executes_only_what_it_lacks() -> None:
    Counted.applied = 0
    query = Query(Counted)
    for n in range(20):
        query.run([("a", n, b"x")])
    query.settle()
    (key, *_) = [key for key, name in enumerate(query.graph.names) if name.stage == "executor"]
    store = query.stores[key]
    behind = Host(query.config, Counted)
    behind.turn(key, MemoryStore.of(store), [])
    query.run([("a", 20, b"x")])
    query.run()
    Counted.applied = 0
    store.asked.clear()
    behind.turn(key, store, [])
    assert Counted.applied == 1
    assert store.asked.count("run") <= 2
    assert store.asked.count("piece") == 0


def test_what_a_micro_batch_writes_does_not_depend_on_what_the_application_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executed, "RUNS_BYTES_MIN", 10_000)
    written = []
    query = Query()
    for n in range(200):
        query.run([("a", n, random.Random(n).randbytes(400))])
        written.append(sum(store.written for store in query.stores.values()))
    (executor, *_) = executors(query)
    state = sum(map(len, executor.application.snapshot()))
    assert state > 60_000
    # Now and then a base of each replica; else what came.
    assert sorted(written)[len(written) * 3 // 4] < state / 2
    assert max(len(store.runs) for store in query.stores.values()) < 200


def test_a_body_is_written_once() -> None:
    query = Query()
    for n in range(3):
        query.run([("a", n, b"x")])
    body = random.Random(1).randbytes(50_000)
    query.run([("a", 3, body)])
    written = sum(store.written for store in query.stores.values())
    # The request source, two proposers, three committers, and the runs of three executors.
    assert 6 * len(body) < written < 9.5 * len(body)
    query.run([])
    assert sum(store.written for store in query.stores.values()) < len(body)
    for _ in range(6):
        query.run([])
    assert not any(store.bodies for store in query.stores.values())


def test_an_application_that_is_not_deterministic_is_found_out() -> None:
    class Moody(AppendRegister):
        mood = itertools.count()

        def apply(self, command: bytes, context: Context) -> bytes:
            return b"%d" % next(Moody.mood)

    query = Query(Moody, keeps=False)
    query.run([("a", 0, b"x")])
    with pytest.raises(StreamingError, match="the application is not deterministic"):
        for n in range(1, 5):
            query.run([("a", n, b"x")])


def test_a_snapshot_that_fails_costs_nothing_but_the_base(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executed, "RUNS_BYTES_MIN", 1)
    broken = True

    class Shy(AppendRegister):
        def snapshot(self) -> Iterator[bytes]:
            if broken:
                raise RuntimeError("not now")
            return super().snapshot()

    query = Query(Shy)
    for n in range(5):
        query.run([("a", n, b"x")])
    assert "executor-1: the application raised RuntimeError when it was to give a snapshot" in caplog.text
    (store, *_) = [store for store in query.stores.values() if store.runs]
    assert not store.pieces
    assert len(store.runs) == 4
    broken = False
    query.run([("a", 5, b"x")])
    assert store.pieces
    assert not store.runs
    query.settle()
    assert len(query.results) == 6


@pytest.mark.parametrize("part", ["piece", "run"])
def test_what_is_damaged_of_an_executor_is_refused(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executed, "RUNS_BYTES_MIN", 1 if part == "piece" else 1 << 20)
    query = Query()
    for n in range(8):
        query.run([("a", n, b"xyz")])
    (key, *_) = [key for key, name in enumerate(query.graph.names) if name.stage == "executor"]
    damaged = MemoryStore.of(query.stores[key])
    parts: dict[int, bytes] = dict(enumerate(damaged.pieces)) if part == "piece" else damaged.runs
    number, found = next((number, found) for number, found in parts.items() if b"xyz" in found)
    changed = found.replace(b"xyz", b"abc")
    if part == "piece":
        damaged.pieces[number] = changed
    else:
        damaged.runs[number] = changed
    with pytest.raises(StreamingError, match=r"is damaged: .* put a copy of the whole checkpoint directory back"):
        Host(query.config, AppendRegister).load(key, damaged)


def test_all_that_a_node_has_is_declared() -> None:
    """An attribute that is new has to be declared as state, or as made anew, before a state is written again."""
    config = StreamingConfig(checkpoint="none")
    graph = config.graph
    stages = set()
    for name in graph.names:
        boot = Boot(1, 1, True, 0.0, keeps_bases=False)
        node = create(name, graph, config.limits, boot, Outbox(), AppendRegister)
        STATES.check(node)
        node.surprise = 1  # type: ignore[attr-defined]
        with pytest.raises(StreamingError, match="surprise"):
            STATES.check(node)
        stages.add(name.stage)
    assert len(stages) == len(Graph(1, 1).names and {name.stage for name in graph.names})


def test_a_node_that_has_something_to_say_is_not_written() -> None:
    config = StreamingConfig(checkpoint="none")
    graph = config.graph
    (name,) = [name for name in graph.names if (name.stage, name.replica) == ("gc_source", 0)]
    node = create(name, graph, config.limits, Boot(1, 1, True, 0.0), Outbox(), AppendRegister)
    assert isinstance(node, GcSource)
    node.report()
    with pytest.raises(StreamingError, match="has something to say"):
        encode_node(node, Bodies())


class Part:
    def __init__(self) -> None:
        self.number = 1
        self.bound = 7


class Whole:
    def __init__(self) -> None:
        self.part = Part()
        self.parts = [Part(), Part()]
        self.last: deque[int] = deque(maxlen=2)
        self.names = {"b", "a"}
        self.body = b""


DECLARED: dict[type, Fields] = {
    Part: Fields({"number": int}, ("bound",)),
    Whole: Fields({"part": Part, "parts": list[Part], "last": deque[int], "names": set[str], "body": Long}),
}


def test_objects_are_filled_in_place() -> None:
    codec = TypedState(DECLARED)
    whole, bodies = Whole(), Bodies()
    whole.part.number, whole.parts[1].number = 5, 6
    whole.last.extend([1, 2, 3])
    whole.body = b"x" * LONG_BYTES
    data = codec.encode(whole, bodies)
    assert len(data) < LONG_BYTES
    other = Whole()
    part = other.part
    codec.decode(other, data, Bodies(bodies.met.__getitem__))
    assert other.part is part
    assert (part.number, part.bound, other.parts[1].number) == (5, 7, 6)
    assert (other.last, other.last.maxlen, other.names, other.body) == (deque([2, 3]), 2, {"a", "b"}, whole.body)
    assert codec.encode(other, Bodies()) == data


@pytest.mark.parametrize("wrong", [[["1"], [[1], [1]], [], [], b"\0"], [[1], [[1], [1]], [], []], "something"])
def test_what_has_another_type_is_refused(wrong: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        TypedState(DECLARED).decode(Whole(), msgspec.msgpack.encode(wrong), Bodies())


def test_a_body_that_is_not_the_one_that_was_written_is_refused() -> None:
    codec, bodies, whole = TypedState(DECLARED), Bodies(), Whole()
    whole.body = b"x" * LONG_BYTES
    data = codec.encode(whole, bodies)
    with pytest.raises(StreamingError, match="is not the one that was written"):
        codec.decode(Whole(), data, Bodies(lambda digest: b"y" * LONG_BYTES))


def golden_states() -> dict[str, bytes]:
    """The state of every node in the middle of a view change, with something of everything."""
    query = Query(AppendRegister, silenced={"proposer-1": (5, 1000)})
    chance = random.Random(1)
    for n in range(14):
        query.run([(client, n, chance.randbytes(2 * LONG_BYTES)) for client in "ab"] + [("c", 2 * n, b"early")])
    files = {}
    for key, store in sorted(query.stores.items()):
        files[f"{query.graph.label(key)}.state"] = msgspec.msgpack.encode(
            (store.node(), sorted(store.bodies.items()), store.pieces, sorted(store.runs.items()))
        )
    return files


def test_states_are_encoded_as_ever() -> None:
    """When this fails, the format has changed: raise `FORMAT_VERSION`, and write new files (`python -m
    tests.streaming.test_states`). A query with an old checkpoint is refused then."""
    directory = GOLDEN / f"states-{seats.FORMAT_VERSION}"
    written = {path.name: path.read_bytes() for path in directory.iterdir()}
    found = golden_states()
    assert written.keys() == found.keys()
    for name, data in found.items():
        assert written[name] == data, name


def test_golden_states_are_read() -> None:
    query = Query()
    for key, name in enumerate(query.graph.names):
        path = GOLDEN / f"states-{seats.FORMAT_VERSION}" / f"{query.graph.label(key)}.state"
        if not path.exists():
            continue
        kind = tuple[bytes, list[tuple[bytes, bytes]], list[bytes], list[tuple[int, bytes]]]
        node, bodies, pieces, runs = msgspec.msgpack.decode(path.read_bytes(), type=kind)
        store = MemoryStore()
        store.version = seats.Version(b"1", "", "", 0, 0, None, None, 0, "", 0, 0, 0, 0)
        store._node, store.bodies, store.pieces, store.runs = node, dict(bodies), pieces, dict(runs)
        seat = query.host.load(key, store)
        assert seat.tick == 14
        assert (seat.front_end is not None) == (name.stage == "request_source")
        assert seats.encode_seat(seat, query.graph) == node


def test_runs_are_of_a_known_version() -> None:
    run = executed.RunOfBatch(9, t.CheckpointId(0, b""), t.CheckpointId(0, b""), 0, [], [])
    with pytest.raises(StreamingError, match="format version 9"):
        executed._read(executed.pack_small(encode(run)), executed._decode_run, executed.RUN_VERSION)


if __name__ == "__main__":
    target = GOLDEN / f"states-{seats.FORMAT_VERSION}"
    target.mkdir(parents=True, exist_ok=True)
    for file, content in golden_states().items():
        (target / file).write_bytes(content)
