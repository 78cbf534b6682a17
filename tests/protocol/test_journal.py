"""The journal's format: nothing that was promised is lost silently, and a torn tail costs nothing else."""

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
#: A node's number, and what it persisted.
written = st.tuples(st.integers(0, 100), entries)
journals = st.lists(written, max_size=6)

THREE: list[journal.Written] = [(7, t.Promised(1, [1, 1])), (9, t.Started(1, 0)), (7, t.Collected(4))]


def ends_of(whole: list[journal.Written]) -> list[int]:
    """Where each record ends, the first number being the beginning."""
    return [len(journal.pack(whole[:count])) for count in range(len(whole) + 1)]


@given(journals)
def test_scanning_gives_back_what_was_packed(whole: list[journal.Written]) -> None:
    data = journal.pack(whole)
    assert journal.scan(data) == (whole, len(data))


@given(journals, journals)
def test_appending_is_packing_both(first: list[journal.Written], second: list[journal.Written]) -> None:
    assert journal.pack(first) + journal.pack(second) == journal.pack(first + second)


@given(journals)
@settings(max_examples=40)
def test_cut_anywhere_it_holds_the_records_that_are_whole(whole: list[journal.Written]) -> None:
    data, ends = journal.pack(whole), ends_of(whole)
    for cut in range(len(data) + 1):
        count = sum(end <= cut for end in ends) - 1
        assert journal.scan(data[:cut]) == (whole[:count], ends[count])


@given(st.lists(written, min_size=1, max_size=4), st.data())
def test_any_flipped_bit_in_a_payload_is_noticed(whole: list[journal.Written], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(whole) - 1))
    begin, end = ends_of(whole)[index : index + 2]
    position = data.draw(st.integers(end - len(t.encode(whole[index])), end - 1))
    bit = 8 * position + data.draw(st.integers(0, 7))
    with pytest.raises(journal.CorruptJournal, match=f"byte {begin}"):
        journal.scan(flipped(journal.pack(whole), bit))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def unnoticed_flips(first_bit: int, end_bit: int) -> list[int]:
    """The bits of the first record's header whose damage a scan takes for something else."""
    unnoticed = []
    for bit in range(first_bit, end_bit):
        try:
            journal.scan(flipped(journal.pack(THREE), bit))
        except journal.CorruptJournal:
            continue
        unnoticed.append(bit)
    return unnoticed


def test_a_flipped_bit_in_a_checksum_is_noticed() -> None:
    assert unnoticed_flips(32, 64) == []


def test_a_flipped_bit_in_a_length_is_noticed_when_more_records_follow() -> None:
    assert unnoticed_flips(0, 32) == []


@pytest.mark.parametrize("zeros", [8, 100])
def test_a_tail_of_zeros_is_cut_or_refused(zeros: int) -> None:
    """File systems that had extended the file, but not written it, leave zeros behind after a power cut."""
    data = journal.pack(THREE)
    try:
        found = journal.scan(data + bytes(zeros))
    except journal.CorruptJournal:
        return
    assert found == (THREE, len(data))


def test_a_whole_record_that_is_no_entry_is_refused() -> None:
    """The checksum is right, so it was meant; but what was promised in it cannot be read."""
    strange = journal.pack([(7, t.Vote(0, 0, 1))])  # type: ignore[list-item]
    with pytest.raises(journal.CorruptJournal, match="byte 0"):
        journal.scan(strange)


def test_an_empty_journal_is_empty() -> None:
    assert journal.scan(b"") == ([], 0)


# Segments


def votes(number: int, first: int, end: int) -> journal.Written:
    return number, t.Voted(1, first, [t.NOOP] * (end - first))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 3)), max_size=8), st.data())
def test_a_segment_is_obsolete_when_every_vote_is_below_its_nodes_window(
    runs: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    segment = journal.Segment()
    for number, first, length in runs:
        segment.note([votes(number, first, first + length)], 10)
    minimums = [data.draw(st.integers(0, 12)) for _ in range(3)]
    kept = [slot for number, first, length in runs for slot in range(first, first + length) if slot >= minimums[number]]
    if segment.obsolete(minimums.__getitem__):
        assert kept == []
    else:
        # A run without slots has an end all the same; keeping a segment longer is never wrong.
        assert kept or any(length == 0 for _, _, length in runs)


def test_promises_alone_do_not_keep_a_segment() -> None:
    """The next segment begins with them."""
    segment = journal.Segment()
    segment.note([(0, t.Promised(1, [])), (0, t.Started(1, 0)), (1, t.Collected(4))], 30)
    assert segment.obsolete(lambda number: 0)


def test_the_size_of_a_segment_adds_up() -> None:
    segment = journal.Segment()
    segment.note(THREE, 40)
    segment.note([], 2)
    assert segment.size == 42
