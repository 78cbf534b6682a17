"""What a front end orders: ZooKeeper's own request bodies in an envelope that says on whose behalf, and the answers.

A front end does not read the body of a write: the replicas do, all alike. The answer of a command is an error code and
the body of ZooKeeper's response.
"""

import struct

import msgspec

from tara.apps.coordination.acl import Ids
from tara.apps.coordination.codes import Op
from tara.apps.coordination.jute import pack_int, unpack_int

#: Operation; the session; the attachment (see `service.SessionRecord`); the length of the ids.
_ENVELOPE = struct.Struct(">iqqH")
#: What a command without an envelope raises.
ENVELOPE_ERROR = struct.error
PASSWORD_BYTES = 16

#: Requests that are ordered; their bodies are read by the replicas.
ORDERED = frozenset(
    (
        Op.CREATE,
        Op.CREATE2,
        Op.CREATE_CONTAINER,
        Op.CREATE_TTL,
        Op.DELETE,
        Op.SET_DATA,
        Op.SET_ACL,
        Op.CHECK,
        Op.MULTI,
        Op.SYNC,
        Op.CLOSE_SESSION,
    )
)

_decode_ids = msgspec.msgpack.Decoder(Ids).decode


class CreateSession(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    timeout_ms: int
    password: bytes


class Touch(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Renew these sessions and end those whose time is up; `collect`: also nodes whose time is up."""

    sessions: list[int]
    collect: bool = False


def encode_ids(ids: Ids) -> bytes:
    return msgspec.msgpack.encode(ids)


def decode_ids(data: bytes) -> Ids:
    return _decode_ids(data) if data else ()


def envelope(op: int, session: int = 0, attachment: int = 0, ids: bytes = b"") -> bytes:
    """What comes before the body."""
    return _ENVELOPE.pack(op, session, attachment, len(ids)) + ids


def open_envelope(command: bytes) -> tuple[int, int, int, bytes, int]:
    """Operation, session, attachment, ids, and where the body begins."""
    op, session, attachment, length = _ENVELOPE.unpack_from(command)
    begin = _ENVELOPE.size + length
    return op, session, attachment, command[_ENVELOPE.size : begin], begin


def create_session(timeout_ms: int, password: bytes) -> bytes:
    return envelope(Op.CREATE_SESSION) + msgspec.msgpack.encode(CreateSession(timeout_ms, password))


def attach(session: int, password: bytes) -> bytes:
    return envelope(Op.ATTACH, session) + password


def touch(sessions: list[int], collect: bool) -> bytes:
    return envelope(Op.TOUCH) + msgspec.msgpack.encode(Touch(sessions, collect))


def error_of(answer: bytes) -> int:
    error: int = unpack_int(answer)[0]
    return error


def refused(code: int) -> bytes:
    return pack_int(code)


#: An answer without a body.
DONE = pack_int(0)
