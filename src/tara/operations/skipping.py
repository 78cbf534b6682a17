"""`tara skip`: get a service that has halted past a command that no replica can execute."""

import time
from collections.abc import Callable, Collection
from typing import Any

from tara.host.skipping import ReplicaReport, Step, next_step
from tara.operations.operator import Operator, OperatorError
from tara.protocol import skips
from tara.protocol import tuples as t

#: How long replicas have to come to the command, or to answer at all; and to take note of an order.
PATIENCE_S = 10.0
#: How long they have to note that it is to be skipped, and how often they are asked again.
ASK_S = 30.0
AGAIN_S = 2.0
POLL_S = 0.2

Status = dict[str, Any]


def reports_of(status: Status, lost: Collection[str] = ()) -> list[ReplicaReport]:
    """What the executors say, but for those of containers that are lost for good."""
    found = []
    for container in status["containers"]:
        name, executor = container["container"], container.get("executor")
        if name in lost or (container["up"] and executor is None):
            continue
        if executor is None or not container["up"]:
            found.append(ReplicaReport(name, False, None, None, False))
            continue
        halted = executor["halted"]
        halted_at = halted["counter"] if halted and not halted["checkpoint"] else None
        found.append(ReplicaReport(name, True, executor["executed"], halted_at, executor["skip_asked"]))
    return found


def skip(operator: Operator, status: Callable[[], Status], counter: int, lost: Collection[str] = ()) -> None:
    """Have the command skipped by all replicas. An error if one of them has executed it, or does not answer."""
    step, why = _await(status, counter, lost, (Step.ASK, Step.CONFIRM, Step.REFUSE), PATIENCE_S)
    if step in (Step.REFUSE, Step.WAIT):
        raise OperatorError(f"command {counter} is not skipped: {why}")
    end_s = time.monotonic() + ASK_S
    while step is Step.ASK and time.monotonic() < end_s:
        operator.send(t.SKIP, skips.encode(counter, t.ASK_SKIP))
        step, why = _await(status, counter, lost, (Step.CONFIRM, Step.REFUSE), AGAIN_S)
        step = Step.ASK if step is Step.WAIT else step
    if step is not Step.CONFIRM:
        operator.send(t.SKIP, skips.encode(counter, t.WITHDRAW_SKIP))
        raise OperatorError(f"command {counter} is not skipped: {why}")
    result = operator.order(t.SKIP, payload=skips.encode(counter, t.CONFIRM_SKIP))
    if result.status != t.OK:
        raise OperatorError(f"command {counter} is not skipped: {result.payload.decode(errors='replace')}")


def retry(operator: Operator, counter: int) -> None:
    """Have the replicas that have halted at the command execute it again."""
    result = operator.order(t.SKIP, payload=skips.encode(counter, t.WITHDRAW_SKIP))
    if result.status == t.OK:
        raise OperatorError(f"command {counter} has been skipped")


def _await(
    status: Callable[[], Status], counter: int, lost: Collection[str], wanted: Collection[Step], patience_s: float
) -> tuple[Step, str]:
    """Look until it is one of these steps, or the time is up: then whatever it is."""
    end_s = time.monotonic() + patience_s
    while True:
        reports = reports_of(status(), lost)
        step, why = next_step(reports, counter) if reports else (Step.WAIT, "no replica answers")
        if step in wanted or time.monotonic() >= end_s:
            return step, why
        time.sleep(POLL_S)
