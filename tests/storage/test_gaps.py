"""Logs in which something is missing: nothing is announced that they do not lead to, and they become whole again."""

import contextlib
import errno
import random
from pathlib import Path

import pytest

from tara.protocol import tuples as t
from tara.simulator.disk import VirtualDisk
from tara.storage.base_format import base_directory, base_path, list_bases, number_of
from tara.storage.log import FLUSH_S, PUT_OFF_MAX, log_directory
from tara.storage.log_format import CorruptLog, LogIdentity, list_segments, read_segment
from tara.storage.segments import HEAL_PAUSE_MAX, WAITS_MAX
from tests.live.histories import puts
from tests.protocol.driver import Bench, commits
from tests.storage.replicas import CLUSTER, ERA, INTERVAL, StoredReplica, bench

DATA = Path("/data")
COUNT = 80
NEWEST = COUNT // INTERVAL
REQUESTS = puts(COUNT)


@pytest.fixture
def disk() -> VirtualDisk:
    return VirtualDisk(random.Random(1))


def rarely() -> Bench:
    return bench(base_bytes_min=1 << 30)


class Watched(StoredReplica):
    """Whatever it says to be durable must be."""

    def __init__(self, disk: VirtualDisk, life: int = 1, replica: int = 0, **options: object) -> None:
        self.virtual = disk
        options = {"made_by": rarely(), "retention_bytes": 1 << 30} | options
        super().__init__(DATA, replica, disk, life, **options)  # type: ignore[arg-type]

    def step(self) -> bool:
        before = len(self.saved)
        stepped = super().step()
        for checkpoint in self.saved[before:]:
            assert reach(self.virtual, self.node.index) >= checkpoint.number
        return stepped


def reach(disk: VirtualDisk, replica: int = 0) -> int:
    """The newest checkpoint that is intact on this disk, without what a power cut would take."""
    disk = disk.clone()
    segments = set()
    for file in list_segments(log_directory(DATA, replica), disk):
        with contextlib.suppress(CorruptLog):
            read_segment(file, LogIdentity(CLUSTER, ERA), disk)
            segments.add(file.number)
    reached = 0
    for start in (0, *map(number_of, list_bases(base_directory(DATA, replica), disk))):
        while start + 1 in segments:
            start += 1
        reached = max(start, reached)
    return reached


def segment(disk: VirtualDisk, number: int) -> Path:
    (path,) = [file.path for file in list_segments(log_directory(DATA, 0), disk) if file.number == number]
    return path


def numbers(disk: VirtualDisk) -> list[int]:
    return [file.number for file in list_segments(log_directory(DATA, 0), disk)]


@pytest.mark.parametrize("missing", [[2], [1], [2, 3], [2, 5], [4]])
def test_what_is_executed_behind_a_gap_is_written_again_before_it_is_announced(
    disk: VirtualDisk, missing: list[int]
) -> None:
    Watched(disk).decide(REQUESTS[: 6 * INTERVAL + 3])
    for number in missing:
        disk.flip(segment(disk, number), random.Random(number))
    life = Watched(disk, life=2)
    assert life.come_back() == missing[0] - 1
    life.decide(REQUESTS)
    assert [checkpoint.number for checkpoint in life.saved] == list(range(missing[0], NEWEST + 1))
    assert numbers(disk) == list(range(1, NEWEST + 1))
    assert Watched(disk, life=3).come_back() == NEWEST


def test_what_the_disk_cannot_read_now_comes_from_another_replica(disk: VirtualDisk) -> None:
    """Nobody waits until it can."""
    for replica in (0, 1):
        Watched(disk, replica=replica).decide(REQUESTS)
    bad = segment(disk, 4)
    inode = disk._files[bad]

    def cannot(what: str, path: Path) -> None:
        if what == "read" and disk._files.get(path) is inode:
            raise OSError(errno.EIO, "Input/output error", str(path))

    disk.trouble = cannot
    life = Watched(disk, life=2)
    assert life.come_back() == NEWEST
    assert disk._files[segment(disk, 4)] is not inode


def lose(life: Watched, number: int) -> None:
    """Something is not what it was when this life read it, and it looks again."""
    life.virtual.flip(segment(life.virtual, number), random.Random(number))
    assert life.log._writer is not None
    life.log._writer.segments.look_at_all()


def settle(life: Watched) -> None:
    for _ in range(HEAL_PAUSE_MAX * (WAITS_MAX + 1)):
        life.step()


@pytest.mark.parametrize("stopped", [True, False])
def test_a_gap_that_nobody_can_fill_is_left_behind_with_a_base(disk: VirtualDisk, stopped: bool) -> None:
    """Nothing is announced meanwhile. The executor takes one at the next checkpoint, or where it stands if it may not
    go on."""
    life = Watched(disk, made_by=bench(base_bytes_min=1 << 30, window=2 * INTERVAL))
    life.decide(REQUESTS[:60])
    lose(life, 3)
    life.step()
    if stopped:
        for begin in range(60, COUNT, 4):
            life.feed(*commits(REQUESTS[begin : begin + 4], first=begin))
        assert life.node.next == 9 * INTERVAL
        assert life.saved[-1].number == 60 // INTERVAL
    life.decide(REQUESTS)
    assert (life.node.next, life.saved[-1].number) == (COUNT, NEWEST)
    assert life.bases.numbers == [9]
    settle(life)
    assert life.log.status()["gaps"] == 0
    assert numbers(disk) == list(range(4, NEWEST + 1))
    assert Watched(disk, life=3).come_back() == NEWEST


def test_a_base_is_asked_for_again_while_there_is_none(disk: VirtualDisk) -> None:
    """It may have failed; one that is being drawn is not given up for another."""
    life = Watched(disk)
    life.decide(REQUESTS[:40])
    lose(life, 3)
    life.step()
    life.node.bases._wanted = -(1 << 30)
    life.feed(*commits(REQUESTS[40:56], first=40))
    for _ in range(20):
        life.step()
    asked = [answer for answer in life.answers if isinstance(answer, t.TakeBase)]
    assert 2 < len(asked) < 10
    assert set(asked) == {t.TakeBase(3)}
    assert [checkpoint.number for checkpoint in life.saved] == [1, 2, 3, 4, 5]


def test_a_gap_that_a_peer_fills_lets_the_log_announce_again(disk: VirtualDisk) -> None:
    peer = Watched(VirtualDisk(random.Random(2)), replica=1)
    peer.decide(REQUESTS)
    disk.mounts[log_directory(DATA, 1)] = lambda: peer.virtual
    life = Watched(disk)
    life.decide(REQUESTS[:40])
    lose(life, 3)
    life.decide(REQUESTS)
    settle(life)
    assert life.saved[-1].number == NEWEST
    assert numbers(disk) == list(range(1, NEWEST + 1))


def test_a_base_that_is_lost_counts_no_more(disk: VirtualDisk) -> None:
    """The log behind it does not lead anywhere, until there is another one."""
    life = Watched(disk, made_by=bench(base_bytes_min=100), retention_bytes=0)
    life.decide(REQUESTS[:60])
    assert min(numbers(disk)) > 1
    for number in life.bases.numbers:
        disk.unlink(base_path(base_directory(DATA, 0), number))
    known = life.bases.numbers
    life.decide(REQUESTS)
    assert life.saved[-1].number == NEWEST
    assert life.bases.numbers
    assert not set(life.bases.numbers) & set(known)


def test_a_segment_behind_the_gap_that_is_damaged_is_written_again_too(disk: VirtualDisk) -> None:
    """It was not read yet when the executor comes there."""
    Watched(disk).decide(REQUESTS[:60])
    disk.unlink(segment(disk, 2))
    life = Watched(disk, life=2)
    life.log.look_due_s = 1e9
    assert life.come_back() == 1
    disk.flip(segment(disk, 4), random.Random(1))
    life.decide(REQUESTS)
    assert numbers(disk) == list(range(1, NEWEST + 1))
    assert life.saved[-1].number == NEWEST


def test_a_life_that_ends_while_it_fills_a_gap_leaves_it_as_it_was(disk: VirtualDisk) -> None:
    Watched(disk).decide(REQUESTS[:60])
    disk.unlink(segment(disk, 2))
    life = Watched(disk, life=2)
    life.come_back()
    life.decide(REQUESTS[: INTERVAL + 5])
    assert len(disk.paths(log_directory(DATA, 0), (".tail",))) == 2
    life = Watched(disk, life=3)
    assert life.come_back() == 1
    assert len(disk.paths(log_directory(DATA, 0), (".tail",))) == 1
    life.decide(REQUESTS)
    assert numbers(disk) == list(range(1, NEWEST + 1))


def behind_a_base(disk: VirtualDisk) -> Watched:
    """One that begins with a peer's base, and lacks what stands before it."""
    peer = Watched(VirtualDisk(random.Random(2)), replica=1, made_by=bench(base_bytes_min=1 << 30))
    peer.decide(REQUESTS[: 8 * INTERVAL])
    peer.feed(t.TakeBase(9))
    peer.decide(REQUESTS)
    for directory in (log_directory(DATA, 1), base_directory(DATA, 1)):
        disk.mounts[directory] = lambda: peer.virtual
    life = Watched(disk, life=2)
    life.come_back()
    holders = [life.bench.status(1, checkpoints=[peer.saved[-1]])]
    life.executor.tick(1_000.0)
    life.feed(*life.bench.stables(NEWEST, digest=b"", executors=holders))
    return life


def test_history_is_fetched_one_segment_at_a_time_and_not_while_the_executor_is_led(disk: VirtualDisk) -> None:
    life = behind_a_base(disk)
    life.log.work()
    assert [type(answer) for answer in life.store.take()] == [t.Loaded]
    life.now_s += 10.0
    life.log.work()
    assert numbers(disk) == []
    life.log.submit(t.More())
    life.log.work()
    assert numbers(disk) == [10], "on its way"
    for count in range(1, 10):
        life.now_s += 10.0
        life.log.work()
        assert numbers(disk) == list(range(10 - count, NEWEST + 1))
    assert life.log.status()["gaps"] == 0


def test_what_is_missing_is_fetched_though_there_is_always_something_to_do(disk: VirtualDisk) -> None:
    life = behind_a_base(disk)
    for _ in range(PUT_OFF_MAX * NEWEST + 20):
        # Nobody asks for what follows.
        life.now_s += FLUSH_S
        life.log.work()
    assert life.log.status()["gaps"] == 0
