"""Backups on a real disk, and the command line for them and for the log."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tara import cli
from tara.application import KeyValueStore
from tara.configuration.settings import Settings, load_settings
from tara.configuration.state import ClusterState, StateFile
from tara.operations.backup import FORMAT_VERSION, BackupError, BackupHeader, back_up, read_backup, restore
from tara.operations.fresh_checkpoint import await_fresh_checkpoint
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.sessions import Context
from tara.storage.base_format import base_directory, base_path
from tara.storage.log import log_directory
from tara.storage.log_format import list_segments
from tara.storage.log_reader import LogReader
from tests.live import processes
from tests.live.data_directories import StoredReplica, replicate
from tests.live.histories import INTERVAL, bench, puts
from tests.patience import patient
from tests.protocol.driver import Bench, batch, commits, open_session


def settings_for(directory: Path, **changes: object) -> Settings:
    return load_settings(
        environment={}, flags={"data_dir": str(directory), "checkpoint_interval": INTERVAL, "window": 8192, **changes}
    )


def cluster_with_checkpoints(directory: Path, count: int = 40, base: int = 1) -> tuple[ClusterState, StoredReplica]:
    """The data directory of a cluster of three that has executed so many requests, and one of its replicas."""
    state = StateFile(directory).open(settings_for(directory))
    replica = StoredReplica(directory, state.cluster)
    replica.execute(puts(count), cuts=range(count), bases=(base,))
    replicate(directory)
    return state, replica


def segment_of(directory: Path, replica: int, number: int) -> Path:
    (path,) = [file.path for file in list_segments(log_directory(directory, replica)) if file.number == number]
    return path


def test_a_backup_has_the_newest_stable_checkpoint(tmp_path: Path) -> None:
    state, replica = cluster_with_checkpoints(tmp_path / "data")
    file = tmp_path / "file.backup"

    header = back_up(tmp_path / "data", file)

    assert (header.cluster, header.era, header.app) == (state.cluster, 1, "key-value")
    assert (header.checkpoint, header.counter, header.sessions) == (2, 32, 1)
    found = read_backup(file)
    assert found.header == header
    assert (found.sessions.counter, list(found.chunks())) == (32, replica.states[2])
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file.backup"]


@pytest.mark.parametrize("at", [1, 16, 17, 31, 32, 40])
def test_a_backup_of_any_command_can_be_made(tmp_path: Path, at: int) -> None:
    cluster_with_checkpoints(tmp_path / "data")

    header = back_up(tmp_path / "data", tmp_path / "file", at)

    assert (header.counter, header.checkpoint) == (at, at // INTERVAL)
    application = KeyValueStore()
    application.restore(read_backup(tmp_path / "file").chunks())
    # The first one opens the session.
    assert set(application._values) == {f"key-{number}" for number in range(at - 1)}


def test_a_backup_of_a_command_that_no_log_reaches_is_refused(tmp_path: Path) -> None:
    cluster_with_checkpoints(tmp_path)

    with pytest.raises(BackupError, match="command 41: out of range; the states of commands 0 to 40 can be rebuilt"):
        back_up(tmp_path, tmp_path / "file", 41)
    assert not (tmp_path / "file").exists()


def test_an_application_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    cluster_with_checkpoints(tmp_path)
    state = StateFile(tmp_path).read()
    StateFile(tmp_path).write(msgspec.structs.replace(state, app="nowhere:Machine"))

    with pytest.raises(BackupError, match=r"app = nowhere:Machine: No module named 'nowhere'.*by executing commands"):
        back_up(tmp_path, tmp_path / "file")


def test_a_checkpoint_that_too_few_have_is_not_stable(tmp_path: Path) -> None:
    cluster_with_checkpoints(tmp_path)
    for replica in (0, 1):
        segment_of(tmp_path, replica, 2).unlink()

    assert back_up(tmp_path, tmp_path / "file").checkpoint == 1


def test_damaged_copies_do_not_count(tmp_path: Path) -> None:
    cluster_with_checkpoints(tmp_path)
    for replica in (0, 1):
        path = segment_of(tmp_path, replica, 2)
        path.write_bytes(path.read_bytes()[:-20])

    assert back_up(tmp_path, tmp_path / "file").checkpoint == 1
    for replica in (0, 1):
        segment_of(tmp_path, replica, 1).unlink()
        path = base_path(base_directory(tmp_path, replica), 1)
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BackupError, match=r"no checkpoint has 2 intact copies.*damaged"):
        back_up(tmp_path, tmp_path / "other")


def test_a_backup_does_not_overwrite_and_needs_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(BackupError, match="exists already"):
        back_up(tmp_path, tmp_path / "file")
    with pytest.raises(BackupError, match="no such directory"):
        back_up(tmp_path, tmp_path / "nowhere" / "file")
    with pytest.raises(ConfigurationError, match="no cluster here"):
        back_up(tmp_path, tmp_path / "other")
    assert (tmp_path / "file").read_bytes() == b"precious"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    cluster_with_checkpoints(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "file")
    return tmp_path / "file"


@pytest.mark.parametrize("position", [0.3, 0.6, 0.99])
def test_a_damaged_backup_is_refused(tmp_path: Path, file: Path, position: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(len(data) * position)] ^= 1
    file.write_bytes(bytes(data))

    with pytest.raises(BackupError, match=r"damaged|not a backup"):
        restore(file, settings_for(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kept", [0, 10, 500, -1])
def test_a_truncated_backup_is_refused(tmp_path: Path, file: Path, kept: int) -> None:
    file.write_bytes(file.read_bytes()[:kept])

    with pytest.raises(BackupError, match=r"damaged|not a backup"):
        restore(file, settings_for(tmp_path / "new"))


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_a_backup_of_another_version_is_refused(tmp_path: Path, file: Path, version: int) -> None:
    header, _, rest = file.read_bytes().partition(b"\n")
    newer = msgspec.structs.replace(msgspec.json.decode(header, type=BackupHeader), version=version)
    file.write_bytes(msgspec.json.encode(newer) + b"\n" + rest)

    with pytest.raises(BackupError, match=f"has format version {version}, this Tara reads version {FORMAT_VERSION}"):
        restore(file, settings_for(tmp_path / "new"))


def test_a_backup_is_not_restored_into_something_or_for_another_application(tmp_path: Path, file: Path) -> None:
    with pytest.raises(BackupError, match="is not empty"):
        restore(file, settings_for(tmp_path / "data"))
    with pytest.raises(BackupError, match="is not empty"):
        restore(file, settings_for(file))
    with pytest.raises(BackupError, match="the backup is of application key-value"):
        restore(file, settings_for(tmp_path / "new", app="tara.application:Counter"))
    with pytest.raises(BackupError, match="durability = disk"):
        restore(file, settings_for(tmp_path / "new", durability="memory"))
    with pytest.raises(BackupError, match="none: No such file"):
        restore(tmp_path / "none", settings_for(tmp_path / "new"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]


def restored(cluster: Bench, directory: Path, state: ClusterState, replica: int = 0) -> StoredReplica:
    """An executor of a restored cluster at its first start."""
    return StoredReplica(directory, state.cluster, replica=replica, made_by=cluster, threshold=state.threshold)


@pytest.mark.parametrize("shape", [{}, {"f": 2}, {"partitions": 2}, {"checkpoint_interval": 32}])
def test_a_restored_cluster_begins_with_the_state_of_the_backup(
    tmp_path: Path, file: Path, shape: dict[str, int]
) -> None:
    """Also one of another shape: nothing of the old one's slots and sources is left."""
    old = read_backup(file).header
    settings = settings_for(tmp_path / "new", **shape)

    state = restore(file, settings)

    assert state.cluster != old.cluster
    opened = StateFile(tmp_path / "new").open(settings)
    assert msgspec.structs.replace(opened, ports=state.ports) == state
    limits = settings.limits
    cluster = Bench(limits.f, limits.partitions, checkpoint_interval=limits.checkpoint_interval, window=8192)
    for replica in range(limits.replicas):
        node = restored(cluster, tmp_path / "new", state, replica).node
        assert (node.next, node.sessions.counter) == (limits.checkpoint_interval, 32)
        assert node.sessions.time_ms >= old.time_ms
        assert node.application.query(b"\x92\x02\xa5key-3", Context([])) == b"\xc4\x05value"


def test_sessions_of_the_old_cluster_end_with_the_first_request(tmp_path: Path, file: Path) -> None:
    state = restore(file, settings_for(tmp_path / "new"))
    node = restored(bench(), tmp_path / "new", state).driven
    stale = t.Command(1, 31, 31, b"\x93\x01\xa5stale\xc4\x00")
    assert len(node.node.sessions) == 1

    step = node.feed(*commits([batch(0, [stale, open_session(5)], time=9)], first=INTERVAL))

    (results,) = step.of(t.Results)
    assert [(result.status, result.counter) for result in results.results] == [(t.EXPIRED, 33), (t.OK, 34)]
    commands = step.only(t.Executed).command_of()
    assert {counter: command.kind for counter, command in commands.items()} == {33: t.EXPIRE, 34: t.OPEN}


def test_committers_of_a_restored_cluster_never_use_a_slot_below_its_first_checkpoint() -> None:
    """An executor that has lost its disk must not find anything to execute on an empty state."""
    cluster = bench()
    committer = cluster.make(Committer, Stage.COMMITTER, threshold=1)

    resumed = committer.take().written(t.Resumed)

    assert (committer.node.acceptor.commits.min, committer.node.acceptor.records.min) == (INTERVAL, INTERVAL)
    assert [entry.minimum for entry in resumed] == [INTERVAL]
    again = cluster.make(Committer, Stage.COMMITTER, genesis=False, life=2, journal=resumed, threshold=1)
    assert again.node.acceptor.commits.min == INTERVAL
    record = committer.feed(*cluster.views(1)).only(t.Record)
    assert (record.minimum, record.end) == (INTERVAL, INTERVAL)


def test_the_log_of_a_restored_cluster_begins_after_the_backup(tmp_path: Path, file: Path) -> None:
    state = restore(file, settings_for(tmp_path / "new"))
    requests = [batch(number, [open_session(number, timeout_ms=60_000)], time=9 + number) for number in range(5)]

    restored(bench(), tmp_path / "new", state).execute(requests, first=INTERVAL)

    log = LogReader(log_directory(tmp_path / "new", 0))
    assert log.bounds() == (33, 39)
    # A backup of it, too, needs nothing of the cluster that it comes from.
    assert back_up(tmp_path / "new", tmp_path / "second", at=36).counter == 36


def test_the_interval_between_checkpoints_stays_as_it_was(tmp_path: Path) -> None:
    StateFile(tmp_path).open(settings_for(tmp_path))

    with pytest.raises(ConfigurationError, match=r"checkpoint_interval = 64: the cluster in .* was made with 16"):
        StateFile(tmp_path).open(settings_for(tmp_path, checkpoint_interval=64))


def test_a_backup_of_a_running_cluster_has_what_was_answered_before(tmp_path: Path) -> None:
    settings = processes.settings_for(tmp_path / "data")
    with processes.Processes(settings) as cluster, patient(cluster.endpoints) as client:
        for number in range(10):
            client.put("number", b"%d" % number)
        await_fresh_checkpoint(tmp_path / "data")
        fresh = back_up(tmp_path / "data", tmp_path / "fresh")
        early = back_up(tmp_path / "data", tmp_path / "early", at=5)
    again = processes.settings_for(tmp_path / "again")
    restore(tmp_path / "fresh", again)

    assert (fresh.checkpoint, fresh.counter, early.counter) == (1, 11, 5)
    with processes.Processes(again) as cluster, patient(cluster.endpoints) as client:
        assert client.get("number") == b"9"
    past = processes.settings_for(tmp_path / "past")
    restore(tmp_path / "early", past)
    with processes.Processes(past) as cluster, patient(cluster.endpoints) as client:
        # The first command opened the session.
        assert client.get("number") == b"3"


def tara(*arguments: object) -> list[str]:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], prog_name="tara")
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout.splitlines()


def test_backup_and_restore_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARA_CHECKPOINT_INTERVAL", str(INTERVAL))
    monkeypatch.setenv("TARA_WINDOW", "8192")
    cluster_with_checkpoints(tmp_path / "data")

    said = tara("backup", tmp_path / "file", "--data-dir", tmp_path / "data", "--json")
    assert json.loads(said[-1])["counter"] == 32
    said = tara("backup", tmp_path / "early", "--data-dir", tmp_path / "data", "--at", 20)
    assert said == [
        f"the state behind checkpoint 1 of cluster {read_backup(tmp_path / 'early').header.cluster:x}: "
        "commands up to 20"
    ]
    said = tara("restore", tmp_path / "file", "--data-dir", tmp_path / "new")
    assert f"tara up --data-dir {tmp_path / 'new'}" in said[-1]
    assert StateFile(tmp_path / "new").read().threshold == 1


def test_the_log_is_printed_for_people_and_for_programs(tmp_path: Path) -> None:
    StateFile(tmp_path).open(settings_for(tmp_path))
    broken = batch(3, [t.Command(1, 2, 0, b"\xc1")], time=1_003)
    StoredReplica(tmp_path, 7).execute([*puts(3), broken])

    lines = tara("log", "--data-dir", tmp_path)
    assert lines[1] == "         2  1970-01-01 00:00:01.001           1/0  execute put key-0 value → none"
    assert "open    timeout_ms=3600000 → session=1" in lines[0]
    assert "→ failed: not a key-value command" in lines[3]
    rows = [json.loads(line) for line in tara("log", "--data-dir", tmp_path, "--json", "--from", 2, "--to", 4)]
    assert [row["counter"] for row in rows] == [2, 3]
    assert rows[0]["command"] == {"operation": "Put", "key": "key-0", "value": "value"}
    assert tara("log", "--data-dir", tmp_path, "--follow", "--to", 3, "--from", 2) == lines[1:2]
    assert tara("log", "--data-dir", tmp_path, "--replica", 0) == lines


def test_the_log_of_another_application_is_printed_as_it_is(tmp_path: Path) -> None:
    StateFile(tmp_path).open(settings_for(tmp_path, app="tara.application:AppendRegister"))
    StoredReplica(tmp_path, 7).execute([*puts(1), batch(1, [t.Command(1, 0, 0, b"\xff\x00")], time=2_000)])

    (row,) = [json.loads(line) for line in tara("log", "--data-dir", tmp_path, "--json", "--from", 2)]
    assert row["command"] == {"base64": "/wA="}
