"""The observer: a number that f+1 replicas of another stage vouch for (paper, "Observer").

One of any f+1 replicas stays alive, so whatever an observer has seen, the others will learn too.

Invariant: `current` never falls.
"""

from tara.protocol.opinions import highest


class Observer:
    __slots__ = ("_threshold", "_values", "current")

    def __init__(self, replicas: int, threshold: int, current: int = 0) -> None:
        self._values = [0] * replicas
        self._threshold = threshold
        self.current = current

    def update(self, replica: int, value: int) -> bool:
        """Take one replica's value; true when `current` rose."""
        if value <= self._values[replica]:
            return False
        self._values[replica] = value
        return self.raise_to(highest(self._values, self._threshold))

    def raise_to(self, value: int) -> bool:
        """Take a value that is known to be vouched for; true when `current` rose."""
        if value <= self.current:
            return False
        self.current = value
        return True
