"""Long tuples in fragments, and what becomes of those that do not fit together."""

import msgspec
import pytest

from tara.host.fragments import Assembly, Fragment, fragment_of
from tara.host.outgoing import Outgoing
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple
from tara.protocol.graph import Graph

NAMES = Graph(1, 1).names


def fragments(size: int, number: int = 0) -> list[Fragment]:
    outgoing = Outgoing(NAMES, 64 << 20)
    proposal = t.Proposal(0, 0, 1, number, 0, [t.Request(0, 1, number, 0, bytes(size))])
    outgoing.add((3,), proposal, t.encode(proposal))
    found = []
    while pieces := outgoing.take():
        found += [fragment_of(piece) for piece in pieces]
    return found


def test_fragments_make_the_tuple_again_also_when_those_of_others_come_between() -> None:
    assembly = Assembly(1 << 21, 1 << 21)
    parts = fragments(300_000)
    assert len(parts) > 3
    for part in parts[:-1]:
        assert assembly.add(0, 1, part) is None
        assert assembly.add(2, 1, part) is None
    whole = assembly.add(0, 1, parts[-1])
    assert whole is not None
    assert t.decode_tuple(whole) == t.Proposal(0, 0, 1, 0, 0, [t.Request(0, 1, 0, 0, bytes(300_000))])
    assert assembly.add(2, 1, parts[-1]) == whole
    assert assembly.kept_bytes == 0


def test_a_tuple_that_was_given_up_makes_room_for_the_next_one() -> None:
    assembly = Assembly(1 << 21, 1 << 21)
    old, new = fragments(300_000), fragments(200_000, number=7)
    for part in old[:2]:
        assembly.add(0, 1, part)
    results = [assembly.add(0, 1, part) for part in new]
    assert t.decode_tuple(results[-1] or b"") == t.Proposal(0, 0, 1, 7, 0, [t.Request(0, 1, 7, 0, bytes(200_000))])


@pytest.mark.parametrize("change", [{"offset": 5}, {"total": 299_999}])
def test_fragments_that_do_not_fit_are_passed_over(change: dict[str, int]) -> None:
    assembly = Assembly(1 << 21, 1 << 21)
    first, second, *_ = fragments(300_000)
    assembly.add(0, 1, first)
    assert assembly.add(0, 1, msgspec.structs.replace(second, **change)) is None
    assert assembly.kept_bytes == 0


@pytest.mark.parametrize(
    "change",
    [{"total": 1 << 30}, {"total": 0}, {"lane": 99}, {"lane": -1}, {"offset": -1}, {"offset": 1 << 62}, {"data": b""}],
)
def test_fragments_that_can_belong_to_nothing_are_refused(change: dict[str, object]) -> None:
    assembly = Assembly(1 << 21, 1 << 21)
    first, second, *_ = fragments(300_000)
    assembly.add(0, 1, first)
    with pytest.raises(MalformedTuple, match="fragment"):
        assembly.add(0, 1, msgspec.structs.replace(second, **change))
    assert assembly.kept_bytes == len(first.data)


def test_the_fragments_of_another_life_do_not_belong_together() -> None:
    assembly = Assembly(1 << 21, 1 << 21)
    parts = fragments(100_000)
    assembly.add(0, 1, parts[0])
    assert [assembly.add(0, 2, part) for part in parts[1:]] == [None] * (len(parts) - 1)
    assert assembly.kept_bytes == 0


def test_of_what_is_too_much_that_goes_of_which_nothing_came_for_longest() -> None:
    parts = fragments(300_000)
    room = 6 * len(parts[0].data)
    assembly = Assembly(room, room)
    for sender in range(6):
        assembly.add(sender, 1, parts[0])
    assembly.add(0, 1, parts[1])
    assert assembly.kept_bytes == assembly.recount() == room
    # What came of 1 is not there any more.
    assert [assembly.add(1, 1, part) for part in parts[1:]] == [None] * (len(parts) - 1)
    assert assembly.add(5, 1, parts[1]) is None
    whole = [assembly.add(0, 1, part) for part in parts[2:]][-1]
    assert whole is not None
    assert t.decode_tuple(whole) == t.Proposal(0, 0, 1, 0, 0, [t.Request(0, 1, 0, 0, bytes(300_000))])
    assert [assembly.add(5, 1, part) for part in parts[2:]][-1] == whole
    assert assembly.kept_bytes == assembly.recount() <= room
