"""States rebuilt from the decided log: equal to the checkpoints of replicas; and results, compared."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tara import cli
from tara.application import KeyValueStore, Put
from tara.configuration.state import StateFile
from tara.operations.replay import LISTED_MAX, ReplayError, ReplayOrder, replay
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor, ExecutorState
from tara.protocol.sessions import Context
from tara.protocol.state_digest import checkpoint_of, digest_of
from tara.storage.log import log_directory
from tara.storage.store import checkpoint_directory, checkpoint_path, write_checkpoint
from tests.live.histories import INTERVAL, bench, executor, handed_over, history, puts
from tests.live.test_backup import settings_for
from tests.live.test_log import opened, write
from tests.protocol.driver import Driven


class Clocked(KeyValueStore):
    """Answers with everything that its context tells, and counts sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def apply(self, command: bytes, context: Context) -> bytes:
        super().apply(command, context)
        return msgspec.msgpack.encode([context.counter, context.session, context.time_ms, context.clock_ms, self.seen])

    def opened(self, context: Context) -> None:
        self.seen.append(("opened", context.session))

    def closed(self, context: Context) -> None:
        self.seen.append(("closed", context.session))


class Politer(KeyValueStore):
    """A new version: it answers a put of one key differently, and stores another value."""

    def apply(self, command: bytes, context: Context) -> bytes:
        if command == PUT_7:
            super().apply(msgspec.msgpack.encode(Put("key-7", b"thanks")), context)
            return msgspec.msgpack.encode("thanks")
        return super().apply(command, context)


PUT_7 = msgspec.msgpack.encode(Put("key-7", b"value"))
POLITER = f"{__name__}:Politer"
CLOCKED = f"{__name__}:Clocked"


def data_of(
    directory: Path, requests: list[t.Request], app: str = "key-value", retention_bytes: int = 1 << 30
) -> list[t.Save]:
    """A data directory with the log and all checkpoints of a replica that executed these; the checkpoints."""
    state = StateFile(directory).open(settings_for(directory, app=app))
    node = executor(bench()) if app == "key-value" else executor_of(Clocked)
    handed = [
        t.Save(each.number, each.state, list(each.chunks)) if isinstance(each, t.Save) else each
        for each in handed_over(node, requests, range(1, len(requests)))
    ]
    writer, _ = opened(log_directory(directory, 0), cluster=state.cluster, retention_bytes=retention_bytes)
    write(writer, handed)
    writer.flush()
    saves = [each for each in handed if isinstance(each, t.Save)]
    checkpoint_directory(directory, 0).mkdir()
    for save in saves:
        path = checkpoint_path(checkpoint_directory(directory, 0), save.number)
        write_checkpoint(path, state.cluster, state.era, checkpoint_of(save), save.state, save.chunks)
    return saves


def executor_of(application: type[KeyValueStore]) -> Driven[Executor]:
    return bench().make(Executor, Stage.EXECUTOR, genesis=True, application=application)


def counter_of(save: t.Save) -> int:
    return msgspec.msgpack.decode(save.state, type=ExecutorState).sessions.counter


@pytest.mark.parametrize("seed", range(4))
def test_the_state_as_of_every_checkpoint_is_that_of_the_checkpoint(tmp_path: Path, seed: int) -> None:
    saves = data_of(tmp_path, history(seed, 200))
    assert len(saves) == 200 // INTERVAL

    for save in saves:
        report = replay(tmp_path, ReplayOrder(to=counter_of(save), diff=True))
        assert report.state.digest == digest_of(b"", save.chunks).hex()
        assert (report.began_after, report.checkpoint, report.differing) == (0, 0, 0)


def test_the_application_is_told_what_it_was_told_the_first_time(tmp_path: Path) -> None:
    """Counter, session, both clocks, sessions that open, close and expire: recorded results have them all."""
    data_of(tmp_path, history(1, 300), app=CLOCKED)

    report = replay(tmp_path, ReplayOrder(diff=True))

    assert (report.state.app, report.differing) == (CLOCKED, 0)
    assert report.commands == report.to > 70


def test_without_the_logs_beginning_the_oldest_checkpoint_that_joins_it_is_taken(tmp_path: Path) -> None:
    saves = data_of(tmp_path, puts(200), retention_bytes=4_000)
    whole = data_of(tmp_path / "whole", puts(200))
    assert len(whole) == len(saves)

    report = replay(tmp_path, ReplayOrder(to=190, diff=True, query="key-100"))

    assert report.checkpoint > 1
    assert report.began_after == report.checkpoint * INTERVAL
    assert report.commands == 190 - report.began_after
    assert report.state == replay(tmp_path / "whole", ReplayOrder(to=190, query="key-100")).state
    assert report.state.answer == ["ok", "value"]
    with pytest.raises(ReplayError, match=rf"command 3: out of range.* {report.began_after} to 200 can be rebuilt"):
        replay(tmp_path, ReplayOrder(to=3))
    with pytest.raises(ReplayError, match="command 201: out of range"):
        replay(tmp_path, ReplayOrder(to=201))


def test_a_log_without_beginning_and_checkpoint_cannot_be_replayed(tmp_path: Path) -> None:
    data_of(tmp_path, puts(200), retention_bytes=4_000)
    for path in checkpoint_directory(tmp_path, 0).iterdir():
        path.unlink()

    with pytest.raises(ReplayError, match="no checkpoint joins it"):
        replay(tmp_path, ReplayOrder())


def test_a_new_version_is_compared_with_the_record_and_with_the_old_one(tmp_path: Path) -> None:
    data_of(tmp_path, puts(40))

    recorded = replay(tmp_path, ReplayOrder(app=POLITER, diff=True))
    against = replay(tmp_path, ReplayOrder(against=POLITER, query="key-7"))

    assert recorded.differing == against.differing == 1
    (difference,) = recorded.differences
    assert (difference.counter, difference.kind) == (9, "execute")
    assert difference.command == {"operation": "Put", "key": "key-7", "value": "value"}
    assert (difference.recorded, difference.replayed) == (["ok", None], ["ok", "thanks"])
    (difference,) = against.differences
    assert (difference.replayed, difference.against) == (["ok", None], ["ok", "thanks"])
    assert against.against is not None
    assert against.state.digest != against.against.digest
    assert (against.state.answer, against.against.answer) == (["ok", "value"], ["ok", "thanks"])


def test_differences_are_counted_but_not_listed_without_end(tmp_path: Path) -> None:
    data_of(tmp_path, puts(LISTED_MAX + 50))

    report = replay(tmp_path, ReplayOrder(app=CLOCKED, diff=True))

    assert report.differing == LISTED_MAX + 49
    assert len(report.differences) == LISTED_MAX


def tara(*arguments: object, status: int = 0) -> list[str]:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], prog_name="tara")
    assert result.exit_code == status, (result.output, result.exception)
    return result.stdout.splitlines()


def test_replay_from_the_command_line(tmp_path: Path) -> None:
    data_of(tmp_path, puts(40))

    lines = tara("replay", "--to", 9, "--data-dir", tmp_path, "--query", "key-7")
    assert lines[0].startswith("as of command 9, 1970-01-01 00:00:01.008: 9 commands executed again from the beginning")
    assert lines[1].endswith("answers value")
    lines = tara("replay", "--data-dir", tmp_path, "--against", POLITER, status=1)
    assert lines[-2:] == [
        "1 commands have other results",
        "         9  execute put key-7 value: replayed none, against thanks",
    ]
    report = json.loads(tara("replay", "--data-dir", tmp_path, "--diff", "--json")[-1])
    assert (report["to"], report["differing"], report["differences"]) == (40, 0, [])
    result = CliRunner().invoke(cli.app, ["replay", "--to", "41", "--data-dir", str(tmp_path)])
    assert isinstance(result.exception, ReplayError)
