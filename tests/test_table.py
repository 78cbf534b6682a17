"""The table: a dictionary, whose captures are of their moment, and whose bytes are those of its state."""

import copy
import gc
import itertools
import pickle
import random
import time
import tracemalloc
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tara import table as table_module
from tara.table import CHUNK_BYTES_MAX, CHUNK_ENTRIES_MAX, END, Key, Table

#: Few enough that they meet, of all kinds, and some with the same hash: that of "a" is that of b"a".
KEYS: st.SearchStrategy[Key] = st.one_of(
    st.integers(0, 60),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from(["", "a", "b", "ключ", "61626364"]),
    st.sampled_from([b"", b"a", b"b", b"61626364", b"\xff"]),
    st.integers(0, 60).map(str),
)
CHANGES = st.one_of(
    st.tuples(st.just("set"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("set"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("del"), KEYS),
    st.tuples(st.just("pop"), KEYS),
    st.tuples(st.just("setdefault"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("update"), st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=40)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("popitem")),
    st.tuples(st.just("del many"), st.integers(0, 40)),
)
DRAWS = st.one_of(
    st.tuples(st.just("capture")),
    st.tuples(st.just("draw"), st.integers(0, 3), st.integers(0, 20)),
    st.tuples(st.just("close"), st.integers(0, 3)),
    st.tuples(st.just("drop"), st.integers(0, 3)),
)


@contextmanager
def small_pages() -> Iterator[None]:
    """So that few entries split and merge pages."""
    with mock.patch.multiple(table_module, ENTRIES_PER_PAGE=4, ENTRIES_PER_PAGE_MIN=2):
        yield


def change(table: Any, step: tuple[Any, ...]) -> object:
    """Of a table or a dictionary."""
    match step:
        case ("set", key, value):
            table[key] = value
        case ("del", key):
            try:
                del table[key]
            except KeyError as error:
                return error.args
        case ("pop", key):
            return table.pop(key, None)
        case ("setdefault", key, value):
            return table.setdefault(key, value)
        case ("update", items):
            table.update(items)
        case ("clear",):
            table.clear()
        case ("popitem",):
            if table:
                table.pop(next(iter(Table(table))))
        case ("del many", count):
            for key in list(Table(table))[:count]:
                del table[key]
    return None


def pages_are_sound(table: Table[Any, Any]) -> bool:
    pages = table._each_page()
    return (
        len(table) == sum(map(len, pages))
        and 0 <= table._whole < len(table._pages) == 1 << (table_module.HASH_BITS - table._shift)
        and all(one is other for one, other in zip(table._pages[table._whole :: 2], pages[table._whole :], strict=True))
    )


@given(st.lists(CHANGES, max_size=60), KEYS)
def test_it_behaves_as_a_dictionary_does(steps: list[tuple[Any, ...]], asked: Key) -> None:
    with small_pages():
        table: Table[Key, int] = Table()
        model: dict[Key, int] = {}
        for step in steps:
            assert change(table, step) == change(model, step)
            assert pages_are_sound(table)
            assert len(table) == len(model)
            assert (asked in table) == (asked in model)
            assert table.get(asked) == model.get(asked)
        assert table == model
        assert sorted(table.unordered(), key=repr) == sorted(model.items(), key=repr)
        assert list(zip(table.keys(), table.values(), strict=True)) == list(table.items())
        assert bool(table) == bool(model)


def test_a_missing_key_is_a_key_error() -> None:
    table = Table({"a": 1})
    for look in (lambda: table["b"], lambda: table.pop("b"), lambda: table.__delitem__("b")):
        with pytest.raises(KeyError, match="b"):
            look()
    assert table.get("b", 7) == table.pop("b", 7) == 7
    assert table == {"a": 1}


@pytest.mark.parametrize("key", [None, 1.5, True, ("a",), [], bytearray(b"a"), type("Name", (str,), {})("a")])
def test_a_key_is_a_string_bytes_or_an_integer(key: Any) -> None:
    """And nothing that is equal to one: it would come back from a snapshot as something else."""
    table: Table[Any, int] = Table({1: 1})
    for use in (lambda: table.get(key), lambda: table.__setitem__(key, 1), lambda: key in table):
        with pytest.raises(TypeError, match="a key of a table is a string, bytes or an integer"):
            use()


def test_what_a_snapshot_could_not_hold_is_no_key() -> None:
    table: Table[Key, int] = Table()
    with pytest.raises(OverflowError, match="64 bits"):
        table[1 << 63] = 1
    with pytest.raises(UnicodeEncodeError):
        table["\ud800"] = 1
    assert len(table) == 0


def test_copies_have_pages_of_their_own() -> None:
    table = Table({number: number for number in range(1000)})
    for other in (copy.copy(table), copy.deepcopy(table), pickle.loads(pickle.dumps(table)), Table(table)):
        assert other == table
        other[3] = -3
        assert table[3] == 3
    assert repr(Table({"a": 1})) == "Table({'a': 1})"


def test_it_grows_and_shrinks_a_page_at_a_time() -> None:
    table: Table[int, int] = Table()
    for number in range(30_000):
        before = len(table._each_page())
        table[number] = number
        assert len(table._each_page()) - before in (0, 1)
    sizes = [len(page) for page in table._each_page()]
    assert len(sizes) == 30_000 / table_module.ENTRIES_PER_PAGE
    assert max(sizes) < 4 * table_module.ENTRIES_PER_PAGE
    for number in range(30_000):
        del table[number]
    assert len(table._each_page()) == 1


class Capture:
    """One that is drawn in parts, and what it has to give."""

    def __init__(self, table: Table[Key, int]) -> None:
        self.items: Generator[tuple[Key, int], None, None] = table.captured()
        # In the order of a table that had no other entries, ever.
        self.expected = list(Table(dict(table)).captured())
        self.drawn: list[tuple[Key, int]] = []

    def draw(self, count: int | None) -> None:
        self.drawn += itertools.islice(self.items, count)


@settings(max_examples=300)
@given(st.lists(CHANGES | DRAWS, max_size=80))
def test_captures_are_of_their_moment_whatever_happens_while_they_are_drawn(steps: list[tuple[Any, ...]]) -> None:
    with small_pages():
        table: Table[Key, int] = Table()
        model: dict[Key, int] = {}
        captures: list[Capture] = []
        for step in steps:
            match step:
                case ("capture",):
                    captures.append(Capture(table))
                case ("draw", index, count):
                    for capture in captures[index : index + 1]:
                        capture.draw(count)
                case ("close", index):
                    for capture in captures[index : index + 1]:
                        capture.items.close()
                        capture.expected = capture.drawn
                case ("drop", index):
                    del captures[index : index + 1]
                case _:
                    change(table, step)
                    change(model, step)
            assert pages_are_sound(table)
        for capture in captures:
            capture.draw(None)
            assert capture.drawn == capture.expected
        assert table == model


@pytest.mark.parametrize("drawn", [0, 5, None])
def test_a_capture_that_is_drawn_closed_or_dropped_copies_nothing_any_more(drawn: int | None) -> None:
    table = Table({number: number for number in range(1000)})
    page = table._pages[-1]
    capture = table.captured()
    list(itertools.islice(capture, drawn))
    if drawn:
        capture.close()
    elif drawn == 0:
        del capture
    table[next(iter(page))] = -1
    assert table._pages[-1] is page
    other = table.captured()
    table[next(iter(page))] = -2
    assert table._pages[-1] is not page
    assert -2 not in [value for _, value in other]


def test_a_table_may_change_while_it_is_iterated_over() -> None:
    table = Table({number: number for number in range(300)})
    for key, value in table.items():
        table[-key - 1] = value
        del table[key]
    assert table == {-number - 1: number for number in range(300)}


def test_a_page_is_copied_once_per_capture() -> None:
    table = Table({"a": 1, "b": 2})
    capture = table.captured()
    table["a"] = 3
    page = table._pages[0]
    table["b"] = 4
    assert table._pages[0] is page
    assert sorted(capture) == [("a", 1), ("b", 2)]


def test_a_capture_of_a_large_table_takes_next_to_no_time() -> None:
    table = Table(dict.fromkeys(range(100_000), b""))
    began = time.perf_counter()
    capture = table.captured()
    captured = time.perf_counter()
    assert len(list(capture)) == 100_000
    # In fact, a thousandth.
    assert captured - began < (time.perf_counter() - captured) / 20


def test_memory_while_everything_is_overwritten_and_drawn() -> None:
    entries, value_bytes, per_step = 20_000, 1000, 10
    draw = random.Random(1)
    gc.collect()
    tracemalloc.start()
    try:
        table = Table({f"key-{number:08}": draw.randbytes(value_bytes) for number in range(entries)})
        keys = list(table)
        draw.shuffle(keys)
        alone, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        capture = table.captured()
        for begin in range(0, entries, per_step):
            for key in keys[begin : begin + per_step]:
                table[key] = draw.randbytes(value_bytes)
            for _ in itertools.islice(capture, per_step):
                pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert next(capture, None) is None
    assert peak < 1.3 * alone


def restored(table: Table[Any, Any], value_type: Any = Any) -> Table[Any, Any]:
    other: Table[Any, Any] = Table({"to be": "replaced"})
    other.restore(table.snapshot(), value_type)
    return other


@given(st.lists(CHANGES, max_size=60), st.lists(CHANGES, max_size=60))
def test_a_replica_that_was_restored_and_one_that_lived_have_the_same_bytes(
    before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]
) -> None:
    with small_pages(), mock.patch.object(table_module, "CHUNK_ENTRIES_MAX", 3):
        lived: Table[Key, int] = Table()
        for step in before:
            change(lived, step)
        other = restored(lived)
        assert other == lived
        assert list(other) == list(lived)
        for step in after:
            assert change(other, step) == change(lived, step)
        assert list(other.snapshot()) == list(lived.snapshot())
        # Nor does it matter how large pages are.
        content = dict(lived)
    with mock.patch.object(table_module, "CHUNK_ENTRIES_MAX", 3):
        assert list(Table(content).snapshot()) == list(lived.snapshot())


def test_the_order_of_a_snapshot_is_no_accident() -> None:
    """It must not change from version to version: replicas of both may run at once. By CRC-32, then by kind and key."""
    entries: dict[Key, int] = {"a": 1, b"a": 2, 1: 3, "b": 4, "ключ": 5}
    table = Table(entries)
    assert list(table) == ["ключ", "b", 1, b"a", "a"]
    assert list(table.snapshot()) == [msgspec.msgpack.encode(dict(table)), END]


def test_chunks_are_short_unless_an_entry_is_long() -> None:
    short = Table(dict.fromkeys(range(2500), 0))
    assert [len(msgspec.msgpack.decode(chunk)) for chunk in short.snapshot()] == [1000, 1000, 500, 0]
    assert CHUNK_ENTRIES_MAX == 1000
    table: Table[str, Any] = Table()
    table.update((str(number), bytes(300_000)) for number in range(7))
    table["long"] = "x" * 3_000_000
    table["text"] = "x" * 1_000_000
    table["list"] = ["x" * 1000] * 1000
    lengths = [len(chunk) for chunk in table.snapshot()]
    assert [length for length in lengths if length > CHUNK_BYTES_MAX] == [3_000_000 + 11]
    assert len(lengths) <= 8
    assert restored(table) == table


class Account(msgspec.Struct, frozen=True):
    owner: str
    cents: int


def test_values_are_what_they_were_if_their_type_is_given() -> None:
    table = Table({"a": Account("Ada", 3), "b": Account("Bob", 5)})
    assert restored(table, Account) == table
    assert restored(table)["a"] == {"owner": "Ada", "cents": 3}
    with pytest.raises(msgspec.ValidationError, match="Expected `object`"):
        restored(Table({"a": 1}), Account)


def test_equal_values_have_equal_bytes() -> None:
    one, other = Table({"a": {"x": 1, "y": {1, 2}}}), Table({"a": {"y": {2, 1}, "x": 1}})
    assert list(one.snapshot()) == list(other.snapshot())


def test_several_tables_and_more_follow_each_other() -> None:
    one, empty, other = Table({"a": 1}), Table[str, int](), Table({2: b"b"})
    chunks = itertools.chain([b"head"], one.snapshot(), empty.snapshot(), other.snapshot(), [b"tail"])
    one["a"] = other[3] = 7  # type: ignore[assignment]
    assert next(chunks) == b"head"
    for table, expected in ((one, {"a": 1}), (empty, {}), (other, {2: b"b"})):
        table.restore(chunks)
        assert table == expected
    assert list(chunks) == [b"tail"]


def test_a_bad_snapshot_leaves_nothing() -> None:
    """To keep what was there until the end would take memory for two states."""
    table = Table({"a": 1})
    with pytest.raises(msgspec.DecodeError):
        table.restore([msgspec.msgpack.encode({"b": 2}), b"\xc1"])
    assert table == {}
