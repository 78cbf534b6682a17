"""Servers as tests need them."""

from collections.abc import Callable

from tara.net.certificates import Guard
from tara.net.port import Terms
from tara.net.server import Address, Server

ANYWHERE = Address("127.0.0.1", 0)


def ignore(reason: str) -> None:
    """Nobody is interested."""


def serve(
    frame_bytes_max: int = 1 << 20,
    on_bad: Callable[[str], None] = ignore,
    on_refused: Callable[[str], None] = ignore,
    guard: Guard | None = None,
    address: Address = ANYWHERE,
    connections_max: int = 10_000,
) -> Server:
    return Server(address, Terms(frame_bytes_max, connections_max, guard, on_bad, on_refused))
