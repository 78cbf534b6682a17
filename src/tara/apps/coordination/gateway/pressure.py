"""Bytes that a front end holds for its clients: requests without an answer, and answers that were not fetched.

Each connection has bounds of its own; these are those over all of them. When too much is held, only those that hold
little are read; when too many answers wait, only those are answered for whom nothing waits; beyond a second bound,
nobody is. Meanwhile those that hold the most and do not move are closed. Requests that were read are executed as soon
as their answers have room, whatever else is held: so what is held does not depend on itself to become less.
"""

from collections.abc import Iterable

from tara.apps.coordination import limits
from tara.apps.coordination.gateway.connection import Connection


class Pressure:
    def __init__(self) -> None:
        #: Answers that were not fetched, of all connections.
        self.unsent = 0
        #: These, and requests without an answer.
        self.held = 0
        #: Of each bound, so much is to be used: a front end may have less room.
        self.share = 1.0

    def _of(self, bound: int) -> int:
        return int(bound * self.share)

    def add(self, connection: Connection, count: int) -> None:
        """Requests have come, or are answered."""
        connection.weighed += count
        self.held += count

    def add_unsent(self, connection: Connection, count: int) -> None:
        """There is something more to send."""
        connection.weighed += count
        connection.weighed_out += count
        self.held += count
        self.unsent += count

    def weigh(self, connection: Connection) -> None:
        """Count a connection as it is now."""
        if connection.closed:
            return
        unsent, held = connection.unsent, connection.weight
        self.unsent += unsent - connection.weighed_out
        self.held += held - connection.weighed
        connection.weighed_out, connection.weighed = unsent, held

    def forget(self, connection: Connection) -> None:
        self.unsent -= connection.weighed_out
        self.held -= connection.weighed
        connection.weighed = connection.weighed_out = 0

    @property
    def high(self) -> bool:
        """Whether not everybody is served."""
        return self.unsent > self._of(limits.ALL_UNSENT_BYTES_MAX) or self.held > self._of(limits.ALL_HELD_BYTES_MAX)

    @property
    def extreme(self) -> bool:
        return self.unsent > self._of(limits.ALL_UNSENT_BYTES_EXTREME) or self.held > self._of(
            limits.ALL_HELD_BYTES_EXTREME
        )

    def may_read(self, connection: Connection) -> bool:
        """Whether more may be read from a client."""
        return not self.high or (connection.weighed <= self._of(limits.LIGHT_BYTES) and not self.extreme)

    def may_answer(self, connection: Connection) -> bool:
        """Whether the next request of a client may be executed."""
        if self.unsent <= self._of(limits.ALL_UNSENT_BYTES_MAX):
            return True
        return not connection.unsent and self.unsent <= self._of(limits.ALL_UNSENT_BYTES_EXTREME)

    def greedy(self, connections: Iterable[Connection], now_s: float) -> list[Connection]:
        """Who has to go now, so that a quarter of the room is free again: the heaviest first, of those that do not
        move. Whether they move does not matter any more when there is twice as much as there may be."""
        if not self.high:
            return []
        patience_s = limits.STALLED_EXTREME_S if self.extreme else limits.STALLED_S
        desperate = self.held > 2 * self._of(limits.ALL_HELD_BYTES_MAX)
        found = [connection for connection in connections if desperate or connection.stalls(now_s, patience_s)]
        found.sort(key=lambda connection: connection.weighed, reverse=True)
        chosen: list[Connection] = []
        unsent, held = self.unsent, self.held
        for connection in found:
            if (
                unsent <= self._of(limits.ALL_UNSENT_BYTES_MAX) * 3 // 4
                and held <= self._of(limits.ALL_HELD_BYTES_MAX) * 3 // 4
            ):
                break
            chosen.append(connection)
            unsent -= connection.weighed_out
            held -= connection.weighed
        return chosen
