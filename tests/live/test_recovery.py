"""A new era from what is left of real clusters whose disks were lost: what goes on, what is refused, what is said."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from tara import cli
from tara.configuration.settings import Settings
from tara.configuration.state import DirectoryInUse, StateFile
from tara.host import client_wire
from tara.operations.recovery import Recovery
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.protocol.sessions import ERA_COMMANDS
from tara.storage.base_format import base_directory
from tara.storage.journal import FileJournal, Identity, journal_directory
from tara.storage.log import log_directory
from tara.storage.log_format import list_segments, list_tails
from tara.storage.log_reader import LogReader
from tara.storage.new_era import RecoveryError, first_counter
from tests.frames import Frames
from tests.live.processes import Processes, settings_for
from tests.live.test_backup import cluster_with_checkpoints
from tests.patience import DEADLINE_S, await_condition, patient
from tests.protocol.driver import open_session, session_id

COMMANDS = 300
#: Longer than a slow machine takes: the counters below stand for commands that were sent once.
RETRY_S = 10.0


class RawClient:
    """A client that sends exactly what it is told to."""

    def __init__(self, endpoint: str) -> None:
        self._frames = Frames(endpoint, timeout_s=RETRY_S)

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.socket.close()

    def ask(self, *commands: t.Command) -> t.Result:
        """The result of the last one; they are sent again until it comes. An opening that is sent twice opens twice."""
        for _ in range(int(DEADLINE_S / RETRY_S)):
            self._frames.send(
                client_wire.encode(client_wire.ClientRequest(t.FORMAT_VERSION, list(commands), [], bytes(16)))
            )
            with suppress(TimeoutError):
                while True:
                    reply = client_wire.decode_reply(self._frames.receive())
                    for result in reply.results:
                        if (result.session, result.number) == (commands[-1].session, commands[-1].number):
                            return result
        raise AssertionError(f"no answer to {commands[-1]}")


def append(session: int, number: int, acknowledged: int) -> t.Command:
    return t.Command(session, number, acknowledged, b"+%d" % number)


def registered(directory: Path, **changes: Any) -> Settings:
    """`AppendRegister` shows every command that executed, as often as it did."""
    return settings_for(directory, app="tara.application:AppendRegister", **changes)


class Loss:
    """A cluster that has executed commands of two sessions, and then lost f+1 of its disks."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.directory = directory
        self.settings = settings
        with Processes(settings, log=True) as cluster, RawClient(cluster.registry.endpoints[0]) as client:
            # Everything that this one does is in a checkpoint.
            self.early = session_id(client.ask(open_session(7)))
            self.first = client.ask(append(self.early, 0, 0))
            self.late = session_id(client.ask(open_session(8)))
            for number in range(COMMANDS):
                self.last = client.ask(append(self.late, number, number))
            await_condition(lambda: min(e["stable"] for e in cluster.registry.executors()) >= 4, "checkpoints")
        shutil.copytree(directory, directory.with_name("before"))

    def lose_disks(self, end_of_log: bool = True) -> None:
        """And, if so, of the log that is left all behind the last checkpoint but one."""
        for site in (0, 1):
            for place in (journal_directory, base_directory, log_directory):
                shutil.rmtree(place(self.directory, site))
        if end_of_log:
            log = log_directory(self.directory, 2)
            for file in (*list_segments(log)[-1:], *list_tails(log)):
                file.path.unlink()


@pytest.fixture
def loss(tmp_path: Path) -> Iterator[Loss]:
    yield Loss(tmp_path / "data", registered(tmp_path / "data"))


def test_what_an_intact_log_has_is_not_lost(loss: Loss) -> None:
    """A command is answered when an executor has executed it, and a moment later it is in its log."""
    loss.lose_disks(end_of_log=False)
    with Recovery(loss.directory, []) as recovery:
        found = recovery.found
        recovery.begin()

    assert (found.chosen.counter, found.logged, found.damaged) == (loss.last.counter, loss.last.counter, [])
    assert found.chosen.behind > 0
    with Processes(loss.settings, log=True) as cluster, RawClient(cluster.registry.endpoints[0]) as client:
        # The last one that was answered, again; and the session goes on.
        assert client.ask(append(loss.late, COMMANDS - 1, COMMANDS - 1)) == loss.last
        assert client.ask(append(loss.late, COMMANDS, COMMANDS)).status == t.OK


def test_a_new_era_goes_on_from_what_is_left_and_refuses_the_old_one(loss: Loss) -> None:
    loss.lose_disks()
    with Recovery(loss.directory, []) as recovery:
        recovery.check()
        found = recovery.found
        said = "\n".join(found.statement())
        state = recovery.begin()

    assert not found.complete
    assert [bool(journal.problem) for journal in found.journals] == [True, True, False]
    assert found.chosen.counter == found.logged < loss.last.counter
    assert (found.chosen.behind, found.chosen.copies) == (0, 1)
    assert f"every command with counter {found.chosen.counter + 1} or higher" in said
    assert f"journals that are left show {found.accepted} requests more" in said
    assert found.accepted >= loss.last.counter - found.chosen.counter
    assert (state.era, state.founded) == (2, [False] * 3)

    with Processes(loss.settings, log=True) as cluster, RawClient(cluster.registry.endpoints[0]) as client:
        # A retry of what is left: the same answer, from the cache.
        assert client.ask(append(loss.early, 0, 0)) == loss.first
        # The session goes on; the client of the other one has results that are lost.
        second = client.ask(append(loss.early, 1, 1))
        assert (second.status, second.counter) == (t.OK, ERA_COMMANDS + 1)
        assert client.ask(append(loss.late, COMMANDS, COMMANDS)).status == t.EXPIRED
        assert session_id(client.ask(open_session(9))) > ERA_COMMANDS
        asked = client.ask(t.Command(loss.early, 2, 2, b"", t.QUERY))
        values = msgspec.msgpack.decode(asked.payload, type=list[bytes])
        kept = len(values) - 2
        assert values == [b"+0", *(b"+%d" % number for number in range(kept)), b"+1"]
        assert kept == found.chosen.counter - 3 < COMMANDS

        cluster.registry.want_digests()
        await_condition(lambda: equal(cluster), "equal replicas")
        assert cluster.events("site-2").count("journal_set_aside") == 1
        assert {line["details"]["how"] for line in cluster.log("site-2") if line["event"] == "started"} == {"genesis"}
        logs = [LogReader(log_directory(loss.directory, site)) for site in range(3)]
        await_condition(lambda: all(log.bounds().end > ERA_COMMANDS + 3 for log in logs), "the log of the new era")
        assert {log.bounds().first for log in logs} == {ERA_COMMANDS + 1}
        refuses_the_old_era(loss, cluster)
        # A container of the new era that loses its disk rejoins as ever.
        cluster.kill(1)
        shutil.rmtree(journal_directory(loss.directory, 1))
        shutil.rmtree(base_directory(loss.directory, 1))
        shutil.rmtree(log_directory(loss.directory, 1))
        cluster.restart(1)
        await_condition(lambda: cluster.node(1, "committer-1").get("state") == "voting", "it is restored")
        await_condition(lambda: equal(cluster), "equal replicas")


def equal(cluster: Processes) -> bool:
    states = {(executor["next"], executor.get("digest")) for executor in cluster.registry.executors()}
    return len(states) == 1 and None not in states.pop()


def refuses_the_old_era(loss: Loss, cluster: Processes) -> None:
    """A container of the old era, on a host that nobody remembered, comes back."""
    before = loss.directory.with_name("before")
    settings = registered(before)
    old = Processes(settings)
    try:
        # Its peers' addresses have been taken over by the new era.
        for container in (0, 1):
            old.registry.members[container].peer_address = cluster.registry.members[container].peer_address
        old.start(2)
        await_condition(
            lambda: cluster.status(0)["counters"]["frames_foreign"] > 0, "frames of the old era to be counted"
        )
        foreign = [line for line in cluster.log("site-0") if line["event"] == "foreign_frame"]
        assert "era 1," in foreign[0]["details"]["reason"]
        old.kill(2)
        # And at the new registry it is told to go.
        old.registry.address = cluster.registry.address
        old.start(2)
        await_condition(lambda: "registration_refused" in cluster.events("registry"), "the refusal")
        await_condition(lambda: "failed" in old.events("site-2"), "its end")
        failed = [line["details"]["reason"] for line in old.log("site-2") if line["event"] == "failed"]
        assert "era 2" in failed[-1]
    finally:
        old.kill(2)
        old.registry.stop()


def test_a_heartbeat_of_a_life_that_is_over_is_refused(tmp_path: Path) -> None:
    with Processes(settings_for(tmp_path)) as cluster:
        cluster.registry.state.lives[0] += 1
        await_condition(lambda: "failed" in cluster.events("site-0"), "the end of the old life")
        reasons = [line["details"]["reason"] for line in cluster.log("site-0") if line["event"] == "failed"]
        assert "is over" in reasons[0]


def test_a_cluster_in_memory_begins_an_era_once(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "data", durability="memory")
    with Processes(settings) as cluster, patient(cluster.endpoints) as client:
        for number in range(100):
            client.put("key", str(number).encode())
        await_condition(lambda: min(e["stable"] for e in cluster.registry.executors()) >= 1, "a checkpoint")
    with Recovery(tmp_path / "data", []) as recovery:
        recovery.check()
        assert "durability = memory" in recovery.found.statement()[0]
        state = recovery.begin()
    with Processes(settings) as cluster, patient(cluster.endpoints) as client:
        assert cluster.registry.state.cluster == state.cluster
        value = client.get("key")
        assert value == b"99"
    other = StateFile(tmp_path / "data").open(settings)
    assert (other.cluster != state.cluster, other.threshold) == (True, 0)


def test_a_quorum_of_journals_needs_no_recovery(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "data")
    with Processes(settings) as cluster, patient(cluster.endpoints) as client:
        for number in range(250):
            client.put("key", str(number).encode())
        await_condition(lambda: min(e["stable"] for e in cluster.registry.executors()) >= 3, "checkpoints")
        with pytest.raises(DirectoryInUse, match="runs here already"):
            Recovery(tmp_path / "data", [])
    shutil.rmtree(journal_directory(tmp_path / "data", 0))
    with Recovery(tmp_path / "data", []) as recovery:
        with pytest.raises(RecoveryError, match=r"`tara up --data-dir .*` goes on and loses nothing"):
            recovery.check()
        assert recovery.found.complete
        recovery.check(force=True)
    # Without a log that reaches what the journals have, they are of no use.
    for site in range(3):
        for file in list_segments(log_directory(tmp_path / "data", site))[1:]:
            file.path.write_bytes(b"gone")
    with Recovery(tmp_path / "data", []) as recovery:
        assert not recovery.found.complete
        assert recovery.found.damaged
        assert "of no use: " in "\n".join(recovery.found.statement())
        recovery.check()


def test_a_damaged_journal_does_not_count_and_is_not_touched(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "data")
    with Processes(settings) as cluster, patient(cluster.endpoints) as client:
        for number in range(100):
            client.put("key", str(number).encode())
        await_condition(lambda: min(e["stable"] for e in cluster.registry.executors()) >= 1, "a checkpoint")
    segments = [max(journal_directory(tmp_path / "data", site).glob("*.journal")) for site in (0, 1)]
    for segment in segments:
        with segment.open("r+b") as file:
            file.seek(segment.stat().st_size - 64)
            file.write(bytes(64))
    before = [segment.read_bytes() for segment in segments]
    with Recovery(tmp_path / "data", []) as recovery:
        recovery.check()
        assert "lacks" in recovery.found.journals[0].problem
    assert [segment.read_bytes() for segment in segments] == before


def test_no_era_begins_without_anything_intact_or_while_a_container_runs(tmp_path: Path) -> None:
    with pytest.raises(RecoveryError, match=r"no cluster.json here"):
        Recovery(tmp_path, [])
    state, _ = cluster_with_checkpoints(tmp_path)
    with pytest.raises(RecoveryError, match="no such directory"):
        Recovery(tmp_path, [tmp_path / "nowhere"])
    journal = FileJournal(journal_directory(tmp_path, 1), Identity(state.cluster, state.era, 1))
    with Recovery(tmp_path, []) as recovery, pytest.raises(RecoveryError, match="container 1 of era 1 still runs"):
        recovery.check()
    journal.close()
    for path in tmp_path.glob("bases-*/*.base"):
        path.write_bytes(path.read_bytes()[:-3])
    for path in tmp_path.glob("log-*/*.*"):
        path.unlink()
    with pytest.raises(RecoveryError, match=r"no intact base.*damaged"):
        Recovery(tmp_path, [])


def test_the_furthest_state_is_rebuilt_wherever_its_parts_are(tmp_path: Path) -> None:
    cluster_with_checkpoints(tmp_path / "data")
    rescued = tmp_path / "rescued"
    shutil.copytree(base_directory(tmp_path / "data", 0), rescued)
    shutil.copytree(log_directory(tmp_path / "data", 0), rescued, dirs_exist_ok=True)
    for site in range(3):
        shutil.rmtree(base_directory(tmp_path / "data", site))
        segments = [file.path for file in list_segments(log_directory(tmp_path / "data", site))]
        segments[1].write_bytes(b"damaged")
    with Recovery(tmp_path / "data", []) as recovery:
        chosen = recovery.found.chosen
        assert (chosen.number, chosen.copies, chosen.base, chosen.counter) == (1, 3, "", 16)
        assert len(recovery.found.damaged) == 3
        assert "behind what is damaged or missing, logs show 24 of them, up to 40" in "\n".join(
            recovery.found.statement()
        )
    with Recovery(tmp_path / "data", [rescued]) as recovery:
        chosen = recovery.found.chosen
        assert (chosen.number, chosen.copies, chosen.counter, chosen.behind) == (2, 1, 40, 8)
        assert chosen.base.startswith(str(rescued))
        assert recovery.begin().threshold == 4


def test_an_attempt_that_did_not_come_to_its_end_changes_nothing(tmp_path: Path) -> None:
    cluster_with_checkpoints(tmp_path)
    blocker = tmp_path / f"cluster.json.{os.getpid()}.tmp"
    blocker.mkdir()
    with Recovery(tmp_path, []) as recovery, pytest.raises(ConfigurationError, match="cannot be written"):
        recovery.begin()
    assert StateFile(tmp_path).read().era == 1
    time.sleep(0.01)
    blocker.rmdir()
    with Recovery(tmp_path, []) as recovery:
        assert (recovery.found.chosen.number, recovery.found.chosen.counter) == (2, 40)
        state = recovery.begin()
        assert "of an attempt that did not come to its end" in "\n".join(recovery.found.statement())
    # Whatever that attempt left is of an era that never began.
    assert (state.era, state.threshold) == (3, 5)
    # And once more: the era that has begun is the one that is left.
    with Recovery(tmp_path, []) as recovery:
        assert recovery.found.chosen.counter == ERA_COMMANDS
        assert recovery.begin().era == 4
    stale = tmp_path / "stale"
    stale.mkdir()
    StateFile(stale).write(msgspec.structs.replace(state, era=1))
    with pytest.raises(RecoveryError, match="is of era 4: recover there"):
        Recovery(stale, [tmp_path])


def test_counters_leave_room() -> None:
    assert first_counter(0) == ERA_COMMANDS
    assert first_counter(ERA_COMMANDS - 1) == ERA_COMMANDS
    assert first_counter(ERA_COMMANDS) == 2 * ERA_COMMANDS


def tara(*arguments: object, answer: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=answer, prog_name="tara")
    return result.exit_code, result.output


def test_the_command_line_asks_before_it_begins(tmp_path: Path) -> None:
    cluster_with_checkpoints(tmp_path)

    status, _ = tara("recover", "--data-dir", tmp_path)
    assert status == 2
    status, said = tara("recover", "--from-checkpoint", "--data-dir", tmp_path, answer="n\n")
    assert (status, StateFile(tmp_path).read().era) == (1, 1)
    assert "LOST: every command with counter 41 or higher" in said
    assert "nothing that is left shows that there are any" in said
    status, said = tara("recover", "--from-checkpoint", "--data-dir", tmp_path, "--yes")
    assert (status, StateFile(tmp_path).read().era) == (0, 2)
    assert f"era 2 is ready: tara up --data-dir {tmp_path}" in said
