"""What an operator's command line does to have a command skipped, step by step, from what the replicas report.

The replicas decide nothing by themselves: see `tara.protocol.skips` for what makes it safe.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class ReplicaReport(NamedTuple):
    """What a replica says of itself."""

    name: str
    #: Whether it says anything.
    up: bool
    #: The last command that it has executed, in this life or one before; None: not known, it is catching up.
    executed: int | None
    #: The command at which it has halted; and whether it knows that it is to be skipped.
    halted_at: int | None
    asked: bool


class Step(Enum):
    #: Some have not come to the command, or say nothing.
    WAIT = "wait"
    #: All have halted at it, and not all know that it is to be skipped.
    ASK = "ask"
    #: All have halted at it and know.
    CONFIRM = "confirm"
    #: Some have executed it.
    REFUSE = "refuse"


def next_step(reports: Sequence[ReplicaReport], counter: int) -> tuple[Step, str]:
    """What to do next, and why."""
    for report in reports:
        if report.up and report.executed is not None and report.executed >= counter:
            return Step.REFUSE, f"{report.name} is past command {counter}: it has executed it, or it was skipped before"
    for report in reports:
        if not report.up:
            return Step.WAIT, f"{report.name} does not answer"
        if report.halted_at != counter:
            return Step.WAIT, f"{report.name} has not halted at command {counter}"
    if all(report.asked for report in reports):
        return Step.CONFIRM, "all replicas have halted there"
    return Step.ASK, "all replicas have halted there"
