"""When the requests that came for a proposer become a run: at the end of what a site does at once, or a little later
while it has many reads to answer."""

from tara.protocol import tuples as t

#: While a site with a journal gets this many reads per tick, its proposer makes a run of requests when there
#: are this many, or this long after the last run: each run costs every site a sync, and readers wait meanwhile.
BUSY_READS = 12
BUSY_RUN = 24
BUSY_PAUSE_MS = 4.0


class Pacing:
    def __init__(self, waits: bool) -> None:
        """`waits` is whether a run may be made to wait at all."""
        self._waits = waits
        #: How many reads came since the last tick, and whether they were many in the tick before.
        self._asked = 0
        self._busy = False
        self._requests: dict[int, list[t.Request]] = {}
        #: When the last run was made.
        self._run_ms = 0.0

    def note_reads(self, count: int) -> None:
        self._asked += count

    def tick(self) -> None:
        self._busy, self._asked = self._waits and self._asked >= BUSY_READS, 0

    def add(self, requests: t.Requests, number: int) -> None:
        """Requests for a node."""
        self._requests.setdefault(number, []).extend(requests.requests)

    def take(self, now_ms: float) -> list[tuple[t.Requests, int]]:
        """The runs that are due."""
        if not self._requests:
            return []
        few = sum(map(len, self._requests.values())) < BUSY_RUN
        if self._busy and few and now_ms - self._run_ms < BUSY_PAUSE_MS:
            return []
        requests, self._requests, self._run_ms = self._requests, {}, now_ms
        return [(t.Requests(some), number) for number, some in requests.items()]
