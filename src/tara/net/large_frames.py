"""Large frames while they arrive at a port: which of them may be read on, and who is too slow. No I/O, and no clock.

A large frame gets room for its whole length before it is read on, so that what has begun can end. Those for whom there
is no room wait, and are not read meanwhile. The client whose last turn is the longest ago is the next one: however many
frames a client has begun, another one waits for about one of them, also if it has to connect again meanwhile.

While somebody waits, each frame that has room has to come at a certain pace, and whoever lags too far behind has to go.
Nobody gets ahead of the pace: what was sent in a hurry is no excuse for silence afterwards. Time in which nobody waits
does not count, and neither does more than `STEP_S_MAX` between two looks: a loop that stood still has not read anything
either.
"""

from collections.abc import Callable

from tara.net import bounds

#: How often it is looked who is too slow, and how much time counts at most between two looks.
LOOK_S = 0.1
STEP_S_MAX = 0.5
#: Clients whose last turn is remembered.
CLIENTS_REMEMBERED_MAX = 1024


class _Arriving:
    """A frame that has room."""

    __slots__ = ("lag_s", "length", "seen_bytes")

    def __init__(self, length: int) -> None:
        self.length = length
        #: What was there of it at the last look, and how far behind the pace it was then.
        self.seen_bytes = 0
        self.lag_s = 0.0


class LargeFrames:
    """Connections are known by their names."""

    def __init__(self) -> None:
        #: Of all frames that have room. At most `ARRIVING_BYTES_MAX`, unless there is only one.
        self.reserved_bytes = 0
        self._arriving: dict[bytes, _Arriving] = {}
        #: Those that wait, by client, in the order in which they came: their lengths.
        self._waiting: dict[bytes, dict[bytes, int]] = {}
        self._client_of: dict[bytes, bytes] = {}
        #: Clients that had a turn, the last one last, with its number.
        self._turns: dict[bytes, int] = {}
        self._turn = 0
        self._looked_s: float | None = None

    @property
    def waiting(self) -> int:
        """How many frames wait."""
        return len(self._client_of)

    def begin(self, name: bytes, client: bytes, length: int) -> bool:
        """A client has begun a large frame on this connection: whether it may be read on now. If not, `end` says
        when."""
        assert name not in self._arriving and name not in self._client_of, name
        if not self._waiting and self._has_room(length):
            self._admit(name, client, length)
            return True
        self._waiting.setdefault(client, {})[name] = length
        self._client_of[name] = client
        return False

    def end(self, name: bytes) -> list[bytes]:
        """The frame is there, or nobody waits for it any more: who may be read on now."""
        arriving = self._arriving.pop(name, None)
        if arriving is not None:
            self.reserved_bytes -= arriving.length
        elif name in self._client_of:
            self._stop_waiting(name)
        return self._admit_next()

    def _has_room(self, length: int) -> bool:
        return not self._arriving or self.reserved_bytes + length <= bounds.ARRIVING_BYTES_MAX

    def _stop_waiting(self, name: bytes) -> None:
        client = self._client_of.pop(name)
        del self._waiting[client][name]
        if not self._waiting[client]:
            del self._waiting[client]

    def _admit(self, name: bytes, client: bytes, length: int) -> None:
        self.reserved_bytes += length
        self._arriving[name] = _Arriving(length)
        self._turn += 1
        self._turns.pop(client, None)
        self._turns[client] = self._turn
        if len(self._turns) > CLIENTS_REMEMBERED_MAX:
            del self._turns[next(iter(self._turns))]

    def _admit_next(self) -> list[bytes]:
        """Nobody overtakes the one whose turn it is, or the longest frames would wait for ever."""
        admitted: list[bytes] = []
        while self._waiting:
            client = min(self._waiting, key=lambda client: self._turns.get(client, 0))
            name, length = next(iter(self._waiting[client].items()))
            if not self._has_room(length):
                break
            self._stop_waiting(name)
            self._admit(name, client, length)
            admitted.append(name)
        return admitted

    def too_slow(self, now_s: float, arrived_bytes: Callable[[bytes], int]) -> list[bytes]:
        """Who has to go; `arrived_bytes` says how much of a connection's frame is there. To be asked often."""
        if not self._waiting:
            self._looked_s = None
            return []
        if self._looked_s is None:
            self._looked_s = now_s
        step_s = now_s - self._looked_s
        if step_s < LOOK_S:
            return []
        self._looked_s = now_s
        slow: list[bytes] = []
        for name, arriving in self._arriving.items():
            arrived = arrived_bytes(name)
            came_s = (arrived - arriving.seen_bytes) / bounds.ARRIVING_BYTES_PER_S
            arriving.seen_bytes = arrived
            arriving.lag_s = max(arriving.lag_s + min(step_s, STEP_S_MAX) - came_s, 0.0)
            if arriving.lag_s > bounds.ARRIVING_LAG_S_MAX:
                slow.append(name)
        return slow
