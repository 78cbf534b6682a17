"""Bases and their store: a base is drawn, written and kept; one that cannot be used is passed over."""

import errno
import os
import random
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.simulator.disk import VirtualDisk
from tara.simulator.remote import VirtualRemote
from tara.storage.base_format import BASE_FILES, StoredBase, base_path, write_base
from tara.storage.bases import KEPT, Bases
from tara.storage.disk import LOCAL, Disk, LocalDisk
from tara.storage.files import DAMAGED, DAMAGED_KEPT, list_paths
from tara.storage.log import DecidedLog
from tara.storage.pacer import RATE_BYTES_PER_S, UNSYNCED_BYTES_MAX, Pacer
from tara.storage.remote import RemoteFiles
from tara.storage.store import IDLE_S, LOG_S, ExecutorStore, StoreFailed
from tests.live.small_disk import SmallDisk
from tests.patience import DEADLINE_S
from tests.storage.logs import settings, simple
from tests.storage.workers import work_for


def checkpoint(number: int) -> t.CheckpointId:
    return t.CheckpointId(number, b"digest of %6d" % number)


def bases_of(
    root: Path,
    replica: int = 0,
    disk: Disk = LOCAL,
    remote: RemoteFiles | None = None,
    era: int = 1,
    pacer: Pacer | None = None,
) -> Bases:
    directories = {other: root / f"bases-{other}" for other in range(3)}
    own = directories.pop(replica)
    return Bases(own, 7, era, directories, remote, disk, pacer)


def put(bases: Bases, number: int, state: bytes = b"state", chunks: tuple[bytes, ...] = ()) -> Path:
    """As a store does."""
    write_base(bases.directory, bases.cluster, bases.era, checkpoint(number), state, chunks, bases.disk)
    bases.retain()
    return base_path(bases.directory, number)


def newest(bases: Bases, *holders: int) -> StoredBase | None:
    """The newest one that can be had."""
    offers = [*bases.own(), *bases.offers(holders)]
    for offer in sorted(offers, key=lambda offer: offer.number, reverse=True):
        found = bases.bring(offer)
        if found is not None:
            return found
    return None


def state_of(found: StoredBase | None) -> bytes:
    assert found is not None
    return found.state


def test_a_base_of_a_peer_is_brought_here(tmp_path: Path) -> None:
    own, peer = bases_of(tmp_path), bases_of(tmp_path, 1)
    put(own, 3, b"old")
    put(peer, 5, b"new", (b"chunk",))
    found = newest(own, 2, 1)
    assert found is not None
    assert (found.state, list(found.chunks()), found.path.parent) == (b"new", [b"chunk"], own.directory)
    assert own.numbers == [3, 5]


def test_a_holder_that_is_not_known_is_not_asked(tmp_path: Path) -> None:
    assert bases_of(tmp_path).offers((0, 5)) == []


def test_a_damaged_base_is_passed_over_and_set_aside(tmp_path: Path) -> None:
    bases = bases_of(tmp_path)
    reports: list[int | str] = []
    bases.on_event = lambda event, detail: reports.append(detail)
    put(bases, 3, b"good")
    path = put(bases, 4, b"state", (b"chunk",))
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))

    assert state_of(newest(bases)) == b"good"
    assert (bases.numbers, bases.counts.bases_refused) == ([3], 1)
    assert "damaged" in str(reports[-1])
    assert (bases.directory / DAMAGED / f"000001-{path.name}").read_bytes() == bytes(data)


def test_a_damaged_base_of_a_peer_stays_where_it_is(tmp_path: Path) -> None:
    own, peer = bases_of(tmp_path), bases_of(tmp_path, 1)
    path = put(peer, 4)
    os.truncate(path, 20)
    assert newest(own, 1) is None
    assert path.exists()
    assert own.numbers == []


def test_bases_that_were_exchanged_are_noticed(tmp_path: Path) -> None:
    bases = bases_of(tmp_path)
    first, second = put(bases, 4), put(bases, 5)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    assert newest(bases) is None
    assert bases.counts.bases_refused == 2


def test_damaged_bases_are_kept_in_a_bounded_number(tmp_path: Path) -> None:
    bases = bases_of(tmp_path)
    for number in range(1, DAMAGED_KEPT + 4):
        put(bases, number).write_bytes(b"damaged")
        assert newest(bases) is None
    assert len(list((bases.directory / DAMAGED).iterdir())) == DAMAGED_KEPT


def test_a_base_that_the_disk_cannot_read_is_passed_over_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be able to, another time."""
    bases = bases_of(tmp_path)
    put(bases, 3, b"old")
    bad, read = put(bases, 4, b"new"), LocalDisk.read

    def failing(disk: LocalDisk, path: Path, offset: int = 0, length: int = -1) -> bytes:
        if path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return read(disk, path, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(LocalDisk, "read", failing)
        assert state_of(newest(bases)) == b"old"
    assert state_of(newest(bases)) == b"new"


def test_other_files_among_the_bases_are_left_alone(tmp_path: Path) -> None:
    bases = bases_of(tmp_path)
    for name in ("copy.base", "000000000009.base.old", "notes"):
        (bases.directory / name).write_text("mine")
    for number in range(1, 6):
        put(bases, number)
    assert bases.numbers == [4, 5]
    assert (bases.directory / "copy.base").read_text() == "mine"


def test_what_crashes_have_left_is_removed(tmp_path: Path) -> None:
    directory = bases_of(tmp_path).directory
    (directory / "000000000005.base.77.tmp").write_bytes(bytes(1000))
    bases_of(tmp_path)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("foreign", [1, 9])
def test_bases_of_another_era_count_for_nothing_and_stay(tmp_path: Path, foreign: int) -> None:
    """They must neither push out our own, nor have the log dropped that ours need: also if their numbers are higher."""
    path = put(bases_of(tmp_path), foreign)
    bases = bases_of(tmp_path, era=2)
    assert (bases.numbers, bases.newest, bases.needed_from) == ([], 0, 0)
    for number in (4, 5, 6):
        put(bases, number)
    assert (bases.numbers, bases.needed_from) == ([5, 6], 5)
    assert path.exists()
    assert bases.counts.bases_refused == 0


def test_a_base_takes_the_place_of_one_of_another_era(tmp_path: Path) -> None:
    put(bases_of(tmp_path, 0), 9)
    own, peer = bases_of(tmp_path, era=2), bases_of(tmp_path, 1, era=2)
    put(peer, 9, b"ours")
    assert state_of(newest(own, 1)) == b"ours"
    assert own.numbers == [9]


def test_a_base_of_another_era_at_a_peer_is_not_taken(tmp_path: Path) -> None:
    put(bases_of(tmp_path, 1), 9)
    assert newest(bases_of(tmp_path, era=2), 1) is None


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_directory_that_cannot_be_listed_is_passed_over(tmp_path: Path, number: int) -> None:
    disk = VirtualDisk(random.Random(1))
    own, peer = bases_of(tmp_path, 0, disk), bases_of(tmp_path, 1, disk)
    put(peer, 4)
    for bases in (own, peer):
        disk.errors = [("list", "bases-1", number)]
        assert newest(bases, 1) is None
        assert (disk.errors, bases.counts.store_errors) == ([], 1)


def test_a_base_that_goes_while_it_is_looked_for_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = bases_of(tmp_path)
    gone, _ = put(bases, 4), put(bases, 5)
    size = LocalDisk.size

    def sized(disk: LocalDisk, path: Path) -> int:
        if path == gone:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return size(disk, path)

    monkeypatch.setattr(LocalDisk, "size", sized)
    assert (bases.numbers, bases.counts.store_errors) == ([5], 0)


def remote(root: Path, disk: VirtualDisk, peer: VirtualDisk, breaks_off: Callable[[], bool]) -> VirtualRemote:
    return VirtualRemote(disk, root / "bases-0", ".base", lambda replica: (peer, root / f"bases-{replica}"), breaks_off)


def test_a_base_of_another_host_is_fetched_and_nothing_is_left_of_the_way(tmp_path: Path) -> None:
    disk, there = VirtualDisk(random.Random(1)), VirtualDisk(random.Random(2))
    put(bases_of(tmp_path, 1, there), 5, b"new")
    events: list[str] = []
    bases = bases_of(tmp_path, 0, disk, remote(tmp_path, disk, there, lambda: False))
    bases.on_event = lambda event, detail: events.append(event)
    found = newest(bases, 1)
    assert (state_of(found), bases.numbers, events) == (b"new", [5], ["base_fetched"])
    assert disk.paths(tmp_path) == [base_path(bases.directory, 5)]


def test_a_base_that_breaks_off_on_the_way_is_fetched_another_time(tmp_path: Path) -> None:
    disk, there = VirtualDisk(random.Random(1)), VirtualDisk(random.Random(2))
    put(bases_of(tmp_path, 1, there), 5, b"new")
    breaks = [True, False]
    bases = bases_of(tmp_path, 0, disk, remote(tmp_path, disk, there, lambda: breaks.pop(0)))
    assert newest(bases, 1) is None
    assert state_of(newest(bases, 1)) == b"new"


def test_a_damaged_base_of_another_host_is_not_kept(tmp_path: Path) -> None:
    disk, there = VirtualDisk(random.Random(1)), VirtualDisk(random.Random(2))
    there.flip(put(bases_of(tmp_path, 1, there), 5), random.Random(1))
    bases = bases_of(tmp_path, 0, disk, remote(tmp_path, disk, there, lambda: False))
    assert newest(bases, 1) is None
    assert disk.paths(tmp_path) == []
    assert bases.counts.bases_refused == 1


def test_a_base_of_another_host_is_written_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not copied to where it belongs, but renamed."""
    disk, there = VirtualDisk(random.Random(1)), VirtualDisk(random.Random(2))
    length = there.size(put(bases_of(tmp_path, 1, there), 5, b"new", (bytes(3 << 20),)))
    bases = bases_of(tmp_path, 0, disk, remote(tmp_path, disk, there, lambda: False))
    done: list[tuple[str, Path]] = []
    taken: list[int] = []
    disk.trouble = lambda what, path: done.append((what, path))
    read = VirtualDisk.read

    def counted(self: VirtualDisk, path: Path, offset: int = 0, wanted: int = -1) -> bytes:
        data = read(self, path, offset, wanted)
        taken.append(len(data) if self is disk else 0)
        return data

    monkeypatch.setattr(VirtualDisk, "read", counted)
    found = newest(bases, 1)
    assert found is not None
    assert found.path == base_path(bases.directory, 5)
    assert {path.parent.name for what, path in done if what in ("create", "write")} == {"incoming"}
    assert sum(taken) <= 1.1 * length
    assert sum(map(len, found.chunks())) == 3 << 20


def test_a_base_of_another_host_is_durable_when_it_is_here(tmp_path: Path) -> None:
    for seed in range(20):
        disk, there = VirtualDisk(random.Random(seed)), VirtualDisk(random.Random(2))
        put(bases_of(tmp_path, 1, there), 5, b"new", (bytes(3000),))
        assert newest(bases_of(tmp_path, 0, disk, remote(tmp_path, disk, there, lambda: False)), 1) is not None
        disk.lose_power()
        assert state_of(newest(bases_of(tmp_path, 0, disk))) == b"new"


@pytest.mark.parametrize("what", ["sync", "rename"])
def test_a_base_of_another_host_that_is_not_durable_is_not_used(tmp_path: Path, what: str) -> None:
    """What a disk failed to sync it may show, and lose."""
    disk, there = VirtualDisk(random.Random(1)), VirtualDisk(random.Random(2))
    put(bases_of(tmp_path, 1, there), 5, b"new")
    bases = bases_of(tmp_path, 0, disk, remote(tmp_path, disk, there, lambda: False))
    disk.errors = [(what, "*.base", errno.EIO)]
    assert newest(bases, 1) is None
    assert (disk.paths(tmp_path), bases.counts.store_errors) == ([], 1)
    assert state_of(newest(bases, 1)) == b"new"


def test_a_name_that_is_not_durable_leads_to_nothing(tmp_path: Path) -> None:
    disk, there = VirtualDisk(random.Random(1)), VirtualDisk(random.Random(2))
    put(bases_of(tmp_path, 1, there), 5, b"new")
    bases = bases_of(tmp_path, 0, disk, remote(tmp_path, disk, there, lambda: False))
    disk.errors = [("sync", "bases-0", errno.EIO)]
    assert newest(bases, 1) is None
    assert (disk.errors, bases.numbers) == ([], [])


def test_a_copy_whose_name_is_not_durable_leads_to_nothing(tmp_path: Path) -> None:
    disk = VirtualDisk(random.Random(1))
    put(bases_of(tmp_path, 1, disk), 5, b"new")
    bases = bases_of(tmp_path, 0, disk)
    disk.errors = [("sync", "bases-0", errno.EIO)]
    assert newest(bases, 1) is None
    assert (disk.errors, bases.numbers) == ([], [])


def test_a_base_is_copied_and_fetched_at_the_pace_of_bases(tmp_path: Path) -> None:
    """Somebody else's journal may be on the same disk."""
    size = 4 << 20
    waited_s: list[float] = []
    pacer = Pacer(lambda: sum(waited_s), waited_s.append)
    peer = bases_of(tmp_path, 1)
    put(peer, 4, b"state", (bytes(size),))
    assert newest(bases_of(tmp_path, pacer=pacer), 1) is not None
    assert sum(waited_s) > 0.8 * size / RATE_BYTES_PER_S
    waited_s.clear()
    disk, there = VirtualDisk(random.Random(1)), VirtualDisk(random.Random(2))
    put(bases_of(tmp_path, 1, there), 5, b"new", (bytes(size),))
    assert newest(bases_of(tmp_path, 0, disk, remote(tmp_path, disk, there, lambda: False), pacer=pacer), 1) is not None
    assert sum(waited_s) > 0.8 * size / RATE_BYTES_PER_S


class Stored:
    """A store that is worked by hand, with a log that is at a checkpoint when a test says so."""

    def __init__(self, root: Path, disk: Disk = LOCAL) -> None:
        self.now_s = 100.0
        #: What the store has waited for the disk in the midst of its work.
        self.waited_s: list[float] = []
        self.bases = bases_of(root, 0, disk, pacer=Pacer(lambda: self.now_s, self.waited_s.append))
        self.log = DecidedLog(0, root / "log-0", settings(), self.bases, {}, None, disk)
        self.store = ExecutorStore(self.bases, self.log, lambda: None)
        self.events: list[tuple[str, int | str]] = []
        self.store.on_event = lambda event, detail: self.events.append((event, detail))
        self.log.sealed = 1 << 30

    def give(self, *jobs: t.Tuple) -> list[t.Tuple]:
        for job in jobs:
            self.store.submit(job)
            self._work()
        self._work()
        return list(self.store.take())

    def _work(self) -> None:
        # As long as the disk is left to others for a small file.
        self.now_s += 0.001
        self.store.work()

    def base(self, number: int, *chunks: bytes, state: bytes = b"state") -> list[t.Tuple]:
        """All of a base, and what comes of it."""
        return self.give(t.Base(checkpoint(number), state), *_drawn(number, *chunks))

    @property
    def files(self) -> list[str]:
        return self.bases.disk.names(self.bases.directory)


def _drawn(number: int, *chunks: bytes) -> list[t.Tuple]:
    return [*(t.Drawn(number, [chunk]) for chunk in chunks), t.Drawn(number, [])]


def test_a_base_is_asked_for_piece_by_piece(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    assert stored.give(t.Base(checkpoint(3), b"state")) == [t.Draw(3)]
    assert stored.give() == [], "one at a time"
    assert stored.give(t.Drawn(3, [b"a", b"", b"bc"])) == [t.Draw(3)]
    assert stored.bases.numbers == []
    (saved,) = stored.give(t.Drawn(3, []))
    found = newest(stored.bases)
    assert found is not None
    assert (found.id, found.state, list(found.chunks())) == (checkpoint(3), b"state", [b"a", b"", b"bc"])
    assert saved == t.BaseSaved(3, found.digest, len(b"stateabc"))
    assert stored.events == [("base_saved", 3)]
    assert (stored.bases.counts.bases_saved, stored.store.errors) == (1, [])


def test_the_disk_is_left_to_others_between_the_pieces(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.give(t.Base(checkpoint(3), b"state"))
    stored.store.submit(t.Drawn(3, [bytes(UNSYNCED_BYTES_MAX)]))
    pause_s = stored.store.work()
    assert list(stored.store.take()) == []
    assert UNSYNCED_BYTES_MAX / RATE_BYTES_PER_S <= pause_s < 1.0
    stored.now_s += pause_s
    assert stored.give() == [t.Draw(3)]
    assert stored.store.work() == IDLE_S


def test_a_base_is_there_when_the_log_up_to_it_is_durable(tmp_path: Path) -> None:
    """It leads nowhere before that: what follows is executed again from the log."""
    stored = Stored(tmp_path)
    stored.log.sealed = 2
    stored.base(3)
    assert stored.store.work() == LOG_S
    assert list(stored.store.take()) == []
    stored.log.sealed = 3
    (saved,) = stored.give()
    assert isinstance(saved, t.BaseSaved)


def test_the_newest_bases_are_kept(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    for number in range(1, 5):
        stored.base(number)
    assert stored.files == [f"{number:012}.base" for number in range(5 - KEPT, 5)]


def test_what_the_executor_gives_up_is_removed(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.give(t.Base(checkpoint(3), b"state"), t.Drawn(3, [b"a"]))
    assert len(stored.files) == 1
    assert stored.give(t.GivenUp(3, "the application raised KeyError"), t.Drawn(3, [])) == []
    assert (stored.files, stored.bases.counts.bases_given_up) == ([], 1)
    assert stored.events == [("base_given_up", "the application raised KeyError")]


def test_a_base_that_was_to_take_the_place_of_another_ends_both_if_it_is_given_up(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.give(t.Base(checkpoint(3), b"state"), t.Drawn(3, [b"a"]))
    stored.give(t.GivenUp(4, "the application raised KeyError"))
    assert stored.files == []


def test_a_base_takes_the_place_of_one_that_is_not_complete(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.give(t.Base(checkpoint(3), b"state"), t.Drawn(3, [b"a"]))
    answers = stored.give(t.Base(checkpoint(4), b"state"), t.Drawn(3, [b"b"]), t.Drawn(3, []))
    assert answers == [t.Draw(4)]
    (saved,) = stored.give(t.Drawn(4, []))
    assert isinstance(saved, t.BaseSaved)
    assert stored.files == ["000000000004.base"]


def test_a_full_disk_costs_the_base_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.base(3)
    with SmallDisk(200):
        answers = stored.base(4, bytes(1_000))
    (given_up,) = [answer for answer in answers if isinstance(answer, t.GivenUp)]
    assert given_up.number == 4
    assert "cannot write base 4" in given_up.reason
    assert stored.files == ["000000000003.base"]
    assert stored.bases.counts.store_errors == 1
    # The next one is a new attempt.
    assert isinstance(stored.base(5, bytes(1_000))[-1], t.BaseSaved)


@pytest.mark.parametrize("what", ["create", "write", "sync", "rename"])
def test_whatever_fails_costs_the_base_and_nothing_else(tmp_path: Path, what: str) -> None:
    disk = VirtualDisk(random.Random(1))
    stored = Stored(tmp_path, disk)
    disk.errors = [(what, "*.base*", errno.EIO)]
    answers = stored.base(3, b"a")
    assert [type(answer) for answer in answers if not isinstance(answer, t.Draw)] == [t.GivenUp]
    assert list_paths(stored.bases.directory, "*", disk) == []
    assert isinstance(stored.base(4, b"a")[-1], t.BaseSaved)


def test_a_disk_that_became_read_only_is_reported_and_the_store_lives_on(tmp_path: Path) -> None:
    disk = VirtualDisk(random.Random(1))
    stored = Stored(tmp_path, disk)
    for number in (1, 2):
        stored.base(number)

    def read_only(what: str, path: Path) -> None:
        if what != "read":
            raise OSError(errno.EROFS, "Read-only file system")

    disk.trouble = read_only
    assert isinstance(stored.base(3)[-1], t.GivenUp)
    put_away = stored.bases.own()[0].path
    disk.trouble = None
    write_base(stored.bases.directory, 7, 1, checkpoint(4), b"state", (), disk)
    disk.trouble = read_only
    stored.bases.retain()
    assert put_away.name in stored.store.errors[-1]
    assert "cannot be removed" in stored.store.errors[-1]
    disk.trouble = None
    stored.base(5)
    assert list_paths(stored.bases.directory, BASE_FILES, disk) == [
        base_path(stored.bases.directory, number) for number in (4, 5)
    ]


def test_a_store_that_cannot_go_on_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its container must not go on as if there would be an answer."""
    stored = Stored(tmp_path)

    def broken(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("tara.storage.base_format.BaseFile.add_state", broken)
    with pytest.raises(StoreFailed, match="a mistake of ours"):
        stored.give(t.Base(checkpoint(1), b"state"))
    assert isinstance(StoreFailed(""), TaraError)


def test_bases_of_former_lives_are_read_when_the_executor_has_come_back(tmp_path: Path) -> None:
    """Not beside that: it has the disk for itself. And not a second time what was read on the way."""
    put(bases_of(tmp_path), 3)
    put(bases_of(tmp_path), 4)
    stored = Stored(tmp_path, disk := VirtualDisk(random.Random(1)))
    for number in (3, 4):
        put(stored.bases, number)
    read: list[str] = []
    look_at = stored.bases._look_at

    def looked_at(path: Path) -> Generator[int, None, None]:
        read.append(path.name)
        return look_at(path)

    stored.bases._look_at = looked_at  # type: ignore[method-assign]
    assert disk.names(stored.bases.directory)
    stored.give(t.Load(0, -1, 0, (0,)))
    stored.give()
    assert read == []
    assert stored.bases.bring(stored.bases.own()[-1]) is not None
    stored.give(t.Arrived())
    stored.give()
    assert read == ["000000000003.base"]


def test_an_old_base_is_read_in_pieces_with_rests_and_set_aside_if_it_is_damaged(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    good = put(stored.bases, 3, b"state", (bytes(1 << 20), bytes(1 << 20)))
    bad = put(stored.bases, 4, b"state", (bytes(1 << 20), bytes(1 << 20)))
    data = bytearray(bad.read_bytes())
    data[-1] ^= 1
    bad.write_bytes(bytes(data))
    stored.store.submit(t.Arrived())
    rests = 0
    while (pause_s := stored.store.work()) < IDLE_S:
        rests += 1
        assert 0.0 <= pause_s < 1.0
        stored.now_s += pause_s
    assert rests >= 4
    assert (good.exists(), bad.exists(), stored.bases.counts.bases_refused) == (True, False, 1)


def test_a_state_that_comes_in_pieces_is_one_part_of_the_base(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.give(t.Base(checkpoint(3), b"st"), t.Drawn(3, [b"a", b"t"], True), t.Drawn(3, [b"e"], True))
    stored.give(t.Drawn(3, [b"chunk"]), t.Drawn(3, []))
    found = newest(stored.bases)
    assert found is not None
    assert (found.state, list(found.chunks()), found.length) == (b"state", [b"chunk"], 10)
    whole = bases_of(tmp_path / "whole")
    assert put(whole, 3, b"state", (b"chunk",)).read_bytes() == found.path.read_bytes()


def test_the_threads_of_a_store_work_together(tmp_path: Path) -> None:
    """The log writes what was executed, and a base at its checkpoint."""
    woken = threading.Semaphore(0)
    bases = bases_of(tmp_path)
    log = DecidedLog(0, tmp_path / "log-0", settings(), bases, {})
    store = ExecutorStore(bases, log, woken.release)
    workers = [work_for(store), work_for(log)]
    answers: list[t.Tuple] = []

    def wait_for(kind: type[t.Tuple]) -> t.Tuple:
        while not (found := [answer for answer in answers if isinstance(answer, kind)]):
            assert woken.acquire(timeout=DEADLINE_S)
            answers.extend(store.take())
        return found[0]

    handed = simple(17)
    for tuple_ in handed:
        store.submit(tuple_)
        if isinstance(tuple_, t.Mark):
            store.submit(t.Base(tuple_.checkpoint, b"state"))
    wait_for(t.Draw)
    store.submit(t.Drawn(1, []))
    saved = wait_for(t.BaseSaved)
    assert isinstance(saved, t.BaseSaved)
    assert (saved.number, bases.numbers) == (1, [1])
    assert isinstance(wait_for(t.Saved), t.Saved)
    for worker in workers:
        worker.close()
