"""Every process is lost at once and started again: how soon the next command is answered, in virtual time.

Committers know their views from their journals, everybody else begins anew, and the containers do not come at the same
moment. The first view must come from what they tell each other, and not from time-outs that double until somebody has
counted up to it.
"""

import itertools

import pytest

from tara.application import Get, Put
from tara.protocol.limits import Limits
from tara.simulator.scene import Scene

#: Less than the first time-out: rounds of reports and of sending again, and nothing else.
AT_ONCE_MS = 249
#: If the leader that the committers agree on is not there yet: two or three time-outs, and none that has doubled often.
WITHOUT_ONE_MS = 1_000
#: If one waited for seconds before there was a second one, its time-outs had doubled by then.
LATE_MS = 3_000

ORDERS = list(itertools.permutations(range(3)))


def old_scene(view_changes: int, partitions: int) -> tuple[Scene, int]:
    """A cluster with a history: commands, checkpoints, views."""
    scene = Scene(Limits(partitions=partitions, checkpoint_interval=20, window=80))
    session = scene.open()
    for number in range(view_changes):
        leader = scene.leader()
        assert leader is not None
        scene.crash(leader)
        scene.run(2_000)
        scene.restart(leader)
        scene.run(2_000)
        scene.call(session, Put("key", b"%d" % number), site=number % 3)
    for _ in range(30):
        scene.call(session, Put("key", b"last"))
    return scene, session


def answered_after_ms(scene: Scene, session: int, starts_ms: dict[int, int]) -> float:
    """All crash, and start again at these times; sites that are not named stay away. Counted from the last start."""
    for container in scene.world.containers:
        scene.crash(container)
    scene.run(1_000)
    passed_ms = 0
    for site, start_ms in sorted(starts_ms.items(), key=lambda entry: entry[1]):
        scene.run(start_ms - passed_ms)
        passed_ms = start_ms
        scene.restart(scene.world.containers[site])
    began_ms = scene.world.now_ms
    key = scene.send(session, Get("key"), site=min(starts_ms, key=lambda site: starts_ms[site]))
    scene.wait(key)
    return scene.world.now_ms - began_ms


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("view_changes", [0, 1, 2, 5])
def test_without_a_time_out_if_all_come_at_once(view_changes: int, partitions: int) -> None:
    scene, session = old_scene(view_changes, partitions)

    assert answered_after_ms(scene, session, dict.fromkeys(range(3), 0)) <= AT_ONCE_MS


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("view_changes", [0, 3])
def test_with_few_time_outs_if_one_stays_away(view_changes: int, order: tuple[int, int, int]) -> None:
    scene, session = old_scene(view_changes, partitions=1)

    assert answered_after_ms(scene, session, {order[0]: 0, order[1]: 40}) <= WITHOUT_ONE_MS


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("view_changes", [0, 3])
def test_soon_if_one_has_waited_for_the_others(view_changes: int, order: tuple[int, int, int]) -> None:
    scene, session = old_scene(view_changes, partitions=1)

    assert answered_after_ms(scene, session, {order[0]: 0, order[1]: 4_000}) <= LATE_MS


@pytest.mark.parametrize("times", [1, 4])
def test_as_soon_after_many_losses(times: int) -> None:
    """Each loss costs a view; that must not add up."""
    scene, session = old_scene(view_changes=0, partitions=1)
    longest_ms = max(answered_after_ms(scene, session, dict.fromkeys(range(3), 0)) for _ in range(times))

    assert longest_ms <= AT_ONCE_MS
    assert scene.call(session, Get("key")) == b"last"
