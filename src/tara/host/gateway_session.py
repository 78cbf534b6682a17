"""The session in the replicated log through which a gateway orders commands."""

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from tara.protocol import tuples as t
from tara.protocol.limits import Limits

Token = TypeVar("Token")

#: Commands of one session in flight; well below the replicas' usual limits for results that are not acknowledged, and
#: for commands that wait for their turn.
IN_FLIGHT_MAX = 512
IN_FLIGHT_BYTES_MAX = 8 << 20
SESSION_TIMEOUT_MS = 30_000
OPEN_PATIENCE_S = 5.0
#: What the replicas had no room for is sent again after this.
AGAIN_S = 0.2


class Orders(Protocol):
    """What a gateway's site offers."""

    @property
    def limits(self) -> Limits: ...

    def submit(self, commands: list[t.Command]) -> None:
        """Order commands, stamped as the gateway's."""


class GatewaySession(Generic[Token]):
    """A session of the replicated log whose commands come from inside the container, so that none is lost on the way.

    Results come in the order of the commands, each with the token that was given with it. If the session expires, or
    the replica jumps over commands (it restored a base), what was in flight has an unknown outcome: the owner is
    told once, by `on_lost`, and a new session is opened.
    """

    def __init__(self, site: Orders, on_lost: Callable[[list[Token]], None], random: Callable[[int], bytes]) -> None:
        self._site = site
        self._random = random
        self._on_lost = on_lost
        #: The session; 0 while it is being opened.
        self.id = 0
        self._nonce = 0
        self._nonce_s = 0.0
        self._next = 0
        self._waiting: deque[tuple[bytes, Token]] = deque()
        #: Number, payload and token of each.
        self._in_flight: deque[tuple[int, bytes, Token]] = deque()
        self._in_flight_bytes = 0
        #: When it is sent again, because there was no room for it, or for what came of it; 0: there was.
        self._again_s = 0.0
        self._now_s = 0.0
        #: Bytes of commands that wait.
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def order(self, payload: bytes, token: Token, first: bool = False) -> None:
        """Send a command once there is room. With `first`, it goes before the others that wait."""
        if first:
            self._waiting.appendleft((payload, token))
        else:
            self._waiting.append((payload, token))
        self.waiting_bytes += len(payload)

    def pump(self, now_s: float) -> None:
        """Submit what may be submitted."""
        self._now_s = now_s
        if self._again_s and now_s >= self._again_s:
            self._again_s = 0.0
            self._submit_again()
        if self.id == 0:
            self._open(now_s)
            return
        waiting, in_flight = self._waiting, self._in_flight
        if not waiting:
            return
        room = min(len(waiting), min(IN_FLIGHT_MAX, self._site.limits.session_pipeline_max) - len(in_flight))
        commands = []
        for _ in range(room):
            if self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
                break
            payload, token = waiting.popleft()
            self.waiting_bytes -= len(payload)
            self._in_flight_bytes += len(payload)
            in_flight.append((self._next, payload, token))
            commands.append(t.Command(self.id, self._next, in_flight[0][0], payload))
            self._next += 1
        if commands:
            self._site.submit(commands)

    def _submit_again(self) -> None:
        """With the same numbers: each executes once, however often it comes."""
        if self._in_flight:
            first = self._in_flight[0][0]
            self._site.submit([t.Command(self.id, number, first, payload) for number, payload, _ in self._in_flight])

    def _open(self, now_s: float) -> None:
        if self._nonce and now_s - self._nonce_s < OPEN_PATIENCE_S:
            return
        self._nonce, self._nonce_s = int.from_bytes(self._random(7), "big") + 1, now_s
        payload = msgspec.msgpack.encode(SESSION_TIMEOUT_MS)
        self._site.submit([t.Command(0, self._nonce, 0, payload, t.OPEN)])

    def hear(self, result: t.Result) -> Token | None:
        """The token of the command that this is the result of; None if it is not of a command in flight."""
        if result.session == 0:
            if result.number == self._nonce and self.id == 0 and result.status == t.OK:
                self.id = msgspec.msgpack.decode(result.payload, type=tuple[int, int])[0]
            return None
        if result.session != self.id:
            return None
        if result.status == t.EXPIRED:
            self.reset()
            return None
        if result.status in (t.UNACKNOWLEDGED, t.OVERLOADED):
            self._again_s = self._again_s or self._now_s + AGAIN_S
            return None
        if result.status not in (t.OK, t.FAILED, t.SKIPPED):
            # It was refused, and never had its turn: what follows would wait for it.
            self.reset()
            return None
        if not self._in_flight or self._in_flight[0][0] != result.number:
            return None
        _, payload, token = self._in_flight.popleft()
        self._in_flight_bytes -= len(payload)
        return token

    def reset(self) -> None:
        """Forget everything and open a new session."""
        lost = [token for *_, token in self._in_flight] + [token for _, token in self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        self.waiting_bytes = self._in_flight_bytes = 0
        self._again_s = 0.0
        self.id = self._nonce = self._next = 0
        self._on_lost(lost)
