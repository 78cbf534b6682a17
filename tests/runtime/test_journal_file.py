"""The journal on a real disk."""

from pathlib import Path

import pytest

from tara.protocol import tuples as t
from tara.protocol.journal import FORMAT_VERSION, CorruptJournal, Written
from tara.runtime.journal import FileJournal, Identity, JournalError

IDENTITY = Identity(FORMAT_VERSION, 7, 1, 0)
REQUEST = t.Request(0, 1, 2, 3, b"body")


def voted(first: int, count: int = 1) -> Written:
    return (5, t.Voted(1, first, [REQUEST] * count))


def reopened(directory: Path, identity: Identity = IDENTITY) -> dict[int, list[t.JournalEntry]]:
    journal = FileJournal(directory, identity)
    try:
        return journal.replay()
    finally:
        journal.close()


def written(directory: Path, *groups: list[Written]) -> None:
    journal = FileJournal(directory, IDENTITY)
    journal.replay()
    for group in groups:
        journal.append(group)
    journal.close()


def test_what_was_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    written(tmp_path, [voted(0), (6, t.Collected(4))], [voted(1)])

    assert reopened(tmp_path) == {5: [voted(0)[1], voted(1)[1]], 6: [t.Collected(4)]}


def test_appending_goes_on_after_a_restart(tmp_path: Path) -> None:
    written(tmp_path, [voted(0)])
    written(tmp_path, [voted(1)])

    assert reopened(tmp_path)[5] == [voted(0)[1], voted(1)[1]]


def test_a_torn_tail_is_cut_and_overwritten(tmp_path: Path) -> None:
    written(tmp_path, [voted(0)], [voted(1)])
    segment = next(tmp_path.glob("*.journal"))
    segment.write_bytes(segment.read_bytes()[:-3])

    assert reopened(tmp_path)[5] == [voted(0)[1]]
    written(tmp_path, [voted(7)])
    assert reopened(tmp_path)[5] == [voted(0)[1], voted(7)[1]]


def test_a_flipped_bit_in_a_synced_record_is_not_a_torn_tail(tmp_path: Path) -> None:
    written(tmp_path, [voted(0)], [voted(1)])
    segment = next(tmp_path.glob("*.journal"))
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(bytes(data))

    with pytest.raises(CorruptJournal, match="bad checksum"):
        reopened(tmp_path)


def test_two_processes_cannot_use_one_journal(tmp_path: Path) -> None:
    first = FileJournal(tmp_path, IDENTITY)

    with pytest.raises(JournalError, match="another process"):
        FileJournal(tmp_path, IDENTITY)
    first.close()


@pytest.mark.parametrize(
    ("identity", "reason"),
    [(Identity(FORMAT_VERSION, 8, 1, 0), "belongs to"), (Identity(FORMAT_VERSION, 7, 2, 0), "belongs to")],
)
def test_a_journal_of_another_cluster_or_era_is_refused(tmp_path: Path, identity: Identity, reason: str) -> None:
    written(tmp_path, [voted(0)])

    with pytest.raises(JournalError, match=reason):
        reopened(tmp_path, identity)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, Identity(FORMAT_VERSION + 1, 7, 1, 0))
    journal.append([voted(0)])
    journal.close()

    with pytest.raises(JournalError, match="newer"):
        reopened(tmp_path)


def test_full_segments_are_followed_by_new_ones_and_dropped_when_obsolete(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, IDENTITY, segment_bytes=100)
    minimum = 0
    head: list[Written] = [(5, t.Resumed(1, 1, [], True, 0, 0, 0))]
    for first in range(0, 40, 4):
        journal.append([voted(first, 4)])
        journal.roll(lambda: head, lambda number: minimum)
    assert len(list(tmp_path.glob("*.journal"))) > 2

    minimum = 40
    journal.append([voted(40, 4)])
    journal.roll(lambda: head, lambda number: minimum)
    journal.close()

    assert len(list(tmp_path.glob("*.journal"))) <= 2
    assert reopened(tmp_path)[5][0] == head[0][1]
