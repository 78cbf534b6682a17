"""At most so many per second, in the time that is handed in: a bucket of allowance that fills as time passes."""

from tara.protocol.errors import NodeHalted

#: Allowance that is not used is kept for so long: enough to be exact with time in ticks, too little for a burst.
KEPT_MS = 50.0


class Throttle:
    """Invariant: 0 <= allowance <= capacity."""

    __slots__ = ("_allowance", "_capacity", "_now_ms", "_per_ms")

    def __init__(self, per_s: float, now_ms: float) -> None:
        """`per_s` must be positive."""
        self._per_ms = per_s / 1e3
        self._capacity = max(self._per_ms * KEPT_MS, 1.0)
        self._allowance = 0.0
        self._now_ms = now_ms

    def allowance(self, now_ms: float) -> int:
        """How many may be taken now."""
        passed_ms, self._now_ms = max(now_ms - self._now_ms, 0.0), max(now_ms, self._now_ms)
        self._allowance = min(self._allowance + passed_ms * self._per_ms, self._capacity)
        return int(self._allowance)

    def take(self, count: int) -> None:
        """Use up what `allowance` gave."""
        if count > self._allowance:
            raise NodeHalted(f"{count} proposed, but only {self._allowance} were allowed")
        self._allowance -= count
