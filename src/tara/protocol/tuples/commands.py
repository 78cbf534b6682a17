"""What is replicated: commands of clients, the requests that carry them, and what becomes of them."""

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from tara.protocol.tuples.base import DECODE_ERRORS, ClientNumber, Number, Principal, Value


class Command(Value, frozen=True):
    """One client command. (session, number) identifies it for ever: it executes at most once."""

    session: ClientNumber
    number: ClientNumber
    #: The client has the results of all its commands below this number; they may be forgotten.
    acknowledged: ClientNumber
    payload: bytes
    kind: Annotated[int, Meta(ge=0, le=6)] = 0
    #: Who sent it. Only front ends say so: what a client writes here is overwritten.
    principal: Principal = b""


EXECUTE = 0  # apply the payload to the application
QUERY = 1  # ask the application, in order
OPEN = 2  # open a session; number is a nonce of the client, payload a MessagePack integer (the time-out in ms) or name
CLOSE = 3  # end the session
KEEPALIVE = 4  # let the agreed time pass, and renew the session (0: none)
# In a named session: decide what a key stands for; number is a nonce of its own, payload a MessagePack `Claim`.
CLAIM = 5
# An operator's: in no session, number is a nonce, payload a MessagePack `Skip`. See `tara.protocol.skips`.
SKIP = 6
# Sent by nobody, and refused from everybody: how the decided log tells that a session's time was up.
EXPIRE = 7


class Skip(Value, frozen=True):
    """What an operator wants done about a command that no replica can execute."""

    #: Marks requests that have such a command in them.
    mark: bytes
    #: The command.
    counter: Number
    step: Annotated[int, Meta(ge=0, le=2)]


ASK_SKIP = 0
CONFIRM_SKIP = 1
WITHDRAW_SKIP = 2


class Claim(Value, frozen=True):
    """What a key of a named session stands for. The first claim of a key wins, and everybody gets its value."""

    #: Rises from claim to claim; only the newest one is remembered, an older one is refused.
    key: ClientNumber
    value: bytes
    #: In the answer: the number of the session's next command when the claim was decided, and now.
    base: Number = 0
    next: Number = 0


class Result(Value, frozen=True):
    """What a command returned. The same on every replica, however often it is asked for."""

    session: ClientNumber
    number: ClientNumber
    #: The command counter at which it executed.
    counter: Number
    status: Annotated[int, Meta(ge=0, le=11)]
    payload: bytes
    #: Whom it is for: who sent the command.
    principal: Principal = b""


OK = 0
FAILED = 1  # the application raised; the payload is the message
EXPIRED = 2  # no such session (any more); the command does not execute, unless an earlier copy of it did
REJECTED = 3  # ill-formed, or it makes no sense now; this copy of the command does not execute
FULL = 4  # no room for another session
# Said by a front end, about a command that it did not pass on:
OVERLOADED = 5  # no room now
TOO_LARGE = 6  # longer than command_bytes_max
# Said by the replicas, and by a front end to whoever has neither a key nor a secret:
FORBIDDEN = 7  # the session belongs to somebody else; the command does not execute and changes nothing
# Said by a front end again:
HALTED = 8  # the replica of its site does not execute any more; the payload says why
# Said by the replicas:
SKIPPED = 9  # an operator had it skipped: no replica has executed it, and none will
UNACKNOWLEDGED = 10  # too much is kept for the client; acknowledge and send it again: this copy does not execute
# Said by a front end, about a long command that it has:
WAITING = 11  # it waits for its turn, and the queue moves; no result, but a reason to be patient


class Event(Value, frozen=True):
    """Something the application published for a session (0: for all) while it executed a command."""

    session: ClientNumber
    counter: Number
    payload: bytes
    #: Whom it is for: the session's owner.
    principal: Principal = b""


class Request(Value, frozen=True):
    """What a slot holds: a batch of commands as numbered by a request source and stamped by a proposer."""

    #: -1 marks a no-op: it fills a slot that nobody needs.
    source: Annotated[int, Meta(ge=-1, lt=2**31)]
    #: One start of the source; its numbers begin at 0 in each epoch.
    epoch: Number
    number: Number
    #: Milliseconds on the proposer's clock when it first proposed the request; 0 before that.
    time: Number
    #: The commands, encoded once by the source and decoded once by each executor.
    body: bytes


NOOP = Request(-1, 0, 0, 0, b"")
_decode_commands: Callable[[bytes], list[Command]] = msgspec.msgpack.Decoder(list[Command]).decode


def decode_commands(body: bytes) -> list[Command]:
    """The commands of a request; none if it is malformed. Sources check what they take; and every replica has the same
    bytes, and skips them alike."""
    try:
        return _decode_commands(body)
    except DECODE_ERRORS:
        return []


def commands_of(requests: Sequence[Request]) -> list[list[Command]]:
    """The commands of each; no-ops have none."""
    try:
        return [_decode_commands(request.body) if request.source >= 0 else [] for request in requests]
    except DECODE_ERRORS:
        return [decode_commands(request.body) if request.source >= 0 else [] for request in requests]
