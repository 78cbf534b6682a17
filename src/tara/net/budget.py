"""What all ports of one process may keep together. They may be served by different threads.

Nobody closes another one's connection: a port asks whether it is the one that has to make room.
"""

import threading

from tara.net import bounds


class Budget:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shares: list[Share] = []

    def share(self) -> "Share":
        """For one more port."""
        with self._lock:
            share = Share(self)
            self._shares.append(share)
            return share

    def release(self, share: "Share") -> None:
        """The port is closed."""
        with self._lock:
            self._shares.remove(share)

    @property
    def kept_bytes(self) -> int:
        with self._lock:
            return sum(share.kept_bytes for share in self._shares)

    def is_over(self, share: "Share") -> bool:
        """Whether the ports keep too much together, and this one most of it."""
        with self._lock:
            kept = [other.kept_bytes for other in self._shares]
        return sum(kept) > bounds.PROCESS_KEPT_BYTES_MAX and share.kept_bytes == max(kept)


class Share:
    """One port's part. Only the port changes it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.kept_bytes = 0

    def is_over(self) -> bool:
        """Whether this port has to make room: for itself, or for the others."""
        return self.kept_bytes > bounds.KEPT_BYTES_MAX or self._budget.is_over(self)

    def close(self) -> None:
        self._budget.release(self)
