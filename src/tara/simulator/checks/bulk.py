"""Runs in which nothing fails, but commands are long, and links may be slow: the system has to let them take their
time, and no more.

The active proposer does what it can, and is not to be deposed again and again; and what is on its way is not to be
ordered again, however long it takes: what the links carry in vain, nobody else gets. What a new view begins with comes
as fast as the links carry it.
"""

from collections import Counter
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.simulator.checks.violation import Violation
from tara.simulator.plan import Plan

if TYPE_CHECKING:
    from tara.simulator.world import World

#: View changes that may happen until the controllers know what the links carry.
VIEW_CHANGES_MAX = 3
#: How much of what is ordered may have been ordered before. (After a view change that nothing called for, clients have
#: reason to try elsewhere.)
REPEATED_SHARE_MAX = 0.2
#: How often each byte leaves the site that has the most to send: from a source to the proposer, from there to all
#: committers, from those to the executors; and as much again for what is sent twice.
TRIPS = 10
#: What a view takes to begin where there is little to carry; and how often each byte is carried for it: with the
#: records, and when it is proposed again.
BEGINNING_MS = 1_000.0
BEGINNING_TRIPS = 2


def transfer_ms(plan: Plan) -> float:
    """How long everything may take that clients have on their way; in a run that is not about that, they may have
    filled their pipelines, but few values are long."""
    if not plan.rate_mbit:
        return 0.0
    commands = plan.pipeline if plan.bulk else plan.limits.session_pipeline_max * plan.long_share
    waiting = plan.clients * max(commands, 1) * plan.value_bytes
    return TRIPS * waiting * 8 / (plan.rate_mbit * 1e3)


def beginning_ms(plan: Plan) -> float:
    """How long it may take from the first promise of a view until one starts, at most with all that there ever was."""
    ordered = plan.clients * plan.commands_per_client * plan.value_bytes
    return BEGINNING_MS + BEGINNING_TRIPS * ordered * 8 / (plan.rate_mbit * 1e3)


def check(world: "World") -> None:
    monitor = world.monitor
    monitor.checks["bulk"] += 1
    wrong = sum(fault.kind == "suspicion" for fault in world.plan.faults)
    if monitor.view_changes > VIEW_CHANGES_MAX + wrong:
        raise Violation("bulk", f"{monitor.view_changes} view changes, though nothing fails")
    allowed_ms = beginning_ms(world.plan)
    if monitor.longest_beginning_ms > allowed_ms:
        raise Violation("bulk", f"a new view took {monitor.longest_beginning_ms:.0f} ms to begin")
    ordered, repeated = _ordered(world)
    if not wrong and repeated > REPEATED_SHARE_MAX * ordered:
        raise Violation("bulk", f"{ordered} bytes were ordered, {repeated} of them again")


def _ordered(world: "World") -> tuple[int, int]:
    """The bytes of all commands in the order, and of those that were there before."""
    seen: Counter[tuple[int, int, int]] = Counter()
    ordered = repeated = 0
    for _, request in sorted(world.monitor.log.items()):
        for command in t.decode_commands(request.body) if request.source >= 0 else ():
            ordered += len(command.payload)
            repeated += len(command.payload) * (seen[command.session, command.number, command.kind] > 0)
            seen[command.session, command.number, command.kind] += 1
    return ordered, repeated
