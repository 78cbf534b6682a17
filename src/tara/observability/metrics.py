"""What a container measures: histograms with logarithmic buckets, sampled latencies, and what the process uses.

The request path pays one call per frame of a client, one per reply, and a dictionary lookup per result while a sample
is open: tens of nanoseconds per command. Everything else is computed when a heartbeat asks for it.
"""

import os
import resource
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any, TypedDict

from msgspec import Struct

from tara.protocol import tuples as t

#: Upper bounds of the buckets, in seconds: 50 µs to about a minute, each √2 times the one before.
BOUNDS_S: tuple[float, ...] = tuple(float(f"{50e-6 * 2 ** (step / 2):.4g}") for step in range(42))
#: One command in so many is timed.
SAMPLE_EVERY = 16
#: Samples that may be open; one that gets no answer is given up when it is as old as this.
SAMPLES_MAX = 1024
SAMPLE_AGE_S_MAX = 60.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Counters(Struct):
    """What the container has done since it started."""

    frames_in: int = 0
    frames_out: int = 0
    frames_bad: int = 0
    frames_foreign: int = 0
    frames_dropped: int = 0
    #: Questions for files that could not be read.
    asks_bad: int = 0
    tuples_in: int = 0
    tuples_out: int = 0
    commands: int = 0
    #: Commands that were refused because their source was full, or because they were too long.
    overloaded: int = 0
    too_large: int = 0
    results: int = 0
    #: Answers to questions that were not ordered.
    answers: int = 0
    #: Connections that did not come about: unknown keys, none, or handshakes that were given up.
    connections_refused: int = 0
    journal_syncs: int = 0
    journal_entries: int = 0
    journals_set_aside: int = 0
    journals_repaired: int = 0
    turns: int = 0
    halted: dict[str, str] = {}


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


def quantile_s(counts: Sequence[int], share: float) -> float | None:
    """The value below which this share of the entries lies, interpolated in its bucket; None without entries."""
    total = sum(counts)
    if not total:
        return None
    rank, below = share * total, 0
    for bucket, count in enumerate(counts):
        if count and below + count >= rank:
            if bucket == len(BOUNDS_S):
                return BOUNDS_S[-1]
            low = BOUNDS_S[bucket - 1] if bucket else 0.0
            return low + (BOUNDS_S[bucket] - low) * max(rank - below, 0.0) / count
        below += count
    raise AssertionError("the counts of a histogram add up to its total")


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

    def arrived(self, commands: list[t.Command]) -> None:
        self.requests += 1
        self._countdown -= len(commands)
        if self._countdown <= 0:
            self._countdown = SAMPLE_EVERY
            self._begin(commands[-1])

    def _begin(self, command: t.Command) -> None:
        now_s = time.perf_counter()
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

    def answered(self, results: list[t.Result]) -> None:
        waiting = self._open
        if not waiting:
            return
        for result in results:
            sample = waiting.get(result.session)
            # A command that is refused for now comes again: its client is still waiting.
            if sample is not None and sample[0] == result.number and result.status != t.OVERLOADED:
                del waiting[result.session]
                self.histogram.add(time.perf_counter() - sample[1])


class ProcessReport(TypedDict):
    rss_bytes: int
    cpu_s: float


def process_report() -> ProcessReport:
    """Memory and CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    try:
        with open("/proc/self/statm") as file:
            rss_bytes = int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        # No /proc here: the peak is the best there is.
        rss_bytes = usage.ru_maxrss * 1024
    return {"rss_bytes": rss_bytes, "cpu_s": round(usage.ru_utime + usage.ru_stime, 3)}


#: Rates and latencies in the status are those of the last seconds.
RECENT_S = 5.0
_RECENT_REPORTS_MAX = 64


class Recent:
    """The heartbeats of the last seconds of one life, for rates and recent latencies."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_RECENT_REPORTS_MAX)

    def add(self, now_s: float, status: dict[str, Any]) -> None:
        self._reports.append((now_s, status))
        # The newest of those that are older than the window stays: the window begins there.
        while len(self._reports) > 2 and now_s - self._reports[1][0] >= RECENT_S:
            self._reports.popleft()

    def rate_per_s(self, counter: str) -> float:
        if len(self._reports) < 2:
            return 0.0
        (begin_s, first), (end_s, last) = self._reports[0], self._reports[-1]
        grown = last["counters"][counter] - first["counters"][counter]
        return round(float(grown / max(end_s - begin_s, 1e-3)), 1)

    def counts(self, histogram: str) -> list[int]:
        """The entries of the last seconds, per bucket."""
        if not self._reports:
            return [0] * (len(BOUNDS_S) + 1)
        last: list[int] = self._reports[-1][1]["histograms"][histogram]["counts"]
        if len(self._reports) == 1:
            return last
        first: list[int] = self._reports[0][1]["histograms"][histogram]["counts"]
        return [new - old for old, new in zip(first, last, strict=True)]


def recent_report(recents: Sequence[Recent]) -> dict[str, float | None]:
    """Rates and latencies of the last seconds, over all of the given containers."""
    report: dict[str, float | None] = {
        f"{counter}_per_s": round(sum(recent.rate_per_s(counter) for recent in recents), 1)
        for counter in ("commands", "results")
    }
    for histogram in ("latency", "journal_sync"):
        counts = [sum(column) for column in zip(*(recent.counts(histogram) for recent in recents), strict=True)]
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            value_s = quantile_s(counts, share)
            report[f"{histogram}_ms_{name}"] = None if value_s is None else round(value_s * 1e3, 3)
    return report
