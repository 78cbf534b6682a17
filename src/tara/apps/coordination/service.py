"""The replicated state machine: znodes and sessions. Commands are those of `commands.py`.

A session is replicated state: an id (the counter of the command that made it), a password, a time-out, and when it was
last heard of on the session clock of the replicated log. Front ends renew the sessions of their connections in batches
(`Touch`); such a command also ends the sessions whose time is up, and so their ephemeral nodes vanish on all replicas
at one command. The zxid of a change is the counter of its command.
"""

import functools
import hmac
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Protocol

import msgspec
from msgspec import Struct

from tara.application import ApplicationError, Context, StateMachine
from tara.apps.coordination import commands, reads
from tara.apps.coordination.acl import Ids
from tara.apps.coordination.codes import Code, Mode, Op, Refusal
from tara.apps.coordination.commands import DONE, PASSWORD_BYTES, CreateSession, Touch
from tara.apps.coordination.jute import MULTI_HEADER, JuteError, Reader, pack_int, pack_text
from tara.apps.coordination.limits import MULTI_OPERATIONS_MAX, SESSIONS_MAX
from tara.apps.coordination.tree import NO_TTL, Change, Tree
from tara.protocol.tuples import DECODE_ERRORS

TIMEOUT_MS_MAX = (1 << 31) - 1
SESSIONS_PER_CHUNK = 1000


class SessionRecord(Struct, array_like=True, frozen=True):
    """A ZooKeeper session, but for when it was last heard of: a snapshot shares what changes seldom.

    A client that comes back attaches its session anew; the attachment is the counter of that command. A write carries
    the attachment of its connection, so that a write of an old connection, still on its way, cannot execute after the
    client's newer ones.
    """

    id: int
    password: bytes
    timeout_ms: int
    attachment: int


class Observer(Protocol):
    """Somebody beside one replica who wants to know what happens there, in order."""

    def changed(self, change: Change, zxid: int) -> None: ...
    def attached(self, session: int, attachment: int) -> None: ...
    def ended(self, session: int, zxid: int) -> None: ...
    def restored(self) -> None:
        """The state was replaced: what lies between is unknown."""


_decode_create_session = msgspec.msgpack.Decoder(CreateSession).decode
_decode_touch = msgspec.msgpack.Decoder(Touch).decode
_decode_sessions = msgspec.msgpack.Decoder(list[tuple[SessionRecord, int]]).decode
#: Decoding the ids of a connection once is enough; a pure function.
_ids = functools.lru_cache(maxsize=4096)(commands.decode_ids)

#: Service, reader, session, ids, context to the body of the answer.
Handler = Callable[["CoordinationService", Reader, int, Ids, Context], bytes]


class CoordinationService(StateMachine):
    concurrent_snapshot = True
    #: The front end that the runtime starts beside each replica.
    gateway = "tara.apps.coordination.gateway:make_gateway"
    simulation = "tara.apps.coordination.simulation:CoordinationSimulation"

    def __init__(self) -> None:
        self.tree = Tree()
        self.sessions: dict[int, SessionRecord] = {}
        #: When they were last heard of, on the session clock. The same ids in the same order.
        self._active_ms: dict[int, int] = {}
        #: No session ends before the session clock reaches this.
        self._expiry_ms = 0
        self.observer: Observer | None = None

    def apply(self, command: bytes, context: Context) -> bytes:
        _check_sender(context)
        try:
            op, session, attachment, ids, begin = commands.open_envelope(command)
            handler = _WRITES.get(op)
            if handler is None:
                return self._apply_internal(op, session, command[begin:], context)
            record = self.sessions.get(session)
            if record is None:
                return commands.refused(Code.SESSION_EXPIRED)
            if record.attachment != attachment:
                return commands.refused(Code.SESSION_MOVED)
            self._active_ms[session] = context.clock_ms
            body = handler(self, Reader(command, begin), session, _ids(ids), context)
        except Refusal as refusal:
            return commands.refused(refusal.code)
        except (JuteError, *DECODE_ERRORS):
            return commands.refused(Code.MARSHALLING_ERROR)
        except commands.ENVELOPE_ERROR as error:
            raise ApplicationError("not a command of the coordination service") from error
        if self.tree.changes:
            self._tell(context.counter)
        return DONE + body

    def _apply_internal(self, op: int, session: int, body: bytes, context: Context) -> bytes:
        match op:
            case Op.CREATE_SESSION:
                return self._create_session(_decode_create_session(body), context)
            case Op.ATTACH:
                return self._attach(session, body, context)
            case Op.TOUCH:
                return self._touch(_decode_touch(body), context)
            case _:
                return commands.refused(Code.UNIMPLEMENTED)

    def query(self, question: bytes, context: Context) -> bytes:
        """A read in the order of all commands: the envelope and body of a request that changes nothing."""
        _check_sender(context)
        try:
            op, session, _, ids, begin = commands.open_envelope(question)
            reader = Reader(question, begin)
            if op == Op.GET_EPHEMERALS:
                return DONE + reads.get_ephemerals(self.tree, reader.text(), session)
            if op not in reads.BY_PATH:
                return commands.refused(Code.UNIMPLEMENTED)
            return DONE + reads.BY_PATH[op](self.tree, reader.text(), _ids(ids))
        except Refusal as refusal:
            return commands.refused(refusal.code)
        except (JuteError, *DECODE_ERRORS):
            return commands.refused(Code.MARSHALLING_ERROR)
        except commands.ENVELOPE_ERROR as error:
            raise ApplicationError("not a question to the coordination service") from error

    def snapshot(self) -> Iterator[bytes]:
        # Two lists of all sessions: 5 ms for as many as there may be. A table would make every write and touch slower.
        sessions = _encode_sessions(list(self.sessions.values()), list(self._active_ms.values()))
        return chain(sessions, self.tree.snapshot())

    def restore(self, chunks: Iterable[bytes]) -> None:
        for _ in self.restore_slices(chunks):
            pass

    def restore_slices(self, chunks: Iterable[bytes]) -> Iterator[None]:
        iterator = iter(chunks)
        self.sessions, self._active_ms = {}, {}
        while sessions := _decode_sessions(next(iterator)):
            for record, active_ms in sessions:
                self.sessions[record.id] = record
                self._active_ms[record.id] = active_ms
            yield
        self._expiry_ms = 0
        yield from self.tree.restore_slices(iterator)
        if self.observer is not None:
            self.observer.restored()

    def _tell(self, zxid: int) -> None:
        changes = self.tree.changes
        if self.observer is not None:
            for change in changes:
                self.observer.changed(change, zxid)
        changes.clear()

    def _create_session(self, request: CreateSession, context: Context) -> bytes:
        if len(request.password) != PASSWORD_BYTES or not 0 < request.timeout_ms <= TIMEOUT_MS_MAX:
            raise Refusal(Code.BAD_ARGUMENTS)
        if len(self.sessions) >= SESSIONS_MAX:
            raise Refusal(Code.SYSTEM_ERROR)
        id_ = context.counter
        record = SessionRecord(id_, request.password, request.timeout_ms, id_)
        self.sessions[id_] = record
        self._active_ms[id_] = context.clock_ms
        self._expiry_ms = min(self._expiry_ms, context.clock_ms + record.timeout_ms)
        return DONE + msgspec.msgpack.encode((id_, record.timeout_ms, id_))

    def _attach(self, session: int, password: bytes, context: Context) -> bytes:
        record = self.sessions.get(session)
        # In a time that does not tell how much of it was right.
        if record is None or not hmac.compare_digest(record.password, password):
            raise Refusal(Code.SESSION_EXPIRED)
        self.sessions[session] = record = msgspec.structs.replace(record, attachment=context.counter)
        self._active_ms[session] = context.clock_ms
        if self.observer is not None:
            self.observer.attached(session, record.attachment)
        return DONE + msgspec.msgpack.encode((session, record.timeout_ms, record.attachment))

    def _close_session(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        self._end(session, context.counter)
        return b""

    def _end(self, session: int, zxid: int) -> None:
        del self.sessions[session], self._active_ms[session]
        self.tree.close_session(session, zxid)
        self._tell(zxid)
        if self.observer is not None:
            self.observer.ended(session, zxid)

    def _touch(self, touch: Touch, context: Context) -> bytes:
        active_ms, clock_ms = self._active_ms, context.clock_ms
        for id_ in touch.sessions:
            if id_ in active_ms:
                active_ms[id_] = clock_ms
        if clock_ms >= self._expiry_ms:
            self._expire(clock_ms, context.counter)
        if touch.collect:
            self.tree.collect(context.counter, context.time_ms)
            self._tell(context.counter)
        return DONE

    def _expire(self, clock_ms: int, zxid: int) -> None:
        active_ms = self._active_ms
        for id_ in [id_ for id_, record in self.sessions.items() if active_ms[id_] + record.timeout_ms <= clock_ms]:
            self._end(id_, zxid)
        deadlines = (active_ms[id_] + record.timeout_ms for id_, record in self.sessions.items())
        self._expiry_ms = min(deadlines, default=0)

    def _create(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        return pack_text(self._make(reader, session, ids, context))

    def _create2(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        path = self._make(reader, session, ids, context)
        return pack_text(path) + self.tree.nodes[path].stat()

    def _create_ttl(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        path = self._make(reader, session, ids, context, with_ttl=True)
        return pack_text(path) + self.tree.nodes[path].stat()

    def _make(self, reader: Reader, session: int, ids: Ids, context: Context, with_ttl: bool = False) -> str:
        path, data, acl, flags = reader.text(), reader.buffer(), reader.acl(), reader.number()
        ttl_ms = reader.long() if with_ttl else NO_TTL
        return self.tree.create(path, data, acl, flags, ttl_ms, session, ids, context.counter, context.time_ms)

    def _delete(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        self.tree.delete(reader.text(), reader.number(), ids, context.counter)
        return b""

    def _set_data(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        path, data, version = reader.text(), reader.buffer(), reader.number()
        return self.tree.set_data(path, data, version, ids, context.counter, context.time_ms).stat()

    def _set_acl(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        path, acl, version = reader.text(), reader.acl(), reader.number()
        return self.tree.set_acl(path, acl, version, ids).stat()

    def _check(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        self.tree.check(reader.text(), reader.number(), ids)
        return b""

    def _sync(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        """Nothing to do: that it was ordered, and has executed here, is the point."""
        return pack_text(reader.text())

    def _multi(self, reader: Reader, session: int, ids: Ids, context: Context) -> bytes:
        tree = self.tree
        operations = [*_operations(reader)]
        results: list[bytes] = []
        before = len(tree.changes)
        tree.begin()
        try:
            for op, body in operations:
                results += (
                    MULTI_HEADER.pack(_RESULT_TYPES.get(op, op), False, 0),
                    _WRITES[op](self, body, session, ids, context),
                )
        except Refusal as refusal:
            tree.rollback(before)
            return _failed(len(operations), len(results) // 2, refusal.code)
        except BaseException:
            tree.rollback(before)
            raise
        tree.commit()
        results.append(MULTI_HEADER.pack(-1, True, -1))
        return b"".join(results)


#: Creations that answer with a stat say that they are a create2.
_RESULT_TYPES: dict[int, int] = {Op.CREATE_CONTAINER: Op.CREATE2, Op.CREATE_TTL: Op.CREATE2}

#: What may be in a multi, and what its request has behind the header.
_PARTS: dict[int, Callable[[Reader], tuple[object, ...]]] = {
    Op.CREATE: lambda r: (r.text(), r.buffer(), r.acl(), r.number()),
    Op.CREATE2: lambda r: (r.text(), r.buffer(), r.acl(), r.number()),
    Op.CREATE_CONTAINER: lambda r: (r.text(), r.buffer(), r.acl(), r.number()),
    Op.CREATE_TTL: lambda r: (r.text(), r.buffer(), r.acl(), r.number(), r.long()),
    Op.DELETE: lambda r: (r.text(), r.number()),
    Op.SET_DATA: lambda r: (r.text(), r.buffer(), r.number()),
    Op.CHECK: lambda r: (r.text(), r.number()),
}


def _check_sender(context: Context) -> None:
    """An envelope says of which session it is, and with whose rights. A gateway vouches for that; nobody else can."""
    if not context.from_gateway:
        raise ApplicationError("the coordination service takes commands and questions from its gateways only")


def _operations(reader: Reader) -> Iterator[tuple[int, Reader]]:
    """The requests in a multi, each with a reader of its own; all of it is well-formed before anything is done."""
    for _ in range(MULTI_OPERATIONS_MAX):
        op, done, _ = MULTI_HEADER.unpack(reader.take(MULTI_HEADER.size))
        if done:
            return
        read = _PARTS.get(op)
        if read is None:
            raise JuteError(f"operation {op} in a multi")
        body = reader.fork()
        fields = read(reader)
        if op in (Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER):
            # As ZooKeeper does: in a multi, the flags decide, and only a container is answered with a stat.
            op = Op.CREATE_CONTAINER if fields[3] == Mode.CONTAINER else Op.CREATE
        yield op, body
    raise JuteError(f"a multi of more than {MULTI_OPERATIONS_MAX} operations")


def _failed(operations: int, position: int, code: int) -> bytes:
    """What a multi answers when the operation at a position was refused: nothing has happened."""
    parts: list[bytes] = []
    for index in range(operations):
        own = Code.OK if index < position else code if index == position else Code.RUNTIME_INCONSISTENCY
        parts += (MULTI_HEADER.pack(-1, False, own), pack_int(own))
    parts.append(MULTI_HEADER.pack(-1, True, -1))
    return b"".join(parts)


def _encode_sessions(records: list[SessionRecord], active_ms: list[int]) -> Iterator[bytes]:
    """Pairs of a record and when it was last heard of. An empty list is the end."""
    for begin in range(0, len(records), SESSIONS_PER_CHUNK):
        end = begin + SESSIONS_PER_CHUNK
        yield msgspec.msgpack.encode([*zip(records[begin:end], active_ms[begin:end], strict=True)])
    yield msgspec.msgpack.encode([])


#: Not methods of an instance: it would keep itself alive, with its whole tree, when another one takes its place.
_WRITES: dict[int, Handler] = {
    Op.CREATE: CoordinationService._create,
    Op.CREATE2: CoordinationService._create2,
    Op.CREATE_CONTAINER: CoordinationService._create2,
    Op.CREATE_TTL: CoordinationService._create_ttl,
    Op.DELETE: CoordinationService._delete,
    Op.SET_DATA: CoordinationService._set_data,
    Op.SET_ACL: CoordinationService._set_acl,
    Op.CHECK: CoordinationService._check,
    Op.MULTI: CoordinationService._multi,
    Op.SYNC: CoordinationService._sync,
    Op.CLOSE_SESSION: CoordinationService._close_session,
}
