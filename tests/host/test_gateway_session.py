"""A gateway's session in the replicated log: what it does when the replicas have no room for its results."""

from collections.abc import Iterator

import msgspec
import pytest

from tara.host.gateway_session import AGAIN_S, GatewaySession
from tara.protocol import tuples as t
from tara.protocol.limits import Limits


class Site:
    """Writes down what is submitted."""

    limits = Limits()

    def __init__(self) -> None:
        self.submitted: list[t.Command] = []

    def submit(self, commands: list[t.Command]) -> None:
        self.submitted += commands

    def take(self) -> list[t.Command]:
        taken, self.submitted = self.submitted, []
        return taken


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def session(site: Site) -> Iterator[GatewaySession[str]]:
    lost: list[list[str]] = []
    session = GatewaySession[str](site, lost.append, bytes)
    session.pump(1.0)
    (opening,) = site.take()
    session.hear(t.Result(0, opening.number, 1, t.OK, msgspec.msgpack.encode((9, 30_000))))
    yield session
    assert lost == []


def test_what_the_replicas_had_no_room_for_is_submitted_again(site: Site, session: GatewaySession[str]) -> None:
    for token in ("a", "b", "c"):
        session.order(token.encode(), token)
    session.pump(2.0)
    assert [command.payload for command in site.take()] == [b"a", b"b", b"c"]
    assert session.hear(t.Result(9, 0, 2, t.OK, b"")) == "a"
    assert session.hear(t.Result(9, 1, 2, t.UNACKNOWLEDGED, b"")) is None
    assert session.hear(t.Result(9, 2, 2, t.UNACKNOWLEDGED, b"")) is None
    session.pump(2.0 + AGAIN_S / 2)
    assert site.take() == []
    session.pump(2.0 + AGAIN_S)
    again = site.take()
    # Under the same numbers, and it says that it has the result of the first.
    assert [(command.number, command.acknowledged, command.payload) for command in again] == [
        (1, 1, b"b"),
        (2, 1, b"c"),
    ]
    assert [session.hear(t.Result(9, number, 3, t.OK, b"")) for number in (1, 2)] == ["b", "c"]
    session.pump(10.0)
    assert site.take() == []
    assert len(session) == 0


def test_no_more_is_in_flight_than_the_replicas_keep_results_for(
    site: Site, session: GatewaySession[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "limits", Limits(session_pipeline_max=2))
    for token in ("a", "b", "c"):
        session.order(token.encode(), token)
    session.pump(2.0)
    assert [command.payload for command in site.take()] == [b"a", b"b"]
    assert session.hear(t.Result(9, 0, 2, t.OK, b"")) == "a"
    session.pump(2.1)
    assert [(command.number, command.acknowledged) for command in site.take()] == [(2, 1)]


def test_a_command_that_is_refused_for_good_does_not_hold_up_the_others(site: Site) -> None:
    """Its number is missing, so what follows would wait for ever: the session begins anew."""
    lost: list[list[str]] = []
    session = GatewaySession[str](site, lost.append, bytes)
    session.pump(1.0)
    (opening,) = site.take()
    session.hear(t.Result(0, opening.number, 1, t.OK, msgspec.msgpack.encode((9, 30_000))))
    for token in ("a", "b", "c"):
        session.order(token.encode(), token)
    session.pump(2.0)
    assert session.hear(t.Result(9, 1, 0, t.TOO_LARGE, b"")) is None
    assert (lost, len(session), session.id) == ([["a", "b", "c"]], 0, 0)
