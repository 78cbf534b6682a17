"""Decides whether a history is linearizable when the order of execution is known: that order has to explain it.

Theory of operation. The decided log is run on one fresh copy of the application, request by request, without a network
or a fault. The history is linearizable in that order if

* every operation that was executed in order has the result that the copy gives, and comes after all operations that
  returned before it was called;
* every read that was answered outside the order has the answer that the copy gives after some prefix of the log. A
  prefix is possible if it holds all that returned before the read was sent, and nothing that was called after it
  was answered; and reads that do not overlap see the log grow.

For each read the shortest possible prefix is taken, in the order of sending: a longer one would only narrow the
choice of those that follow. This costs as many steps as there are operations, whatever the application does, while a
search without the log is exponential. It asks for more than linearizability, namely that order and no other; but a
system that answers by executing its log owes us that order.
"""

from collections.abc import Callable
from itertools import pairwise

from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.limits import Limits
from tara.protocol.sessions import Sessions
from tara.protocol.skips import MARK, Skips
from tara.simulator.checks.linearizability import Operation
from tara.simulator.checks.violation import Violation
from tara.simulator.workload import Audited, operation_of, wrap

Check = Callable[[Audited], None]
#: Who a client is.
PrincipalOf = Callable[[int], bytes]


class Place(Struct, frozen=True):
    """Where an operation was executed: the request, the place in the order of all operations, and what came of it."""

    request: int
    rank: int
    result: tuple[int, bytes]


class ReferenceCopy:
    """The application, run alone."""

    def __init__(self, limits: Limits, make: Callable[[], Audited], log: list[t.Request]) -> None:
        self._partitions = limits.partitions
        self.application = make()
        self.sessions = Sessions(self.application, limits, skips=_skips_of(log))
        self.requests = 0
        self.places: dict[int, Place] = {}

    def execute(self, request: t.Request) -> None:
        sessions = self.sessions
        if request.source >= 0:
            sessions.pass_time(request.time, self.requests % self._partitions == 0)
            for command in t.decode_commands(request.body):
                sessions.execute(command)
        # Those of commands that did not execute say nothing about those that did, and may have their numbers.
        results = {
            (result.session, result.number): result
            for result in sessions.results
            if result.status in (t.OK, t.FAILED, t.SKIPPED)
        }
        for command in sessions.executed:
            # An empty one keeps the number of a command that was given up, and asks nothing.
            if command.kind in (t.EXECUTE, t.QUERY) and command.payload:
                result = results[command.session, command.number]
                place = Place(self.requests, len(self.places), (result.status, result.payload))
                self.places[operation_of(command.payload)] = place
        sessions.executed.clear()
        sessions.results.clear()
        sessions.events.clear()
        self.requests += 1


def _skips_of(log: list[t.Request]) -> Skips:
    """What operators have had skipped."""
    skips = Skips()
    for request in log:
        if MARK in request.body:
            skips.look(t.decode_commands(request.body))
    return skips


def judge(
    history: list[Operation],
    log: list[t.Request],
    limits: Limits,
    make: Callable[[], Audited],
    check: Check,
    principal: PrincipalOf,
) -> None:
    """Raise a violation unless the log explains the history. The call of an operation is ("execute" or "query",
    payload, id); its result is (status, payload). `check` sees the copy after every request."""
    copy = ReferenceCopy(limits, make, log)
    for request in log:
        copy.execute(request)
        check(copy.application)
    ordered = [operation for operation in history if _id(operation) in copy.places]
    _check_results(history, copy.places)
    _check_order(ordered, copy.places)
    reads = [operation for operation in history if _is_unordered(operation, copy.places)]
    _place_reads(
        reads, _ranges(reads, ordered, copy.places, len(log)), log, ReferenceCopy(limits, make, log), principal
    )


def _id(operation: Operation) -> int:
    number: int = operation.call[2]
    return number


def _is_unordered(operation: Operation, places: dict[int, Place]) -> bool:
    return operation.returned is not None and operation.call[0] == "query" and _id(operation) not in places


def _check_results(history: list[Operation], places: dict[int, Place]) -> None:
    for operation in history:
        if operation.returned is None or _is_unordered(operation, places):
            continue
        place = places.get(_id(operation))
        if place is None:
            raise Violation("linearizable", f"{operation} was answered, but never executed")
        if place.result != operation.result:
            raise Violation("linearizable", f"{operation}: run alone, the application says {place.result}")


def _check_order(ordered: list[Operation], places: dict[int, Place]) -> None:
    """Whoever was called after another one had returned comes after it."""
    by_rank = sorted(ordered, key=lambda operation: places[_id(operation)].rank)
    # From the end: the earliest return among those that come after.
    earliest: Operation | None = None
    for operation in reversed(by_rank):
        if earliest is not None and earliest.returned is not None and earliest.returned < operation.invoked:
            raise Violation(
                "linearizable", f"{earliest} had returned before {operation} was called, but comes after it"
            )
        if operation.returned is not None and (
            earliest is None or earliest.returned is None or operation.returned < earliest.returned
        ):
            earliest = operation


def _ranges(
    reads: list[Operation], ordered: list[Operation], places: dict[int, Place], end: int
) -> dict[int, tuple[int, int]]:
    """The shortest and the longest prefix of the log that each read may have seen, as far as others in the order
    tell."""
    ranges = {}
    for read in reads:
        assert read.returned is not None
        low, high = 0, end
        for operation in ordered:
            request = places[_id(operation)].request
            if operation.returned is not None and operation.returned < read.invoked:
                low = max(low, request + 1)
            elif operation.invoked > read.returned:
                high = min(high, request)
        ranges[_id(read)] = (low, high)
    return ranges


def _place_reads(
    reads: list[Operation],
    ranges: dict[int, tuple[int, int]],
    log: list[t.Request],
    copy: ReferenceCopy,
    principal: PrincipalOf,
) -> None:
    fitting: dict[int, list[int]] = {_id(read): [] for read in reads}
    for length in range(len(log) + 1):
        for read in reads:
            low, high = ranges[_id(read)]
            if low <= length <= high and _read(copy, read, principal) == read.result:
                fitting[_id(read)].append(length)
        if length < len(log):
            copy.execute(log[length])
    seen: list[tuple[Operation, int]] = []
    for read in sorted(reads, key=lambda operation: operation.invoked):
        assert read.returned is not None
        low = max((length for other, length in seen if (other.returned or 0) < read.invoked), default=0)
        longer = [length for length in fitting[_id(read)] if length >= low]
        if not longer:
            raise Violation("linearizable", f"{read}: no state of its time, from {ranges[_id(read)]}, says so")
        seen.append((read, longer[0]))


def _read(copy: ReferenceCopy, read: Operation, principal: PrincipalOf) -> tuple[int, bytes]:
    assert isinstance(read.client, int)
    return copy.sessions.read(wrap(_id(read), read.call[1]), principal(read.client))


def complete_log(known: dict[int, t.Request], begin: int = 0) -> list[t.Request]:
    """The log from its beginning; a violation if there is a hole in it."""
    indexes = sorted(known)
    holes = [first for first, second in pairwise([begin - 1, *indexes]) if second != first + 1]
    if holes:
        raise Violation("agreement", f"nobody executed the request after {holes[0]}, but later ones")
    return [known[index] for index in indexes]
