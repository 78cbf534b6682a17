"""Whether the replica of a site executes, as its front end knows: clients are told at once if it does not.

The executor says so when it halts, and again with every report; it may be in another container, and its last word may
be lost. So what is not repeated for a while is forgotten.
"""

from tara.protocol import tuples as t
from tara.protocol.limits import Limits

#: Reports that may be missed.
REPORTS_MISSED_MAX = 20


def described(halted: t.Halted) -> str:
    """For operators and clients."""
    if halted.checkpoint:
        return f"halted at checkpoint {halted.checkpoint}, behind command {halted.counter}: {halted.reason}"
    return f"halted at command {halted.counter}: {halted.reason}"


class SiteCondition:
    def __init__(self, limits: Limits) -> None:
        self._patience_ms = REPORTS_MISSED_MAX * limits.report_interval_ms
        self._said: bytes | None = None
        self._until_ms = 0.0

    def hear(self, halted: t.Halted, now_ms: float) -> None:
        self._said = f"replica {halted.executor} has {described(halted)}".encode() if halted.reason else None
        self._until_ms = now_ms + self._patience_ms

    def halted(self, now_ms: float) -> bytes | None:
        """Why it does not execute; None if it does, as far as is known."""
        return self._said if self._said is not None and now_ms < self._until_ms else None
