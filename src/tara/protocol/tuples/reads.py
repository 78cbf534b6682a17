"""Reads without a place in the order."""

from typing import Annotated

from msgspec import Meta

from tara.protocol.tuples.base import ClientNumber, Number, Principal, Tuple, Value

#: Whom a question is for.
Subject = Annotated[int, Meta(ge=0, le=1)]
APPLICATION = 0
SESSIONS = 1  # the list of sessions, for operators; the payload is a `ListSessions`


class ListSessions(Value, frozen=True):
    """Sessions with higher ids than this one, in the order of their ids, as many as fit an answer."""

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


class Question(Value, frozen=True):
    """What a client asks the application. The host that took it knows by the ticket who is waiting."""

    ticket: Number
    payload: bytes
    #: The life of that host: its next one counts tickets anew.
    life: Number = 0
    #: Who asks; said by the front end, as in a command.
    principal: Principal = b""
    subject: Subject = 0


class Answer(Value, frozen=True):
    ticket: Number
    status: Annotated[int, Meta(ge=0, le=10)]
    payload: bytes
    #: As in the question.
    life: Number = 0


class Ask(Tuple, frozen=True, tag=18):
    """client → request source: questions that need a linearizable answer, but no place in the order."""

    questions: list[Question]


class AskHere(Tuple, frozen=True, tag=112):
    """client → executor of its site: questions for which any state will do; the answers may have so many bytes."""

    questions: list[Question]
    bytes_max: int


class Questions(Tuple, frozen=True, tag=19):
    """request source → the executor of its site: to be answered when the committers have said how far."""

    source: Number
    epoch: Number
    nonce: Number
    questions: list[Question]


class Read(Tuple, frozen=True, tag=6):
    """request source → committers of all partitions: where does the log end? Answered to one executor."""

    source: Number
    epoch: Number
    nonce: Number
    executor: Number


#: The number of the one read of an executor that has started; no request source gives one that high.
START_NONCE = 1 << 61


class AskIndex(Tuple, frozen=True, tag=22):
    """executor → reply sink of its site → client → request source: it has started. How far may something be decided?
    The source asks the committers, as for any other read."""

    executor: Number
    life: Number


class ReadIndex(Tuple, frozen=True, tag=7):
    """committer → executor: no slot at or beyond `position` was accepted here when the question came."""

    committer: Number
    partition: Number
    incarnation: Number
    #: The highest incarnations that it has heard of: they expose an answer of a life that is over.
    incarnations: list[Number]
    source: Number
    epoch: Number
    nonce: Number
    position: Number


class Answers(Tuple, frozen=True, tag=20):
    """executor → reply sink of its site → client."""

    executor: Number
    answers: list[Answer]
