"""Bases: when an executor takes one, and how it is drawn.

A base is due when the log since the last one is as long as that base: so all bases together are about twice as long as
the log, at most, and coming back executes no more of it than the state is long. Replicas should take theirs at the same
checkpoints, because only then can they be compared. Therefore the rule looks at what is the same everywhere, the bytes
of all requests of the era and of their results (`Execution.bytes`): a base is due where they pass a multiple of a power
of two that is not less than the last base's length. A replica that was busy then, or down, takes part again at the next
one.
"""

from collections.abc import Iterable, Iterator

from tara.protocol.limits import Limits

#: What is drawn at once: until then the executor does nothing else.
DRAW_BYTES = 256 << 10
#: Checkpoints that pass before a base that failed is tried again: doubles up to this.
PAUSE_MAX = 64


class BaseSchedule:
    def __init__(self, limits: Limits) -> None:
        self._bytes_min = limits.base_bytes_min
        self._interval_ms = limits.base_interval_ms
        #: The length of the last base, and the bytes of the log and the agreed time at it.
        self._length = self._bytes = self._time_ms = 0
        #: No base is taken before this checkpoint, because so many in a row have failed.
        self._not_before = self._failures = 0

    def note(self, length: int, bytes_: int, time_ms: int) -> None:
        """There is a base here."""
        self._length, self._bytes, self._time_ms = length, bytes_, time_ms
        self._not_before = self._failures = 0

    def failed(self, number: int) -> None:
        """The base at this checkpoint could not be taken."""
        self._failures += 1
        self._not_before = number + min(1 << self._failures, PAUSE_MAX)

    def is_due(self, number: int, bytes_: int, time_ms: int, wanted: bool = False) -> bool:
        """At this checkpoint; `wanted`: another replica needs one."""
        # Without a base, the time counts from the first checkpoint.
        self._time_ms = self._time_ms or time_ms
        if number < self._not_before:
            return False
        if self._failures or wanted:
            return True
        step = 1 << (max(self._length, self._bytes_min) - 1).bit_length()
        late = time_ms // self._interval_ms > self._time_ms // self._interval_ms
        return late or bytes_ // step > self._bytes // step


class Capture:
    """A base that is being drawn."""

    def __init__(
        self, number: int, bytes_: int, time_ms: int, chunks: Iterator[bytes], state: Iterable[bytes] = ()
    ) -> None:
        """`chunks` are the application's, `state` is the protocol's part, which comes first."""
        self.number = number
        #: As in `BaseSchedule`.
        self.bytes = bytes_
        self.time_ms = time_ms
        self._chunks = chunks
        self._state = iter(state)

    def draw_state(self) -> list[bytes]:
        """The next pieces of the protocol's part; none: these were all."""
        return _some(self._state)

    def draw(self) -> list[bytes]:
        """The next chunks; none: these were all. Raises what the application raises."""
        return _some(self._chunks)


def _some(chunks: Iterator[bytes]) -> list[bytes]:
    """About as many as may be drawn at once."""
    drawn: list[bytes] = []
    size = 0
    for chunk in chunks:
        if type(chunk) is not bytes:
            raise TypeError("a chunk of a snapshot that is not bytes")
        if chunk:
            drawn.append(chunk)
            size += len(chunk)
        if size >= DRAW_BYTES:
            break
    return drawn
