"""Reads without a place in the order."""

from typing import Annotated

from msgspec import Meta

from tara.protocol.tuples.base import ClientNumber, Number, Principal, Tuple, Value

#: Whom a read is for.
Subject = Annotated[int, Meta(ge=0, le=1)]
APPLICATION = 0
SESSIONS = 1  # the list of sessions, for operators; the payload is a `ListSessions`


class ListSessions(Value, frozen=True):
    """Sessions with higher ids than this one, in the order of their ids, as many as fit a result."""

    after: Number = 0


class SessionRow(Value, frozen=True):
    """What an operator is told of a session."""

    id: Number
    name: str
    owner: Principal
    #: 0: it never expires.
    timeout_ms: int
    #: Since it was opened, and since it was last heard of, on the session clock.
    age_ms: int
    idle_ms: int
    #: The number of its next command.
    next: ClientNumber
    #: Results that are kept until the client has acknowledged them.
    results: int
    results_bytes: int
    #: Commands that came too early, and wait for their turn.
    waiting: int
    waiting_bytes: int


class ReadRequest(Value, frozen=True):
    """One read of a client. The host that took it knows by the ticket who is waiting."""

    ticket: Number
    payload: bytes
    #: The life of that host: its next one counts tickets anew.
    life: Number = 0
    #: Who reads; said by the front end, as in a command.
    principal: Principal = b""
    subject: Subject = 0


class ReadResult(Value, frozen=True):
    ticket: Number
    status: Annotated[int, Meta(ge=0, le=10)]
    payload: bytes
    #: As in the request.
    life: Number = 0


class SubmitReads(Tuple, frozen=True, tag=18):
    """client → request source: reads that need a linearizable result, but no place in the order."""

    reads: list[ReadRequest]


class SubmitStaleReads(Tuple, frozen=True, tag=112):
    """client → executor of its site: reads for which any state will do; the results may have so many bytes."""

    reads: list[ReadRequest]
    bytes_max: int


class PendingReads(Tuple, frozen=True, tag=19):
    """request source → the executor of its site: reads to be answered when the committers have said how far."""

    source: Number
    epoch: Number
    nonce: Number
    reads: list[ReadRequest]


class IndexRequest(Tuple, frozen=True, tag=6):
    """request source → committers of all partitions: where does the log end? They tell one executor."""

    source: Number
    epoch: Number
    nonce: Number
    executor: Number


#: The number of the one read of an executor that has started; no request source gives one that high.
START_NONCE = 1 << 61


class StartIndexRequest(Tuple, frozen=True, tag=22):
    """executor → reply sink of its site → client → request source: it has started. How far may something be decided?
    The source asks the committers, as for any other read."""

    executor: Number
    life: Number


class ReadIndex(Tuple, frozen=True, tag=7):
    """committer → executor: no slot at or beyond `position` was accepted here when the request came."""

    committer: Number
    partition: Number
    incarnation: Number
    #: The highest incarnations that it has heard of: they expose an answer of a life that is over.
    incarnations: list[Number]
    source: Number
    epoch: Number
    nonce: Number
    position: Number


class ReadResults(Tuple, frozen=True, tag=20):
    """executor → reply sink of its site → client: what its reads found."""

    executor: Number
    results: list[ReadResult]
