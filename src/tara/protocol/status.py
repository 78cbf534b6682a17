"""The newest status report of each replica of a stage. Reports may arrive late, twice and out of order."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from tara.protocol import tuples as t

Status = TypeVar("Status", t.CommitterStatus, t.ExecutorStatus)


class Newest(Generic[Status]):
    __slots__ = ("_statuses",)

    def __init__(self, replicas: int) -> None:
        self._statuses: list[Status | None] = [None] * replicas

    def update(self, replica: int, status: Status) -> bool:
        """Take a report; true when it is newer than the one known."""
        known = self._statuses[replica]
        if known is not None and (status.life, status.round) <= (known.life, known.round):
            return False
        self._statuses[replica] = status
        return True

    def __iter__(self) -> Iterator[tuple[int, Status]]:
        """(replica, its newest report) of those that reported."""
        for replica, status in enumerate(self._statuses):
            if status is not None:
                yield replica, status

    def values(self) -> list[Status]:
        return [status for _, status in self]
