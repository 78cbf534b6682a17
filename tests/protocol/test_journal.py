"""The journal's format: nothing that was promised is lost silently, and a torn tail costs nothing else."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tara.protocol import journal
from tara.protocol import tuples as t

numbers = st.integers(0, 2**40)
requests = st.builds(t.Request, st.integers(-1, 5), numbers, numbers, numbers, st.binary(max_size=20))
entries = st.one_of(
    st.builds(t.Promised, numbers, st.lists(numbers, max_size=5)),
    st.builds(t.Started, numbers, numbers),
    st.builds(t.Voted, numbers, numbers, st.lists(requests, max_size=3)),
    st.builds(t.Resumed, numbers, numbers, st.lists(numbers, max_size=5), st.booleans(), numbers, numbers, numbers),
    st.builds(t.Collected, numbers),
    st.builds(t.Installed, numbers, numbers, st.lists(numbers, max_size=5), numbers, st.lists(requests, max_size=3)),
)
#: What the nodes of a host persisted at once: pairs of a node's number and an entry.
groups = st.lists(st.tuples(st.integers(0, 100), entries), max_size=3)
journals = st.lists(groups, max_size=4)

ONE: list[journal.Written] = [(7, t.Promised(1, [1, 1])), (9, t.Started(1, 0))]
TWO: list[list[journal.Written]] = [ONE, [(7, t.Collected(4))]]
HEADER_BYTES = 12


def packed(whole: list[list[journal.Written]]) -> bytes:
    """A journal: one record after the other."""
    return b"".join(map(journal.pack, whole))


def flat(whole: list[list[journal.Written]]) -> list[journal.Written]:
    return [entry for group in whole for entry in group]


def ends_of(whole: list[list[journal.Written]]) -> list[int]:
    """Where each record ends, the first number being the beginning."""
    return [len(packed(whole[:count])) for count in range(len(whole) + 1)]


@given(journals)
def test_scanning_gives_back_what_was_packed(whole: list[list[journal.Written]]) -> None:
    data = packed(whole)
    assert journal.scan(data) == (flat(whole), len(data))


@given(groups)
def test_what_was_persisted_at_once_is_one_record(group: list[journal.Written]) -> None:
    """It is there as a whole or not at all: no cut leaves a part of it."""
    data = journal.pack(group)
    assert [journal.scan(data[:cut]) for cut in range(len(data))] == [([], 0)] * len(data)
    assert journal.scan(data) == (group, len(data))


@given(journals)
@settings(max_examples=40)
def test_cut_anywhere_it_holds_the_records_that_are_whole(whole: list[list[journal.Written]]) -> None:
    data, ends = packed(whole), ends_of(whole)
    for cut in range(len(data) + 1):
        count = sum(end <= cut for end in ends) - 1
        assert journal.scan(data[:cut]) == (flat(whole[:count]), ends[count])


@given(st.lists(groups, min_size=1, max_size=3), st.data())
def test_any_flipped_bit_of_a_whole_record_is_noticed(whole: list[list[journal.Written]], data: st.DataObject) -> None:
    """In the header as well as in the payload, also of the last record: a damaged length is no torn tail."""
    index = data.draw(st.integers(0, len(whole) - 1))
    begin, end = ends_of(whole)[index : index + 2]
    bit = data.draw(st.integers(8 * begin, 8 * end - 1))
    with pytest.raises(journal.CorruptJournal, match=f"byte {begin}:"):
        journal.scan(flipped(packed(whole), bit))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_in_a_header_is_noticed_before_the_length_is_believed() -> None:
    """A length that reads too large looks like a torn tail; too small, like another payload."""
    data = packed(TWO)
    for bit in range(8 * HEADER_BYTES):
        with pytest.raises(journal.CorruptJournal, match="byte 0: bad header checksum"):
            journal.scan(flipped(data, bit))


@pytest.mark.parametrize("zeros", [1, HEADER_BYTES - 1, HEADER_BYTES, 100])
def test_a_tail_of_zeros_is_cut(zeros: int) -> None:
    """File systems that had extended the file, but not written it, leave zeros behind after a power cut."""
    data = packed(TWO)
    assert journal.scan(data + bytes(zeros)) == (flat(TWO), len(data))


def test_zeros_with_something_behind_them_are_no_tail() -> None:
    """A hole where a record was: something was synced after it, so votes are lost."""
    data = packed(TWO)
    with pytest.raises(journal.CorruptJournal, match=f"byte {len(data)}:"):
        journal.scan(data + bytes(50) + journal.pack(ONE))


def test_a_whole_record_that_is_no_entry_is_refused() -> None:
    """The checksum is right, so it was meant; but what was promised in it cannot be read."""
    strange = journal.pack([(7, t.Promised(1, [])), (7, t.Vote(0, 0, 1, 1, 1))])  # type: ignore[list-item]
    with pytest.raises(journal.CorruptJournal, match="byte 0"):
        journal.scan(strange)


def test_an_empty_journal_is_empty() -> None:
    assert journal.scan(b"") == ([], 0)


# Segments


def votes(number: int, first: int, end: int) -> journal.Written:
    return number, t.Voted(1, first, [t.NOOP] * (end - first))


def installed(number: int, first: int, end: int) -> journal.Written:
    return number, t.Installed(2, 1, [], first, [t.NOOP] * (end - first))


@given(
    st.lists(
        st.tuples(st.sampled_from([votes, installed]), st.integers(0, 2), st.integers(0, 9), st.integers(0, 3)),
        max_size=8,
    ),
    st.data(),
)
def test_a_segment_is_obsolete_when_every_vote_is_below_its_nodes_window(
    runs: list[tuple[Callable[[int, int, int], journal.Written], int, int, int]], data: st.DataObject
) -> None:
    """A new memory that a committer installed is votes like any other."""
    segment = journal.Segment()
    for make, number, first, length in runs:
        segment.note([make(number, first, first + length)], 10)
    minimums = [data.draw(st.integers(0, 12)) for _ in range(3)]
    kept = [
        slot for _, number, first, length in runs for slot in range(first, first + length) if slot >= minimums[number]
    ]
    if segment.obsolete(minimums.__getitem__):
        assert kept == []
    else:
        # A run without slots has an end all the same; keeping a segment longer is never wrong.
        assert kept or any(length == 0 for *_, length in runs)


def test_promises_alone_do_not_keep_a_segment() -> None:
    """The next segment begins with them."""
    segment = journal.Segment()
    segment.note([(0, t.Promised(1, [])), (0, t.Started(1, 0)), (1, t.Collected(4))], 30)
    assert segment.obsolete(lambda number: 0)


def test_the_size_of_a_segment_adds_up() -> None:
    segment = journal.Segment()
    segment.note(ONE, 40)
    segment.note([], 2)
    assert segment.size == 42
