"""Simulated clients that speak ZooKeeper's protocol, and the links between them and the front ends."""

import msgspec
import pytest

from tara.apps.coordination import jute
from tara.apps.coordination.codes import Mode, Op
from tara.apps.coordination.wire_simulation import WATCHED, Link, ZooKeeperClient, ZooKeeperWire, watches_max
from tara.protocol.limits import Limits
from tara.simulator.scene import quiet_plan
from tara.simulator.world import World


def served(seed: int = 0) -> tuple[World, ZooKeeperClient]:
    """A world with one client, which has a session and nothing to say."""
    plan = msgspec.structs.replace(
        quiet_plan(Limits(window=64, checkpoint_interval=16)),
        seed=seed,
        app="coordination",
        wire=True,
        clients=1,
        commands_per_client=1_000,
        think_ms=1_000_000_000,
    )
    world = World(plan)
    world.start()
    (client,) = world.clients
    assert isinstance(client, ZooKeeperClient)
    world.run_until(1_000)
    assert client._joined
    return world, client


def test_a_client_that_comes_back_asks_for_no_more_watches_than_it_may_have() -> None:
    """It would be refused, and at the next front end again; and so on."""
    few = next(seed for seed in range(100) if watches_max(seed) == 4)
    world, client = served(few)
    for path in ("/a", "/b", "/c", WATCHED):
        client._request(Op.CREATE, client._create(path, b"", Mode.PERSISTENT))
    client._request(Op.EXISTS, jute.pack_text(WATCHED) + b"\1", client._check_watched())
    world.run_until(world.now_ms + 200)
    assert client._watched
    assert not client._pending

    client._hang_up()
    world.run_until(world.now_ms + 200)
    link = client._link
    world.run_until(world.now_ms + 400)

    assert client._joined
    assert client._link is link
    assert not client._pending


def test_answers_leave_in_the_order_in_which_connections_were_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that were opened at one time: a run is the same wherever its objects are in memory."""
    world, client = served()
    assert isinstance(world.wire, ZooKeeperWire)
    gateway = world.wire.gateways[client._site]
    gateway._step_s = 0.0
    gateway.front_end.settings = msgspec.structs.replace(gateway.front_end.settings, max_client_connections=0)
    links = [Link(world, client, gateway) for _ in range(32)]
    answered: list[Link] = []
    monkeypatch.setattr(Link, "answer", lambda link, data: answered.append(link))
    for link in links:
        assert gateway.connect(link)
    for link in reversed(links):
        assert link.connection is not None
        gateway.front_end.send(link.connection, b"answer")
    gateway._flush()
    assert answered == links
