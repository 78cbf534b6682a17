"""Events that an application publishes reach the clients: of one session, or all."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

from tara.application import Context, StateMachine
from tara.client import AsyncClient, Client
from tests.live.single import single_site
from tests.patience import DEADLINE_S


class Town(StateMachine):
    """A command that begins with `!` is for all to hear, another one is told to who said it."""

    def apply(self, command: bytes, context: Context) -> bytes:
        context.publish(command, 0 if command.startswith(b"!") else context.session)
        return b""

    def query(self, question: bytes, context: Context) -> bytes:
        return b""

    def snapshot(self) -> Iterator[bytes]:
        yield b""

    def restore(self, chunks: Iterable[bytes]) -> None:
        return


def test_events_reach_their_session_or_everybody_in_order(tmp_path: Path) -> None:
    ann: list[tuple[int, bytes]] = []
    bob: list[bytes] = []
    with (
        single_site(Town, tmp_path) as site,
        Client(site.client_address, on_event=lambda counter, payload: ann.append((counter, payload))) as one,
        Client(site.client_address, on_event=lambda counter, payload: bob.append(payload)) as two,
    ):
        two.execute(b"only bob")
        one.execute(b"only ann")
        one.execute(b"!everybody")
        one.execute(b"again")
        two.execute(b"!last")
        one.query(b"")
        two.query(b"")
    assert [payload for _, payload in ann] == [b"only ann", b"!everybody", b"again", b"!last"]
    assert [counter for counter, _ in ann] == sorted({counter for counter, _ in ann})
    assert bob == [b"only bob", b"!everybody", b"!last"]


def test_events_for_asyncio_come_on_the_loop(tmp_path: Path) -> None:
    async def work(address: str) -> bytes:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        async with AsyncClient(address, on_event=lambda counter, payload: heard.put_nowait(payload)) as client:
            await client.execute(b"hello")
            return await asyncio.wait_for(heard.get(), DEADLINE_S)

    with single_site(Town, tmp_path) as site:
        assert asyncio.run(work(site.client_address)) == b"hello"
