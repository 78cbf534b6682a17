"""Closed-loop load on a running key-value cluster: each session sends its next command when the last is answered.

Many sessions share a connection, over the same wire layer that the clients use. A command that is not answered in time
is sent again through another front end, with the same number and, as clients do it, with growing patience. At the end
everything is answered, so that what was lost or executed twice can be counted.
"""

import os
import select
import time
from collections.abc import Callable
from random import Random

import msgspec
from msgspec import Struct

from tara.application import Get, Put
from tara.client.connection import parse_endpoints
from tara.client.session import PATIENCE_S, PATIENCE_S_MAX
from tara.host import client_wire
from tara.net.channel import Channel, Channels
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.protocol.principals import SECRET_BYTES_MIN
from tara.simulator.checks.linearizability import Operation

SESSION_TIMEOUT_MS = 60_000
#: An opening that is not answered for so long is asked for again.
OPEN_PATIENCE_S = 5.0


#: What a session sends: a command, or a read that is not ordered.
Message = t.Command | client_wire.ReadMessage


class LoadError(TaraError):
    """The cluster did not serve the load."""


class LoadReport(Struct, kw_only=True):
    clients: int
    seconds: float
    throughput_per_s: float
    latency_ms_p50: float
    latency_ms_p99: float
    latency_ms_p999: float
    #: The longest time in which no client got an answer.
    gap_ms_max: float
    #: Commands that were sent again.
    resent: int
    #: Answers that were errors.
    errors: int
    #: Commands that were never answered.
    lost: int
    #: Everything that was answered, warm-up and end included; and those of them that had a place in the order.
    answered: int
    ordered: int
    #: Sessions that were opened: one per client, and those whose opening was asked for once more than it was needed.
    sessions: int
    #: Commands of the client that got the fewest answers in the measured time, and of the one that got the most.
    client_least: int
    client_most: int


class _Session:
    """Waits for the result of `command`, or for the result of `read`, or for nothing."""

    __slots__ = (
        "answered",
        "call",
        "command",
        "connection",
        "first_sent_s",
        "get",
        "id",
        "key",
        "next",
        "patience_s",
        "put",
        "read",
        "sent_s",
    )

    def __init__(self, key: str, connection: int) -> None:
        self.id = 0
        #: The number of its next command.
        self.next = 0
        self.key = key
        self.connection = connection
        self.command: t.Command | None = None
        #: The id of its read that is not ordered; 0: none.
        self.read = 0
        self.get = t.encode(Get(key))
        self.put = b""
        self.call: tuple[object, ...] = ()
        self.first_sent_s = 0.0
        self.sent_s = 0.0
        self.patience_s = PATIENCE_S
        #: In the measured time.
        self.answered = 0

    @property
    def waits(self) -> bool:
        return self.command is not None or self.read != 0


class Load:
    def __init__(
        self,
        endpoints: str,
        clients: int,
        payload_bytes: int = 64,
        reads: float = 0.0,
        recorded_keys: int = 0,
        target: int | None = None,
        key_directory: str | None = None,
        values: int = 0,
    ) -> None:
        """Each client writes a key of its own; or all of them so many values, in turn."""
        self._channels = Channels(key_directory)
        #: All sessions belong to this process.
        self._secret = os.urandom(SECRET_BYTES_MIN)
        addresses = parse_endpoints(endpoints)
        self._addresses = addresses if target is None else [addresses[target]]
        self._open_channels = [self._channels.open(address) for address in self._addresses]
        self._random = Random(clients)
        self._payload = value_of(payload_bytes)
        self._values = values
        self._reads = reads
        keys = max(clients // 2, 1)
        self._recorded = {f"key-{index}" for index in range(min(recorded_keys, keys))}
        self.history: list[Operation] = []
        self._sessions = [_Session(f"key-{index % keys}", index % len(self._open_channels)) for index in range(clients)]
        for session in self._sessions:
            session.put = t.encode(Put(session.key, self._payload))
        self._by_id: dict[int, _Session] = {}
        #: Sessions that nobody needs: an opening that came late had been asked for again.
        self._spare: dict[int, _Session] = {}
        self._by_read: dict[int, _Session] = {}
        self._read = 0
        self._writes = 0
        self._latencies_s: list[float] = []
        self._last_answer_s = 0.0
        self._gap_s = 0.0
        self._measuring = False
        self._stopping = False
        self.answered = 0
        self.ordered = 0
        self.resent = 0
        self.errors = 0

    def open(self, deadline_s: float = 120.0) -> None:
        nonces = {self._random.getrandbits(60) + 1: session for session in self._sessions}
        timeout = msgspec.msgpack.encode(SESSION_TIMEOUT_MS)
        end_s, again_s = time.monotonic() + deadline_s, 0.0
        while nonces:
            if time.monotonic() > end_s:
                raise LoadError(f"{len(nonces)} of {len(self._sessions)} sessions were not opened in {deadline_s} s")
            if time.monotonic() > again_s:
                again_s = time.monotonic() + OPEN_PATIENCE_S
                for nonce, session in nonces.items():
                    session.connection = (session.connection + 1) % len(self._open_channels)
                    self._send(session.connection, [t.Command(0, nonce, 0, timeout, t.OPEN)])
            self._reconnect()
            for channel in self._wait(0.1):
                for result in [
                    result for data in channel.receive() for result in client_wire.decode_reply(data).results
                ]:
                    opened = nonces.pop(result.number, None) if result.session == 0 and result.status == t.OK else None
                    if opened is not None:
                        opened.id = msgspec.msgpack.decode(result.payload)[0]
                        self._by_id[opened.id] = opened
                    else:
                        self._hear_spare(result)

    def _hear_spare(self, result: t.Result) -> None:
        """The answer to an opening whose client has a session already. Like a command, each is executed once, but the
        two openings are two commands."""
        if result.session or result.status != t.OK:
            return
        id_ = msgspec.msgpack.decode(result.payload)[0]
        if id_ not in self._by_id and id_ not in self._spare:
            spare = self._spare[id_] = _Session("", 0)
            spare.id = id_

    def _wait(self, wait_s: float) -> list[Channel]:
        """The channels that have news by then."""
        poller = select.poll()
        channels = {channel.fileno(): channel for channel in self._open_channels if not channel.broken}
        for descriptor, channel in channels.items():
            poller.register(descriptor, channel.events)
        return [channels[descriptor] for descriptor, _ in poller.poll(int(wait_s * 1000) + 1)]

    def _reconnect(self) -> None:
        """Called some times in a second."""
        for index, channel in enumerate(self._open_channels):
            if channel.broken:
                channel.close()
                self._open_channels[index] = self._channels.open(self._addresses[index])

    def run(
        self,
        seconds: float,
        warm_up_s: float = 2.0,
        on_second: Callable[[float, int], None] = lambda at, n: None,
        stop: Callable[[], bool] = lambda: False,
        interval_s: float = 1.0,
        on_measuring: Callable[[bool], None] = lambda begins: None,
    ) -> LoadReport:
        """Warm up, and measure for so many seconds, or until `stop` says so. `on_second` is told the time, and how many
        were answered since it was last told; by default, every second. `on_measuring` is told when the measured time
        begins, and when it ends."""
        now_s = time.monotonic()
        for session in self._sessions:
            self._send(session.connection, [self._next(session, now_s)])
        begin_s = now_s + warm_up_s
        end_s, next_s, before = begin_s + seconds, now_s + interval_s, 0
        self._last_answer_s = now_s
        late_check_s = now_s
        while now_s < end_s:
            self._turn(min(end_s - now_s, 0.05))
            now_s = time.monotonic()
            if not self._measuring and now_s >= begin_s:
                self._measuring, self._gap_s, self._latencies_s = True, 0.0, []
                on_measuring(True)
            if now_s >= next_s:
                on_second(now_s, self.answered - before)
                next_s, before = next_s + interval_s, self.answered
            if now_s >= late_check_s:
                late_check_s = now_s + 0.1
                self._resend_late(now_s)
                if stop():
                    break
        on_measuring(False)
        measured, self._measuring = len(self._latencies_s), False
        seconds = max(now_s - begin_s, 0.001)
        self._gap_s = max(self._gap_s, now_s - self._last_answer_s)
        lost = self._drain()
        answered = self.answered
        for session in self._sessions:
            if session.waits and session.key in self._recorded:
                self._record(session, None, None)
        latencies = sorted(self._latencies_s)
        return LoadReport(
            clients=len(self._sessions),
            seconds=round(seconds, 3),
            throughput_per_s=round(measured / seconds, 1),
            latency_ms_p50=quantile(latencies, 0.5),
            latency_ms_p99=quantile(latencies, 0.99),
            latency_ms_p999=quantile(latencies, 0.999),
            gap_ms_max=round(self._gap_s * 1e3, 1),
            resent=self.resent,
            errors=self.errors,
            lost=lost,
            answered=answered,
            ordered=self.ordered,
            sessions=len(self._sessions) + len(self._spare),
            client_least=min(session.answered for session in self._sessions),
            client_most=max(session.answered for session in self._sessions),
        )

    def _drain(self, deadline_s: float = 60.0) -> int:
        """Wait until everything is answered; what is not is lost."""
        self._stopping = True
        end_s = time.monotonic() + deadline_s
        while any(session.waits for session in self._sessions) and time.monotonic() < end_s:
            self._turn(0.05)
            self._resend_late(time.monotonic())
        return sum(session.waits for session in self._sessions)

    def _turn(self, wait_s: float) -> None:
        for channel in self._wait(wait_s):
            following: list[Message] = []
            now_s = time.monotonic()
            for data in channel.receive():
                reply = client_wire.decode_reply(data)
                for result in reply.results:
                    self._hear(result, now_s, following)
                for answer in reply.answers:
                    self._hear_answer(answer, now_s, following)
            if following:
                _send(channel, following, self._secret)

    def _hear(self, result: t.Result, now_s: float, following: list[Message]) -> None:
        session = self._by_id.get(result.session)
        if session is None:
            self._hear_spare(result)
            return
        if session.command is None or result.number != session.command.number:
            return
        if result.status == t.WAITING:
            # It is not late: there is much before it.
            session.sent_s = now_s
            return
        if result.status in (t.OVERLOADED, t.UNACKNOWLEDGED):
            return
        self.ordered += 1
        session.command = None
        session.next = result.number + 1
        self._finish(session, result.status, result.payload, now_s, following)

    def _hear_answer(self, answer: tuple[int, int, bytes], now_s: float, following: list[Message]) -> None:
        id_, status, payload = answer
        session = self._by_read.pop(id_, None)
        if session is None or session.read != id_:
            return
        session.read = 0
        if status == t.OVERLOADED:
            following.append(self._order(session, now_s))
        else:
            self._finish(session, status, payload, now_s, following)

    def _finish(self, session: _Session, status: int, payload: bytes, now_s: float, following: list[Message]) -> None:
        self.answered += 1
        self._gap_s = max(self._gap_s, now_s - self._last_answer_s)
        self._last_answer_s = now_s
        if status != t.OK:
            self.errors += 1
        if self._measuring:
            self._latencies_s.append(now_s - session.first_sent_s)
            session.answered += 1
        if session.key in self._recorded:
            self._record(session, now_s, msgspec.msgpack.decode(payload))
        if not self._stopping:
            following.append(self._next(session, now_s))

    def _next(self, session: _Session, now_s: float) -> Message:
        session.first_sent_s = session.sent_s = now_s
        session.patience_s = PATIENCE_S
        if self._reads and self._random.random() < self._reads:
            session.call = ("get",)
            self._read += 1
            session.read = self._read
            self._by_read[self._read] = session
            return client_wire.ReadMessage(self._read, session.get)
        payload = session.put
        if self._values:
            payload = t.encode(Put(key_of(self._writes % self._values), self._payload))
            self._writes += 1
        elif session.key in self._recorded:
            # Values must differ for the check; the others may as well be equal.
            self._writes += 1
            value = self._writes.to_bytes(8, "big") + self._payload[8:]
            session.call = ("put", value)
            payload = t.encode(Put(session.key, value))
        session.command = t.Command(session.id, session.next, session.next, payload)
        return session.command

    def _order(self, session: _Session, now_s: float) -> t.Command:
        """A read that was not answered in time takes its place in the order."""
        self._by_read.pop(session.read, None)
        session.read, session.sent_s = 0, now_s
        session.command = t.Command(session.id, session.next, session.next, session.get, t.QUERY)
        return session.command

    def _resend_late(self, now_s: float) -> None:
        self._reconnect()
        for session in self._sessions:
            if session.waits and now_s - session.sent_s > session.patience_s:
                session.sent_s = now_s
                session.patience_s = min(2 * session.patience_s, PATIENCE_S_MAX)
                session.connection = (session.connection + 1) % len(self._open_channels)
                self.resent += 1
                self._send(session.connection, [session.command or self._order(session, now_s)])

    def _send(self, connection: int, messages: list[Message]) -> None:
        _send(self._open_channels[connection], messages, self._secret)

    def _record(self, session: _Session, returned_s: float | None, result: object) -> None:
        invoked = int(session.first_sent_s * 1e6)
        returned = None if returned_s is None else int(returned_s * 1e6)
        self.history.append(Operation(session.id, invoked, returned, session.key, session.call, result))

    def close(self) -> None:
        """End the sessions that have nothing in flight."""
        self._recorded = set()
        now_s = time.monotonic()
        self._sessions += self._spare.values()
        self._by_id |= self._spare
        for session in self._sessions:
            if not session.waits and session.id:
                session.command = t.Command(session.id, session.next, session.next, b"", t.CLOSE)
                session.first_sent_s = session.sent_s = now_s
                self._send(session.connection, [session.command])
        self._drain()
        for channel in self._open_channels:
            channel.close()


def _send(channel: Channel, messages: list[Message], secret: bytes) -> None:
    commands = [message for message in messages if type(message) is t.Command]
    reads = [message for message in messages if type(message) is client_wire.ReadMessage]
    for piece in client_wire.encode_request(commands, reads, secret):
        channel.send(piece)


def key_of(index: int) -> str:
    """Of the values that are written in turn."""
    return f"value-{index}"


def value_of(payload_bytes: int) -> bytes:
    """What is written, whoever writes it."""
    return Random(payload_bytes).randbytes(payload_bytes)


def quantile(ordered_s: list[float], share: float) -> float:
    """In milliseconds."""
    if not ordered_s:
        return 0.0
    return round(ordered_s[min(int(len(ordered_s) * share), len(ordered_s) - 1)] * 1e3, 3)
