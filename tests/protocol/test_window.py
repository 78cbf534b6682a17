"""The window against the plainest model of it: a dictionary from numbers to values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tara.protocol.errors import NodeHalted
from tara.protocol.window import Window


class AgainstDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window: Window[int] = Window(3, 6)
        self.model: dict[int, int] = {}
        self.minimum = 3

    @property
    def end(self) -> int:
        return max(self.model, default=self.minimum - 1) + 1

    @property
    def free(self) -> int:
        return self.minimum + 6 - self.end

    @rule(values=st.lists(st.integers(), max_size=6))
    def extend(self, values: list[int]) -> None:
        fitting = values[: self.free]
        self.model.update(zip(range(self.end, self.end + len(fitting)), fitting, strict=True))
        self.window.extend(fitting)

    @precondition(lambda self: self.free > 0)
    @rule(value=st.integers())
    def put_next(self, value: int) -> None:
        index = self.end
        self.window.put(index, value)
        self.model[index] = value

    @precondition(lambda self: self.model)
    @rule(data=st.data(), value=st.integers())
    def overwrite(self, data: st.DataObject, value: int) -> None:
        index = data.draw(st.sampled_from(sorted(self.model)))
        self.window.put(index, value)
        self.model[index] = value

    @rule(distance=st.integers(-4, 9))
    def move(self, distance: int) -> None:
        target = self.minimum + distance
        self.window.move(target)
        if distance > 0:
            self.minimum = target
            self.model = {index: value for index, value in self.model.items() if index >= target}

    @rule()
    def clear(self) -> None:
        self.window.clear()
        self.model.clear()

    @invariant()
    def same_bounds(self) -> None:
        window = self.window
        assert (window.min, window.pos) == (self.minimum, self.end)
        assert window.room == self.free
        assert window.min <= window.pos <= window.min + 6

    @invariant()
    def same_values(self) -> None:
        assert {index: self.window[index] for index in range(self.window.min, self.window.pos)} == self.model
        expected = [value for _, value in sorted(self.model.items())]
        assert self.window.slice(self.window.min, self.window.pos) == expected


TestWindowAgainstDictionary = AgainstDictionary.TestCase


@given(st.lists(st.integers(), max_size=10), st.data())
def test_slice_is_the_values_of_its_range(values: list[int], data: st.DataObject) -> None:
    window: Window[int] = Window(5, 10)
    window.extend(values)
    first = data.draw(st.integers(5, 5 + len(values)))
    end = data.draw(st.integers(first, 5 + len(values)))
    assert window.slice(first, end) == [window[index] for index in range(first, end)]


@pytest.fixture
def full() -> Window[str]:
    """Holds the numbers 2 to 4 and nothing else."""
    window: Window[str] = Window(2, 3)
    window.extend(["b", "c", "d"])
    return window


def test_a_full_window_takes_no_more(full: Window[str]) -> None:
    with pytest.raises(NodeHalted):
        full.put(5, "e")
    with pytest.raises(NodeHalted):
        full.extend(["e"])
    assert full.slice(2, 5) == ["b", "c", "d"]


def test_a_number_cannot_be_filled_before_the_one_below(full: Window[str]) -> None:
    full.clear()
    with pytest.raises(NodeHalted):
        full.put(3, "c")


@pytest.mark.parametrize("index", [1, 5])
def test_what_is_not_remembered_cannot_be_read(full: Window[str], index: int) -> None:
    with pytest.raises(NodeHalted):
        full[index]


@pytest.mark.parametrize(("first", "end"), [(1, 3), (3, 6), (4, 3)])
def test_a_slice_must_be_remembered(full: Window[str], first: int, end: int) -> None:
    with pytest.raises(NodeHalted):
        full.slice(first, end)


def test_a_slice_is_a_copy(full: Window[str]) -> None:
    """Records and resent runs must not change behind the receiver's back (S11)."""
    part = full.slice(2, 5)
    full.put(2, "changed")
    full.move(4)
    assert part == ["b", "c", "d"]


def test_a_move_beyond_everything_leaves_an_empty_window_there(full: Window[str]) -> None:
    full.move(100)
    assert (full.min, full.pos, full.room) == (100, 100, 3)


def test_unlike_in_the_paper_the_newer_value_wins(full: Window[str]) -> None:
    """S1: the paper's `put` ignores a number that was filled, which keeps stale records alive."""
    full.put(3, "newer")
    assert full[3] == "newer"


@pytest.mark.parametrize(("minimum", "capacity"), [(-1, 3), (0, 0), (0, -2)])
def test_impossible_windows(minimum: int, capacity: int) -> None:
    with pytest.raises(NodeHalted):
        Window(minimum, capacity)
