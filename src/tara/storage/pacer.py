"""How fast large files are written beside the journals: in pieces, each synced before the next one, at a bounded rate,
and with rests in between. The journals' records come first: one of them waits for one piece at most.

What writes at the same time, on the threads of a store and of its log, shares one pacer.
"""

import time
from collections.abc import Callable

from tara.storage.disk import File

#: What may wait for the disk at once while a file is written: the journal's next record has to wait behind it, at
#: 20 MB/s for 26 ms.
UNSYNCED_BYTES_MAX = 512 << 10
RATE_BYTES_PER_S = 64 << 20
#: The disk is left to others for so many times as long as a piece has taken.
LEAVE_TIMES = 2
#: Whoever waits looks around after this long, however slow the disk is.
WAIT_S_MAX = 1.0


class Pacer:
    def __init__(self, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep) -> None:
        """`clock` tells seconds; only their differences matter."""
        self.clock = clock
        self._wait = wait
        self._rest_until_s = 0.0

    def note(self, size: int, took_s: float) -> None:
        """So many bytes have just been written, or read. Two threads may be here at once: then one rest is forgotten,
        which nobody notices."""
        rest_s = max(LEAVE_TIMES * took_s, size / RATE_BYTES_PER_S)
        self._rest_until_s = max(self._rest_until_s, self.clock()) + rest_s

    @property
    def left_s(self) -> float:
        """How long the disk is left to others yet."""
        return max(self._rest_until_s - self.clock(), 0.0)

    def rest(self) -> None:
        """For those who have nothing else to do meanwhile."""
        left_s = self.left_s
        if left_s > 0.0:
            self._wait(min(left_s, WAIT_S_MAX))


class PacedFile:
    """A file that is written in pieces. Without a pacer, there are no rests between them."""

    def __init__(self, file: File, pacer: Pacer | None = None) -> None:
        self._file = file
        self._pacer = pacer or Pacer(wait=lambda seconds: None)
        #: What was written since the last sync, and the time that this has taken.
        self._unsynced = 0
        self._took_s = 0.0

    def append(self, data: bytes) -> None:
        taken = 0
        while taken < len(data):
            piece = data[taken : taken + UNSYNCED_BYTES_MAX - self._unsynced]
            began_s = self._pacer.clock()
            self._file.append(piece)
            self._took_s += self._pacer.clock() - began_s
            taken += len(piece)
            self._unsynced += len(piece)
            if self._unsynced >= UNSYNCED_BYTES_MAX:
                self.sync()

    def write(self, offset: int, data: bytes) -> None:
        """A few bytes."""
        self._file.write(offset, data)
        self._unsynced += len(data)

    def sync(self) -> None:
        self._pacer.rest()
        began_s = self._pacer.clock()
        self._file.sync()
        self._pacer.note(self._unsynced, self._took_s + self._pacer.clock() - began_s)
        self._unsynced, self._took_s = 0, 0.0

    def close(self) -> None:
        self._file.close()
