"""The journal on a real disk."""

import errno
from pathlib import Path

import pytest

from tara.protocol import tuples as t
from tara.protocol.journal import FORMAT_VERSION, CorruptJournal, Written
from tara.storage.journal import DAMAGED_KEPT, FileJournal, Identity, JournalError, StaleJournal
from tests.runtime.small_disk import SmallDisk

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
    [(Identity(FORMAT_VERSION, 8, 1, 0), "belongs to"), (Identity(FORMAT_VERSION, 7, 0, 0), "belongs to")],
)
def test_a_journal_of_another_cluster_or_a_newer_era_is_refused(
    tmp_path: Path, identity: Identity, reason: str
) -> None:
    written(tmp_path, [voted(0)])

    with pytest.raises(JournalError, match=reason):
        reopened(tmp_path, identity)


def test_a_journal_of_a_former_era_means_nothing_any_more(tmp_path: Path) -> None:
    written(tmp_path, [voted(0)])

    with pytest.raises(StaleJournal, match="is of era 1; this is era 2"):
        reopened(tmp_path, Identity(FORMAT_VERSION, 7, 2, 0))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, Identity(FORMAT_VERSION + 1, 7, 1, 0))
    journal.append([voted(0)])
    journal.close()

    with pytest.raises(JournalError, match="has format version"):
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


def test_an_end_that_is_missing_in_the_middle_is_not_a_torn_tail(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, IDENTITY, segment_bytes=10)
    for first in range(3):
        journal.append([voted(first)])
        journal.roll(lambda: [(5, t.Resumed(1, 1, [], True, 0, 0, 0))], lambda number: 0)
    journal.close()
    first_segment = min(tmp_path.glob("*.journal"))
    first_segment.write_bytes(first_segment.read_bytes()[:-3])

    with pytest.raises(CorruptJournal, match="the end is missing"):
        reopened(tmp_path)


def test_a_segment_that_never_got_its_head_is_dropped(tmp_path: Path) -> None:
    written(tmp_path, [voted(0)])
    line = next(tmp_path.glob("*.journal")).read_bytes().partition(b"\n")[0]
    headless = tmp_path / "0000000002.journal"
    headless.write_bytes(line + b"\n\x05\x00")

    assert reopened(tmp_path)[5] == [voted(0)[1]]
    assert not headless.exists()


def test_a_journal_is_set_aside_as_a_whole(tmp_path: Path) -> None:
    directory = tmp_path / "journal-0"
    journal = FileJournal(directory, IDENTITY)
    for round_ in range(DAMAGED_KEPT + 2):
        journal.append([voted(round_)])
        aside = journal.set_aside()
        assert aside.name == f"journal-0.damaged-{round_ + 1}"
        assert reopened(aside)[5] == [voted(round_)[1]]
    with pytest.raises(JournalError, match="another process"):
        FileJournal(directory, IDENTITY)
    journal.append([voted(9)])
    journal.close()

    assert reopened(directory) == {5: [voted(9)[1]]}
    kept = sorted(int(path.name.rpartition("-")[2]) for path in tmp_path.glob("journal-0.damaged-*"))
    assert kept == [3, 4, 5, 6]


@pytest.fixture
def no_room_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of the process says EFBIG where a full disk says ENOSPC."""
    monkeypatch.setattr("tara.storage.journal.NO_ROOM", (errno.EFBIG,))


@pytest.mark.usefixtures("no_room_is_too_large")
def test_an_append_waits_for_room_and_leaves_no_torn_record(tmp_path: Path) -> None:
    troubles: list[OSError] = []
    journal = FileJournal(tmp_path, IDENTITY, on_trouble=troubles.append)
    journal.append([voted(0)])
    size = next(tmp_path.glob("*.journal")).stat().st_size
    with SmallDisk(size + 10) as disk:

        def trouble(error: OSError) -> None:
            troubles.append(error)
            assert next(tmp_path.glob("*.journal")).stat().st_size == size
            if len(troubles) == 2:
                disk.grow()

        journal._on_trouble = trouble
        journal.append([voted(1, 100)])
    journal.close()

    assert len(troubles) == 2
    assert reopened(tmp_path)[5] == [voted(0)[1], voted(1, 100)[1]]


@pytest.mark.usefixtures("no_room_is_too_large")
def test_an_append_gives_up_when_there_is_no_room_for_long(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, IDENTITY, patience_s=0.3)
    journal.append([voted(0)])
    with SmallDisk(next(tmp_path.glob("*.journal")).stat().st_size + 10):
        with pytest.raises(JournalError, match="cannot be written"):
            journal.append([voted(1, 100)])
        journal.close()

    assert reopened(tmp_path)[5] == [voted(0)[1]]


def test_a_failure_that_is_not_a_full_disk_is_final_at_once(tmp_path: Path) -> None:
    troubles: list[OSError] = []
    journal = FileJournal(tmp_path, IDENTITY, on_trouble=troubles.append)
    journal.append([voted(0)])
    with SmallDisk(10), pytest.raises(JournalError, match="cannot be written"):
        journal.append([voted(1)])
    journal.close()

    assert troubles == []
    assert reopened(tmp_path)[5] == [voted(0)[1]]


@pytest.mark.usefixtures("no_room_is_too_large")
def test_a_new_segment_that_has_no_room_is_not_begun(tmp_path: Path) -> None:
    troubles: list[OSError] = []
    journal = FileJournal(tmp_path, IDENTITY, segment_bytes=10, on_trouble=troubles.append)
    journal.append([voted(0)])
    with SmallDisk(20):
        journal.roll(lambda: [(5, t.Resumed(1, 1, [], True, 0, 0, 0))], lambda number: 0)
    assert len(troubles) == 1
    assert len(list(tmp_path.glob("*.journal"))) == 1
    journal.append([voted(1)])
    journal.close()

    assert reopened(tmp_path)[5] == [voted(0)[1], voted(1)[1]]


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(JournalError, match="cannot be used: Not a directory"):
        FileJournal(tmp_path / "file" / "journal-0", IDENTITY)
