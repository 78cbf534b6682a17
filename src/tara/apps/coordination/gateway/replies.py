"""The bytes of what a front end sends: answers, events, and the answer to a request for a session."""

from tara.apps.coordination.codes import Event
from tara.apps.coordination.jute import FRAMED_REPLY_HEADER, pack_buffer, pack_int, pack_long, pack_text

NOTIFICATION_XID = -1
PING_XID = -2
SYNC_CONNECTED = 3


def reply(xid: int, zxid: int, code: int, body: bytes = b"") -> bytes:
    return FRAMED_REPLY_HEADER.pack(16 + len(body), xid, zxid, code) + body


def written(xid: int, zxid: int, answer: bytes) -> bytes:
    """A reply whose error code and body are there as one."""
    return pack_int(12 + len(answer)) + pack_int(xid) + pack_long(zxid) + answer


def notification(event: Event, path: str) -> bytes:
    body = pack_int(event) + pack_int(SYNC_CONNECTED) + pack_text(path)
    return FRAMED_REPLY_HEADER.pack(16 + len(body), NOTIFICATION_XID, -1, 0) + body


def connected(timeout_ms: int, session: int, password: bytes) -> bytes:
    body = pack_int(0) + pack_int(timeout_ms) + pack_long(session) + pack_buffer(password) + b"\0"
    return pack_int(len(body)) + body
