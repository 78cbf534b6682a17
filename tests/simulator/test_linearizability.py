"""The linearizability checker: textbook histories, a brute-force reference, and the size of its searches."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

from tara.simulator.checks import linearizability
from tara.simulator.checks.linearizability import (
    CheckBudgetExceeded,
    Effect,
    KeyValueModel,
    Model,
    ModelWithEffects,
    Operation,
    Verdict,
    check,
)

GET = ("get",)
DELETE = ("delete",)


class PlainKeyValueModel:
    """The same store, by a model that does not tell effects."""

    def initial(self, key: Hashable) -> Hashable:
        return None

    def step(self, state: Hashable, call: Any) -> tuple[Hashable, Any]:
        return KeyValueModel().step(state, call)


class CounterModel:
    """A call is a list, which is not hashable: [amount]. Its result is the sum so far."""

    def initial(self, key: Hashable) -> int:
        return 0

    def step(self, state: int, call: list[int]) -> tuple[int, int]:
        return state + call[0], state + call[0]


class QueueModel:
    def initial(self, key: Hashable) -> tuple[int, ...]:
        return ()

    def step(self, state: tuple[int, ...], call: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
        if call[0] == "enqueue":
            return (*state, call[1]), None
        return state[1:], state[0] if state else None


MODELS: list[Model[Hashable]] = [KeyValueModel(), PlainKeyValueModel()]
both_models = pytest.mark.parametrize("model", MODELS, ids=["effects", "plain"])


def put(value: object) -> tuple[object, ...]:
    return ("put", value)


def cas(expected: object, new: object) -> tuple[object, ...]:
    return ("cas", expected, new)


def operation(
    invoked: int,
    returned: int | None,
    call: Any,
    result: Any = None,
    key: Hashable = "k",
) -> Operation:
    return Operation("client", invoked, returned, key, call, result)


LINEARIZABLE = {
    "nothing": [],
    "read of the initial state": [operation(0, 1, GET)],
    "sequential": [
        operation(0, 1, put(1)),
        operation(2, 3, GET, 1),
        operation(4, 5, cas(1, 2), True),
        operation(6, 7, cas(1, 3), False),
        operation(8, 9, DELETE, True),
        operation(10, 11, DELETE, False),
        operation(12, 13, GET),
    ],
    "concurrent read of the old value": [
        operation(0, 9, put(1)),
        operation(1, 2, GET),
        operation(3, 4, GET, 1),
    ],
    "concurrent writes, read in either order": [
        operation(0, 9, put(1)),
        operation(0, 9, put(2)),
        operation(1, 2, GET, 2),
        operation(3, 4, GET, 1),
    ],
    "a write lost between two others": [
        operation(0, 1, put(1)),
        operation(2, 9, put(2)),
        operation(2, 3, put(3)),
        operation(4, 10, GET, 3),
        operation(5, 8, GET, 3),
    ],
    "a chain of swaps, returning in reverse": [
        operation(0, 30, cas(None, 1), True),
        operation(0, 20, cas(1, 2), True),
        operation(0, 10, cas(2, 3), True),
        operation(31, 32, GET, 3),
    ],
    "unknown write seen later": [
        operation(0, 1, put(1)),
        operation(2, None, put(2)),
        operation(3, 4, GET, 1),
        operation(100, 101, GET, 2),
    ],
    "unknown write never seen": [operation(0, None, put(2)), operation(3, 4, GET)],
    "unknown swap makes another possible": [
        operation(0, None, cas(None, 1)),
        operation(1, 2, cas(1, 2), True),
    ],
    "unknown delete makes a failed swap possible": [
        operation(0, 1, put(1)),
        operation(2, None, DELETE),
        operation(3, 4, cas(1, 2), False),
        operation(5, 6, GET),
    ],
    "result of an unknown outcome is ignored": [
        operation(0, None, GET, 77),
        operation(0, None, DELETE, "nonsense"),
    ],
    "invoked at the very time of a return": [operation(0, 5, put(1)), operation(5, 6, GET)],
    "all at one time": [operation(5, 5, GET, 1), operation(5, 5, put(1)), operation(5, 5, GET)],
    "group put aside has to grow": [
        operation(0, 9, put(1)),
        operation(0, 20, put(2)),
        operation(0, 11, cas(2, 3), True),
        operation(0, 12, cas(3, 4), True),
        operation(21, 22, GET, 1),
    ],
    "a write that changes nothing may not be left for later": [
        operation(0, 1, put(1)),
        operation(2, 10, put(1)),
        operation(3, 4, DELETE, True),
        operation(5, 6, cas(None, 2), True),
        operation(11, 12, GET, 2),
    ],
}

NOT_LINEARIZABLE = {
    "read from nowhere": [operation(0, 1, put(1)), operation(2, 3, GET, 2)],
    "stale read": [operation(0, 1, put(1)), operation(2, 3, put(2)), operation(4, 5, GET, 1)],
    "lost write": [operation(0, 1, put(1)), operation(2, 3, GET)],
    "lost update": [
        operation(0, 1, put(1)),
        operation(2, 5, cas(1, 2), True),
        operation(3, 6, cas(2, 3), True),
        operation(7, 8, GET, 2),
    ],
    "swap that succeeds twice": [operation(0, 9, cas(None, 1), True), operation(0, 9, cas(None, 2), True)],
    "swap that fails without a reason": [operation(0, 1, put(1)), operation(2, 3, cas(1, 2), False)],
    "delete that succeeds twice": [
        operation(0, 1, put(1)),
        operation(2, 9, DELETE, True),
        operation(2, 9, DELETE, True),
    ],
    "new value, then the old one again": [
        operation(0, 9, put(1)),
        operation(1, 2, GET, 1),
        operation(3, 4, GET),
    ],
    "two readers disagree about the order of writes": [
        operation(0, 1, put(1)),
        operation(0, 1, put(2)),
        operation(2, 3, GET, 1),
        operation(4, 5, GET, 2),
    ],
    "read before the write is invoked": [operation(0, 1, GET, 1), operation(2, 3, put(1))],
    "unknown write seen, then vanished": [
        operation(0, 1, put(1)),
        operation(2, None, put(2)),
        operation(3, 4, GET, 2),
        operation(5, 6, GET, 1),
    ],
    "unknown write seen before it was invoked": [operation(0, 1, GET, 1), operation(2, None, put(1))],
    "unknown write takes effect once only": [
        operation(0, None, put(1)),
        operation(1, 2, GET, 1),
        operation(3, 4, put(2)),
        operation(5, 6, GET, 2),
        operation(7, 8, GET, 1),
    ],
    "one tick after the return": [operation(0, 5, put(1)), operation(6, 7, GET)],
    "wrong result of a write": [operation(0, 1, put(1), "wrong")],
    "group put aside, but seen too late": [
        operation(0, 9, put(1)),
        operation(0, 10, put(2)),
        operation(11, 12, GET, 1),
        operation(13, 14, GET, 2),
    ],
    "read too late to be put aside": [
        operation(0, 9, put(1)),
        operation(0, 20, put(2)),
        operation(0, 12, GET, 2),
        operation(10, 15, GET, 2),
        operation(16, 17, GET, 1),
    ],
    "write too late to be put aside": [
        operation(0, 9, put(1)),
        operation(10, 20, put(2)),
        operation(0, 15, GET, 2),
        operation(16, 17, GET, 1),
    ],
}


@both_models
@pytest.mark.parametrize("name", LINEARIZABLE)
def test_linearizable(name: str, model: Model[Hashable]) -> None:
    verdict = check(LINEARIZABLE[name], model)
    assert (verdict.linearizable, verdict.key, verdict.operations) == (True, None, ())


@both_models
@pytest.mark.parametrize("name", NOT_LINEARIZABLE)
def test_not_linearizable(name: str, model: Model[Hashable]) -> None:
    verdict = check(NOT_LINEARIZABLE[name], model)
    assert (verdict.linearizable, verdict.key) == (False, "k")
    assert verdict.explored > 0


def test_other_models() -> None:
    counter = CounterModel()
    assert check([operation(0, 9, [1], 3), operation(0, 9, [2], 2)], counter).linearizable
    assert not check([operation(0, 9, [1], 1), operation(0, 9, [2], 2)], counter).linearizable
    unknown = [operation(0, None, [1]) for _ in range(40)]
    assert check([*unknown, operation(1, 2, [10], 27)], counter).linearizable

    queue = [
        operation(0, 5, ("enqueue", 1)),
        operation(0, 5, ("enqueue", 2)),
        operation(6, 7, ("dequeue",), 2),
    ]
    assert check([*queue, operation(8, 9, ("dequeue",), 1)], QueueModel()).linearizable
    assert not check([*queue, operation(8, 9, ("dequeue",), 2)], QueueModel()).linearizable


def test_equal_unknown_calls_are_interchangeable() -> None:
    # 2 ** 40 sets of increments are possible, but only 41 sums.
    class Increments(CounterModel):
        def step(self, state: int, call: Any) -> tuple[int, int]:
            return super().step(state, [len(call)])

    unknown = [operation(0, None, "+") for _ in range(40)]
    assert check([*unknown, operation(1, 2, "+", 41)], Increments()).linearizable
    verdict = check([*unknown, operation(1, 2, "+", 42)], Increments())
    assert not verdict.linearizable
    assert verdict.explored < 200


def test_keys_are_independent() -> None:
    good = [operation(0, 1, put(1), key="a"), operation(2, 3, GET, key="b")]
    assert check(good, KeyValueModel()).linearizable
    bad = [
        operation(4, 5, GET, 9, key="c"),
        operation(4, 5, GET, 9, key="b"),
        operation(6, 7, put(1), key="b"),
    ]
    verdict = check([*good, *bad], KeyValueModel())
    assert verdict.key == "b"
    assert verdict.operations == (good[1], bad[1])


def test_initial_state_may_depend_on_the_key() -> None:
    class Named(PlainKeyValueModel):
        def initial(self, key: Hashable) -> Hashable:
            return key

    history = [operation(0, 1, GET, "a", key="a"), operation(0, 1, GET, "b", key="b")]
    assert check(history, Named()).linearizable


def test_counterexample_ends_at_the_first_return_without_an_explanation() -> None:
    stale = operation(8, 9, GET, 1)
    pending = operation(7, 20, put(4))
    later = operation(10, 11, put(5))
    first, second = operation(0, 1, put(1)), operation(2, 3, put(2))
    verdict = check([later, pending, stale, second, first], KeyValueModel())
    assert verdict.operations == (first, second, pending, stale)

    impossible, reader = operation(0, 9, put(1), "wrong"), operation(1, 2, GET, 1)
    verdict = check([impossible, operation(3, 4, GET, 1), reader], KeyValueModel())
    assert verdict.operations == (impossible, reader)


def test_operation_that_returns_before_it_is_invoked() -> None:
    with pytest.raises(ValueError, match=r"Operation\(.*invoked=5, returned=4, .*'put', 'odd'"):
        check([operation(0, 1, put(1)), operation(5, 4, put("odd"))], KeyValueModel())


def test_call_that_the_store_does_not_know() -> None:
    with pytest.raises(ValueError, match="increment"):
        check([operation(0, 1, ("increment",))], KeyValueModel())


def test_models_tell_effects_or_not() -> None:
    assert isinstance(KeyValueModel(), ModelWithEffects)
    assert not isinstance(PlainKeyValueModel(), ModelWithEffects)
    effect = KeyValueModel().effect
    assert effect(operation(0, 1, DELETE, True)) is Effect.UPDATES
    assert effect(operation(0, 1, DELETE, False)) is Effect.READS
    assert effect(operation(0, None, DELETE, False)) is Effect.OVERWRITES
    assert effect(operation(0, None, cas(1, 2), False)) is Effect.UPDATES


def brute_force(operations: Sequence[Operation], until: float = math.inf) -> bool:
    """Try all orders of the operations, with and without each one that does not return, or only later."""

    def some_order(rest: Sequence[Operation], state: Hashable) -> bool:
        limit = min((returned for returned in map(returned_at, rest) if returned <= until), default=None)
        if limit is None:
            return True
        for index, operation in enumerate(rest):
            if operation.invoked <= limit:
                after, result = KeyValueModel().step(state, operation.call)
                possible = operation.returned is None or result == operation.result
                if possible and some_order([*rest[:index], *rest[index + 1 :]], after):
                    return True
        return False

    return some_order(operations, None)


def returned_at(operation: Operation) -> float:
    return math.inf if operation.returned is None else operation.returned


def shortest_counterexample(operations: Sequence[Operation]) -> set[Operation]:
    """By brute force: what was invoked up to the first return at which there is no linearization."""
    for time in sorted(map(returned_at, operations)):
        if not brute_force(operations, until=time):
            return {operation for operation in operations if operation.invoked <= time}
    raise AssertionError("it is linearizable")


def random_call(
    source: random.Random,
    weights: Sequence[int],
    state: Hashable,
    value: int,
    values: int,
) -> Any:
    kind = source.choices(("put", "get", "delete", "cas"), weights)[0]
    if kind == "put":
        return put(value)
    if kind == "cas":
        return cas(source.choice((state, source.randrange(1, values + 1))), value)
    return (kind,)


def random_history(
    source: random.Random,
    intervals: Iterable[tuple[int, int]],
    weights: Sequence[int] = (3, 5, 1, 2),
    values: int | None = None,
    unknown: float = 0.0,
    key: Hashable = "k",
) -> list[Operation]:
    """A linearizable history: each operation is executed at a random time within its interval."""
    points = sorted((source.uniform(invoked, returned), invoked, returned) for invoked, returned in intervals)
    state: Hashable = None
    history = []
    for serial, (_, invoked, returned) in enumerate(points):
        value = serial if values is None else source.randrange(1, values + 1)
        call = random_call(source, weights, state, value, values or 1)
        after, result = KeyValueModel().step(state, call)
        if source.random() >= unknown:
            state = after
            history.append(Operation(serial, invoked, returned, key, call, result))
        else:
            state = source.choice((state, after))
            history.append(Operation(serial, invoked, None, key, call, None))
    source.shuffle(history)
    return history


def random_intervals(source: random.Random, count: int) -> list[tuple[int, int]]:
    span, width = source.choice((4, 12, 30)), source.choice((4, 12, 30))
    starts = [source.randrange(span) for _ in range(count)]
    return [(start, start + source.randrange(width)) for start in starts]


def corrupted(source: random.Random, history: list[Operation], values: int) -> list[Operation]:
    """The history with one result replaced by another that is plausible."""
    history = list(history)
    index = source.randrange(len(history))
    victim = history[index]
    if victim.call == GET:
        history[index] = dataclasses.replace(victim, result=source.choice((None, *range(1, values + 1))))
    elif victim.call[0] != "put":
        history[index] = dataclasses.replace(victim, result=not victim.result)
    return history


def small_histories(seed: int, count: int, largest: int) -> Iterable[list[Operation]]:
    source = random.Random(seed)
    for _ in range(count):
        values = source.choice((1, 2, 3, 5))
        weights = source.choice(((1, 1, 0, 0), (2, 2, 1, 1), (2, 1, 0, 2), (1, 1, 1, 4), (3, 2, 2, 3)))
        intervals = random_intervals(source, source.randrange(1, largest + 1))
        history = random_history(source, intervals, weights, values, source.choice((0.0, 0.15, 0.4)))
        for _ in range(source.randrange(4)):
            history = corrupted(source, history, values)
        yield history


def test_agrees_with_brute_force() -> None:
    verdicts = {True: 0, False: 0}
    for history in small_histories(seed=1, count=6_000, largest=8):
        expected = brute_force(history)
        verdicts[expected] += 1
        for model in MODELS:
            assert check(history, model).linearizable == expected, history
    assert min(verdicts.values()) > 1_000, verdicts


def test_counterexamples_agree_with_brute_force() -> None:
    found = 0
    for history in small_histories(seed=2, count=3_000, largest=7):
        for model in MODELS:
            verdict = check(history, model)
            if not verdict.linearizable:
                found += 1
                assert set(verdict.operations) == shortest_counterexample(history), history
                assert not check(verdict.operations, model).linearizable
    assert found > 1_000


def test_both_strategies_agree_with_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broad search would not get a chance in small histories, so here it replaces the deep one."""
    monkeypatch.setattr(linearizability._Search, "_go_deep", linearizability._Search._go_broad)
    verdicts = set()
    for history in small_histories(seed=3, count=2_000, largest=8):
        expected = brute_force(history)
        verdicts.add(expected)
        assert check(history, KeyValueModel()).linearizable == expected, history
    assert verdicts == {True, False}


def test_models_with_and_without_effects_agree_on_larger_histories() -> None:
    verdicts = {True: 0, False: 0}
    for history in small_histories(seed=4, count=1_500, largest=14):
        verdict, plain = (check(history, model) for model in MODELS)
        verdicts[verdict.linearizable] += 1
        assert (verdict.linearizable, verdict.operations) == (plain.linearizable, plain.operations), history
    assert min(verdicts.values()) > 200, verdicts


def busy_intervals(source: random.Random, count: int, clients: int) -> Iterable[tuple[int, int]]:
    """Each client invokes its next operation soon after the last one has returned."""
    free = [source.randrange(50) for _ in range(clients)]
    for index in range(count):
        client = index % clients
        returned = free[client] + 1 + source.randrange(50)
        yield free[client], returned
        free[client] = returned + 1 + source.randrange(3)


def by_invocation(history: Iterable[Operation]) -> list[Operation]:
    return sorted(history, key=lambda operation: operation.invoked)


def with_late_error(history: list[Operation]) -> tuple[list[Operation], Operation]:
    """The history with a read in its last part that returns a value that was never written."""
    history = by_invocation(history)
    candidates = range(len(history) * 9 // 10, len(history))
    index = next(i for i in candidates if history[i].call == GET and history[i].returned is not None)
    history[index] = dataclasses.replace(history[index], result="never written")
    return history, history[index]


@pytest.mark.parametrize("values", [None, 5], ids=["distinct", "repeated"])
@pytest.mark.parametrize("weights", [(1, 1, 0, 0), (3, 5, 1, 2)], ids=["registers", "all calls"])
def test_large_histories_take_little_search(weights: Sequence[int], values: int | None) -> None:
    source = random.Random(5)
    keys, clients, count = 8, 64, 16_000
    history = [
        operation
        for key in range(keys)
        for operation in random_history(
            source,
            busy_intervals(source, count // keys, clients // keys),
            weights,
            values,
            unknown=30 * keys / count,
            key=key,
        )
    ]
    verdict = check(by_invocation(history), KeyValueModel())
    assert verdict.linearizable
    assert count / 4 < verdict.explored < 2 * count


@pytest.mark.parametrize("values", [None, 5], ids=["distinct", "repeated"])
def test_many_clients_on_one_register(values: int | None) -> None:
    source = random.Random(6)
    history = random_history(source, busy_intervals(source, 4_000, 64), (1, 1, 0, 0), values, unknown=0.01)
    assert check(history, KeyValueModel()).explored < 6_000

    history, error = with_late_error(history)
    verdict = check(history, KeyValueModel())
    assert not verdict.linearizable
    assert error in verdict.operations
    assert verdict.operations[-1].invoked <= (error.returned or 0)
    assert verdict.explored < 60_000


@pytest.mark.parametrize(
    ("weights", "values"), [((1, 1, 0, 0), 5), ((3, 5, 1, 2), None)], ids=["registers", "all calls"]
)
def test_unknown_outcomes_do_not_explode(weights: Sequence[int], values: int | None) -> None:
    source = random.Random(7)
    history = random_history(source, busy_intervals(source, 2_000, 8), weights, values, unknown=0.02)
    assert sum(operation.returned is None for operation in history) > 30
    history, error = with_late_error(history)
    verdict = check(history, KeyValueModel())
    assert not verdict.linearizable
    assert error in verdict.operations
    assert verdict.explored < 100_000


def test_concurrent_writes_of_unknown_outcome() -> None:
    unknown = [operation(0, None, put(value)) for value in range(60)]
    reads = [operation(10 * value + 1, 10 * value + 2, GET, value) for value in reversed(range(60))]
    verdict = check([*unknown, *reads], KeyValueModel())
    assert verdict.linearizable
    assert verdict.explored < 200
    again = operation(1_000, 1_001, GET, 30)
    verdict = check([*unknown, *reads, operation(900, 901, GET, 59), again], KeyValueModel())
    assert not verdict.linearizable
    assert again in verdict.operations
    assert verdict.explored < 1_000


def test_long_operation_does_not_slow_down_the_others() -> None:
    source = random.Random(8)
    history = random_history(source, busy_intervals(source, 5_000, 4))
    end = max(operation.returned or 0 for operation in history)
    verdict = check(
        [*history, operation(0, end, put("last")), operation(end + 1, end + 2, GET, "last")], KeyValueModel()
    )
    assert verdict.linearizable
    assert verdict.explored < 10_000


def test_same_input_same_verdict() -> None:
    source = random.Random(9)
    history, _ = with_late_error(random_history(source, busy_intervals(source, 500, 8), values=5))
    verdicts = [check(history, KeyValueModel()) for _ in range(2)]
    assert verdicts[0] == verdicts[1]
    assert isinstance(verdicts[0], Verdict)


@both_models
def test_no_verdict_without_budget(model: Model[Hashable]) -> None:
    history = [operation(0, 100, cas(source, target), True) for source in range(9) for target in range(9)]
    history += [operation(0, 100, put(value)) for value in range(9)]
    with pytest.raises(CheckBudgetExceeded, match="1000 configurations"):
        check([*history, operation(0, 99, GET, "never written")], model, budget=1_000)


def test_a_long_history_has_a_large_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "BUDGET", 0)
    history = [operation(2 * number, 2 * number + 1, put(number), key=number % 3) for number in range(3_000)]

    assert check(history, KeyValueModel()).linearizable


def test_budget_is_shared_by_the_keys() -> None:
    history = [operation(time, time + 1, put(time), key=key) for key in range(10) for time in range(0, 20, 2)]
    explored = check(history, KeyValueModel()).explored
    assert check(history, KeyValueModel(), budget=explored).linearizable
    with pytest.raises(CheckBudgetExceeded):
        check(history, KeyValueModel(), budget=explored - 1)
