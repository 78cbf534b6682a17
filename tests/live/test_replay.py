"""States rebuilt from the decided log: equal to the checkpoints of replicas; and results, compared."""

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tara import cli
from tara.application import KeyValueStore, Put
from tara.configuration.state import StateFile
from tara.operations.replay import LISTED_MAX, ReplayError, ReplayOrder, replay
from tara.protocol import tuples as t
from tara.protocol.sessions import Context
from tara.protocol.state_digest import digest_of
from tara.storage.base_format import base_directory
from tests.live.data_directories import StoredReplica
from tests.live.histories import INTERVAL, history, puts
from tests.live.test_backup import settings_for


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
    directory: Path,
    requests: list[t.Request],
    app: str = "key-value",
    retention_bytes: int = 1 << 30,
    bases: Iterable[int] = (),
) -> StoredReplica:
    """A data directory with what a replica keeps that executed these."""
    state = StateFile(directory).open(settings_for(directory, app=app))
    replica = StoredReplica(
        directory,
        state.cluster,
        application=KeyValueStore if app == "key-value" else Clocked,
        retention_bytes=retention_bytes,
    )
    replica.execute(requests, cuts=range(len(requests)), bases=bases)
    return replica


@pytest.mark.parametrize("seed", range(4))
def test_the_state_as_of_every_checkpoint_is_that_of_the_checkpoint(tmp_path: Path, seed: int) -> None:
    replica = data_of(tmp_path, history(seed, 200), bases=(3, 7))
    assert len(replica.states) == 200 // INTERVAL

    for number, state in replica.states.items():
        compared = replay(tmp_path, ReplayOrder(to=replica.counters[number], diff=True))
        assert compared.state.digest == digest_of(b"", state).hex()
        assert (compared.began_after, compared.base, compared.differing) == (0, 0, 0)
        # If nothing is compared, the newest base before it is the shortest way.
        report = replay(tmp_path, ReplayOrder(to=replica.counters[number]))
        assert report.state == compared.state
        assert report.base == max(base for base in (0, 3, 7) if base <= number)


def test_the_application_is_told_what_it_was_told_the_first_time(tmp_path: Path) -> None:
    """Counter, session, both clocks, sessions that open, close and expire: recorded results have them all."""
    data_of(tmp_path, history(1, 300), app=CLOCKED)

    report = replay(tmp_path, ReplayOrder(diff=True))

    assert (report.state.app, report.differing) == (CLOCKED, 0)
    assert report.commands == report.to > 70


def test_without_the_logs_beginning_the_oldest_base_that_joins_it_is_taken(tmp_path: Path) -> None:
    data_of(tmp_path, puts(200), retention_bytes=0, bases=(4, 8))
    data_of(tmp_path / "whole", puts(200))

    report = replay(tmp_path, ReplayOrder(to=190, diff=True, query="key-100"))

    assert (report.base, report.began_after, report.commands) == (4, 4 * INTERVAL, 190 - 4 * INTERVAL)
    assert report.state == replay(tmp_path / "whole", ReplayOrder(to=190, query="key-100")).state
    assert report.state.answer == ["ok", "value"]
    assert replay(tmp_path, ReplayOrder(to=190)).base == 8
    with pytest.raises(ReplayError, match=rf"command 3: out of range.* {4 * INTERVAL} to 200 can be rebuilt"):
        replay(tmp_path, ReplayOrder(to=3))
    with pytest.raises(ReplayError, match="command 201: out of range"):
        replay(tmp_path, ReplayOrder(to=201))


def test_a_log_without_beginning_and_base_cannot_be_replayed(tmp_path: Path) -> None:
    data_of(tmp_path, puts(200), retention_bytes=0, bases=(4, 8))
    for path in base_directory(tmp_path, 0).iterdir():
        path.unlink()

    with pytest.raises(ReplayError, match="no base joins it"):
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
