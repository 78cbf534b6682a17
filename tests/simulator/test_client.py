"""The simulated client."""

import msgspec
import pytest

from tara.protocol.graph import Stage
from tara.protocol.limits import Limits
from tara.protocol.nodes.executor import Executor
from tara.simulator.client import Client
from tara.simulator.scene import quiet_plan
from tara.simulator.world import World

COMMANDS = 28


@pytest.mark.parametrize("bound", [{"session_bytes_max": 1_000}, {"session_pipeline_max": 3}])
def test_what_the_replicas_do_not_keep_is_sent_again_soon(bound: dict[str, int]) -> None:
    """A session keeps three results only, and the client sends much more at once. Each time it sends the rest again it
    says which results it has: that takes as many turns as there are handfuls, but none of them is a long one."""
    limits = msgspec.structs.replace(Limits(window=64, checkpoint_interval=16), **bound)
    plan = msgspec.structs.replace(
        quiet_plan(limits), clients=1, commands_per_client=COMMANDS, pipeline=COMMANDS, think_ms=10_000
    )
    world = World(plan)
    world.start()
    (client,) = world.clients
    assert isinstance(client, Client)
    while not client.session:
        world.run_until(world.now_ms + 10)
    client.burst()
    world.run_until(world.now_ms + 2_000)
    assert client.done, sorted(client.in_flight)
    assert world.faults["unacknowledged"] >= COMMANDS // 3 - 1


def test_a_client_that_is_done_lets_go_of_its_results_while_others_are_not() -> None:
    """It is still there. Else its last long result would be in the way of all others until its session expires."""
    plan = msgspec.structs.replace(
        quiet_plan(Limits(window=64, checkpoint_interval=16)),
        clients=2,
        commands_per_client=200,
        session_timeout_ms=3_000,
    )
    world = World(plan)
    world.healed = True
    world.start()
    quick, slow = world.clients
    assert isinstance(quick, Client)
    quick.go_on(3)
    while not quick.done:
        world.run_until(world.now_ms + 10)
    world.run_until(world.now_ms + 1_500)
    assert not slow.done
    for _, node in world.nodes_of(Stage.EXECUTOR):
        assert isinstance(node, Executor)
        assert node.sessions._sessions[quick.session].results == {}
