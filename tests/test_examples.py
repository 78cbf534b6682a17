"""The examples run as their texts say."""

import subprocess
import sys
from pathlib import Path

import pytest

from tara.operations.deployment import Deployment
from tests.patience import DEADLINE_S

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.spark
def test_the_ledger(tmp_path: Path) -> None:
    cluster = Deployment(tmp_path / "data", {"app": "ledger:Ledger"}, EXAMPLES)
    try:
        cluster.start()
        for _ in range(2):  # the second time it finds what the first has left
            command = [sys.executable, "ledger.py", cluster.endpoints]
            done = subprocess.run(
                command, cwd=EXAMPLES, capture_output=True, text=True, check=False, timeout=DEADLINE_S
            )
            assert done.returncode == 0, done.stderr
            assert "10000 before, 10000 after" in done.stdout
    finally:
        cluster.stop()
