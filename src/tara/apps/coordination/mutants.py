"""Mutants of the coordination service's front ends, for `tara sim mutants`."""

from collections import deque
from collections.abc import Callable, Iterator

from tara.apps.coordination import commands, service
from tara.apps.coordination.gateway.connection import Connection
from tara.apps.coordination.gateway.front_end import FrontEnd, Write
from tara.apps.coordination.gateway.notifications import Notifications
from tara.apps.coordination.gateway.pressure import Pressure
from tara.apps.coordination.gateway.sessions import Sessions
from tara.apps.coordination.gateway.watches import Kind, Watches
from tara.apps.coordination.service import CoordinationService
from tara.apps.coordination.tree import Change
from tara.protocol import tuples as t
from tara.protocol.sessions import Context
from tara.simulator.mutants.registry import mutant, nothing, replace

APP = "coordination"


@mutant("events leave before answers that show what they tell of", app=APP)
def answers_before_events() -> Iterator[None]:
    original = FrontEnd.respond

    def respond(self: FrontEnd, now_s: float) -> None:
        happened: deque[tuple[int, Callable[[], None]]] = deque(self._happened)
        self._happened.clear()
        original(self, now_s)
        self._happened.extend(happened)
        while self._happened:
            self._happened.popleft()[1]()

    with replace(FrontEnd, "respond", respond):
        yield


@mutant("a read waits for the writes before it", app=APP)
def reads_overtake_writes() -> Iterator[None]:
    original = FrontEnd._request

    def request(self: FrontEnd, connection: Connection, frame: bytes) -> None:
        outstanding, connection.outstanding = connection.outstanding, 0
        original(self, connection, frame)
        connection.outstanding += outstanding

    with replace(FrontEnd, "_request", request):
        yield


@mutant("a write of an old connection does not happen after the session has moved", app=APP)
def attachments_are_not_compared() -> Iterator[None]:
    original = CoordinationService.apply

    def apply(self: CoordinationService, command: bytes, context: Context) -> bytes:
        op, session, _, ids, begin = commands.open_envelope(command)
        record = self.sessions.get(session)
        if record is not None and op in service._WRITES:
            command = commands.envelope(op, session, record.attachment, ids) + command[begin:]
        return original(self, command, context)

    with replace(CoordinationService, "apply", apply):
        yield


@mutant("a client that has seen more than a site is not served there", app=APP)
def joins_behind_what_was_seen() -> Iterator[None]:
    original = Sessions._on_joined

    def on_joined(self: Sessions, connection: Connection, result: t.Result, last_zxid: int, password: bytes) -> None:
        original(self, connection, result, 0, password)

    written = FrontEnd._reply

    def reply(self: FrontEnd, connection: Connection, xid: int, code: int, body: bytes = b"") -> None:
        # What a read says of its state is older than what was written.
        counter = self._site.counter
        self._site._executor.sessions.counter = max(counter - 2, 0)  # type: ignore[attr-defined]
        try:
            written(self, connection, xid, code, body)
        finally:
            self._site._executor.sessions.counter = counter  # type: ignore[attr-defined]

    with replace(Sessions, "_on_joined", on_joined), replace(FrontEnd, "_reply", reply):
        yield


@mutant("a client that sets its watches again hears what it has missed", app=APP)
def missed_events_are_not_told() -> Iterator[None]:
    original = Notifications.set

    def set_(self: Notifications, connection: Connection, reader: object, op: int) -> Iterator[None]:
        notify = self._notify
        self._notify = nothing  # type: ignore[method-assign, assignment]
        try:
            yield from original(self, connection, reader, op)  # type: ignore[arg-type]
        finally:
            self._notify = notify  # type: ignore[method-assign]

    with replace(Notifications, "set", set_):
        yield


@mutant("when a replica jumps to a checkpoint, its clients find out", app=APP)
def jumps_are_not_told() -> Iterator[None]:
    with replace(FrontEnd, "restored", nothing):
        yield


@mutant("an answer goes to the connection that asked", app=APP)
def writes_answer_somebody_else() -> Iterator[None]:
    original = FrontEnd._on_written

    def on_written(self: FrontEnd, write: Write, result: t.Result, now_s: float) -> None:
        others = [one for one in self.connections if one.session and one is not write.connection]
        if others and write.xid % 5 == 0:
            write.connection.outstanding -= 1
            others[0].outstanding += 1
            write.connection = others[0]
        original(self, write, result, now_s)

    with replace(FrontEnd, "_on_written", on_written):
        yield


@mutant("a watch is used up when it has been told, and not before", app=APP)
def watches_are_lost() -> Iterator[None]:
    original = Watches.add
    added = [0]

    def add(self: Watches[Connection], kind: Kind, path: str, watcher: Connection) -> None:
        added[0] += 1
        if added[0] % 3:
            original(self, kind, path, watcher)

    with replace(Watches, "add", add):
        yield


@mutant("every change is told to those who watch it", app=APP)
def changes_are_not_told() -> Iterator[None]:
    original = FrontEnd.changed

    def changed(self: FrontEnd, change: Change, zxid: int) -> None:
        if zxid % 2:
            original(self, change, zxid)

    with replace(FrontEnd, "changed", changed):
        yield


@mutant("what was held for a connection is not held any more when it is gone", app=APP)
def gone_and_still_held() -> Iterator[None]:
    with replace(Pressure, "forget", nothing):
        yield
