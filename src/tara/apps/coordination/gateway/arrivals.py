"""Connections that have not asked for a session yet: bounded, and the address that has the most of them pays."""

from tara.apps.coordination import limits
from tara.apps.coordination.gateway.connection import Connection


class Arrivals:
    def __init__(self) -> None:
        #: By address, oldest first; no entry is empty.
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def crowded(self, address: str) -> Connection | None:
        """Which one has to go if one more from this address is to come."""
        if len(self._by_address.get(address, ())) >= limits.ARRIVALS_PER_ADDRESS_MAX:
            return next(iter(self._by_address[address]))
        if self._count >= limits.ARRIVALS_MAX:
            greediest = max(self._by_address, key=lambda address: len(self._by_address[address]))
            return next(iter(self._by_address[greediest]))
        return None

    def add(self, connection: Connection) -> None:
        self._by_address.setdefault(connection.address, {})[connection] = None
        self._count += 1

    def discard(self, connection: Connection) -> None:
        """It has asked, or is gone."""
        own = self._by_address.get(connection.address, {})
        if connection not in own:
            return
        del own[connection]
        self._count -= 1
        if not own:
            del self._by_address[connection.address]
