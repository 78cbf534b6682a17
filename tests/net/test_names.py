"""Names of hosts: whoever connects never waits for a resolver, and names work although it is slow or fails."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tara.net import names
from tara.net.channel import Channels, SteadyChannel
from tara.net.errors import Broken
from tara.net.links import Links
from tara.net.names import Names
from tests.net.terms import ignore, serve
from tests.patience import DEADLINE_S, await_condition


class Resolver:
    """Knows the hosts of `known`, and answers while `awake` is set."""

    def __init__(self) -> None:
        self.known = {"host.example": "127.0.0.1"}
        self.awake = threading.Event()
        self.awake.set()
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, port: object, *_: object) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        assert self.awake.wait(DEADLINE_S)
        if host not in self.known:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.known[host], 0))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    monkeypatch.setattr(names, "FRESH_S", 0.0)
    yield resolver
    resolver.awake.set()


def awaited(found: Names, host: str = "host.example") -> str:
    """Its address, as soon as it is known."""
    address = ""

    def known() -> bool:
        nonlocal address
        try:
            address = found.address_of(host)
        except Broken:
            return False
        return True

    await_condition(known, host)
    return address


def by_name(address: str) -> str:
    return f"tcp://host.example:{address.rpartition(':')[2]}"


def test_an_address_needs_no_resolver(resolver: Resolver) -> None:
    assert Names().address_of("127.0.0.1") == "127.0.0.1"
    assert resolver.asked == []


def test_who_may_not_wait_is_told_to_come_again(resolver: Resolver) -> None:
    resolver.awake.clear()
    found = Names()
    for _ in range(100):
        with pytest.raises(Broken, match=r"host\.example: the resolver has not answered yet"):
            found.address_of("host.example")
    # One thread, however often it is asked.
    assert resolver.asked == ["host.example"]
    resolver.awake.set()
    assert awaited(found) == "127.0.0.1"


def test_a_host_that_has_moved_is_found(resolver: Resolver) -> None:
    found = Names()
    assert awaited(found) == "127.0.0.1"
    resolver.known["host.example"] = "127.0.0.2"
    await_condition(lambda: awaited(found) == "127.0.0.2", "the new address")


def test_a_look_up_is_not_repeated_at_once(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "FRESH_S", DEADLINE_S)
    found = Names()
    for _ in range(10):
        assert awaited(found) == "127.0.0.1"
    assert resolver.asked == ["host.example"]


@pytest.mark.parametrize("failure", ["says no", "hangs"])
def test_the_last_good_address_does_while_the_resolver_fails(
    resolver: Resolver, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "PATIENCE_S", 0.2)
    found = Names()
    assert awaited(found) == "127.0.0.1"
    if failure == "hangs":
        resolver.awake.clear()
    else:
        del resolver.known["host.example"]
    asked = len(resolver.asked)
    assert awaited(found) == "127.0.0.1"
    assert len(resolver.asked) > asked


def test_what_the_resolver_says_is_told(resolver: Resolver) -> None:
    with pytest.raises(Broken, match=r"nowhere\.example: .*Temporary failure in name resolution"):
        Names(wait_s=DEADLINE_S).address_of("nowhere.example")
    with pytest.raises(Broken, match=r"nowhere\.example: .*Temporary failure in name resolution"):
        names.look_up("nowhere.example")


def test_only_so_many_names_are_remembered(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "NAMES_MAX", 2)
    found = Names(wait_s=DEADLINE_S)
    resolver.known |= {f"host-{number}.example": f"127.0.0.{number}" for number in range(1, 6)}
    for number in range(1, 6):
        assert found.address_of(f"host-{number}.example") == f"127.0.0.{number}"
    assert len(found._look_ups) == len(found._good) == 2
    # None is given up that is on its way.
    resolver.awake.clear()
    waiting = Names()
    for number, reason in ((1, "not answered yet"), (2, "not answered yet"), (3, "too many names")):
        with pytest.raises(Broken, match=reason):
            waiting.address_of(f"host-{number}.example")


def test_links_go_on_while_a_resolver_hangs(resolver: Resolver) -> None:
    resolver.awake.clear()
    one, two = (Links("127.0.0.1", 0, 2, 1 << 20, ignore) for _ in range(2))
    with closing(one), closing(two):
        began_s = time.monotonic()
        one.connect(1, by_name(two.address))
        for _ in range(20):
            one.tick()
        assert time.monotonic() - began_s < DEADLINE_S / 2
        assert not one.send(1, b"too early")
        resolver.awake.set()
        heard: list[bytes] = []

        def arrived() -> bool:
            one.tick()
            one.send(1, b"hello")
            one.receive()
            heard.extend(two.receive())
            return bool(heard)

        await_condition(arrived, "a frame")


def test_a_steady_channel_goes_on_while_a_resolver_hangs(resolver: Resolver) -> None:
    resolver.awake.clear()
    with closing(serve()) as server, closing(SteadyChannel(by_name(server.address), None)) as channel:
        channel.send(b"hello")
        assert not channel.open
        resolver.awake.set()
        heard: list[tuple[bytes, bytes]] = []

        def arrived() -> bool:
            channel.receive()
            heard.extend(server.receive())
            return bool(heard)

        await_condition(arrived, "what was sent before")


def test_a_channel_of_a_client_waits_a_moment_for_the_resolver(resolver: Resolver) -> None:
    with closing(serve()) as server, closing(Channels(None).open(by_name(server.address))) as channel:
        assert not channel.broken
