"""How long a controller's own process stood still, which is nobody else's fault.

A site waits for its disk, and a busy machine for its processor: meanwhile nothing arrives here, whoever is alive. So
that time does not count as waiting. And others may stand still as long as this process did, because their disks have
as much to do: that much more is allowed, until all has been quick for a while.
"""

import math

#: What is allowed beyond the time-out, as a multiple of the longest stall of late; and no more than this.
MARGIN = 2
ALLOWANCE_MS_MAX = 10_000.0
#: Without a stall for so long, half of that will do.
CALM_MS = 5_000.0
#: A gap between two ticks is a stall if it is longer than so many of the shortest one that was seen.
USUAL_TIMES = 4


class Stalls:
    """Invariant: the allowance is 0 while no stall is known."""

    def __init__(self, now_ms: float, short_ms: float) -> None:
        """Gaps between ticks that are not longer than `short_ms` are usual."""
        self.allowance_ms = 0.0
        self._short_ms = short_ms
        #: The shortest gap between two ticks; and when the last tick was, and the last stall.
        self._usual_ms = math.inf
        self._last_ms = self._stalled_ms = now_ms

    def tick(self, now_ms: float) -> float:
        """Time has passed. Returns for how long of it the process stood still."""
        gap_ms, self._last_ms = now_ms - self._last_ms, now_ms
        if gap_ms > 0:
            self._usual_ms = min(gap_ms, self._usual_ms)
        stall_ms = gap_ms - max(self._short_ms, USUAL_TIMES * self._usual_ms)
        if stall_ms > 0:
            self.allowance_ms = min(max(MARGIN * stall_ms, self.allowance_ms), ALLOWANCE_MS_MAX)
            self._stalled_ms = now_ms
            return stall_ms
        if self.allowance_ms and now_ms - self._stalled_ms >= CALM_MS:
            self.allowance_ms = self.allowance_ms / 2 if self.allowance_ms > self._short_ms else 0.0
            self._stalled_ms = now_ms
        return 0.0
