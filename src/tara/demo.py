"""`tara demo`: one simulated story. Writes, a crashed leader, the view change, recovery."""

from collections.abc import Callable

from msgspec import Struct

from tara.application import Get, Put
from tara.protocol.graph import Stage
from tara.protocol.limits import Limits
from tara.protocol.nodes.committer import Committer
from tara.simulator.scene import Scene


class DemoReport(Struct):
    writes: int
    view_before: int
    view_after: int
    #: Virtual milliseconds without an answer while the leader was gone.
    gap_ms: float
    checkpoints: int
    lost: int
    replicas_equal: bool

    @property
    def passed(self) -> bool:
        return self.lost == 0 and self.replicas_equal and self.view_after > self.view_before


def tell(say: Callable[[str], None]) -> DemoReport:
    limits = Limits(checkpoint_interval=16, window=64)
    scene = Scene(limits)
    expected: dict[str, bytes] = {}

    def write(count: int, site: int) -> None:
        for _ in range(count):
            key = f"key-{len(expected)}"
            scene.call(session, Put(key, key.encode()), site)
            expected[key] = key.encode()

    say("Three sites start. The view sources publish view 1; its proposer collects the committers' records.")
    scene.run(300)
    session = scene.open()
    write(20, site=0)
    leader = scene.leader()
    assert leader is not None
    view_before = scene.view
    say(f"A client writes 20 keys at site 0. View {view_before}: the active proposer is on site {leader.site}.")

    crashed_ms = scene.world.now_ms
    say(f"Site {leader.site} crashes, at {crashed_ms:.0f} ms, with the active proposer.")
    scene.crash(leader)
    write(1, site=(leader.site + 1) % 3)
    gap_ms = scene.world.now_ms - crashed_ms
    successor = scene.leader()
    assert successor is not None
    say(f"The controllers see no progress and ask for view {scene.view}. Its proposer, on site {successor.site},")
    say(f"starts from the records of two committers. The next write is answered after {gap_ms:.0f} ms.")
    write(20, site=(leader.site + 1) % 3)

    scene.restart(leader)
    say(f"Site {leader.site} starts again: journal replayed, checkpoint loaded, missing commits fetched.")
    scene.run(1_000)
    write(5, site=leader.site)
    scene.run(1_000)
    lost = sum(scene.call(session, Get(key), leader.site) != value for key, value in expected.items())
    scene.run(500)
    committers = [node for _, node in scene.world.nodes_of(Stage.COMMITTER) if isinstance(node, Committer)]
    positions = " ".join(str(node.commits.pos) for node in committers)
    say(
        f"All {len(expected)} writes are there. Committers at slot {positions}; replicas equal: {scene.states_equal()}."
    )
    return DemoReport(
        writes=len(expected),
        view_before=view_before,
        view_after=scene.view,
        gap_ms=round(gap_ms, 1),
        checkpoints=scene.world.monitor.stable,
        lost=lost,
        replicas_equal=scene.states_equal(),
    )
