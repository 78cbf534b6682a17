"""Whole systems in situations that once stopped them, or could. Directed by hand, in virtual time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import msgspec
import pytest

from tara.application import Get, Put
from tara.bench.protocol_speed import measure
from tara.protocol import tuples as t
from tara.protocol.execution import REQUEST_BYTES
from tara.protocol.graph import Stage
from tara.protocol.limits import Limits
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import Controller
from tara.protocol.nodes.executor import Executor
from tara.simulator.campaign import Job, run_seed
from tara.simulator.checks.violation import Violation
from tara.simulator.container import Parcel, SimulatedContainer
from tara.simulator.faults.fatal_command import FatalCommand
from tara.simulator.scene import Scene
from tara.simulator.workload import wrap

#: Silent request sources stay silent, so that a scene has only the requests that it sends.
SILENT_MS = 1_000_000
SMALL = Limits(checkpoint_interval=16, window=64, keepalive_interval_ms=SILENT_MS)
#: A command that waits no longer than this has not waited for a view change.
NO_OUTAGE_MS = SMALL.controller_timeout_ms
#: Several fruitless views, one after the other, fit into this.
LONG_MS = 10_000


@contextmanager
def losing(scene: Scene, lost: Callable[[int, int, t.Tuple], bool]) -> Iterator[None]:
    """The network loses the tuples for which `lost` (from site, to site, tuple) is true."""
    story = mock.Mock(take=lambda sender, peer, parcel: lost(sender.site, peer.site, parcel[0]))
    scene.world.stories.append(story)
    yield
    scene.world.stories.remove(story)


@contextmanager
def saving(scene: Scene, delay_ms: Callable[[int, int], float]) -> Iterator[None]:
    """Until a store says that a checkpoint is durable takes `delay_ms` (site, checkpoint)."""
    world = scene.world
    answer = world.stores._answer

    def answer_late(container: SimulatedContainer, life: int, answers: list[Parcel]) -> None:
        for parcel in answers:
            if isinstance(parcel[0], t.Saved):
                delay = delay_ms(container.site, parcel[0].checkpoint.number)
                world.after(delay, answer, container, life, [parcel])
            else:
                answer(container, life, [parcel])

    with mock.patch.object(world.stores, "_answer", answer_late):
        yield


def running(limits: Limits, packing: str = "site") -> tuple[Scene, int]:
    """A system in its first view, and an open session."""
    scene = Scene(limits, packing)
    scene.run(300)
    session = scene.open()
    scene.call(session, Put("first", b"1"))
    scene.run(200)
    return scene, session


def leader_site(scene: Scene, partition: int = 0) -> int:
    leader = scene.leader(partition)
    assert leader is not None
    return leader.site


def committers(scene: Scene) -> list[Committer]:
    return [node for _, node in scene.world.nodes_of(Stage.COMMITTER) if isinstance(node, Committer)]


def positions(scene: Scene) -> list[list[int]]:
    """Of each living executor: where each partition is."""
    return [[learner.position for learner in executor._learners] for executor in scene.executors()]


def is_order_of(tuple_: t.Tuple, partition: int) -> bool:
    """Whether it is a step on the way to a decision of the partition."""
    return isinstance(tuple_, t.Proposal | t.Commit) and tuple_.partition == partition


def restarted_after_genesis(crash_ms: float, down_ms: float, packing: str = "site", partitions: int = 1) -> Scene:
    """All containers crash, and start again."""
    scene = Scene(Limits(partitions=partitions, checkpoint_interval=16, window=32), packing)
    scene.run(crash_ms)
    for container in scene.world.containers:
        scene.crash(container)
    scene.run(down_ms)
    for container in scene.world.containers:
        scene.restart(container)
    return scene


@pytest.mark.parametrize("packing", ["site", "node"])
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("crash_ms", [0, 0.7, 1.5, 2, 3, 4, 5])
def test_a_system_that_crashes_right_after_genesis_comes_up(crash_ms: float, partitions: int, packing: str) -> None:
    """The news that view 1 is there may be lost with everybody who knew it. Genesis does not come twice."""
    scene = restarted_after_genesis(crash_ms, 50, packing, partitions)
    session = scene.open()
    for partition in range(partitions):
        scene.call(session, Put("key", b"%d" % partition), partition=partition)
    assert scene.call(session, Get("key")) == b"%d" % (partitions - 1)
    scene.run(500)
    assert scene.states_equal()


@pytest.mark.parametrize("crash_ms", [0, 1.5, 4])
def test_afterwards_every_committer_votes(crash_ms: float) -> None:
    scene = restarted_after_genesis(crash_ms, 50)
    scene.call(scene.open(), Put("key", b"1"))
    scene.run(3_000)
    assert [node.acceptor.started for node in committers(scene)] == [True, True, True]
    assert len({node.acceptor.commits.pos for node in committers(scene)}) == 1


def test_a_dead_executor_that_was_ahead_does_not_hide_a_dead_proposer() -> None:
    """Two partitions. The site of partition 0's active proposer loses frames for a moment, then dies for good. Only its
    own executor had decided the last slots of partition 0; so that partition looked ahead to it, and is behind to those
    who are left."""
    limits = Limits(partitions=2, checkpoint_interval=64, window=64, keepalive_interval_ms=SILENT_MS)
    scene, session = running(limits)
    world = scene.world
    dying = leader_site(scene, partition=0)
    assert leader_site(scene, partition=1) != dying

    def lost(sender: int, receiver: int, tuple_: t.Tuple) -> bool:
        if isinstance(tuple_, t.Proposal):
            return sender == dying and receiver == 2 and tuple_.partition == 0
        return sender == dying and isinstance(tuple_, t.Commit) and tuple_.partition == 0

    keys = []
    with losing(scene, lost):
        for number in range(30):
            keys.append(scene.send(session, Put("second", b"%d" % number)))
            scene.run(3)
        own, others = positions(scene)[dying], [place for site, place in enumerate(positions(scene)) if site != dying]
        assert own[0] > own[1] > max(place[0] for place in others)
        world.lose(world.containers[dying])
    for key in keys:
        scene.wait(key, LONG_MS)
    assert leader_site(scene, partition=0) != dying
    scene.call(session, Put("third", b"3"), partition=0)
    scene.run(500)
    assert scene.states_equal()


def test_executors_that_wait_for_different_partitions_replace_somebody() -> None:
    """Three partitions, two of which have their active proposers on the site that dies. Of the executors that are left,
    each has the last slot of one of these partitions and lacks that of the other; the dead one waited for the third."""
    limits = Limits(partitions=3, checkpoint_interval=96, window=64, keepalive_interval_ms=SILENT_MS)
    scene = Scene(limits)
    world = scene.world
    scene.run(300)
    for name, node in world.nodes_of(Stage.CONTROLLER):
        if name.partition == 1 and isinstance(node, Controller):
            node.suspect()
    scene.run(300)
    assert [leader_site(scene, partition) for partition in range(3)] == [1, 1, 0]
    session = scene.open()
    scene.run(200)

    def lost(sender: int, receiver: int, tuple_: t.Tuple) -> bool:
        """All on links of site 1."""
        if receiver == 1:
            return isinstance(tuple_, t.Commit) and tuple_.partition == 2
        return sender == 1 and is_order_of(tuple_, 0 if receiver == 2 else 1)

    with losing(scene, lost):
        keys = [scene.send(session, Put("key", b"%d" % number), partition=number % 2) for number in range(4)]
        scene.run(60)
        assert [place.index(min(place)) for place in positions(scene)] == [1, 2, 0]
        world.lose(world.containers[1])
    for key in keys:
        scene.wait(key, LONG_MS)


def test_a_slow_store_deposes_nobody() -> None:
    """While the window is full, everybody waits for checkpoints; another proposer could only wait, too."""
    scene, session = running(SMALL)
    with saving(scene, lambda site, number: 3_000.0):
        keys = []
        for number in range(5 * SMALL.window):
            keys.append(scene.send(session, Put("key", b"%d" % number)))
            scene.run(10)
        assert len([key for key in keys if key not in scene.results]) >= SMALL.window
        scene.run(20_000)
    assert [key for key in keys if key not in scene.results] == []
    assert (scene.world.monitor.view_changes, scene.view) == (0, 1)


def test_a_proposer_that_dies_while_the_window_is_full_is_replaced_when_there_is_room() -> None:
    limits = Limits(checkpoint_interval=4, window=8, keepalive_interval_ms=SILENT_MS)
    scene, session = running(limits)
    with saving(scene, lambda site, number: 3_000.0):
        keys = [scene.send(session, Put("key", b"%d" % number)) for number in range(20)]
        scene.run(500)
        assert {executor.next for executor in scene.executors()} == {limits.window}
        scene.world.lose(scene.world.containers[leader_site(scene)])
        for key in keys:
            scene.send_again(key, site=0)
        scene.run(2_000)
        assert scene.view == 1
        for key in keys:
            scene.wait(key, 3 * LONG_MS)
    assert scene.view > 1


def test_a_full_window_at_one_executor_does_not_hide_a_dead_proposer() -> None:
    """The link between the active proposer's site and site 2 is down, and stores are slow: executors 0 and 1 fill the
    window, executor 2 stays before the checkpoint that would empty it. Then the proposer's site dies."""
    scene, session = running(Limits(checkpoint_interval=4, window=8, keepalive_interval_ms=SILENT_MS))
    dying = leader_site(scene)
    assert dying == 1
    with saving(scene, lambda site, number: 500.0):
        with losing(scene, lambda sender, receiver, tuple_: {sender, receiver} == {dying, 2}):
            keys = [scene.send(session, Put("key", b"%d" % number)) for number in range(10)]
            scene.run(150)
            assert positions(scene) == [[8], [8], [2]]
        scene.world.lose(scene.world.containers[dying])
        for key in keys:
            scene.wait(key, LONG_MS)


def test_executors_have_a_checkpoint_in_common_after_a_slow_store_and_a_crash() -> None:
    """Site 0 saves slowly, and site 2 dies before it has saved the newest checkpoints. The window is full, so the two
    that are left make no further ones: they must not have left out different ones."""
    scene, session = running(Limits(checkpoint_interval=4, window=12, keepalive_interval_ms=SILENT_MS))

    def delay_ms(site: int, number: int) -> float:
        slow = site == 0 or (site == 2 and number > 2)
        return 3_000.0 if slow else 10.0

    with saving(scene, delay_ms):
        keys = [scene.send(session, Put("key", b"%d" % number)) for number in range(40)]
        scene.run(500)
        assert positions(scene) == [[20], [20], [20]]
        scene.world.lose(scene.world.containers[2])
        for key in keys:
            scene.wait(key, 2 * LONG_MS)


def test_one_slow_store_holds_up_nobody_and_does_not_fall_behind() -> None:
    """The others make checkpoints stable; its executor waits, and goes on with what is durable."""
    scene, session = running(SMALL)
    executor = scene.world.graph.number(Stage.EXECUTOR, 0)
    with saving(scene, lambda site, number: 5_000.0 if site == 0 else 10.0):
        for number in range(5 * SMALL.window):
            scene.call(session, Put("key", b"%d" % number), site=1)
        scene.run(100)
        newest = 5 * SMALL.window // SMALL.checkpoint_interval
        assert scene.world.monitor.stable == newest
        scene.run(6_000)
    assert scene.world.stores.reach(executor) >= newest
    assert len({executor.next for executor in scene.executors()}) == 1
    assert scene.world.monitor.view_changes == 0


def lose_journal(scene: Scene, containers: list[SimulatedContainer], checkpoints: bool = False) -> None:
    for container in containers:
        scene.crash(container)
        scene.world.wipe(container, checkpoints)
    scene.run(30)
    for container in containers:
        scene.restart(container)


def rejoin(scene: Scene, session: int, site: int) -> float:
    """Let commands go on, from another site, until nobody is recovering; returns the longest wait for an answer."""
    longest_ms = 0.0
    for number in range(100):
        sent_ms = scene.world.now_ms
        scene.call(session, Put("while", b"%d" % number), site=(site + 1) % scene.world.graph.sites)
        longest_ms = max(longest_ms, scene.world.now_ms - sent_ms)
        scene.run(10)
    assert scene.world.rejoins_due == set()
    assert [node.acceptor.recovering for node in committers(scene)] == [False] * scene.world.graph.sites
    return longest_ms


def check_one_more_loss(scene: Scene, session: int, lost: list[SimulatedContainer], site: int) -> None:
    """Others die for good: the committer that lost its journal is needed now, and what it was told holds."""
    for container in lost:
        scene.world.lose(container)
    assert scene.call(session, Get("first"), site=site) == b"1"
    assert scene.call(session, Get("while"), site=site) == b"99"
    scene.call(session, Put("after", b"2"), site=site)
    assert scene.call(session, Get("after"), site=site) == b"2"
    scene.world.inspect_all()


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(("site", "next_loss"), [(0, 1), (0, 2), (2, 0), (2, 1)])
def test_a_site_that_lost_its_journal_rejoins(site: int, next_loss: int, checkpoints: bool) -> None:
    """The view moves by f+1, so the same proposer stays and commands go on; then it counts again."""
    scene, session = running(SMALL)
    leader = scene.leader()
    assert leader is not None
    assert leader.site == 1
    lose_journal(scene, [scene.world.containers[site]], checkpoints)
    longest_ms = rejoin(scene, session, site)
    assert longest_ms < NO_OUTAGE_MS
    assert (scene.view, scene.leader()) == (3, leader)
    assert scene.world.rejoins == 1
    assert [node.acceptor.incarnation for node in committers(scene)] == [
        2 if index == site else 1 for index in range(3)
    ]
    check_one_more_loss(scene, session, [scene.world.containers[next_loss]], site)


def test_the_site_of_the_active_proposer_rejoins_too() -> None:
    """Its proposer may not become active again in that view, so the view moves on to another one."""
    scene, session = running(SMALL)
    lose_journal(scene, [scene.world.containers[1]])
    rejoin(scene, session, site=1)
    assert leader_site(scene) == scene.world.graph.proposer_of(scene.view)
    check_one_more_loss(scene, session, [scene.world.containers[0]], site=1)


def test_two_sites_rejoin_where_two_may_fail() -> None:
    scene, session = running(Limits(f=2, checkpoint_interval=16, window=64, keepalive_interval_ms=SILENT_MS))
    leader = scene.leader()
    assert leader is not None
    forgetful = [container for container in scene.world.containers if container is not leader][-2:]
    lose_journal(scene, forgetful)
    rejoin(scene, session, site=forgetful[0].site)
    assert scene.world.rejoins == 2
    assert scene.leader() is leader
    others = [container for container in scene.world.containers if container not in (*forgetful, leader)]
    check_one_more_loss(scene, session, [leader, others[0]], site=forgetful[0].site)


def test_a_committer_alone_rejoins() -> None:
    """With one container per node. Nothing but its own journal is lost."""
    scene, session = running(SMALL, packing="node")
    world = scene.world
    leader = scene.leader()
    container = world.host_of(world.graph.number(Stage.COMMITTER, 2))
    lose_journal(scene, [container])
    longest_ms = rejoin(scene, session, site=2)
    assert longest_ms < NO_OUTAGE_MS
    assert (scene.view, scene.leader()) == (3, leader)
    check_one_more_loss(scene, session, [world.host_of(world.graph.number(Stage.COMMITTER, 0))], site=0)


def test_after_a_restart_it_is_who_it_was_when_it_rejoined() -> None:
    """What it installed is its journal now; another start needs no other view."""
    scene, session = running(SMALL)
    site = scene.world.containers[2]
    lose_journal(scene, [site])
    rejoin(scene, session, site=2)
    view = scene.view
    scene.crash(site)
    scene.run(20)
    scene.restart(site)
    rejoin(scene, session, site=2)
    assert (scene.view, scene.world.rejoins) == (view, 1)
    assert [node.acceptor.incarnation for node in committers(scene)] == [1, 1, 2]


def test_a_stand_by_that_everybody_has_forgotten_takes_over() -> None:
    """With one container per node. It restarts; then all view sources do, and the committers, one by one: nobody
    has its new number any more. It has to announce itself again, or it cannot lead when the active one is lost."""
    scene, session = running(SMALL, packing="node")
    world, graph = scene.world, scene.world.graph
    proposers = [world.host_of(graph.number(Stage.PROPOSER, replica)) for replica in range(2)]
    active = scene.leader()
    (standby,) = [container for container in proposers if container is not active]

    def restart(containers: list[SimulatedContainer]) -> None:
        for container in containers:
            scene.crash(container)
        scene.run(20)
        for container in containers:
            scene.restart(container)
        scene.run(1_000)

    restart([standby])
    restart([world.host_of(graph.number(Stage.VIEW_SOURCE, replica)) for replica in range(3)])
    for replica in range(3):
        restart([world.host_of(graph.number(Stage.COMMITTER, replica))])
    scene.call(session, Put("second", b"2"))
    assert active is not None
    world.lose(active)
    key = scene.send(session, Put("third", b"3"))
    scene.wait(key, LONG_MS)
    assert scene.leader() is standby


@contextmanager
def deaf(controller: Controller) -> Iterator[None]:
    """It does not hear of any progress."""
    process = controller.process

    def process_others(tuple_: t.Tuple) -> None:
        if not isinstance(tuple_, t.Progress):
            process(tuple_)

    with mock.patch.object(controller, "process", process_others):
        yield


def test_two_controllers_that_are_wrong_one_after_the_other_depose_nobody() -> None:
    """Each hears nothing of the executors for a while, and suspects; the other one has long heard of progress."""
    scene, session = running(SMALL)
    view = scene.view
    for replica in (0, 1):
        controller = scene.node(Controller, Stage.CONTROLLER, replica)
        suspected = False
        with deaf(controller):
            for number in range(120):
                scene.send(session, Put("key", b"%d" % number), site=2)
                scene.run(5)
                suspected = suspected or controller.asked is not None
        assert suspected
        scene.run(1_000)
        assert controller.asked is None
    assert scene.view == view


@pytest.mark.parametrize(("seed", "partitions"), [(0, 1), (2, 1), (4, 1), (4, 2), (7, 2)])
def test_a_system_without_replicas_keeps_all_promises_but_availability(seed: int, partitions: int) -> None:
    outcome = run_seed(Job(seed, 0, partitions))
    assert (outcome.violation, outcome.detail) == (None, "")
    assert outcome.commands >= 200


def test_a_system_without_replicas_answers_writes() -> None:
    report = measure(500, 4, 10, Limits(f=0, checkpoint_interval=64, window=256))
    assert report.requests >= 500
    assert report.checkpoints > 0


def test_a_system_without_replicas_restarts_from_its_disk() -> None:
    scene, session = running(Limits(f=0, checkpoint_interval=4, window=8, keepalive_interval_ms=SILENT_MS))
    for number in range(10):
        scene.call(session, Put("key", b"%d" % number))
    (site,) = scene.world.containers
    scene.crash(site)
    scene.run(50)
    scene.restart(site)
    assert scene.call(session, Get("key")) == b"9"


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 2), (0, 2)])
@pytest.mark.parametrize("both_ways", [True, False])
def test_two_sites_apart_do_not_depose_one_proposer_after_the_other(first: int, second: int, both_ways: bool) -> None:
    """The third site hears both. Requests of a site that does not reach the active proposer go through that one; nobody
    has a reason for a new view again and again, and everything is executed where a majority is."""
    scene = Scene(SMALL)
    sessions = [scene.open(site) for site in range(3)]
    links = {(first, second), (second, first)} if both_ways else {(first, second)}
    view = scene.view
    with losing(scene, lambda sender, receiver, _: (sender, receiver) in links):
        for _ in range(100):
            for site, session in enumerate(sessions):
                scene.send(session, Put(f"key-{site}", b"value"), site)
            scene.run(100)
        assert scene.view - view <= 3
    scene.run(LONG_MS)
    assert len(scene.results) == 3 + 300
    assert scene.states_equal()


class Withholding:
    """A part of the network: it loses every tuple that one of its rules names."""

    kind = "withholding"

    def __init__(self) -> None:
        self.rules: dict[str, Callable[[int, t.Tuple], bool]] = {}

    def take(self, sender: SimulatedContainer, peer: SimulatedContainer, parcel: tuple[t.Tuple, int]) -> bool:
        tuple_, number = parcel
        return any(rule(number, tuple_) for rule in self.rules.values())

    def end(self) -> None: ...


def committer_at(scene: Scene, site: int, partition: int) -> Committer:
    graph = scene.world.graph
    replicas = [graph.number(Stage.COMMITTER, replica, partition) for replica in range(graph.sites)]
    (number,) = [number for number in replicas if graph.site(graph.names[number]) == site]
    node = scene.world.host_of(number).nodes[number]
    assert isinstance(node, Committer)
    return node


def never_suspect(scene: Scene, partition: int) -> None:
    """The controllers of the partition have all the time in the world."""
    for name, node in scene.world.nodes_of(Stage.CONTROLLER):
        if name.partition == partition and isinstance(node, Controller):
            node.timeout_ms = 1e9


def write_until(scene: Scene, session: int, condition: Callable[[], bool]) -> None:
    for number in range(200):
        if condition():
            return
        scene.call(session, Put(f"key-{number}", bytes(200)), site=number % 3, partition=number % 2)
    raise AssertionError("the condition never holds")


def test_an_answered_write_survives_a_journal_that_rolled_while_one_committer_was_not_restored() -> None:
    """Two partitions. A site loses its journal, and is restored in partition 0, but not yet in partition 1, where it
    and another site had decided a write. Its journal rolls, and it restarts: in partition 1 it still knows nothing,
    and must not count as one that does when the other site is cut off."""
    limits = Limits(
        partitions=2, checkpoint_interval=32, window=64, report_interval_ms=20, keepalive_interval_ms=SILENT_MS
    )
    scene = Scene(limits)
    world, graph = scene.world, scene.world.graph
    session = scene.open()
    leaders = {leader_site(scene, partition) for partition in range(2)}
    knowing = leader_site(scene, partition=1)
    (forgetful,) = set(range(3)) - leaders
    slow = 3 - knowing - forgetful
    network = Withholding()
    world.stories.append(network)  # type: ignore[arg-type]

    def withhold_orders(site: int) -> None:
        number = graph.number(Stage.COMMITTER, committer_at(scene, site, 1).index, 1)
        network.rules[f"orders for {site}"] = lambda receiver, tuple_: (
            receiver == number and isinstance(tuple_, t.Proposal | t.Start)
        )

    def both_at(slot: int) -> Callable[[], bool]:
        return lambda: all(
            committer_at(scene, knowing, partition).acceptor.commits.pos >= slot for partition in range(2)
        )

    write_until(scene, session, both_at(12))
    world.stores.trouble("store_failing", 1e9)
    write_until(scene, session, both_at(18))
    scene.run(100)
    withhold_orders(slow)
    scene.call(session, Put("precious", b"1"), site=knowing, partition=1)
    scene.run(60)
    never_suspect(scene, partition=1)
    withhold_orders(forgetful)
    site = world.containers[forgetful]
    lose_journal(scene, [site])
    never_suspect(scene, partition=1)
    scene.run(2_000)
    assert [committer_at(scene, forgetful, partition).acceptor.recovering for partition in range(2)] == [False, True]
    for _ in range(24):
        scene.submit(slow, [t.Command(session, 10_000, 0, bytes(300))], 0)
        scene.run(10)
    world.stores.trouble("store_failing", 0)
    scene.run(1_500)
    assert committer_at(scene, forgetful, 0).acceptor.commits.min == 16
    scene.crash(site)
    scene.restart(site)
    scene.run(60)
    assert [committer_at(scene, forgetful, partition).acceptor.recovering for partition in range(2)] == [False, True]
    for other in (forgetful, slow):
        world.network.block(knowing, other, 1e9)
        world.network.block(other, knowing, 1e9)
    network.rules.clear()
    for name, node in world.nodes_of(Stage.CONTROLLER):
        if name.partition == 1 and graph.site(name) != knowing and isinstance(node, Controller):
            node.suspect()
    scene.submit(slow, [t.Command(session, 20_000, 0, bytes(300))], 1)
    scene.run(3_000)
    world.network.clear()
    assert scene.call(session, Get("precious"), site=slow) == b"1"


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_segments_of_the_log_are_bounded_however_long_results_are(partitions: int) -> None:
    """Requests are short here; what they read is long. A round of reports is on its way before proposers skip."""
    bytes_max, value = 20_000, b"x" * 5_000
    limits = Limits(
        partitions=partitions,
        checkpoint_interval=256 * partitions,
        window=1024,
        checkpoint_bytes_max=bytes_max,
        base_bytes_min=1 << 30,
    )
    scene, session = running(limits)
    scene.call(session, Put("long", value))
    for number in range(100):
        scene.call(session, Get("long"), partition=number % partitions)
    executor = scene.world.graph.number(Stage.EXECUTOR, 0)
    disk = scene.world.host_of(executor).disk
    sizes = [disk.size(path) for path in scene.world.stores.parts(executor) if path.suffix == ".segment"]
    on_its_way = 100 * len(value) // 4
    assert sum(sizes) > 60 * len(value)
    assert max(sizes) < partitions * bytes_max + REQUEST_BYTES * limits.checkpoint_interval + on_its_way
    scene.run(500)
    assert scene.states_equal()


def broken_down(ends: bool, sites: set[int]) -> tuple[Scene, int, tuple[int, int]]:
    """A system whose next command is fatal on these sites, and that command's key."""
    scene, session = running(SMALL)
    scene.world.fatal = FatalCommand(scene.world, sites, ends)
    return scene, session, scene.send(session, Put("fatal", b"1"))


def skips_of(scene: Scene) -> list[list[int]]:
    return [executor.sessions.skipped for executor in scene.executors()]


@pytest.mark.parametrize("ends", [False, True])
def test_a_command_that_no_replica_can_execute_is_skipped_by_all(ends: bool) -> None:
    scene, session, fatal = broken_down(ends, {0, 1, 2})
    behind = scene.send(session, Put("behind", b"2"))
    assert scene.wait(fatal).status == t.SKIPPED
    assert scene.wait(behind).status == t.OK
    # One of the sites starts anew as soon as the command was skipped; what is sent there meanwhile is lost.
    scene.run(300)
    assert scene.call(session, Get("fatal")) is None
    assert scene.call(session, Get("behind")) == b"2"
    scene.run(1_000)
    assert scene.states_equal()
    assert len(skips_of(scene)[0]) == 1


def test_what_a_request_holds_before_a_fatal_command_is_answered_at_once_and_executed_once() -> None:
    """And the monitor knows that it is right, though no replica has got past the request."""
    scene, session = running(msgspec.structs.replace(SMALL, batch_size=2))
    world = scene.world
    operation = world.next_unique()
    fatal = world.fatal = FatalCommand(world, {0, 1, 2}, ends=False)
    fatal.operation, fatal.counter = operation + 1, scene.executors()[0].sessions.counter + 2
    payloads = [wrap(operation + step, msgspec.msgpack.encode(Put("key", b"%d" % step))) for step in range(2)]
    world.next_unique()
    scene.submit(0, [t.Command(session, 1 + step, 0, payload) for step, payload in enumerate(payloads)])
    result = scene.wait((session, 1))
    assert any(executor.halted for executor in scene.executors())
    world.monitor.answered(mock.Mock(index=0), result)
    with pytest.raises(Violation, match="never executed"):
        world.monitor.finish()
    assert scene.wait((session, 2)).status == t.SKIPPED
    world.monitor.finish()
    wrong = msgspec.structs.replace(result, number=2)
    with pytest.raises(Violation, match="executed was"):
        world.monitor.answered(mock.Mock(index=0), wrong)


def test_a_replica_that_lost_everything_does_not_execute_what_was_skipped() -> None:
    """Nothing that it has tells it so, and it could execute the command now."""
    scene, session, fatal = broken_down(False, {0, 1, 2})
    scene.wait(fatal)
    scene.run(1_000)
    victim = scene.world.containers[1]
    scene.crash(victim)
    scene.world.wipe(victim, checkpoints=True)
    scene.restart(victim)
    scene.run(2_000)
    assert scene.call(session, Get("fatal")) is None
    scene.run(1_000)
    assert len(scene.executors()) == 3
    assert scene.states_equal()


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("sites", [{1}, {1, 2}])
def test_a_command_that_some_replica_has_executed_is_executed_by_all(ends: bool, sites: set[int]) -> None:
    scene, session, fatal = broken_down(ends, sites)
    assert scene.wait(fatal).status == t.OK
    scene.run(3_000)
    assert scene.call(session, Get("fatal")) == b"1"
    scene.run(1_000)
    assert scene.states_equal()
    assert skips_of(scene) == [[], [], []]


def test_a_start_is_not_held_up_by_looking_for_skips() -> None:
    """One way to the committers and back: the executor is at work again a few milliseconds after its start."""
    scene, session = running(SMALL)
    victim = scene.world.containers[2]
    scene.crash(victim)
    scene.restart(victim)
    started_ms = scene.world.now_ms
    while not scene.node(Executor, Stage.EXECUTOR, 2).ready:
        scene.run(1)
        assert scene.world.now_ms - started_ms < NO_OUTAGE_MS
    assert scene.call(session, Get("first"), site=2) == b"1"
