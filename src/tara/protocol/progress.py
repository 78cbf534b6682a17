"""Which requests of a source are decided: all numbers below `low`, and some early ones.

A view change may decide a source's request before an older one of that source, so a maximum would not do: the
older request would pass for decided, and nobody would propose it again.

Invariant: low is not in early; numbers in early are above low; (epoch, low) never falls.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.opinions import Reach


class SourceProgress(Struct, array_like=True):
    epoch: int = 0
    low: int = 0
    early: set[int] = set()

    def note(self, epoch: int, number: int) -> None:
        """This request is decided. Older epochs are history; a newer one starts at 0."""
        if epoch != self.epoch:
            if epoch < self.epoch:
                return
            self.epoch, self.low = epoch, 0
            self.early.clear()
        if number == self.low:
            self.low = number + 1
            while self.early and self.low in self.early:
                self.early.remove(self.low)
                self.low += 1
        elif number > self.low:
            self.early.add(number)

    @property
    def reach(self) -> Reach:
        return (self.epoch, self.low)


def note_all(sources: Sequence[SourceProgress], requests: Iterable[t.Request]) -> None:
    """These requests are decided, in this order."""
    for request in requests:
        if request.source >= 0:
            source = sources[request.source]
            if request.number == source.low and request.epoch == source.epoch and not source.early:
                # Nearly always.
                source.low += 1
            else:
                source.note(request.epoch, request.number)
