"""What an operator orders and asks: through the front ends, like a client, but as somebody whom the replicas know.

Where there are keys, a key of the cluster makes an operator. Where there are none, the secret in the data directory
does, of which the front ends know the digest.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tara.client.connection import parse_endpoints
from tara.client.secrets import read_secret
from tara.configuration.state import StateFile, operator_secret
from tara.host import client_wire
from tara.net.addresses import expand
from tara.net.channel import Channel, Channels
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple, TaraError

TIMEOUT_S = 15.0
#: How long one front end has for its answer, before the next one is asked the same.
PATIENCE_S = 1.5

Found = TypeVar("Found")


class OperatorError(TaraError):
    """The cluster did not do what the operator asked for."""


class Operator:
    """One operator at the cluster of a data directory. Every order has a number of its own, so that it counts once,
    however often it is sent."""

    def __init__(self, data_dir: Path, keys: str | Path | None = None, timeout_s: float = TIMEOUT_S) -> None:
        state = StateFile(data_dir).read()
        directory = str(keys or state.keys)
        self._endpoints = parse_endpoints(",".join(state.endpoints)) if state.endpoints else []
        if not self._endpoints:
            raise OperatorError(f"the cluster in {data_dir} does not run (start it with `tara up`)")
        self._channels = Channels(expand("keys", directory) if directory else None)
        self._secret = b"" if directory else read_secret(operator_secret(data_dir))
        self._timeout_s = timeout_s

    def order(self, kind: int, session: int = 0, payload: bytes = b"") -> t.Result:
        """Have a command ordered: its result, of whatever status."""
        number = _random_number()
        command = t.Command(session, number, 0, payload, kind)

        def find(reply: client_wire.ClientReply) -> t.Result | None:
            for result in reply.results:
                if (result.session, result.number) == (session, number) and result.status not in _ELSEWHERE:
                    return result
            return None

        result = self._ask([command], [], find)
        if result.status == t.FORBIDDEN:
            raise OperatorError(_NOT_KNOWN)
        return result

    def send(self, kind: int, payload: bytes) -> None:
        """Have a command ordered, through every front end that takes it, without waiting for its result: a service
        that has halted has none."""
        command = t.Command(0, _random_number(), 0, payload, kind)
        pieces = client_wire.encode_request([command], [], self._secret)
        for endpoint in self._endpoints:
            channel = self._channels.open(endpoint)
            try:
                # The first answer of a front end, where all front ends are, tells that it has read what was sent.
                _exchange(channel, pieces, lambda reply: reply.endpoints or None)
            finally:
                channel.close()

    def read(self, subject: int, payload: bytes) -> bytes:
        """Ask for something else than the application. Linearizable, like every read that is not stale."""
        number = _random_number()

        def find(reply: client_wire.ClientReply) -> tuple[int, bytes] | None:
            for id_, status, payload in reply.answers:
                if id_ == number and status not in _ELSEWHERE:
                    return status, payload
            return None

        status, payload = self._ask([], [client_wire.ReadMessage(number, payload, False, subject)], find)
        if status == t.FORBIDDEN:
            raise OperatorError(_NOT_KNOWN)
        if status != t.OK:
            raise OperatorError(payload.decode(errors="replace"))
        return payload

    def _ask(
        self,
        commands: list[t.Command],
        reads: list[client_wire.ReadMessage],
        find: Callable[[client_wire.ClientReply], Found | None],
    ) -> Found:
        """Send the same to one front end after the other, until one has an answer."""
        end_s = time.monotonic() + self._timeout_s
        turn, refusal = 0, None
        while time.monotonic() < end_s:
            channel = self._channels.open(self._endpoints[turn % len(self._endpoints)])
            turn += 1
            try:
                found = _exchange(channel, client_wire.encode_request(commands, reads, self._secret), find)
            finally:
                channel.close()
            if found is not None:
                return found
            refusal = channel.refusal or refusal
        raise OperatorError(refusal or f"no answer from {', '.join(self._endpoints)} within {self._timeout_s:.0f} s")


#: What another front end may answer better.
_ELSEWHERE = (t.OVERLOADED, t.HALTED, t.WAITING)
_NOT_KNOWN = "the cluster does not know this operator: these are another cluster's keys, or another one's secret"


def _exchange(
    channel: Channel, pieces: list[bytes], find: Callable[[client_wire.ClientReply], Found | None]
) -> Found | None:
    for piece in pieces:
        channel.send(piece)
    end_s = time.monotonic() + PATIENCE_S
    while (left_s := end_s - time.monotonic()) > 0:
        channel.wait(left_s)
        for message in channel.receive():
            try:
                found = find(client_wire.decode_reply(message))
            except MalformedTuple as error:
                raise OperatorError(f"the front end speaks another version: {error}") from error
            if found is not None:
                return found
    return None


def _random_number() -> int:
    return int.from_bytes(os.urandom(7), "big") + 1
