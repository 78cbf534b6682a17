"""The journal's format: nothing that was promised is lost silently, and a torn tail costs nothing else."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tara.protocol import journal
from tara.protocol import tuples as t

numbers = st.integers(0, 2**40)
requests = st.builds(t.Request, st.integers(-1, 5), numbers, numbers, numbers, st.binary(max_size=20))
accepted = st.builds(t.Accepted, numbers, requests)
some_numbers = st.lists(numbers, max_size=5)
entries = st.one_of(
    st.builds(t.Promised, numbers, some_numbers),
    st.builds(t.Started, numbers, numbers, numbers),
    st.builds(t.Voted, numbers, numbers, st.lists(requests, max_size=3)),
    st.builds(t.Resumed, numbers, numbers, some_numbers, st.booleans(), numbers, numbers, numbers),
    st.builds(t.Collected, numbers),
    st.builds(t.Installed, numbers, numbers, some_numbers, numbers, st.lists(requests, max_size=3)),
    st.builds(
        t.Restored,
        numbers,
        numbers,
        some_numbers,
        st.booleans(),
        numbers,
        st.lists(requests, max_size=3),
        st.lists(accepted, max_size=3),
        some_numbers,
    ),
)
#: What the nodes of a host persisted at once: pairs of a node's number and an entry.
groups = st.lists(st.tuples(st.integers(0, 100), entries), max_size=3)
journals = st.lists(groups, max_size=4)

Groups = list[list[journal.Written]]
ONE: list[journal.Written] = [(7, t.Promised(1, [1, 1])), (9, t.Started(1, 0, 0))]
TWO: Groups = [ONE, [(7, t.Collected(4))]]
SYNC = b"sync-w0r"
#: Of a record, before its payload.
HEADER_BYTES = 28


def head(segment: int = 1, first: int = 1, restored: bool = False) -> journal.Head:
    return journal.Head(
        cluster=7, era=1, container=0, journal="name", segment=segment, first=first, sync=SYNC.hex(), restored=restored
    )


def packed(whole: Groups, segment: int = 1, first: int = 1) -> bytes:
    """A segment: its head, and one record after the other."""
    records = [journal.pack(group, number, SYNC) for number, group in enumerate(whole, first)]
    return journal.pack_head(head(segment, first)) + b"".join(records)


def flat(whole: Groups) -> list[journal.Written]:
    return [entry for group in whole for entry in group]


def ends_of(whole: Groups) -> list[int]:
    """Where each record ends, the first number being the beginning."""
    return [len(packed(whole[:count])) for count in range(len(whole) + 1)]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def marker(
    sequence: int, segment: int = 1, first: int = 1, states: list[journal.Written] | None = None
) -> journal.Marker:
    return journal.Marker(
        cluster=7,
        era=1,
        container=0,
        journal="name",
        first=first,
        segment=segment,
        sequence=sequence,
        states=states or [],
        boot="boot",
    )


@given(journals)
def test_scanning_gives_back_what_was_packed(whole: Groups) -> None:
    data = packed(whole)
    found = journal.scan(data)
    assert (found.entries, found.end, found.torn, found.damage) == (flat(whole), len(data), False, [])
    assert found.head == head()
    assert [record.sequence for record in found.records] == list(range(1, len(whole) + 1))


@given(journals)
@settings(max_examples=40)
def test_cut_anywhere_it_holds_the_records_that_are_whole(whole: Groups) -> None:
    """What was persisted at once is there as a whole or not at all."""
    data, ends = packed(whole), ends_of(whole)
    for cut in range(journal.HEAD_BYTES, len(data) + 1):
        count = sum(end <= cut for end in ends) - 1
        found = journal.scan(data[:cut])
        assert (found.entries, found.end, found.torn) == (flat(whole[:count]), ends[count], cut > ends[count])


@given(st.lists(groups, min_size=1, max_size=3), st.data())
def test_any_flipped_bit_costs_one_record_and_is_noticed(whole: Groups, data: st.DataObject) -> None:
    """In the header as well as in the payload, also of the last record. Those behind it are found again."""
    index = data.draw(st.integers(0, len(whole) - 1))
    begin, end = ends_of(whole)[index : index + 2]
    bit = data.draw(st.integers(8 * begin, 8 * end - 1))
    found = journal.scan(flipped(packed(whole), bit))
    assert [record.sequence - 1 for record in found.records] == [n for n in range(len(whole)) if n != index]
    assert bool(found.damage) == (index < len(whole) - 1)
    assert found.torn == (index == len(whole) - 1)


def test_every_bit_of_a_head_is_under_its_checksum() -> None:
    data = packed(TWO)
    for bit in range(8 * journal.HEAD_BYTES):
        found = journal.scan(flipped(data, bit))
        assert (found.head, found.damage) == (None, ["the head is damaged"])
        assert found.entries == flat(TWO)


def test_a_record_inside_a_command_is_none() -> None:
    """A client may send any bytes, but it cannot know the sync word."""
    inner = journal.pack([(7, t.Collected(1 << 30))], 2, b"guessed!")
    body = t.Request(0, 1, 0, 5, inner)
    data = packed([[(7, t.Voted(1, 0, [body]))], [(7, t.Collected(4))]])
    found = journal.scan(flipped(data, 8 * journal.HEAD_BYTES))
    assert found.entries == [(7, t.Collected(4))]


def test_a_whole_record_that_is_no_entry_is_damage() -> None:
    """The checksum is right, so it was meant; but what was promised in it cannot be read."""
    strange = journal.pack([(7, t.Promised(1, [])), (7, t.Vote(0, 0, 1, 1, 1))], 1, SYNC)  # type: ignore[list-item]
    found = journal.scan(journal.pack_head(head()) + strange + journal.pack(ONE, 2, SYNC))
    assert found.entries == ONE
    assert len(found.damage) == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"version":1,"cluster":7,"era":1,"container":0}\n',
        journal.pack_head(
            journal.Head(version=6, cluster=7, era=1, container=0, journal="", segment=1, first=1, sync="")
        ),
    ],
)
def test_another_format_is_refused(line: bytes) -> None:
    with pytest.raises(journal.ForeignJournal, match=r"format version [16]; this Tara reads 5"):
        journal.scan(line)


def test_the_newest_whole_slot_of_the_end_marker_counts() -> None:
    slots = [journal.pack_marker(marker(sequence)) for sequence in (4, 5)]
    for data in (2 * slots[0] + slots[1], slots[1] + 2 * slots[0]):
        assert journal.read_marker(data) == (marker(5), [])
    for bit in random.Random(1).sample(range(8 * journal.MARKER_SLOT_BYTES), 200):
        found, problems = journal.read_marker(slots[0] + flipped(slots[1], bit) + slots[0])
        assert (found, len(problems)) == (marker(4), 1)
    assert journal.read_marker(b"")[0] is None
    assert journal.read_marker(bytes(3 * journal.MARKER_SLOT_BYTES))[0] is None


def test_an_end_marker_of_another_format_is_refused() -> None:
    older = msgspec.structs.replace(marker(4), version=3)
    with pytest.raises(journal.ForeignJournal, match="is of format version 3; this Tara reads 5"):
        journal.read_marker(journal.pack_marker(older) * 3)


def test_an_end_marker_is_exact_as_long_as_the_machine_runs_in_which_it_was_written() -> None:
    assert journal.is_exact(marker(4), [], "boot")
    assert not journal.is_exact(marker(4), [], "another boot")
    # The slot that cannot be read may have been the newer one.
    assert not journal.is_exact(marker(4), ["slot at byte 0: bad checksum"], "boot")
    # Where nobody knows, it may be any.
    assert not journal.is_exact(msgspec.structs.replace(marker(4), boot=""), [], "")


def test_an_end_marker_has_room_for_the_largest_container() -> None:
    """f = 10 and 64 partitions, with numbers as large as times in milliseconds."""
    large = (1 << 62) - 1
    states: list[journal.Written] = [
        (100, t.Resumed(large, large, [large] * 32, True, large, large, large)) for _ in range(64)
    ]
    data = journal.pack_marker(marker(large, large, large, states))
    assert journal.read_marker(3 * data) == (marker(large, large, large, states), [])
    # One slot of several has little in it.
    short = journal.pack_marker(marker(large, large, large, states[:1]), len(data))
    assert len(short) == len(data)
    assert journal.read_marker(data[:-1] + b"x" + 2 * short) == (
        marker(large, large, large, states[:1]),
        ["slot at byte 0: bad checksum"],
    )


STATE = t.Resumed(1, 1, [1], True, 0, 3, 0)
STATES: list[journal.Written] = [(7, STATE)]
VOTES: Groups = [[(7, t.Voted(1, slot, [t.NOOP]))] for slot in range(3)]
LOST = t.Lost()


def assembled(
    *segments: bytes, end: journal.Marker | None = None, names: tuple[int, ...] = (1, 2, 3), exact: bool = True
) -> journal.Assembled:
    scans = {name: journal.scan(data) for name, data in zip(names, segments, strict=False)}
    return journal.assemble(scans, end, exact)


def votes_of(found: journal.Assembled) -> list[int | t.ReplayedEntry]:
    """Slots of votes, and whatever else there is."""
    return [entry.first if isinstance(entry, t.Voted) else entry for entry in found.entries.get(7, [])]


def test_a_journal_that_is_intact_has_no_problems() -> None:
    found = assembled(packed(VOTES), end=marker(3, states=STATES))
    assert (votes_of(found), found.problems, found.broken, found.sequence) == ([0, 1, 2, STATE], [], False, 3)


@pytest.mark.parametrize("torn", [b"\1", bytes(9000), b"rest" + bytes(5000) + b"of a record", SYNC + bytes(100)])
def test_what_follows_the_place_that_the_marker_names_is_cut(torn: bytes) -> None:
    """Whatever it looks like, over however many pages: it was never promised to anybody."""
    for sequence in (1, 2, 3):
        found = assembled(packed(VOTES) + torn, end=marker(sequence, states=STATES))
        assert (found.problems, found.broken) == ([], False)
        assert [slot for slot in votes_of(found) if slot != STATE] == [0, 1, 2]


@given(st.integers(0, 2), st.integers(0, 200))
def test_a_tail_that_is_shorter_than_the_marker_says_is_damage(count: int, extra: int) -> None:
    data = packed(VOTES)[: min(ends_of(VOTES)[count] + extra, ends_of(VOTES)[count + 1] - 1)]
    found = assembled(data, end=marker(3, states=STATES))
    assert votes_of(found) == [*range(count), LOST, STATE]
    assert (found.broken, found.sequence) == (True, 3)


def test_a_journal_of_which_nothing_is_left_still_has_its_promises() -> None:
    found = assembled(end=marker(3, states=STATES))
    assert (votes_of(found), found.broken, found.sequence) == ([LOST, STATE], True, 3)


def test_a_damaged_end_without_a_marker_leaves_nothing_to_go_on_with() -> None:
    found = assembled(packed(VOTES)[:-3])
    assert votes_of(found) == [0, 1, LOST]


def test_without_a_marker_a_clean_journal_counts() -> None:
    found = assembled(packed(VOTES))
    assert (votes_of(found), found.broken) == ([0, 1, 2], False)
    assert found.problems == ["the end marker is missing or damaged"]


def segments() -> tuple[bytes, bytes, bytes]:
    """Three of two votes each; the second and the third begin with what was promised by then."""
    resumed: list[journal.Written] = [(7, STATE)]
    return (
        packed(VOTES[:2]),
        packed([resumed, *VOTES[:2]], segment=2, first=3),
        packed([resumed, *VOTES[:2]], segment=3, first=6),
    )


END = marker(8, segment=3, states=STATES)


def test_segments_follow_each_other() -> None:
    found = assembled(*segments(), end=END)
    assert votes_of(found) == [0, 1, STATE, 0, 1, STATE, 0, 1, STATE]
    assert (found.problems, found.order) == ([], [1, 2, 3])


def test_a_missing_segment_is_noticed() -> None:
    first, second, third = segments()
    found = assembled(first, third, end=END, names=(1, 3))
    assert votes_of(found) == [0, 1, LOST, STATE, 0, 1, STATE]
    found = assembled(second, third, end=END, names=(2, 3))
    assert votes_of(found) == [STATE, 0, 1, STATE, 0, 1, STATE]
    assert found.problems == ["segments 1 to 1 are missing"]
    found = assembled(first, second, end=END)
    assert votes_of(found) == [0, 1, STATE, 0, 1, LOST, STATE]


def test_segments_that_were_exchanged_are_put_in_order() -> None:
    first, second, third = segments()
    found = assembled(second, first, third, end=END)
    assert votes_of(found) == [0, 1, STATE, 0, 1, STATE, 0, 1, STATE]
    assert (found.order, found.broken) == ([2, 1, 3], True)


def test_an_older_copy_of_a_segment_is_noticed() -> None:
    first, second, third = segments()
    older = packed(VOTES[:1])
    assert votes_of(assembled(older, second, third, end=END)) == [0, LOST, STATE, 0, 1, STATE, 0, 1, STATE]
    assert votes_of(assembled(first, first, third, end=END)) == [0, 1, LOST, STATE, 0, 1, STATE]


def test_who_has_no_memory_after_a_gap_has_lost_what_was_before_it() -> None:
    """A committer that is not named at the head of a segment was recovering."""
    first: Groups = [[(7, t.Voted(1, 0, [])), (9, t.Voted(1, 0, []))]]
    found = assembled(packed(first), packed([[(7, STATE)]], segment=2, first=3), end=marker(3, 2, states=STATES))
    assert found.entries == {7: [t.Voted(1, 0, []), LOST, STATE, STATE]}


def test_a_segment_that_was_being_made_counts_for_nothing() -> None:
    for length in (0, 10, journal.HEAD_BYTES, journal.HEAD_BYTES + 9):
        begun = packed([[(7, STATE)]], segment=2, first=4)[:length]
        found = assembled(packed(VOTES), begun, end=marker(3, states=STATES))
        assert (votes_of(found), found.problems, found.void) == ([0, 1, 2, STATE], [], [2])


def test_what_stands_before_a_restored_segment_is_void() -> None:
    whole: list[journal.Written] = [(7, t.Restored(1, 1, [1], True, 0, [], [], []))]
    restored = journal.pack_head(head(2, 4, restored=True)) + journal.pack(whole, 4, SYNC)
    found = assembled(packed(VOTES)[:-1], restored, end=marker(4, 2, first=2, states=STATES))
    assert (found.entries, found.void, found.broken) == ({7: [whole[0][1], STATE]}, [1], False)


def test_a_restored_segment_without_a_record_is_none() -> None:
    begun = journal.pack_head(head(2, 4, restored=True))
    for length in (0, 9):
        found = assembled(packed(VOTES), begun + b"x" * length)
        assert (votes_of(found), found.void, found.broken) == ([0, 1, 2], [2], False)


def test_an_older_copy_of_the_marker_costs_nothing() -> None:
    first, second, third = segments()
    assert assembled(first, second, third, end=marker(4, 2, states=STATES)).broken is False
    found = assembled(third, end=marker(2, 1), names=(3,))
    assert "the end marker is older than the journal" in found.problems


def test_a_marker_that_may_be_older_says_nothing_about_the_end_of_what_is_missing() -> None:
    """Promises that came after it may be among that: a committer that went on with it would break them."""
    first, second, third = segments()
    headless = flipped(packed(VOTES)[: journal.HEAD_BYTES + 9], 8)
    for data, names, end, left in (
        ((), (), marker(3, states=STATES), [LOST]),
        ((packed(VOTES)[:-3],), (1,), marker(3, states=STATES), [0, 1, LOST]),
        ((headless,), (1,), marker(3, states=STATES), [LOST]),
        ((first, second), (1, 2), END, [0, 1, STATE, 0, 1, LOST]),
        ((first, second, third[:-3]), (1, 2, 3), END, [0, 1, STATE, 0, 1, STATE, 0, LOST]),
    ):
        found = assembled(*data, end=end, names=names, exact=False)
        assert (votes_of(found), found.broken, found.sequence) == (left, True, end.sequence)
        assert "the end marker may be older than what is missing" in found.problems


def test_what_stands_behind_a_marker_that_may_be_older_goes_on_from_it() -> None:
    """At its place it says what was promised; if records follow it, they say the rest."""
    first, _, third = segments()
    damaged = flipped(packed(VOTES), 8 * (ends_of(VOTES)[1] + 30))
    found = assembled(damaged, end=marker(2, states=STATES), exact=False)
    assert votes_of(found) == [0, LOST, STATE, 2]
    found = assembled(first, third, end=marker(4, 2, states=STATES), names=(1, 3), exact=False)
    assert votes_of(found) == [0, 1, LOST, STATE, LOST, STATE, 0, 1]


@pytest.mark.parametrize("torn", [b"", b"\1", SYNC + bytes(100)])
def test_a_power_cut_costs_nothing_that_was_durable(torn: bytes) -> None:
    for sequence in (0, 1, 3):
        found = assembled(packed(VOTES) + torn, end=marker(sequence, states=STATES), exact=False)
        assert (found.problems, found.broken) == ([], False)
        assert [slot for slot in votes_of(found) if slot != STATE] == [0, 1, 2]


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
    """What a restored committer installed is votes like any other."""
    segment = journal.Segment()
    for make, number, first, length in runs:
        segment.note([make(number, first, first + length)], 10)
    minimums = [data.draw(st.integers(0, 12)) for _ in range(3)]
    kept = [
        slot for _, number, first, length in runs for slot in range(first, first + length) if slot >= minimums[number]
    ]
    promised = [(number, t.Resumed(1, 1, [], True, at, at, at)) for number, at in enumerate(minimums)]
    if segment.obsolete(promised):
        assert kept == []
    else:
        # A run without slots has an end all the same; keeping a segment longer is never wrong.
        assert kept or any(length == 0 for *_, length in runs)


def test_promises_alone_do_not_keep_a_segment() -> None:
    """The next segment begins with them."""
    segment = journal.Segment()
    segment.note([(0, t.Promised(1, [])), (0, t.Started(1, 0, 0)), (1, t.Collected(4))], 30)
    assert segment.obsolete([])


def test_votes_of_a_node_that_has_promised_nothing_keep_a_segment() -> None:
    segment = journal.Segment()
    segment.note([(0, t.Voted(1, 0, [t.NOOP])), (1, t.Voted(1, 0, [t.NOOP]))], 30)
    above = t.Resumed(1, 1, [], True, 1, 1, 1)
    assert not segment.obsolete([(1, above)])
    assert segment.obsolete([(0, above), (1, above)])


def test_the_size_of_a_segment_adds_up() -> None:
    segment = journal.Segment()
    segment.note(ONE, 40)
    segment.note([], 2)
    assert segment.size == 42
