"""Back-off: what changed nothing is tried again less and less often.

Counted in reports. Nodes send things again because something was lost; if it was not, but the receiver is slow or gone,
repetitions would fill the links.
"""

#: The pause between two attempts grows up to this many times the first pause.
BACKOFF_MAX = 16


class Backoff:
    __slots__ = ("_first", "pause")

    def __init__(self, first: int) -> None:
        self._first = first
        #: Reports to wait before the next attempt.
        self.pause = first

    def attempted(self) -> None:
        self.pause = min(2 * self.pause, BACKOFF_MAX * self._first)

    def reset(self) -> None:
        """Something has changed."""
        self.pause = self._first
