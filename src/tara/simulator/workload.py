"""What simulated clients do, and the application that they do it to."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tara.application import CompareAndSet, Context, Delete, Get, KeyValueStore, Put, StateMachine

POISON = b"poison"


class ExecutedTwice(Exception):
    """Not a result: the run is over."""


class AuditedStore(StateMachine):
    """A key-value store that remembers which operations it has executed, to see that none executes twice.

    A command is the operation's id and a key-value command. The ids are part of the state: also a replica that
    loaded a checkpoint knows what was executed before."""

    concurrent_snapshot = True

    def __init__(self) -> None:
        self._store = KeyValueStore()
        self._executed: dict[int, int] = {}
        #: Ids that executed twice; the monitor looks here after every step.
        self.twice: list[int] = []

    def apply(self, command: bytes, context: Context) -> bytes:
        operation, payload = msgspec.msgpack.decode(command, type=tuple[int, bytes])
        if operation in self._executed:
            self.twice.append(operation)
        self._executed[operation] = context.counter
        if payload == POISON:
            raise ValueError(f"poison at {id(self)}")
        return self._store.apply(payload, context)

    def query(self, question: bytes, context: Context) -> bytes:
        _, payload = msgspec.msgpack.decode(question, type=tuple[int, bytes])
        return self._store.query(payload, context)

    def snapshot(self) -> Iterator[bytes]:
        executed = msgspec.msgpack.encode(list(self._executed.items()))
        store = self._store.snapshot()
        return (chunk for part in ((executed,), store) for chunk in part)

    def restore(self, chunks: Iterable[bytes]) -> None:
        parts = iter(chunks)
        self._executed = dict(msgspec.msgpack.decode(next(parts), type=list[tuple[int, int]]))
        self._store.restore(parts)


class Call(msgspec.Struct, frozen=True):
    """One operation of a client: its key, what the model is asked, what is sent, and whether it is a question."""

    key: str
    model: tuple[Any, ...]
    payload: bytes
    question: bool


def draw_call(draw: random.Random, keys: int, unique: int) -> Call:
    """Reads, writes, deletes and compare-and-sets of a few keys; written values are unique."""
    key = f"key-{draw.randrange(keys)}"
    value = unique.to_bytes(4, "big")
    kind = draw.random()
    if kind < 0.35:
        return Call(key, ("put", value), msgspec.msgpack.encode(Put(key, value)), False)
    if kind < 0.75:
        return Call(key, ("get",), msgspec.msgpack.encode(Get(key)), draw.random() < 0.5)
    if kind < 0.85:
        return Call(key, ("delete",), msgspec.msgpack.encode(Delete(key)), False)
    expected = None if draw.random() < 0.5 else draw.randrange(max(unique, 1)).to_bytes(4, "big")
    payload = msgspec.msgpack.encode(CompareAndSet(key, expected, value))
    return Call(key, ("cas", expected, value), payload, False)
