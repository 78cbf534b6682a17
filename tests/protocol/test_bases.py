"""Bases: when they are taken, and how they are drawn."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest

from tara.application import Context, StateMachine
from tara.protocol import tuples as t
from tara.protocol.base_taker import BASES_KEPT
from tara.protocol.bases import DRAW_BYTES, PAUSE_MAX, BaseSchedule, Capture
from tara.protocol.graph import STORE, Stage
from tara.protocol.limits import Limits
from tara.protocol.nodes.executor import Executor
from tests.protocol.driver import Bench, Driven, Step, base_of, batch, commits, open_session, request

HOUR_MS = 3_600_000


def schedule(bytes_min: int = 1_000) -> BaseSchedule:
    return BaseSchedule(Limits(base_bytes_min=bytes_min))


def test_the_first_base_is_due_when_enough_was_replicated() -> None:
    """Where the bytes of all requests pass a power of two that is not less than the least length."""
    due = schedule(1_000)
    assert [due.is_due(1, bytes_, 0) for bytes_ in (0, 1_000, 1_023, 1_024, 5_000)] == [False] * 3 + [True] * 2


def test_the_next_base_is_due_when_as_much_was_replicated_as_it_is_long() -> None:
    due = schedule(1_000)
    due.note(length=5_000, bytes_=1_100, time_ms=0)
    assert [due.is_due(9, bytes_, 0) for bytes_ in (1_100, 5_000, 8_191, 8_192)] == [False, False, False, True]


@pytest.mark.parametrize("kept", [0.01, 0.5, 1.0])
def test_all_bases_together_are_about_twice_as_long_at_most_as_what_was_replicated(kept: float) -> None:
    due, written = schedule(1_000), 0
    for number in range(1, 3_000):
        bytes_ = 700 * number
        if due.is_due(number, bytes_, 0):
            length = int(kept * bytes_)
            due.note(length, bytes_, 0)
            written += length
        assert written <= 2.1 * bytes_
    assert written > 0


def test_a_base_is_due_when_time_has_passed() -> None:
    due = schedule()
    due.note(length=10, bytes_=500, time_ms=HOUR_MS)
    assert not due.is_due(2, 501, 2 * HOUR_MS - 1)
    assert due.is_due(2, 501, 2 * HOUR_MS)


def test_without_a_base_the_time_counts_from_the_first_checkpoint() -> None:
    due = schedule()
    times = (5 * HOUR_MS, 6 * HOUR_MS - 1, 6 * HOUR_MS)
    assert [due.is_due(number, 10 * number, time_ms) for number, time_ms in enumerate(times, 1)] == [False, False, True]


def test_a_replica_that_missed_a_base_takes_the_next_ones_with_the_others() -> None:
    """What it takes to catch up is its own; from the next multiple on they are together again."""
    others, late = schedule(), schedule()
    taken: list[set[int]] = [set(), set()]
    for number in range(1, 100):
        bytes_ = 100 * number
        for which, due in enumerate((others, late)):
            if due.is_due(number, bytes_, 0) and not (which == 1 and 10 <= number < 15):
                due.note(50, bytes_, 0)
                taken[which].add(number)
    assert taken[0] - taken[1] == {11}
    assert taken[1] - taken[0] == {15}


def test_one_that_failed_is_tried_again_and_ever_more_rarely() -> None:
    due, tried = schedule(), []
    number = 1
    while number < 500:
        if due.is_due(number, 2_000, 0):
            tried.append(number)
            due.failed(number)
        number += 1
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses[:6] == [2, 4, 8, 16, 32, PAUSE_MAX]
    assert set(pauses[6:]) == {PAUSE_MAX}
    due.note(10, 2_000, 0)
    assert not due.is_due(number, 2_000, 0)
    assert due.is_due(number, 4_000, 0)


def test_one_that_another_replica_needs_is_due_but_for_those_that_failed() -> None:
    due = schedule()
    assert due.is_due(1, 0, 0, wanted=True)
    due.failed(1)
    assert [due.is_due(number, 0, 0, wanted=True) for number in (1, 2, 3)] == [False, False, True]


def capture(*chunks: object) -> Capture:
    return Capture(1, 0, 0, iter(chunks))  # type: ignore[arg-type]


def test_a_base_is_drawn_in_pieces() -> None:
    chunk = bytes(DRAW_BYTES // 2)
    drawing = capture(chunk, chunk, chunk, b"rest")
    assert [len(drawing.draw()) for _ in range(4)] == [2, 2, 0, 0]


def test_nothing_is_no_piece() -> None:
    """An empty piece means that all was drawn."""
    drawing = capture(b"", b"", b"a", b"")
    assert [drawing.draw(), drawing.draw()] == [[b"a"], []]


def test_what_is_not_bytes_is_no_chunk() -> None:
    with pytest.raises(TypeError, match="not bytes"):
        capture("text").draw()


class Listed(StateMachine):
    """The state is a list that only grows, so an old part of it is there to be drawn later."""

    concurrent_snapshot = True
    #: What stands between the values.
    filling = bytes(DRAW_BYTES)

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def apply(self, command: bytes, context: Context) -> bytes:
        self.values.append(command)
        return b""

    def query(self, question: bytes, context: Context) -> bytes:
        return b""

    def snapshot(self) -> Iterator[bytes]:
        return self._chunks(len(self.values))

    def _chunks(self, count: int) -> Iterator[bytes]:
        for value in self.values[:count]:
            yield value
            yield self.filling

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.values = [chunk for chunk in chunks if len(chunk) < DRAW_BYTES]


class Short(Listed):
    filling = b""


INTERVAL = 8


class Replica:
    """An executor with a store that saves checkpoints at once."""

    def __init__(self, replica: int = 0, application: type[Listed] = Listed, **settings: int) -> None:
        bench = Bench(window=64, checkpoint_interval=INTERVAL, **settings)
        self.executor: Driven[Executor] = bench.make(Executor, Stage.EXECUTOR, replica, application=application)
        self.bench = bench
        self.feed([batch(0, [open_session()])])

    def feed(self, slots: list[t.Request]) -> Step:
        step = self.executor.feed(*commits(slots, first=self.executor.node.next))
        self.executor.feed(*(t.Saved(mark.checkpoint) for mark in step.of(t.Mark)))
        return step

    def commands(self, *payloads: bytes) -> Step:
        number = self.executor.node.next
        made = [t.Command(1, number - 1 + offset, number - 1, payload) for offset, payload in enumerate(payloads)]
        return self.feed([batch(number + offset, [command]) for offset, command in enumerate(made)])

    def interval(self, payload: bytes = b"") -> Step:
        """Up to the next checkpoint."""
        return self.commands(*[payload] * (INTERVAL - self.executor.node.next % INTERVAL))


def test_an_operator_can_have_a_base_taken() -> None:
    replica = Replica()
    replica.executor.feed(t.TakeBase(2))
    assert replica.interval().of(t.Base) == []
    step = replica.interval()
    assert step.only(t.Base).checkpoint == step.only(t.Mark).checkpoint
    assert step.receivers(t.Base) == [STORE]
    assert replica.interval().of(t.Base) == [], "once"


def test_a_base_is_taken_for_one_that_nothing_else_leads_on() -> None:
    """It has halted at a command, or could not restore an older one. One base is enough."""
    replica = Replica()
    stuck = replica.bench.status(1, base_wanted=2)
    replica.executor.feed(*replica.bench.stables(0, executors=[stuck]))
    assert replica.interval().of(t.Base) == []
    step = replica.interval()
    assert step.only(t.Base).checkpoint.number == 2
    replica.executor.feed(*replica.bench.stables(0, executors=[stuck]))
    base = base_of(replica.executor, step)
    replica.executor.feed(t.BaseSaved(2, base.digest, base.length))
    replica.executor.feed(*replica.bench.stables(0, executors=[stuck]))
    assert replica.interval().of(t.Base) == []


def test_the_checkpoint_is_marked_before_the_base_begins() -> None:
    replica = Replica()
    replica.executor.feed(t.TakeBase(1))
    kinds = [type(tuple_) for tuple_, receivers in replica.interval().emitted if receivers == STORE]
    assert kinds == [t.Executed, t.Mark, t.Base]


def test_a_base_has_the_state_at_its_checkpoint_whatever_is_executed_while_it_is_drawn() -> None:
    replica, other = Replica(), Replica(1)
    replica.executor.feed(t.TakeBase(1))
    step = replica.interval(b"before")
    replica.commands(b"behind", b"behind")
    base = base_of(replica.executor, step)
    other.executor.feed(base)
    application = other.executor.node.application
    assert isinstance(application, Listed)
    assert application.values == [b"before"] * (INTERVAL - 1)
    assert other.executor.node.next == INTERVAL


def test_what_is_drawn_of_a_base_that_was_given_up_is_nothing() -> None:
    replica = Replica()
    replica.executor.feed(t.TakeBase(1))
    replica.interval(b"x")
    assert replica.executor.feed(t.Draw(7)).emitted == []
    assert replica.executor.feed(t.Draw(1)).only(t.Drawn).is_state
    assert len(replica.executor.feed(t.Draw(1)).only(t.Drawn).chunks) == 2
    replica.executor.feed(t.GivenUp(1, "no room"))
    assert replica.executor.feed(t.Draw(1)).emitted == []
    assert replica.executor.node.bases.trouble == "no room"
    assert replica.executor.node.halted is None


def test_what_the_store_gives_up_late_does_not_concern_the_next_base() -> None:
    replica = Replica()
    replica.executor.feed(t.TakeBase(1))
    replica.interval(b"x")
    replica.executor.feed(t.TakeBase(2))
    replica.interval(b"x")
    replica.executor.feed(t.GivenUp(1, "no room"), t.BaseSaved(1, b"digest", 10))
    assert (replica.executor.node.bases.trouble, replica.executor.node.bases.known) == ("", [])
    assert replica.executor.feed(t.Draw(2)).only(t.Drawn).number == 2


def test_the_newest_bases_that_are_durable_are_announced() -> None:
    replica = Replica()
    for number in range(1, BASES_KEPT + 2):
        replica.executor.feed(t.TakeBase(number))
        step = replica.interval()
        assert step.only(t.ExecutorStatus if step.of(t.ExecutorStatus) else t.Base)
        replica.executor.feed(t.BaseSaved(number, b"state %d" % number, 100))
    (status,) = replica.executor.tick(100.0).of(t.ExecutorStatus)
    assert status.bases == [t.CheckpointId(number, b"state %d" % number) for number in (2, 3)]


def test_replicas_choose_the_same_checkpoints() -> None:
    """Only then can their states be compared. One of them takes long to write each base."""
    replicas = [Replica(replica, Short, base_bytes_min=2_048) for replica in range(3)]
    chosen: list[list[int]] = [[], [], []]
    bases: dict[int, set[bytes]] = {}
    unfinished: list[tuple[Replica, t.Loaded]] = []
    for number in range(1, 30):
        for replica, mine in zip(replicas, chosen, strict=True):
            step = replica.interval(b"%d" % number)
            if step.of(t.Base):
                mine.append(number)
                base = base_of(replica.executor, step)
                bases.setdefault(number, set()).add(base.digest)
                unfinished.append((replica, base))
        for replica, base in list(unfinished):
            assert base.base is not None
            if replica is not replicas[2] or base.base.number < number:
                replica.executor.feed(t.BaseSaved(base.base.number, base.digest, base.length))
                unfinished.remove((replica, base))
    assert chosen[0] == chosen[1] == chosen[2]
    assert len(chosen[0]) > 2
    assert [len(digests) for digests in bases.values()] == [1] * len(chosen[0])


def test_a_base_that_is_still_being_drawn_is_not_begun_anew() -> None:
    replica = Replica(base_bytes_min=1)
    assert len(replica.interval(b"x").of(t.Base)) == 1
    assert replica.interval(b"x").of(t.Base) == []


@pytest.mark.parametrize("idle", [t.NOOP, request(1, body=b"\x90", time=1)])
def test_a_base_is_taken_after_a_while_of_log_though_nobody_says_anything(idle: t.Request) -> None:
    """Partitions that skip and time that passes are written and executed again like everything else."""
    executor = Bench(window=64, checkpoint_interval=INTERVAL, base_bytes_min=4096).make(
        Executor, Stage.EXECUTOR, application=Short
    )
    taken = []
    for number in range(16):
        step = executor.feed(*commits([idle] * INTERVAL, first=number * INTERVAL))
        executor.feed(t.Saved(step.only(t.Mark).checkpoint))
        taken += [base.checkpoint.number for base in step.of(t.Base)]
    assert taken in ([11], [11, 12])


def test_a_base_is_due_by_what_is_answered_too() -> None:
    class Answering(Short):
        def apply(self, command: bytes, context: Context) -> bytes:
            return bytes(1_000)

    replica = Replica(application=Answering, base_bytes_min=16_384)
    assert [len(replica.interval(b"?").of(t.Base)) for _ in range(3)] == [0, 0, 1]
