"""Who lags behind, and from where to send again: state, not acknowledgements.

Receivers report positions; a sender compares them with what it had sent some rounds ago. A receiver that lacks
something so old and does not move gets a burst from its position on, and the next burst as soon as it has taken
the first. Nothing is kept per tuple.
"""

from collections import deque


class Laggards:
    __slots__ = ("_positions", "_rounds", "_sent", "_stuck", "_until")

    def __init__(self, receivers: int, rounds: int) -> None:
        self._rounds = rounds
        #: What had been sent, one entry per round, oldest first.
        self._sent: deque[int] = deque(maxlen=rounds + 1)
        self._positions = [-1] * receivers
        self._stuck = [0] * receivers
        #: The end of the last burst to each receiver.
        self._until = [-1] * receivers

    def next_round(self, sent: int) -> None:
        """A round begins; everything below `sent` has been sent."""
        self._sent.append(sent)

    def lags(self, receiver: int, position: int) -> bool:
        """Whether this receiver is to be sent everything from `position` on again. Called once per round."""
        self._stuck[receiver] = self._stuck[receiver] + 1 if position == self._positions[receiver] else 0
        self._positions[receiver] = position
        if len(self._sent) <= self._rounds or position >= self._sent[0]:
            return False
        took_last_burst = 0 <= self._until[receiver] <= position
        if self._stuck[receiver] < self._rounds and not took_last_burst:
            return False
        self._stuck[receiver] = 0
        return True

    def resent(self, receiver: int, until: int) -> None:
        self._until[receiver] = until

    def reset(self) -> None:
        """Start again, as in a new view."""
        self._sent.clear()
        self._stuck = [0] * len(self._stuck)
        self._until = [-1] * len(self._until)
