"""How long requests of some size may take before they are decided: what a controller waits beyond its time-out.

A request travels from its source to the proposer, from there to all committers, from each of those to the executors,
and all that over the uplinks that it shares with others. At first a slow link is assumed. When large requests have been
decided, what they took is known, and some multiple of the slowest of the last ones is allowed.

An allowance that was used up is doubled: the link may be slower than anybody knows. Or the proposer was gone, and the
links are as quick as before; so the doubling lasts until requests show what they take, or until all has been quick for
a while. Otherwise each crash would make the next one last twice as long.

A wait need not have been for bytes: a process may have stood still, or a clock have jumped. So a decision counts once,
however many executors report it, and at most doubles what is allowed; a link that is slow shows in the next one, too.

Invariant: the allowance is 0 while no request is long, and never more than `ALLOWANCE_MS_MAX`; it does not fall below
what requests are known to take.
"""

from collections import deque

from tara.protocol import tuples as t

#: Assumed at first: a link of 10 Mbit/s (1,250 bytes a millisecond), over which every byte goes five times.
MS_PER_BYTE = 5 / 1_250
#: What is shorter needs no allowance.
LONG_BYTES = 4 << 10
#: A decision about less says nothing about what links carry.
SAMPLE_BYTES = 64 << 10
SAMPLES = 8
#: What is allowed, as a multiple of the slowest of the last samples; and how many there have to be.
MARGIN = 4
SAMPLES_MIN = 2
#: No link is so slow; something is wrong.
ALLOWANCE_MS_MAX = 120_000.0


class Transfer:
    __slots__ = ("_bytes", "_known", "_ms_per_byte", "_pending", "_reported", "_samples", "_wait")

    def __init__(self) -> None:
        #: How long undecided requests are, or were a while ago; and how long those of each source are, as it said last.
        self._bytes = 0
        self._pending: dict[int, int] = {}
        #: What is allowed; and what is assumed, or has been seen to be needed, which is less after a doubling.
        self._ms_per_byte = self._known = MS_PER_BYTE
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        #: When the last wait that is known began, and the bytes that were decided in it.
        self._wait = (0.0, 0)
        #: Per executor, the life and the bytes of its last report that showed progress.
        self._reported: dict[int, tuple[int, int]] = {}

    @property
    def allowance_ms(self) -> float:
        return min(self._bytes * self._ms_per_byte, ALLOWANCE_MS_MAX)

    @property
    def _doubled(self) -> float:
        """What may be allowed next, where links have been quick without end, too."""
        return max(2 * self._ms_per_byte, MS_PER_BYTE)

    def expect(self, source: int, size: int) -> None:
        """Undecided requests of a source are so long."""
        self._pending[source] = size if size >= LONG_BYTES else 0
        self._bytes = max(self._bytes, self._pending[source])

    def note(self, progress: t.Progress, began_ms: float | None, now_ms: float) -> None:
        """An executor reports. With it f+1 of them have decided something, after a wait that began then (None: they
        have not). Requests of other sources may have been decided in that wait: all took that time together."""
        life, before = self._reported.get(progress.executor, (0, 0))
        if progress.life < life:
            return
        decided = progress.bytes - before if progress.life == life else 0
        if progress.life > life or decided > 0:
            self._reported[progress.executor] = (progress.life, progress.bytes)
        if began_ms is None or decided <= 0:
            return
        size = decided + (self._wait[1] if self._wait[0] == began_ms else 0)
        self._wait = (began_ms, size)
        if decided < LONG_BYTES:
            # What was long before is out of the way, by and by.
            self._bytes = max(_half(self._bytes), max(self._pending.values(), default=0))
        if decided >= SAMPLE_BYTES:
            self._samples.append(min((now_ms - began_ms) / size, self._doubled / MARGIN))
            self._learn(MARGIN * max(self._samples))

    def _learn(self, needed: float) -> None:
        """One sample is enough to allow for more, but not to allow for less."""
        if len(self._samples) >= SAMPLES_MIN:
            self._ms_per_byte = self._known = needed
        else:
            self._known = max(self._known, needed)
            self._ms_per_byte = max(self._ms_per_byte, needed)

    def enter(self) -> None:
        """In a new view, sources that are alive report again at once."""
        self._pending.clear()

    def was_too_short(self) -> None:
        """The allowance was used up. If that was for nothing, more is needed the next time."""
        self._ms_per_byte = self._doubled
        self._samples.clear()

    def forget(self) -> None:
        """All is quick: long requests may have been an exception, and what was doubled need not have been."""
        self._ms_per_byte = max(self._ms_per_byte / 2, self._known)
        self._bytes = _half(self._bytes)


def _half(size: int) -> int:
    return size // 2 if size >= 2 * LONG_BYTES else 0
