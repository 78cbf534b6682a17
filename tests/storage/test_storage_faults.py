"""An executor and its store on a disk that fails, at any call, in any way: what was announced is never lost, and what
is there is what was executed."""

import errno
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from tara.protocol import tuples as t
from tara.simulator.disk import Crash, VirtualDisk
from tara.storage.base_format import base_directory
from tara.storage.log import log_directory
from tara.storage.log_reader import LogReader
from tara.storage.segments import HEAL_PAUSE_MAX, WAITS_MAX
from tests.live.histories import history
from tests.storage.replicas import INTERVAL, StoredReplica, undisturbed

DATA = Path("/data")
REQUESTS = history(3, 90)
NEWEST = len(REQUESTS) // INTERVAL
#: How many ranges the calls of one life are divided into: one test each.
SHARES = 8


@cache
def truth() -> dict[int, tuple[bytes, bytes]]:
    return undisturbed(REQUESTS)


def replica(disk: VirtualDisk, life: int = 1, number: int = 0, retention_bytes: int = 0) -> StoredReplica:
    return StoredReplica(DATA, number, disk, life, retention_bytes)


def has_everything(life: StoredReplica) -> None:
    assert life.node.halted is None
    assert life.node.next == len(REQUESTS)
    assert (life.node.execution.checkpoint.digest, life.node.digest()) == truth()[len(REQUESTS)]


def rows(disk: VirtualDisk, tmp_path: Path, number: int = 0) -> dict[str, list[object]]:
    """What readers get of its log."""
    target = tmp_path / "log"
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        old.unlink()
    for path in disk.paths(log_directory(DATA, number), (".segment", ".tail")):
        if path.parent == log_directory(DATA, number):
            (target / path.name).write_bytes(disk.read(path))
    reader = LogReader(target)
    found: dict[str, list[object]] = reader.read(reader.bounds().first).to_pydict()
    return found


@cache
def all_rows(root: Path) -> dict[str, list[object]]:
    disk = VirtualDisk(random.Random(1))
    life = replica(disk, retention_bytes=1 << 30)
    life.decide(REQUESTS)
    return rows(disk, root)


class Calls:
    """Counts what is done to a disk, and lets some of it fail."""

    def __init__(self, disk: VirtualDisk, number: int = 0, reads: bool = True) -> None:
        self.count = 0
        self.fails: Callable[[int], bool] = lambda count: False
        self._number = number
        self._reads = reads
        disk.trouble = self

    def __call__(self, what: str, path: Path) -> None:
        if what == "read" and not self._reads:
            return
        self.count += 1
        if self.fails(self.count):
            raise OSError(self._number, "it fails", str(path))


def calls_of_a_life(second: bool) -> int:
    """How often the disk is called by an undisturbed life; the second one comes back first."""
    disk = VirtualDisk(random.Random(1))
    calls = Calls(disk)
    replica(disk).decide(REQUESTS[:60])
    if not second:
        return calls.count
    calls.count = 0
    life = replica(disk, life=2)
    life.come_back()
    life.decide(REQUESTS)
    return calls.count


FIRST_CALLS, SECOND_CALLS = calls_of_a_life(False), calls_of_a_life(True)


def share(calls: int, which: int) -> range:
    return range(1 + which, calls + 1, SHARES)


@pytest.mark.parametrize("which", range(SHARES))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_any_call_of_a_first_life_may_fail(number: int, which: int, tmp_path: Path) -> None:
    for call in share(FIRST_CALLS, which):
        disk = VirtualDisk(random.Random(call))
        calls = Calls(disk, number)
        calls.fails = lambda count, call=call: count == call  # type: ignore[misc]
        life = replica(disk, retention_bytes=1 << 30) if call > 4 else _tried_again(disk)
        life.decide(REQUESTS)
        has_everything(life)
        assert life.saved[-1].number == NEWEST
        assert rows(disk, tmp_path) == all_rows(tmp_path / "all")
        disk.lose_power()
        again = replica(disk, life=2)
        assert again.come_back() == NEWEST
        again.decide(REQUESTS)
        has_everything(again)


def _tried_again(disk: VirtualDisk) -> StoredReplica:
    """A container that cannot open its store does not start, and is started again."""
    try:
        return replica(disk, retention_bytes=1 << 30)
    except OSError:
        return replica(disk, retention_bytes=1 << 30)


@pytest.mark.parametrize("which", range(SHARES))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_any_call_of_a_life_that_comes_back_may_fail(number: int, which: int) -> None:
    """It may come back to less for once; what is announced is durable all the same."""
    for call in share(SECOND_CALLS, which):
        disk = VirtualDisk(random.Random(call))
        replica(disk).decide(REQUESTS[:60])
        calls = Calls(disk, number)
        calls.fails = lambda count, call=call: count == call  # type: ignore[misc]
        try:
            life = replica(disk, life=2)
        except OSError:
            life = replica(disk, life=2)
        life.come_back()
        life.decide(REQUESTS)
        has_everything(life)
        disk.lose_power()
        again = replica(disk, life=3)
        assert again.come_back() == NEWEST
        again.decide(REQUESTS)
        has_everything(again)


@pytest.mark.parametrize("seed", range(6))
def test_a_disk_that_is_full_for_a_while_holds_the_executor_back_and_loses_nothing(seed: int) -> None:
    disk = VirtualDisk(random.Random(seed))
    life = replica(disk)
    life.decide(REQUESTS[:20])
    disk.full, disk.full_share = True, 1.0
    life.decide(REQUESTS[:70])
    held = life.saved[-1].number
    assert held <= 3
    disk.heal()
    life.settle()
    life.decide(REQUESTS)
    has_everything(life)
    assert life.saved[-1].number == NEWEST


@pytest.mark.parametrize("seed", range(6))
def test_a_disk_that_fails_often_is_survived(seed: int) -> None:
    disk = VirtualDisk(random.Random(seed))
    draw = random.Random(seed)
    life = replica(disk)
    calls = Calls(disk, errno.EIO, reads=False)
    calls.fails = lambda count: draw.random() < 0.15
    for end in range(10, len(REQUESTS), 10):
        life.decide(REQUESTS[:end])
    disk.trouble = None
    life.decide(REQUESTS)
    has_everything(life)
    disk.lose_power()
    assert replica(disk, life=2).come_back() == NEWEST


def crashed(disk: VirtualDisk, power: bool) -> None:
    if power:
        disk.lose_power()
    disk.end_process()


@pytest.mark.parametrize("which", range(SHARES))
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_life_may_end_at_any_call(power: bool, which: int, tmp_path: Path) -> None:
    for call in share(FIRST_CALLS, which):
        disk = VirtualDisk(random.Random(call))
        disk.ends_in = call
        saved: list[t.CheckpointId] = []
        try:
            life = replica(disk)
            saved = life.saved
            life.decide(REQUESTS)
        except Crash:
            pass
        crashed(disk, power)
        again = replica(disk, life=2)
        back = again.come_back()
        assert back >= max((checkpoint.number for checkpoint in saved), default=0)
        assert again.node.digest() == truth()[back * INTERVAL][1]
        again.decide(REQUESTS)
        has_everything(again)
        assert again.errors() == []
        every = all_rows(tmp_path / "all")
        there = rows(disk, tmp_path)
        assert there == {name: column[len(column) - len(there[name]) :] for name, column in every.items()}


@pytest.mark.parametrize("which", range(SHARES))
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_life_that_comes_back_may_end_at_any_call(power: bool, which: int) -> None:
    for call in share(SECOND_CALLS, which):
        disk = VirtualDisk(random.Random(call))
        life = replica(disk)
        life.decide(REQUESTS[:60])
        saved = life.saved[-1].number
        crashed(disk, power)
        disk.ends_in = call
        try:
            second = replica(disk, life=2)
            second.come_back()
            second.decide(REQUESTS)
            saved = second.saved[-1].number
        except Crash:
            pass
        crashed(disk, power)
        again = replica(disk, life=3)
        assert again.come_back() >= saved
        again.decide(REQUESTS)
        has_everything(again)


@pytest.mark.parametrize("seed", range(40))
def test_lives_that_end_again_and_again_come_further_all_the_same(seed: int) -> None:
    draw = random.Random(seed)
    disk = VirtualDisk(draw)
    saved = 0
    for life in range(1, 60):
        disk.ends_in = draw.randrange(5, 60)
        try:
            now = replica(disk, life)
            assert life == 1 or now.come_back() >= saved
            now.decide(REQUESTS, pieces=draw.randrange(1, 9))
            saved = max(saved, now.saved[-1].number if now.saved else 0)
            disk.ends_in = None
            break
        except Crash:
            saved = max(saved, now.saved[-1].number if now.saved else 0)
        crashed(disk, power=draw.random() < 0.5)
    has_everything(now)


class Cluster:
    """Three replicas that have executed it all, each on a disk of its own, which the others can read."""

    def __init__(self, seed: int = 1, retention_bytes: int = 1 << 30, shared: bool = True) -> None:
        self.draw = random.Random(seed)
        self.disks = [VirtualDisk(self.draw) for _ in range(3)]
        self._retention_bytes = retention_bytes
        for own, disk in enumerate(self.disks):
            for other in range(3):
                if other != own:
                    for directory in (base_directory(DATA, other), log_directory(DATA, other)):
                        disk.mounts[directory] = partial(self._disk_of, other) if shared else lambda: None
        self.lives = [self._life(number, 1) for number in range(3)]
        for life in self.lives:
            life.decide(REQUESTS)

    def _disk_of(self, number: int) -> VirtualDisk:
        return self.disks[number]

    def _life(self, number: int, life: int) -> StoredReplica:
        return replica(self.disks[number], life, number, retention_bytes=self._retention_bytes)

    def restart(self, life: int = 2) -> StoredReplica:
        """The first one, which has been harmed meanwhile."""
        return self._life(0, life)

    def files(self, *suffixes: str) -> list[Path]:
        """Of the first one."""
        return [path for path in self.disks[0].paths(DATA, suffixes) if "damaged" not in path.parts]


def healed(life: StoredReplica, times: int = HEAL_PAUSE_MAX * (WAITS_MAX + 1)) -> None:
    """Until everything was read, and all that can be done about what is missing."""
    for _ in range(times):
        life.step()


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_are_replaced_by_those_of_peers(seed: int, tmp_path: Path) -> None:
    cluster = Cluster(seed)
    disk = cluster.disks[0]
    harmed = []
    for _ in range(cluster.draw.randrange(1, 4)):
        path = cluster.draw.choice(cluster.files(".segment", ".base"))
        kinds = cluster.files(path.suffix)
        harmed.append((path, disk.damage(path, kinds)))
    life = cluster.restart()
    life.come_back()
    life.follow(cluster.lives[1:])
    life.decide(REQUESTS)
    has_everything(life)
    healed(life)
    status = life.log.status()
    assert (status["gaps"], status["unread"]) == (0, 0), harmed
    assert rows(disk, tmp_path) == all_rows(tmp_path / "all")
    again = cluster.restart(3)
    assert again.come_back() == NEWEST
    again.decide(REQUESTS)
    has_everything(again)


@pytest.mark.parametrize("seed", range(40))
def test_without_peers_it_comes_back_to_what_is_left_and_goes_on(seed: int) -> None:
    """The commits of what it lacks come from others; and whatever was damaged, the next life is whole again."""
    disk = VirtualDisk(random.Random(seed))
    draw = random.Random(seed)
    replica(disk, retention_bytes=draw.choice((0, 1 << 30))).decide(REQUESTS[:70])
    for _ in range(draw.randrange(1, 4)):
        path = draw.choice(disk.paths(DATA, (".segment", ".base")))
        disk.damage(path, disk.paths(DATA, (path.suffix,)))
    life = replica(disk, life=2)
    back = life.come_back()
    assert life.node.digest() == truth()[back * INTERVAL][1]
    for end in range(70, len(REQUESTS) + 1, 5):
        life.decide(REQUESTS[:end])
        healed(life, 30)
    has_everything(life)
    healed(life)
    assert life.log.status()["gaps"] == 0
    assert replica(disk, life=3).come_back() == NEWEST


def test_a_damaged_base_is_passed_over_for_the_one_before_and_more_of_the_log() -> None:
    disk = VirtualDisk(random.Random(1))
    replica(disk).decide(REQUESTS)
    older, newest = disk.paths(base_directory(DATA, 0))
    disk.flip(newest, random.Random(1))
    life = replica(disk, life=2)
    assert life.come_back() == NEWEST
    assert life.bases.counts.bases_refused == 1
    (loaded,) = [answer for answer in life.answers if isinstance(answer, t.Loaded)]
    assert loaded.base is not None
    assert loaded.base.number == int(older.stem)


def test_a_replica_that_has_lost_its_disk_gets_everything_from_a_peer() -> None:
    cluster = Cluster(retention_bytes=0)
    cluster.disks[0].forget(DATA)
    life = cluster.restart()
    assert life.come_back() == 0
    life.follow(cluster.lives[1:])
    assert life.node.next == NEWEST * INTERVAL
    life.decide(REQUESTS)
    has_everything(life)
    # It does not need them the next time.
    cluster.disks[1:] = [VirtualDisk(cluster.draw), VirtualDisk(cluster.draw)]
    assert cluster.restart(3).come_back() == NEWEST
