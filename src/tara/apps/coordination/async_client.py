"""The typed client for asyncio. The verbs are kazoo's."""

import asyncio
import ssl
from typing import Literal, overload

from tara.apps.coordination import jute
from tara.apps.coordination.acl import OPEN, digest_id
from tara.apps.coordination.codes import ALL, Code, Mode, Op
from tara.apps.coordination.errors import NodeExists, NoNode, NotEmpty, error_of
from tara.apps.coordination.jute import MULTI_HEADER, Acl, Reader, Stat
from tara.apps.coordination.paths import child_of, parent_of
from tara.apps.coordination.wire_client import Listener, OnAnswer, Session, State, Watcher, WatchKind

DEFAULT_TIMEOUT_S = 10.0


class AsyncCoordinationClient:
    """`async with AsyncCoordinationClient("host:port,host:port") as client: …`"""

    def __init__(self, hosts: str, timeout_s: float = DEFAULT_TIMEOUT_S, tls: ssl.SSLContext | None = None) -> None:
        self._session = Session(hosts, timeout_s, tls)

    @property
    def state(self) -> State:
        return self._session.state

    @property
    def session_id(self) -> int:
        return self._session.id

    async def start(self, timeout_s: float = 15.0) -> None:
        """Connect; raises `ConnectionLoss` if nobody answers in time."""
        self._session.start()
        try:
            await asyncio.wait_for(self._session.wait_connected(), timeout_s)
        except TimeoutError:
            await self.stop()
            raise error_of(Code.CONNECTION_LOSS) from None

    async def wait_connected(self) -> None:
        await self._session.wait_connected()

    async def stop(self) -> None:
        """End the session, and its ephemeral nodes with it."""
        await self._session.stop()

    async def __aenter__(self) -> "AsyncCoordinationClient":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def add_listener(self, listener: Listener) -> None:
        self._session.add_listener(listener)

    def remove_listener(self, listener: Listener) -> None:
        self._session.remove_listener(listener)

    async def add_auth(self, scheme: str, credentials: str) -> None:
        await self._session.authenticate(scheme, credentials.encode())

    async def create(
        self,
        path: str,
        value: bytes = b"",
        acl: Acl | None = None,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
        container: bool = False,
        ttl_ms: int = 0,
    ) -> str:
        """Make a node; its path, which a sequential one learns here."""
        body = jute.pack_text(path) + jute.pack_buffer(value) + jute.pack_acl(OPEN if acl is None else acl)
        if ttl_ms:
            flags = Mode.PERSISTENT_SEQUENTIAL_WITH_TTL if sequence else Mode.PERSISTENT_WITH_TTL
            op, body = Op.CREATE_TTL, body + jute.pack_int(flags) + jute.pack_long(ttl_ms)
        elif container:
            op, body = Op.CREATE_CONTAINER, body + jute.pack_int(Mode.CONTAINER)
        else:
            op, body = Op.CREATE, body + jute.pack_int(int(ephemeral) + 2 * int(sequence))
        try:
            answer = await self._session.request(op, body, path)
        except NoNode:
            if not makepath:
                raise
            await self.ensure_path(parent_of(path))
            answer = await self._session.request(op, body, path)
        return Reader(answer).text()

    async def ensure_path(self, path: str) -> None:
        """Make a node and its parents, as far as they are missing."""
        if path == "/" or await self.exists(path) is not None:
            return
        await self.ensure_path(parent_of(path))
        try:
            await self.create(path)
        except NodeExists:
            return

    async def set(self, path: str, value: bytes, version: int = -1) -> Stat:
        body = jute.pack_text(path) + jute.pack_buffer(value) + jute.pack_int(version)
        return Stat.read(Reader(await self._session.request(Op.SET_DATA, body, path)))

    async def delete(self, path: str, version: int = -1, recursive: bool = False) -> None:
        body = jute.pack_text(path) + jute.pack_int(version)
        while True:
            try:
                await self._session.request(Op.DELETE, body, path)
                return
            except NotEmpty:
                if not recursive:
                    raise
            for name in await self.get_children(path):
                try:
                    await self.delete(child_of(path, name), recursive=True)
                except NoNode:
                    continue

    async def set_acls(self, path: str, acl: Acl, version: int = -1) -> Stat:
        body = jute.pack_text(path) + jute.pack_acl(acl) + jute.pack_int(version)
        return Stat.read(Reader(await self._session.request(Op.SET_ACL, body, path)))

    async def sync(self, path: str = "/") -> None:
        """After this, reads of this client see everything that was answered to anybody before."""
        await self._session.request(Op.SYNC, jute.pack_text(path), path)

    def transaction(self) -> "AsyncTransaction":
        return AsyncTransaction(self._session)

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        body = jute.pack_text(path) + _flag(watch)

        def register(code: int) -> None:
            if watch is not None and code in (Code.OK, Code.NO_NODE):
                self._session.watch(WatchKind.DATA if code == Code.OK else WatchKind.EXISTS, path, watch)

        code, answer = await self._session.raw_request(Op.EXISTS, body, path, register)
        if code not in (Code.OK, Code.NO_NODE):
            raise error_of(code, path)
        return Stat.read(Reader(answer)) if code == Code.OK else None

    async def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        body = jute.pack_text(path) + _flag(watch)
        reader = Reader(
            await self._session.request(Op.GET_DATA, body, path, self._registration(WatchKind.DATA, path, watch))
        )
        return reader.buffer() or b"", Stat.read(reader)

    def _registration(self, kind: WatchKind, path: str, watch: Watcher | None) -> OnAnswer | None:
        """Leaves a watch when the answer says that the server has left one."""
        if watch is None:
            return None

        def register(code: int) -> None:
            if code == Code.OK:
                self._session.watch(kind, path, watch)

        return register

    @overload
    async def get_children(
        self, path: str, watch: Watcher | None = None, include_data: Literal[False] = False
    ) -> list[str]: ...
    @overload
    async def get_children(
        self, path: str, watch: Watcher | None = None, *, include_data: Literal[True]
    ) -> tuple[list[str], Stat]: ...
    async def get_children(
        self, path: str, watch: Watcher | None = None, include_data: bool = False
    ) -> list[str] | tuple[list[str], Stat]:
        body = jute.pack_text(path) + _flag(watch)
        reader = Reader(
            await self._session.request(Op.GET_CHILDREN2, body, path, self._registration(WatchKind.CHILD, path, watch))
        )
        names = reader.texts()
        return (names, Stat.read(reader)) if include_data else names

    async def get_acls(self, path: str) -> tuple[Acl, Stat]:
        reader = Reader(await self._session.request(Op.GET_ACL, jute.pack_text(path), path))
        return reader.acl(), Stat.read(reader)

    async def add_watch(self, path: str, watch: Watcher, recursive: bool = False) -> None:
        """Tell of every change of the node and its list of children; recursive: of every node from here down."""
        kind = WatchKind.RECURSIVE if recursive else WatchKind.PERSISTENT
        body = jute.pack_text(path) + jute.pack_int(int(recursive))
        await self._session.request(Op.ADD_WATCH, body, path, self._registration(kind, path, watch))

    async def remove_watches(self, path: str) -> None:
        """All watches of this client on a path."""
        await self._session.request(Op.REMOVE_WATCHES, jute.pack_text(path) + jute.pack_int(3), path)
        self._session.forget(WatchKind, path)


class AsyncTransaction:
    """Operations that happen together or not at all."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parts: list[bytes] = []
        self._paths: list[str] = []

    def _add(self, op: int, path: str, body: bytes) -> None:
        self._parts += (MULTI_HEADER.pack(op, False, -1), body)
        self._paths.append(path)

    def create(
        self,
        path: str,
        value: bytes = b"",
        acl: Acl | None = None,
        ephemeral: bool = False,
        sequence: bool = False,
    ) -> None:
        body = jute.pack_text(path) + jute.pack_buffer(value) + jute.pack_acl(OPEN if acl is None else acl)
        self._add(Op.CREATE, path, body + jute.pack_int(int(ephemeral) + 2 * int(sequence)))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self._add(Op.SET_DATA, path, jute.pack_text(path) + jute.pack_buffer(value) + jute.pack_int(version))

    def delete(self, path: str, version: int = -1) -> None:
        self._add(Op.DELETE, path, jute.pack_text(path) + jute.pack_int(version))

    def check(self, path: str, version: int) -> None:
        self._add(Op.CHECK, path, jute.pack_text(path) + jute.pack_int(version))

    async def commit(self) -> list[str | Stat | None]:
        """A path for each create, a stat for each set_data, None for the others; or the error of the first part that
        was refused, and then nothing has happened."""
        body = b"".join((*self._parts, MULTI_HEADER.pack(-1, True, -1)))
        reader = Reader(await self._session.request(Op.MULTI, body))
        results: list[str | Stat | None] = []
        for path in self._paths:
            op, _, error = MULTI_HEADER.unpack(reader.take(MULTI_HEADER.size))
            if op == -1:
                reader.number()
                if error not in (Code.OK, Code.RUNTIME_INCONSISTENCY):
                    raise error_of(error, path)
                results.append(None)
            elif op == Op.CREATE:
                results.append(reader.text())
            elif op == Op.SET_DATA:
                results.append(Stat.read(reader))
            else:
                results.append(None)
        return results


def _flag(watch: object) -> bytes:
    return b"\1" if watch is not None else b"\0"


def digest_acl(user: str, password: str, permissions: int = ALL) -> Acl:
    """An access list for whoever proves this name and password."""
    return ((permissions, "digest", digest_id(f"{user}:{password}".encode())),)
