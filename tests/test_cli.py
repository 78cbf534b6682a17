"""The command line: version, help, listings, and how errors reach the user."""

import io
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tara import __version__, cli
from tara.cli import simulation
from tara.protocol.errors import TaraError
from tara.simulator.run import Outcome
from tests.live.processes import Processes, settings_for
from tests.patience import await_condition


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments), prog_name="tara")


def test_version():
    result = invoke("version")
    assert result.exit_code == 0
    assert result.stdout == f"tara {__version__}\n"


def test_version_as_json():
    result = invoke("version", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"version": __version__, "python": platform.python_version()}


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(
    "command",
    [(), ("version",), ("log",), ("backup",), ("restore",), ("drill",), ("sim",), ("bench",), ("config",), ("nodes",)],
    ids=" ".join,
)
def test_help(command, flag):
    result = invoke(*command, flag)
    assert result.exit_code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)  # the environment may force colours
    assert " ".join(("Usage: tara", *command)) in plain


def test_nothing_heavy_is_loaded_for_the_help():
    """It comes at once: what a command needs is imported when that command runs."""
    code = "import sys, tara.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"cryptography", "matplotlib", "numpy", "pandas", "pyarrow", "pyspark", "tara.protocol", "tara.live"}
    assert "tara.cli.cluster" in loaded
    assert heavy & set(loaded) == set()


def test_every_application_offers_commands_and_they_are_there():
    offered = {command.name for commands in cli.APPLICATIONS for command in commands.registered_commands}
    assert {"put", "get", "delete", "cas", "list", "ls", "create", "watch"} <= offered
    assert invoke("zk", "watch", "--help").exit_code == 0
    assert invoke("cas", "--help").exit_code == 0


def test_no_cluster_begins_in_a_directory_that_is_there_without_being_told(tmp_path):
    result = invoke("up", "--data-dir", str(tmp_path))
    assert isinstance(result.exception, TaraError)
    assert "--found" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_unknown_command_is_a_usage_error():
    result = invoke("no-such-command")
    assert result.exit_code == 2
    assert "No such command" in result.stderr


def run_main(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Run main() with a command line that raises the given error."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    cli.main()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (TaraError("no quorum:\n  1 of 3 replicas"), "tara: no quorum: 1 of 3 replicas\n"),
        (TaraError(), "tara: TaraError\n"),
    ],
)
def test_tara_error_is_one_line_and_status_2(monkeypatch, capsys, error, line):
    with pytest.raises(SystemExit) as exit_info:
        run_main(monkeypatch, error)
    assert exit_info.value.code == 2
    assert capsys.readouterr() == ("", line)


def test_other_errors_are_not_hidden(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        run_main(monkeypatch, ZeroDivisionError())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    settings = settings_for(tmp_path_factory.mktemp("cli") / "data", partitions=2, checkpoint_interval=64, window=256)
    with Processes(settings) as processes:
        await_condition(lambda: processes.active_proposers() == 2, "an active proposer per partition")
        yield processes


def test_status_shows_what_runs_and_how_it_is(running, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert invoke("put", "a", "b", "--data-dir", running.settings.data_dir).exit_code == 0

    def text() -> str:
        return invoke("status", "--data-dir", running.settings.data_dir).stdout

    assert f"cluster {running.registry.state.cluster:x}" in text()
    assert running.registry.metrics_address in text()
    for word in ("commands/s", "p99", "site-0", "site-2", "restarts", "stable", "committers at"):
        assert word in text()
    # On a busy machine a view may change just now.
    await_condition(lambda: text().count("proposer-p") == 2, "two active proposers in the table")


def test_status_as_json_has_all_metrics(running):
    def status():
        return json.loads(invoke("status", "--json", "--data-dir", running.settings.data_dir).stdout)

    # On a busy machine a heartbeat may be late just now.
    await_condition(lambda: all(container["up"] for container in status()["containers"]), "everybody to be heard")
    found = status()
    assert found["recent"].keys() >= {"commands_per_s", "latency_ms_p50", "latency_ms_p99"}
    for container in found["containers"]:
        assert container["counters"].keys() >= {
            "frames_in", "frames_out", "frames_bad", "frames_foreign", "frames_dropped", "tuples_in", "tuples_out",
            "requests", "commands", "results", "overloaded", "view_changes", "resends", "journal_syncs", "halted",
            "bases_saved", "bases_loaded", "store_errors",
        }  # fmt: skip
        assert container["process"]["rss_bytes"] > 0
        assert set(container["histograms"]) == {"latency", "journal_sync"}


def test_nodes_lists_every_node(running):
    rows = json.loads(invoke("nodes", "--json", "--data-dir", running.settings.data_dir).stdout)["nodes"]

    assert [row["node"] for row in rows] == [running.registry.graph.label(n) for n in range(len(rows))]
    assert len(rows) == len(running.registry.graph.names)
    committer = next(row for row in rows if row["node"] == "committer-p1-2")
    assert (committer["stage"], committer["partition"], committer["replica"]) == ("committer", 1, 2)
    assert (committer["site"], committer["container"], committer["life"]) == (0, "site-0", 1)
    assert committer["state"] in ("voting", "waiting")
    assert {row["state"] for row in rows if row["stage"] == "proposer"} <= {"active", "idle", "collecting"}
    assert "unknown" not in {row["state"] for row in rows}


def test_nodes_as_a_table(running, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = invoke("nodes", "--data-dir", running.settings.data_dir).stdout

    assert "committer-p1-2" in text
    assert "executing" in text


def test_config_check_prints_every_setting_with_its_origin(tmp_path, monkeypatch):
    path = tmp_path / "tara.toml"
    path.write_text('packing = "node"\nwindow = 40000\n')
    monkeypatch.setenv("TARA_WINDOW", "50000")
    result = invoke("config", "check", str(path), "--json")

    assert result.exit_code == 0
    rows = {row["setting"]: (row["value"], row["origin"]) for row in json.loads(result.stdout)["settings"]}
    assert rows["packing"] == ("node", str(path))
    assert rows["window"] == (50_000, "TARA_WINDOW")
    assert rows["durability"] == ("disk", "default")
    assert rows["metrics_port"] == (0, "default")
    assert invoke("config", "check", str(path)).exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windo = 5", "unknown setting 'windo'"),
        ("window = 5", "window = 5: must be at least"),
        ('window = "wide"', "window = wide"),
        ('durability = "tape"', "durability = tape"),
        ("metrics_port = 70000", "metrics_port = 70000"),
        ('app = "nothing"', "app = nothing"),
        ("window = = 3", "tara.toml"),
        ("[window]\na = 1", "window"),
    ],
)
def test_config_check_names_what_is_wrong(tmp_path: Path, text, message):
    path = tmp_path / "tara.toml"
    path.write_text(text)
    result = invoke("config", "check", str(path))

    assert result.exit_code == 1
    assert message in result.stderr


def test_config_check_of_a_missing_file(tmp_path):
    result = invoke("config", "check", str(tmp_path / "none.toml"))

    assert result.exit_code == 1
    assert "none.toml: No such file" in result.stderr


def test_what_a_seed_violates_is_told_before_the_others_have_run() -> None:
    told = io.StringIO()
    found = Outcome(seed=7, violation="agreement")
    outcomes = simulation._telling(iter([Outcome(seed=6), found, Outcome(seed=8)]), Console(file=told), "--f 2")
    assert [next(outcomes).seed, told.getvalue()] == [6, ""]
    assert next(outcomes) is found
    assert told.getvalue() == "agreement in seed 7: tara sim replay 7 --f 2\n"
