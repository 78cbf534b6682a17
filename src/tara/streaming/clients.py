"""The clients of a streaming replication, as replicated state around the application.

A Tara command of the streaming runtime is a whole slice of a micro-batch: rows (client, number, payload). This state
machine takes it apart on every replica alike. Per client, numbers count 0, 1, 2, …: each executes once, in that order,
whatever the order and the micro-batches in which the rows come. It is a function of the log and part of the snapshot,
so no operator outside has to remember clients.
"""

from collections.abc import Callable, Iterable, Iterator
from zlib import crc32

import msgspec
from msgspec import Struct

from tara.application import StateMachine
from tara.protocol import tuples as t
from tara.protocol.sessions import Context, call

#: A row of a command: client, number, payload.
CommandRow = tuple[str, int, bytes | None]
#: A row of a result: counter (0: not executed), client, number, status, result.
Outcome = tuple[int, str, int, int, bytes]
#: A row of an event: the counter of the command that it came of, its place among the events of that command, the client
#: that it is for (None: all), and what was published.
Published = tuple[int, int, str | None, bytes]

#: What became of a command, beside the protocol's OK, FAILED, REJECTED and FULL.
CONFLICT = 16  # the client has used this number for another payload; that one stands
STATUS_NAMES = {t.OK: "ok", t.FAILED: "failed", t.REJECTED: "rejected", t.FULL: "full", CONFLICT: "conflict"}

_CHECK_BYTES = 4
_decode_rows: Callable[[bytes], list[CommandRow]] = msgspec.msgpack.Decoder(list[CommandRow]).decode
encode = msgspec.msgpack.Encoder().encode


_LENGTH_BYTES = 4


def pack_rows(rows: list[CommandRow]) -> bytes:
    """A slice of a micro-batch as a command. Compressed, because the protocol carries it through every shuffle and
    keeps it in many states: bytes are what a micro-batch costs. Only the request source that makes it does so: whether
    replicas would compress alike does not matter."""
    return packed(encode(rows))


def unpack_rows(command: bytes) -> list[CommandRow]:
    return _decode_rows(unpacked(command))


def packed(data: bytes) -> bytes:
    import pyarrow as pa

    return len(data).to_bytes(_LENGTH_BYTES, "little") + pa.compress(data, codec="lz4", asbytes=True)


def unpacked(data: bytes) -> bytes:
    import pyarrow as pa

    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    return pa.decompress(data[_LENGTH_BYTES:], length, codec="lz4", asbytes=True)


class Answer(Struct, array_like=True):
    """What came of a slice: the result of the command that carried it."""

    outcomes: list[Outcome] = []
    events: list[Published] = []


decode_answer = msgspec.msgpack.Decoder(Answer).decode


class Known(Struct, array_like=True):
    """One client. Invariant: early has only numbers above `next`."""

    #: Clients are numbered as they appear; what the application sees as the session.
    session: int
    #: The number of its next command.
    next: int = 0
    #: Checksums of its last commands, the newest at the end.
    recent: bytes = b""
    early: dict[int, bytes | None] = {}


class _State(Struct, array_like=True):
    counter: int
    clients: dict[str, Known]


class Clients(StateMachine):
    """Wraps the user's application. `snapshot` gives the state at the time when it is drawn: the host draws the newest
    one only, before anything else executes."""

    concurrent_snapshot = True

    def __init__(
        self,
        application: StateMachine,
        clients_max: int,
        early_max: int,
        remembered: int,
        command_bytes_max: int,
        result_bytes_max: int = 1 << 20,
    ) -> None:
        self.application = application
        self._clients_max = clients_max
        self._early_max = early_max
        self._recent_bytes = remembered * _CHECK_BYTES
        self._command_bytes_max = command_bytes_max
        self._result_bytes_max = result_bytes_max
        self._clients: dict[str, Known] = {}
        #: Executed commands.
        self.counter = 0
        self._outcomes: list[Outcome] = []
        #: The clients by their sessions, which are numbered from 1 on.
        self._names: list[str] = []
        self._events: list[t.Event] = []
        self._context = Context(self._events)

    def apply(self, command: bytes, context: Context) -> bytes:
        self._outcomes = []
        self._context.time_ms = context.time_ms
        find, run = self._clients.get, self._run
        for client, number, payload in unpack_rows(command):
            known = find(client)
            if known is None:
                known = self._welcome(client)
                if known is None:
                    self._outcomes.append((0, client, number, t.FULL, b"too many clients"))
                    continue
            if number == known.next:
                run(client, known, payload)
                if known.early:
                    while known.next in known.early:
                        run(client, known, known.early.pop(known.next))
            elif number < known.next:
                self._repeat(client, known, number, payload)
            else:
                self._wait(client, known, number, payload)
        return encode(Answer(self._outcomes, self._take_events()))

    def _take_events(self) -> list[Published]:
        """Numbered within each command that has published any."""
        if not self._events:
            return []
        found: list[Published] = []
        counter = place = -1
        for event in self._events:
            place = place + 1 if event.counter == counter else 0
            counter = event.counter
            client = self._names[event.session - 1] if 0 < event.session <= len(self._names) else None
            found.append((counter, place, client, event.payload))
        self._events.clear()
        return found

    def _welcome(self, client: str) -> Known | None:
        if len(self._clients) >= self._clients_max:
            return None
        known = self._clients[client] = Known(len(self._clients) + 1)
        self._names.append(client)
        self._context.counter, self._context.session = self.counter, known.session
        self.application.opened(self._context)
        return known

    def _run(self, client: str, known: Known, payload: bytes | None) -> None:
        number = known.next
        known.next = number + 1
        self.counter = counter = self.counter + 1
        if self._recent_bytes:
            known.recent = (known.recent + _check(payload))[-self._recent_bytes :]
        if payload is None:
            status, result = t.FAILED, b"the payload is null"
        elif len(payload) > self._command_bytes_max:
            status, result = t.FAILED, f"a command may have {self._command_bytes_max} bytes".encode()
        else:
            context = self._context
            context.counter, context.session = counter, known.session
            status, result = call(self.application, False, payload, context, self._result_bytes_max)
        self._outcomes.append((counter, client, number, status, result))

    def _repeat(self, client: str, known: Known, number: int, payload: bytes | None) -> None:
        """The number has executed. The same payload: its result stands, and is there. Another one: say so. It was too
        long ago: it counts as the same."""
        position = len(known.recent) - (known.next - number) * _CHECK_BYTES
        if position >= 0 and known.recent[position : position + _CHECK_BYTES] != _check(payload):
            self._conflict(client, number)

    def _wait(self, client: str, known: Known, number: int, payload: bytes | None) -> None:
        if number in known.early:
            if known.early[number] != payload:
                self._conflict(client, number)
        elif len(known.early) >= self._early_max:
            message = f"{self._early_max} commands of this client wait for number {known.next}"
            self._outcomes.append((0, client, number, t.REJECTED, message.encode()))
        else:
            known.early[number] = payload

    def _conflict(self, client: str, number: int) -> None:
        self._outcomes.append((0, client, number, CONFLICT, b"the number was used for another payload"))

    def query(self, question: bytes, context: Context) -> bytes:
        return self.application.query(question, context)

    def snapshot(self) -> Iterator[bytes]:
        clients = {
            client: msgspec.structs.replace(known, early=dict(sorted(known.early.items()))) if known.early else known
            for client, known in sorted(self._clients.items())
        }
        yield encode(_State(self.counter, clients))
        yield from self.application.snapshot()

    def restore(self, chunks: Iterable[bytes]) -> None:
        mine, *rest = chunks
        state = msgspec.msgpack.decode(mine, type=_State)
        self.counter, self._clients = state.counter, state.clients
        self._names = sorted(state.clients, key=lambda client: state.clients[client].session)
        self.application.restore(rest)


def _check(payload: bytes | None) -> bytes:
    """Tells payloads from each other; it is there to find mistakes, not malice."""
    return b"\0null"[:_CHECK_BYTES] if payload is None else crc32(payload).to_bytes(_CHECK_BYTES, "little")
