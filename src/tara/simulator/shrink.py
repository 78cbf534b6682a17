"""Makes a failing run small: takes away what the failure does not need, as long as the same check still fails.

Delta debugging over the plan. Every candidate is a plan with less in it; it is taken if it breaks the same invariant.
A run is chaotic: with one fault less, everything after it happens otherwise, and a failure that needs a coincidence may
not come about. So a candidate gets a few chances with other delays, that is, other seeds of the run. All of this is
deterministic but for the time limit, and bounded by a number of runs.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tara.protocol.errors import ConfigurationError
from tara.simulator.plan import Fault, Plan
from tara.simulator.run import Outcome

FORMAT_VERSION = 1
#: Chances of each candidate; and how far apart their seeds are, so that neighbours do not share them.
_CHANCES = 3
_SEED_STEP = 1_000_003
#: When there is a system that faults can harm.
_FAULTS_FROM_MS = 300
#: The shortest time for faults, and the shortest fault.
_FAULTS_MS_MIN = 500
_DURATION_MS_MIN = 20

Run = Callable[[Plan], Outcome]
Say = Callable[[str], None]


class Reproduction(Struct, kw_only=True, forbid_unknown_fields=True):
    """A run to be replayed from a file."""

    version: int = FORMAT_VERSION
    #: The version of the code with one rule taken away, if it takes that to fail.
    mutant: str | None = None
    #: What it violates.
    violation: str
    detail: str
    plan: Plan


class Shrunk(Struct, kw_only=True):
    before: Plan
    after: Plan
    outcome: Outcome
    runs: int
    #: Why it ended.
    ended: str


def shrink(plan: Plan, run: Run, runs_max: int, seconds_max: float, say: Say) -> Shrunk | None:
    """The smallest plan found that fails like this one; None if this one does not fail."""
    first = run(plan)
    if first.violation is None:
        return None
    say(f"fails: {first.violation}: {describe(plan)}")
    return _Search(plan, first, run, runs_max, time.monotonic() + seconds_max, say).shrink()


class _Spent(Exception):
    """No runs or no time left."""


class _Search:
    def __init__(self, plan: Plan, outcome: Outcome, run: Run, runs_max: int, deadline_s: float, say: Say) -> None:
        self._original = self._best = plan
        self._outcome = outcome
        self._run = run
        self._runs, self._runs_max, self._deadline_s = 1, runs_max, deadline_s
        self._say = say

    def shrink(self) -> Shrunk:
        ended = "nothing more can be taken away"
        try:
            while self._pass():
                pass
        except _Spent as spent:
            ended = str(spent)
        except KeyboardInterrupt:
            ended = "interrupted"
        return Shrunk(before=self._original, after=self._best, outcome=self._outcome, runs=self._runs, ended=ended)

    def _pass(self) -> bool:
        """Try to make everything smaller; true if something was."""
        before = self._best
        self._drop_faults()
        for change in _SIMPLER:
            self._take({name: value for name, value in change.items() if getattr(self._best, name) != value})
        self._bring_forward()
        self._lower("clients", 1)
        self._lower("commands_per_client", 1)
        self._lower("faults_end_ms", _FAULTS_MS_MIN)
        self._shorten_faults()
        return self._best != before

    def _drop_faults(self) -> None:
        """Remove half of the faults, a quarter, and so on down to single ones."""
        size = max(len(self._best.faults) // 2, 1)
        while self._best.faults:
            start = 0
            while start < len(self._best.faults):
                rest = self._best.faults[:start] + self._best.faults[start + size :]
                if not self._take({"faults": rest}):
                    start += size
            if size == 1:
                return
            size //= 2

    def _lower(self, name: str, minimum: int) -> None:
        """Come close to the minimum by bisection: large numbers to a twentieth, small ones exactly."""
        low = minimum
        while low + getattr(self._best, name) // 20 < getattr(self._best, name):
            middle = (low + getattr(self._best, name)) // 2
            if not self._take({name: middle}):
                low = middle + 1

    def _bring_forward(self) -> None:
        """Let all faults come earlier, by the same time, and with them the end of the run."""
        for part in (1, 2, 4):
            waiting_ms = min((fault.at_ms for fault in self._best.faults), default=0) - _FAULTS_FROM_MS
            shift = waiting_ms // part
            if shift > 0:
                faults = [replace(fault, at_ms=fault.at_ms - shift) for fault in self._best.faults]
                self._take({"faults": faults, "faults_end_ms": self._best.faults_end_ms - shift})

    def _shorten_faults(self) -> None:
        for index in range(len(self._best.faults)):
            for shorter in _shorter(self._best.faults[index]):
                faults = self._best.faults.copy()
                faults[index] = shorter
                if self._take({"faults": faults}):
                    break

    def _take(self, changes: dict[str, Any]) -> bool:
        """Take the changes if the run still fails with them."""
        if not changes:
            return False
        for chance in range(_CHANCES):
            if self._runs >= self._runs_max:
                raise _Spent(f"{self._runs_max} runs are spent")
            if time.monotonic() >= self._deadline_s:
                raise _Spent("the time is spent")
            candidate = replace(self._best, seed=self._best.seed + chance * _SEED_STEP, **changes)
            outcome = self._run(candidate)
            self._runs += 1
            if outcome.violation == self._outcome.violation:
                self._best, self._outcome = candidate, outcome
                self._say(f"run {self._runs}: {describe(candidate)}")
                return True
        return False


#: What a plan can do without, in this order.
_SIMPLER: list[dict[str, Any]] = [
    {"lost_site": None},
    {"drop": 0.0},
    {"duplicate": 0.0},
    {"reorder": 0.0},
    {"replay": 0.0},
    {"pipeline": 1},
    {"keys": 1},
    {"packing": "site"},
]


def _shorter(fault: Fault) -> Iterator[Fault]:
    duration_ms = _DURATION_MS_MIN
    while duration_ms < fault.duration_ms:
        yield replace(fault, duration_ms=duration_ms)
        duration_ms *= 4


def describe(plan: Plan) -> str:
    """The size of a plan, in a line."""
    noise = [name for name in ("drop", "duplicate", "reorder", "replay") if getattr(plan, name)]
    return (
        f"{len(plan.faults)} faults in {plan.faults_end_ms} ms, noise: {', '.join(noise) or 'none'}, "
        f"{plan.clients} clients with {plan.commands_per_client} commands each"
    )


def write(file: Path, reproduction: Reproduction) -> None:
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(reproduction), indent=2) + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}") from error


def read(file: Path) -> Reproduction:
    try:
        data = file.read_bytes()
        version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if version != FORMAT_VERSION:
            raise ConfigurationError(f"{file}: has format version {version}, this is version {FORMAT_VERSION}")
        return msgspec.json.decode(data, type=Reproduction)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{file}: not a plan that `tara sim shrink` wrote: {error}") from error
