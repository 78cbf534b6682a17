"""Lock and election for asyncio. Fair: contenders get their turn in the order of their sequential ephemeral nodes.

A contender's node carries a unique name, so that it is found again if the connection broke before its creation was
answered. A waiting contender watches only the one before it. A holder that is cut off must stop: `lost` is set as soon
as the client is not connected, and whoever acts on the lock should look at it.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tara.apps.coordination.async_client import AsyncCoordinationClient
from tara.apps.coordination.errors import ConnectionLoss, NoNode
from tara.apps.coordination.paths import child_of
from tara.apps.coordination.wire_client import State, WatchEvent

Answer = TypeVar("Answer")

SEQUENCE_DIGITS = 10


class AsyncLock:
    """`async with AsyncLock(client, "/lock"): …`; one object for one contender, not re-entrant."""

    def __init__(self, client: AsyncCoordinationClient, path: str, identifier: str = "") -> None:
        self._client = client
        self._path = path
        self._identifier = identifier.encode()
        self._prefix = f"{uuid.uuid4().hex}__lock__"
        self._node: str | None = None
        self.acquired = False
        #: Set while the lock cannot be relied on: the client is cut off, or does not hold it.
        self.lost = asyncio.Event()
        self.lost.set()

    async def acquire(self, blocking: bool = True, timeout_s: float | None = None) -> bool:
        """Whether the lock is held now."""
        if self.acquired:
            raise RuntimeError("this lock is held already")
        try:
            self.acquired = await asyncio.wait_for(self._acquire(blocking), timeout_s)
        except TimeoutError:
            self.acquired = False
        finally:
            if not self.acquired:
                await asyncio.shield(self._withdraw())
        if self.acquired:
            self.lost.clear()
            self._client.add_listener(self._on_state)
            if self._client.state is not State.CONNECTED:
                self.lost.set()
        return self.acquired

    async def release(self) -> None:
        self._client.remove_listener(self._on_state)
        self.lost.set()
        self.acquired = False
        await self._withdraw()

    async def contenders(self) -> list[str]:
        """Who holds the lock, and who waits, in their order."""
        names = await self._persist(lambda: self._queue())
        found = []
        for name in names:
            try:
                found.append((await self._persist(lambda name=name: self._client.get(child_of(self._path, name))))[0])  # type: ignore[misc]
            except NoNode:
                continue
        return [value.decode(errors="replace") for value in found]

    async def __aenter__(self) -> "AsyncLock":
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    def _on_state(self, state: State) -> None:
        if state is not State.CONNECTED:
            self.lost.set()
        elif self.acquired and state is State.CONNECTED and self._session == self._client.session_id:
            # The session, and with it the node, has survived.
            self.lost.clear()

    async def _acquire(self, blocking: bool) -> bool:
        await self._persist(lambda: self._client.ensure_path(self._path))
        while True:
            node = await self._persist(self._enter)
            names = await self._persist(self._queue)
            if node not in names:
                # The session ended meanwhile; line up again.
                self._node = None
                continue
            position = names.index(node)
            if position == 0:
                return True
            if not blocking:
                return False
            gone = asyncio.Event()

            def on_gone(event: WatchEvent, gone: asyncio.Event = gone) -> None:
                gone.set()

            before = child_of(self._path, names[position - 1])
            if await self._persist(lambda: self._client.exists(before, watch=on_gone)) is not None:  # noqa: B023
                await self._wait(gone)

    async def _wait(self, gone: asyncio.Event) -> None:
        """Until the one before is gone, or the session is: its watches are then gone, too."""

        def on_state(state: State) -> None:
            if state is State.LOST:
                gone.set()

        self._client.add_listener(on_state)
        try:
            await gone.wait()
        finally:
            self._client.remove_listener(on_state)

    async def _enter(self) -> str:
        """The name of our node; made if it is not there."""
        self._session = self._client.session_id
        for name in await self._client.get_children(self._path):
            if name.startswith(self._prefix):
                self._node = name
                return name
        path = await self._client.create(
            child_of(self._path, self._prefix), self._identifier, ephemeral=True, sequence=True
        )
        self._node = path.rsplit("/", 1)[1]
        return self._node

    async def _queue(self) -> list[str]:
        names = [name for name in await self._client.get_children(self._path) if "__lock__" in name]
        return sorted(names, key=lambda name: name[-SEQUENCE_DIGITS:])

    async def _withdraw(self) -> None:
        """Take our node away, also one that we did not hear of."""

        async def attempt() -> None:
            for name in await self._client.get_children(self._path):
                if name.startswith(self._prefix):
                    await self._client.delete(child_of(self._path, name))

        try:
            await self._persist(attempt)
        except NoNode:
            return
        finally:
            self._node = None

    async def _persist(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Try again when the connection is back, as often as it breaks. For what may happen twice."""
        while True:
            try:
                return await attempt()
            except ConnectionLoss:
                if self._client.state is State.CLOSED:
                    raise
                await self._client.wait_connected()


class AsyncElection:
    """One leader at a time: each candidate leads when its turn comes, until its function returns."""

    def __init__(self, client: AsyncCoordinationClient, path: str, identifier: str = "") -> None:
        self.lock = AsyncLock(client, path, identifier)

    async def run(self, lead: Callable[[], Awaitable[Answer]]) -> Answer:
        async with self.lock:
            return await lead()

    async def contenders(self) -> list[str]:
        """The leader first."""
        return await self.lock.contenders()
