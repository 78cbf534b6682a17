"""The decided log on a real disk: what is in it, and that it survives what disks and processes do."""

import errno
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tara.protocol import tuples as t
from tara.simulator.disk import VirtualDisk
from tara.storage import log as log_module
from tara.storage.log import DecidedLog
from tara.storage.log_format import (
    BLOCK_BYTES,
    FORMAT_VERSION,
    CorruptLog,
    LogError,
    LogIdentity,
    encode_run,
    list_tails,
    read_header,
)
from tara.storage.log_reader import LogBounds, LogReader, LogTruncated, best_log, list_files
from tara.storage.log_rows import SCHEMA
from tara.storage.log_writer import ASIDE, HEAL_PAUSE_MAX, WAITS_MAX, EncodedRun, LogSettings, LogWriter, RowsLost
from tara.storage.store import CheckpointStore, StoreFailed
from tests.live.histories import INTERVAL, bench, executor, handed_over, history, puts
from tests.live.small_disk import SmallDisk
from tests.patience import DEADLINE_S, await_condition
from tests.storage.workers import work_for

Handed = Sequence[t.Executed | t.Save]


def settings(cluster: int = 7, era: int = 1, retention_bytes: int = 1 << 30, interval: int = INTERVAL) -> LogSettings:
    return LogSettings(
        identity=LogIdentity(cluster, era), partitions=1, checkpoint_interval=interval, retention_bytes=retention_bytes
    )


def opened(directory: Path, peers: Sequence[Path] = (), **changes: int) -> tuple[LogWriter, list[str]]:
    reports: list[str] = []
    return LogWriter(directory, settings(**changes), peers, reports.append), reports


def encoded(executed: t.Executed) -> EncodedRun:
    count = len(executed.requests)
    return EncodedRun(executed.counter, executed.counters[-1], executed.first + count, count, encode_run(executed))


def write(writer: LogWriter, handed: Handed) -> None:
    for tuple_ in handed:
        if isinstance(tuple_, t.Executed):
            writer.take(encoded(tuple_))
        else:
            writer.seal(tuple_.number, tuple_.state)


def written(directory: Path, handed: Handed, **changes: int) -> LogReader:
    writer, reports = opened(directory, (), **changes)
    write(writer, handed)
    writer.flush()
    assert reports == []
    return LogReader(directory)


def names(directory: Path, kind: str = "segment") -> list[str]:
    return sorted(path.name for path in directory.glob(f"*.{kind}"))


def ranges(directory: Path) -> list[str]:
    """What the segments hold, without their checksums."""
    return [name.rpartition("-")[0] for name in names(directory)]


def simple(count: int, interval: int = INTERVAL) -> Handed:
    """What an executor hands over that executes puts one by one."""
    return handed_over(executor(bench(interval)), puts(count), range(1, count))


def checkpoint_of(handed: Handed, number: int) -> int:
    """The index behind this checkpoint's save."""
    return (
        next(index for index, tuple_ in enumerate(handed) if isinstance(tuple_, t.Save) and tuple_.number == number) + 1
    )


def hand_over(log: DecidedLog, handed: Handed) -> None:
    """One by one; whatever failed is tried again."""
    for tuple_ in handed:
        if isinstance(tuple_, t.Executed):
            log.append(tuple_)
        else:
            log.checkpoint(tuple_.number, tuple_.state)
        log.work()
        log.work()


# What is in it


def test_every_command_has_a_row_with_what_came_of_it(tmp_path: Path) -> None:
    reader = written(tmp_path, simple(40))

    assert reader.bounds() == LogBounds(1, 41)
    table = reader.read(1)
    assert table.schema == SCHEMA
    first, second = table.slice(0, 2).to_pylist()
    assert (first["counter"], first["kind"], first["session"], first["time_ms"]) == (1, t.OPEN, 0, 1_000)
    assert second == {
        "counter": 2,
        "sequence": 1,
        "partition": 0,
        "source": 0,
        "epoch": 1,
        "session": 1,
        "number": 0,
        "kind": t.EXECUTE,
        "command": b"\x93\x01\xa5key-0\xc4\x05value",
        "status": t.OK,
        "result": b"\xc0",
        "time_ms": 1_001,
        "clock_ms": 1,
        "principal": b"",
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_log_is_the_same_on_all_replicas_however_decisions_come(tmp_path: Path, seed: int) -> None:
    """With all that can happen to a command; and each row says what its command was answered."""
    requests = history(seed, 400)
    rng = random.Random(seed)
    cuts: list[Sequence[int]] = [range(1, 400), [], sorted(rng.sample(range(1, 400), 60))]
    readers = []
    for replica, cut in enumerate(cuts):
        handed = handed_over(executor(bench()), requests, cut)
        writer, _ = opened(tmp_path / str(replica))
        for tuple_ in handed:
            write(writer, [tuple_])
            if rng.random() < 0.2:
                writer.flush()
        writer.flush()
        readers.append(LogReader(tmp_path / str(replica)))
    tables = [reader.read(1) for reader in readers]

    assert ranges(tmp_path / "0") == ranges(tmp_path / "1") == ranges(tmp_path / "2") != []
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    assert tables[0].column("counter").to_pylist() == list(range(1, tables[0].num_rows + 1))
    assert set(tables[0].column("kind").to_pylist()) == {t.EXECUTE, t.QUERY, t.OPEN, t.CLOSE, t.EXPIRE}
    one_by_one = [
        tuple_ for tuple_ in handed_over(executor(bench()), requests, cuts[0]) if isinstance(tuple_, t.Executed)
    ]
    for executed in one_by_one:
        rows = tables[0].slice(executed.counter, len(executed.commands)).to_pylist()
        answers = {result.counter: result for result in executed.results if result.status <= t.FAILED}
        for row, command in zip(rows, executed.commands, strict=True):
            assert (row["session"], row["kind"], row["command"]) == (command.session, command.kind, command.payload)
            assert row["number"] % 2**64 == command.number
            assert (row["sequence"], row["time_ms"]) == (executed.first, executed.times[0])
            assert row["clock_ms"] == executed.clocks[0]
            if command.kind == t.EXPIRE:
                assert (row["status"], row["result"]) == (t.OK, b"")
            else:
                answer = answers[row["counter"]]
                assert (row["status"], row["result"]) == (answer.status, answer.payload)


def test_a_range_is_read_across_segments_and_tails(tmp_path: Path) -> None:
    reader = written(tmp_path, simple(45))
    assert len(names(tmp_path)) == 2
    assert len(names(tmp_path, "tail")) == 1

    assert reader.read(10, 40).column("counter").to_pylist() == list(range(10, 40))
    assert reader.read(40, 1_000).column("counter").to_pylist() == list(range(40, 46))
    assert reader.read(46).num_rows == 0
    with pytest.raises(LogError, match="numbered from 1"):
        reader.read(0)


def test_rows_come_block_by_block(tmp_path: Path) -> None:
    """Neither the writer nor a reader has a whole segment in memory."""
    handed = handed_over(executor(bench(4000)), puts(1000, b"v" * 2000), range(1, 1000))
    writer, _ = opened(tmp_path, interval=4000)
    for tuple_ in handed:
        write(writer, [tuple_])
    sizes = [batch.nbytes for batch in LogReader(tmp_path).batches(1)]

    assert len(sizes) == 3
    assert max(sizes) < 1.2 * BLOCK_BYTES
    assert LogReader(tmp_path).read(500, 502).column("counter").to_pylist() == [500, 501]


def test_there_is_one_tail_and_it_grows(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path, interval=100_000)
    reader = LogReader(tmp_path)
    for count, tuple_ in enumerate(simple(500, interval=4000), 1):
        write(writer, [tuple_])
        writer.flush()
        assert LogReader(tmp_path).bounds() == LogBounds(1, count + 1)
        assert reader.read(count).column("counter").to_pylist() == [count]
    assert len(names(tmp_path, "tail")) == 1


# Crashes


@pytest.mark.parametrize("restart_from", [0, 1, 2])
@pytest.mark.parametrize("died_at", [33, 40, 49])
def test_what_is_executed_again_is_not_logged_again(tmp_path: Path, restart_from: int, died_at: int) -> None:
    """The log of a former life reaches further than the checkpoint that the executor starts from."""
    handed = simple(70)
    expected = written(tmp_path / "undisturbed", handed).read(1)
    writer, _ = opened(tmp_path / "log")
    write(writer, handed[:died_at])
    writer.flush()
    behind = checkpoint_of(handed, restart_from) if restart_from else 0
    saved = [handed[behind - 1]] if restart_from else []

    again, reports = opened(tmp_path / "log")
    assert again.last == writer.last
    write(again, [*saved, *handed[behind:]])
    again.flush()

    assert reports == []
    assert LogReader(tmp_path / "log").read(1).equals(expected)
    assert ranges(tmp_path / "log") == ranges(tmp_path / "undisturbed")


def test_decisions_may_come_in_other_runs_when_they_are_executed_again(tmp_path: Path) -> None:
    """So a run may begin with rows that the log has, and go on with new ones."""
    expected = written(tmp_path / "undisturbed", simple(70)).read(1)
    writer, _ = opened(tmp_path / "log")
    write(writer, simple(70)[:24])
    writer.flush()

    again, _ = opened(tmp_path / "log")
    write(again, handed_over(executor(bench()), puts(70), range(5, 70, 5)))
    again.flush()

    assert LogReader(tmp_path / "log").read(1).equals(expected)


def test_a_former_life_may_have_had_more_than_the_checkpoint(tmp_path: Path) -> None:
    """It passed over a checkpoint that newer ones had overtaken, and left rows from beyond it."""
    handed = simple(70)
    writer, _ = opened(tmp_path / "log")
    write(writer, [tuple_ for tuple_ in handed[:60] if isinstance(tuple_, t.Executed)])
    writer.flush()

    again, _ = opened(tmp_path / "log")
    write(again, handed)
    again.flush()

    assert LogReader(tmp_path / "log").read(1).equals(written(tmp_path / "undisturbed", handed).read(1))


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    handed = simple(40)
    writer, _ = opened(tmp_path)
    write(writer, handed[:30])
    writer.flush()
    (tail,) = tmp_path.glob("*.tail")
    tail.write_bytes(tail.read_bytes()[:200])
    (tmp_path / "0000000000000001-0000000000000016-00000000.segment.99.tmp").write_bytes(b"half")

    again, _ = opened(tmp_path)

    assert again.last == 16
    assert sorted(path.name.rpartition(".")[2] for path in tmp_path.iterdir()) == ["begin", "segment"]
    write(again, handed[checkpoint_of(handed, 1) - 1 :])
    again.flush()
    assert LogReader(tmp_path).read(1).num_rows == 40


@pytest.mark.parametrize("damage", ["cut", "zeros", "flipped"])
def test_a_tail_is_continued_where_it_is_intact(tmp_path: Path, damage: str) -> None:
    """It is not synced, so a machine that went down may have left anything at its end."""
    handed = simple(12)
    writer, _ = opened(tmp_path)
    for tuple_ in handed[:10]:
        write(writer, [tuple_])
        writer.flush()
    (tail,) = list_tails(tmp_path)
    data = tail.read_bytes()
    spoilt = {"cut": data[:-5], "zeros": data[:-40] + bytes(5000), "flipped": data[:-1] + bytes([data[-1] ^ 1])}
    tail.write_bytes(spoilt[damage])

    again, reports = opened(tmp_path)

    assert (again.last, reports) == (9, [])
    assert LogReader(tmp_path).read(1).num_rows == 9
    write(again, handed)
    again.flush()
    assert LogReader(tmp_path).read(1).num_rows == 12


CHILD = """
import sys
from pathlib import Path
from tests.live.test_log import opened, simple, write
handed = simple(3000, interval=64)
writer, _ = opened(Path(sys.argv[1]), interval=64)
print("open", flush=True)
for tuple_ in handed:
    write(writer, [tuple_])
    writer.flush()
"""


def test_a_writer_that_is_killed_anywhere_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    rng = random.Random(1)
    handed = simple(3000, interval=64)
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        time.sleep(rng.uniform(0.05, 0.3))
        child.kill()
        child.wait()
        child.stdout.close()
        reader = LogReader(tmp_path)
        bounds = reader.bounds()
        assert reader.read(1).column("counter").to_pylist() == list(range(1, bounds.end))
    again, reports = opened(tmp_path, interval=64)
    write(again, handed)
    again.flush()

    assert reports == []
    assert LogReader(tmp_path).read(1).equals(written(tmp_path / "undisturbed", handed, interval=64).read(1))


def test_nothing_is_lost_when_the_disk_is_full_for_a_while(tmp_path: Path) -> None:
    handed = simple(40)
    writer, _ = opened(tmp_path)
    write(writer, handed[:10])
    with SmallDisk(16), pytest.raises(OSError, match="File too large"):
        writer.flush()
    write(writer, handed[10:16])
    save = handed[16]
    assert isinstance(save, t.Save)
    with SmallDisk(16), pytest.raises(OSError, match="File too large"):
        writer.seal(save.number, save.state)
    assert list(tmp_path.iterdir()) == []

    write(writer, handed[16:])
    writer.flush()
    assert LogReader(tmp_path).read(1).num_rows == 40


def unsynced(directory: Path, disk: VirtualDisk) -> tuple[LogWriter, Handed]:
    """A writer whose disk has failed to sync its rows; and the checkpoint that it is to be durable for."""
    handed = simple(2 * INTERVAL)
    writer = LogWriter(directory, settings(), (), list[str]().append, disk=disk)
    end = checkpoint_of(handed, 1)
    write(writer, handed[: end - 1])
    disk.errors = [("sync", "*.tail", errno.EIO)]
    with pytest.raises(OSError, match="Input/output"):
        write(writer, handed[end - 1 : end])
    return writer, handed[end - 1 : end]


def test_rows_whose_sync_failed_are_written_again(tmp_path: Path) -> None:
    """The next sync of the same file would say that all is well: the machine has given up what was to be synced."""
    disk = VirtualDisk(random.Random(1))
    writer, checkpoint = unsynced(tmp_path, disk)
    write(writer, checkpoint)

    disk.lose_power()
    disk.end_process()
    reports: list[str] = []
    again = LogWriter(tmp_path, settings(), (), reports.append, disk=disk)
    again.look_after()
    assert (again.first, again.last, reports) == (1, INTERVAL, [])


def test_rows_that_are_gone_after_a_failed_sync_are_not_taken_for_durable(tmp_path: Path) -> None:
    disk = VirtualDisk(random.Random(1))
    writer, checkpoint = unsynced(tmp_path, disk)
    disk.flip(list_tails(tmp_path, disk)[0], random.Random(2))
    with pytest.raises(RowsLost, match="a sync has failed"):
        write(writer, checkpoint)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_segment_whose_name_was_not_durable_at_once_is_sealed_all_the_same(tmp_path: Path, number: int) -> None:
    """It has its new name when the sync of the directory fails: there is no tail any more that could be sealed."""
    disk = VirtualDisk(random.Random(1))
    handed = simple(3 * INTERVAL)
    directory = tmp_path / "log-0"
    log = DecidedLog(directory, settings(), [directory], None, disk)
    disk.errors = [("sync", "log-0", number)]
    hand_over(log, handed)
    assert (log.sealed, disk.errors) == (3, [])

    disk.lose_power()
    reports: list[str] = []
    again = LogWriter(directory, settings(), (), reports.append, disk=disk)
    for _ in range(3):
        again.look_after()
    assert (again.first, again.gaps, reports) == (1, [], [])


def test_a_log_that_begins_anew_goes_on_when_its_beginning_could_not_be_written(tmp_path: Path) -> None:
    disk = VirtualDisk(random.Random(1))
    handed = simple(8 * INTERVAL)
    directory = tmp_path / "log-0"
    log = DecidedLog(directory, settings(), [directory], None, disk)
    hand_over(log, handed[: checkpoint_of(handed, 2) + 3])
    disk.errors = [("create", "begin*", errno.ENOSPC)]
    hand_over(log, handed[checkpoint_of(handed, 4) - 1 :])

    assert (log.sealed, disk.errors) == (8, [])
    assert [disk.names(directory / ASIDE / name) != [] for name in disk.names(directory / ASIDE)] == [True]
    again = LogWriter(directory, settings(), (), list[str]().append, disk=disk)
    assert (again.first, again.gaps) == (4 * INTERVAL + 1, [])


@pytest.mark.parametrize("error", [("create", "begin*"), ("unlink", "*.segment")])
def test_segments_that_retention_could_not_drop_go_with_the_next_ones(tmp_path: Path, error: tuple[str, str]) -> None:
    disk = VirtualDisk(random.Random(1))
    directory = tmp_path / "log-0"
    log = DecidedLog(directory, settings(retention_bytes=6_000), [directory], None, disk)
    for tuple_ in simple(20 * INTERVAL):
        if isinstance(tuple_, t.Save) and tuple_.number < 15:
            disk.errors = [(*error, errno.EIO)]
        hand_over(log, [tuple_])

    sizes = [disk.size(directory / name) for name in disk.names(directory) if name.endswith(".segment")]
    assert (log.sealed, len(sizes) > 1, sum(sizes) <= 6_000) == (20, True, True)


# Damage


def test_a_damaged_segment_is_named(tmp_path: Path) -> None:
    written(tmp_path, simple(40))
    path = sorted(tmp_path.glob("*.segment"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))

    reader = LogReader(tmp_path)
    assert reader.read(1, 17).num_rows == 16
    with pytest.raises(CorruptLog, match=rf"{path.name}: the contents are damaged"):
        reader.read(17, 20)


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    written(tmp_path, simple(60))
    sorted(tmp_path.glob("*.segment"))[1].unlink()

    reader = LogReader(tmp_path)
    assert reader.bounds() == LogBounds(1, 17)


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tara.storage.log_format.FORMAT_VERSION", FORMAT_VERSION + 1)
        written(tmp_path, simple(20))

    with pytest.raises(LogError, match="has format version"):
        LogReader(tmp_path).read(1)
    with pytest.raises(LogError, match="has format version"):
        opened(tmp_path)


def test_a_container_does_not_go_on_with_a_log_of_a_newer_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would never save a checkpoint, and nobody would know why."""
    directory = tmp_path / "log-0"
    with monkeypatch.context() as patch:
        patch.setattr("tara.storage.log_format.FORMAT_VERSION", FORMAT_VERSION + 1)
        written(directory, simple(20))

    log = DecidedLog(directory, settings(), [directory])
    store = CheckpointStore(tmp_path / "checkpoints-0", 7, 1, [tmp_path / "checkpoints-0"], lambda: None, log)
    for tuple_ in simple(2 * INTERVAL):
        store.submit(tuple_)
    log.work()
    log.work()
    with pytest.raises(StoreFailed, match="has format version"):
        next(store.take())
    assert len(log.errors) == 1


def test_a_peers_log_that_cannot_be_listed_is_waited_for(tmp_path: Path) -> None:
    """It may be the only one that has what is missing."""
    disk = VirtualDisk(random.Random(1))
    own, *peers = (tmp_path / f"log-{replica}" for replica in range(3))
    handed = simple(4 * INTERVAL)
    write(LogWriter(peers[0], settings(), (), list[str]().append, disk=disk), handed)
    reports: list[str] = []
    writer = LogWriter(own, settings(), (own, *peers), reports.append, disk=disk)
    write(writer, handed[: checkpoint_of(handed, 1)])
    disk.errors = [("list", "log-1", errno.EACCES)]
    write(writer, handed[checkpoint_of(handed, 3) - 1 : checkpoint_of(handed, 3)])
    assert (writer.gaps, disk.errors) == ([(INTERVAL + 1, 3 * INTERVAL)], [])

    looked_after(writer)
    assert (writer.first, writer.last, writer.gaps) == (1, 3 * INTERVAL, [])
    assert "cannot be listed" in reports[0]


def test_another_clusters_log_is_set_aside_and_not_continued(tmp_path: Path) -> None:
    old = written(tmp_path, simple(20))
    old.read(1)

    writer, reports = opened(tmp_path, era=2)
    assert "another cluster, era or format" in reports[0]
    write(writer, simple(40))

    assert len(names(tmp_path / ASIDE / "000001")) == 1
    assert LogReader(tmp_path).read(1).num_rows == 32
    with pytest.raises(LogError, match="belongs to cluster 7, era 2"):
        old.read(17)


def test_a_log_of_the_first_format_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "0000000000000001-0000000000000016-00000000.segment").write_bytes(b"ARROW1\0\0 and so on")

    writer, reports = opened(tmp_path)

    assert "format" in reports[0]
    write(writer, simple(20))
    assert LogReader(tmp_path).bounds() == LogBounds(1, 17)


# Gaps


def test_a_replica_that_jumps_to_a_peers_checkpoint_copies_what_it_lacks(tmp_path: Path) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(3)]
    peer = written(directories[1], handed)
    writer, reports = opened(directories[0], directories)
    write(writer, handed[:20])
    writer.flush()

    write(writer, handed[checkpoint_of(handed, 5) - 1 :])
    writer.flush()

    assert reports == []
    assert LogReader(directories[0]).read(1).equals(peer.read(1))
    assert ranges(directories[0]) == ranges(directories[1])


def test_a_gap_is_filled_when_a_peer_gets_there_and_the_log_goes_on_meanwhile(tmp_path: Path) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(2)]
    peer, _ = opened(directories[1])
    write(peer, handed[: checkpoint_of(handed, 4)])
    writer, reports = opened(directories[0], directories)
    write(writer, handed[:20])
    write(writer, handed[checkpoint_of(handed, 5) - 1 :])
    assert "waits for a peer to have the commands up to 80" in reports[0]
    looked_after(writer, 20)
    assert writer.gaps == [(20, 80)]
    assert (writer.first, writer.last) == (1, 100)

    write(peer, handed[checkpoint_of(handed, 4) :])
    looked_after(writer)

    assert writer.gaps == []
    assert LogReader(directories[0]).read(1).num_rows == 96


def test_a_peer_that_never_gets_there_is_not_waited_for_endlessly(tmp_path: Path) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(2)]
    written(directories[1], handed[: checkpoint_of(handed, 4)])
    log = DecidedLog(directories[0], settings(), directories)
    last = handed[checkpoint_of(handed, 5) - 1]
    assert isinstance(last, t.Save)
    log.checkpoint(last.number, last.state)
    log.work()
    assert log.sealed == 5
    assert log.status()["gaps"] == 1

    for _ in range(HEAL_PAUSE_MAX * WAITS_MAX):
        log.work()
    assert log.status()["gaps"] == 0
    assert log.status()["first"] == 81


def test_a_damaged_copy_of_a_peer_is_not_taken(tmp_path: Path) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(3)]
    for directory in directories[1:]:
        written(directory, handed)
    damaged = sorted(directories[1].glob("*.segment"))[2]
    damaged.write_bytes(bytes(damaged.stat().st_size))
    writer, reports = opened(directories[0], directories)
    write(writer, handed[:20])

    write(writer, handed[checkpoint_of(handed, 5) - 1 :])
    writer.flush()

    assert damaged.name in reports[0]
    assert LogReader(directories[0]).read(1).num_rows == 100


def test_a_gap_that_nobody_can_fill_makes_the_log_begin_anew(tmp_path: Path) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(2)]
    written(directories[1], handed)
    for old in sorted(directories[1].glob("*.segment"))[:3]:
        old.unlink()
    writer, reports = opened(directories[0], directories)
    write(writer, handed[:20])

    write(writer, handed[checkpoint_of(handed, 5) - 1 :])
    writer.flush()

    assert "no peer has all commands of [17, 80]" in reports[0]
    reader = LogReader(directories[0])
    assert reader.bounds() == LogBounds(49, 101)
    with pytest.raises(LogTruncated, match="begins at 49") as caught:
        reader.read(17)
    assert caught.value.first == 49
    assert len(names(directories[0] / ASIDE / "000001")) == 1


# Retention


def test_retention_drops_the_oldest_segments_and_readers_are_told(tmp_path: Path) -> None:
    reader = written(tmp_path, simple(200), retention_bytes=4_000)

    size = sum(path.stat().st_size for path in tmp_path.glob("*.segment"))
    assert size <= 4_000
    first = reader.bounds().first
    assert 1 < first <= 193
    assert reader.read(first).num_rows == 201 - first
    with pytest.raises(LogTruncated):
        reader.read(first - 1)


def test_a_reader_behind_a_log_that_is_only_a_tail_is_told(tmp_path: Path) -> None:
    handed = simple(40)
    writer, _ = opened(tmp_path)
    write(writer, handed[checkpoint_of(handed, 1) - 1 : checkpoint_of(handed, 1) + 5])
    writer.flush()

    assert LogReader(tmp_path).bounds() == LogBounds(17, 22)
    with pytest.raises(LogTruncated, match="begins at 17"):
        LogReader(tmp_path).read(3)


def test_the_newest_segment_stays_whatever_its_size(tmp_path: Path) -> None:
    written(tmp_path, simple(48), retention_bytes=1)

    assert [file.first for file in list_files(tmp_path)] == [33]


# With its thread, and with the checkpoint store


def test_reading_goes_on_while_the_log_is_written(tmp_path: Path) -> None:
    handed = simple(3000, interval=100)
    log = DecidedLog(tmp_path, settings(interval=100), [])
    log.pause_s = 0.002
    worker = work_for(log)
    counters: list[int] = []

    def follow() -> None:
        for batch in LogReader(tmp_path).follow(1, lambda: len(counters) >= 3000, poll_s=0.005):
            counters.extend(batch.column("counter").to_pylist())

    thread = threading.Thread(target=follow)
    thread.start()
    for tuple_ in handed:
        if isinstance(tuple_, t.Executed):
            log.append(tuple_)
        else:
            log.checkpoint(tuple_.number, tuple_.state)
            time.sleep(0.01)
    thread.join(DEADLINE_S)
    worker.close()

    assert log.errors == []
    assert counters == list(range(1, 3001))


def test_rows_become_visible_without_a_checkpoint_or_another_row(tmp_path: Path) -> None:
    log = DecidedLog(tmp_path, settings(), [])
    worker = work_for(log)
    await_condition(lambda: log.status()["last"] == 0, "the log to be open")
    log.append(simple(5)[0])  # type: ignore[arg-type]
    await_condition(lambda: LogReader(tmp_path).bounds().end == 2, "the row")

    worker.close()


def test_a_checkpoint_is_written_only_when_the_log_up_to_it_is_durable(tmp_path: Path) -> None:
    """The log's directory cannot be made at first: a file is in its place."""
    handed = simple(20)
    obstacle = tmp_path / "log-0"
    obstacle.write_bytes(b"")
    log = DecidedLog(obstacle, settings(), [])
    woken = threading.Semaphore(0)
    directory = tmp_path / "checkpoints-0"
    store = CheckpointStore(directory, 7, 1, [directory], woken.release, log)
    workers = [work_for(log), work_for(store)]
    for tuple_ in handed:
        store.submit(tuple_)
    await_condition(lambda: log.errors, "an error")
    assert not woken.acquire(timeout=0.5)
    assert list(directory.iterdir()) == []

    obstacle.unlink()
    assert woken.acquire(timeout=DEADLINE_S)

    (saved,) = store.take()
    assert isinstance(saved, t.Saved)
    assert LogReader(obstacle).bounds() >= LogBounds(1, 17)
    for worker in workers:
        worker.close()
    assert LogReader(obstacle).bounds() == LogBounds(1, 21)


def test_a_log_that_falls_far_behind_lets_go_and_catches_up_from_a_peer(tmp_path: Path) -> None:
    handed = simple(400)
    directories = [tmp_path / f"log-{replica}" for replica in range(2)]
    written(directories[1], handed)
    directories[0].write_bytes(b"")
    log = DecidedLog(directories[0], settings(), directories)
    for tuple_ in handed:
        if isinstance(tuple_, t.Executed):
            log.append(tuple_)
        else:
            log.checkpoint(tuple_.number, tuple_.state)
    assert log.status()["waiting"] == log_module.BACKLOG_INTERVALS_MAX * INTERVAL + 1

    log.work()
    assert log.status()["waiting"] == log_module.BACKLOG_INTERVALS_MAX * INTERVAL + 1
    directories[0].unlink()
    log.work()
    assert log.sealed == 400 // INTERVAL

    assert LogReader(directories[0]).read(1).num_rows == 400
    assert ranges(directories[0]) == ranges(directories[1])


def test_rows_that_are_given_up_do_not_stop_the_checkpoints(tmp_path: Path) -> None:
    """After an error that trying again would not mend; a peer has the rows."""
    handed = simple(40)
    directories = [tmp_path / f"log-{replica}" for replica in range(2)]
    written(directories[1], handed)
    writer, _ = opened(directories[0], directories)
    write(writer, handed[:20])
    writer.flush()

    writer.give_up_rows()
    assert list_tails(directories[0]) == []
    write(writer, handed[20:])
    writer.flush()

    assert LogReader(directories[0]).read(1).equals(LogReader(directories[1]).read(1))


def test_the_log_that_reaches_furthest_is_the_best(tmp_path: Path) -> None:
    written(tmp_path / "log-0", simple(20))
    written(tmp_path / "log-1", simple(40))
    shutil.copytree(tmp_path / "log-0", tmp_path / "log-2")

    assert best_log(tmp_path).directory == tmp_path / "log-1"
    with pytest.raises(LogError, match="no decided log here"):
        best_log(tmp_path / "nothing")


# Damage to what is sealed


def three_logs(root: Path) -> list[Path]:
    directories = [root / f"log-{replica}" for replica in range(3)]
    for directory in directories:
        written(directory, simple(100))
    return directories


def looked_after(writer: LogWriter, times: int = 200) -> None:
    """Until everything was read, and every gap was filled as far as peers can."""
    for _ in range(times):
        writer.look_after()


def harmed(path: Path, how: str) -> None:
    match how:
        case "flip":
            data = bytearray(path.read_bytes())
            data[len(data) // 3] ^= 4
            path.write_bytes(bytes(data))
        case "cut":
            path.write_bytes(path.read_bytes()[:-9])
        case "remove":
            path.unlink()


@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_a_segment_that_is_damaged_or_missing_is_fetched_again(tmp_path: Path, which: int, how: str) -> None:
    own, *peers = three_logs(tmp_path)
    truth = LogReader(peers[0]).read(1)
    segments = sorted(own.glob("*.segment"))
    harmed(segments[which], how)

    writer, reports = opened(own, peers)
    looked_after(writer)

    assert (writer.unread, writer.gaps) == (0, [])
    assert any("is here again" in report for report in reports)
    assert sorted(own.glob("*.segment")) == segments
    assert LogReader(own).read(1).slice(0, 96).equals(truth.slice(0, 96))


def test_segments_that_were_exchanged_are_fetched_again(tmp_path: Path) -> None:
    own, *peers = three_logs(tmp_path)
    first, second = sorted(own.glob("*.segment"))[1:3]
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)

    writer, reports = opened(own, peers)
    looked_after(writer)

    assert sum("is here again" in report for report in reports) == 2
    assert LogReader(own).read(1).slice(0, 96).equals(LogReader(peers[0]).read(1).slice(0, 96))


def test_a_gap_that_no_peer_can_fill_moves_the_beginning(tmp_path: Path) -> None:
    own = three_logs(tmp_path)[0]
    segments = sorted(own.glob("*.segment"))
    segments[2].unlink()

    writer, reports = opened(own, [tmp_path / "nowhere"])
    assert writer.gaps == [(33, 48)]
    looked_after(writer)

    assert writer.gaps == []
    assert any("the log begins behind them" in report for report in reports)
    assert (writer.first, LogReader(own).bounds().first) == (49, 49)
    again, _ = opened(own)
    assert again.gaps == []


def test_a_damaged_segment_that_cannot_be_set_aside_at_once_is_replaced_later(tmp_path: Path) -> None:
    disk = VirtualDisk(random.Random(1))
    own, peer = (tmp_path / f"log-{replica}" for replica in range(2))
    for directory in (own, peer):
        write(LogWriter(directory, settings(), (), list[str]().append, disk=disk), simple(4 * INTERVAL))
    damaged = own / disk.names(own)[1]
    disk.flip(damaged, random.Random(1))
    writer = LogWriter(own, settings(), (own, peer), list[str]().append, disk=disk)
    disk.errors = [("rename", f"*-{damaged.name}", errno.EIO)]
    looked_after(writer)

    assert (writer.gaps, writer.unread, disk.errors) == ([], 0, [])
    assert disk.read(damaged) == disk.read(peer / damaged.name)


def test_a_beginning_that_nobody_has_leaves_nothing_to_set_aside(tmp_path: Path) -> None:
    """Directories with nothing in them would push out those that have something."""
    own = three_logs(tmp_path)[0]
    min(own.glob("*.segment")).unlink()

    writer, reports = opened(own, [tmp_path / "nowhere"])
    looked_after(writer)

    assert (writer.gaps, writer.first) == ([], INTERVAL + 1)
    assert any("the log begins behind them" in report for report in reports)
    assert not (own / ASIDE).exists()


def test_a_missing_beginning_is_noticed(tmp_path: Path) -> None:
    """Retention says where the log begins: what is missing there was not dropped by it."""
    own = three_logs(tmp_path)[0]
    min(own.glob("*.segment")).unlink()
    writer, _ = opened(own)
    assert writer.gaps == [(1, 16)]


def test_every_bit_of_a_header_is_under_its_checksum(tmp_path: Path) -> None:
    own = three_logs(tmp_path)[0]
    path = min(own.glob("*.segment"))
    whole = path.read_bytes()
    for bit in range(8 * (whole.index(b"\n") + 1)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(LogError), path.open("rb") as file:
            read_header(file, path)


def test_a_segment_that_the_disk_cannot_read_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, *peers = three_logs(tmp_path)
    bad = sorted(own.glob("*.segment"))[1]
    inode, opening = bad.stat().st_ino, Path.open

    def failing(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.exists() and path.stat().st_ino == inode:
            raise OSError(errno.EIO, "Input/output error")
        return opening(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", failing)
    monkeypatch.setattr(Path, "read_bytes", lambda path: failing(path, "rb").read())
    writer, reports = opened(own, peers)
    looked_after(writer)

    assert writer.gaps == []
    assert any("Input/output error" in report for report in reports)
    assert LogReader(own).read(1).slice(0, 96).equals(LogReader(peers[0]).read(1).slice(0, 96))
