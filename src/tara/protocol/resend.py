"""Who lags behind, and from where to send again: state, not acknowledgements.

Receivers report positions; a sender compares them with what it had sent some rounds ago. A receiver that lacks
something so old and does not move, or has just begun a new life, gets a burst from its position on, and the next burst
as soon as it has taken just that. One that moves by itself is slow, and the last thing it needs is to be sent
everything twice; what is long may be on its way for long. A burst that changes nothing is repeated less and less often,
and a receiver that has not been heard of since the last burst gets none: it is down, or what was sent is still on its
way. Nothing is kept per tuple.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from tara.protocol import tuples as t
from tara.protocol.backoff import Backoff
from tara.protocol.limits import Limits

#: What a slow link carries between two reports. What is long needs time, and is not lost because it has not come.
ROUND_BYTES = 64 << 10


class Laggards:
    __slots__ = ("_backoff", "_heard", "_lives", "_positions", "_rounds", "_sent", "_stuck", "_until")

    def __init__(self, receivers: int, rounds: int) -> None:
        self._rounds = rounds
        #: What had been sent, one entry per round, oldest first.
        self._sent: deque[int] = deque(maxlen=rounds + 1)
        self._positions = [-1] * receivers
        #: Rounds since the receiver moved, or since the last burst to it.
        self._stuck = [0] * receivers
        #: Rounds without movement before the next burst.
        self._backoff = [Backoff(rounds) for _ in range(receivers)]
        #: The end of the last burst to each receiver, and the receiver's last report before it.
        self._until = [-1] * receivers
        self._heard: list[tuple[int, int]] = [(0, 0)] * receivers
        #: The newest life of each receiver that was heard of.
        self._lives = [0] * receivers

    def next_round(self, sent: int) -> None:
        """A round begins; everything below `sent` has been sent."""
        self._sent.append(sent)

    def lags(self, receiver: int, position: int, heard: tuple[int, int], size: Callable[[], int]) -> bool:
        """Whether this receiver is to be sent everything from `position` on again. Called once per round; `heard` says
        which report of the receiver the position is from, and `size` how long a burst would be."""
        began = heard[0] > self._lives[receiver]
        self._lives[receiver] = max(heard[0], self._lives[receiver])
        moved = position != self._positions[receiver]
        if moved or began:
            self._positions[receiver] = position
            self._stuck[receiver] = 0
            self._backoff[receiver].reset()
        else:
            self._stuck[receiver] += 1
        if len(self._sent) <= self._rounds or position >= self._sent[0] or heard <= self._heard[receiver]:
            return False
        # It stands where the last burst ended. Beyond that it would live on what is on its way to it.
        # And what was on its way to a receiver that has begun a new life has found nobody who could use it.
        at_once = began or (moved and position == self._until[receiver])
        if self._stuck[receiver] < self._backoff[receiver].pause and not at_once:
            return False
        if self._stuck[receiver] < rounds_for(size()) and not at_once:
            return False
        self._heard[receiver] = heard
        self._stuck[receiver] = 0
        self._backoff[receiver].attempted()
        return True

    def resent(self, receiver: int, until: int) -> None:
        self._until[receiver] = until

    def reset(self) -> None:
        """Start again, as in a new view."""
        receivers = len(self._stuck)
        self._sent.clear()
        self._stuck = [0] * receivers
        self._backoff = [Backoff(self._rounds) for _ in range(receivers)]
        self._until = [-1] * receivers


def burst(requests: Iterable[t.Request], limits: Limits) -> list[t.Request]:
    """The first of them, as many as are sent again at once."""
    return next(t.split(list(islice(requests, limits.resend_burst)), limits.resend_burst, limits.resend_bytes_max), [])


def rounds_for(size: int) -> int:
    """Reports to wait for what is so long."""
    return size // ROUND_BYTES


def length(requests: Callable[[], list[t.Request]]) -> int:
    """Bytes of what would be sent."""
    return sum([len(request.body) for request in requests()])
