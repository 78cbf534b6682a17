"""Watches as clients ask for them, and the events that they are sent."""

from collections.abc import Callable, Iterator

from tara.apps.coordination.acl import OPEN, permits
from tara.apps.coordination.codes import READ, Code, Event, Op, Refusal
from tara.apps.coordination.gateway import replies
from tara.apps.coordination.gateway.connection import Connection
from tara.apps.coordination.gateway.watches import REMOVABLE, Kind, Watches
from tara.apps.coordination.jute import Acl, Reader, pack_int
from tara.apps.coordination.settings import GatewaySettings
from tara.apps.coordination.tree import Change, Tree


class Notifications:
    def __init__(self, tree: Tree, settings: GatewaySettings, send: Callable[[Connection, bytes], None]) -> None:
        self._tree = tree
        self._send = send
        self.watches: Watches[Connection] = Watches(settings.watches_max, settings.watches_per_connection_max)

    def trigger(self, change: Change) -> None:
        data: dict[Event, bytes] = {}
        for connection, event, path in self.watches.trigger(change.event, change.path):
            if permits(change.acl if event is change.event else change.parent_acl, READ, connection.ids):
                if event not in data:
                    data[event] = replies.notification(event, path)
                self._send(connection, data[event])

    def _notify(self, connection: Connection, event: Event, path: str, acl: Acl = OPEN) -> None:
        """Send an event, if the client may read the node."""
        if permits(acl, READ, connection.ids):
            self._send(connection, replies.notification(event, path))

    def add(self, connection: Connection, reader: Reader) -> bytes:
        path, mode = reader.text(), reader.number()
        if mode not in (0, 1):
            raise Refusal(Code.BAD_ARGUMENTS)
        self.watches.add(Kind.RECURSIVE if mode else Kind.PERSISTENT, path, connection)
        return pack_int(0)

    def set(self, connection: Connection, reader: Reader, op: int) -> Iterator[None]:
        """A client has come back: tell it what it missed, and watch the rest. Path by path: there may be many, and
        what happens in between is seen by those that come after it."""
        since, nodes = reader.long(), self._tree.nodes
        for path in _texts(reader):
            node = nodes.get(path)
            if node is None:
                self._notify(connection, Event.DELETED, path)
            elif node.mzxid > since:
                self._notify(connection, Event.DATA_CHANGED, path, node.acl)
            else:
                self.watches.add(Kind.DATA, path, connection)
            yield
        for path in _texts(reader):
            node = nodes.get(path)
            if node is not None:
                self._notify(connection, Event.CREATED, path, node.acl)
            else:
                self.watches.add(Kind.DATA, path, connection)
            yield
        for path in _texts(reader):
            node = nodes.get(path)
            if node is None:
                self._notify(connection, Event.DELETED, path)
            elif node.pzxid > since:
                self._notify(connection, Event.CHILDREN_CHANGED, path, node.acl)
            else:
                self.watches.add(Kind.CHILD, path, connection)
            yield
        if op == Op.SET_WATCHES2:
            for kind in (Kind.PERSISTENT, Kind.RECURSIVE):
                for path in _texts(reader):
                    self.watches.add(kind, path, connection)
                    yield

    def remove(self, connection: Connection, reader: Reader, really: bool) -> bytes:
        """Remove watches, or say only whether there are any."""
        path, number = reader.text(), reader.number()
        if number not in REMOVABLE:
            raise Refusal(Code.BAD_ARGUMENTS)
        found = [kind for kind in REMOVABLE[number] if self.watches.has(kind, path, connection)]
        if not found:
            raise Refusal(Code.NO_WATCHER)
        if really:
            for kind in found:
                self.watches.remove(kind, path, connection)
        return b""


def _texts(reader: Reader) -> Iterator[str]:
    for _ in range(reader.count()):
        yield reader.text()
