"""What enough replicas agree on, against counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tara.protocol.opinions import ProgressOpinions, Reach, highest


@given(st.lists(st.integers(0, 20), min_size=1, max_size=7), st.data())
def test_highest_is_the_greatest_value_that_enough_have_reached(values: list[int], data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, len(values)))
    reached = highest(values, threshold)
    assert reached in values
    assert sum(value >= reached for value in values) >= threshold
    assert sum(value > reached for value in values) < threshold


def test_highest_does_not_reorder_what_it_is_given() -> None:
    values = [3, 1, 2]
    highest(values, 2)
    assert values == [3, 1, 2]


EXECUTORS, SOURCES = 3, 2
reaches = st.tuples(st.integers(0, 3), st.integers(0, 9))
reports = st.tuples(st.integers(0, EXECUTORS - 1), st.lists(reaches, min_size=SOURCES, max_size=SOURCES))


@given(st.lists(reports, max_size=20), st.integers(1, EXECUTORS))
def test_progress_is_a_maximum_per_executor_and_source(history: list[tuple[int, list[Reach]]], threshold: int) -> None:
    opinions = ProgressOpinions(EXECUTORS, SOURCES)
    for executor, progress in history:
        opinions.update(executor, progress)
    for source in range(SOURCES):
        best = [
            max((progress[source] for who, progress in history if who == executor), default=(0, 0))
            for executor in range(EXECUTORS)
        ]
        assert opinions.highest(source, threshold) == sorted(best)[-threshold]


@given(st.lists(reports, min_size=1, max_size=20), st.integers(1, EXECUTORS))
def test_progress_never_falls(history: list[tuple[int, list[Reach]]], threshold: int) -> None:
    """L5: an executor that restarts and reports less has not taken anything back."""
    opinions = ProgressOpinions(EXECUTORS, SOURCES)
    before = [(0, 0)] * SOURCES
    for executor, progress in history:
        opinions.update(executor, progress)
        after = [opinions.highest(source, threshold) for source in range(SOURCES)]
        assert all(new >= old for new, old in zip(after, before, strict=True))
        before = after


@pytest.mark.parametrize(("other", "expected"), [((2, 0), (2, 0)), ((1, 9), (1, 9))])
def test_a_newer_epoch_counts_more_than_any_number(other: Reach, expected: Reach) -> None:
    opinions = ProgressOpinions(3, 1)
    opinions.update(0, [(2, 1)])
    opinions.update(1, [other])
    assert opinions.highest(0, 2) == expected
