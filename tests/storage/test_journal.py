"""The journal: on a real disk, on one that loses what was not synced, and with committers that write it."""

import errno
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tara.application import KeyValueStore
from tara.host.bare_site import BareSite
from tara.host.effects import Effect, Halt, Inputs, Sync
from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import Graph, Stage
from tara.protocol.journal import HEAD_BYTES, Written
from tara.protocol.limits import Limits
from tara.protocol.node import Boot
from tara.protocol.nodes.committer import Committer
from tara.simulator.disk import Crash, VirtualDisk
from tara.storage import files
from tara.storage import journal as journal_module
from tara.storage.disk import LocalDisk
from tara.storage.journal import MARKER_FILE, FileJournal, Identity, JournalError, NoRoom, StaleJournal, journal_name
from tests.live.small_disk import SmallDisk

IDENTITY = Identity(7, 1, 0)
REQUEST = t.Request(0, 1, 2, 3, b"body")
#: What tests that have no committer let it have promised.
PROMISED = t.Resumed(1, 1, [], True, 0, 0, 0)


def collected(minimum: int) -> t.Resumed:
    """The same, when a stable checkpoint covers the slots below."""
    return t.Resumed(1, 1, [], True, minimum, minimum, minimum)


def voted(first: int, count: int = 1) -> Written:
    return (5, t.Voted(1, first, [REQUEST] * count))


def reopened(directory: Path, identity: Identity = IDENTITY) -> dict[int, list[t.ReplayedEntry]]:
    """What the journal has; without what the end marker says, which comes last."""
    journal = FileJournal(directory, identity)
    try:
        return {
            number: entries[:-1] if entries[-1] == PROMISED else entries for number, entries in journal.replay().items()
        }
    finally:
        journal.close()


def opened(directory: Path, segment_bytes: int = journal_module.SEGMENT_BYTES) -> FileJournal:
    journal = FileJournal(directory, IDENTITY, segment_bytes)
    journal.promised = lambda: [(5, PROMISED)]
    journal.replay()
    return journal


def written(directory: Path, *groups: list[Written]) -> None:
    journal = opened(directory)
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
    written(tmp_path, [voted(0)])
    segment = next(tmp_path.glob("*.journal"))
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[HEAD_BYTES:-3])

    assert reopened(tmp_path)[5] == [voted(0)[1]]
    written(tmp_path, [voted(7)])
    assert reopened(tmp_path)[5] == [voted(0)[1], voted(7)[1]]


def test_two_processes_cannot_use_one_journal(tmp_path: Path) -> None:
    first = FileJournal(tmp_path, IDENTITY)

    with pytest.raises(JournalError, match="another process"):
        FileJournal(tmp_path, IDENTITY)
    first.close()


@pytest.mark.parametrize("identity", [Identity(8, 1, 0), Identity(7, 0, 0), Identity(7, 1, 1)])
def test_a_journal_of_another_cluster_or_a_newer_era_is_refused(tmp_path: Path, identity: Identity) -> None:
    written(tmp_path, [voted(0)])

    with pytest.raises(JournalError, match="belongs to"):
        reopened(tmp_path, identity)


def test_a_journal_of_a_former_era_means_nothing_any_more(tmp_path: Path) -> None:
    written(tmp_path, [voted(0)])

    with pytest.raises(StaleJournal, match="is of era 1; this is era 2"):
        reopened(tmp_path, Identity(7, 2, 0))


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0000000001.journal").write_bytes(b'{"version":1,"cluster":7,"era":1,"container":0}\n')

    with pytest.raises(JournalError, match="format version 1; this Tara reads 5"):
        reopened(tmp_path)


def test_full_segments_are_followed_by_new_ones_and_dropped_when_obsolete(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=100)
    for first in range(0, 40, 4):
        journal.append([voted(first, 4)])
        journal.roll()
    assert len(list(tmp_path.glob("*.journal"))) > 2

    journal.promised = lambda: [(5, collected(40))]
    journal.append([voted(40, 4)])
    journal.roll()
    journal.close()

    assert len(list(tmp_path.glob("*.journal"))) <= 2
    assert reopened(tmp_path)[5][0] == PROMISED
    assert opened(tmp_path).problems == []


def test_a_segment_that_never_got_its_head_is_put_away(tmp_path: Path) -> None:
    written(tmp_path, [voted(0)])
    headless = tmp_path / "0000000002.journal"
    headless.write_bytes(next(tmp_path.glob("*.journal")).read_bytes()[: HEAD_BYTES - 9])

    assert reopened(tmp_path)[5] == [voted(0)[1]]
    assert not headless.exists()
    written(tmp_path, [voted(1)])
    assert reopened(tmp_path)[5] == [voted(0)[1], voted(1)[1]]


def test_a_journal_is_set_aside_as_a_whole(tmp_path: Path) -> None:
    directory = tmp_path / "journal-0"
    journal = opened(directory)
    for round_ in range(files.DAMAGED_KEPT + 2):
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
def test_an_append_that_has_no_room_leaves_no_torn_record(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append([voted(0)])
    size = next(tmp_path.glob("*.journal")).stat().st_size
    with SmallDisk(size + 10):
        for _ in range(2):
            with pytest.raises(NoRoom, match="cannot be written"):
                journal.append([voted(1, 100)])
            assert next(tmp_path.glob("*.journal")).stat().st_size == size
    journal.append([voted(1, 100)])
    journal.close()

    assert reopened(tmp_path)[5] == [voted(0)[1], voted(1, 100)[1]]


@pytest.mark.usefixtures("no_room_is_too_large")
def test_a_journal_whose_disk_stays_full_is_what_it_was(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append([voted(0)])
    with SmallDisk(next(tmp_path.glob("*.journal")).stat().st_size + 10):
        with pytest.raises(NoRoom):
            journal.append([voted(1, 100)])
        journal.close()

    assert reopened(tmp_path)[5] == [voted(0)[1]]


def test_a_failure_that_is_not_a_full_disk_is_final_at_once(tmp_path: Path) -> None:
    troubles: list[Exception] = []
    journal = FileJournal(tmp_path, IDENTITY, on_trouble=troubles.append)
    journal.promised = lambda: [(5, PROMISED)]
    journal.append([voted(0)])
    with SmallDisk(10), pytest.raises(JournalError, match="cannot be written"):
        journal.append([voted(1)])
    journal.close()

    assert troubles == []
    assert reopened(tmp_path)[5] == [voted(0)[1]]


@pytest.mark.usefixtures("no_room_is_too_large")
def test_a_new_segment_that_has_no_room_is_not_begun(tmp_path: Path) -> None:
    troubles: list[Exception] = []
    journal = FileJournal(tmp_path, IDENTITY, segment_bytes=10, on_trouble=troubles.append)
    journal.promised = lambda: [(5, PROMISED)]
    journal.append([voted(0)])
    with SmallDisk(20):
        journal.roll()
    assert len(troubles) == 1
    assert len(list(tmp_path.glob("*.journal"))) == 1
    journal.append([voted(1)])
    journal.close()

    assert reopened(tmp_path)[5] == [voted(0)[1], voted(1)[1]]


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(JournalError, match="cannot be used: Not a directory"):
        FileJournal(tmp_path / "file" / "journal-0", IDENTITY)


def test_a_part_of_a_record_that_cannot_be_cut_off_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk that copies on write can refuse even that. Nothing may follow the part: it would be lost with it."""
    journal = opened(tmp_path)
    journal.append([voted(0)])
    written_bytes = os.pwrite

    def write(file: int, data: bytes, offset: int) -> int:
        if len(data) <= 30:
            raise OSError(errno.ENOSPC, "No space left")
        return written_bytes(file, data[:30], offset)

    def truncate(file: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "ftruncate", truncate)
    with pytest.raises(JournalError, match="a part of a record cannot be cut off"):
        journal.append([voted(1)])
    monkeypatch.undo()
    with pytest.raises(JournalError, match="a part of a record cannot be cut off"):
        journal.append([voted(1)])
    journal.close()

    assert reopened(tmp_path)[5] == [voted(0)[1]]


def test_a_tail_torn_over_several_pages_is_cut(tmp_path: Path) -> None:
    """The file has the record's length, but some of its pages were never written."""
    written(tmp_path, [voted(0)])
    segment, marker = next(tmp_path.glob("*.journal")), (tmp_path / MARKER_FILE).read_bytes()
    before = segment.stat().st_size
    written(tmp_path, [(5, t.Voted(1, 1, [t.Request(0, 1, 1, 5, random.Random(1).randbytes(20_000))]))])
    (tmp_path / MARKER_FILE).write_bytes(marker)
    whole = segment.read_bytes()
    for first in range(before, len(whole), 1000):
        torn = bytearray(whole)
        torn[first : first + 4096] = bytes(len(torn[first : first + 4096]))
        segment.write_bytes(bytes(torn))
        assert reopened(tmp_path)[5] == [voted(0)[1]], first
        assert segment.stat().st_size == before


def test_files_are_for_their_user_only(tmp_path: Path) -> None:
    written(tmp_path / "journal-0", [voted(0)])
    assert stat.S_IMODE((tmp_path / "journal-0").stat().st_mode) == 0o700
    for path in (tmp_path / "journal-0").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_the_name_of_a_journal_survives_the_loss_of_its_marker(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, IDENTITY)
    journal.rename("first")
    assert journal_name(tmp_path) == "first"
    journal.append([voted(0)])
    journal.close()
    (tmp_path / MARKER_FILE).unlink()
    assert journal_name(tmp_path) == "first"
    assert FileJournal(tmp_path, IDENTITY).name == "first"


def test_what_the_disk_cannot_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page of a segment costs the records in it, and not the whole journal."""
    written(tmp_path, [voted(0)], *[[voted(1, 400)]] * 3, [voted(9)])
    segment = next(tmp_path.glob("*.journal"))
    read, size = LocalDisk.read, segment.stat().st_size

    def failing(disk: LocalDisk, path: Path, offset: int = 0, length: int = -1) -> bytes:
        if path == segment and (length < 0 or offset == 4096):
            raise OSError(errno.EIO, "Input/output error")
        return read(disk, path, offset, length)

    monkeypatch.setattr(LocalDisk, "read", failing)
    found = reopened(tmp_path)[5]
    assert size > 3 * 4096
    assert (found[0], t.Lost() in found, found[-1]) == (voted(0)[1], True, voted(9)[1])


#: On a virtual disk.
DIRECTORY = Path("/data/journal-0")
SEGMENT = DIRECTORY / "0000000001.journal"


def begun(disk: VirtualDisk, segment_bytes: int = journal_module.SEGMENT_BYTES) -> FileJournal:
    """One that a committer with these promises writes from now on; the life before it has ended."""
    disk.end_process()
    journal = FileJournal(DIRECTORY, IDENTITY, segment_bytes, disk=disk)
    journal.promised = lambda: [(5, PROMISED)]
    return journal


def read(disk: VirtualDisk) -> list[t.ReplayedEntry]:
    """What a life finds that begins now, but for what the end marker says."""
    return [entry for entry in begun(disk).replay().get(5, []) if entry != PROMISED]


def test_segments_are_put_away_when_what_takes_their_place_is_durable() -> None:
    disk = VirtualDisk(random.Random(1))
    journal = begun(disk)
    journal.append([voted(0)])
    journal.append([voted(1)])
    disk.cut(SEGMENT, disk.size(SEGMENT) - 10)
    journal = begun(disk)
    journal.replay()
    assert journal.broken
    # It dies when the new segment is written, and not synced.
    disk.ends_in = 2
    restored = t.Restored(1, 1, [1], True, 0, [], [], [])
    with pytest.raises(Crash):
        journal.restore([(5, restored)])
    durable: list[VirtualDisk] = []

    def look(what: str, path: Path) -> None:
        if what == "rename" and files.DAMAGED in path.parts:
            durable.append(disk.clone())

    disk.trouble = look
    assert read(disk) == [restored]
    assert [read(twin) for twin in durable] == [[restored]]


def test_what_a_failed_sync_was_for_is_written_again_by_the_next_life() -> None:
    """That reads it, and goes on with it, so it has to stay."""
    disk = VirtualDisk(random.Random(1))
    journal = begun(disk)
    journal.append([voted(0)])
    disk.errors = [("sync", "*.journal", errno.EIO), ("truncate", "*.journal", errno.EIO)]
    with pytest.raises(JournalError, match="Input/output"):
        journal.append([voted(1)])
    assert read(disk) == [voted(0)[1], voted(1)[1]]
    disk.lose_power()
    assert read(disk) == [voted(0)[1], voted(1)[1]]


def test_a_power_cut_leaves_an_end_marker() -> None:
    """Whatever has become of those that were written since the last one that is durable."""
    for seed in range(200):
        disk = VirtualDisk(random.Random(seed))
        journal = begun(disk)
        # Few bytes of a slot say nothing.
        journal.promised = lambda: [(number, PROMISED) for number in range(100)]
        for slot in range(2 + seed % 4):
            journal.append([voted(slot)])
        disk.lose_power()
        again = begun(disk)
        again.replay()
        assert (again.problems, again.broken) == ([], False)


def rolled(disk: VirtualDisk, segments: int = 3) -> FileJournal:
    """A journal of so many segments, the last one of which has two votes."""
    journal = begun(disk, segment_bytes=300)
    slot = 0
    while len(disk.paths(DIRECTORY, (".journal",))) < segments:
        journal.append([voted(slot)])
        journal.roll()
        slot += 1
    journal.segment_bytes = journal_module.SEGMENT_BYTES
    journal.append([voted(slot)])
    journal.append([voted(slot + 1)])
    return journal


def segments_of(disk: VirtualDisk) -> list[int]:
    return [int(path.stem) for path in disk.paths(DIRECTORY, (".journal",))]


@pytest.mark.parametrize("error", [("write", MARKER_FILE), ("sync", MARKER_FILE), ("unlink", "*1.journal")])
def test_segments_that_could_not_be_dropped_go_with_the_next_ones(error: tuple[str, str]) -> None:
    """And not before the end marker on the disk stops naming them: one that it names and that is gone is damage."""
    disk = VirtualDisk(random.Random(1))
    journal = rolled(disk)
    disk.errors = [(*error, errno.ENOSPC)]
    journal.promised = lambda: [(5, collected(1 << 30))]
    journal.roll()
    assert (segments_of(disk), disk.errors) == ([1, 2, 3], [])
    twin = begun(disk.clone())
    twin.replay()
    assert twin.problems == []

    journal.append([voted(90)])
    journal.roll()
    assert segments_of(disk) == [3]
    assert voted(90)[1] in read(disk)


def test_nobody_is_told_of_a_record_that_the_end_marker_does_not_name() -> None:
    """Else it would not be exact: of a segment that is missing it would tell older promises. The record is written
    once."""
    disk = VirtualDisk(random.Random(1))
    journal = begun(disk)
    journal.append([voted(0)])
    disk.errors = [("write", MARKER_FILE, errno.ENOSPC)] * 2
    for _ in range(2):
        with pytest.raises(NoRoom, match="No space"):
            journal.append([voted(1)])
    journal.append([voted(1)])
    assert read(disk) == [voted(0)[1], voted(1)[1]]


def test_a_new_segment_is_used_when_the_end_marker_names_it() -> None:
    """If it is missing after a power cut, somebody has to notice that."""
    disk = VirtualDisk(random.Random(1))
    journal = begun(disk, segment_bytes=10)
    journal.append([voted(0)])
    disk.errors = [("write", MARKER_FILE, errno.ENOSPC)] * 2
    journal.roll()
    with pytest.raises(NoRoom):
        journal.append([voted(5)])
    journal.append([voted(5)])
    disk.lose_power()
    disk.forget(DIRECTORY / "0000000002.journal")
    assert read(disk)[-1] == t.Lost()


@pytest.mark.parametrize("error", [("sync", "*.journal"), ("sync", DIRECTORY.name)])
def test_a_segment_that_could_not_be_begun_does_not_come_back(error: tuple[str, str]) -> None:
    for seed in range(20):
        disk = VirtualDisk(random.Random(seed))
        journal = begun(disk, segment_bytes=10)
        journal.append([voted(0)])
        disk.errors = [(*error, errno.ENOSPC)]
        journal.roll()
        journal.append([voted(1)])
        disk.lose_power()
        again = begun(disk)
        assert [entry for entry in again.replay()[5] if entry != PROMISED] == [voted(0)[1], voted(1)[1]]
        assert (again.problems, segments_of(disk)) == ([], [1])


def test_an_end_marker_that_was_replaced_is_written_to_where_it_is() -> None:
    disk = VirtualDisk(random.Random(1))
    journal = begun(disk)
    journal.append([voted(0)])
    # It is made anew when it has to grow.
    journal.promised = lambda: [(number, PROMISED) for number in range(400)]
    disk.errors = [("sync", DIRECTORY.name, errno.ENOSPC)]
    with pytest.raises(NoRoom):
        journal.append([voted(1)])
    journal.append([voted(1)])
    journal.append([voted(2)])
    disk.end_process()
    assert journal_module.read_journal(DIRECTORY, IDENTITY, disk).durable == 3


def test_a_journal_that_is_restored_without_its_segment_takes_a_new_number() -> None:
    """Under the old one, a part of it would be taken for what is left of the one that is missing."""
    disk = VirtualDisk(random.Random(1))
    rolled(disk, segments=2)
    for path in disk.paths(DIRECTORY, (".journal",)):
        disk.forget(path)
    journal = begun(disk)
    journal.replay()
    # It dies while the new segment is written.
    disk.ends_in = 1
    with pytest.raises(Crash):
        journal.restore([(5, t.Restored(1, 1, [1], True, 0, [], [], []))])
    again = begun(disk)
    again.replay()
    assert again.problems == journal.problems
    assert [problem.partition(" and ")[0] for problem in again.problems] == ["records are missing after the beginning"]


GRAPH, LIMITS = Graph(1, 1), Limits(f=1, checkpoint_interval=64, window=256)
COMMITTER = GRAPH.number(Stage.COMMITTER, 0)
INCARNATIONS = [1] * GRAPH.members


class Voter:
    """A committer with a journal on disk, as its container runs it."""

    def __init__(self, directory: Path, genesis: bool = False, segment_bytes: int = 1500) -> None:
        self.journal = FileJournal(directory, IDENTITY, segment_bytes)
        self.site = BareSite(GRAPH, LIMITS, [COMMITTER], journal=True)
        boot = Boot(1 if genesis else 2, 1 if genesis else 2, genesis, 0.0)
        self.site.create(COMMITTER, boot, KeyValueStore, self.journal.replay().get(COMMITTER, []))
        node = self.site.nodes[COMMITTER]
        assert isinstance(node, Committer)
        self.node = node
        self.journal.promised = self.site.promised
        self.aside = None
        if self.journal.broken:
            self.aside = self.journal.restore([*self.site.remembered().items()])
        else:
            self.journal.mark()
        self._do(self.site.begin())

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            assert not isinstance(effect, Halt), effect
            if isinstance(effect, Sync):
                self.journal.append(effect.entries)
                if effect.collected:
                    self.journal.roll()

    def feed(self, *tuples: t.Tuple) -> None:
        for tuple_ in tuples:
            self._do(self.site.step(Inputs(tuples=[(tuple_, COMMITTER)]), 0.0))

    def enter(self, view: int, first: int, next_: int) -> None:
        self.feed(*[t.View(source, 0, view, INCARNATIONS) for source in range(3)])
        self.feed(t.Start(view % 2, 0, view, INCARNATIONS, [], first, next_))

    def vote(self, view: int, first: int, end: int) -> None:
        for slot in range(first, end):
            self.feed(t.Proposal(view % 2, 0, view, slot, 0, [t.Request(0, 1, slot, 5, b"x" * 40)]))

    def collect(self, checkpoint: int) -> None:
        self.feed(*[t.Stable(source, t.CheckpointId(checkpoint, b"d"), [], []) for source in range(3)])

    def state(self) -> tuple[object, ...]:
        node = self.node
        records = [
            accepted
            for slot, accepted in enumerate(
                node.acceptor.records.slice(node.acceptor.records.min, node.acceptor.records.pos),
                node.acceptor.records.min,
            )
            # What was accepted since in a higher view counts for more.
            if slot >= node.acceptor.commits.pos
        ]
        return (
            node.acceptor.resumed(),
            node.acceptor.commits.slice(node.acceptor.commits.min, node.acceptor.commits.pos),
            records,
        )


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of several segments, with view changes in the first and in the last one."""
    directory = tmp_path_factory.mktemp("history") / "journal-0"
    voter = Voter(directory, genesis=True)
    voter.enter(1, 0, 0)
    voter.vote(1, 0, 70)
    voter.collect(1)
    voter.enter(3, 64, 70)
    voter.vote(3, 64, 140)
    # Segments that are left are kept: votes in them are in the window.
    voter.collect(2)
    voter.vote(3, 140, 180)
    voter.enter(5, 128, 180)
    voter.vote(5, 128, 170)
    voter.journal.close()
    assert len(list(directory.glob("*.journal"))) == 2
    return directory


Damage = Callable[[Path, random.Random], None]


def flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(data))


def zero(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    first = draw.randrange(len(data))
    data[first : first + 512] = bytes(len(data[first : first + 512]))
    path.write_bytes(bytes(data))


def cut(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def remove(path: Path, draw: random.Random) -> None:
    path.unlink()


def cut_end(path: Path, draw: random.Random) -> None:
    os.truncate(path, HEAD_BYTES + 200)


@pytest.mark.parametrize("damage", [flip, zero, cut, remove])
def test_a_damaged_journal_keeps_its_promise_and_knows_what_it_does_not_know(
    history: Path, tmp_path: Path, damage: Damage
) -> None:
    """Whatever is damaged: positions and view come back; every slot is known as it was, or a hole; and the journal that
    is written then is intact."""
    shutil.copytree(history, tmp_path / "truth")
    truth = Voter(tmp_path / "truth")
    truth_slots = _accepts(truth.node)
    truth.journal.close()
    draw = random.Random(f"{damage.__name__}")
    for attempt in range(40):
        directory = tmp_path / f"copy-{attempt}"
        shutil.copytree(history, directory)
        victim = draw.choice(sorted([*directory.glob("*.journal"), directory / MARKER_FILE]))
        before = victim.read_bytes()
        damage(victim, draw)
        if victim.exists() and victim.read_bytes() == before:
            continue
        voter = Voter(directory)
        assert voter.node.acceptor.resumed() == truth.node.acceptor.resumed(), (attempt, victim)
        assert not voter.node.acceptor.recovering
        known = {slot: found for slot, found in _accepts(voter.node).items() if slot not in voter.node.acceptor.holes}
        assert known == {slot: found for slot, found in truth_slots.items() if slot not in voter.node.acceptor.holes}
        assert voter.journal.problems or voter.journal.notes, (attempt, victim)
        # Of the end marker, a part is no loss: the other one tells.
        assert victim.name == MARKER_FILE or not voter.journal.notes
        assert bool(voter.aside) == bool(set(voter.journal.problems) - _of_marker(voter.journal.problems))
        voter.journal.close()
        again = Voter(directory)
        assert (again.journal.problems, again.node.acceptor.holes, again.state()) == (
            [],
            voter.node.acceptor.holes,
            voter.state(),
        )
        again.journal.close()
        shutil.rmtree(directory)


def _of_marker(problems: list[str]) -> set[str]:
    return {problem for problem in problems if "end marker" in problem}


def _accepts(node: Committer) -> dict[int, t.Accepted]:
    """The newest accept of every slot of the window."""
    known = dict(
        enumerate(
            node.acceptor.records.slice(node.acceptor.records.min, node.acceptor.records.pos), node.acceptor.records.min
        )
    )
    for slot in range(node.acceptor.commits.min, node.acceptor.commits.pos):
        known[slot] = t.Accepted(node.acceptor.view, node.acceptor.commits[slot])
    return known


@pytest.mark.parametrize("damage", [cut_end, remove])
def test_promises_that_only_an_older_end_marker_knows_are_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    """A power cut has left the end marker of the last start, and the segment is damaged, too: newer promises were in
    it. While the machine runs, the marker is exact, and the promises are known."""
    directory = tmp_path / "journal-0"
    voter = Voter(directory, genesis=True)
    voter.enter(1, 0, 0)
    voter.vote(1, 0, 10)
    older = (directory / MARKER_FILE).read_bytes()
    voter.enter(3, 0, 10)
    voter.journal.close()
    shutil.copytree(directory, tmp_path / "crash")
    damage(next((tmp_path / "crash").glob("*.journal")), random.Random(1))
    again = Voter(tmp_path / "crash")
    assert again.node.acceptor.resumed() == voter.node.acceptor.resumed()
    again.journal.close()

    monkeypatch.setattr(LocalDisk, "boot_id", lambda disk: "another start")
    (directory / MARKER_FILE).write_bytes(older)
    shutil.copytree(directory, tmp_path / "power-cut")
    again = Voter(tmp_path / "power-cut")
    assert (again.journal.problems, again.state()) == ([], voter.state())
    again.journal.close()
    damage(next(directory.glob("*.journal")), random.Random(1))
    with pytest.raises(NodeHalted, match="nobody knows what it has promised"):
        Voter(directory)


def test_a_machine_that_does_not_tell_its_starts_has_no_exact_end_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LocalDisk().boot_id() == LocalDisk().boot_id() != ""
    monkeypatch.setattr("tara.storage.disk.BOOT_ID_FILE", tmp_path / "none")
    written(tmp_path, [voted(0)])
    next(tmp_path.glob("*.journal")).unlink()
    assert reopened(tmp_path) == {5: [t.Lost()]}


def test_every_bit_of_a_segments_head_is_noticed(history: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(history, directory)
    segment = min(directory.glob("*.journal"))
    whole = segment.read_bytes()
    for bit in range(8 * HEAD_BYTES):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        segment.write_bytes(bytes(changed))
        read = journal_module.read_journal(directory, IDENTITY)
        assert read.found.broken, bit


def test_segments_that_were_exchanged_cost_nothing(history: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(history, directory)
    truth = Voter(directory)
    truth.journal.close()
    first, second = sorted(directory.glob("*.journal"))
    first.rename(directory / "x")
    second.rename(first)
    (directory / "x").rename(second)
    voter = Voter(directory)
    assert len([problem for problem in voter.journal.problems if ": is segment" in problem]) == 2
    assert (voter.node.acceptor.holes, voter.state()) == (set(), truth.state())
    voter.journal.close()


def test_a_start_that_died_while_it_restored_the_journal_does_it_again(history: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(history, directory)
    min(directory.glob("*.journal")).unlink()
    voter = Voter(directory)
    assert voter.aside is not None
    # As if it had died before the old segments were set aside.
    for path in voter.aside.iterdir():
        shutil.copy(path, directory / path.name)
    voter.journal.close()
    again = Voter(directory)
    assert (again.journal.problems, again.state(), again.node.acceptor.holes) == (
        [],
        voter.state(),
        voter.node.acceptor.holes,
    )
    assert len(list(directory.glob("*.journal"))) == 1


def test_an_end_marker_grows_with_what_is_in_it(tmp_path: Path) -> None:
    """64 partitions, whose slots take more bytes from 65,536 on."""
    slot = 0

    def states() -> list[Written]:
        return [(number, t.Resumed(1, 1, [1] * 8, True, slot, slot + 5, slot)) for number in range(64)]

    journal = FileJournal(tmp_path, IDENTITY)
    journal.rename("journal")
    journal.replay()
    journal.promised = states
    journal.append(states())
    small = (tmp_path / MARKER_FILE).stat().st_size
    for slot in (0, 65_535, 65_536, 1 << 40):
        journal.append([(0, t.Collected(slot))])
    journal.close()
    assert (tmp_path / MARKER_FILE).stat().st_size > small
    found = journal_module.read_journal(tmp_path, IDENTITY)
    assert found.found.problems == []
    again = FileJournal(tmp_path, IDENTITY)
    again.replay()
    again.promised = states
    again.mark()
    again.close()
