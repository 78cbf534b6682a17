"""Tara does not run where Python leaves assertions out."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["tara.cli", "tara.live.hosting", "tara.protocol.nodes.committer"])
@pytest.mark.parametrize(("arguments", "environment"), [(["-O"], {}), ([], {"PYTHONOPTIMIZE": "1"})])
def test_nothing_starts_without_assertions(module: str, arguments: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments, "-c", f"import {module}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Tara does not run without assertions" in done.stderr
