"""Clients: `Client` (blocking), `AsyncClient` (asyncio), and `KeyValueClient` for the built-in key-value store.

`session.py` is what a client must do, without I/O; `connection.py` does it over sockets, on a thread of its own.
"""

from tara.client.connection import AsyncClient, Client, ClientOptions
from tara.client.errors import (
    ClientClosed,
    ClientError,
    CommandFailed,
    CommandTooLarge,
    Forbidden,
    NotReachable,
    Overloaded,
    Refused,
    ServiceHalted,
    SessionExpired,
    TimedOut,
)
from tara.client.key_value import KeyValueClient
from tara.client.session import State

__all__ = [
    "AsyncClient",
    "Client",
    "ClientClosed",
    "ClientError",
    "ClientOptions",
    "CommandFailed",
    "CommandTooLarge",
    "Forbidden",
    "KeyValueClient",
    "NotReachable",
    "Overloaded",
    "Refused",
    "ServiceHalted",
    "SessionExpired",
    "State",
    "TimedOut",
]
