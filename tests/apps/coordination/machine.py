"""A replica of the coordination service to give commands to, without a cluster."""

import struct

import msgspec

from tara.apps.coordination import commands, jute
from tara.apps.coordination.acl import OPEN, Ids
from tara.apps.coordination.codes import Mode, Op
from tara.apps.coordination.jute import Acl, Reader, Stat
from tara.apps.coordination.service import CoordinationService
from tara.apps.coordination.tree import Change
from tara.protocol.principals import gateway_of
from tara.protocol.sessions import Context

PASSWORD = b"0123456789abcdef"


def create_body(path: str, data: bytes | None = b"", mode: int = Mode.PERSISTENT, acl: Acl = OPEN) -> bytes:
    return jute.pack_text(path) + jute.pack_buffer(data) + jute.pack_acl(acl) + jute.pack_int(mode)


def set_body(path: str, data: bytes | None = b"", version: int = -1) -> bytes:
    return jute.pack_text(path) + jute.pack_buffer(data) + jute.pack_int(version)


def versioned_body(path: str, version: int = -1) -> bytes:
    return jute.pack_text(path) + jute.pack_int(version)


def multi_body(*operations: tuple[int, bytes]) -> bytes:
    parts = [jute.MULTI_HEADER.pack(op, False, -1) + body for op, body in operations]
    return b"".join(parts) + jute.MULTI_HEADER.pack(-1, True, -1)


class Machine:
    """One replica and its clock; remembers what its observer was told."""

    def __init__(self, service: CoordinationService | None = None) -> None:
        self.service = service or CoordinationService()
        self.service.observer = self
        self.counter = 0
        self.clock_ms = 0
        self.told: list[tuple[object, ...]] = []

    def changed(self, change: Change, zxid: int) -> None:
        self.told.append((change.event, change.path, zxid))

    def attached(self, session: int, attachment: int) -> None:
        self.told.append(("attached", session))

    def ended(self, session: int, zxid: int) -> None:
        self.told.append(("ended", session, zxid))

    def restored(self) -> None:
        self.told.append(("restored",))

    def apply(self, command: bytes) -> tuple[int, bytes]:
        self.counter += 1
        context = Context([])
        context.counter, context.time_ms, context.clock_ms = self.counter, 1_000_000 + self.clock_ms, self.clock_ms
        context.principal = gateway_of(0)
        answer = self.service.apply(command, context)
        return commands.error_of(answer), answer[4:]

    def open(self, timeout_ms: int = 10_000) -> int:
        code, body = self.apply(commands.create_session(timeout_ms, PASSWORD))
        assert code == 0
        return msgspec.msgpack.decode(body, type=tuple[int, int, int])[0]

    def attach(self, session: int, password: bytes = PASSWORD) -> tuple[int, int]:
        code, body = self.apply(commands.attach(session, password))
        return code, msgspec.msgpack.decode(body)[2] if code == 0 else 0

    def touch(self, *sessions: int, collect: bool = False) -> int:
        code, _ = self.apply(commands.touch(list(sessions), collect))
        assert code == 0
        return code

    def run(
        self, session: int, op: int, body: bytes = b"", ids: Ids = (), attachment: int | None = None
    ) -> tuple[int, bytes]:
        attachment = session if attachment is None else attachment
        return self.apply(commands.envelope(op, session, attachment, commands.encode_ids(ids)) + body)

    def create(
        self, session: int, path: str, data: bytes | None = b"", mode: int = Mode.PERSISTENT, acl: Acl = OPEN
    ) -> tuple[int, str]:
        code, body = self.run(session, Op.CREATE, create_body(path, data, mode, acl))
        return code, Reader(body).text() if code == 0 else ""

    def create_ttl(self, session: int, path: str, ttl_ms: int) -> int:
        body = create_body(path, b"", Mode.PERSISTENT_WITH_TTL) + struct.pack(">q", ttl_ms)
        return self.run(session, Op.CREATE_TTL, body)[0]

    def set(self, session: int, path: str, data: bytes | None = b"", version: int = -1) -> int:
        return self.run(session, Op.SET_DATA, set_body(path, data, version))[0]

    def delete(self, session: int, path: str, version: int = -1) -> int:
        return self.run(session, Op.DELETE, versioned_body(path, version))[0]

    def multi(self, session: int, *operations: tuple[int, bytes]) -> list[tuple[int, int]]:
        """(type, error) of each result."""
        code, body = self.run(session, Op.MULTI, multi_body(*operations))
        assert code == 0
        reader = Reader(body)
        results: list[tuple[int, int]] = []
        while True:
            op, done, error = jute.MULTI_HEADER.unpack(reader.take(9))
            if done:
                return results
            results.append((op, error))
            if op == -1:
                assert reader.number() == error
            if op in (Op.CREATE, Op.CREATE2):
                reader.text()
            if op in (Op.CREATE2, Op.SET_DATA):
                Stat.read(reader)

    def stat(self, path: str) -> Stat:
        return Stat.read(Reader(self.service.tree.find(path).stat()))

    @property
    def paths(self) -> list[str]:
        nodes = self.service.tree.nodes
        return sorted(path for path in nodes if not path.startswith("/zookeeper") and path != "/")

    def snapshot(self) -> bytes:
        return b"|".join(self.service.snapshot())

    def copy(self) -> "Machine":
        """A replica that starts from this one's snapshot."""
        service = CoordinationService()
        service.restore(list(self.service.snapshot()))
        twin = Machine(service)
        twin.counter, twin.clock_ms = self.counter, self.clock_ms
        return twin
