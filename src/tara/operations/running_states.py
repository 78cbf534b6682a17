"""Compares the states of a running cluster: every executor takes a base at one same checkpoint, and tells its digest.

What replicas answer they compare by themselves, at every checkpoint. What they hold without ever having answered it
shows only in a base, and bases are not taken often. This is for whoever wants to know now.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tara.live import control
from tara.operations.fresh_checkpoint import NEWS_S, bring_to, executors, next_checkpoint
from tara.operations.health import halted
from tara.operations.registry_client import ask

#: How long to wait while nothing comes. A base that grows may take as long as it needs: that depends on the state and
#: on the disk.
TIMEOUT_S = 120.0
#: A cluster that is faster than it was a moment ago passes by the checkpoint before all are told.
ATTEMPTS = 3
_EXECUTOR = "executor-"


class StateComparison(Struct, frozen=True, kw_only=True):
    checkpoint: int
    #: By the names of the executors, the digests of their states there; None: it did not tell one in time.
    digests: dict[str, str | None]
    #: Executors that have halted, and why.
    halted: dict[str, str]

    @property
    def equal(self) -> bool:
        return None not in self.digests.values() and len(set(self.digests.values())) == 1


def compare_states(data_dir: Path, timeout_s: float = TIMEOUT_S) -> StateComparison:
    """Let the executors of the running cluster take bases, and compare them."""
    deadline_s = time.monotonic() + timeout_s
    before = _furthest(data_dir)
    time.sleep(NEWS_S)
    # All have to be told before they come to it.
    ahead = 2 * (_furthest(data_dir) - before)
    for attempt in range(ATTEMPTS):
        number = next_checkpoint(data_dir, ahead << attempt)
        ask(data_dir, control.AskBase(number))
        time.sleep(NEWS_S)
        bring_to(data_dir, number, deadline_s)
        found, late = await_bases(partial(_status, data_dir), number, timeout_s)
        if not late:
            break
    return found


def await_bases(
    status_of: Callable[[], dict[str, Any]],
    number: int,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[StateComparison, bool]:
    """What came of it; and whether somebody was told too late, and has another base instead. Gives up when there was no
    progress for so long."""
    deadline_s, before = clock() + timeout_s, None
    while True:
        status = status_of()
        found = _comparison(status, number)
        progress = (found, _growing(status))
        if progress != before:
            deadline_s, before = clock() + timeout_s, progress
        missing = {label for label, digest in found.digests.items() if digest is None}
        late = any(base["number"] > number for label in missing for base in _bases(status)[label])
        if late or missing <= found.halted.keys() or clock() >= deadline_s:
            return found, late
        wait(NEWS_S)


def _comparison(status: dict[str, Any], number: int) -> StateComparison:
    known = {
        label: next((base["digest"] for base in bases if base["number"] == number), None)
        for label, bases in _bases(status).items()
    }
    reasons = {label: reason for label, reason in halted(status).items() if label in known}
    return StateComparison(checkpoint=number, digests=known, halted=reasons)


def _bases(status: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What each executor has told of its newest bases."""
    return {label: told.get("bases", []) for label, told in _told(status).items()}


def _growing(status: dict[str, Any]) -> dict[str, Any]:
    """How much each executor has written of a base."""
    return {label: told.get("base_growing") for label, told in _told(status).items()}


def _told(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        label: container.get("executor", {})
        for container in status["containers"]
        for label in container["hosted"]
        if label.startswith(_EXECUTOR)
    }


def _furthest(data_dir: Path) -> int:
    return max(int(found["next"]) for found in executors(data_dir))


def _status(data_dir: Path) -> dict[str, Any]:
    status: dict[str, Any] = msgspec.json.decode(ask(data_dir, control.AskStatus()))
    return status
