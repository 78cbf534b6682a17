"""Histograms with logarithmic buckets, and sampled latencies.

The request path pays one call per message of a client, one per reply, and a dictionary lookup per result while a sample
is open: tens of nanoseconds per command.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import TypedDict

from tara.protocol import tuples as t

#: Upper bounds of the buckets, in seconds: 50 µs to about a minute, each √2 times the one before.
BOUNDS_S: tuple[float, ...] = tuple(float(f"{50e-6 * 2 ** (step / 2):.4g}") for step in range(42))
#: One command in so many is timed.
SAMPLE_EVERY = 16
#: Samples that may be open; one that gets no answer is given up when it is as old as this.
SAMPLES_MAX = 1024
SAMPLE_AGE_S_MAX = 60.0


class HistogramReport(TypedDict):
    """As it travels in a heartbeat: counts per bucket (the last one has no upper bound), and the sum."""

    counts: list[int]
    sum_s: float


class Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def report(self) -> HistogramReport:
        return {"counts": list(self.counts), "sum_s": round(self.sum_s, 6)}


class LatencySampler:
    """Times one command in `SAMPLE_EVERY`, from its arrival to the moment its result leaves.

    At most one command per session is timed at once, so a session is all that has to be looked up."""

    def __init__(self) -> None:
        self.histogram = Histogram()
        #: Frames of clients that carried commands or reads.
        self.requests = 0
        self._countdown = 1
        #: Per session: the number of the timed command, and when it came.
        self._open: dict[int, tuple[int, float]] = {}

    def arrived(self, commands: list[t.Command], now_s: float) -> None:
        self.requests += 1
        self._countdown -= len(commands)
        if self._countdown <= 0:
            self._countdown = SAMPLE_EVERY
            self._begin(commands[-1], now_s)

    def _begin(self, command: t.Command, now_s: float) -> None:
        if len(self._open) >= SAMPLES_MAX:
            oldest_s = now_s - SAMPLE_AGE_S_MAX
            self._open = {session: sample for session, sample in self._open.items() if sample[1] > oldest_s}
            if len(self._open) >= SAMPLES_MAX:
                return
        if command.session:
            # The one that waits goes on being timed: neither a repetition nor a quick successor may hide a slow answer.
            known = self._open.get(command.session)
            if known is None or now_s - known[1] > SAMPLE_AGE_S_MAX:
                self._open[command.session] = (command.number, now_s)

    def answered(self, results: list[t.Result], clock_s: Callable[[], float]) -> None:
        """The clock is looked at only if one of them was timed."""
        waiting = self._open
        if not waiting:
            return
        for result in results:
            sample = waiting.get(result.session)
            # A command that is refused for now comes again: its client is still waiting.
            if sample is not None and sample[0] == result.number and result.status != t.OVERLOADED:
                del waiting[result.session]
                self.histogram.add(clock_s() - sample[1])
