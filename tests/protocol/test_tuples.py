"""The wire format: every tuple comes back as it was, and nothing else comes in."""

import gc
import weakref
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple
from tests.protocol.driver import blank

WIRE: list[type[t.Tuple]] = list(get_args(t.WireTuple))
HOST_ONLY: list[type[t.Tuple]] = [
    t.Executed, t.Mark, t.Saved, t.Base, t.Draw, t.Drawn, t.GivenUp, t.BaseSaved, t.TakeBase, t.DrawDigest, t.Load,
    t.Loaded, t.More, t.Replay, t.Restoring, t.Resume, t.Arrived, t.Doubted, t.Settled, t.Unbarred, t.Refused,
    t.Waiting, t.Unkept, t.SubmitStaleReads,
]  # fmt: skip

pack = msgspec.msgpack.encode


def values_of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Everything that a type of the wire format allows."""
    match kind:
        case inspect.IntType(ge=int(low), lt=above, le=high):
            tops = [2**64 - 1, high, None if above is None else above - 1]
            return st.integers(low, min(top for top in tops if top is not None))
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.StrType():
            return st.text(max_size=8)
        case inspect.ListType(item_type=item):
            return st.lists(values_of(item), max_size=3)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(values_of, items))
        case inspect.StructType(cls=struct):
            return structs(struct)
    raise NotImplementedError(kind)


def fields_of(kind: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.name: field.type for field in info.fields}


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: values_of(type_) for name, type_ in fields_of(kind).items()})


wire_tuples = st.sampled_from(WIRE).flatmap(structs)


def kind_ids(kind: object) -> str:
    return getattr(kind, "__name__", str(kind))


ALL_FIELDS = [(kind, name) for kind in WIRE for name in fields_of(kind)]
NUMBERS = [(kind, name) for kind, name in ALL_FIELDS if isinstance(fields_of(kind)[name], inspect.IntType)]
LISTS = [(kind, name) for kind, name in ALL_FIELDS if isinstance(fields_of(kind)[name], inspect.ListType)]


@pytest.mark.parametrize("kind", WIRE, ids=kind_ids)
def test_every_tuple_comes_back_as_it_was(kind: type[t.Tuple]) -> None:
    @given(structs(kind))
    @settings(max_examples=30)
    def check(tuple_: t.Tuple) -> None:
        decoded = t.decode_tuple(t.encode(tuple_))
        assert type(decoded) is kind
        assert decoded == tuple_

    check()


def test_every_tuple_that_is_sent_between_nodes_is_on_the_wire() -> None:
    """Only what a node and its own host tell each other never travels."""
    subclasses = set(t.Tuple.__subclasses__())
    assert subclasses == {*WIRE, *HOST_ONLY}


def test_the_numbers_of_the_tuples_differ() -> None:
    tags = [kind.__struct_config__.tag for kind in [*WIRE, *HOST_ONLY]]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("kind", WIRE, ids=kind_ids)
def test_every_number_has_a_lower_bound(kind: type[t.Tuple]) -> None:
    """So that a node may trust the shape of what it processes."""

    def unbounded(type_: inspect.Type, path: str) -> list[str]:
        match type_:
            case inspect.IntType(ge=None):
                return [path]
            case inspect.ListType(item_type=item):
                return unbounded(item, path + "[]")
            case inspect.TupleType(item_types=items):
                return [found for item in items for found in unbounded(item, path + "()")]
            case inspect.StructType(cls=struct):
                return [
                    found for name, item in fields_of(struct).items() for found in unbounded(item, f"{path}.{name}")
                ]
        return []

    assert unbounded(inspect.type_info(kind), kind.__name__) == []


def test_what_leads_back_to_its_owner_is_collected() -> None:
    """A restore that is given up in the middle has a way back to all that its executor has."""

    class Owner:
        loaded: t.Loaded

        def chunks(self) -> Iterator[bytes]:
            while True:
                yield b""

    owner = Owner()
    owner.loaded = t.Loaded(None, b"", owner.chunks(), b"", 0, 0)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_tuples_are_immutable() -> None:
    vote = t.Vote(0, 0, 1, 1, 1)
    with pytest.raises(AttributeError):
        vote.view = 2  # type: ignore[misc]


@given(st.lists(structs(t.Command), max_size=4))
def test_the_body_of_a_request_comes_back_as_it_was(commands: list[t.Command]) -> None:
    assert t.decode_commands(t.encode(commands)) == commands


def refuse(data: bytes, *words: str) -> None:
    """Decoding fails, and the message begins with these words."""
    with pytest.raises(MalformedTuple) as caught:
        t.decode_tuple(data)
    message = str(caught.value)
    assert message.startswith("".join(words)), message


def parts_of(kind: type[t.Tuple]) -> list[Any]:
    """A valid tuple as the plain list that is on the wire: its number, then its fields."""
    return msgspec.msgpack.decode(t.encode(blank(kind)), type=list)


def with_field(kind: type[t.Tuple], name: str, value: object) -> bytes:
    parts = parts_of(kind)
    parts[1 + list(fields_of(kind)).index(name)] = value
    return pack(parts)


@pytest.mark.parametrize(("kind", "name"), ALL_FIELDS, ids=kind_ids)
@pytest.mark.parametrize("value", [None, {"text": 1}, 1.5, True, {}], ids=repr)
def test_a_field_of_a_wrong_type_is_named(kind: type[t.Tuple], name: str, value: object) -> None:
    refuse(with_field(kind, name, value), kind.__name__, ".", name, ": Expected")


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=kind_ids)
def test_a_negative_number_is_named(kind: type[t.Tuple], name: str) -> None:
    refuse(with_field(kind, name, -2), kind.__name__, ".", name, ": Expected `int` >=")


@pytest.mark.parametrize(("kind", "name"), LISTS, ids=kind_ids)
def test_a_wrong_element_is_named_with_its_place(kind: type[t.Tuple], name: str) -> None:
    refuse(with_field(kind, name, ["text"]), kind.__name__, ".", name, "[0]: Expected")


def test_a_wrong_number_deep_inside_is_named_with_its_place() -> None:
    good, bad = [0, 1, 0, 0, b""], [0, 1, -7, 0, b""]
    refuse(with_field(t.Commit, "requests", [good, bad]), "Commit.requests[1][2]: Expected `int` >= 0")


@pytest.mark.parametrize("kind", WIRE, ids=kind_ids)
def test_a_missing_field_is_refused(kind: type[t.Tuple]) -> None:
    parts = parts_of(kind)
    needed = parts[: len(parts) - len(kind.__struct_defaults__)]
    refuse(pack(needed[:-1]), kind.__name__, f": Expected `array` of at least length {len(needed)}")


@pytest.mark.parametrize("kind", WIRE, ids=kind_ids)
def test_a_truncated_tuple_is_refused_wherever_it_is_cut(kind: type[t.Tuple]) -> None:
    data = t.encode(blank(kind))
    for cut in range(len(data)):
        refuse(data[:cut], "not a tuple: ")


def test_bytes_after_a_tuple_are_refused() -> None:
    refuse(t.encode(t.Vote(0, 0, 1, 1, 1)) + b"\x00", "not a tuple: ")


@pytest.mark.parametrize("tag", [0, 99, -1, 2**64 - 1, "Vote", None])
def test_an_unknown_number_is_refused(tag: object) -> None:
    refuse(pack([tag, 0, 0, 1]), "not a tuple: ")


@pytest.mark.parametrize("kind", HOST_ONLY, ids=kind_ids)
def test_what_an_executor_tells_its_host_is_refused_on_the_wire(kind: type[t.Tuple]) -> None:
    refuse(pack([kind.__struct_config__.tag, 0, b"", []]), "not a tuple: ")


@pytest.mark.parametrize("data", [b"", b"\xc1", pack({"view": 1}), pack(7), pack("Vote"), pack([])], ids=repr)
def test_what_is_not_an_array_is_refused(data: bytes) -> None:
    refuse(data, "not a tuple: ")


UNHASHABLE_TAG = pack([[13], 0, 0, 1])
NOT_UNICODE = b"\x94\x0d\x00\x00\xa1\xff"
NOT_UNICODE_AT_ALL = b"\xa1\xff"
NESTED_DEEPLY = b"\x91" * 100_000


@pytest.mark.parametrize(
    "data",
    [UNHASHABLE_TAG, NOT_UNICODE, NOT_UNICODE_AT_ALL, NESTED_DEEPLY],
    ids=["unhashable tag", "field is not unicode", "not unicode", "nested deeply"],
)
def test_nothing_but_malformed_tuple_escapes(data: bytes) -> None:
    """A bad frame is counted, logged and dropped, never fatal."""
    refuse(data)


def damaged(tuple_: t.Tuple, position: int, value: int) -> bytes:
    packed = bytearray(t.encode(tuple_))
    packed[position % len(packed)] = value
    return bytes(packed)


garbage = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda tuple_, tail: t.encode(tuple_) + tail, wire_tuples, st.binary(max_size=4)),
    st.builds(damaged, wire_tuples, st.integers(0, 200), st.integers(0, 255)),
)


@given(garbage)
@example(UNHASHABLE_TAG)
@example(NOT_UNICODE)
def test_garbage_is_refused_or_happens_to_be_a_tuple(data: bytes) -> None:
    try:
        decoded = t.decode_tuple(data)
    except MalformedTuple:
        return
    assert t.decode_tuple(t.encode(decoded)) == decoded


@pytest.mark.parametrize(
    "body", [b"", b"\xff", pack([1]), pack([[1, 2]]), pack([[1, 2, 3, b"", t.EXPIRE]]), pack(None)]
)
def test_a_malformed_body_of_a_request_has_no_commands(body: bytes) -> None:
    assert t.decode_commands(body) == []


small_requests = st.builds(t.Request, st.just(0), st.just(1), st.just(0), st.just(0), st.binary(max_size=60))


def size(requests: list[t.Request]) -> int:
    return sum(len(request.body) + 48 for request in requests)


@given(st.lists(small_requests, max_size=20), st.integers(1, 6), st.integers(1, 400))
def test_a_run_is_cut_into_as_few_pieces_as_fit(run: list[t.Request], count_max: int, bytes_max: int) -> None:
    pieces = list(t.split(run, count_max, bytes_max))
    assert [request for piece in pieces for request in piece] == run
    for piece in pieces:
        assert 1 <= len(piece) <= count_max
        assert size(piece) <= bytes_max or len(piece) == 1
    for piece, following in pairwise(pieces):
        assert len(piece) == count_max or size([*piece, following[0]]) > bytes_max


@given(structs(t.Request))
def test_the_allowance_per_request_covers_its_encoding(request: t.Request) -> None:
    assert len(t.encode(request)) <= size([request])
