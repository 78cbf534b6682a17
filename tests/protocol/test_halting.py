"""An application that breaks down halts its executor: alone, visibly, and only as long as it must."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

import msgspec
import pytest

from tara.application import Context, StateMachine
from tara.protocol import places
from tara.protocol import tuples as t
from tara.protocol.bases import PAUSE_MAX
from tara.protocol.errors import BaseUnreadable
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor
from tara.protocol.places import EXECUTING, Cell
from tara.protocol.skips import ENDED
from tests.protocol.driver import (
    Bench,
    Driven,
    Step,
    base_of,
    batch,
    commits,
    loaded_nothing,
    open_session,
    session_id,
)

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


class Concurrent(Fragile):
    concurrent_snapshot = True


class Unrestorable(Fragile):
    def restore(self, chunks: Iterable[bytes]) -> None:
        raise MemoryError


class Sturdy(Fragile):
    """Has the memory that the others lack."""

    def apply(self, command: bytes, context: Context) -> bytes:
        return super().apply(command.replace(b"memory", b"plenty"), context)


class AtTimesUnrestorable(Fragile):
    #: Of all copies: one that is restored is a new one.
    fails: ClassVar[bool] = False

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.restore_fails = self.fails
        super().restore(chunks)


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

    def base(self, *requests: list[t.Command], number: int = 1) -> t.Loaded:
        """Let these be decided up to this checkpoint, and take a base there."""
        self.driven.feed(t.TakeBase(number))
        return base_of(self.driven, self.feed(*requests))

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
    assert (executed.first, len(executed.requests), executed.counters, executed.commands) == (1, 1, [2], None)
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


def holder(bench: Bench, number: int) -> t.ExecutorStatus:
    """Another executor has this checkpoint."""
    return bench.status(1, checkpoints=[t.CheckpointId(number, b"digest")])


def test_only_a_base_takes_it_past_the_command() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    halted, other = Replica(bench), Replica(bench, replica=1)
    halted.feed(halted.commands(b"memory"))
    # The other one has the memory.
    base = other.base(*([] for _ in range(7)))
    (load,) = halted.driven.feed(*bench.stables(1, executors=[holder(bench, 1)])).of(t.Load)
    assert load == t.Load(1, -1, 1, [1])
    before = halted.application
    step = halted.driven.feed(base)
    assert halts(step) == [(0, 0, "", Stage.STORE), (0, 0, "", Stage.REPLY_SINK)]
    assert halted.node.halted is None
    # What the command had half done is gone with the application that it was done to.
    assert halted.application is not before
    halted.number = 0
    assert answers_of(halted.feed(halted.commands(b"abc"))) == [b"3"]


def test_one_that_has_halted_tells_the_others_which_base_it_needs() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    replica, other = Replica(bench), Replica(bench, replica=1)
    assert [status.base_wanted for status in replica.driven.tick(1_000).of(t.ExecutorStatus)] == [0]
    replica.feed(replica.commands(b"memory"))
    assert [status.base_wanted for status in replica.driven.tick(2_000).of(t.ExecutorStatus)] == [1]
    replica.driven.feed(other.base(*([] for _ in range(7))))
    assert [status.base_wanted for status in replica.driven.tick(3_000).of(t.ExecutorStatus)] == [0]


@pytest.mark.parametrize("until", [1, 2])
def test_a_base_that_does_not_take_it_past_the_command_changes_nothing(until: int) -> None:
    """Nor do the requests that follow it: half of the command is done, and must not be done again."""
    bench = Bench(window=64, checkpoint_interval=8)
    replica = Replica(bench)
    base = replica.base(*([] for _ in range(7)))
    replica.feed(replica.commands(b"a"), replica.commands(b"memory"))
    step = replica.driven.feed(*bench.stables(1), msgspec.structs.replace(base, until=until))
    assert step.of(t.Load) == step.of(t.More) == []
    assert replica.node.halted is not None
    step = replica.driven.feed(t.Replay(8, [batch(8, []), batch(9, []), batch(10, [])], [], None, False, True))
    assert step.emitted == []
    assert (replica.node.next, replica.application.value) == (9, 1 + len(b"memory"))


def test_one_that_halts_while_it_waits_for_the_log_does_not_go_on_with_it() -> None:
    """Commits that came late have led it to the command meanwhile."""
    bench = Bench(window=64, checkpoint_interval=8)
    replica = Replica(bench)
    replica.driven.feed(*bench.stables(1, executors=[holder(bench, 1)]))
    replica.feed(replica.commands(b"memory"))
    assert replica.driven.feed(loaded_nothing(until=1)).of(t.More) == []


def test_one_that_halts_while_it_executes_the_log_again_stops_doing_so() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    replica = Replica(bench)
    replica.driven.feed(*bench.stables(1, executors=[holder(bench, 1)]))
    assert len(replica.driven.feed(loaded_nothing(until=1)).of(t.More)) == 1
    fatal, value = replica.commands(b"memory"), replica.application.value
    replica.feed(fatal)
    replica.driven.feed(t.Replay(1, [batch(1, fatal, time=1_000_000), batch(2, [])], [], None, True, False))
    assert replica.node.next == 1
    assert replica.application.value == value + len(b"memory")


def test_a_command_that_fails_when_it_is_executed_again_halts_the_executor() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    other = Replica(bench, replica=1)
    node = bench.make(Executor, Stage.EXECUTOR, genesis=False, life=2, application=Fragile)
    again = [batch(0, [open_session(1)]), batch(1, other.commands(b"memory"))]
    step = node.feed(loaded_nothing(until=1), t.Replay(0, again, [], None, True, False))
    assert halts(step)[0] == (2, 0, NO_MEMORY, Stage.STORE)
    assert results_of(step) == [], "clients do not know this life yet"
    assert len(step.of(t.More)) == 1, "it asks for nothing that follows"


def test_a_snapshot_that_fails_costs_nothing_but_the_base() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    replica = Replica(bench)
    replica.application.snapshot_fails = True
    replica.driven.feed(t.TakeBase(1))
    step = replica.feed(*([] for _ in range(9)))
    reason = "the application raised SystemExit when it was to give a snapshot for checkpoint 1"
    assert step.of(t.GivenUp) == [t.GivenUp(1, reason)]
    assert (replica.node.bases.trouble, step.of(t.Base), halts(step)) == (reason, [], [])
    assert replica.node.next == 10
    # It is tried again, but not at once; and then all is well.
    replica.application.snapshot_fails = False
    assert replica.feed(*([] for _ in range(8))).of(t.Base) == []
    replica.driven.feed(*(t.Saved(t.CheckpointId(number, b"")) for number in (1, 2)))
    step = replica.feed(*([] for _ in range(8)))
    assert step.only(t.Base).checkpoint.number == 3
    replica.driven.feed(t.BaseSaved(3, b"state", 100))
    assert replica.node.bases.trouble == ""


def test_a_snapshot_that_fails_when_it_is_drawn_costs_nothing_but_the_base() -> None:
    replica = Replica(Bench(window=64, checkpoint_interval=8), application=Concurrent)
    replica.driven.feed(t.TakeBase(1))
    step = replica.feed(*([] for _ in range(8)))
    assert step.only(t.Base).checkpoint.number == 1
    replica.application.snapshot_fails = True
    assert replica.driven.feed(t.Draw(1)).only(t.Drawn).is_state
    step = replica.driven.feed(t.Draw(1))
    reason = "the application raised SystemExit when it was to give a snapshot for checkpoint 1"
    assert step.of(t.GivenUp) == [t.GivenUp(1, reason)]
    assert (replica.node.halted, replica.driven.feed(t.Draw(1)).emitted) == (None, [])


def test_a_restoration_that_fails_halts_the_executor_until_there_is_another_base() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    replica, other = Replica(bench, application=AtTimesUnrestorable), Replica(bench, replica=1)
    first = other.base(*([] for _ in range(7)))
    second = other.base(*([] for _ in range(8)), number=2)
    AtTimesUnrestorable.fails = True
    assert len(replica.driven.feed(*bench.stables(1, executors=[holder(bench, 1)])).of(t.Load)) == 1
    step = replica.driven.feed(first)
    reason = "the application raised GeneratorExit when it was to restore base 1"
    # The site lets go of the former application first.
    assert halts(step)[:2] == [(0, 0, "", Stage.STORE), (1, 1, reason, Stage.STORE)]
    AtTimesUnrestorable.fails = False
    # Nothing that needs a state; and not the same base again.
    step = replica.driven.tick(10_000)
    assert step.of(t.Progress) == step.of(t.Load) == []
    (load,) = replica.driven.feed(*bench.stables(1, executors=[holder(bench, 1)])).of(t.Load)
    assert (load.next, load.bases_from) == (-1, 2)
    replica.driven.feed(loaded_nothing())
    assert not replica.node.restored
    replica.driven.feed(second)
    assert replica.node.halted is None
    assert replica.node.next == 16


def test_one_that_could_not_restore_a_base_tells_the_others_that_it_needs_a_later_one() -> None:
    """Also in a life that has never had a state."""
    bench = Bench(window=64, checkpoint_interval=8)
    original = Replica(bench, replica=1)
    base = original.base(*([] for _ in range(7)))
    node = bench.make(Executor, Stage.EXECUTOR, genesis=False, life=2, application=Unrestorable)
    assert node.tick(10_000).of(t.ExecutorStatus) == []
    assert halts(node.feed(base))[0][1] == 1
    status = node.tick(20_000).only(t.ExecutorStatus)
    assert (status.base_wanted, status.checkpoints, status.bases, status.sessions) == (2, [], [], 0)
    assert (status.positions, status.progress) == ([0], [[(0, 0)] * 3])
    assert base.base is not None
    original.driven.feed(t.Saved(base.base), t.BaseSaved(1, base.digest, base.length))
    original.driven.feed(*bench.stables(1, digest=b"", executors=[status]))
    assert original.feed(*([] for _ in range(8))).only(t.Base).checkpoint.number == 2


def test_one_that_restores_nothing_wants_bases_ever_more_rarely_but_tries_those_that_come() -> None:
    bench = Bench(window=1024, checkpoint_interval=8)
    original = Replica(bench, replica=1)
    node = bench.make(Executor, Stage.EXECUTOR, genesis=False, life=2, application=Unrestorable)
    wanted = []
    for number in range(1, 12):
        base = original.base(*([] for _ in range(7 if number == 1 else 8)), number=number)
        assert base.base is not None
        original.driven.feed(t.Saved(base.base), t.BaseSaved(number, base.digest, base.length))
        node.feed(base)
        (status,) = node.tick(number * 10_000).of(t.ExecutorStatus)
        wanted.append(status.base_wanted - number)
        (load,) = node.feed(*bench.stables(number, executors=[holder(bench, number)])).of(t.Load)
        assert load.bases_from == number + 1
    assert wanted == [1, 2, 4, 8, 16, 32] + [PAUSE_MAX] * 5


def test_restorations_that_have_ended_the_process_count_in_that() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    base = Replica(bench, replica=1).base(*([] for _ in range(7)))
    ended = frozenset(places.RESTORATION | number for number in (1, 7, 9))
    node = bench.make(Executor, Stage.EXECUTOR, genesis=False, life=2, application=Fragile, barred=ended)
    node.feed(base)
    assert node.tick(10_000).only(t.ExecutorStatus).base_wanted == 1 + 4


def test_one_that_halts_at_command_after_command_wants_bases_ever_more_rarely() -> None:
    """Until it is well enough to take one itself."""
    bench = Bench(window=256, checkpoint_interval=8)
    replica, other = Replica(bench), Replica(bench, replica=1, application=Sturdy)
    wanted = []
    for number in range(1, 5):
        other.driven.feed(t.TakeBase(number))
        memory = replica.commands(b"memory")
        other.number = replica.number
        base = base_of(other.driven, other.feed(memory, *([] for _ in range(7 - other.node.next % 8))))
        replica.feed(memory)
        assert replica.node.halted is not None
        wanted.append(replica.driven.tick(number * 10_000).only(t.ExecutorStatus).base_wanted - replica.node.next // 8)
        assert base.base is not None
        other.driven.feed(t.Saved(base.base), t.BaseSaved(number, base.digest, base.length))
        replica.driven.feed(base)
        assert replica.node.halted is None
    assert wanted == [1, 2, 4, 8]


def test_a_base_that_the_disk_does_not_give_is_asked_for_again() -> None:
    """It was intact a moment ago, and so is the application: nobody halts."""
    bench = Bench(window=64, checkpoint_interval=8)
    replica, other = Replica(bench), Replica(bench, replica=1)
    base = other.base(*([] for _ in range(7)))
    replica.driven.feed(*bench.stables(1, executors=[holder(bench, 1)]))

    def torn() -> Iterator[bytes]:
        yield b"1"
        raise BaseUnreadable("Input/output error")

    step = replica.driven.feed(msgspec.structs.replace(base, chunks=torn()))
    assert (halts(step), replica.node.restored, replica.node.next) == ([(0, 0, "", Stage.STORE)], False, 0)
    assert replica.driven.tick(10_000).only(t.Load) == t.Load(1, 0, 0, (0,))
    replica.driven.feed(base)
    assert (replica.node.restored, replica.node.next) == (True, 8)


def test_one_that_has_halted_begins_again_when_the_disk_does_not_give_a_base() -> None:
    bench = Bench(window=64, checkpoint_interval=8)
    replica, other = Replica(bench), Replica(bench, replica=1)
    base = other.base(*([] for _ in range(7)))
    fatal = replica.commands(b"memory")
    replica.feed(fatal)
    replica.driven.feed(*bench.stables(1, executors=[holder(bench, 1)]))

    def unreadable() -> Iterator[bytes]:
        raise BaseUnreadable("Input/output error")
        yield b""

    step = replica.driven.feed(msgspec.structs.replace(base, chunks=unreadable()))
    assert halts(step)[0] == (0, 0, "", Stage.STORE)
    assert replica.driven.tick(10_000).only(t.Load) == t.Load(1, 0, 0, (0,))
    # The log leads to the command once more, and no further.
    again = [batch(0, [open_session(1)], time=1_000_000), batch(1, fatal, time=1_000_000)]
    step = replica.driven.feed(loaded_nothing(until=1), t.Replay(0, again, [], None, False, False))
    assert halts(step)[0] == (2, 0, NO_MEMORY, Stage.STORE)


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


class Spying(Fragile):
    """Looks into the cell."""

    cell: ClassVar[list[int]] = [0, 0]
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
    Spying.cell[:] = [0, 0]
    bench = Bench(**({"window": 64, "checkpoint_interval": 32} | settings))
    return Replica(bench, application=Spying, cell=Spying.cell)


def test_the_cell_has_what_the_application_is_doing_and_nothing_between() -> None:
    replica = spying(checkpoint_interval=4)
    base = replica.base(
        [*replica.commands(b"a", b"bc"), t.Command(replica.session, 2, 0, b"?", t.QUERY)],
        [t.Command(replica.session, 3, 0, b"", t.CLOSE)],
        [],
    )
    replica.node.read(b"question", b"")
    other = Replica(replica.bench, application=Spying, cell=Spying.cell)
    other.driven.feed(base)
    expected = [1, 2, 3, 4, 5, places.SNAPSHOT | 1, places.read(b"question"), 1, places.RESTORATION | 1]
    assert Spying.seen == expected
    assert Spying.cell == [0, 5]


def test_the_cell_has_the_snapshot_whenever_a_piece_of_it_is_drawn() -> None:
    class Piecewise(Spying):
        concurrent_snapshot = True

    Spying.seen.clear()
    Spying.cell[:] = [0, 0]
    replica = Replica(Bench(window=64, checkpoint_interval=4), application=Piecewise, cell=Spying.cell)
    replica.driven.feed(t.TakeBase(1))
    step = replica.feed([], [], [])
    assert (Spying.seen, Spying.cell) == ([1], [0, 1])
    base_of(replica.driven, step)
    assert (Spying.seen, Spying.cell) == ([1, places.SNAPSHOT | 1], [0, 1])


def test_the_cell_has_the_last_command_that_was_executed_and_none_that_was_not() -> None:
    replica = spying()
    replica.feed(replica.commands(b"a"), replica.commands(b"bc", b"memory"))
    assert Spying.cell == [0, 3]
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


def test_barred_snapshots_are_not_taken_and_asked_for_ever_more_rarely() -> None:
    replica = barred(places.SNAPSHOT, base_bytes_min=1)
    given_up = []
    for number in range(1, 16):
        step = replica.feed(*([] for _ in range(7 if number == 1 else 8)))
        replica.driven.feed(t.Saved(step.only(t.Mark).checkpoint))
        assert (step.of(t.Base), halts(step)) == ([], [])
        given_up += step.of(t.GivenUp)
    assert [each.number for each in given_up] == [1, 3, 7, 15]
    assert given_up[0].reason == f"{ENDED} when it was to give a snapshot for checkpoint 1"


def test_whoever_lacks_a_base_has_no_barred_snapshot_taken() -> None:
    """Neither a replica that nothing else leads on, nor the log, if it has a gap."""
    replica = barred(places.SNAPSHOT)
    stuck = replica.bench.status(1, base_wanted=1)
    replica.driven.feed(t.TakeBase(1), *replica.bench.stables(0, executors=[stuck]))
    assert len(replica.feed(*([] for _ in range(7))).of(t.GivenUp)) == 1
    replica.driven.feed(*replica.bench.stables(0, executors=[stuck]))
    step = replica.feed(*([] for _ in range(8)))
    assert (step.of(t.Base), step.of(t.GivenUp)) == ([], []), "not again at once"


def test_an_operator_has_a_barred_snapshot_tried_again() -> None:
    """Should it end the process once more, the next life knows no more than this one did."""
    replica = barred(places.SNAPSHOT)
    replica.driven.feed(t.TakeBase(1, by_operator=True))
    base = base_of(replica.driven, replica.feed(*([] for _ in range(7))))
    assert base.base is not None
    step = replica.driven.feed(t.BaseSaved(1, base.digest, base.length))
    assert step.only(t.Unbarred) == t.Unbarred(places.SNAPSHOT)
    # From then on like everybody else.
    replica.driven.feed(t.TakeBase(2), t.Saved(base.base))
    step = replica.feed(*([] for _ in range(8)))
    base_of(replica.driven, step)
    assert replica.driven.feed(t.BaseSaved(2, b"state", 100)).of(t.Unbarred) == []


def test_a_barred_restoration_is_not_tried() -> None:
    other = barred()
    base = other.base(*([] for _ in range(7)))
    replica = barred(places.RESTORATION | 1)
    step = replica.driven.feed(base)
    assert halts(step)[1] == (1, 1, ENDED, Stage.STORE)


def test_a_barred_read_is_refused_and_others_are_not() -> None:
    replica = barred(places.read(b"fatal"))
    assert replica.node.read(b"fatal", b"") == (t.FAILED, ENDED.encode())
    assert replica.node.read(b"harmless", b"")[0] == t.OK


@pytest.mark.parametrize(
    ("place", "described"),
    [
        (17, "command 17"),
        (places.SNAPSHOT | 3, "the snapshot for base 3"),
        (places.RESTORATION | 3, "the restoration of base 3"),
        (places.READ | 0xAB, "a read (000000ab)"),
    ],
)
def test_places_can_be_read(place: int, described: str) -> None:
    assert places.describe(place) == described
