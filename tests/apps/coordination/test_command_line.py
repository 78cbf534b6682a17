"""`tara zk`: passwords do not show to others."""

from pathlib import Path

import pytest
import typer

from tara.apps.coordination.command_line import AUTH_VARIABLE, credentials_of
from tara.protocol.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUTH_VARIABLE, raising=False)


def test_a_password_on_the_command_line_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="--auth-file") as refused:
        credentials_of(["ann:secret"], None)
    assert "secret" not in str(refused.value)


def test_a_password_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prompt(text: str, *, hide_input: bool, err: bool) -> str:
        asked.append((text, hide_input, err))
        return "pass:word"

    monkeypatch.setattr(typer, "prompt", prompt)
    assert credentials_of(["ann", "bob"], None) == ["ann:pass:word", "bob:pass:word"]
    assert asked == [("password of ann", True, True), ("password of bob", True, True)]


def test_a_file_with_passwords_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "auth"
    path.write_text("ann:secret\n\nbob:other\n")
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        credentials_of(None, path)
    path.chmod(0o600)
    assert credentials_of(None, path) == ["ann:secret", "bob:other"]
    path.write_text("ann\n")
    with pytest.raises(ConfigurationError, match="user:password"):
        credentials_of(None, path)


def test_passwords_may_be_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AUTH_VARIABLE, "ann:secret")
    assert credentials_of(None, None) == ["ann:secret"]
    path = tmp_path / "auth"
    path.write_text("bob:other")
    path.chmod(0o600)
    assert credentials_of(None, path) == ["bob:other"]
    monkeypatch.setenv(AUTH_VARIABLE, "secret")
    with pytest.raises(ConfigurationError) as refused:
        credentials_of(None, None)
    assert "secret" not in str(refused.value)
