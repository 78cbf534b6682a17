"""Waiting in tests: for a condition, never for a time that should be enough.

A machine may be several times slower than the one a test was written on, and stand still for seconds. So deadlines are
only there to end a test that would never end by itself.
"""

import time
from collections.abc import Callable
from typing import Unpack

from tara.client import KeyValueClient
from tara.client.connection import ClientOptions

DEADLINE_S = 120.0


def await_condition(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)


def patient(endpoints: str, **options: Unpack[ClientOptions]) -> KeyValueClient:
    """A client that does not give up before the test does."""
    options.setdefault("timeout_s", DEADLINE_S)
    return KeyValueClient(endpoints, **options)
