"""The reads of clients that are not answered: who wants to know what, and what each connection is to be told."""

from tara.host import client_wire
from tara.host.fair_table import FairTable
from tara.protocol import tuples as t

#: The number that a client gave its read, how it went, and the result.
ReadOutcome = tuple[int, int, bytes]


class OpenReads:
    """Each read goes through the graph under a ticket. Beyond `capacity` the oldest one of the connection that has the
    most is forgotten; its client has it ordered.

    Tickets count from 1 in every life of the container, and an executor in another container outlives it: so a result
    counts only if it is of a read of this life. Otherwise one client would get the result of another's read."""

    def __init__(self, capacity: int) -> None:
        #: The container's; set before the first read.
        self.life = 0
        self._connections: FairTable[int, bytes] = FairTable(capacity, capacity)
        #: What the clients call the reads, by ticket.
        self._ids: dict[int, int] = {}
        self._ticket = 0
        self._new: list[t.ReadRequest] = []
        #: For which any state will do.
        self._new_stale: list[t.ReadRequest] = []
        self._outcomes: dict[bytes, list[ReadOutcome]] = {}

    def open(self, connection: bytes, principal: bytes, read: client_wire.ReadMessage) -> None:
        self._ticket += 1
        self._ids[self._ticket] = read.id
        stale = read.stale and read.subject == t.APPLICATION
        new = self._new_stale if stale else self._new
        new.append(t.ReadRequest(self._ticket, read.payload, self.life, principal, read.subject))
        forgotten = self._connections.put(self._ticket, connection)
        if forgotten is not None:
            del self._ids[forgotten]

    def take_new(self) -> list[t.ReadRequest]:
        new, self._new = self._new, []
        return new

    def take_new_stale(self) -> list[t.ReadRequest]:
        new, self._new_stale = self._new_stale, []
        return new

    def answer(self, connection: bytes, outcome: ReadOutcome) -> None:
        self._outcomes.setdefault(connection, []).append(outcome)

    def route(self, results: t.ReadResults) -> None:
        for result in results.results:
            connection = self._connections.pop(result.ticket) if result.life == self.life else None
            if connection is not None:
                self.answer(connection, (self._ids.pop(result.ticket), result.status, result.payload))

    def refuse(self, reads: list[t.ReadRequest]) -> None:
        """Nobody here can answer them now."""
        for read in reads:
            connection = self._connections.pop(read.ticket)
            if connection is not None:
                self.answer(connection, (self._ids.pop(read.ticket), t.OVERLOADED, b""))

    def forget(self, connection: bytes) -> None:
        """It is closed."""
        for ticket in self._connections.forget(connection):
            del self._ids[ticket]
        self._outcomes.pop(connection, None)

    def take_outcomes(self) -> dict[bytes, list[ReadOutcome]]:
        outcomes, self._outcomes = self._outcomes, {}
        return outcomes
