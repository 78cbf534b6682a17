"""The znodes: a pure data structure that changes only through the operations here.

Each operation checks everything before it changes anything, in ZooKeeper's order of checks; a `Refusal` leaves the tree
as it was. Where the order of nodes matters, it is that of their creation, worked out when it is needed (`_by_age`): the
dictionaries here have another order in a tree that was restored than in one that grew.

A snapshot shares the nodes with the living tree. A node that existed when it was taken is copied before it is changed
(`_own`); only `children` is shared for good, because a snapshot does not read it. `multi` uses the same copies to undo.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from tara.apps.coordination import acl as acls
from tara.apps.coordination import codes
from tara.apps.coordination.acl import Ids
from tara.apps.coordination.codes import CONTAINER_OWNER, TTL_OWNER, Code, Event, Mode, Refusal, ttl_of
from tara.apps.coordination.jute import STAT, Acl
from tara.apps.coordination.paths import child_of, is_valid, name_of, parent_of
from tara.table import CHUNK_BYTES_MAX, Table

NODES_PER_CHUNK = 500
#: What is restored at once, but for the chunks.
NODES_PER_SLICE = 2000
#: In place of a time to live, for nodes that have none.
NO_TTL = -1
#: Nodes that nobody may delete.
SPECIAL = frozenset(("/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"))

#: path, data, acl, czxid, mzxid, ctime, mtime, version, creations, aversion, owner, pzxid
Row = tuple[str, bytes | None, Acl, int, int, int, int, int, int, int, int, int]
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode


class Change(NamedTuple):
    """What happened to a node. Only those are told who may read the node, and of its parent's children, the parent."""

    event: Event
    path: str
    acl: Acl
    parent_acl: Acl


class Node:
    """One znode. `creations` counts children ever created: it numbers sequential ones."""

    __slots__ = (
        "acl",
        "aversion",
        "children",
        "creations",
        "ctime",
        "czxid",
        "data",
        "generation",
        "mtime",
        "mzxid",
        "owner",
        "pzxid",
        "version",
    )

    def __init__(self, data: bytes | None, acl: Acl, zxid: int, time_ms: int, owner: int, generation: int) -> None:
        self.data = data
        self.acl = acl
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = time_ms
        self.version = self.creations = self.aversion = 0
        self.owner = owner
        #: Names of the children; None for a node that never had one.
        self.children: dict[str, None] | None = None
        self.generation = generation

    def copy(self, generation: int) -> "Node":
        twin = Node.__new__(Node)
        for name in Node.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.generation = generation
        return twin

    def stat(self) -> bytes:
        children = len(self.children) if self.children else 0
        return STAT.pack(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            # What clients see counts creations and deletions.
            2 * self.creations - children,
            self.aversion,
            # Containers and nodes with a time to live show none.
            max(self.owner, 0),
            len(self.data) if self.data else 0,
            children,
            self.pzxid,
        )

    def row(self, path: str) -> Row:
        return (
            path,
            self.data,
            self.acl,
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            self.creations,
            self.aversion,
            self.owner,
            self.pzxid,
        )


class Tree:
    def __init__(self) -> None:
        self._generation = 0
        self._undo: list[tuple[Callable[..., Any], tuple[Any, ...]]] | None = None
        #: What happened, in order; the owner of the tree takes it.
        self.changes: list[Change] = []
        self._clear()
        for path in ("/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"):
            self._insert(path, Node(b"", acls.OPEN, 0, 0, 0, 0))
        self.nodes["/zookeeper/config"].acl = acls.READ_ONLY
        self.nodes["/zookeeper/config"].aversion = -1

    def _clear(self) -> None:
        self.nodes: Table[str, Node] = Table()
        #: Session to the paths of its ephemeral nodes; no entry is empty.
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.containers: dict[str, None] = {}
        self.mortals: dict[str, None] = {}
        #: Bytes of all paths and data.
        self.size = 0

    def find(self, path: str) -> Node:
        node = self.nodes.get(path or "/")
        if node is None:
            raise Refusal(Code.NO_NODE)
        return node

    def children(self, path: str) -> list[str]:
        return sorted(self.find(path).children or ())

    def ephemerals_of(self, session: int) -> list[str]:
        """Oldest first."""
        return self._by_age(self.ephemerals.get(session, ()))

    def _by_age(self, paths: Iterable[str]) -> list[str]:
        """Oldest first, and of one `multi`, in the order of their names; parents always before their children."""
        return sorted(paths, key=lambda path: (self.nodes[path].czxid, path))

    def descendants(self, path: str) -> Iterator[str]:
        """All paths below, parents before their children, and else in no particular order."""
        pending = [path or "/"]
        while pending:
            parent = pending.pop()
            for name in self.nodes[parent].children or ():
                pending.append(child_of(parent, name))
                yield pending[-1]

    def create(
        self,
        path: str,
        data: bytes | None,
        acl: Acl,
        flags: int,
        ttl_ms: int,
        session: int,
        ids: Ids,
        zxid: int,
        time_ms: int,
    ) -> str:
        """Make a node; its path, which a sequential one learns here."""
        try:
            mode = Mode(flags)
        except ValueError:
            raise Refusal(Code.BAD_ARGUMENTS) from None
        owner = _owner(mode, session, ttl_ms)
        if "/" not in path or "\0" in path:
            raise Refusal(Code.BAD_ARGUMENTS)
        acl = acls.resolve(acl, ids)
        parent_path = parent_of(path)
        parent = self.find(parent_path)
        if not acls.permits(parent.acl, codes.CREATE, ids):
            raise Refusal(Code.NO_AUTH)
        if mode in (Mode.PERSISTENT_SEQUENTIAL, Mode.EPHEMERAL_SEQUENTIAL, Mode.PERSISTENT_SEQUENTIAL_WITH_TTL):
            path = f"{path}{parent.creations:010d}"
        if not is_valid(path):
            raise Refusal(Code.BAD_ARGUMENTS)
        if path in self.nodes:
            raise Refusal(Code.NODE_EXISTS)
        if parent.owner > 0:
            raise Refusal(Code.NO_CHILDREN_FOR_EPHEMERALS)
        parent = self._own(parent_path, parent)
        parent.creations += 1
        parent.pzxid = zxid
        self._insert(path, Node(data, acl, zxid, time_ms, owner, self._generation))
        self.changes.append(Change(Event.CREATED, path, acl, parent.acl))
        return path

    def delete(self, path: str, version: int, ids: Ids, zxid: int) -> None:
        if "/" not in path or "\0" in path or path in SPECIAL:
            raise Refusal(Code.BAD_ARGUMENTS)
        if not acls.permits(self.find(parent_of(path)).acl, codes.DELETE, ids):
            raise Refusal(Code.NO_AUTH)
        node = self.find(path)
        _check_version(node.version, version)
        if node.children:
            raise Refusal(Code.NOT_EMPTY)
        self.remove(path, zxid)

    def remove(self, path: str, zxid: int) -> None:
        """Take a node out that exists and has no children."""
        parent_path = parent_of(path)
        parent = self._own(parent_path, self.nodes[parent_path])
        parent.pzxid = zxid
        self.changes.append(Change(Event.DELETED, path, self.nodes[path].acl, parent.acl))
        self._detach(path)

    def set_data(self, path: str, data: bytes | None, version: int, ids: Ids, zxid: int, time_ms: int) -> Node:
        node = self._valid(path)
        if not acls.permits(node.acl, codes.WRITE, ids):
            raise Refusal(Code.NO_AUTH)
        _check_version(node.version, version)
        node = self._own(path, node)
        self.size += (len(data) if data else 0) - (len(node.data) if node.data else 0)
        node.data = data
        node.version = _successor(node.version)
        node.mzxid = zxid
        node.mtime = time_ms
        self.changes.append(Change(Event.DATA_CHANGED, path, node.acl, acls.OPEN))
        return node

    def set_acl(self, path: str, acl: Acl, version: int, ids: Ids) -> Node:
        if not is_valid(path):
            raise Refusal(Code.BAD_ARGUMENTS)
        acl = acls.resolve(acl, ids)
        node = self.find(path)
        if not acls.permits(node.acl, codes.ADMIN, ids):
            raise Refusal(Code.NO_AUTH)
        _check_version(node.aversion, version)
        node = self._own(path, node)
        node.acl = acl
        node.aversion = _successor(node.aversion)
        return node

    def check(self, path: str, version: int, ids: Ids) -> None:
        node = self._valid(path)
        if not acls.permits(node.acl, codes.READ, ids):
            raise Refusal(Code.NO_AUTH)
        _check_version(node.version, version)

    def close_session(self, session: int, zxid: int) -> None:
        """Take the session's ephemeral nodes out, oldest first."""
        for path in self.ephemerals_of(session):
            self.remove(path, zxid)

    def collect(self, zxid: int, time_ms: int) -> None:
        """Take containers out whose last child is gone, and nodes that outlived their time, if they have no child."""
        for path in self._by_age(filter(self._is_abandoned, self.containers)):
            self.remove(path, zxid)
        for path in self._by_age(path for path in self.mortals if self._is_outdated(path, time_ms)):
            self.remove(path, zxid)

    def _is_abandoned(self, path: str) -> bool:
        node = self.nodes[path]
        return node.creations > 0 and not node.children

    def _is_outdated(self, path: str, time_ms: int) -> bool:
        node = self.nodes[path]
        ttl_ms = ttl_of(node.owner)
        return ttl_ms is not None and not node.children and time_ms - node.mtime > ttl_ms

    def begin(self) -> None:
        """From here on, remember how to undo."""
        self._undo = []

    def commit(self) -> None:
        self._undo = None

    def rollback(self, changes: int) -> None:
        """Back to where `begin` was called, when there were so many changes to tell."""
        undo, self._undo = self._undo or [], None
        for act, arguments in reversed(undo):
            act(*arguments)
        del self.changes[changes:]

    def _valid(self, path: str) -> Node:
        node = self.nodes.get(path)
        if node is not None:
            return node
        raise Refusal(Code.NO_NODE if is_valid(path) else Code.BAD_ARGUMENTS)

    def _own(self, path: str, node: Node) -> Node:
        """A node that may be changed in place: this one, or a copy if a snapshot or an undo needs it as it is."""
        if node.generation == self._generation and self._undo is None:
            return node
        copy = node.copy(self._generation)
        self.nodes[path] = copy
        if self._undo is not None:
            self._undo.append((self._put_back, (path, node, copy)))
        return copy

    def _put_back(self, path: str, node: Node, copy: Node) -> None:
        self.size += (len(node.data) if node.data else 0) - (len(copy.data) if copy.data else 0)
        node.children = copy.children
        self.nodes[path] = node

    def _insert(self, path: str, node: Node) -> None:
        self.nodes[path] = node
        self._index(path, node)
        if self._undo is not None:
            self._undo.append((self._detach, (path,)))

    def _index(self, path: str, node: Node) -> None:
        """Note a node that is new among the nodes wherever else it is to be found."""
        self.size += len(path) + (len(node.data) if node.data else 0)
        if path != "/":
            parent = self.nodes[parent_of(path)]
            if parent.children is None:
                parent.children = {}
            parent.children[name_of(path)] = None
        if node.owner > 0:
            self.ephemerals.setdefault(node.owner, {})[path] = None
        elif node.owner == CONTAINER_OWNER:
            self.containers[path] = None
        elif node.owner < 0:
            self.mortals[path] = None

    def _detach(self, path: str) -> None:
        node = self.nodes.pop(path)
        self.size -= len(path) + (len(node.data) if node.data else 0)
        children = self.nodes[parent_of(path)].children
        assert children is not None, path
        del children[name_of(path)]
        if node.owner > 0:
            owned = self.ephemerals[node.owner]
            del owned[path]
            if not owned:
                del self.ephemerals[node.owner]
        elif node.owner == CONTAINER_OWNER:
            del self.containers[path]
        elif node.owner < 0:
            del self.mortals[path]
        if self._undo is not None:
            self._undo.append((self._insert, (path, node)))

    def snapshot(self) -> Iterator[bytes]:
        """Captures the tree now; the chunks may be drawn while it changes."""
        self._generation += 1
        return _encode(self.nodes.captured())

    def restore(self, chunks: Iterator[bytes]) -> None:
        for _ in self.restore_slices(chunks):
            pass

    def restore_slices(self, chunks: Iterator[bytes]) -> Iterator[None]:
        """As `StateMachine.restore_slices`."""
        self._clear()
        self.changes.clear()
        parts: list[dict[str, Node]] = []
        for chunk in chunks:
            part: dict[str, Node] = {}
            for path, data, acl, czxid, mzxid, ctime, mtime, version, creations, aversion, owner, pzxid in _decode_rows(
                chunk
            ):
                node = Node(data, acls.intern(acl), czxid, ctime, owner, self._generation)
                node.mzxid, node.pzxid, node.mtime = mzxid, pzxid, mtime
                node.version, node.creations, node.aversion = version, creations, aversion
                part[path] = node
            parts.append(part)
            yield
        yield from self.nodes.fill_slices(parts)
        # Now that the parents are there.
        for count, (path, node) in enumerate(self.nodes.unordered(), 1):
            self._index(path, node)
            if count % NODES_PER_SLICE == 0:
                yield


def _encode(nodes: Iterable[tuple[str, Node]]) -> Iterator[bytes]:
    rows: list[Row] = []
    size = 0
    for path, node in nodes:
        more = len(path) + len(node.data or b"")
        if rows and (len(rows) == NODES_PER_CHUNK or size + more > CHUNK_BYTES_MAX):
            yield msgspec.msgpack.encode(rows)
            rows, size = [], 0
        rows.append(node.row(path))
        size += more
    yield msgspec.msgpack.encode(rows)


def _owner(mode: Mode, session: int, ttl_ms: int) -> int:
    with_ttl = mode in (Mode.PERSISTENT_WITH_TTL, Mode.PERSISTENT_SEQUENTIAL_WITH_TTL)
    if not (0 < ttl_ms <= codes.TTL_MS_MAX if with_ttl else ttl_ms < 0):
        raise Refusal(Code.BAD_ARGUMENTS)
    match mode:
        case Mode.EPHEMERAL | Mode.EPHEMERAL_SEQUENTIAL:
            return session
        case Mode.CONTAINER:
            return CONTAINER_OWNER
        case Mode.PERSISTENT_WITH_TTL | Mode.PERSISTENT_SEQUENTIAL_WITH_TTL:
            return TTL_OWNER + ttl_ms
        case _:
            return 0


def _check_version(current: int, expected: int) -> None:
    if expected not in (-1, current):
        raise Refusal(Code.BAD_VERSION)


def _successor(version: int) -> int:
    """Versions are 32-bit numbers that wrap around, past -1, which means any version."""
    if version == (1 << 31) - 1:
        return -(1 << 31)
    return 0 if version == -2 else version + 1
