"""`tara sessions`: whose sessions there are, what they keep, and how an operator ends one."""

from typing import Any

import msgspec

from tara.operations.operator import Operator, OperatorError
from tara.protocol import tuples as t
from tara.protocol.principals import describe

_decode_rows = msgspec.msgpack.Decoder(list[t.SessionRow]).decode


def list_sessions(operator: Operator) -> list[t.SessionRow]:
    """All sessions, oldest first. Each part is a linearizable read; sessions that are opened or closed between two
    parts may be in the list or not."""
    found: list[t.SessionRow] = []
    while True:
        after = found[-1].id if found else 0
        rows = _decode_rows(operator.read(t.SESSIONS, t.encode(t.ListSessions(after))))
        if not rows:
            return found
        found += rows


def close_session(operator: Operator, which: str) -> t.SessionRow:
    """End the session with this id or name: ordered, so that no command of it executes afterwards on any replica."""
    rows = list_sessions(operator)
    by_name = [row for row in rows if row.name == which]
    by_id = [row for row in rows if str(row.id) == which]
    if not by_name and not by_id:
        raise OperatorError(f"no session has the name or the id {which!r} (`tara sessions` lists them)")
    row = (by_name or by_id)[0]
    result = operator.order(t.CLOSE, row.id)
    # Expired: it ended by itself, or the first copy of this command has closed it.
    if result.status not in (t.OK, t.EXPIRED):
        raise OperatorError(f"session {row.id}: {result.payload.decode(errors='replace')}")
    return row


def session_fields(row: t.SessionRow) -> dict[str, Any]:
    """For JSON."""
    kind, *_ = describe(row.owner).split()
    return {
        "session": row.id,
        "name": row.name or None,
        "owner": kind,
        "owner_digest": row.owner[1:].hex(),
        "timeout_ms": row.timeout_ms,
        "age_ms": row.age_ms,
        "idle_ms": row.idle_ms,
        "next": row.next,
        "results": row.results,
        "results_bytes": row.results_bytes,
        "waiting": row.waiting,
        "waiting_bytes": row.waiting_bytes,
    }
