"""One copy of the application, and what executing decided requests makes of it.

Executors have one, and so has whoever executes a log again: the state after execution number n is a function of the
requests before it, wherever they are executed. The digest says so: it runs over all requests and results since the
era began, interval by interval, and replicas compare it at every checkpoint. It notices what two replicas answered
differently, not what they hold differently without an answer that shows it; bases are compared for that.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import chain, count
from operator import is_
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from tara.protocol import depth
from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.limits import Limits
from tara.protocol.places import CELLS, EXECUTED, EXECUTING, Cell
from tara.protocol.progress import SourceProgress, note_all
from tara.protocol.sessions import Application, Sessions, SessionsState, head_of_list, raised
from tara.protocol.skips import Barred, Skips
from tara.protocol.state_digest import DIGEST_BYTES, DrawnDigest, digest_of

_encode = msgspec.msgpack.Encoder().encode
#: What a request takes in the log beside its commands and results, about.
REQUEST_BYTES = 48


class ExecutionState(Struct, array_like=True):
    """The protocol's part of a base; canonical, like the application's part."""

    next: int
    progress: list[list[tuple[int, int, list[int]]]]
    sessions: SessionsState
    #: The running digest at this checkpoint.
    digest: bytes = b""
    #: What the log has got since the era began, see `Execution.bytes`.
    bytes: int = 0


class RunningDigest:
    """Over requests and results, however they are cut into runs. Invariant: `last` is the digest at the last
    checkpoint, and the rest is what came since."""

    def __init__(self, last: bytes = b"") -> None:
        self._begin(last)

    def _begin(self, last: bytes) -> None:
        self.last = last
        self._bodies, self._results, self._counters = (blake2b(digest_size=DIGEST_BYTES) for _ in range(3))

    def add(self, bodies: bytes, results: list[t.Result], counters: list[int]) -> int:
        """`bodies` are those of the requests, one after the other. Returns the length of the results."""
        encoded = _encode_each(results)
        self._bodies.update(bodies)
        self._results.update(encoded)
        self._counters.update(array("Q", counters).tobytes())
        return len(encoded)

    def close(self) -> bytes:
        """The digest at a checkpoint; the next interval begins."""
        parts = (self.last, self._bodies.digest(), self._results.digest(), self._counters.digest())
        self._begin(blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest())
        return self.last


class Run(Struct, gc=False):
    """What came of executing some requests."""

    executed: t.Executed
    #: What clients are told: also what the commands of a request answered that stand before the one that failed.
    results: list[t.Result]
    events: list[t.Event]
    #: Why the request behind these could not be executed; empty: it could, or there was none.
    failure: str = ""


class _Trace(NamedTuple):
    """Per request that was executed."""

    #: How many results there were then.
    ends: list[int]
    #: The agreed time, the command counter and the clock of the sessions.
    times: list[int]
    counters: list[int]
    clocks: list[int]


class Execution:
    def __init__(
        self,
        make: Callable[[], Application],
        limits: Limits,
        sources: int,
        cell: Cell | None = None,
        skips: Skips | None = None,
    ) -> None:
        """At the very beginning, with a new application."""
        self.application = make()
        self._limits = limits
        self._cell: Cell = array("Q", [0] * CELLS) if cell is None else cell
        self.skips = Skips() if skips is None else skips
        self.sessions = Sessions(self.application, limits, self._cell, self.skips)
        #: The executed requests of each source, per partition.
        self.progress = [[SourceProgress() for _ in range(sources)] for _ in range(limits.partitions)]
        #: The next execution number.
        self.next = 0
        #: What requests and their results take in the log, since the era began and up to the last checkpoint: equal
        #: wherever equally much was executed. A no-op counts, too: it is written, and executed again.
        self.bytes = self._bytes_before = 0
        self._digest = RunningDigest()
        #: The last checkpoint that it came by.
        self.checkpoint = t.CheckpointId(0, b"")

    def execute(self, requests: list[t.Request]) -> Run:
        """Execute a run of requests, up to the first one that cannot be executed. A run does not go across a
        checkpoint."""
        sessions, partitions = self.sessions, self._limits.partitions
        execute, pass_time, results = sessions.execute, sessions.pass_time, sessions.results
        first, counter, trace = self.next, sessions.counter, _Trace([], [], [], [])
        ends, times, counters, clocks = trace
        time_ms, clock_ms, passed_ms = sessions.time_ms, sessions.clock_ms, -1
        carried: list[list[t.Command]] = []
        failure = ""
        former = depth.enter()
        try:
            carried = t.commands_of(requests)
            for number, request, commands in zip(count(first), requests, carried, strict=False):
                if request.source >= 0 and request.time != passed_ms:
                    pass_time(request.time, number % partitions == 0)
                    time_ms, clock_ms = sessions.time_ms, sessions.clock_ms
                    # That it is so late again changes nothing, and one proposal has many requests.
                    passed_ms = request.time if time_ms >= request.time and partitions == 1 else -1
                for command in commands:
                    execute(command)
                ends.append(len(results))
                times.append(time_ms)
                counters.append(sessions.counter)
                clocks.append(clock_ms)
        except MemoryError as error:
            failure = raised(error)
        except Barred as barred:
            failure = str(barred)
        finally:
            self._cell[EXECUTING] = 0
            depth.leave(former)
        return self._conclude(requests[: len(clocks)], first, counter, carried, trace, failure)

    def _conclude(
        self,
        done: list[t.Request],
        first: int,
        counter: int,
        carried: list[list[t.Command]],
        trace: "_Trace",
        failure: str,
    ) -> Run:
        sessions, partitions = self.sessions, self._limits.partitions
        for turn in range(partitions):
            note_all(self.progress[(first + turn) % partitions], done[turn::partitions])
        self.next += len(done)
        bodies = b"".join([request.body for request in done])
        if sessions.counter > self._cell[EXECUTED]:
            self._cell[EXECUTED] = sessions.counter - bool(failure)
        taken = sessions.take()
        executed, results, skipped, events = taken.executed, taken.results, taken.passed_over, taken.events
        ends, times, counters, clocks = trace
        if failure:
            # What came before the command that failed is as good as ever. What it did itself is not; and the log and
            # the digest have whole requests.
            events = [event for event in events if event.counter < sessions.counter]
            end = counters[-1] if done else counter
            executed, results = executed[: end - counter], results[: ends[-1] if done else 0]
            skipped = [known for known in skipped if known <= end]
        self.bytes += len(bodies) + self._digest.add(bodies, results, counters) + REQUEST_BYTES * len(done)
        if done and self.next % self._limits.checkpoint_interval == 0:
            # At once: what follows is of the next interval, whoever executes it.
            self.checkpoint = t.CheckpointId(self.next // self._limits.checkpoint_interval, self._digest.close())
            self._bytes_before = self.bytes
        references = _references(executed, list(chain.from_iterable(carried[: len(done)])))
        run = t.Executed(first, done, results, ends, times, counter, counters, references, skipped, clocks)
        return Run(run, taken.results, events, failure)

    @property
    def bytes_since(self) -> int:
        """What the log has got since the last checkpoint."""
        return self.bytes - self._bytes_before

    def replay(self, first: int, requests: list[t.Request], skipped: Iterable[int]) -> Run:
        """Execute again what was executed before, here or elsewhere, from where this is."""
        if first > self.next:
            raise NodeHalted(f"requests [{self.next}, {first}) are missing where requests are executed again")
        self.skips.settle(skipped)
        return self.execute(requests[self.next - first :])

    def state(self) -> ExecutionState:
        """At a checkpoint."""
        return ExecutionState(
            self.next,
            self._progress(),
            self.sessions.state(),
            self._digest.last,
            self.bytes,
        )

    def _progress(self) -> list[list[tuple[int, int, list[int]]]]:
        return [
            [(progress.epoch, progress.low, sorted(progress.early)) for progress in partition]
            for partition in self.progress
        ]

    def capture(self) -> Iterator[bytes]:
        """The same, encoded piece by piece while it changes: the pieces, one after the other, are its encoding."""
        first = head_of_list(len(ExecutionState.__struct_fields__)) + _encode(self.next) + _encode(self._progress())
        last = _encode(self._digest.last) + _encode(self.bytes)
        return chain((first,), self.sessions.capture().pieces(), (last,))

    def restore(self, state: ExecutionState) -> None:
        """The protocol's part of a base; the application restores its own."""
        self.sessions.restore(state.sessions)
        self.next, self.bytes, self._bytes_before = state.next, state.bytes, state.bytes
        self.progress = progress_of(state)
        self._digest = RunningDigest(state.digest)
        self.checkpoint = t.CheckpointId(self.next // self._limits.checkpoint_interval, state.digest)

    def copy_progress(self) -> list[list[SourceProgress]]:
        """Per partition, and source."""
        return [[SourceProgress(s.epoch, s.low, set(s.early)) for s in sources] for sources in self.progress]

    def digest(self) -> bytes:
        """Of the whole replicated state: equal wherever equally much was executed."""
        return digest_of(_encode(self.sessions.state()), self.application.snapshot())

    def capture_digest(self) -> DrawnDigest:
        """The same, to be drawn while the state changes."""
        chunks = self.application.snapshot()
        if not self.application.concurrent_snapshot:
            chunks = iter(list(chunks))
        return DrawnDigest(chain(self.sessions.capture().pieces(), chunks))


def progress_of(state: ExecutionState) -> list[list[SourceProgress]]:
    return [[SourceProgress(epoch, low, set(early)) for epoch, low, early in sources] for sources in state.progress]


def _encode_each(results: list[t.Result]) -> bytes:
    """One after the other: as a list without its head, which depends on how many they are."""
    count = len(results)
    return _encode(results)[1 if count < 1 << 4 else 3 if count < 1 << 16 else 5 :]


def _references(executed: list[t.Command], commands: list[t.Command]) -> list[int | t.Command] | None:
    """Executed commands as `Executed.commands`."""
    if len(executed) == len(commands) and all(map(is_, executed, commands)):
        # Nearly always. An equal one may have come before, and have waited for this request.
        return None
    places: dict[int, Any] = {id(command): place for place, command in enumerate(commands)}
    return [places.get(id(command), command) for command in executed]
