"""A front end without sockets, beside a replica that executes at once. Time passes when it is told to."""

from pathlib import Path

import msgspec

from tara.apps.coordination import jute
from tara.apps.coordination.acl import OPEN
from tara.apps.coordination.codes import Op
from tara.apps.coordination.gateway.connection import Connection
from tara.apps.coordination.gateway.front_end import FrontEnd
from tara.apps.coordination.service import CoordinationService
from tara.apps.coordination.settings import gateway_settings
from tara.net.gateway import Options
from tara.protocol import tuples as t
from tara.protocol.limits import Limits
from tara.protocol.principals import gateway_of
from tara.protocol.sessions import Context

CHANNEL = 1


class Desk:
    def __init__(self, **options: str | int | float | bool) -> None:
        self.site = 0
        self.host = "127.0.0.1"
        self.data_dir = Path("/nowhere")
        self.limits = Limits(f=0)
        self.application = CoordinationService()
        self.counter = 0
        self.now_s = 1_000.0
        #: Whether what is ordered executes; otherwise it stays in `ordered`.
        self.executing = True
        self.ordered: list[t.Command] = []
        self._results: list[t.Result] = []
        settings: Options = {"max_client_connections": 0, **options}
        #: How long it takes to look at the clock.
        self.clock_step_s = 0.0
        self.front_end = FrontEnd(self, gateway_settings(settings), self._look, bytes)
        self.turn()
        self.turn()
        assert self.front_end.serving

    # What a container offers

    def submit(self, commands: list[t.Command]) -> None:
        self.ordered += commands
        if self.executing:
            self.execute()

    def execute(self) -> None:
        ordered, self.ordered = self.ordered, []
        for command in ordered:
            self.counter += 1
            if command.kind == t.OPEN:
                payload = msgspec.msgpack.encode((CHANNEL, 30_000))
            else:
                context = Context([])
                context.principal = gateway_of(0)
                context.counter, context.session = self.counter, command.session
                context.time_ms = context.clock_ms = int(self.now_s * 1e3)
                payload = self.application.apply(command.payload, context)
            self._results.append(t.Result(command.session, command.number, self.counter, t.OK, payload))

    def _look(self) -> float:
        self.now_s += self.clock_step_s
        return self.now_s

    # What tests do

    def turn(self, seconds: float = 0.001) -> None:
        self.now_s += seconds
        results, self._results = self._results, []
        self.front_end.take(results)
        self.front_end.respond(self.now_s)

    def admit(self, address: str = "127.0.0.1") -> Connection:
        connection = self.front_end.admit(address, 1)
        assert connection is not None
        return connection

    def connect(self, address: str = "127.0.0.1") -> Connection:
        """A connection with a session, whose answers were fetched."""
        connection = self.connect_later(address)
        self.turn()
        assert connection.session
        self.fetch(connection)
        return connection

    def connect_later(self, address: str = "127.0.0.1") -> Connection:
        """A connection that has asked for a session."""
        connection = self.admit(address)
        body = jute.pack_int(0) + jute.pack_long(0) + jute.pack_int(1_000_000) + jute.pack_long(0)
        self.feed(connection, framed(body + jute.pack_buffer(bytes(16))))
        return connection

    def feed(self, connection: Connection, data: bytes) -> None:
        """As a listener does it."""
        try:
            self.front_end.receive(connection, data)
        except Exception as error:
            self.front_end.fail(connection, error)
        self.front_end.received_all()

    def request(self, connection: Connection, xid: int, op: int, body: bytes = b"") -> None:
        self.feed(connection, framed(jute.REQUEST_HEADER.pack(xid, op) + body))

    def create(self, connection: Connection, path: str, data: bytes = b"") -> None:
        body = jute.pack_text(path) + jute.pack_buffer(data) + jute.pack_acl(OPEN) + jute.pack_int(0)
        self.request(connection, 1, Op.CREATE, body)
        self.turn()
        assert [error for _, error, _ in self.fetch(connection)] == [0]

    def fetch(self, connection: Connection) -> list[tuple[int, int, bytes]]:
        """The client reads all that was sent: xid, error and body of each."""
        data = bytes(connection.out)
        connection.out.clear()
        self.front_end.unsettled.discard(connection)
        self.front_end.flushed(connection)
        found = []
        while data:
            length: int = jute.unpack_int(data)[0]
            frame, data = data[4 : 4 + length], data[4 + length :]
            if len(frame) >= jute.REPLY_HEADER.size:
                xid, _, error = jute.REPLY_HEADER.unpack_from(frame)
                found.append((xid, error, frame[jute.REPLY_HEADER.size :]))
        return found


def framed(body: bytes) -> bytes:
    return jute.pack_int(len(body)) + body
