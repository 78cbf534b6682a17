"""A front end and somebody who writes in sessions that are not his: real sockets, one site."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tara.application import Get, KeyValueStore, Put
from tara.client import Client, Forbidden
from tara.host import client_wire
from tara.host.routes import ROUTES_PER_CONNECTION_MAX
from tara.live.container import Container
from tara.net.certificates import Keys, load_keys
from tara.net.connection import Connection
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.protocol.principals import principal_of
from tests.live.single import single_site
from tests.patience import DEADLINE_S, await_condition, patient

PUT = msgspec.msgpack.encode(Put("account", b"stolen"))
SECRET = b"the secret of alice"


class Stranger:
    """Sends whatever it likes."""

    def __init__(self, address: str, secret: bytes | None = None, keys: Keys | None = None) -> None:
        self.socket = Connection.connect(address, 1 << 30, None if keys is None else keys.connecting)
        self.secret = os.urandom(16) if secret is None else secret
        self.results: list[t.Result] = []

    def send(self, *commands: t.Command) -> None:
        self.socket.send(
            client_wire.encode(client_wire.ClientRequest(t.FORMAT_VERSION, list(commands), [], self.secret))
        )

    def hear(self, count: int) -> list[t.Result]:
        def enough() -> bool:
            if self.socket.waits_to_write:
                self.socket.flush()
            for message in self.socket.receive():
                self.results += client_wire.decode_reply(message).results
            return len(self.results) >= count

        await_condition(enough, f"{count} results")
        return self.results


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Container]:
    with single_site(KeyValueStore, tmp_path) as site:
        yield site


@pytest.mark.parametrize("claimed", [b"", principal_of(SECRET)])
def test_a_stranger_neither_writes_in_a_session_nor_gets_its_answers(site: Container, claimed: bytes) -> None:
    """Also if he knows whose it is, and writes that into his commands."""
    with patient(site.client_address, secret=SECRET) as alice:
        alice.put("account", b"100")
        session = alice.client._conversation.session
        stranger = Stranger(site.client_address)
        stranger.send(t.Command(session.id, session._number, 0, PUT, t.EXECUTE, claimed))
        (refused,) = stranger.hear(1)
        assert (refused.session, refused.status) == (session.id, t.FORBIDDEN)
        alice.put("account", b"200")
        assert alice.get("account") == b"200"
        assert stranger.results == [refused]
        stranger.socket.close()


def test_with_keys_one_client_does_not_write_in_the_session_of_another(tmp_path: Path) -> None:
    """Although both may use the service, and though the secret of one is known to the other."""
    keys = tmp_path / "keys"
    make_cluster_keys(keys)
    alices, mallorys = make_client_keys(keys, "alice"), make_client_keys(keys, "mallory")
    with (
        single_site(KeyValueStore, tmp_path, keys=keys) as site,
        patient(site.client_address, secret=SECRET, keys=alices) as alice,
    ):
        alice.put("account", b"100")
        session = alice.client._conversation.session
        mallory = Stranger(site.client_address, SECRET, load_keys(mallorys))
        for number, kind in enumerate((t.EXECUTE, t.QUERY, t.CLOSE), session._number):
            mallory.send(t.Command(session.id, number, 0, PUT, kind))
        assert {(refused.session, refused.status) for refused in mallory.hear(3)} == {(session.id, t.FORBIDDEN)}
        assert alice.get("account") == b"100"
        alice.put("account", b"200")
        assert alice.get("account") == b"200"
        mallory.socket.close()


def test_who_presents_no_secret_is_told_so(site: Container) -> None:
    stranger = Stranger(site.client_address, b"too short")
    stranger.send(t.Command(0, 1, 0, msgspec.msgpack.encode(30_000), t.OPEN))
    (refused,) = stranger.hear(1)
    assert (refused.number, refused.status) == (1, t.FORBIDDEN)
    assert b"needs a secret" in refused.payload
    stranger.socket.close()


def test_a_session_with_a_name_is_shared_by_those_who_have_its_secret(site: Container) -> None:
    address = site.client_address
    with Client(address, name="orders", secret=SECRET, timeout_s=DEADLINE_S) as one:
        assert one.claim(5, b"mine").value == b"mine"
    with Client(address, name="orders", secret=SECRET, timeout_s=DEADLINE_S) as two:
        assert two.claim(5, b"theirs").value == b"mine"
    with (
        Client(address, name="orders", secret=bytes(16), timeout_s=DEADLINE_S) as stranger,
        pytest.raises(Forbidden, match="the session belongs to somebody else"),
    ):
        stranger.claim(6, b"stolen")


def test_a_session_with_a_name_needs_a_secret_that_lasts() -> None:
    with pytest.raises(ConfigurationError, match="needs a secret"):
        Client("127.0.0.1:1", name="orders")
    with pytest.raises(ConfigurationError, match="has 3 bytes, must have 16 to 64"):
        Client("127.0.0.1:1", secret=b"abc")


def test_more_sessions_than_a_front_end_can_remember_end_nothing(site: Container) -> None:
    """Most of these are refused, because the source is full, and of most of those the front end has forgotten by then
    where they came from."""
    with patient(site.client_address) as alice:
        alice.put("account", b"100")
        strangers = [Stranger(site.client_address) for _ in range(4)]
        for first, stranger in enumerate(strangers):
            base = 1000 + first * client_wire.MESSAGE_LENGTH_MAX
            stranger.send(*(t.Command(base + number, 0, 0, b"") for number in range(client_wire.MESSAGE_LENGTH_MAX)))
            stranger.hear(1)
        assert site.counters.overloaded > ROUTES_PER_CONNECTION_MAX
        alice.put("account", b"200")
        assert alice.get("account") == b"200"
        for stranger in strangers:
            stranger.socket.close()


def test_a_client_reads_more_than_its_session_may_keep(tmp_path: Path) -> None:
    """Its ordered reads are refused now and then, and all of them are answered, in their order."""
    kept = 100_000
    with (
        single_site(
            KeyValueStore, tmp_path, session_bytes_max=kept, principal_bytes_max=kept, sessions_bytes_max=kept
        ) as site,
        patient(site.client_address) as client,
    ):
        client.put("key", bytes(20_000))
        question = msgspec.msgpack.encode(Get("key"))
        waiting = [client.client._submit(question, t.QUERY, DEADLINE_S) for _ in range(200)]
        assert {msgspec.msgpack.decode(future.result()) for future in waiting} == {bytes(20_000)}
