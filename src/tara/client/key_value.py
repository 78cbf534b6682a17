"""The built-in key-value store with typed methods."""

from typing import TypeVar, Unpack

import msgspec

from tara.application import CompareAndSet, Delete, Get, KeyValueCommand, List, Put
from tara.client.connection import Client, ClientOptions

Answer = TypeVar("Answer")


class KeyValueClient:
    def __init__(self, endpoints: str, **options: Unpack[ClientOptions]) -> None:
        self.client = Client(endpoints, **options)

    def put(self, key: str, value: bytes) -> None:
        self._execute(Put(key, value), type(None))

    def get(self, key: str, stale: bool = False) -> bytes | None:
        answer = self.client.query(msgspec.msgpack.encode(Get(key)), stale=stale)
        return msgspec.msgpack.decode(answer, type=bytes | None)

    def delete(self, key: str) -> bool:
        """Whether the key was there."""
        return self._execute(Delete(key), bool)

    def compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> bool:
        """Set the key if it has the expected value (None: if it does not exist); whether that was so."""
        return self._execute(CompareAndSet(key, expected, value), bool)

    def list(self, prefix: str = "", limit: int = 1000) -> list[str]:
        answer = self.client.query(msgspec.msgpack.encode(List(prefix, limit)))
        return msgspec.msgpack.decode(answer, type=list[str])

    def _execute(self, command: KeyValueCommand, kind: type[Answer]) -> Answer:
        return msgspec.msgpack.decode(self.client.execute(msgspec.msgpack.encode(command)), type=kind)

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> "KeyValueClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
