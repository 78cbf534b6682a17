"""Where answers go: which connection of a front end a session was last heard on.

A route belongs to a principal and a session: whoever names a session that is not his gets the refusals of his own
commands, and changes nothing for the session's owner. The tables are bounded, per connection and over all of them. A
client whose route is forgotten gets no answer, and sends its command again.
"""

from tara.host.fair_table import FairTable
from tara.protocol import tuples as t

#: Sessions, and sessions that are being opened, that one connection can be waited for on.
ROUTES_PER_CONNECTION_MAX = 16_384
#: Over all connections.
ROUTES_MAX = 131_072


class Routes:
    def __init__(self, capacity: int = ROUTES_MAX, per_connection_max: int = ROUTES_PER_CONNECTION_MAX) -> None:
        #: By principal and session; and, while a session is being opened, by principal and nonce.
        self._sessions: FairTable[tuple[bytes, int], bytes] = FairTable(capacity, per_connection_max)
        self._openings: FairTable[tuple[bytes, int], bytes] = FairTable(capacity, per_connection_max)

    def learn(self, connection: bytes, command: t.Command) -> None:
        """A command came, on this connection."""
        if command.session:
            self._sessions.put((command.principal, command.session), connection)
        else:
            self._openings.put((command.principal, command.number), connection)

    def forget(self, connection: bytes) -> None:
        """It is closed. (Otherwise what is published for everybody would be encoded for all who ever were here.)"""
        self._sessions.forget(connection)
        self._openings.forget(connection)

    def of_command(self, command: t.Command) -> bytes | None:
        if command.session:
            return self._sessions.get((command.principal, command.session))
        return self._openings.get((command.principal, command.number))

    def of_result(self, result: t.Result) -> bytes | None:
        """Where to; None: nobody here waits for it. An opening is answered once."""
        if result.session:
            return self._sessions.get((result.principal, result.session))
        return self._openings.pop((result.principal, result.number))

    def of_event(self, event: t.Event) -> set[bytes]:
        """Where to: the session's owner, or everybody who has sent a command."""
        if not event.session:
            return self._sessions.owners()
        connection = self._sessions.get((event.principal, event.session))
        return set() if connection is None else {connection}
