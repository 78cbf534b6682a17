"""How long the states of a running cluster are waited for."""

from typing import Any

from tara.operations.fresh_checkpoint import NEWS_S
from tara.operations.running_states import await_bases

LABELS = ("executor-0", "executor-1", "executor-2")


class Cluster:
    """Its bases grow for so long; then they stand still, or are there."""

    def __init__(self, grows_s: float, comes: bool) -> None:
        self.now_s = 0.0
        self._grows_s = grows_s
        self._comes = comes

    def status(self) -> dict[str, Any]:
        return {"containers": [{"hosted": [label], "executor": self._executor(label)} for label in LABELS]}

    def _executor(self, label: str) -> dict[str, Any]:
        here = label != LABELS[2] or (self.now_s > self._grows_s and self._comes)
        growing = None if here else (4, int(min(self.now_s, self._grows_s) * 1e6))
        return {"bases": [{"number": 4, "digest": "ab"}] if here else [], "base_growing": growing}

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def compare(self) -> tuple[bool, bool]:
        found, late = await_bases(self.status, 4, 10.0, lambda: self.now_s, self.wait)
        return found.equal, late


def test_a_base_that_grows_is_waited_for() -> None:
    """However long that takes: a gigabyte on a slow disk is minutes."""
    cluster = Cluster(grows_s=1000.0, comes=True)
    assert cluster.compare() == (True, False)
    assert cluster.now_s <= 1000.0 + 2 * NEWS_S


def test_one_that_does_not_is_not() -> None:
    cluster = Cluster(grows_s=100.0, comes=False)
    assert cluster.compare() == (False, False)
    assert cluster.now_s <= 110.0 + 3 * NEWS_S
