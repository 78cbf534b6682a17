"""Principals: who is at the other end of a connection, as far as a handshake has proved it."""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    #: Part of the cluster: a container, a driver, an operator.
    MEMBER = "member"
    #: A client with a key of its own.
    CLIENT = "client"
    #: Nobody knows: a connection without keys.
    NONE = "none"


class Principal(NamedTuple):
    kind: Kind
    #: SHA-256 of the public key: stays the same when a certificate is renewed for the same key. Empty: no key.
    digest: bytes

    def __str__(self) -> str:
        return f"{self.kind}:{self.digest.hex()[:16]}" if self.digest else str(self.kind)


NOBODY = Principal(Kind.NONE, b"")
