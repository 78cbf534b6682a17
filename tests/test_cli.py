"""The command line: version, help and how errors reach the user."""

import json
import platform
import re

import pytest
from typer.testing import CliRunner

from tara import __version__, cli
from tara.protocol.errors import TaraError


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
    "command", [(), ("version",), ("log",), ("backup",), ("restore",), ("sim",), ("bench",)], ids=" ".join
)
def test_help(command, flag):
    result = invoke(*command, flag)
    assert result.exit_code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)  # the environment may force colours
    assert " ".join(("Usage: tara", *command)) in plain


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
