"""`tara replay`: the application as it was when a command had executed, rebuilt from the decided log.

A row of the log has everything that the application was told: the command or the end of a session, the counter, both
clocks. So executing the rows again gives the state, and the results can be compared: with those that are in the log (is
the application deterministic? does a new version answer differently?), or with those of another application (what would
have come of it?). Where the log no longer has its beginning, the oldest base that it joins takes its place; and where
only the state is wanted, the newest base before it, because that is the shortest way.
Sessions and the protocol are not replayed: what is in the log was executed, in that order.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Struct

from tara.application import Get, StateMachine
from tara.configuration.state import ClusterState, StateFile
from tara.named import application_of
from tara.operations.log_text import describe, readable
from tara.operations.rebuilding import KEY_VALUE, app_of, sources_in, uninterrupted
from tara.protocol import tuples as t
from tara.protocol.errors import BaseUnreadable, TaraError
from tara.protocol.execution import ExecutionState
from tara.protocol.limits import Limits
from tara.protocol.sessions import SKIPPED, Context, call, tell
from tara.protocol.state_digest import digest_of
from tara.storage.base_format import BaseError, StoredBase, list_bases, read_base
from tara.storage.log_blocks import LogBounds
from tara.storage.log_reader import LogReader, best_log

#: Differences that are listed; all are counted.
LISTED_MAX = 100
_COLUMNS = ("counter", "session", "kind", "command", "status", "result", "time_ms", "clock_ms", "principal")


class ReplayError(TaraError):
    """A state that cannot be rebuilt."""


class Difference(Struct, frozen=True, kw_only=True):
    """A command whose results are not equal."""

    counter: int
    session: int
    kind: str
    command: Any
    #: What each one answered, as [status, result]; those that were not asked for are left out.
    recorded: list[Any] | None = None
    replayed: list[Any]
    against: list[Any] | None = None


class State(Struct, frozen=True, kw_only=True):
    """An application as of the command that was asked for."""

    app: str
    digest: str
    bytes: int
    #: What the read gives, as [status, result].
    answer: list[Any] | None = None


class ReplayReport(Struct, frozen=True, kw_only=True):
    #: The last command that is in the state, and the agreed time then.
    to: int
    time_ms: int
    #: Where it began: behind this command, with this base; both 0: at the very beginning.
    began_after: int
    base: int
    commands: int
    state: State
    against: State | None = None
    #: Commands whose results differ, and the first few of them; None if nothing was compared.
    differing: int | None = None
    differences: list[Difference] = []


class ReplayOrder(Struct, frozen=True, kw_only=True):
    """What is to be replayed."""

    #: The last command; None: the last one in the log.
    to: int | None = None
    #: By default what the cluster executes.
    app: str | None = None
    #: Another application that gets the same commands.
    against: str | None = None
    #: Compare with the results in the log.
    diff: bool = False
    #: Of the key-value application the value of a key; of others whatever they make of it.
    query: str | None = None


class _Beginning(NamedTuple):
    """The state as of a command; without a base, an empty one."""

    counter: int
    time_ms: int
    clock_ms: int
    base: StoredBase | None = None


class _Machine:
    """An application, and the context in which it executes rows."""

    def __init__(self, app: str, beginning: _Beginning, result_bytes_max: int) -> None:
        self.app = app
        self._application: StateMachine = application_of(app)()
        self._events: list[t.Event] = []
        self._context = Context(self._events)
        self._move(beginning.counter, beginning.time_ms, beginning.clock_ms, 0, b"")
        self._result_bytes_max = result_bytes_max
        if beginning.base is not None:
            try:
                self._application.restore(beginning.base.chunks())
            except BaseUnreadable as error:
                raise ReplayError(str(error)) from error
            except Exception as error:
                raise ReplayError(f"{app}: cannot restore {beginning.base.path}: {error!r}") from error

    def _move(self, counter: int, time_ms: int, clock_ms: int, session: int, principal: bytes) -> None:
        context = self._context
        context.counter, context.time_ms, context.clock_ms = counter, time_ms, clock_ms
        context.session, context.principal = session, principal

    def execute(
        self, counter: int, session: int, kind: int, command: bytes, time_ms: int, clock_ms: int, principal: bytes
    ) -> tuple[int, bytes] | None:
        """Status and result; None for what has no result of the application."""
        self._events.clear()
        # A session's id is the counter of the command that opened it.
        self._move(counter, time_ms, clock_ms, counter if kind == t.OPEN else session, principal)
        if kind in (t.EXECUTE, t.QUERY):
            return call(self._application, kind == t.QUERY, command, self._context, self._result_bytes_max)
        tell(self._application.opened if kind == t.OPEN else self._application.closed, self._context)
        return None

    def state(self, query: str | None, key_value: bool) -> State:
        chunks = list(self._application.snapshot())
        answer = None
        if query is not None:
            payload = msgspec.msgpack.encode(Get(query)) if key_value else query.encode()
            self._context.session, self._context.principal = 0, b""
            found = call(self._application, True, payload, self._context, self._result_bytes_max)
            answer = readable(t.QUERY, *found, key_value)
        return State(app=self.app, digest=digest_of(b"", chunks).hex(), bytes=sum(map(len, chunks)), answer=answer)


def replay(
    data_dir: Path, request: ReplayOrder, on_progress: Callable[[int], None] = lambda count: None
) -> ReplayReport:
    """Rebuild the state, and compare what is to be compared. `on_progress` is told how many more commands are done."""
    with uninterrupted():
        return _replay(data_dir, request, on_progress)


def _replay(data_dir: Path, request: ReplayOrder, on_progress: Callable[[int], None]) -> ReplayReport:
    cluster = StateFile(data_dir).read()
    log = best_log(data_dir)
    bounds = log.bounds()
    to = bounds.end - 1 if request.to is None else request.to
    recorded_by = app_of(cluster)
    app = request.app or recorded_by
    compared = request.diff or request.against is not None
    beginning = _beginning(data_dir, cluster, bounds, to, shortest=not compared and app == recorded_by)
    # Whatever executes them now, the commands were made for this one.
    key_value = recorded_by == KEY_VALUE
    bytes_max = cluster.fixed.get("result_bytes_max", Limits().result_bytes_max)
    machine = _Machine(app, beginning, bytes_max)
    other = _Machine(request.against, beginning, bytes_max) if request.against else None
    differing = 0
    differences: list[Difference] = []
    time_ms = beginning.time_ms
    for counter, session, kind, command, status, result, time_ms, clock_ms, principal in _rows(
        log, beginning.counter + 1, to + 1, on_progress
    ):
        if status == t.SKIPPED or (kind == t.EXPIRE and command == SKIPPED) or kind == t.SKIP:
            # No replica has executed it.
            continue
        replayed = machine.execute(counter, session, kind, command, time_ms, clock_ms, principal)
        against = other.execute(counter, session, kind, command, time_ms, clock_ms, principal) if other else None
        if replayed is None:
            continue
        recorded = (status, result) if request.diff else None
        if recorded in (None, replayed) and against in (None, replayed):
            continue
        differing += 1
        if len(differences) < LISTED_MAX:
            row = {"counter": counter, "session": session, "kind": kind, "command": command}
            differences.append(_difference(row, key_value, recorded, replayed, against))
    return ReplayReport(
        to=to,
        time_ms=time_ms,
        began_after=beginning.counter,
        base=beginning.base.id.number if beginning.base is not None else 0,
        commands=to - beginning.counter,
        state=machine.state(request.query, key_value),
        against=other.state(request.query, key_value) if other else None,
        differing=differing if compared else None,
        differences=differences,
    )


def _rows(
    log: LogReader, start: int, end: int, on_progress: Callable[[int], None]
) -> Iterator[tuple[int, int, int, bytes, int, bytes, int, int, bytes]]:
    for batch in log.batches(start, end):
        yield from zip(*(_values(batch, name) for name in _COLUMNS), strict=True)
        on_progress(batch.num_rows)


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    return batch.column(name).to_pylist()


def _difference(
    row: dict[str, Any],
    key_value: bool,
    recorded: tuple[int, bytes] | None,
    replayed: tuple[int, bytes],
    against: tuple[int, bytes] | None,
) -> Difference:
    described = describe(row | {"status": t.OK, "result": b"\xc0"}, key_value)

    def shown(answer: tuple[int, bytes] | None) -> list[Any] | None:
        return None if answer is None else readable(row["kind"], *answer, key_value)

    return Difference(
        counter=row["counter"],
        session=row["session"],
        kind=described["kind"],
        command=described["command"],
        recorded=shown(recorded),
        replayed=shown(replayed) or [],
        against=shown(against),
    )


def _beginning(data_dir: Path, cluster: ClusterState, bounds: LogBounds, to: int, shortest: bool) -> _Beginning:
    """The very beginning if the log has it, else the oldest base that the log joins; or what leads to the state in the
    shortest way. An error that tells what can be rebuilt if `to` is not among it."""
    last = bounds.end - 1
    beginnings = [found for found in _bases(data_dir, cluster) if bounds.first - 1 <= found.counter <= last]
    if bounds.first == 1 and not cluster.threshold:
        beginnings.append(_Beginning(0, 0, 0))
    if not beginnings:
        raise ReplayError(
            f"{data_dir}: the log begins with command {bounds.first}, and no base joins it: that is too little"
        )
    oldest = min(beginnings, key=lambda found: found.counter)
    if not oldest.counter <= to <= last:
        why = "" if oldest.base is None else f" (the log begins with {bounds.first}, the oldest base joins it)"
        raise ReplayError(
            f"command {to}: out of range; in {data_dir} the states of commands {oldest.counter} to {last} can be "
            f"rebuilt{why}"
        )
    before = [found for found in beginnings if found.counter <= to]
    return max(before, key=lambda found: found.counter) if shortest else oldest


def _bases(data_dir: Path, cluster: ClusterState) -> Iterator[_Beginning]:
    """Those of all replicas that are intact."""
    for path in sorted(path for source in sources_in(cluster, data_dir) for path in list_bases(source.bases)):
        try:
            base = read_base(path, cluster.cluster, cluster.era)
        except (OSError, BaseError):
            # Dropped meanwhile, or damaged: another one is as good.
            continue
        sessions = msgspec.msgpack.decode(base.state, type=ExecutionState).sessions
        yield _Beginning(sessions.counter, sessions.time_ms, sessions.clock_ms, base)
