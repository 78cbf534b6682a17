"""Links that are slow, not broken."""

import pytest

from tara.application import Put
from tara.protocol.graph import Stage
from tara.protocol.limits import Limits
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import Controller
from tara.simulator.checks.bulk import VIEW_CHANGES_MAX
from tara.simulator.scene import Scene
from tara.simulator.slow_links import play

MEGABYTE = 1 << 20


@pytest.mark.parametrize("in_flight", [1, 8])
def test_large_commands_over_slow_links_depose_nobody(in_flight: int) -> None:
    run = play(rate_mbit=100, commands=16, command_bytes=MEGABYTE, in_flight=in_flight)
    assert run.answered == 16
    assert run.view_changes == 0


@pytest.mark.soak
@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("rate_mbit", [20, 100])
def test_fifty_large_commands_are_answered_with_few_view_changes(rate_mbit: float, in_flight: int) -> None:
    run = play(rate_mbit=rate_mbit, commands=50, command_bytes=MEGABYTE, in_flight=in_flight)
    assert run.answered == 50
    assert run.view_changes <= VIEW_CHANGES_MAX


def test_several_commands_in_flight_use_the_link_as_well_as_one() -> None:
    """What is sent again must not take the place of what is sent first."""
    one = play(rate_mbit=100, commands=8, command_bytes=MEGABYTE, in_flight=1)
    eight = play(rate_mbit=100, commands=8, command_bytes=MEGABYTE, in_flight=8)
    assert eight.seconds < one.seconds


def test_a_view_change_over_slow_links_comes_to_its_end() -> None:
    """All controllers are wrong once, with several megabytes in the window: records and re-proposals take much longer
    than any time-out, but they come."""
    scene = Scene(Limits(), rate_mbit=50)
    session = scene.open()
    for _ in range(6):
        scene.wait(scene.send(session, Put("key", bytes(MEGABYTE - 100))), 60_000)
    view = scene.view
    for _, node in scene.world.nodes_of(Stage.CONTROLLER):
        assert isinstance(node, Controller)
        node.timeout_ms = node.limits.controller_timeout_ms
        node.suspect()
    for number in range(3):
        scene.wait(scene.send(session, Put("key", b"%d" % number)), 60_000)
    assert view < scene.view <= view + VIEW_CHANGES_MAX


def test_a_proposer_that_dies_among_large_commands_is_replaced() -> None:
    scene = Scene(Limits(), rate_mbit=100)
    session = scene.open()
    for _ in range(4):
        scene.wait(scene.send(session, Put("key", bytes(MEGABYTE - 100))), 60_000)
    leader = scene.leader()
    assert leader is not None
    key = scene.send(session, Put("key", bytes(MEGABYTE - 100)))
    scene.run(50)
    scene.world.lose(leader)
    scene.wait(key, 60_000)
    assert scene.leader() is not leader


def test_what_a_view_begins_with_comes_as_fast_as_the_links_carry_it() -> None:
    """Longer than half of what may wait for a link, it goes portion by portion. Each came after a pause that is right
    for 10 Mbit/s."""
    limits = Limits(checkpoint_bytes_max=1 << 30)
    scene = Scene(limits, rate_mbit=1_000)
    session = scene.open()
    while (length := max(record_bytes(scene))) <= limits.link_bytes_max // 2:
        scene.wait(scene.send(session, Put("key", bytes(MEGABYTE - 100))), 60_000)
    leader = scene.leader()
    assert leader is not None
    scene.world.lose(leader)
    begin_ms = scene.world.now_ms
    scene.wait(scene.send(session, Put("key", b"")), 60_000)
    carried_ms = 8 * length / (1_000 * 1_000)
    assert scene.world.now_ms - begin_ms < 10 * carried_ms


def record_bytes(scene: Scene) -> list[int]:
    """What each committer would have to tell the proposer of a new view."""
    committers = [node for _, node in scene.world.nodes_of(Stage.COMMITTER)]
    assert all(isinstance(node, Committer) for node in committers)
    return [
        sum(
            len(request.body)
            for request in node.acceptor.commits.slice(node.acceptor.commits.min, node.acceptor.commits.pos)
        )
        for node in committers
        if isinstance(node, Committer)
    ]
