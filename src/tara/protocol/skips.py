"""Skips: how an operator gets the service past a command that no replica can execute.

A command on which executors halt is skipped by two orders of an operator, both commands of the log. The first one
*asks* for it. A halted executor goes on learning what is decided, finds the question there, and reports that it has;
from then on it will not execute the command in any life: a life that begins looks through all that may be decided
before it executes anything. When every replica has reported so, and none has executed the command, the operator
*confirms*: the replicas find that, too, and give the command the result `SKIPPED` without executing it. An operator can
*withdraw* instead, if a replica has executed the command after all, or if what the command lacked is there now: then
they execute it (again). Of a confirmation and a withdrawal, the first one behind the question in the log counts.

So a command is either skipped by all or executed by all, however replicas crash or lose their disks meanwhile.
"""

from collections.abc import Iterable

import msgspec

from tara.protocol import tuples as t
from tara.protocol.principals import is_operator

#: Every such command has it: requests without need not be decoded to be looked through.
MARK = b"tara-skip"
#: Skipped commands that the replicated state remembers, to tell the operator; the newest.
SKIPS_REMEMBERED_MAX = 100

ASKED = "an operator has asked for it to be skipped"
ENDED = "it has ended the process of this replica twice in a row"

_decode = msgspec.msgpack.Decoder(t.Skip).decode


def encode(counter: int, step: int) -> bytes:
    """The payload of a command of the kind `SKIP`."""
    return t.encode(t.Skip(MARK, counter, step))


def is_order(command: t.Command) -> bool:
    """Whether it is an operator's, about a skip. Nobody else's command of this kind has a right to anything."""
    return command.kind == t.SKIP and is_operator(command.principal)


def decode(command: t.Command) -> t.Skip | None:
    """What an operator wants; None: nothing, or it is not an operator who wants it."""
    if not is_order(command):
        return None
    try:
        skip = _decode(command.payload)
    except t.DECODE_ERRORS:
        return None
    return skip if skip.mark == MARK else None


class Barred(Exception):
    """The command must not be executed here; the argument says why."""


class Skips:
    """What a replica knows of commands that are not to be executed. Invariant: `known` has all counters that are in one
    of the other sets, so that looking into one set is enough for all other commands."""

    def __init__(self, barred: Iterable[int] = ()) -> None:
        #: Those that have ended this replica's process.
        self.barred = set(barred)
        #: What operators have ordered about each command, in the order of the log: number of the order, and step.
        self._orders: dict[int, list[tuple[int, int]]] = {}
        self.asked: set[int] = set()
        self.confirmed: set[int] = set()
        #: Those that were skipped: whatever is found in the log about them has been decided.
        self._settled: set[int] = set()
        self.known = set(self.barred)

    def look(self, commands: Iterable[t.Command]) -> set[int]:
        """Look at the next commands of the log, in its order. Returns those whose skip was withdrawn here."""
        withdrawn = set()
        for command in commands:
            skip = decode(command)
            if skip is not None:
                self._orders.setdefault(skip.counter, []).append((command.number, skip.step))
                self._conclude(skip.counter)
                if skip.step == t.WITHDRAW_SKIP and skip.counter not in self.confirmed:
                    withdrawn.add(skip.counter)
        return withdrawn

    def came_early(self, command: t.Command, skip: t.Skip) -> None:
        """This order stands before the command that it is about: it counts for nothing."""
        orders = self._orders.get(skip.counter, [])
        if orders and orders[0] == (command.number, skip.step):
            del orders[0]
            self._conclude(skip.counter)

    def settle(self, counters: Iterable[int]) -> None:
        """The log says that these were skipped when they were executed first."""
        for counter in set(counters) - self._settled:
            self._settled.add(counter)
            self._conclude(counter)

    def unbar(self, counter: int) -> None:
        self.barred.discard(counter)
        self._conclude(counter)

    def is_skipped(self, counter: int) -> bool:
        """Whether a command that is known is skipped; if not, it is barred."""
        if counter in self.confirmed:
            return True
        raise Barred(ASKED if counter in self.asked else ENDED)

    def _conclude(self, counter: int) -> None:
        asked, confirmed = False, counter in self._settled
        for _, step in self._orders.get(counter, []):
            confirmed = confirmed or (asked and step == t.CONFIRM_SKIP)
            asked = step == t.ASK_SKIP or (asked and step == t.CONFIRM_SKIP)
        for held, which in ((asked and not confirmed, self.asked), (confirmed, self.confirmed)):
            (which.add if held else which.discard)(counter)
        self.known = self.barred | self.asked | self.confirmed
