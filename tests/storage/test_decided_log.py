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

import pytest

from tara.protocol import tuples as t
from tara.simulator.disk import VirtualDisk
from tara.storage.base_format import base_path
from tara.storage.bases import Bases
from tara.storage.disk import LOCAL, Disk, LocalDisk
from tara.storage.log import DecidedLog
from tara.storage.log_blocks import LogBounds, list_files
from tara.storage.log_format import (
    BLOCK_BYTES,
    FORMAT_VERSION,
    CorruptLog,
    LogError,
    list_tails,
    read_header,
)
from tara.storage.log_reader import LogReader, LogTruncated, best_log
from tara.storage.log_rows import SCHEMA
from tara.storage.log_writer import LogWriter, RowsLost
from tara.storage.segments import ASIDE, HEAL_PAUSE_MAX, READS_MAX, WAITS_MAX
from tara.storage.store import ExecutorStore, StoreFailed
from tests.live.histories import INTERVAL, bench, executor, handed_over, history, puts
from tests.live.small_disk import SmallDisk
from tests.patience import DEADLINE_S, await_condition
from tests.storage.logs import (
    Handed,
    behind,
    looked_after,
    names,
    opened,
    ranges,
    settings,
    simple,
    three_logs,
    write,
    written,
)
from tests.storage.workers import work_for


def decided_log(
    directory: Path, peers: dict[int, Path] | None = None, disk: Disk = LOCAL, **changes: int
) -> DecidedLog:
    """Of replica 0, beside a directory for its bases."""
    known = settings(**changes)
    bases = Bases(directory.parent / "bases-0", known.identity.cluster, known.identity.era, {}, None, disk)
    return DecidedLog(0, directory, known, bases, peers or {}, None, disk)


def put_bases(root: Path, *numbers: int, disk: Disk = LOCAL) -> None:
    """Files with the names of bases. Whoever only wants to know which there are does not read them."""
    for number in numbers:
        disk.create(base_path(root / "bases-0", number)).close()


def put_newest_bases(root: Path, disk: Disk = LOCAL) -> None:
    """No log is needed behind these."""
    put_bases(root, 1_000, 1_001, disk=disk)


def hand_over(log: DecidedLog, handed: Handed) -> None:
    """One by one; whatever failed is tried again."""
    for tuple_ in handed:
        if isinstance(tuple_, t.Executed):
            log.append(tuple_)
        else:
            log.submit(tuple_)
        log.work()
        log.work()


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
        commands = executed.command_of()
        rows = tables[0].slice(executed.counter, len(commands)).to_pylist()
        answers = {result.counter: result for result in executed.results if result.status <= t.FAILED}
        for row, command in zip(rows, commands.values(), strict=True):
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


@pytest.mark.parametrize(
    ("restart_from", "died_at"), [(0, 33), (1, 33), (0, 40), (1, 40), (2, 40), (0, 49), (1, 49), (2, 49)]
)
def test_what_is_executed_again_is_not_logged_again(tmp_path: Path, restart_from: int, died_at: int) -> None:
    """The log of a former life reaches further than the checkpoint that the executor starts from."""
    handed = simple(70)
    expected = written(tmp_path / "undisturbed", handed).read(1)
    writer, _ = opened(tmp_path / "log")
    write(writer, handed[:died_at])
    writer.flush()
    begin = behind(handed, restart_from) if restart_from else 0

    again, reports = opened(tmp_path / "log")
    assert again.last == writer.last
    write(again, handed[begin:])
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


def test_a_checkpoint_stands_right_behind_its_requests(tmp_path: Path) -> None:
    handed = simple(40)
    mark = behind(handed, 1) - 1
    for last in (mark - 1, mark + 2):
        writer, _ = opened(tmp_path / str(last))
        write(writer, [tuple_ for tuple_ in handed[:last] if isinstance(tuple_, t.Executed)])
        with pytest.raises(RowsLost, match=f"is at {last if last < mark else last - 1}, .* not at 1"):
            write(writer, [handed[mark]])


def test_requests_that_are_missing_are_not_passed_over(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path)
    handed = simple(10)
    write(writer, handed[:3])
    with pytest.raises(RowsLost, match=r"the requests \[3, 4\) are missing"):
        write(writer, handed[4:5])


@pytest.mark.parametrize("flushed", [True, False])
def test_a_segment_that_was_about_to_be_sealed_is_sealed_by_the_next_life(tmp_path: Path, flushed: bool) -> None:
    """The checkpoint stands at its end already, or all but that."""
    disk, handed = VirtualDisk(random.Random(1)), simple(40)
    writer, _ = opened(tmp_path, disk=disk)
    end = behind(handed, 1)
    write(writer, handed[: end - 1])
    writer.flush()
    if flushed:
        disk.errors = [("rename", "*.segment", errno.EIO)]
        with pytest.raises(OSError, match="Input/output"):
            write(writer, handed[end - 1 : end])
    again, reports = opened(tmp_path, disk=disk)
    assert (again.last, again.segments.sealed, reports) == (INTERVAL, 0, [])
    write(again, handed)
    again.flush()
    assert again.segments.sealed == 2
    third, _ = opened(tmp_path, disk=disk)
    looked_after(third)
    assert (third.segments.missing, third.segments.unread, third.last) == ([], 0, 40)
    (sealed,) = [name for name in disk.names(tmp_path) if name.startswith("000000000001-")]
    assert disk.read(tmp_path / sealed).count(b"tara") == 0, "nothing but a segment"


def test_every_segment_has_a_begin_also_if_it_could_not_be_written_at_once(tmp_path: Path) -> None:
    disk, handed = VirtualDisk(random.Random(1)), simple(40)
    log = decided_log(tmp_path / "log-0", disk=disk)
    disk.errors = [("create", "begin*", errno.ENOSPC)]
    hand_over(log, handed)
    assert (log.sealed, disk.errors, log.status()["gaps"]) == (2, [], 0)


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    handed = simple(40)
    writer, _ = opened(tmp_path)
    write(writer, handed[:30])
    writer.flush()
    (tail,) = tmp_path.glob("*.tail")
    tail.write_bytes(tail.read_bytes()[:200])
    (tmp_path / "000000000001-0000000000000001-0000000000000016-00000000.segment.99.tmp").write_bytes(b"half")

    again, _ = opened(tmp_path)

    assert again.last == 16
    assert sorted(path.name.rpartition(".")[2] for path in tmp_path.iterdir()) == ["begin", "segment"]
    write(again, handed)
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
    data = tail.path.read_bytes()
    spoilt = {"cut": data[:-5], "zeros": data[:-40] + bytes(5000), "flipped": data[:-1] + bytes([data[-1] ^ 1])}
    tail.path.write_bytes(spoilt[damage])

    again, reports = opened(tmp_path)

    assert (again.last, reports) == (9, [])
    assert LogReader(tmp_path).read(1).num_rows == 9
    write(again, handed)
    again.flush()
    assert LogReader(tmp_path).read(1).num_rows == 12


CHILD = """
import sys
from pathlib import Path
from tests.storage.logs import opened, simple, write
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
    mark = handed[16]
    assert isinstance(mark, t.Mark)
    with SmallDisk(16), pytest.raises(OSError, match="File too large"):
        writer.seal(mark)
    assert list(tmp_path.iterdir()) == []

    write(writer, handed[16:])
    writer.flush()
    assert LogReader(tmp_path).read(1).num_rows == 40


def unsynced(directory: Path, disk: VirtualDisk) -> tuple[LogWriter, Handed]:
    """A writer whose disk has failed to sync its rows; and the checkpoint that it is to be durable for."""
    handed = simple(2 * INTERVAL)
    writer, _ = opened(directory, disk=disk)
    end = behind(handed, 1)
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
    again, reports = opened(tmp_path, disk=disk)
    looked_after(again)
    assert (again.first, again.last, reports) == (1, INTERVAL, [])


def test_rows_whose_sync_failed_in_a_former_life_are_written_again(tmp_path: Path) -> None:
    disk = VirtualDisk(random.Random(1))
    _, checkpoint = unsynced(tmp_path, disk)
    disk.end_process()
    writer, _ = opened(tmp_path, disk=disk)
    write(writer, checkpoint)

    disk.lose_power()
    disk.end_process()
    again, reports = opened(tmp_path, disk=disk)
    looked_after(again)
    assert (again.first, again.last, reports) == (1, INTERVAL, [])


@pytest.mark.parametrize("seed", range(6))
def test_the_name_that_a_former_life_gave_to_a_segment_is_durable_when_it_counts(tmp_path: Path, seed: int) -> None:
    disk = VirtualDisk(random.Random(seed))
    writer, _ = opened(tmp_path, disk=disk)
    handed = simple(2 * INTERVAL)
    end = behind(handed, 1)
    write(writer, handed[:end])
    disk.errors = [("sync", tmp_path.name, errno.EIO)]
    with pytest.raises(OSError, match="Input/output"):
        write(writer, handed[end:])
    disk.end_process()
    opened(tmp_path, disk=disk)

    disk.lose_power()
    disk.end_process()
    again, reports = opened(tmp_path, disk=disk)
    looked_after(again)
    assert (again.first, again.last, again.segments.sealed, reports) == (1, 2 * INTERVAL, 2, [])


def test_rows_that_are_gone_after_a_failed_sync_are_not_taken_for_durable(tmp_path: Path) -> None:
    disk = VirtualDisk(random.Random(1))
    writer, checkpoint = unsynced(tmp_path, disk)
    disk.flip(list_tails(tmp_path, disk)[0].path, random.Random(2))
    with pytest.raises(RowsLost, match="a sync has failed"):
        write(writer, checkpoint)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_segment_whose_name_was_not_durable_at_once_is_sealed_all_the_same(tmp_path: Path, number: int) -> None:
    """It has its new name when the sync of the directory fails: there is no tail any more that could be sealed."""
    disk = VirtualDisk(random.Random(1))
    handed = simple(3 * INTERVAL)
    directory = tmp_path / "log-0"
    log = decided_log(directory, disk=disk)
    disk.errors = [("sync", "log-0", number)]
    hand_over(log, handed)
    assert (log.sealed, disk.errors) == (3, [])

    disk.lose_power()
    again, reports = opened(directory, disk=disk)
    looked_after(again)
    assert (again.first, again.segments.missing, reports) == (1, [], [])


@pytest.mark.parametrize("error", [("create", "begin*"), ("unlink", "*.segment")])
def test_segments_that_retention_could_not_drop_go_with_the_next_ones(tmp_path: Path, error: tuple[str, str]) -> None:
    disk = VirtualDisk(random.Random(1))
    directory = tmp_path / "log-0"
    log = decided_log(directory, disk=disk, retention_bytes=6_000)
    put_newest_bases(tmp_path, disk)
    for tuple_ in simple(20 * INTERVAL):
        if isinstance(tuple_, t.Mark) and tuple_.checkpoint.number < 15:
            disk.errors = [(*error, errno.EIO)]
        hand_over(log, [tuple_])

    sizes = [disk.size(directory / name) for name in disk.names(directory) if name.endswith(".segment")]
    assert (log.sealed, len(sizes) > 1, sum(sizes) <= 6_000) == (20, True, True)


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

    log = decided_log(directory)
    store = ExecutorStore(log._bases, log, lambda: None)
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
    for directory in (own, peers[0]):
        write(opened(directory, disk=disk)[0], handed)
    disk.unlink(own / disk.names(own)[1])
    writer, reports = opened(own, peers, disk)
    disk.errors = [("list", "log-1", errno.EACCES)]
    looked_after(writer, base=4, times=5)
    assert disk.errors == []
    assert "cannot be listed" in reports[0]

    looked_after(writer, base=4)
    assert (writer.first, writer.segments.missing) == (1, [])


def test_another_clusters_log_is_set_aside_and_not_continued(tmp_path: Path) -> None:
    old = written(tmp_path, simple(20))
    old.read(1)

    writer, reports = opened(tmp_path, era=2)
    assert "another cluster or era" in reports[0]
    write(writer, simple(40))

    assert len(names(tmp_path / ASIDE / "000001")) == 1
    assert LogReader(tmp_path).read(1).num_rows == 32
    with pytest.raises(LogError, match="belongs to cluster 7, era 2"):
        old.read(17)


def test_what_is_not_a_file_of_a_log_stays_where_it_is(tmp_path: Path) -> None:
    strangers = ("0000000000000001-0000000000000016-00000000.segment", "notes", "000000000001.tail")
    for name in strangers:
        (tmp_path / name).write_text("mine")
    writer, reports = opened(tmp_path)
    write(writer, simple(20))
    assert (LogReader(tmp_path).bounds(), reports) == (LogBounds(1, 17), [])
    assert [(tmp_path / name).read_text() for name in strangers] == ["mine"] * 3


def test_a_log_that_leaps_to_a_base_fetches_what_lies_between(tmp_path: Path) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(3)]
    peer = written(directories[1], handed)
    writer, reports = opened(directories[0], directories[1:])
    write(writer, handed[:20])
    writer.flush()

    writer.leap(5)
    assert (names(directories[0], "tail"), writer.segments.missing) == ([], [2, 3, 4, 5])
    write(writer, handed[behind(handed, 5) :])
    writer.flush()
    looked_after(writer, base=5)

    assert sum("is here again" in report for report in reports) == 4
    assert LogReader(directories[0]).read(1).equals(peer.read(1))
    assert ranges(directories[0]) == ranges(directories[1])


def test_what_waits_to_be_written_is_given_up_when_the_log_leaps(tmp_path: Path) -> None:
    """It is of an interval that is behind the log now."""
    handed = simple(100)
    writer, _ = opened(tmp_path)
    write(writer, handed[:10])
    writer.leap(5)
    write(writer, handed[behind(handed, 5) :])
    writer.flush()
    assert LogReader(tmp_path).bounds() == LogBounds(81, 101)
    assert LogReader(tmp_path).read(81).num_rows == 20


def test_a_leap_to_where_the_log_is_already_changes_nothing(tmp_path: Path) -> None:
    handed = simple(40)
    writer, _ = opened(tmp_path)
    write(writer, handed)
    writer.flush()
    for number in (1, 2):
        writer.leap(number)
    assert (writer.position, writer.last, writer.segments.missing) == (40, 40, [])
    assert len(names(tmp_path, "tail")) == 1


def test_a_copy_takes_the_place_of_a_segment_that_was_sealed_meanwhile(tmp_path: Path) -> None:
    """One file for each checkpoint, whoever wrote it."""
    own, peer = tmp_path / "log-0", tmp_path / "log-1"
    written(own, simple(40))
    written(peer, handed_over(executor(bench()), puts(40)))
    writer, _ = opened(own, [peer])
    assert names(own)[0] != names(peer)[0]
    assert writer.segments.bring(1, writer.segments.offers([1]))
    assert names(own) == [names(peer)[0], names(own)[1]]
    assert LogReader(own).read(1).num_rows == 40


def test_a_copy_of_what_is_not_reached_yet_does_not_seal_it(tmp_path: Path) -> None:
    """It was brought for an executor that then could not use it: what is executed is written all the same."""
    own, peer = tmp_path / "log-0", tmp_path / "log-1"
    handed = simple(60)
    written(peer, handed_over(executor(bench()), puts(60)))
    writer, _ = opened(own, [peer])
    write(writer, handed[: behind(handed, 1) + 3])
    writer.flush()
    assert writer.segments.bring(2, writer.segments.offers([1]))
    assert writer.segments.sealed == 1
    write(writer, handed[behind(handed, 1) + 3 :])
    writer.flush()
    assert (writer.segments.sealed, len(names(own))) == (3, 3)
    assert LogReader(own).read(1).equals(LogReader(peer).read(1))


def test_a_gap_is_filled_when_a_peer_gets_there_and_the_log_goes_on_meanwhile(tmp_path: Path) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(2)]
    peer, _ = opened(directories[1])
    write(peer, handed[: behind(handed, 4)])
    writer, _ = opened(directories[0], directories[1:])
    write(writer, handed[: behind(handed, 1)])
    writer.leap(5)
    write(writer, handed[behind(handed, 5) :])
    looked_after(writer, base=5, times=50)
    assert writer.segments.missing == [2, 3, 4, 5], "the newest first"
    assert (writer.first, writer.last) == (1, 100)

    write(peer, handed[behind(handed, 4) :])
    looked_after(writer, base=5)

    assert writer.segments.missing == []
    assert LogReader(directories[0]).read(1).num_rows == 96


@pytest.mark.parametrize("base", [4, 5])
def test_a_peer_that_never_gets_there_is_not_waited_for_endlessly_if_a_base_stands_behind_the_gap(
    tmp_path: Path, base: int
) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(2)]
    written(directories[1], handed[: behind(handed, 4)])
    writer, _ = opened(directories[0], directories[1:])
    write(writer, handed[: behind(handed, 1)])
    writer.leap(5)
    write(writer, handed[behind(handed, 5) :])
    for _ in range(HEAL_PAUSE_MAX * (WAITS_MAX + 1)):
        writer.segments.look_after(base, (1,))
    assert writer.segments.missing == ([] if base == 5 else [2, 3, 4, 5])
    assert writer.first == (81 if base == 5 else 1)


def test_a_damaged_copy_of_a_peer_is_not_taken(tmp_path: Path) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(3)]
    for directory in directories[1:]:
        written(directory, handed)
    damaged = sorted(directories[1].glob("*.segment"))[2]
    damaged.write_bytes(bytes(damaged.stat().st_size))
    writer, reports = opened(directories[0], directories[1:])
    write(writer, handed[: behind(handed, 1)])
    writer.leap(6)
    looked_after(writer, base=6)

    assert any(damaged.name in report for report in reports)
    assert LogReader(directories[0]).read(1).num_rows == 96


def test_a_gap_that_nobody_can_fill_makes_the_log_begin_behind_it(tmp_path: Path) -> None:
    handed = simple(100)
    directories = [tmp_path / f"log-{replica}" for replica in range(2)]
    written(directories[1], handed)
    for old in sorted(directories[1].glob("*.segment"))[:3]:
        old.unlink()
    writer, reports = opened(directories[0], directories[1:])
    write(writer, handed[: behind(handed, 1)])
    writer.leap(5)
    write(writer, handed[behind(handed, 5) :])
    writer.flush()
    looked_after(writer, base=5)

    assert any("no replica offers segment 3; the log begins behind it" in report for report in reports)
    reader = LogReader(directories[0])
    assert reader.bounds() == LogBounds(49, 101)
    with pytest.raises(LogTruncated, match="begins at 49") as caught:
        reader.read(17)
    assert caught.value.first == 49
    assert len(names(directories[0] / ASIDE / "000001")) == 1


def test_retention_drops_the_oldest_segments_and_readers_are_told(tmp_path: Path) -> None:
    log = decided_log(tmp_path / "log-0", retention_bytes=6_000)
    put_newest_bases(tmp_path)
    hand_over(log, simple(200))
    reader = LogReader(tmp_path / "log-0")

    size = sum(path.stat().st_size for path in reader.directory.glob("*.segment"))
    assert size <= 6_000
    first = reader.bounds().first
    assert 1 < first <= 193
    assert reader.read(first).num_rows == 201 - first
    with pytest.raises(LogTruncated):
        reader.read(first - 1)


@pytest.mark.parametrize(("bases", "first"), [([], 1), ([9], 1), ([5, 9], 6), ([2, 5, 9], 6)])
def test_nothing_is_dropped_that_the_two_newest_bases_need(tmp_path: Path, bases: list[int], first: int) -> None:
    """Should the newest one turn out to be damaged, the one before leads to the same checkpoint."""
    log = decided_log(tmp_path / "log-0", retention_bytes=0)
    put_bases(tmp_path, *bases)
    hand_over(log, simple(200))
    assert [int(name[:12]) for name in names(tmp_path / "log-0")] == list(range(first, 13))


def test_a_disk_that_is_too_full_for_the_beginning_does_not_stop_the_log(tmp_path: Path) -> None:
    """What could not be dropped goes the next time."""
    disk = VirtualDisk(random.Random(1))
    log = decided_log(tmp_path / "log-0", disk=disk, retention_bytes=0)
    handed = simple(10 * INTERVAL)
    hand_over(log, handed[: behind(handed, 3)])
    put_newest_bases(tmp_path, disk)

    def no_beginning(what: str, path: Path) -> None:
        if what == "create" and path.name.startswith("begin"):
            raise OSError(errno.ENOSPC, "No space left on device")

    disk.trouble = no_beginning
    hand_over(log, handed[behind(handed, 3) :])
    assert log.sealed == 10
    assert len([name for name in disk.names(tmp_path / "log-0") if name.endswith(".segment")]) == 10


def test_a_reader_behind_a_log_that_is_only_a_tail_is_told(tmp_path: Path) -> None:
    handed = simple(40)
    writer, _ = opened(tmp_path)
    writer.leap(1)
    write(writer, handed[behind(handed, 1) : behind(handed, 1) + 5])
    writer.flush()

    assert LogReader(tmp_path).bounds() == LogBounds(17, 22)
    with pytest.raises(LogTruncated, match="begins at 17"):
        LogReader(tmp_path).read(3)


def test_what_the_newest_checkpoint_needs_stays_whatever_its_size(tmp_path: Path) -> None:
    log = decided_log(tmp_path / "log-0", retention_bytes=0)
    put_bases(tmp_path, 1, 2)
    hand_over(log, simple(48))
    assert [file.first for file in list_files(tmp_path / "log-0")] == [17, 33]


def test_reading_goes_on_while_the_log_is_written(tmp_path: Path) -> None:
    handed = simple(3000, interval=100)
    log = decided_log(tmp_path / "log-0", interval=100)
    log.pause_s = 0.002
    worker = work_for(log)
    counters: list[int] = []

    def follow() -> None:
        for batch in LogReader(tmp_path / "log-0").follow(1, lambda: len(counters) >= 3000, poll_s=0.005):
            counters.extend(batch.column("counter").to_pylist())

    thread = threading.Thread(target=follow)
    thread.start()
    for tuple_ in handed:
        if isinstance(tuple_, t.Executed):
            log.append(tuple_)
        else:
            log.submit(tuple_)
            time.sleep(0.01)
    thread.join(DEADLINE_S)
    worker.close()

    assert log.errors == []
    assert counters == list(range(1, 3001))


def test_rows_become_visible_without_a_checkpoint_or_another_row(tmp_path: Path) -> None:
    log = decided_log(tmp_path / "log-0")
    worker = work_for(log)
    await_condition(lambda: log.status()["last"] == 0, "the log to be open")
    log.append(simple(5)[0])  # type: ignore[arg-type]
    await_condition(lambda: LogReader(tmp_path / "log-0").bounds().end == 2, "the row")

    worker.close()


def test_the_status_says_what_is_there(tmp_path: Path) -> None:
    log = decided_log(tmp_path / "log-0")
    assert log.status()["last"] is None
    hand_over(log, simple(20))
    waiting = simple(22)[-2:]
    for executed in waiting:
        assert isinstance(executed, t.Executed)
        log.append(executed)
    expected = {"first": 1, "last": 20, "waiting": 2, "unread": 0, "gaps": 0, "error": None}
    assert log.status() == expected


def test_a_checkpoint_is_said_to_be_durable_when_it_is(tmp_path: Path) -> None:
    """The log's directory cannot be made at first: a file is in its place."""
    handed = simple(20)
    obstacle = tmp_path / "log-0"
    obstacle.write_bytes(b"")
    log = decided_log(obstacle)
    woken = threading.Semaphore(0)
    store = ExecutorStore(log._bases, log, woken.release)
    worker = work_for(log)
    for tuple_ in handed:
        store.submit(tuple_)
    await_condition(lambda: log.errors, "an error")
    assert not woken.acquire(timeout=0.5)

    obstacle.unlink()
    assert woken.acquire(timeout=DEADLINE_S)

    (saved,) = store.take()
    assert isinstance(saved, t.Saved)
    assert LogReader(obstacle).bounds() >= LogBounds(1, 17)
    worker.close()
    assert LogReader(obstacle).bounds() == LogBounds(1, 21)


def test_rows_that_are_lost_end_the_container(tmp_path: Path) -> None:
    """It comes back to what is durable. Without its log it would never announce a checkpoint, and nobody would know
    why."""
    log = decided_log(tmp_path / "log-0")
    store = ExecutorStore(log._bases, log, lambda: None)
    handed = simple(10)
    for tuple_ in (handed[0], handed[2]):
        store.submit(tuple_)
    log.work()
    with pytest.raises(StoreFailed, match="are missing"):
        next(store.take())


def test_the_log_that_reaches_furthest_is_the_best(tmp_path: Path) -> None:
    written(tmp_path / "log-0", simple(20))
    written(tmp_path / "log-1", simple(40))
    shutil.copytree(tmp_path / "log-0", tmp_path / "log-2")

    assert best_log(tmp_path).directory == tmp_path / "log-1"
    with pytest.raises(LogError, match="no decided log here"):
        best_log(tmp_path / "nothing")


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


def test_the_newest_segment_that_is_missing_is_as_if_it_had_never_been_there(tmp_path: Path) -> None:
    """The executor comes back to the one before, and is led on from there. What stood behind it leads from nowhere."""
    own = three_logs(tmp_path)[0]
    max(own.glob("*.segment")).unlink()
    writer, reports = opened(own)
    assert (writer.segments.sealed, writer.segments.missing, reports) == (5, [], [])
    assert names(own, "tail") == []
    write(writer, simple(100))
    assert writer.segments.sealed == 6


@pytest.mark.parametrize(
    ("which", "how"),
    [(which, how) for which in (0, 2, -1) for how in ("flip", "cut", "remove") if (which, how) != (-1, "remove")],
)
def test_a_segment_that_is_damaged_or_missing_is_fetched_again(tmp_path: Path, which: int, how: str) -> None:
    own, *peers = three_logs(tmp_path)
    truth = LogReader(peers[0]).read(1)
    segments = sorted(own.glob("*.segment"))
    harmed(segments[which], how)

    writer, reports = opened(own, peers)
    looked_after(writer)

    assert (writer.segments.unread, writer.segments.missing) == (0, [])
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


def test_a_gap_that_no_peer_can_fill_moves_the_beginning_if_there_is_a_base(tmp_path: Path) -> None:
    own = three_logs(tmp_path)[0]
    segments = sorted(own.glob("*.segment"))
    segments[2].unlink()

    writer, reports = opened(own, [tmp_path / "nowhere"])
    assert writer.segments.missing == [3]
    looked_after(writer, base=2)
    assert writer.segments.missing == [3], "nothing would lead to what stands behind"
    looked_after(writer, base=3)

    assert writer.segments.missing == []
    assert any("the log begins behind it" in report for report in reports)
    assert (writer.first, LogReader(own).bounds().first) == (49, 49)
    again, _ = opened(own)
    assert again.segments.missing == []


def test_a_damaged_segment_that_cannot_be_set_aside_at_once_is_replaced_later(tmp_path: Path) -> None:
    disk = VirtualDisk(random.Random(1))
    own, peer = (tmp_path / f"log-{replica}" for replica in range(2))
    for directory in (own, peer):
        write(opened(directory, disk=disk)[0], simple(4 * INTERVAL))
    damaged = own / disk.names(own)[1]
    disk.flip(damaged, random.Random(1))
    writer, _ = opened(own, [peer], disk)
    disk.errors = [("rename", f"*-{damaged.name}", errno.EIO)]
    with pytest.raises(OSError, match="Input/output"):
        looked_after(writer)
    looked_after(writer)

    assert (writer.segments.missing, writer.segments.unread, disk.errors) == ([], 0, [])
    assert disk.read(damaged) == disk.read(peer / damaged.name)


def test_a_beginning_that_nobody_has_leaves_nothing_to_set_aside(tmp_path: Path) -> None:
    """Directories with nothing in them would push out those that have something."""
    own = three_logs(tmp_path)[0]
    min(own.glob("*.segment")).unlink()

    writer, reports = opened(own, [tmp_path / "nowhere"])
    looked_after(writer, base=1)

    assert (writer.segments.missing, writer.first) == ([], INTERVAL + 1)
    assert any("the log begins behind it" in report for report in reports)
    assert not (own / ASIDE).exists()


def test_a_missing_beginning_is_noticed(tmp_path: Path) -> None:
    """Retention says where the log begins: what is missing there was not dropped by it."""
    own = three_logs(tmp_path)[0]
    min(own.glob("*.segment")).unlink()
    writer, _ = opened(own)
    assert writer.segments.missing == [1]


def test_a_beginning_that_is_damaged_is_where_the_first_segment_is(tmp_path: Path) -> None:
    own = three_logs(tmp_path)[0]
    (own / "begin").write_bytes(b"7\n")
    writer, reports = opened(own)
    assert (writer.first, writer.segments.missing) == (1, [])
    assert "begin: is damaged" in reports[0]


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
    """It may be able to, another time; but not if it never is."""
    own, *peers = three_logs(tmp_path)
    bad, read = sorted(own.glob("*.segment"))[1], LocalDisk.read
    inode = bad.stat().st_ino
    attempts = 0

    def failing(disk: LocalDisk, path: Path, offset: int = 0, length: int = -1) -> bytes:
        nonlocal attempts
        if path.exists() and path.stat().st_ino == inode:
            attempts += 1
            raise OSError(errno.EIO, "Input/output error")
        return read(disk, path, offset, length)

    writer, reports = opened(own, peers)
    monkeypatch.setattr(LocalDisk, "read", failing)
    looked_after(writer)

    assert (writer.segments.missing, attempts) == ([], READS_MAX)
    assert any("Input/output error" in report for report in reports)
    assert LogReader(own).read(1).slice(0, 96).equals(LogReader(peers[0]).read(1).slice(0, 96))
