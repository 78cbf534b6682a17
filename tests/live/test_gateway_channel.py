"""A gateway's session in the replicated log: what it does when the replicas have no room for its results."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tara.application import KeyValueStore
from tara.net.gateway import AGAIN_S, Channel
from tara.protocol import tuples as t
from tara.protocol.limits import Limits


class Site:
    """Writes down what is submitted."""

    site = 0
    host = ""
    data_dir = Path()
    limits = Limits()
    application = KeyValueStore()
    counter = 0

    def __init__(self) -> None:
        self.submitted: list[t.Command] = []

    def capacity(self, session: int) -> int:
        return 100

    def submit(self, commands: list[t.Command]) -> None:
        self.submitted += commands

    def take(self) -> list[t.Command]:
        taken, self.submitted = self.submitted, []
        return taken


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def channel(site: Site) -> Iterator[Channel[str]]:
    lost: list[list[str]] = []
    channel = Channel[str](site, lost.append)
    channel.pump(1.0)
    (opening,) = site.take()
    channel.hear(t.Result(0, opening.number, 1, t.OK, msgspec.msgpack.encode((9, 30_000))))
    yield channel
    assert lost == []


def test_what_the_replicas_had_no_room_for_is_submitted_again(site: Site, channel: Channel[str]) -> None:
    for token in ("a", "b", "c"):
        channel.order(token.encode(), token)
    channel.pump(2.0)
    assert [command.payload for command in site.take()] == [b"a", b"b", b"c"]
    assert channel.hear(t.Result(9, 0, 2, t.OK, b"")) == "a"
    assert channel.hear(t.Result(9, 1, 2, t.UNACKNOWLEDGED, b"")) is None
    assert channel.hear(t.Result(9, 2, 2, t.UNACKNOWLEDGED, b"")) is None
    channel.pump(2.0 + AGAIN_S / 2)
    assert site.take() == []
    channel.pump(2.0 + AGAIN_S)
    again = site.take()
    # Under the same numbers, and it says that it has the result of the first.
    assert [(command.number, command.acknowledged, command.payload) for command in again] == [
        (1, 1, b"b"),
        (2, 1, b"c"),
    ]
    assert [channel.hear(t.Result(9, number, 3, t.OK, b"")) for number in (1, 2)] == ["b", "c"]
    channel.pump(10.0)
    assert site.take() == []
    assert len(channel) == 0


def test_a_command_that_is_refused_for_good_does_not_hold_up_the_others(site: Site) -> None:
    """Its number is missing, so what follows would wait for ever: the channel begins anew."""
    lost: list[list[str]] = []
    channel = Channel[str](site, lost.append)
    channel.pump(1.0)
    (opening,) = site.take()
    channel.hear(t.Result(0, opening.number, 1, t.OK, msgspec.msgpack.encode((9, 30_000))))
    for token in ("a", "b", "c"):
        channel.order(token.encode(), token)
    channel.pump(2.0)
    assert channel.hear(t.Result(9, 1, 0, t.TOO_LARGE, b"")) is None
    assert (lost, len(channel), channel.id) == ([["a", "b", "c"]], 0, 0)
