"""The same requests to two services, and what they answered in a form that can be compared.

A script is made from a seed alone: requests as bytes, each with the session that sends it. What depends on the service
is replaced: a zxid by the number of the request that caused it, a session by its index; times are left out.
"""

import struct
from random import Random
from typing import Any

from tara.apps.coordination import jute
from tara.apps.coordination.acl import OPEN, digest_id
from tara.apps.coordination.codes import Op
from tara.apps.coordination.jute import Reader
from tara.apps.coordination.paths import parent_of
from tests.apps.coordination.live import Wire
from tests.apps.coordination.machine import create_body, multi_body, set_body, versioned_body

SESSIONS = 3
NAMES = ["a", "b", "c"]
ANN = (31, "digest", digest_id(b"ann:secret"))
ACLS: list[jute.Acl] = [
    OPEN,
    OPEN,
    OPEN,
    ((1, "world", "anyone"),),
    (ANN,),
    ((1, "world", "anyone"), ANN),
    ((31, "auth", ""),),
    ((31, "ip", "127.0.0.0/8"),),
    ((31, "ip", "10.1.0.0/16"),),
    ((31, "ip", "999.0.0.1"),),
    ((31, "digest", "nocolon"),),
    (),
]
BAD_ENDS = ["/", "//b", "//", "/.", "/..", "/../a", "/\x01", "/\u0085", "/\uf8ff"]
#: Nobody may delete these; anything else would make one script depend on another.
SPECIAL = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota", ""]

Step = tuple[int, int, bytes]


class Script:
    def __init__(self, seed: int, length: int, root: str = "/diff") -> None:
        self._random = Random(seed)
        # Sequential siblings of the root must not depend on what else there is.
        self.root = f"{root}-{seed}/root"
        #: Of watches that stay: persistent or recursive.
        self._mode = seed % 2
        self.steps: list[Step] = [(0, Op.CREATE, create_body(path)) for path in (parent_of(self.root), self.root)]
        self.steps += [self._step() for _ in range(length)]

    def _path(self) -> str:
        if self._random.random() < 0.06:
            return self._random.choice(["relative", *(self.root + end for end in BAD_ENDS)])
        depth = self._random.choice((0, 1, 1, 1, 2, 2, 3))
        return self.root + "".join(f"/{self._random.choice(NAMES)}" for _ in range(depth))

    def _version(self) -> int:
        return self._random.choice((-1, -1, -1, 0, 1, 2))

    def _data(self) -> bytes | None:
        return self._random.choice((None, b"", b"x", b"some data"))

    def _change(self, op: int) -> bytes:
        choose = self._random.choice
        match op:
            case Op.CREATE | Op.CREATE2:
                return create_body(self._path(), self._data(), choose((0, 0, 0, 1, 2, 3, 4, 9)), choose(ACLS))
            case Op.CREATE_CONTAINER:
                return create_body(self._path(), self._data(), 4, choose(ACLS))
            case Op.CREATE_TTL:
                flags, ttl_ms = choose(
                    ((5, 3_600_000), (6, 3_600_000), (5, 0), (6, -5), (5, 1 << 45), (0, 3_600_000), (2, 0))
                )
                return create_body(self._path(), self._data(), flags, choose(ACLS)) + jute.pack_long(ttl_ms)
            case Op.SET_DATA:
                return set_body(self._path(), self._data(), self._version())
            case Op.DELETE if self._random.random() < 0.05:
                return versioned_body(choose(SPECIAL), self._version())
            case _:
                return versioned_body(self._path(), self._version())

    def _step(self) -> Step:
        choose = self._random.choice
        session = self._random.randrange(SESSIONS)
        op = choose(
            [Op.CREATE] * 6
            + [Op.CREATE2] * 4
            + [Op.CREATE_CONTAINER, Op.CREATE_TTL]
            + [Op.DELETE] * 5
            + [Op.SET_DATA] * 5
            + [Op.EXISTS, Op.GET_DATA, Op.GET_CHILDREN, Op.GET_CHILDREN2] * 3
            + [Op.MULTI] * 5
            + [Op.GET_ACL, Op.SET_ACL, Op.SYNC, Op.GET_EPHEMERALS, Op.GET_ALL_CHILDREN_NUMBER, Op.AUTH]
            + [Op.ADD_WATCH, Op.REMOVE_WATCHES, Op.CLOSE_SESSION, Op.WHO_AM_I, Op.MULTI_READ, Op.RECONFIG]
        )
        match op:
            case Op.EXISTS | Op.GET_DATA | Op.GET_CHILDREN | Op.GET_CHILDREN2:
                path = self._path()
                # ZooKeeper 3.8 forgets a persistent watch when a one-shot one is set on the same path.
                body = jute.pack_text(path) + (b"\0" if path == self.root else choose((b"\0", b"\1")))
            case Op.GET_ACL | Op.SYNC | Op.GET_ALL_CHILDREN_NUMBER:
                body = jute.pack_text(self._path())
            case Op.GET_EPHEMERALS:
                body = jute.pack_text(self.root)
            case Op.SET_ACL:
                body = jute.pack_text(self._path()) + jute.pack_acl(choose(ACLS)) + jute.pack_int(self._version())
            case Op.MULTI:
                kinds = [Op.CREATE, Op.CREATE2, Op.DELETE, Op.SET_DATA, Op.CHECK, Op.CREATE_CONTAINER]
                parts = [choose(kinds) for _ in range(self._random.randrange(4))]
                body = multi_body(*((part, self._change(part)) for part in parts))
            case Op.MULTI_READ:
                reads = [choose([Op.GET_DATA, Op.GET_CHILDREN]) for _ in range(2)]
                body = multi_body(*((read, jute.pack_text(self._path()) + b"\0") for read in reads))
            case Op.AUTH:
                body = jute.pack_int(0) + jute.pack_text("digest") + jute.pack_buffer(b"ann:secret")
            case Op.ADD_WATCH:
                body = jute.pack_text(self.root) + jute.pack_int(self._mode)
            case Op.REMOVE_WATCHES:
                path = self._path()
                # … and removes half of a persistent watch.
                body = jute.pack_text(path) + jute.pack_int(3 if path == self.root else choose((1, 2, 3)))
            case Op.RECONFIG:
                body = b"\xff\xff\xff\xff" * 3 + jute.pack_long(-1)
            case Op.CLOSE_SESSION | Op.WHO_AM_I:
                body = b""
            case _:
                body = self._change(op)
        return session, op, body


class Player:
    """Plays a script at one address, on several sessions, one request after the other."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._wires = [self._connect() for _ in range(SESSIONS)]
        #: Which request a zxid comes from.
        self._causes = {0: 0}
        self._owners = {wire.session: index for index, wire in enumerate(self._wires)}

    def _connect(self) -> Wire:
        wire = Wire(self._address)
        assert wire.connect(timeout_ms=20_000)
        return wire

    def play(self, steps: list[Step]) -> list[object]:
        return [self._play(number, *step) for number, step in enumerate(steps, start=1)]

    def close(self) -> None:
        for wire in self._wires:
            wire.socket.close()

    def _play(self, number: int, session: int, op: int, body: bytes) -> object:
        wire = self._wires[session]
        wire.request(number, op, body)
        events, zxid, error, answer = self._answer(wire, number)
        if zxid not in self._causes:
            self._causes[zxid] = number
        told = {session: events} if events else {}
        if op == Op.CLOSE_SESSION:
            wire.socket.close()
            self._wires[session] = self._connect()
            self._owners[self._wires[session].session] = session
        for index, other in enumerate(self._wires):
            if index != session:
                other.request(number, Op.EXISTS, jute.pack_text("/") + b"\0")
                events, *_ = self._answer(other, number)
                if events:
                    told[index] = events
        return (Op(op).name, error, self._shown(op, Reader(answer)) if error == 0 else None, told)

    def _answer(self, wire: Wire, xid: int) -> tuple[list[object], int, int, bytes]:
        """What was told before the answer, and the answer."""
        events: list[object] = []
        while True:
            reply = wire.reply()
            assert reply is not None, f"request {xid}: the connection was closed"
            if reply[0] == -1:
                reader = Reader(reply[3])
                events.append((reader.number(), reader.number(), reader.text()))
                continue
            assert reply[0] == xid
            # One change can cause several events; ZooKeeper tells those of one command in no particular order.
            return sorted(events, key=repr), reply[1], reply[2], reply[3]

    def _stat(self, reader: Reader) -> dict[str, object]:
        fields = jute.Stat.read(reader)._asdict()
        for name in ("czxid", "mzxid", "pzxid"):
            fields[name] = self._causes.get(fields[name], "unknown")
        fields["ephemeral_owner"] = self._owners.get(fields["ephemeral_owner"], fields["ephemeral_owner"])
        del fields["ctime"], fields["mtime"]
        return fields

    def _shown(self, op: int, reader: Reader) -> Any:
        match op:
            case Op.CREATE | Op.SYNC:
                shown: Any = reader.text()
            case Op.CREATE2 | Op.CREATE_CONTAINER | Op.CREATE_TTL:
                shown = (reader.text(), self._stat(reader))
            case Op.SET_DATA | Op.EXISTS | Op.SET_ACL:
                shown = self._stat(reader)
            case Op.GET_DATA:
                shown = (reader.buffer(), self._stat(reader))
            case Op.GET_CHILDREN | Op.GET_EPHEMERALS:
                shown = sorted(reader.texts())
            case Op.GET_CHILDREN2:
                shown = (sorted(reader.texts()), self._stat(reader))
            case Op.GET_ACL:
                shown = (reader.acl(), self._stat(reader))
            case Op.GET_ALL_CHILDREN_NUMBER:
                shown = reader.number()
            case Op.MULTI | Op.MULTI_READ:
                shown = self._results(reader)
            case Op.WHO_AM_I:
                shown = sorted((reader.text(), reader.text()) for _ in range(reader.count()))
            case _:
                shown = reader.take(reader.rest)
        assert reader.rest == 0, (op, reader.rest)
        return shown

    def _results(self, reader: Reader) -> list[object]:
        results: list[object] = []
        while True:
            op, done, error = struct.unpack(">i?i", reader.take(9))
            if done:
                return [*results, (op, error)]
            if op == -1:
                results.append((op, error, reader.number()))
            elif op in (Op.DELETE, Op.CHECK):
                results.append((op, error))
            else:
                results.append((op, error, self._part(op, reader)))

    def _part(self, op: int, reader: Reader) -> object:
        match op:
            case Op.CREATE:
                return reader.text()
            case Op.CREATE2:
                return reader.text(), self._stat(reader)
            case Op.SET_DATA:
                return self._stat(reader)
            case Op.GET_DATA:
                return reader.buffer(), self._stat(reader)
            case Op.GET_CHILDREN:
                return sorted(reader.texts())
        raise AssertionError(op)
