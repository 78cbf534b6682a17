"""What users implement: a deterministic state machine, and a few small ones to start from.

Every replica executes the same commands in the same order, so `apply` must depend on nothing but the state, the
command and the context: no clock, no random number, no I/O, no iteration over a set of strings. An exception is a
result like any other (the client sees it, the replicas stay equal); raise `ApplicationError` to choose the message.
"""

import abc
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from tara.protocol.sessions import ApplicationError, Context
from tara.protocol.tuples import DECODE_ERRORS
from tara.table import Table

__all__ = [
    "AppendRegister",
    "ApplicationError",
    "Context",
    "Counter",
    "Execute",
    "KeyValueStore",
    "Query",
    "Simulation",
    "StateMachine",
]


class Execute(Struct, frozen=True, tag=True):
    """A simulated client has a command executed."""

    payload: bytes


class Query(Struct, frozen=True, tag=True):
    """A simulated client asks a question."""

    payload: bytes


class Simulation(abc.ABC):
    """How the simulator tries an application out: what clients want of it, and what must hold whatever happens. An
    instance plays one client, from its start to its end."""

    #: Of an application that has a gateway: `module:Class` of its `tara.simulator.gateways.Wire`.
    wire: str = ""

    @abc.abstractmethod
    def next(self, draw: random.Random) -> Execute | Query:
        """What the client wants next. All chance comes from `draw`: a seed is always the same run."""

    def heard(self, call: Execute | Query, answer: bytes | None) -> None:  # noqa: B027 - a hook, not a duty
        """The answer came (None: it was refused). What a client learns, such as an id, it may use in what follows. It
        need not come for every call, nor in the order of the calls."""

    @classmethod  # noqa: B027 - a hook, not a duty
    def check(cls, application: Any) -> None:
        """Raise an AssertionError if an application must never be in this state. Changes nothing."""


class StateMachine(abc.ABC):
    """A replicated application."""

    #: True if the iterator that `snapshot` returns may be drawn after later commands have executed: the call itself
    #: must then have captured the state, as `tara.table.Table` does. If false, the chunks are drawn before the next
    #: command.
    concurrent_snapshot: bool = False

    #: `module:function` of a front end that the live runtime starts beside each replica: `tara.net.gateway`.
    gateway: str | None = None

    #: What `tara sim run --app` needs to know: a subclass of `Simulation`, or `module:Class` of one.
    simulation: type[Simulation] | str | None = None

    @abc.abstractmethod
    def apply(self, command: bytes, context: Context) -> bytes:
        """Execute a command and return its result."""

    @abc.abstractmethod
    def query(self, question: bytes, context: Context) -> bytes:
        """Answer a question without changing anything."""

    @abc.abstractmethod
    def snapshot(self) -> Iterator[bytes]:
        """The whole state in chunks. Canonical: the same state gives the same bytes on every replica."""

    @abc.abstractmethod
    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state by that of a snapshot."""

    def restore_slices(self, chunks: Iterable[bytes]) -> Iterator[None]:
        """The same, as a generator: at each `yield`, the site does its other work. Nobody else uses the application
        before its end. If this is not there, `restore` is called, which nothing interrupts: right for small states."""
        self.restore(chunks)
        yield from ()

    def opened(self, context: Context) -> None:  # noqa: B027 - a hook, not a duty
        """A session was opened."""

    def closed(self, context: Context) -> None:  # noqa: B027 - a hook, not a duty
        """A session was closed, or expired."""


class Put(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    key: str
    value: bytes


class Get(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    key: str


class Delete(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=3):
    key: str


class CompareAndSet(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=4):
    """Set the key if it has the expected value (None: if it does not exist)."""

    key: str
    expected: bytes | None
    value: bytes


class List(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=5):
    """Keys that begin with the prefix, sorted."""

    prefix: str
    limit: int = 1000


KeyValueCommand = Put | Get | Delete | CompareAndSet | List

_decode_key_value: Callable[[bytes], KeyValueCommand] = msgspec.msgpack.Decoder(KeyValueCommand).decode
_encode = msgspec.msgpack.Encoder().encode
_NOTHING = _encode(None)


def _not_a_command(error: Exception) -> ApplicationError:
    return ApplicationError(f"not a key-value command: {error}")


class KeyValueStore(StateMachine):
    """Keys to values. Results are MessagePack: Put None, Get the value or None, Delete and CompareAndSet whether
    it happened, List the keys."""

    concurrent_snapshot = True

    def __init__(self) -> None:
        self._values: Table[str, bytes] = Table()

    def apply(self, command: bytes, context: Context) -> bytes:
        try:
            decoded = _decode_key_value(command)
        except DECODE_ERRORS as error:
            raise _not_a_command(error) from error
        if isinstance(decoded, Put):  # first, and without ceremony: what a busy store does most of the time
            # Faster than an assignment, which reaches Python's method through a call of C.
            self._values.__setitem__(decoded.key, decoded.value)
            return _NOTHING
        return _encode(self._execute(decoded))

    def _execute(self, command: Get | Delete | CompareAndSet | List) -> object:
        values = self._values
        match command:
            case Get(key):
                return values.get(key)
            case Delete(key):
                return values.pop(key, None) is not None
            case CompareAndSet(key, expected, value):
                if values.get(key) != expected:
                    return False
                values[key] = value
                return True
            case List(prefix, limit):
                return sorted(key for key, _ in values.unordered() if key.startswith(prefix))[: max(limit, 0)]

    def query(self, question: bytes, context: Context) -> bytes:
        try:
            decoded = _decode_key_value(question)
        except DECODE_ERRORS as error:
            raise _not_a_command(error) from error
        if not isinstance(decoded, Get | List):
            raise ApplicationError(f"{type(decoded).__name__} is a command, not a question")
        return _encode(self._execute(decoded))

    def snapshot(self) -> Iterator[bytes]:
        return self._values.snapshot()

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._values.restore(chunks, bytes)

    def restore_slices(self, chunks: Iterable[bytes]) -> Iterator[None]:
        return self._values.restore_slices(chunks, bytes)


class Counter(StateMachine):
    """One number. A command is a MessagePack integer to add; every result is the new value."""

    def __init__(self) -> None:
        self._value = 0

    def apply(self, command: bytes, context: Context) -> bytes:
        try:
            value = self._value + msgspec.msgpack.decode(command, type=int)
        except DECODE_ERRORS as error:
            raise ApplicationError(f"not an integer: {error}") from error
        if abs(value) >= 1 << 63:
            raise ApplicationError("the counter would leave the range of 64 bits")
        self._value = value
        return _encode(value)

    def query(self, question: bytes, context: Context) -> bytes:
        return _encode(self._value)

    def snapshot(self) -> Iterator[bytes]:
        yield _encode(self._value)

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._value = msgspec.msgpack.decode(b"".join(chunks), type=int)


class AppendRegister(StateMachine):
    """A list that only grows: shows the order of execution itself. A result is the length after the append."""

    def __init__(self) -> None:
        self._values: list[bytes] = []

    def apply(self, command: bytes, context: Context) -> bytes:
        self._values.append(command)
        return _encode(len(self._values))

    def query(self, question: bytes, context: Context) -> bytes:
        return _encode(self._values)

    def snapshot(self) -> Iterator[bytes]:
        yield _encode(self._values)

    def restore(self, chunks: Iterable[bytes]) -> None:
        self._values = msgspec.msgpack.decode(b"".join(chunks), type=list[bytes])
