"""A source's progress against a set of decided numbers."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tara.protocol.progress import SourceProgress

decisions = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=40)


class Model:
    """The decided numbers of the newest epoch; epoch 0 is what a fresh progress starts with."""

    def __init__(self) -> None:
        self.epoch = 0
        self.decided: set[int] = set()

    def note(self, epoch: int, number: int) -> None:
        if epoch > self.epoch:
            self.epoch, self.decided = epoch, set()
        if epoch == self.epoch:
            self.decided.add(number)

    @property
    def low(self) -> int:
        return next(number for number in range(len(self.decided) + 1) if number not in self.decided)


@given(decisions)
def test_low_is_the_first_number_that_is_not_decided(history: list[tuple[int, int]]) -> None:
    progress, model = SourceProgress(), Model()
    for epoch, number in history:
        progress.note(epoch, number)
        model.note(epoch, number)
        assert progress.reach == (model.epoch, model.low)
        assert progress.early == {early for early in model.decided if early > model.low}


@given(decisions)
def test_reach_never_falls(history: list[tuple[int, int]]) -> None:
    progress = SourceProgress()
    for epoch, number in history:
        before = progress.reach
        progress.note(epoch, number)
        assert progress.reach >= before


@given(st.permutations(range(9)), st.data())
def test_order_and_repetition_do_not_matter(numbers: list[int], data: st.DataObject) -> None:
    progress = SourceProgress()
    repeated = data.draw(st.lists(st.sampled_from(numbers), max_size=9))
    for number in [*numbers, *repeated]:
        progress.note(1, number)
    assert progress == SourceProgress(1, 9, set())


def test_an_older_request_that_is_missing_holds_the_progress_back() -> None:
    """Why a maximum would not do: the older request would pass for decided, and nobody would propose it again."""
    progress = SourceProgress()
    progress.note(1, 0)
    progress.note(1, 2)
    assert progress.reach == (1, 1)


def test_an_old_epoch_changes_nothing() -> None:
    progress = SourceProgress()
    progress.note(2, 0)
    progress.note(1, 0)
    progress.note(1, 1)
    assert progress == SourceProgress(2, 1, set())


def test_a_new_epoch_starts_at_0_and_forgets_the_early_ones() -> None:
    progress = SourceProgress()
    for number in (0, 1, 5):
        progress.note(1, number)
    progress.note(2, 1)
    assert progress == SourceProgress(2, 0, {1})


def test_two_sources_share_nothing() -> None:
    one, other = SourceProgress(), SourceProgress()
    one.note(1, 4)
    assert other == SourceProgress(0, 0, set())


@given(decisions)
def test_survives_encoding(history: list[tuple[int, int]]) -> None:
    progress = SourceProgress()
    for epoch, number in history:
        progress.note(epoch, number)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(progress), type=SourceProgress) == progress
