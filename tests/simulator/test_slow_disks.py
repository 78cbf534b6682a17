"""Disks that are slow, not broken."""

import pytest

from tara.application import Put
from tara.protocol.limits import Limits
from tara.simulator.scene import Scene


@pytest.mark.parametrize("sync_ms", [300.0, 3_000.0])
@pytest.mark.parametrize("slow", [2, 3])
def test_a_site_that_waits_for_its_disk_deposes_nobody(sync_ms: float, slow: int) -> None:
    """A controller stands still with the committer beside it, and so nobody asks for a view that would help nobody."""
    scene = Scene(Limits())
    session = scene.open()
    view = scene.view
    for container in scene.world.containers[:slow]:
        container.disk.sync_ms = sync_ms
    for number in range(5):
        scene.wait(scene.send(session, Put("key", b"%d" % number)), 60_000)
    assert scene.view == view
