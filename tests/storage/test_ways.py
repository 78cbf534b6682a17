"""Ways back to a checkpoint: which one a log finds, and how it leads an executor along it."""

import errno
import random
from pathlib import Path

import pytest

from tara.protocol import tuples as t
from tara.simulator.disk import VirtualDisk
from tara.storage.base_format import base_path, write_base
from tara.storage.bases import Bases
from tara.storage.disk import LOCAL, Disk
from tara.storage.log import REPLAY_REQUESTS, DecidedLog
from tara.storage.ways import Way, find_way
from tests.live.histories import INTERVAL, bench, executor, handed_over, puts
from tests.storage.logs import Handed, behind, names, opened, settings, simple, write

HANDED = simple(100)
NEWEST = 100 // INTERVAL


class Place:
    """The logs and bases of three replicas that can read each other's; the log of replica 0 is worked by hand."""

    def __init__(self, root: Path, disk: Disk = LOCAL, interval: int = INTERVAL) -> None:
        self.root, self.disk, self.interval = root, disk, interval
        self.directories = [root / f"log-{replica}" for replica in range(3)]
        self.bases_directories = [root / f"bases-{replica}" for replica in range(3)]
        for directory in (*self.directories, *self.bases_directories):
            disk.make_directory(directory)
        self.answers: list[t.Tuple] = []

    def log_of(self, replica: int, first: int, until: int, handed: Handed = HANDED) -> None:
        """It has the segments behind `first`, up to `until`."""
        writer, _ = opened(self.directories[replica], disk=self.disk, interval=self.interval)
        begin = 0
        if first:
            writer.leap(first)
            begin = behind(handed, first)
        write(writer, handed[begin : behind(handed, until)])

    def base_of(self, replica: int, number: int, length: int = 10) -> Path:
        checkpoint = next(
            mark.checkpoint for mark in HANDED if isinstance(mark, t.Mark) and mark.checkpoint.number == number
        )
        write_base(self.bases_directories[replica], 7, 1, checkpoint, bytes(length), (), self.disk)
        return base_path(self.bases_directories[replica], number)

    def open(self, retention_bytes: int = 1 << 30) -> DecidedLog:
        others = {replica: self.bases_directories[replica] for replica in (1, 2)}
        self.bases = Bases(self.bases_directories[0], 7, 1, others, None, self.disk)
        peers = {replica: self.directories[replica] for replica in (1, 2)}
        known = settings(retention_bytes=retention_bytes, interval=self.interval)
        self.log = DecidedLog(0, self.directories[0], known, self.bases, peers, None, self.disk, lambda: 0.0)
        self.log.on_answer = self.answers.append
        self.log.work()
        return self.log

    def way(
        self, next_: int = 0, bases_from: int = 0, holders: tuple[int, ...] = (0, 1, 2), minimum: int = 0
    ) -> Way | None:
        log = self.open()
        assert log._writer is not None
        load = t.Load(minimum, next_, bases_from, holders)
        return find_way(load, self.bases, log._writer.segments, 0, INTERVAL)

    def found(self, next_: int = 0, bases_from: int = 0, holders: tuple[int, ...] = (0, 1, 2)) -> tuple[int, int, bool]:
        """Where the way begins and where it leads, and whether with a base."""
        way = self.way(next_, bases_from, holders)
        assert way is not None
        return way.start, way.until, way.base is not None

    def follow(self, load: t.Load) -> list[t.Tuple]:
        """Ask for a way, and go along it to the end."""
        self.answers.clear()
        self.log.submit(load)
        self.log.work()
        while self.answers and (last := self.answers[-1]):
            if isinstance(last, t.Replay) and (last.last or not last.asks):
                break
            if isinstance(last, t.Loaded) and last.until == 0:
                break
            self.log.submit(t.More())
            self.log.work()
        return self.answers


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_where_there_is_nothing_there_is_no_way(place: Place) -> None:
    assert place.way() is None
    assert place.way(next_=-1) is None


def test_the_log_leads_on_from_the_state_that_is_there(place: Place) -> None:
    place.log_of(0, 0, 5)
    assert place.found(next_=0) == (0, 5, False)
    assert place.found(next_=2 * INTERVAL + 3) == (2, 5, False)


def test_a_state_that_has_come_as_far_needs_no_way(place: Place) -> None:
    place.log_of(0, 0, 5)
    place.base_of(0, 4)
    assert place.way(next_=5 * INTERVAL) is None
    assert place.way(next_=5 * INTERVAL + 1) is None
    assert place.found(next_=5 * INTERVAL - 1) == (4, 5, False)


@pytest.mark.parametrize(("minimum", "until"), [(0, 5), (3, 3), (4, 5)])
def test_others_are_asked_only_for_what_is_not_here(place: Place, minimum: int, until: int) -> None:
    place.log_of(0, 0, 3)
    place.base_of(0, 2)
    place.log_of(1, 0, 5)
    place.base_of(1, 4)
    way = place.way(next_=-1, minimum=minimum)
    assert way is not None
    assert (way.start, way.until) == ((4, 5) if until == 5 else (2, 3))
    assert (5 in way.offers) == (until == 5)


def test_one_without_a_state_begins_with_a_base(place: Place) -> None:
    place.log_of(0, 0, 5)
    assert place.way(next_=-1) is None
    place.base_of(0, 2)
    assert place.found(next_=-1) == (2, 5, True)


def test_a_base_leads_over_what_the_log_lacks(place: Place) -> None:
    place.log_of(0, 3, 6)
    place.base_of(0, 4)
    assert place.found() == (4, 6, True)


def test_bases_that_are_too_old_are_of_no_use(place: Place) -> None:
    """The executor has halted behind them, or could not restore them."""
    place.log_of(0, 0, 6)
    place.base_of(0, 2)
    place.base_of(1, 4)
    assert place.found(next_=-1, bases_from=3) == (4, 6, True)
    assert place.way(next_=-1, bases_from=5) is None


def test_the_way_that_leads_furthest_is_taken(place: Place) -> None:
    place.log_of(0, 0, 3)
    place.base_of(0, 5)
    assert place.found() == (5, 5, True)
    place.log_of(1, 3, 6)
    assert place.found()[1] == 6


def test_of_ways_that_lead_equally_far_the_shortest_is_taken(place: Place) -> None:
    place.log_of(0, 0, 6)
    place.base_of(0, 2, length=10)
    place.base_of(1, 5, length=1 << 20)
    assert place.found() == (2, 6, True)
    assert place.found(next_=3 * INTERVAL) == (3, 6, False)


@pytest.mark.parametrize("next_", [-1, 0])
def test_one_without_a_state_executes_nothing_again_that_its_newest_base_has(place: Place, next_: int) -> None:
    """However much longer that base is than the log: another version of the application may execute it differently."""
    place.log_of(0, 0, 6)
    place.base_of(0, 2, length=10)
    newest = place.base_of(0, 5, length=1 << 20)
    assert place.found(next_) == (5, 6, True)
    assert place.found(3 * INTERVAL) == (3, 6, False)
    newest.write_bytes(b"damaged")
    assert place.found(next_) == (2, 6, True)


@pytest.mark.parametrize("next_", [-1, 0])
def test_one_without_a_state_and_without_bases_begins_with_the_newest_of_the_others(place: Place, next_: int) -> None:
    place.log_of(1, 0, 6)
    place.base_of(1, 2, length=10)
    place.base_of(2, 5, length=1 << 20)
    assert place.found(next_) == (5, 6, True)


def test_segments_of_others_lead_on(place: Place) -> None:
    place.log_of(0, 0, 2)
    place.log_of(1, 2, 4)
    place.log_of(2, 4, 6)
    assert place.found() == (0, 6, False)
    assert place.found(holders=(0, 1)) == (0, 4, False)
    assert place.found(holders=(0,)) == (0, 2, False)


def test_a_gap_that_nobody_fills_ends_the_way(place: Place) -> None:
    place.log_of(0, 0, 2)
    place.log_of(1, 3, 6)
    assert place.found() == (0, 2, False)


def test_a_base_of_another_replica_is_here_when_the_way_begins(place: Place) -> None:
    place.base_of(1, 4)
    place.log_of(2, 4, 5)
    assert place.found() == (4, 5, True)
    assert place.bases.numbers == [4]


def test_a_base_that_turns_out_to_be_damaged_is_no_way(place: Place) -> None:
    place.log_of(0, 0, 6)
    for number in (2, 5):
        place.base_of(0, number).write_bytes(b"damaged")
    assert place.found() == (0, 6, False)
    assert place.way(next_=-1) is None


def test_an_executor_is_led_from_a_base_to_the_newest_checkpoint(place: Place) -> None:
    place.log_of(0, 0, 4)
    place.base_of(0, 2)
    place.open()
    loaded, *replays = place.follow(t.Load(0, -1, 0, (0,)))
    assert isinstance(loaded, t.Loaded)
    assert loaded.base is not None
    assert (loaded.base.number, loaded.until, loaded.length) == (2, 4, 10)
    found = [replay for replay in replays if isinstance(replay, t.Replay)]
    assert len(found) == len(replays)
    requests = [request for replay in found for request in replay.requests]
    assert requests == puts(100)[2 * INTERVAL : 4 * INTERVAL]
    marks = [mark.checkpoint for mark in HANDED if isinstance(mark, t.Mark)]
    assert [replay.checkpoint for replay in found if replay.checkpoint is not None] == marks[2:4]
    assert [replay.last for replay in found] == [False] * (len(found) - 1) + [True]


def test_a_state_that_cannot_be_led_on_is_told_so(place: Place) -> None:
    place.open()
    assert place.follow(t.Load(3, 7, 0, (0, 1))) == [t.Loaded(None, b"", (), b"", 0, 0)]


def test_requests_come_in_pieces_when_the_executor_asks_for_them(tmp_path: Path) -> None:
    """Until it has executed one of them, its site does nothing else."""
    interval, count = 2 * REPLAY_REQUESTS, 5 * REPLAY_REQUESTS
    place = Place(tmp_path, interval=interval)
    handed = handed_over(executor(bench(interval)), puts(count))
    place.log_of(0, 0, 2, handed)
    place.open()
    _, *replays = place.follow(t.Load(0, 0, 0, (0,)))
    asked, sizes = 0, [0]
    for replay in replays:
        assert isinstance(replay, t.Replay)
        sizes[-1] += len(replay.requests)
        if replay.asks:
            asked += 1
            sizes.append(0)
    assert asked == 4
    assert max(sizes) <= REPLAY_REQUESTS
    assert sum(sizes) == 2 * interval


def test_what_is_brought_on_the_way_is_durable_when_the_executor_hears_of_it(tmp_path: Path) -> None:
    """It announces the checkpoint behind it."""
    disk = VirtualDisk(random.Random(1))
    place = Place(tmp_path, disk)
    place.log_of(1, 0, 3)
    place.open()
    place.follow(t.Load(0, 0, 0, (1,)))
    disk.lose_power()
    writer, _ = opened(place.directories[0], disk=disk)
    assert (writer.segments.sealed, writer.segments.missing) == (3, [])


def test_the_log_goes_on_behind_what_was_brought(place: Place) -> None:
    place.log_of(1, 0, 4)
    log = place.open()
    place.follow(t.Load(0, 0, 0, (1,)))
    assert log.sealed == 4
    for tuple_ in HANDED[behind(HANDED, 4) :]:
        if isinstance(tuple_, t.Executed):
            log.append(tuple_)
        else:
            log.submit(tuple_)
    log.work()
    assert (log.sealed, log.status()["last"], log.errors) == (NEWEST, 100, [])
    assert [int(name[:12]) for name in names(place.directories[0])] == list(range(1, NEWEST + 1))


def test_what_is_executed_while_the_log_is_brought_is_passed_over_as_far_as_it_was(place: Place) -> None:
    """Commits that came late, in the middle of the way."""
    place.log_of(1, 0, 4)
    log = place.open()
    for tuple_ in HANDED[:5]:
        assert isinstance(tuple_, t.Executed)
        log.append(tuple_)
    log.submit(t.Load(0, 5, 0, (1,)))
    log.work()
    for tuple_ in HANDED[5:8]:
        assert isinstance(tuple_, t.Executed)
        log.append(tuple_)
    log.submit(t.More())
    for tuple_ in HANDED[8:]:
        if isinstance(tuple_, t.Executed):
            log.append(tuple_)
        else:
            log.submit(tuple_)
    log.work()
    assert (log.sealed, log.status()["last"], log.errors) == (NEWEST, 100, [])
    saved = [answer.checkpoint.number for answer in place.answers if isinstance(answer, t.Saved)]
    assert saved == list(range(1, NEWEST + 1))


@pytest.mark.parametrize("call", range(1, 30))
def test_a_disk_that_fails_on_the_way_ends_it_early_and_not_the_container(tmp_path: Path, call: int) -> None:
    disk = VirtualDisk(random.Random(1))
    place = Place(tmp_path, disk)
    place.log_of(1, 0, 5)
    place.base_of(1, 2)
    log = place.open()
    failed: list[Exception] = []
    log.on_failure = failed.append
    count = 0

    def trouble(what: str, path: Path) -> None:
        nonlocal count
        count += 1
        if count == call:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    disk.trouble = trouble
    place.follow(t.Load(0, 0, 0, (1,)))
    log.work()
    disk.trouble = None
    # From where it is now, the executor asks once more.
    replays = [answer for answer in place.answers if isinstance(answer, t.Replay)]
    reached = [replay.checkpoint.number for replay in replays if replay.checkpoint is not None]
    assert reached == list(range(1, 6))[: len(reached)] or reached == [3, 4, 5][: len(reached)]
    again = place.follow(t.Load(0, (reached[-1] if reached else 0) * INTERVAL, 0, (1,)))
    assert failed == []
    assert reached[-1:] == [5] or any(
        isinstance(replay, t.Replay) and replay.checkpoint is not None and replay.checkpoint.number == 5
        for replay in again
    )
    assert log.sealed == 5


def test_a_segment_that_is_damaged_is_brought_on_the_way(place: Place) -> None:
    place.log_of(0, 0, 5)
    place.log_of(1, 0, 5)
    (damaged,) = place.directories[0].glob("000000000003-*")
    damaged.write_bytes(b"damaged")
    place.open()
    replays = place.follow(t.Load(0, 0, 0, (0, 1)))
    reached = [r.checkpoint.number for r in replays if isinstance(r, t.Replay) and r.checkpoint is not None]
    assert reached == [1, 2, 3, 4, 5]


def test_a_damaged_segment_that_nobody_has_ends_the_way_before_it(place: Place) -> None:
    place.log_of(0, 0, 5)
    (damaged,) = place.directories[0].glob("000000000003-*")
    damaged.write_bytes(b"damaged")
    log = place.open()
    replays = place.follow(t.Load(0, 0, 0, (0,)))
    reached = [r.checkpoint.number for r in replays if isinstance(r, t.Replay) and r.checkpoint is not None]
    assert reached == [1, 2]
    last = replays[-1]
    assert isinstance(last, t.Replay)
    assert last.last
    assert log.status()["gaps"] == 1
