"""The observer: equal to the f+1-highest of each replica's maximum, and never falling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tara.protocol.observer import Observer

faults = st.integers(0, 3)
updates = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30)), max_size=30)


def vouched(values: list[int], threshold: int) -> int:
    """The greatest number that at least `threshold` of the values have reached, by trial."""
    return max(number for number in [0, *values] if sum(value >= number for value in values) >= threshold)


@given(faults, updates)
def test_current_is_what_f_plus_1_replicas_have_reached(f: int, history: list[tuple[int, int]]) -> None:
    replicas = 2 * f + 1
    observer = Observer(replicas, f + 1)
    best = [0] * replicas
    for who, value in history:
        replica = who % replicas
        observer.update(replica, value)
        best[replica] = max(best[replica], value)
        assert observer.current == vouched(best, f + 1)


@given(faults, updates)
def test_an_update_tells_whether_current_rose(f: int, history: list[tuple[int, int]]) -> None:
    replicas = 2 * f + 1
    observer = Observer(replicas, f + 1)
    for who, value in history:
        before = observer.current
        rose = observer.update(who % replicas, value)
        assert observer.current >= before
        assert rose == (observer.current > before)


@given(faults, updates, st.lists(st.integers(0, 30), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_what_was_raised_is_never_pulled_back(f: int, history: list[tuple[int, int]], raises: list[int], draw) -> None:
    """S4: in the paper, a threshold learned from a record falls back with the next update."""
    replicas = 2 * f + 1
    observer = Observer(replicas, f + 1)
    steps: list[tuple[int, int] | int] = [*history, *raises]
    draw.shuffle(steps)
    best = [0] * replicas
    floor = 0
    for step in steps:
        if isinstance(step, int):
            assert observer.raise_to(step) == (step > max(floor, vouched(best, f + 1)))
            floor = max(floor, step)
        else:
            replica, value = step[0] % replicas, step[1]
            observer.update(replica, value)
            best[replica] = max(best[replica], value)
        assert observer.current == max(floor, vouched(best, f + 1))


def test_one_replica_is_not_enough_and_its_repetition_neither() -> None:
    observer = Observer(3, 2)
    assert not observer.update(0, 5)
    assert not observer.update(0, 6)
    assert observer.current == 0


@pytest.mark.parametrize(("second", "current"), [(4, 4), (5, 5), (9, 5)])
def test_the_second_replica_makes_the_lower_value_count(second: int, current: int) -> None:
    observer = Observer(3, 2)
    observer.update(2, 5)
    assert observer.update(0, second)
    assert observer.current == current


def test_starts_where_it_is_told() -> None:
    observer = Observer(3, 2, current=7)
    observer.update(0, 3)
    observer.update(1, 3)
    assert observer.current == 7
