"""Sessions: each command of a client executes exactly once, in the order of its numbers, on every replica.

A session is opened by an ordered command, and its id is that command's counter, so no id is ever used twice. Its
commands execute in number order; one that was ordered too early waits here. Results are kept until the client has
acknowledged them, so a command that is sent again gets the same answer. Sessions expire on a clock that only
ordered requests move. All of this is part of the snapshot: it is replicated state, and a function of the log.

A session may have a name. It never expires, and opening it again gives the same session and the number of its next
command: a client that comes back goes on where any former life of it stopped. Two lives may use it at once, so before
they send numbered commands they agree on them by a claim: the first one of a key wins, and both send what it says.

A session belongs to the principal that opened it (`tara.protocol.principals`). What anybody else sends in it is
refused and changes nothing; only an operator may close it, too, at any time.

An era that begins with a checkpoint of another one has that one's sessions, but not what it did after the checkpoint.
Its counter begins at the next multiple of `ERA_COMMANDS`, so no id that the other era may have handed out since is
handed out again; and a session whose client has results that are lost ends, as if it had expired.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.limits import Limits
from tara.protocol.places import Cell
from tara.protocol.principals import is_gateway, is_operator
from tara.protocol.session_quotas import OVERHEAD_BYTES, SessionQuotas
from tara.protocol.skips import SKIPS_REMEMBERED_MAX, Skips, decode


class ApplicationError(Exception):
    """Raised by an application to refuse a command; the message is the result and must be deterministic."""


class Context:
    """What an application may know about the command that it executes. Equal on all replicas."""

    __slots__ = ("_events", "_owner_of", "clock_ms", "counter", "principal", "session", "time_ms")

    def __init__(self, events: list[t.Event], owner_of: Callable[[int], bytes] = lambda session: b"") -> None:
        #: The number of this command in the order of all commands, from 1.
        self.counter = 0
        #: The agreed time, milliseconds since 1970: never falls.
        self.time_ms = 0
        #: Time as sessions see it, from an arbitrary start: moves by small steps only, so that a stall of the service
        #: does not count. For time-outs of the application's own. Never falls.
        self.clock_ms = 0
        #: The session of the command.
        self.session = 0
        #: Who sent the command or the read, as in `tara.protocol.principals`; when a session expires, its
        #: owner.
        self.principal = b""
        self._events = events
        self._owner_of = owner_of

    @property
    def from_gateway(self) -> bool:
        """Whether the command comes from a container's own gateway, and not from a client."""
        return is_gateway(self.principal)

    def publish(self, event: bytes, session: int = 0) -> None:
        """Send an event to the client of a session (0: to all), beside the results."""
        self._events.append(t.Event(session, self.counter, event, self._owner_of(session) if session else b""))


class Application(Protocol):
    """What the executor needs of `tara.application.StateMachine`."""

    concurrent_snapshot: bool

    def apply(self, command: bytes, context: Context) -> bytes: ...
    def query(self, question: bytes, context: Context) -> bytes: ...
    def snapshot(self) -> Iterator[bytes]: ...
    def restore(self, chunks: Iterable[bytes]) -> None: ...
    def restore_slices(self, chunks: Iterable[bytes]) -> Iterator[None]: ...
    def opened(self, context: Context) -> None: ...
    def closed(self, context: Context) -> None: ...


def call(
    application: Application, query: bool, payload: bytes, context: Context, result_bytes_max: int
) -> tuple[int, bytes]:
    """Let the application execute a command (or answer a read): status and result, whatever it raises. Only a
    `MemoryError` is passed on: other replicas may have more memory, so it cannot be a result."""
    try:
        result = application.query(payload, context) if query else application.apply(payload, context)
    except MemoryError:
        raise
    except BaseException as error:
        # Also what ends a program elsewhere: no signal raises in a container, so the command did.
        return t.FAILED, _message(error)[:result_bytes_max]
    if type(result) is not bytes:
        return t.FAILED, b"the application returned something other than bytes"
    if len(result) > result_bytes_max:
        return t.FAILED, b"the result is too large"
    return t.OK, result


def _message(error: BaseException) -> bytes:
    """What the client is told."""
    if issubclass(type(error), ApplicationError):
        try:
            return str(error).encode(errors="backslashreplace")
        except MemoryError:
            raise
        except BaseException as another:
            error = another
    return raised(error).encode(errors="backslashreplace")


def raised(error: BaseException) -> str:
    """Only the type: a message may contain addresses, and would then differ between replicas. And nothing of the type's
    own making: it could raise, too."""
    return f"the application raised {type.__dict__['__name__'].__get__(type(error))}"


def tell(hook: Callable[[Context], None], context: Context) -> None:
    """Tell the application of a session. What it raises has no consequence, but for a `MemoryError`."""
    try:
        hook(context)
    except MemoryError:
        raise
    except BaseException:
        return


#: The kinds of commands that execute in the order of their numbers.
_NUMBERED = frozenset((t.EXECUTE, t.QUERY, t.CLOSE))
#: Bytes of a session's name.
NAME_BYTES_MAX = 255
#: The numbers of the command counter that belong to one era; at a million commands a second, twelve days' worth.
ERA_COMMANDS = 1 << 40
SKIPPED = b"skipped by an operator"
_FORBIDDEN = b"the session belongs to somebody else"
#: Sessions that are encoded at once.
SESSIONS_PER_PIECE = 50
#: Sessions in one answer: with the longest names, it is still shorter than a frame.
LISTED_MAX = 1_000
_decode_listing = msgspec.msgpack.Decoder(t.ListSessions).decode
_decode_opening = msgspec.msgpack.Decoder(int | str).decode
_decode_claim = msgspec.msgpack.Decoder(t.Claim).decode


class Session(Struct, array_like=True):
    """Invariants: results has only numbers in [acknowledged, next); early only numbers from next on, and `next` itself
    only while its result could not be kept."""

    id: int
    timeout_ms: int
    #: When it was last heard of, on the session clock.
    active_ms: int
    #: The number of its next command to execute.
    next: int = 0
    acknowledged: int = 0
    results: dict[int, t.Result] = {}
    early: dict[int, t.Command] = {}
    #: A session with a name never expires; its time-out is 0.
    name: str = ""
    #: The newest claim of a named session.
    claim: t.Claim | None = None
    #: The principal that opened it: the only one whose commands execute.
    owner: bytes = b""
    #: When it was opened, on the session clock.
    opened_ms: int = 0
    #: What it keeps, as `tara.protocol.session_quotas` counts it.
    results_bytes: int = 0
    early_bytes: int = 0


def _size(kept: t.Command | t.Result) -> int:
    return len(kept.payload) + OVERHEAD_BYTES


def _claim_size(claim: t.Claim | None) -> int:
    return 0 if claim is None else len(claim.value) + OVERHEAD_BYTES


def _owner_of(sessions: dict[int, Session], session: int) -> bytes:
    known = sessions.get(session)
    return b"" if known is None else known.owner


class Outcome(NamedTuple):
    """What came of executing."""

    results: list[t.Result]
    executed: list[t.Command]
    passed_over: list[int]
    events: list[t.Event]


def _canonical(session: Session) -> Session:
    """A copy of it, sorted."""
    return msgspec.structs.replace(
        session, results=dict(sorted(session.results.items())), early=dict(sorted(session.early.items()))
    )


class SessionsState(Struct, array_like=True):
    """The canonical form for snapshots: everything sorted."""

    counter: int
    time_ms: int
    stamp_ms: int
    clock_ms: int
    sessions: list[Session]
    #: The newest commands that were skipped, by their counters.
    skipped: list[int] = []


class CapturedSessions:
    """A `SessionsState` that is encoded piece by piece while the sessions change. A session is copied before its first
    change; `_pending` has those that have not changed and are not encoded yet."""

    __slots__ = ("__weakref__", "_changed", "_ids", "_pending", "_state")

    def __init__(self, state: SessionsState, sessions: dict[int, Session]) -> None:
        """The state is without the sessions."""
        self._state = state
        self._ids = sorted(sessions)
        self._pending = sessions.copy()
        self._changed: dict[int, Session] = {}

    def keep(self, session: Session) -> None:
        """It is about to change."""
        if self._pending.pop(session.id, None) is not None:
            self._changed[session.id] = _canonical(session)

    def pieces(self) -> Iterator[bytes]:
        state, ids = self._state, self._ids
        before = (state.counter, state.time_ms, state.stamp_ms, state.clock_ms)
        yield head_of_list(len(SessionsState.__struct_fields__)) + b"".join(map(t.encode, before))
        yield head_of_list(len(ids))
        for first in range(0, len(ids), SESSIONS_PER_PIECE):
            yield b"".join([self._encoded(id_) for id_ in ids[first : first + SESSIONS_PER_PIECE]])
        yield t.encode(state.skipped)

    def _encoded(self, id_: int) -> bytes:
        session = self._pending.pop(id_, None)
        return t.encode(self._changed.pop(id_) if session is None else _canonical(session))


def head_of_list(count: int) -> bytes:
    """What stands before so many values in MessagePack."""
    if count < 1 << 4:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


class Sessions:
    def __init__(
        self, application: Application, limits: Limits, cell: Cell | None = None, skips: Skips | None = None
    ) -> None:
        """The cell has the counter of the command that the application is executing; it is not cleared here. `Barred`
        is raised before a command that `skips` says must not be executed."""
        self._application = application
        self._cell: Cell = [0] if cell is None else cell
        self._skips = Skips() if skips is None else skips
        #: Commands that were skipped; part of the state.
        self._skipped: list[int] = []
        self._limits = limits
        self._pipeline_max = limits.session_pipeline_max
        self._result_bytes_max = limits.result_bytes_max
        self._sessions: dict[int, Session] = {}
        #: The ids of the sessions that have names.
        self._named: dict[str, int] = {}
        self._quotas = SessionQuotas(limits)
        #: Executed commands; also the id of the newest session at its opening. Never falls.
        self.counter = 0
        #: The agreed time. Never falls.
        self.time_ms = 0
        #: The stamp of the last request that moved the session clock.
        self._stamp_ms = 0
        #: Time as sessions see it, which never falls: what passed between the stamps of successive requests, but not
        #: more than a step each. A stall costs no session its life, and a proposer whose clock was far ahead does not
        #: stop this one.
        self.clock_ms = 0
        #: No session expires before the session clock reaches this.
        self._expiry_ms = 0
        #: What came of executing since it was taken last: results; commands, one for each number that the counter has
        #: taken; the counters of those that were skipped; events.
        self.results: list[t.Result] = []
        self.executed: list[t.Command] = []
        self.passed_over: list[int] = []
        self.events: list[t.Event] = []
        # Not a method of this: it would keep itself, and the application with it, until somebody looks for such rings.
        self._context = Context(self.events, partial(_owner_of, self._sessions))
        #: Captures that may still be drawn.
        self._captures: list[weakref.ref[CapturedSessions]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def take(self) -> "Outcome":
        """What came of executing since the last call."""
        taken = Outcome(self.results.copy(), self.executed, self.passed_over, self.events.copy())
        self.executed, self.passed_over = [], []
        self.results.clear()
        self.events.clear()
        return taken

    @property
    def skipped(self) -> list[int]:
        """The newest commands that were skipped, by their counters."""
        return self._skipped

    def pass_time(self, stamp_ms: int, moves_sessions: bool = True) -> None:
        """A request with this stamp is about to execute. The requests of one partition move the session clock: clocks
        of several proposers differ, and going back and forth between them must not pass for time."""
        step_max = self._limits.session_clock_step_ms_max
        step = stamp_ms - self.time_ms
        if step > 0:
            # The very first stamp sets the clock; later ones move it by steps, so that one bad clock does little.
            self.time_ms += step if self.time_ms == 0 else min(step, step_max)
        if not moves_sessions:
            return
        passed = stamp_ms - self._stamp_ms if self._stamp_ms else 0
        self._stamp_ms = stamp_ms
        if passed <= 0:
            return
        self.clock_ms += min(passed, step_max)
        if self.clock_ms >= self._expiry_ms and self._sessions:
            self._expire()

    def execute(self, command: t.Command) -> None:
        """Execute a command, or answer it from the cache, or keep it until its turn; results go to `results`."""
        if command.kind not in _NUMBERED:
            self._execute_other(command)
            return
        session = self._sessions.get(command.session)
        if session is None:
            self._answer(command, t.EXPIRED, b"")
            return
        if session.owner != command.principal:
            self._execute_strange(session, command)
            return
        if self._captures:
            self._keep(session)
        session.active_ms = self.clock_ms
        if command.acknowledged > session.next and self._is_former(session):
            self._end_lost(session, command)
            return
        freed = self._acknowledge(session, command.acknowledged) if command.acknowledged > session.acknowledged else 0
        number = command.number
        if (
            number == session.next
            and not session.early
            and number < session.acknowledged + self._pipeline_max
            and self._quotas.is_roomy(session)
            and command.kind != t.CLOSE
        ):
            # Nearly always. What it acknowledges makes room for its own result.
            self._run(session, command, freed)
            return
        if freed:
            self._quotas.add_results(session.owner, -freed)
        if number < session.next:
            known = session.results.get(number)
            if known is not None:
                self.results.append(known)
        elif number >= session.acknowledged + self._pipeline_max:
            # It has to come again: another one will never have its number.
            self._answer(command, t.UNACKNOWLEDGED, b"too many commands without an acknowledged result")
        elif number > session.next:
            self._keep_early(session, command)
        elif command.kind == t.CLOSE or (refusal := self._quotas.no_result(session)) is None:
            if session.early:
                self._take_early(session, number)
            self._run(session, command)
        else:
            self._answer(command, t.UNACKNOWLEDGED, refusal.encode())
        if session.early:
            self._run_early(session)

    def _execute_other(self, command: t.Command) -> None:
        """One that has no place in the order of its session's commands."""
        session = self._sessions.get(command.session)
        match command.kind:
            case t.OPEN:
                self._open(command)
            case t.KEEPALIVE:
                if session is not None and session.owner == command.principal:
                    self._keep_alive(session, command.acknowledged)
            case t.SKIP:
                self._answer_skip(command)
            case _ if session is None:
                self._answer(command, t.EXPIRED, b"")
            case t.EXPIRE:
                self._answer(command, t.REJECTED, b"sessions expire by themselves")
            case _ if session.owner != command.principal:
                self._execute_strange(session, command)
            case t.CLAIM:
                self._keep(session)
                session.active_ms = self.clock_ms
                self._claim(session, command)

    def _keep_alive(self, session: Session, acknowledged: int) -> None:
        """Its client has nothing to send, but may have read results since it last did."""
        self._keep(session)
        session.active_ms = self.clock_ms
        if session.acknowledged < acknowledged <= session.next:
            self._quotas.add_results(session.owner, -self._acknowledge(session, acknowledged))
            if session.early:
                self._run_early(session)

    def _keep_early(self, session: Session, command: t.Command) -> None:
        """Until those with lower numbers have come."""
        if command.number in session.early:
            return
        size = _size(command)
        refusal = self._quotas.no_early(session.owner, session.early_bytes, size)
        if refusal is not None:
            self._answer(command, t.UNACKNOWLEDGED, refusal.encode())
            return
        session.early[command.number] = command
        session.early_bytes += size
        self._quotas.add_early(session.owner, size)

    def _take_early(self, session: Session, number: int) -> t.Command | None:
        """The command of this number, if it waits; it does not any more."""
        command = session.early.pop(number, None)
        if command is not None:
            session.early_bytes -= _size(command)
            self._quotas.add_early(session.owner, -_size(command))
        return command

    def _run_early(self, session: Session) -> None:
        """Execute what has waited for its turn. If its result cannot be kept, it has to come again: it would wait for
        an acknowledgement that nothing else may bring."""
        while (command := self._take_early(session, session.next)) is not None:
            refusal = None if command.kind == t.CLOSE else self._quotas.no_result(session)
            if refusal is not None:
                self._answer(command, t.UNACKNOWLEDGED, refusal.encode())
                return
            self._run(session, command)

    def _execute_strange(self, session: Session, command: t.Command) -> None:
        """Somebody else's command. It changes nothing, unless an operator closes the session: that waits for no number,
        and what waits for its turn there does not execute any more."""
        if command.kind != t.CLOSE or not is_operator(command.principal):
            self._answer(command, t.FORBIDDEN, _FORBIDDEN)
            return
        self._keep(session)
        self.counter += 1
        self.executed.append(command)
        self._end(session, command)

    def _is_former(self, session: Session) -> bool:
        """Whether it was opened in another era than this one."""
        return session.id // ERA_COMMANDS != self.counter // ERA_COMMANDS

    def _end_lost(self, session: Session, command: t.Command) -> None:
        """The client has results of commands that this era does not have: it would wait for ever for the next one. A
        session with a name stays, as always; its client asks for the next number when it opens it again."""
        if not session.name:
            self._expire_now(session)
        self._answer(command, t.EXPIRED, b"")
        self._answer_early(session)

    def _answer_early(self, session: Session) -> None:
        """What waits for its turn will not have one. If the session goes on, it keeps less now."""
        for _, late in sorted(session.early.items()):
            self._answer(late, t.EXPIRED, b"")
        if session.id in self._sessions:
            self._quotas.add_early(session.owner, -session.early_bytes)
        session.early.clear()
        session.early_bytes = 0

    def _run(self, session: Session, command: t.Command, freed: int = 0) -> None:
        """`freed` are bytes of results that it has acknowledged, and that are not counted yet."""
        session.next = command.number + 1
        self.executed.append(command)
        context = self._context
        context.counter = self.counter = counter = self.counter + 1
        context.time_ms, context.clock_ms = self.time_ms, self.clock_ms
        context.session, context.principal = session.id, command.principal
        if command.kind == t.CLOSE:
            self._end(session, command)
            return
        self._cell[0] = counter
        if counter in self._skips.known and self._is_skipped():
            status, payload = t.SKIPPED, SKIPPED
        else:
            status, payload = call(
                self._application, command.kind == t.QUERY, command.payload, context, self._result_bytes_max
            )
        result = session.results[command.number] = t.Result(
            session.id, command.number, counter, status, payload, command.principal
        )
        size = len(payload) + OVERHEAD_BYTES
        session.results_bytes += size
        if size != freed:
            self._quotas.add_results(session.owner, size - freed)
        self.results.append(result)

    def _is_skipped(self) -> bool:
        """Whether the command that has just taken its number is skipped. One that is barred here stops the replica."""
        if self.counter not in self._skips.known or not self._skips.is_skipped(self.counter):
            return False
        self._skipped = [*self._skipped, self.counter][-SKIPS_REMEMBERED_MAX:]
        self.passed_over.append(self.counter)
        return True

    def _answer_skip(self, command: t.Command) -> None:
        """An operator's order, in its turn: what it was about has been skipped, or executed, before."""
        skip = decode(command)
        if skip is None:
            self._answer(command, t.FORBIDDEN, b"only an operator has commands skipped")
            return
        if skip.counter in self._skipped:
            self.counter += 1
            self.executed.append(command)
            self._answer(command, t.OK, b"")
        elif skip.counter <= self.counter:
            self._answer(command, t.REJECTED, f"command {skip.counter} has been executed".encode())
        else:
            self._skips.came_early(command, skip)
            self._answer(command, t.REJECTED, f"there is no command {skip.counter} yet".encode())

    def _end(self, session: Session, command: t.Command) -> None:
        """The command closes the session."""
        told = self._close(session, command.principal)
        self._answer(command, *((t.OK, b"") if told else (t.SKIPPED, SKIPPED)))
        self._answer_early(session)

    def read(self, payload: bytes, principal: bytes) -> tuple[int, bytes]:
        """Read the application as it is now, outside the order: status and payload of a result."""
        context = Context([])
        context.counter, context.time_ms, context.clock_ms = self.counter, self.time_ms, self.clock_ms
        context.principal = principal
        try:
            return call(self._application, True, payload, context, self._result_bytes_max)
        except MemoryError:
            # Nothing has changed, and no other replica is asked.
            return t.FAILED, b"the application raised MemoryError"

    def listing(self, payload: bytes) -> tuple[int, bytes]:
        """For an operator: the sessions, as they are now. The payload is a list of `SessionRow`, which begins behind
        the session that the request names."""
        try:
            after = _decode_listing(payload).after
        except t.DECODE_ERRORS:
            return t.REJECTED, b"not a read of sessions"
        ids = sorted(id_ for id_ in self._sessions if id_ > after)[:LISTED_MAX]
        return t.OK, t.encode([self._row(self._sessions[id_]) for id_ in ids])

    def _row(self, session: Session) -> t.SessionRow:
        results, early = session.results.values(), session.early.values()
        return t.SessionRow(
            session.id,
            session.name,
            session.owner,
            session.timeout_ms,
            self.clock_ms - session.opened_ms,
            self.clock_ms - session.active_ms,
            session.next,
            len(results),
            sum([len(result.payload) for result in results]),
            len(early),
            sum([len(command.payload) for command in early]),
        )

    def _answer(self, command: t.Command, status: int, payload: bytes) -> None:
        result = t.Result(command.session, command.number, self.counter, status, payload, command.principal)
        self.results.append(result)

    def _acknowledge(self, session: Session, number: int) -> int:
        """Forget results that the client has. A number beyond what executed is not believed. Returns their bytes: what
        the session keeps is less now, what all keep is the caller's to count."""
        if number >= session.next:
            session.acknowledged = session.next
            session.results.clear()
            freed = session.results_bytes
            session.results_bytes = 0
            return freed
        freed = 0
        for known in range(session.acknowledged, number):
            result = session.results.pop(known, None)
            if result is not None:
                freed += _size(result)
        session.acknowledged = number
        session.results_bytes -= freed
        return freed

    def _open(self, command: t.Command) -> None:
        try:
            opening = _decode_opening(command.payload)
        except t.DECODE_ERRORS:
            self._answer(command, t.REJECTED, b"neither a time-out (an integer) nor a name (a string)")
            return
        if isinstance(opening, str):
            self._open_named(command, opening)
            return
        if is_gateway(command.principal):
            self._end_former(command.principal)
        if (refusal := self._quotas.no_session(command.principal)) is not None:
            self._answer(command, t.FULL, refusal.encode())
            return
        timeout_ms = opening
        limits = self._limits
        timeout_ms = min(max(timeout_ms, limits.session_timeout_ms_min), limits.session_timeout_ms_max)
        self.counter += 1
        self.executed.append(command)
        if self._is_skipped():
            self._answer(command, t.SKIPPED, SKIPPED)
            return
        session = Session(self.counter, timeout_ms, self.clock_ms, owner=command.principal, opened_ms=self.clock_ms)
        self._add(session)
        self._expiry_ms = min(self._expiry_ms, session.active_ms + timeout_ms)
        self._tell(session, self._application.opened, command.principal)
        self._answer(command, t.OK, msgspec.msgpack.encode((session.id, timeout_ms)))

    def _end_former(self, gateway: bytes) -> None:
        """A gateway has one session. Others are of its former lives, or of openings that it did not wait for: nobody
        acknowledges what they keep, and while they do it counts as the gateway's."""
        for session in sorted(self._sessions.values(), key=lambda session: session.id):
            if session.owner == gateway:
                self._expire_now(session)

    def _open_named(self, command: t.Command, name: str) -> None:
        """Open the session of this name, or find it: its id, no time-out, and the number of its next command."""
        session = self._sessions.get(self._named.get(name, 0))
        if session is None:
            if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
                self._answer(command, t.REJECTED, f"a name has 1 to {NAME_BYTES_MAX} bytes".encode())
                return
            if (refusal := self._quotas.no_session(command.principal)) is not None:
                self._answer(command, t.FULL, refusal.encode())
                return
            self.counter += 1
            self.executed.append(command)
            if self._is_skipped():
                self._answer(command, t.SKIPPED, SKIPPED)
                return
            session = Session(
                self.counter, 0, self.clock_ms, name=name, owner=command.principal, opened_ms=self.clock_ms
            )
            self._add(session)
            self._tell(session, self._application.opened, command.principal)
            self._answer(command, t.OK, msgspec.msgpack.encode((session.id, 0, 0)))
        elif session.owner != command.principal:
            self._answer(command, t.FORBIDDEN, _FORBIDDEN)
        else:
            self._tell_again(command, (session.id, 0, session.next))

    def _add(self, session: Session) -> None:
        """It is there from now on, with all that it keeps."""
        self._sessions[session.id] = session
        if session.name:
            self._named[session.name] = session.id
        self._quotas.open(session.owner)
        self._quotas.add_results(session.owner, session.results_bytes)
        self._quotas.add_early(session.owner, session.early_bytes)
        self._quotas.add_claim(session.owner, _claim_size(session.claim))

    def _remove(self, session: Session) -> None:
        self._quotas.add_results(session.owner, -session.results_bytes)
        self._quotas.add_early(session.owner, -session.early_bytes)
        self._quotas.add_claim(session.owner, -_claim_size(session.claim))
        self._quotas.close(session.owner)
        del self._sessions[session.id]
        if session.name:
            del self._named[session.name]

    def _claim(self, session: Session, command: t.Command) -> None:
        """Decide what the key stands for, unless that is decided; say what it stands for."""
        try:
            claim = _decode_claim(command.payload)
        except t.DECODE_ERRORS:
            self._answer(command, t.REJECTED, b"not a claim")
            return
        known = session.claim
        if not session.name:
            self._answer(command, t.REJECTED, b"only a session with a name has claims")
            return
        if known is not None and claim.key < known.key:
            self._answer(command, t.REJECTED, f"claim {claim.key} is older than claim {known.key}".encode())
            return
        if known is None or claim.key > known.key:
            growth = _claim_size(claim) - _claim_size(known)
            refusal = self._quotas.no_claim(session.owner, growth) if growth > 0 else None
            if refusal is not None:
                self._answer(command, t.REJECTED, refusal.encode())
                return
            known = session.claim = t.Claim(claim.key, claim.value, session.next)
            self._quotas.add_claim(session.owner, growth)
        self._tell_again(command, msgspec.structs.replace(known, next=session.next))

    def _tell_again(self, command: t.Command, known: object) -> None:
        """An answer that nothing executed for: it has no counter."""
        payload = msgspec.msgpack.encode(known)
        self.results.append(t.Result(command.session, command.number, 0, t.OK, payload, command.principal))

    def _close(self, session: Session, principal: bytes) -> bool:
        """Whether the application was told; it is not if that is skipped."""
        # What the application publishes to the session now has an owner.
        told = not self._is_skipped()
        if told:
            self._tell(session, self._application.closed, principal)
        self._remove(session)
        return told

    def _expire(self) -> None:
        """End the sessions whose time is up, oldest first; each is an event of its own in the order."""
        for session in sorted(self._sessions.values(), key=lambda session: session.id):
            if session.timeout_ms and session.active_ms + session.timeout_ms <= self.clock_ms:
                self._expire_now(session)
        sessions = self._sessions.values()
        deadlines = (session.active_ms + session.timeout_ms for session in sessions if session.timeout_ms)
        self._expiry_ms = min(deadlines, default=0)

    def _expire_now(self, session: Session) -> None:
        self.counter += 1
        noted = len(self.executed)
        self.executed.append(t.Command(session.id, session.next, 0, b"", t.EXPIRE, session.owner))
        if not self._close(session, session.owner):
            self.executed[noted] = t.Command(session.id, session.next, 0, SKIPPED, t.EXPIRE, session.owner)

    def _tell(self, session: Session, hook: Callable[[Context], None], principal: bytes) -> None:
        context = self._context
        context.counter, context.time_ms, context.clock_ms = self.counter, self.time_ms, self.clock_ms
        context.session, context.principal = session.id, principal
        self._cell[0] = self.counter
        tell(hook, context)

    def _keep(self, session: Session) -> None:
        """It is about to change: captures have it as it is."""
        if self._captures:
            self._captures = [capture for capture in self._captures if capture() is not None]
            for known in self._captures:
                capture = known()
                if capture is not None:
                    capture.keep(session)

    def state(self) -> SessionsState:
        sessions = [_canonical(session) for _, session in sorted(self._sessions.items())]
        return SessionsState(self.counter, self.time_ms, self._stamp_ms, self.clock_ms, sessions, self._skipped)

    def capture(self) -> CapturedSessions:
        """The state of this moment, to be encoded while it changes."""
        state = SessionsState(self.counter, self.time_ms, self._stamp_ms, self.clock_ms, [], self._skipped)
        captured = CapturedSessions(state, self._sessions)
        self._captures.append(weakref.ref(captured))
        return captured

    def restore(self, state: SessionsState) -> None:
        self.counter, self.time_ms = state.counter, state.time_ms
        self._stamp_ms, self.clock_ms = state.stamp_ms, state.clock_ms
        self._skipped = state.skipped
        self._sessions.clear()
        self._named, self._captures = {}, []
        self._quotas = SessionQuotas(self._limits)
        for session in state.sessions:
            self._add(session)
        self._expiry_ms = 0
