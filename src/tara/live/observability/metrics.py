"""What heartbeats tell of a process, and what becomes of it: rates and latencies of the last seconds."""

import os
import resource
from collections import deque
from collections.abc import Sequence
from typing import Any, TypedDict

from tara.host.latency import BOUNDS_S

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
