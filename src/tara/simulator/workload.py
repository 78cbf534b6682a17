"""What simulated clients do to the application that is simulated, and the wrapping in which it runs."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tara.application import CompareAndSet, Context, Delete, Get, KeyValueStore, Put, StateMachine
from tara.protocol.depth import APPLICATION_DEPTH
from tara.protocol.principals import gateway_of, principal_of

#: The model of a command that makes the application raise.
POISON = ("poison",)
#: One of so many commands is told to all clients.
PUBLISHED = 5
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, bytes | None]).decode


def wrap(operation: int, payload: bytes | None) -> bytes:
    """What is sent to an audited application; None is poison."""
    return _encode((operation, payload))


def operation_of(wrapped: bytes) -> int:
    return _decode(wrapped)[0]


def principal_of_client(application: type[StateMachine], index: int) -> bytes:
    """Each client has a secret of its own. Those of an application that has a gateway are gateways."""
    return gateway_of(index) if application.gateway else principal_of(b"the secret of client %d" % index)


class Audited(StateMachine):
    """An application that remembers which operations it has executed, to see that none executes twice.

    A command is the operation's id and a command of the application. The ids are part of the state: also a replica
    that loaded a base knows what was executed before."""

    def __init__(self, application: StateMachine) -> None:
        self.application = application
        self.concurrent_snapshot = application.concurrent_snapshot
        self._executed: dict[int, int] = {}
        #: Ids that executed twice; the monitor looks here after every step.
        self.twice: list[int] = []
        #: Told of each operation, and its counter, before it executes.
        self.before: Callable[[int, int], None] = lambda operation, counter: None
        #: Told of each read, and what the application answers.
        self.answered: Callable[[int, bytes], None] = lambda operation, answer: None
        #: Given what a snapshot consists of; what it gives is the snapshot.
        self.on_snapshot: Callable[[Iterator[bytes]], Iterator[bytes]] = lambda chunks: chunks

    def apply(self, command: bytes, context: Context) -> bytes:
        operation, payload = _decode(command)
        self.before(operation, context.counter)
        if operation in self._executed:
            self.twice.append(operation)
        self._executed[operation] = context.counter
        if context.counter % PUBLISHED == 0:
            # To the client of a session, or to all.
            context.publish(b"%d" % operation, context.session if context.counter % 2 else 0)
        if payload is None:
            # Some get just as deep as an application may, and some deeper: that must be the same everywhere.
            _descend(APPLICATION_DEPTH - 60 + operation % 120)
            raise ValueError(f"poison at {id(self)}")
        return self.application.apply(payload, context)

    def query(self, question: bytes, context: Context) -> bytes:
        operation, payload = _decode(question)
        answer = self.application.query(payload or b"", context)
        self.answered(operation, answer)
        return answer

    @property
    def operations(self) -> Iterable[int]:
        """All that it has executed."""
        return self._executed.keys()

    def snapshot(self) -> Iterator[bytes]:
        executed = _encode(list(self._executed.items()))
        store = self.application.snapshot()
        return self.on_snapshot(chunk for part in ((executed,), store) for chunk in part)

    def restore(self, chunks: Iterable[bytes]) -> None:
        parts = iter(chunks)
        self._executed = dict(msgspec.msgpack.decode(next(parts), type=list[tuple[int, int]]))
        self.application.restore(parts)

    def restore_slices(self, chunks: Iterable[bytes]) -> Iterator[None]:
        """In more slices than so small a state would need: much may happen between them."""
        parts = iter(chunks)
        self._executed = dict(msgspec.msgpack.decode(next(parts), type=list[tuple[int, int]]))
        yield
        yield from self.application.restore_slices(parts)
        yield

    def opened(self, context: Context) -> None:
        self.application.opened(context)

    def closed(self, context: Context) -> None:
        self.application.closed(context)


def _descend(levels: int) -> None:
    if levels:
        _descend(levels - 1)


def audited_store() -> Audited:
    return Audited(KeyValueStore())


class Call(msgspec.Struct, frozen=True):
    """One operation of a client: its key, what the model is asked, what is sent, and whether it is a read."""

    key: str
    model: tuple[Any, ...]
    payload: bytes | None
    is_read: bool


def draw_call(draw: random.Random, keys: int, unique: int, value_bytes: int = 0, long_share: float = 0.0) -> Call:
    """Reads, writes, deletes and compare-and-sets of a few keys; written values are unique, and now and then long."""
    key = f"key-{draw.randrange(keys)}"
    value = unique.to_bytes(4, "big")
    if value_bytes and draw.random() < long_share:
        value += bytes(draw.randrange(value_bytes))
    kind = draw.random()
    if kind < 0.35:
        return Call(key, ("put", value), _encode(Put(key, value)), False)
    if kind < 0.75:
        return Call(key, ("get",), _encode(Get(key)), draw.random() < 0.5)
    if kind < 0.85:
        return Call(key, ("delete",), _encode(Delete(key)), False)
    expected = None if draw.random() < 0.5 else draw.randrange(max(unique, 1)).to_bytes(4, "big")
    return Call(key, ("cas", expected, value), _encode(CompareAndSet(key, expected, value)), False)
