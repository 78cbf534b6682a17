"""Spark needs Java: what is said where there is none, or an old one."""

from pathlib import Path

import pytest

from tara.live.spark_session import SparkError, check_java


def fake_java(directory: Path, version: str) -> None:
    java = directory / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


def test_no_java_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkError, match=r"no Java found. Spark needs Java 17 or newer: install it"):
        check_java()


def test_a_java_home_without_java_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkError, match="no Java found"):
        check_java()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "nonsense"])
def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkError, match=f"{tmp_path}/bin/java is version"):
        check_java()


def test_a_new_java_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()
