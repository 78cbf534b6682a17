"""A base is restored in slices, between which its site does other work."""

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import msgspec
import pytest

from tara.application import Context, KeyValueStore, StateMachine
from tara.apps.coordination.service import CoordinationService
from tara.protocol import places
from tara.protocol import tuples as t
from tara.protocol.errors import BaseUnreadable
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor
from tara.protocol.places import EXECUTING
from tests.protocol.driver import Bench, Driven, Step, base_of, batch, commits, loaded_nothing, open_session

INTERVAL = 8


class Sliced(KeyValueStore):
    """Gives way after each chunk, and fails when it is told to."""

    cell: ClassVar[list[int]] = [0, 0]
    seen: ClassVar[list[int]] = []
    fails: ClassVar[BaseException | None] = None

    def restore_slices(self, chunks: Iterable[bytes]) -> Iterator[None]:
        for _ in super().restore_slices(self._given(chunks)):
            pass
        for _ in range(3):
            self.seen.append(self.cell[EXECUTING])
            yield
        if self.fails is not None:
            raise self.fails

    def _given(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        yield from chunks


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    Sliced.cell[:] = [0, 0]
    Sliced.seen.clear()
    Sliced.fails = None
    yield


def bench() -> Bench:
    return Bench(window=64, checkpoint_interval=INTERVAL)


def slots(count: int) -> list[t.Request]:
    return [batch(0, [open_session()]), *(batch(number, []) for number in range(1, count))]


def a_base(made_by: Bench, number: int = 1) -> t.Loaded:
    other = made_by.make(Executor, Stage.EXECUTOR, 1, application=Sliced)
    other.feed(t.TakeBase(number))
    step = other.feed(*commits(slots(number * INTERVAL)))
    return base_of(other, step)


def starting(made_by: Bench, barred: frozenset[int] = frozenset()) -> Driven[Executor]:
    """An executor that comes back."""
    return made_by.make(
        Executor,
        Stage.EXECUTOR,
        genesis=False,
        life=2,
        application=Sliced,
        cell=Sliced.cell,
        barred=barred,
    )


def resume(driven: Driven[Executor], number: int = 1) -> Step:
    return driven.feed(t.Resume(number), resumes=False)


def to_the_end(driven: Driven[Executor], number: int = 1) -> Step:
    for _ in range(20):
        step = resume(driven, number)
        if not step.of(t.Restoring):
            return step
    raise AssertionError("it never ends")


def test_a_base_is_restored_slice_by_slice_and_the_store_is_asked_for_each_turn() -> None:
    made_by = bench()
    driven, base = starting(made_by), a_base(made_by)
    assert driven.feed(base, resumes=False).only(t.Restoring) == t.Restoring(1)
    for _ in range(3):
        assert resume(driven).only(t.Restoring) == t.Restoring(1)
        assert (driven.node.restored, driven.node.is_restoring) == (False, True)
    step = resume(driven)
    assert (step.of(t.Restoring), driven.node.restored, driven.node.next) == ([], True, INTERVAL)
    assert step.of(t.Arrived)
    assert resume(driven).emitted == [], "nothing is being restored"


def test_the_cell_has_the_restoration_in_every_slice_and_nothing_between_them() -> None:
    made_by = bench()
    driven, base = starting(made_by), a_base(made_by)
    driven.feed(base, resumes=False)
    while driven.node.is_restoring:
        assert Sliced.cell[EXECUTING] == 0
        resume(driven)
    assert Sliced.seen == [places.RESTORATION | 1] * 3
    assert Sliced.cell[EXECUTING] == 0


def test_what_is_not_restored_yet_answers_nothing_and_tells_nothing() -> None:
    made_by = bench()
    driven, base = starting(made_by), a_base(made_by)
    driven.feed(base, resumes=False)
    resume(driven)
    more = [batch(INTERVAL + number, []) for number in range(3)]
    said = driven.feed(
        *commits(more, first=INTERVAL),
        t.SubmitStaleReads([t.ReadRequest(1, b"question")], 1000),
        *made_by.stables(1, digest=b"", executors=[made_by.status(1, checkpoints=[t.CheckpointId(1, b"")])]),
        t.Saved(t.CheckpointId(1, b"")),
        t.Draw(1),
        resumes=False,
    )
    (reads,) = said.of(t.ReadResults)
    assert [result.status for result in reads.results] == [t.OVERLOADED]
    assert [type(tuple_) for tuple_, _ in said.emitted] == [t.ReadResults]
    assert driven.tick(60_000.0).emitted == []
    driven.feed(t.DrawDigest(begins=True))
    assert driven.node.drawn_digest is None


def failing(error: BaseException) -> tuple[Bench, Driven[Executor]]:
    made_by = bench()
    driven, base = starting(made_by), a_base(made_by)
    Sliced.fails = error
    driven.feed(base, resumes=False)
    return made_by, driven


def test_an_application_that_fails_in_the_middle_halts_the_executor() -> None:
    made_by, driven = failing(MemoryError())
    step = to_the_end(driven)
    (halted, _) = step.of(t.Halted)
    assert (halted.checkpoint, halted.reason) == (
        1,
        "the application raised MemoryError when it was to restore base 1",
    )
    assert (driven.node.restored, driven.node.is_restoring) == (False, False)
    # A newer one will do.
    Sliced.fails = None
    driven.feed(a_base(made_by, 2))
    assert (driven.node.halted, driven.node.next) == (None, 2 * INTERVAL)


def test_a_base_that_cannot_be_read_to_its_end_is_asked_for_again() -> None:
    made_by, driven = failing(BaseUnreadable("Input/output error"))
    step = to_the_end(driven)
    assert (step.of(t.Halted), driven.node.halted, driven.node.next) == ([], None, 0)
    assert driven.tick(10_000.0).of(t.Load)
    Sliced.fails = None
    driven.feed(a_base(made_by))
    assert driven.node.restored


def test_a_barred_restoration_does_not_even_begin() -> None:
    made_by = bench()
    driven = starting(made_by, barred=frozenset({places.RESTORATION | 1}))
    step = driven.feed(a_base(made_by))
    assert step.of(t.Halted)[0].checkpoint == 1
    assert Sliced.seen == []


def test_nothing_else_is_loaded_while_a_base_is_being_restored() -> None:
    made_by = bench()
    driven, base = starting(made_by), a_base(made_by)
    driven.feed(base, resumes=False)
    holder = made_by.status(1, checkpoints=[t.CheckpointId(3, b"")])
    assert driven.feed(*made_by.stables(3, digest=b"", executors=[holder])).of(t.Load) == []
    assert driven.tick(60_000.0).of(t.Load) == []
    to_the_end(driven)
    assert driven.feed(*made_by.stables(3, digest=b"", executors=[holder])).of(t.Load)


@pytest.mark.parametrize("application", [KeyValueStore, CoordinationService])
def test_memory_never_has_two_states(application: Callable[[], StateMachine]) -> None:
    """In a running life, the former application is gone before the first slice, and without a search for garbage."""
    made_by = bench()
    other = made_by.make(Executor, Stage.EXECUTOR, 1, application=application)
    other.feed(t.TakeBase(2))
    base = base_of(other, other.feed(*commits(slots(2 * INTERVAL))))
    driven = made_by.make(Executor, Stage.EXECUTOR, application=application)
    driven.feed(*commits(slots(3)))
    assert driven.node.next == 3
    former = weakref.ref(driven.node.application)
    gc.disable()
    try:
        step = driven.feed(base, resumes=False)
        assert former() is None
    finally:
        gc.enable()
    # Whoever reads it is told to let go of it.
    assert [(halted.reason, halted.counter) for halted in step.of(t.Halted)] == [("", 0)]
    while driven.node.is_restoring:
        resume(driven, 2)
    assert (driven.node.next, driven.node.digest()) == (2 * INTERVAL, other.node.digest())


def test_what_was_executed_before_a_restoration_is_remembered() -> None:
    made_by = bench()
    base = a_base(made_by, 2)
    driven = made_by.make(Executor, Stage.EXECUTOR, application=Sliced, cell=Sliced.cell)
    driven.feed(*commits(slots(3)))
    driven.feed(base, resumes=False)
    assert driven.node.executed == 1
    Sliced.fails = MemoryError()
    to_the_end(driven, 2)
    assert driven.node.halted is not None
    assert (driven.node.executed, driven.node.halted.counter) == (1, 1)


def test_a_digest_is_drawn_in_pieces_and_only_of_a_state_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAW_BYTES", "DIGEST_BYTES"):
        monkeypatch.setattr(f"tara.protocol.nodes.executor.{name}", 10)
    driven = bench().make(Executor, Stage.EXECUTOR, application=KeyValueStore)
    driven.feed(*commits([batch(0, [open_session(number) for number in range(300)])]))

    def draw(begins: bool) -> bytes | None:
        driven.feed(t.DrawDigest(begins))
        return driven.node.drawn_digest

    assert draw(begins=False) is None
    drawn = [draw(begins=True)]
    while drawn[-1] is None:
        drawn.append(draw(begins=False))
    assert len(drawn) > 4
    assert drawn[-1] == driven.node.digest() == draw(begins=False)
    driven.feed(*commits([batch(1, [open_session(1)])], first=1))
    assert driven.node.drawn_digest is None
    assert draw(begins=False) is None
    assert draw(begins=True) is None


def test_a_digest_of_a_small_state_comes_at_once() -> None:
    driven = bench().make(Executor, Stage.EXECUTOR, application=KeyValueStore)
    driven.feed(*commits([batch(0, [open_session(number) for number in range(300)])]))

    driven.feed(t.DrawDigest(begins=True))

    assert driven.node.drawn_digest == driven.node.digest()


def test_one_call_is_one_slice() -> None:
    class Simple(StateMachine):
        def __init__(self) -> None:
            self.restored: list[bytes] = []

        def apply(self, command: bytes, context: Context) -> bytes:
            return b""

        def query(self, question: bytes, context: Context) -> bytes:
            return b""

        def snapshot(self) -> Iterator[bytes]:
            yield b"state"

        def restore(self, chunks: Iterable[bytes]) -> None:
            self.restored = list(chunks)

    simple = Simple()
    assert list(simple.restore_slices([b"a", b"b"])) == []
    assert simple.restored == [b"a", b"b"]


def test_a_loaded_base_is_not_begun_twice() -> None:
    made_by = bench()
    driven, base = starting(made_by), a_base(made_by)
    driven.feed(base)
    assert driven.feed(loaded_nothing()).of(t.Restoring) == []
    assert driven.feed(msgspec.structs.replace(base, chunks=[])).of(t.Restoring) == []
