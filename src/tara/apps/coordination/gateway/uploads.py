"""Long requests while they arrive: each reserves its length before it is read on, so that what has begun can end.

Short ones need no reservation. Who waits for room is not read meanwhile; who has room and is slow while others wait has
to go.
"""

from tara.apps.coordination import limits
from tara.apps.coordination.gateway.connection import Closed, Connection


class Uploads:
    def __init__(self) -> None:
        self.reserved = 0
        #: Length, and by when it has to be here if somebody waits.
        self._granted: dict[Connection, tuple[int, float]] = {}
        self._waiting: dict[Connection, int] = {}

    def expect(self, connection: Connection, length: int, now_s: float) -> None:
        """A client has begun a request of this length; from now on, `Connection.waits_for_room` says whether it may go
        on. Raises `Closed` if too many wait already."""
        if length <= limits.UPLOAD_BYTES_FREE or connection in self._granted or connection in self._waiting:
            return
        if len(self._waiting) >= limits.UPLOADS_WAITING_MAX:
            raise Closed("too many long requests at once")
        self._waiting[connection] = length
        connection.uploads = connection.waits_for_room = True
        self._grant(now_s)

    def done(self, connection: Connection, now_s: float) -> list[Connection]:
        """The request is there, or its client gone: who may go on now."""
        self._waiting.pop(connection, None)
        connection.uploads = connection.waits_for_room = False
        length, _ = self._granted.pop(connection, (0, 0.0))
        self.reserved -= length
        return self._grant(now_s) if length else []

    def _grant(self, now_s: float) -> list[Connection]:
        granted = []
        for connection, length in list(self._waiting.items()):
            if self._granted and self.reserved + length > limits.UPLOAD_BYTES_MAX:
                break
            del self._waiting[connection]
            connection.waits_for_room = False
            self.reserved += length
            self._granted[connection] = (length, now_s + 1.0 + length / limits.UPLOAD_BYTES_PER_S)
            granted.append(connection)
        return granted

    def late(self, now_s: float) -> list[Connection]:
        """Those that are too slow, if somebody waits."""
        if not self._waiting:
            return []
        return [connection for connection, (_, deadline_s) in self._granted.items() if now_s > deadline_s]
