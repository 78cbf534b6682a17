"""An application that breaks down halts its executor: alone, visibly, and only as long as it must."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

import pytest

from tara.application import Context, StateMachine
from tara.protocol import places
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor
from tara.protocol.places import EXECUTING, Cell
from tara.protocol.skips import ENDED
from tests.protocol.driver import Bench, Driven, Step, batch, commits, open_session, session_id

NO_MEMORY = "the application raised MemoryError"


class Fragile(StateMachine):
    """Sums up its commands. Breaks at those that say so."""

    concurrent_snapshot = False

    def __init__(self) -> None:
        self.value = 0
        self.snapshot_fails = self.restore_fails = False

    def apply(self, command: bytes, context: Context) -> bytes:
        context.publish(command)
        self.value += len(command)
        if command == b"memory":
            raise MemoryError
        if command == b"exit":
            raise SystemExit(3)
        return b"%d" % self.value

    def query(self, question: bytes, context: Context) -> bytes:
        match question:
            case b"memory":
                raise MemoryError
            case b"exit":
                raise SystemExit(3)
        return b"%d" % self.value

    def snapshot(self) -> Iterator[bytes]:
        if self.snapshot_fails:
            raise SystemExit(3)
        yield b"%d" % self.value

    def restore(self, chunks: Iterable[bytes]) -> None:
        if self.restore_fails:
            raise GeneratorExit
        self.value = int(b"".join(chunks))


class Replica:
    def __init__(
        self,
        bench: Bench,
        replica: int = 0,
        application: type[Fragile] = Fragile,
        cell: Cell | None = None,
        barred: frozenset[int] = frozenset(),
    ) -> None:
        self.bench = bench
        self.driven: Driven[Executor] = bench.make(
            Executor, Stage.EXECUTOR, replica, application=application, cell=cell, barred=barred
        )
        self.number = 0
        (opened,) = results_of(self.feed([open_session(1)]))
        self.session = session_id(opened)

    @property
    def node(self) -> Executor:
        return self.driven.node

    @property
    def application(self) -> Fragile:
        assert isinstance(self.node.application, Fragile)
        return self.node.application

    def feed(self, *requests: list[t.Command]) -> Step:
        """Let these be decided, as the requests of the next slots."""
        first = self.node._learners[0].position
        slots = [batch(first + offset, commands, time=1_000_000) for offset, commands in enumerate(requests)]
        return self.driven.feed(*commits(slots, first))

    def commands(self, *payloads: bytes) -> list[t.Command]:
        self.number += len(payloads)
        first = self.number - len(payloads)
        return [t.Command(self.session, first + offset, 0, payload) for offset, payload in enumerate(payloads)]


def results_of(step: Step) -> list[t.Result]:
    return [result for results in step.of(t.Results) for result in results.results]


def answers_of(step: Step) -> list[bytes]:
    return [result.payload for result in results_of(step)]


def halts(step: Step) -> list[tuple[int, int, str, Stage]]:
    """What was said of a halt, and to whom."""
    return [
        (tuple_.counter, tuple_.checkpoint, tuple_.reason, receivers.stage)
        for tuple_, receivers in step.emitted
        if isinstance(tuple_, t.Halted)
    ]


@pytest.fixture
def replica() -> Replica:
    return Replica(Bench(window=64, checkpoint_interval=32))


def test_what_ends_a_program_elsewhere_is_a_result(replica: Replica) -> None:
    step = replica.feed(replica.commands(b"exit", b"ab"))
    assert [result.status for result in results_of(step)] == [t.FAILED, t.OK]
    assert replica.node.halted is None


def test_no_memory_halts_the_executor_at_the_command(replica: Replica) -> None:
    step = replica.feed(replica.commands(b"a"), replica.commands(b"bc", b"memory", b"d"), replica.commands(b"e"))
    assert answers_of(step) == [b"1", b"3"]
    assert halts(step) == [(4, 0, NO_MEMORY, Stage.STORE), (4, 0, NO_MEMORY, Stage.REPLY_SINK)]
    assert replica.node.halted == t.Halted(0, 4, 0, NO_MEMORY)
    # The log has whole requests only, and nobody hears of what the failed command published.
    executed = step.only(t.Executed)
    assert (executed.first, len(executed.requests), executed.counters, len(executed.commands)) == (1, 1, [2], 1)
    assert [event.payload for results in step.of(t.Results) for event in results.events] == [b"a", b"bc"]
    assert replica.node.next == 2


def test_a_halted_executor_learns_on_but_executes_and_answers_nothing(replica: Replica) -> None:
    replica.feed(replica.commands(b"memory"))
    step = replica.feed(replica.commands(b"a"))
    assert results_of(step) == []
    assert replica.node._learners[0].position == 3
    assert replica.node.read(b"", b"") == (t.HALTED, NO_MEMORY.encode())
    replica.driven.feed(t.PendingReads(0, 1, 1, [t.ReadRequest(1, b"")]))
    indexes = [t.ReadIndex(c, 0, 1, replica.bench.incarnations, 0, 1, 1, 1) for c in range(2)]
    assert replica.driven.feed(*indexes).of(t.ReadResults) == []


def test_a_halted_executor_says_so_again_and_again_and_reports_no_sessions(replica: Replica) -> None:
    (before,) = replica.driven.tick(10_000).of(t.ExecutorStatus)
    replica.feed(replica.commands(b"memory"))
    step = replica.driven.tick(20_000)
    assert halts(step) == [(2, 0, NO_MEMORY, Stage.REPLY_SINK)]
    assert (before.sessions, step.only(t.ExecutorStatus).sessions) == (1, 0)
    assert len(replica.driven.tick(30_000).of(t.Halted)) == 1


def test_a_stable_checkpoint_takes_it_past_the_command() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    halted, other = Replica(bench), Replica(bench, replica=1)
    halted.feed(halted.commands(b"memory"))
    # The other one has the memory.
    step = other.feed(*([] for _ in range(7)))
    save = step.only(t.Save)
    loaded = t.Loaded(t.CheckpointId(1, b"d"), save.state, list(save.chunks))
    (load,) = halted.driven.feed(*bench.stables(1)).of(t.Load)
    assert load.minimum == 1
    before = halted.application
    step = halted.driven.feed(loaded)
    assert halts(step) == [(0, 0, "", Stage.STORE), (0, 0, "", Stage.REPLY_SINK)]
    assert halted.node.halted is None
    # What the command had half done is gone with the application that it was done to.
    assert halted.application is not before
    halted.number = 0
    assert answers_of(halted.feed(halted.commands(b"abc"))) == [b"3"]


def test_a_checkpoint_that_does_not_take_it_past_the_command_changes_nothing() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    replica = Replica(bench)
    save = replica.feed(*([] for _ in range(7))).only(t.Save)
    replica.feed(replica.commands(b"memory"))
    step = replica.driven.feed(*bench.stables(1), t.Loaded(t.CheckpointId(1, b"d"), save.state, list(save.chunks)))
    assert step.of(t.Load) == []
    assert replica.node.halted is not None


def test_a_snapshot_that_fails_halts_the_executor_until_others_have_the_checkpoint() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    replica = Replica(bench)
    replica.application.snapshot_fails = True
    step = replica.feed(*([] for _ in range(9)))
    reason = "the application raised SystemExit when it was to give a snapshot for checkpoint 1"
    assert halts(step)[0] == (1, 1, reason, Stage.STORE)
    assert replica.node.next == 8
    assert step.of(t.Save) == []
    step = replica.driven.feed(*bench.stables(1))
    assert replica.node.halted is None
    assert replica.node.next == 10


def test_a_snapshot_that_fails_when_it_is_drawn_halts_the_executor() -> None:
    replica = Replica(Bench(window=64, checkpoint_interval=8))
    replica.feed(*([] for _ in range(8)))
    reason = "the application raised KeyError when it was to give a snapshot for checkpoint 1"
    step = replica.driven.feed(t.Unsaved(1, "the application raised KeyError"))
    assert halts(step)[0] == (1, 1, reason, Stage.STORE)


def test_a_restoration_that_fails_halts_the_executor_until_there_is_another_checkpoint() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    replica, other = Replica(bench), Replica(bench, replica=1)
    first = other.feed(*([] for _ in range(7))).only(t.Save)
    second = other.feed(*([] for _ in range(8))).only(t.Save)
    first_chunks, second_chunks = list(first.chunks), list(second.chunks)
    replica.application.restore_fails = True
    assert len(replica.driven.feed(*bench.stables(1)).of(t.Load)) == 1
    step = replica.driven.feed(t.Loaded(t.CheckpointId(1, b"d"), first.state, first_chunks))
    reason = "the application raised GeneratorExit when it was to restore checkpoint 1"
    assert halts(step)[0] == (1, 1, reason, Stage.STORE)
    # Neither the same checkpoint again, nor anything that needs a state.
    assert replica.driven.feed(*bench.stables(1)).of(t.Load) == []
    assert replica.driven.tick(10_000).of(t.ExecutorStatus) == []
    assert len(replica.driven.feed(*bench.stables(2)).of(t.Load)) == 1
    replica.driven.feed(t.Loaded(t.CheckpointId(2, b"d"), second.state, second_chunks))
    assert replica.node.halted is None
    assert replica.node.next == 16


@pytest.mark.parametrize(("payload", "name"), [(b"exit", b"SystemExit"), (b"memory", b"MemoryError")])
def test_a_read_that_fails_is_answered_and_halts_nothing(replica: Replica, payload: bytes, name: bytes) -> None:
    assert replica.node.read(payload, b"") == (t.FAILED, b"the application raised " + name)
    assert replica.node.halted is None


def test_an_ordered_read_without_memory_halts_like_a_command(replica: Replica) -> None:
    """Its answer has to be the same everywhere."""
    step = replica.feed([t.Command(replica.session, 0, 0, b"memory", t.QUERY)])
    assert halts(step)[0] == (2, 0, NO_MEMORY, Stage.STORE)


def test_one_that_its_host_finds_broken_only_says_so(replica: Replica) -> None:
    replica.node.give_up("an invariant")
    step = replica.feed(replica.commands(b"a"))
    assert halts(step) == [(1, 0, "an invariant", Stage.STORE), (1, 0, "an invariant", Stage.REPLY_SINK)]
    assert len(step.emitted) == 2
    assert halts(replica.driven.tick(10_000)) == [(1, 0, "an invariant", Stage.REPLY_SINK)]


# What has ended the process before


class Spying(Fragile):
    """Looks into the cell."""

    cell: ClassVar[list[int]] = [0, 0, 0]
    seen: ClassVar[list[int]] = []

    def apply(self, command: bytes, context: Context) -> bytes:
        self.seen.append(self.cell[EXECUTING])
        return super().apply(command, context)

    def query(self, question: bytes, context: Context) -> bytes:
        return self.apply(question, context)

    def opened(self, context: Context) -> None:
        self.seen.append(self.cell[EXECUTING])

    closed = opened

    def snapshot(self) -> Iterator[bytes]:
        self.seen.append(self.cell[EXECUTING])
        yield from super().snapshot()

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.seen.append(self.cell[EXECUTING])
        super().restore(chunks)


def spying(**settings: int) -> Replica:
    Spying.seen.clear()
    Spying.cell[:] = [0, 0, 0]
    bench = Bench(**({"window": 64, "checkpoint_interval": 32} | settings))
    return Replica(bench, application=Spying, cell=Spying.cell)


def test_the_cell_has_what_the_application_is_doing_and_nothing_between() -> None:
    replica = spying(checkpoint_interval=4)
    step = replica.feed(
        [*replica.commands(b"a", b"bc"), t.Command(replica.session, 2, 0, b"?", t.QUERY)],
        [t.Command(replica.session, 3, 0, b"", t.CLOSE)],
        [],
    )
    replica.node.read(b"question", b"")
    save = step.only(t.Save)
    other = Replica(replica.bench, application=Spying, cell=Spying.cell)
    other.driven.feed(t.Loaded(t.CheckpointId(1, b""), save.state, list(save.chunks)))
    expected = [1, 2, 3, 4, 5, places.SNAPSHOT | 1, places.read(b"question"), 1, places.RESTORATION | 1]
    assert Spying.seen == expected
    assert Spying.cell == [0, 0, 5]


def test_the_cell_has_the_snapshot_while_another_thread_draws_it() -> None:
    cell = [0, 0]
    chunks = places.marked(iter([b"a", b"b"]), cell, 9)
    assert cell == [0, 0]
    assert next(chunks) == b"a"
    assert cell == [0, 9]
    assert list(chunks) == [b"b"]
    assert cell == [0, 0]


def test_the_cell_has_the_last_command_that_was_executed_and_none_that_was_not() -> None:
    replica = spying()
    replica.feed(replica.commands(b"a"), replica.commands(b"bc", b"memory"))
    assert Spying.cell == [0, 0, 3]
    assert replica.node.executed == 3
    assert replica.node.halted is not None
    assert replica.node.halted.counter == 4


def test_what_a_life_before_has_executed_counts_as_executed() -> None:
    bench = Bench(window=64, checkpoint_interval=32)
    driven = bench.make(Executor, Stage.EXECUTOR, genesis=False, life=2, application=Fragile, executed=17)
    assert driven.node.executed == 17


def barred(*which: int, **settings: int) -> Replica:
    return Replica(Bench(**({"window": 64, "checkpoint_interval": 8} | settings)), barred=frozenset(which))


def test_a_barred_command_is_not_executed() -> None:
    replica = barred(3)
    step = replica.feed(replica.commands(b"a", b"bc"), replica.commands(b"d"))
    assert halts(step)[0] == (3, 0, ENDED, Stage.STORE)
    assert answers_of(step) == [b"1"]
    assert replica.application.value == 1


def test_neither_is_the_opening_nor_the_end_of_a_session() -> None:
    replica = barred(2)
    assert halts(replica.feed([open_session(2)]))[0] == (2, 0, ENDED, Stage.STORE)
    replica = barred(2)
    step = replica.feed([t.Command(replica.session, 0, 0, b"", t.CLOSE)])
    assert halts(step)[0] == (2, 0, ENDED, Stage.STORE)


def test_a_barred_snapshot_is_not_taken() -> None:
    replica = barred(places.SNAPSHOT | 1)
    step = replica.feed(*([] for _ in range(7)))
    assert halts(step)[0] == (1, 1, ENDED, Stage.STORE)
    assert step.of(t.Save) == []


def test_a_barred_restoration_is_not_tried() -> None:
    other = barred()
    save = other.feed(*([] for _ in range(7))).only(t.Save)
    replica = barred(places.RESTORATION | 1)
    replica.driven.feed(*replica.bench.stables(1))
    step = replica.driven.feed(t.Loaded(t.CheckpointId(1, b"d"), save.state, list(save.chunks)))
    assert halts(step)[0] == (1, 1, ENDED, Stage.STORE)


def test_a_barred_read_is_refused_and_others_are_not() -> None:
    replica = barred(places.read(b"fatal"))
    assert replica.node.read(b"fatal", b"") == (t.FAILED, ENDED.encode())
    assert replica.node.read(b"harmless", b"")[0] == t.OK


@pytest.mark.parametrize(
    ("place", "described"),
    [
        (17, "command 17"),
        (places.SNAPSHOT | 3, "the snapshot for checkpoint 3"),
        (places.RESTORATION | 3, "the restoration of checkpoint 3"),
        (places.READ | 0xAB, "a read (000000ab)"),
    ],
)
def test_places_can_be_read(place: int, described: str) -> None:
    assert places.describe(place) == described
