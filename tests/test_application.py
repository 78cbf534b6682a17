"""The built-in applications: what they answer, refuse, and keep in a snapshot."""

from collections.abc import Callable
from itertools import islice
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tara import table
from tara.application import (
    AppendRegister,
    ApplicationError,
    CompareAndSet,
    Context,
    Counter,
    Delete,
    Get,
    KeyValueStore,
    List,
    Put,
    StateMachine,
)

encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode


def context() -> Context:
    return Context([])


def do(application: StateMachine, command: object) -> Any:
    return decode(application.apply(encode(command), context()))


def ask(application: StateMachine, question: object) -> Any:
    return decode(application.query(encode(question), context()))


def copy_of(application: StateMachine) -> StateMachine:
    """Another replica, restored from a snapshot."""
    other = type(application)()
    other.restore(application.snapshot())
    return other


keys = st.sampled_from(["a", "ab", "b", "ключ", ""])
values = st.binary(max_size=3)
commands = st.one_of(
    st.builds(Put, keys, values),
    st.builds(Get, keys),
    st.builds(Delete, keys),
    st.builds(CompareAndSet, keys, st.none() | values, values),
    st.builds(List, keys, st.integers(-1, 3)),
)


def expected(model: dict[str, bytes], command: object) -> object:
    """What the command does to a plain dictionary."""
    match command:
        case Put(key, value):
            model[key] = value
            return None
        case Get(key):
            return model.get(key)
        case Delete(key):
            return model.pop(key, None) is not None
        case CompareAndSet(key, old, new):
            if model.get(key) == old:
                model[key] = new
                return True
            return False
        case List(prefix, limit):
            return sorted(key for key in model if key.startswith(prefix))[: max(limit, 0)]
    raise AssertionError(command)


@given(st.lists(commands, max_size=30))
def test_a_key_value_store_is_a_dictionary(history: list[Any]) -> None:
    store = KeyValueStore()
    model: dict[str, bytes] = {}
    for command in history:
        assert do(store, command) == expected(model, command)


def test_an_empty_value_is_a_value() -> None:
    store = KeyValueStore()
    do(store, Put("k", b""))
    assert ask(store, Get("k")) == b""
    assert do(store, CompareAndSet("k", None, b"x")) is False
    assert do(store, Delete("k")) is True


def test_questions_about_keys() -> None:
    store = KeyValueStore()
    for key in ("b", "ab", "aa"):
        do(store, Put(key, key.encode()))
    assert ask(store, Get("b")) == b"b"
    assert ask(store, Get("c")) is None
    assert ask(store, List("a")) == ["aa", "ab"]
    assert ask(store, List("", 1)) == ["aa"]


@pytest.mark.parametrize("command", [Put("k", b"new"), Delete("k"), CompareAndSet("k", b"v", b"new")])
def test_a_query_refuses_commands_and_changes_nothing(command: Any) -> None:
    store = KeyValueStore()
    do(store, Put("k", b"v"))
    with pytest.raises(ApplicationError, match=f"{type(command).__name__} is a command, not a question"):
        ask(store, command)
    assert ask(store, Get("k")) == b"v"


MALFORMED = [
    b"",
    b"\xff",
    encode([99, "k"]),
    encode([1, "k"]),
    encode([1, 5, b"v"]),
    encode({"key": "k"}),
    encode([2, "k"]) + b"\x00",
    encode([5, "k", "many"]),
]


@pytest.mark.parametrize("command", MALFORMED, ids=repr)
@pytest.mark.parametrize("method", ["apply", "query"])
def test_a_malformed_key_value_command_is_refused(method: str, command: bytes) -> None:
    store = KeyValueStore()
    do(store, Put("k", b"v"))
    with pytest.raises(ApplicationError, match=r"^not a key-value command: "):
        getattr(store, method)(command, context())
    assert ask(store, List("")) == ["k"]


@pytest.mark.parametrize("method", ["apply", "query"])
def test_a_key_that_is_not_unicode_is_refused(method: str) -> None:
    with pytest.raises(ApplicationError, match=r"^not a key-value command: "):
        getattr(KeyValueStore(), method)(b"\x92\x02\xa1\xff", context())


@given(st.lists(st.integers(-(2**40), 2**40), max_size=10))
def test_a_counter_counts(steps: list[int]) -> None:
    counter = Counter()
    assert [do(counter, step) for step in steps] == [sum(steps[: count + 1]) for count in range(len(steps))]
    assert ask(counter, None) == sum(steps)


@pytest.mark.parametrize("command", [b"", encode("one"), encode(1.5), encode(None), encode(1) + b"\x00"], ids=repr)
def test_a_malformed_step_is_refused(command: bytes) -> None:
    counter = Counter()
    do(counter, 5)
    with pytest.raises(ApplicationError, match=r"^not an integer: "):
        counter.apply(command, context())
    assert ask(counter, None) == 5


@pytest.mark.parametrize("step", [2**64 - 1, -(2**63)])
def test_a_counter_beyond_64_bits_can_still_be_snapshotted(step: int) -> None:
    """A snapshot that raises stops every executor at its next checkpoint: a poison command (L18)."""
    counter = Counter()
    for _ in range(2):
        try:
            do(counter, step)
        except ApplicationError:
            break
    copy = copy_of(counter)
    assert ask(copy, None) == ask(counter, None)


@given(st.lists(st.binary(max_size=4), max_size=10))
def test_an_append_register_shows_the_order_of_execution(history: list[bytes]) -> None:
    register = AppendRegister()
    lengths = [decode(register.apply(value, context())) for value in history]
    assert lengths == list(range(1, len(history) + 1))
    assert ask(register, None) == history


def test_a_question_appends_nothing() -> None:
    register = AppendRegister()
    register.query(b"x", context())
    assert ask(register, None) == []


def filled_store() -> KeyValueStore:
    store = KeyValueStore()
    for number in range(2_500):
        do(store, Put(f"key-{number * 7919 % 2_500:04}", b"%d" % number))
    return store


def filled_counter() -> Counter:
    counter = Counter()
    do(counter, -12)
    return counter


def filled_register() -> AppendRegister:
    register = AppendRegister()
    for value in (b"b", b"a", b""):
        register.apply(value, context())
    return register


FILLED: list[Callable[[], StateMachine]] = [filled_store, filled_counter, filled_register]
QUESTIONS: dict[type[StateMachine], object] = {KeyValueStore: List("", 10_000), Counter: None, AppendRegister: None}


@pytest.mark.parametrize("make", FILLED)
def test_a_restored_replica_is_the_same(make: Callable[[], StateMachine]) -> None:
    original = make()
    copy = copy_of(original)
    question = QUESTIONS[type(original)]
    assert ask(copy, question) == ask(original, question)
    assert list(copy.snapshot()) == list(original.snapshot())


@pytest.mark.parametrize("make", FILLED)
def test_restoring_replaces_what_was_there(make: Callable[[], StateMachine]) -> None:
    filled = make()
    empty = type(filled)()
    filled.restore(empty.snapshot())
    assert list(filled.snapshot()) == list(empty.snapshot())
    question = QUESTIONS[type(filled)]
    assert ask(filled, question) == ask(empty, question)


def test_a_restored_store_has_the_values_too() -> None:
    copy = copy_of(filled_store())
    assert ask(copy, Get("key-0000")) == b"0"
    assert ask(copy, Get("key-2419")) == b"501"


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), values, max_size=12), st.data())
def test_snapshots_are_canonical_whatever_the_order_of_insertion(
    content: dict[str, bytes], data: st.DataObject
) -> None:
    """Replicas compare digests: the same state must be the same bytes, also after deletions and a restore."""
    one, other = KeyValueStore(), KeyValueStore()
    for key in content:
        do(one, Put(key, content[key]))
    for key in data.draw(st.permutations(sorted(content))):
        do(other, Put(key, b"old"))
        do(other, Put("gone" + key, b"x"))
        do(other, Put(key, content[key]))
    for key in content:
        if "gone" + key not in content:
            do(other, Delete("gone" + key))
        else:
            do(other, Put("gone" + key, content["gone" + key]))
    assert list(one.snapshot()) == list(other.snapshot()) == list(copy_of(other).snapshot())


def test_a_large_snapshot_comes_in_chunks() -> None:
    assert [len(decode(chunk)) for chunk in filled_store().snapshot()] == [1000, 1000, 500, 0]


@pytest.mark.parametrize("application", [Counter, AppendRegister])
def test_a_snapshot_that_is_made_while_it_is_drawn_does_not_claim_otherwise(application: type[StateMachine]) -> None:
    """These two read their state only when the first chunk is drawn, so the chunks come before the next command."""
    assert application.concurrent_snapshot is False


def test_a_concurrent_snapshot_does_not_see_later_commands() -> None:
    application = filled_store()
    assert application.concurrent_snapshot
    before = list(application.snapshot())
    snapshot = application.snapshot()
    first = next(snapshot)
    for command in (Put("key-0001", b"changed"), Put("zzz", b"new"), Delete("key-2000"), Delete("key-0000")):
        do(application, command)
    assert [first, *snapshot] == before
    assert list(application.snapshot()) != before


@given(st.lists(commands, max_size=40), st.lists(commands, max_size=20))
def test_a_snapshot_that_is_drawn_in_slices_between_commands_gives_the_state_of_the_call(
    before: list[object], after: list[object]
) -> None:
    """And a replica that was restored from it goes on like the one that lived."""
    with mock.patch.object(table, "CHUNK_ENTRIES_MAX", 1), mock.patch.object(table, "ENTRIES_PER_PAGE", 2):
        store = KeyValueStore()
        for command in before:
            do(store, command)
        now, snapshot = list(store.snapshot()), store.snapshot()
        twin = copy_of(store)
        drawn: list[bytes] = []
        for index, command in enumerate(after):
            drawn += islice(snapshot, index % 3)
            assert do(store, command) == do(twin, command)
        assert [*drawn, *snapshot] == now
        assert list(twin.snapshot()) == list(store.snapshot())


def test_a_snapshot_without_an_end_mark_is_restored_too() -> None:
    """Earlier versions wrote none."""
    store = KeyValueStore()
    store.restore([encode({"a": b"1", "b": b"2"})])
    assert ask(store, List("")) == ["a", "b"]
