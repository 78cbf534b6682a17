"""Answers to requests that need no order: from the replica that is here, and from what is known of the connection."""

from tara.apps.coordination import commands, limits, reads
from tara.apps.coordination.acl import digest_id
from tara.apps.coordination.codes import Code, Op, Refusal
from tara.apps.coordination.gateway.connection import Connection
from tara.apps.coordination.gateway.notifications import Notifications
from tara.apps.coordination.gateway.watches import Kind
from tara.apps.coordination.jute import Reader
from tara.apps.coordination.tree import Tree

#: Reads that can leave a watch.
_WATCHING: dict[int, Kind] = {
    Op.EXISTS: Kind.DATA,
    Op.GET_DATA: Kind.DATA,
    Op.GET_CHILDREN: Kind.CHILD,
    Op.GET_CHILDREN2: Kind.CHILD,
}


class Reads:
    def __init__(self, tree: Tree, notifications: Notifications) -> None:
        self._tree = tree
        self._notifications = notifications

    def answer(self, connection: Connection, op: int, reader: Reader) -> bytes:
        """The body of the response."""
        if op in reads.BY_PATH:
            return self._read_path(connection, op, reader)
        match op:
            case Op.GET_EPHEMERALS:
                return reads.get_ephemerals(self._tree, reader.text(), connection.session)
            case Op.MULTI_READ:
                return reads.multi_read(self._tree, reader, connection.ids)
            case Op.WHO_AM_I:
                return reads.who_am_i(connection.ids)
            case Op.AUTH:
                return _authenticate(connection, reader)
            case Op.ADD_WATCH:
                return self._notifications.add(connection, reader)
            case Op.REMOVE_WATCHES | Op.CHECK_WATCHES:
                return self._notifications.remove(connection, reader, really=op == Op.REMOVE_WATCHES)
            case Op.RECONFIG:
                raise Refusal(Code.RECONFIG_DISABLED)
            case _:
                raise Refusal(Code.UNIMPLEMENTED)

    def _read_path(self, connection: Connection, op: int, reader: Reader) -> bytes:
        path = reader.text()
        watch = reader.flag() if op in _WATCHING and reader.rest else False
        watches = self._notifications.watches
        try:
            body = reads.BY_PATH[op](self._tree, path, connection.ids)
        except Refusal as refusal:
            if watch and op == Op.EXISTS and refusal.code is Code.NO_NODE:
                watches.add(Kind.DATA, path, connection)
            raise
        if watch:
            watches.add(_WATCHING[op], path, connection)
        return body


def _authenticate(connection: Connection, reader: Reader) -> bytes:
    reader.number()
    scheme, credentials = reader.text(), reader.buffer() or b""
    if scheme == "digest" and b":" in credentials:
        ids = dict.fromkeys((*connection.ids, ("digest", digest_id(credentials))))
        size = len(commands.encode_ids(tuple(ids)))
        if size <= limits.IDENTITY_BYTES_MAX and len(ids) <= limits.IDENTITIES_MAX:
            connection.set_ids(tuple(ids))
            return b""
    elif scheme == "ip":
        return b""
    raise Refusal(Code.AUTH_FAILED)
