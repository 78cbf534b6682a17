"""Makes the faults of a plan happen. A fault that would take more than f replicas of a stage down is skipped, except
for those that are meant to; those may stall the service, but break nothing."""

import random

import msgspec
from msgspec import Raw

from tara.host import client_wire, peer_wire
from tara.host.effects import Inputs, Message
from tara.host.fragments import Fragment
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.controller import Controller
from tara.protocol.nodes.executor import Executor
from tara.protocol.principals import OPERATOR, principal_of
from tara.simulator import eras
from tara.simulator.client import Client
from tara.simulator.container import DATA, SimulatedContainer
from tara.simulator.disk import VirtualDisk
from tara.simulator.faults import container_faults
from tara.simulator.faults.fatal_command import FatalCommand
from tara.simulator.faults.log_gap import log_gap
from tara.simulator.plan import SESSIONS_MAX, Fault
from tara.simulator.stories import story
from tara.simulator.stories.forgetful_witness import ForgetfulWitness
from tara.simulator.stories.forgotten_promise import ForgottenPromise
from tara.simulator.stories.forgotten_standby import ForgottenStandby
from tara.simulator.stories.former_places import FormerPlaces
from tara.simulator.stories.given_up_alive import GivenUpAlive
from tara.simulator.stories.half_remembered import HalfRemembered
from tara.simulator.stories.late_answers import LateAnswers
from tara.simulator.stories.outdated_record import OutdatedRecord
from tara.simulator.workload import wrap
from tara.simulator.world import World
from tara.storage.journal import MARKER_FILE, journal_directory
from tara.storage.lives import lives_path
from tara.storage.segments import BEGIN_FILE

#: What a client needs of one site. Lost on the same sites: otherwise f losses per stage could leave it none.
FRONT_END = (Stage.REQUEST_SOURCE, Stage.EXECUTOR, Stage.REPLY_SINK)


#: What makes one container forget its votes, if there are no journals; and how long it waits if that would be one too
#: many.
_LOSING = ("crash", "crash_before_sync", "crash_after_sync", "crash_in_multicast", "crash_between", "amnesia", "zombie")
_WAIT_MS = 50
#: How long it takes until an operator does something; whatever was on its way has arrived by then.
_OPERATOR_MS = 600
#: How long it takes until whoever starts has looked at what it has.
_LOOK_MS = 500
#: What each client says then.
LATE_COMMANDS = 20
#: What a log is made of.
LOG_FILES = (".segment", ".tail", BEGIN_FILE)
#: A slot that no run comes to, and what a commit begins with on the wire.
_FAR = 1 << 40
_TAG_OF_COMMIT = msgspec.inspect.type_info(t.Commit).tag  # type: ignore[attr-defined]
#: So many processes end because their machine lost its power.
POWER_SHARE = 0.3
_STORIES: dict[str, type[story.Story]] = {
    kind.kind: kind
    for kind in (
        ForgottenPromise,
        OutdatedRecord,
        HalfRemembered,
        ForgottenStandby,
        ForgetfulWitness,
        GivenUpAlive,
        LateAnswers,
        FormerPlaces,
    )
}


def schedule(world: World, faults: list[Fault]) -> None:
    for fault in faults:
        world.after(fault.at_ms, _strike, world, fault)


def go_on(world: World) -> None:
    """All was well, and faults begin anew."""
    world.healed = False
    world.count_fault("late_faults")
    schedule(world, world.plan.late_faults)
    for client in world.clients:
        if isinstance(client, Client):
            client.go_on(LATE_COMMANDS)
    world.wake_clients()


def heal(world: World) -> None:
    """All faults end: what is down starts again, except what is lost for good."""
    world.healed = True
    world.start_doom_until_ms = 0.0
    for container in world.containers:
        container.doom = None
    lost = _lost(world)
    if lost:
        world.count_fault("lost_for_good")
    world.idle_until_ms = 0.0
    world.bad_snapshots.clear()
    for told in list(world.stories):
        told.end()
    for zombie in list(world.zombies):
        world.zombies.remove(zombie)
        world.crash(zombie)
    for container in world.containers:
        container.disk.heal()
        container.paused_until_ms = 0.0
        if container in lost:
            world.lose(container)
        elif not container.alive:
            world.restart_later(container, 50)
    world.network.clear()


def _lost(world: World) -> list[SimulatedContainer]:
    """f sites; or, with one container per node, f replicas of every stage, not all on the same sites."""
    first, f, sites = world.plan.lost_site, world.graph.f, world.graph.sites
    damaged = any(map(world.has_holes, world.containers))
    if any(container.lost for container in world.containers):
        # A story has lost one.
        return []
    if any(isinstance(node, Executor) and node.halted for _, node in world.nodes_of(Stage.EXECUTOR)):
        # It needs the others to go on.
        return []
    if first is None or damaged or world.rejoins_due or (world.wiped and not _copies_everywhere(world)):
        # Whoever lost its journal or its checkpoints counts as lost already, until it has them again.
        return []
    if world.plan.packing == "site":
        return [container for container in world.containers if (container.site - first) % sites < f]
    lost = []
    for container in world.containers:
        name = world.graph.names[container.numbers[0]]
        replicas = world.graph.replicas(name.stage)
        shift = 0 if name.stage in FRONT_END else list(Stage).index(name.stage) + name.partition
        if (name.replica - first - shift) % replicas < f:
            lost.append(container)
    return lost


def _strike(world: World, fault: Fault) -> None:
    if world.healed:
        return
    if fault.kind in _LOSING and not world.journals and _victim(world, fault) is None:
        # Whatever dies loses its journal; the next one has to wait until all are at full strength.
        world.after(_WAIT_MS, _strike, world, fault)
        return
    if _STRIKES[fault.kind](world, fault):
        world.count_fault(fault.kind)


def _victim(world: World, fault: Fault) -> SimulatedContainer | None:
    """A container that may fail now."""
    container = world.containers[fault.target % len(world.containers)]
    return container if container.alive and world.may_fail([container]) else None


def _kill(world: World, container: SimulatedContainer, delay_ms: float) -> None:
    world.crash(container, power=world.draw.random() < POWER_SHARE)
    world.restart_later(container, delay_ms)


def _crash(world: World, fault: Fault) -> bool:
    container = _victim(world, fault)
    if container is None:
        return False
    _kill(world, container, fault.duration_ms)
    return True


def _amnesia(world: World, fault: Fault) -> bool:
    """A container comes back without its journal, and perhaps without its checkpoints: on another host, say."""
    container = _victim(world, fault)
    if container is None:
        return False
    world.crash(container)
    world.wipe(container, checkpoints=fault.other % 2 == 0 and _copies_everywhere(world))
    world.restart_later(container, fault.duration_ms)
    if fault.other % 4 < 2:
        # What it has forgotten matters when the next view is built from the records of those who are left.
        world.after(fault.duration_ms + 5, _suspect, world, fault)
    return True


def _old_disk(world: World, fault: Fault) -> bool:
    """A container runs elsewhere for a while, and comes back to the disk that it had. Counted when it is back."""
    container = _victim(world, fault)
    if container is None or not world.journals or not _copies_everywhere(world):
        return False
    former = container.disk
    world.crash(container)
    world.move(container, VirtualDisk(world.draw))
    world.restart_later(container, 20)
    world.after(20 + fault.duration_ms, _return, world, fault, former)
    return False


def _older_directory(world: World, fault: Fault) -> bool:
    """A copy of a container's disk is put back when there has been a life since. Counted when it is back."""
    container = _victim(world, fault)
    if container is None or not world.journals:
        return False
    world.crash(container)
    copy = container.disk.clone()
    world.restart_later(container, 20)
    world.after(20 + fault.duration_ms, _return, world, fault, copy)
    return False


def _return(world: World, fault: Fault, disk: VirtualDisk) -> None:
    if world.healed or world.fatal is not None:
        return
    container = world.containers[fault.target % len(world.containers)]
    ready = container.alive and world.records.begun[container.index] == container.life and container.rest is None
    if not ready or not world.may_fail([container]) or not _copies_everywhere(world):
        # Nothing is ever lost beyond f; and a life that nobody has heard of has cast no vote.
        world.after(_WAIT_MS, _return, world, fault, disk)
        return
    world.crash(container)
    world.move(container, disk)
    world.count_fault(fault.kind)
    if fault.other % 2:
        container.start_ends_in = fault.other // 2 % 40
    world.restart_later(container, fault.duration_ms)
    if fault.other % 4 < 2:
        world.after(fault.duration_ms + 5, _suspect, world, fault)


def _older_records(world: World, fault: Fault) -> bool:
    """The driver has an older copy of what it knows of a container, which knows better."""
    container = _victim(world, fault)
    if container is None or not container.disk.exists(lives_path(DATA, container.index)) or container.founding:
        return False
    if world.rejoins_due.intersection(container.numbers) or not world.journals:
        return False
    world.crash(container)
    world.forget_records(container)
    world.restart_later(container, fault.duration_ms)
    return True


def _life_damaged(world: World, fault: Fault) -> bool:
    """What a container knows of its lives cannot be read; the driver knows, too."""
    container, path = _victim(world, fault), lives_path(DATA, fault.target % len(world.containers))
    if container is None or not container.disk.exists(path) or not container.disk.size(path):
        return False
    world.crash(container)
    if not container.disk.exists(path):
        return False
    world.restart_later(container, fault.duration_ms)
    return container.disk.damage(path, []) is not None


def _unreadable(world: World, fault: Fault) -> bool:
    """A container comes back to a disk of which some sectors cannot be read: of its journal or of its log."""
    container = _victim(world, fault)
    if container is None or not world.journals or container.index in world.repairs_due:
        return False
    journal = container.disk.paths(journal_directory(DATA, container.index), (".journal",))
    logs = [path for path in container.disk.paths(DATA, LOG_FILES) if path.parent.name.startswith("log-")]
    paths = logs if fault.other % 3 == 0 else journal
    if not paths:
        return False
    chosen = paths[fault.other // 3 % len(paths)]
    world.crash(container)
    if not container.disk.exists(chosen) or not container.disk.spoil(chosen):
        world.restart_later(container, fault.duration_ms)
        return False
    if paths is journal:
        world.repairs_due.add(container.index)
        world.after(fault.duration_ms + 5, _suspect, world, fault)
    world.restart_later(container, fault.duration_ms)
    return True


def _orderly_restart(world: World, fault: Fault) -> bool:
    container = _victim(world, fault)
    if container is None or container.rest is not None:
        return False
    world.end_orderly(container)
    world.restart_later(container, fault.duration_ms)
    return True


def _odd_commands(world: World, fault: Fault) -> bool:
    """A stranger, in a session of his own or in none, sends what is well-formed and makes no sense."""
    stranger, site = principal_of(b"the secret of a stranger"), fault.target % world.graph.sites
    client = world.clients[fault.target % len(world.clients)]
    session = client.session if isinstance(client, Client) else 0
    integer, name = t.encode(5_000), t.encode("a stranger's")
    # A name belongs to whoever comes first: this one has come.
    taken = [other.name for other in world.clients if isinstance(other, Client) and other.name and other.session]

    def one(kind: int, payload: bytes, of: int = 0, number: int = 0) -> t.Command:
        return t.Command(of, number or world.next_unique(), 0, payload, kind, stranger)

    commands = [
        one(t.OPEN, b"\xc1"),
        one(t.OPEN, t.encode("")),
        *(one(t.OPEN, t.encode(other)) for other in taken),
        one(t.OPEN, name),
        one(t.SKIP, b"\x93\x00\x01\x01"),
        one(t.CLAIM, b"\xc1", session),
        one(t.CLOSE, b"", 1 << 50),
        *(one(t.OPEN, integer) for _ in range(2 * SESSIONS_MAX if fault.other % 2 else 1)),
    ]
    world.client_links.say(site, b"a stranger", stranger, commands)
    reads = [client_wire.ReadMessage(fault.other % 1000, b"\xc1", False, t.SESSIONS)]
    world.client_links.say(site, b"an operator", OPERATOR + bytes(16), [one(t.SKIP, b"\xc1")], reads)
    if isinstance(client, Client) and session and not client.name:
        # Its own client may be as odd: an old number, one that is far ahead, and a claim without a name.
        mine = [
            t.Command(session, number, 0, payload, kind, client.principal)
            for kind, number, payload in (
                (t.CLAIM, world.next_unique(), t.encode(t.Claim(1, b"value"))),
                (t.CLAIM, world.next_unique(), b"\xc1"),
                (t.EXECUTE, client.next_number + 5_000, wrap(world.next_unique(), None)),
            )
        ]
        world.client_links.say(site, b"a stranger", client.principal, mine)
    return True


def _stage_storm(world: World, fault: Fault) -> bool:
    """All replicas of a stage are restarted again and again, each time when they have hardly come back."""
    for turn in range(4 + fault.other % 8):
        again = msgspec.structs.replace(fault, kind="crash_stage", duration_ms=20)
        world.after((turn + 1) * (40 + fault.other % 100), _strike, world, again)
    return True


def _losses_beyond_f(world: World, fault: Fault) -> bool:
    """More committers lose their journals than the protocol survives, and perhaps checkpoints go with them. There may
    be no progress any more, but nothing that was decided becomes anything else."""
    if world.fatal is not None or world.beyond or world.former:
        return False
    world.beyond = True
    for told in list(world.stories):
        told.end()
    for container in _voters(world, fault):
        if container.alive:
            world.crash(container, power=world.draw.random() < POWER_SHARE)
        world.wipe(container, checkpoints=fault.other % 2 == 0)
        world.restart_later(container, fault.duration_ms * world.draw.random())
    return True


def _voters(world: World, fault: Fault) -> list[SimulatedContainer]:
    """More than f of the containers with committers of a partition."""
    partition, sites = fault.other % world.graph.partitions, world.graph.sites
    count = world.graph.f + 1 + fault.other // 2 % (world.graph.f + 1)
    replicas = [(fault.target + index) % sites for index in range(count)]
    return [world.host_of(world.graph.number(Stage.COMMITTER, replica, partition)) for replica in replicas]


def _new_era(world: World, fault: Fault) -> bool:
    """More is lost than the protocol survives, everything is ended, and an operator begins a new era."""
    if not eras.can_begin(world) or world.beyond:
        return False
    if not any(world.stores.copies(number) for number in range(1, world.monitor.stable + 1)):
        # There is nothing to begin with.
        return False
    world.close_down()
    for container in _voters(world, fault):
        # Some checkpoint is left.
        world.wipe(container, checkpoints=world.journals and fault.other % 2 == 0 and _copies_everywhere(world))
    if fault.other % 3 == 0:
        # The newest copy that is left may be none.
        reached = sorted((world.stores.reach(number, intact=True), number) for number, _ in _holders(world))
        for number in [number for reach, number in reached if reach][1:][-1:]:
            parts = world.stores.parts(number)
            world.host_of(number).disk.flip(parts[fault.other % len(parts)], random.Random(fault.other))
    world.after(_OPERATOR_MS, _recover, world, fault)
    return False


def _recover(world: World, fault: Fault) -> None:
    """Counted when it is done. If nothing is left to begin with, the old era stands still for good."""
    if eras.begin(world, DATA, everywhere=fault.other % 4 < 2):
        world.count_fault(fault.kind)
    else:
        world.beyond = True
    world.open_up()


def _copies_everywhere(world: World) -> bool:
    """Whether every executor holds the stable checkpoint."""
    return world.stores.copies(world.monitor.stable) == world.graph.sites


def _suspicion(world: World, fault: Fault) -> bool:
    """The controllers of a partition take the active proposer for dead, although it is not."""
    _suspect(world, fault)
    return True


def _suspect(world: World, fault: Fault) -> None:
    partition = fault.other % world.graph.partitions
    for name, node in world.nodes_of(Stage.CONTROLLER):
        if isinstance(node, Controller) and name.partition == partition:
            node.suspect()


def _crash_in_step(world: World, fault: Fault) -> bool:
    """Counted when it happens: in the container's next step that has something to sync or to send."""
    container = _victim(world, fault)
    if container is not None:
        container.doom = fault.kind
    return False


def _crash_in_start(world: World, fault: Fault) -> bool:
    """The next proposer that starts a view crashes while it sends the start. Counted when it happens."""
    world.start_doom_until_ms = world.now_ms + 2 * fault.duration_ms
    return False


def _crash_group(world: World, fault: Fault, group: list[SimulatedContainer]) -> bool:
    for container in group:
        if container.alive:
            _kill(world, container, fault.duration_ms * (0.5 + world.draw.random()))
    return bool(group)


def _crash_all(world: World, fault: Fault) -> bool:
    return _crash_group(world, fault, world.containers)


def _crash_many(world: World, fault: Fault) -> bool:
    """One site more than the protocol tolerates."""
    first, sites = fault.target % world.graph.sites, world.graph.sites
    doomed = {(first + offset) % sites for offset in range(world.graph.f + 1)}
    return _crash_group(world, fault, [container for container in world.containers if container.site in doomed])


def _crash_stage(world: World, fault: Fault) -> bool:
    """All replicas of a stage (of a partition). With one container per site, that is every site that has one."""
    stages = [stage for stage in Stage if stage not in (Stage.CLIENT, Stage.STORE)]
    stage = stages[fault.target % len(stages)]
    group = [
        container
        for container in world.containers
        if any(world.graph.names[number].stage is stage for number in container.numbers)
    ]
    return _crash_group(world, fault, group)


def _crash_stage_again(world: World, fault: Fault) -> bool:
    """Before it has come to its feet."""
    for turn in range(fault.other % 4 + 1):
        world.after((turn + 1) * 150, _strike, world, msgspec.structs.replace(fault, kind="crash_stage"))
    return _crash_stage(world, fault)


def _zombie(world: World, fault: Fault) -> bool:
    """A container is given up for lost and started again elsewhere, while the old process goes on for a while."""
    container = _victim(world, fault)
    if container is None or world.fatal is not None or container.rest is not None:
        return False
    world.split(container, copies_elsewhere=_copies_everywhere(world))
    world.after(fault.duration_ms, _end_zombies, world)
    if fault.other % 4 < 2:
        world.after(5, _suspect, world, fault)
    return True


def _end_zombies(world: World) -> None:
    for zombie in list(world.zombies):
        world.zombies.remove(zombie)
        world.crash(zombie)


def _story(world: World, fault: Fault) -> bool:
    """Counted when it has come to its point."""
    story.begin(_STORIES[fault.kind], world, fault.other % world.graph.partitions, fault.target)
    return False


def _pause(world: World, fault: Fault) -> bool:
    container = _victim(world, fault)
    if container is None:
        return False
    container.paused_until_ms = world.now_ms + fault.duration_ms
    return True


def _clock_jump(world: World, fault: Fault) -> bool:
    """Forward at once (a machine that slept); back only for the next life: hosts take time from a monotonic clock."""
    container = world.containers[fault.target % len(world.containers)]
    if fault.other % 3:
        container.clock_offset_ms += fault.other % 20_000
    else:
        container.next_clock_offset_ms -= fault.other % 100_000
    return True


def _two_sites(world: World, fault: Fault) -> tuple[int, int]:
    """Two different ones, if there are two."""
    sites = world.graph.sites
    first = fault.target % sites
    return first, (first + 1 + fault.other % max(sites - 1, 1)) % sites


def _partition(world: World, fault: Fault) -> bool:
    """Cut one site off from the others, or one link."""
    until_ms = world.now_ms + fault.duration_ms
    first, second = _two_sites(world, fault)
    others = [site for site in range(world.graph.sites) if site != first] if fault.other % 2 else [second]
    for other in others:
        world.network.block(first, other, until_ms)
        world.network.block(other, first, until_ms)
    return True


def _one_way(world: World, fault: Fault) -> bool:
    first, second = _two_sites(world, fault)
    world.network.block(first, second, world.now_ms + fault.duration_ms)
    return True


def _partition_inside(world: World, fault: Fault) -> bool:
    """The containers of a site do not hear each other."""
    if world.plan.packing == "site":
        return False
    site = fault.target % world.graph.sites
    world.network.block(site, site, world.now_ms + fault.duration_ms)
    return True


def _slow_link(world: World, fault: Fault) -> bool:
    first, second = _two_sites(world, fault)
    world.network.slow(first, second, world.now_ms + fault.duration_ms)
    return True


def _controller_cut(world: World, fault: Fault) -> bool:
    """A controller hears nothing from the executors of other sites; and when that is over, perhaps another one."""
    partition, sites = fault.other % world.graph.partitions, world.graph.sites
    number = world.graph.number(Stage.CONTROLLER, fault.target % sites, partition)
    world.network.cut_off(number, world.now_ms + fault.duration_ms)
    if fault.other % 4 < 2:
        number = world.graph.number(Stage.CONTROLLER, (fault.target + 1) % sites, partition)
        world.after(2 * fault.duration_ms, world.network.cut_off, number, world.now_ms + 3 * fault.duration_ms)
    return True


def _disk_full(world: World, fault: Fault) -> bool:
    """For a while, now and then a call finds no room, or every call does."""
    container = _victim(world, fault)
    if container is None:
        return False
    container.disk.full, container.disk.full_share = True, world.draw.choice((0.3, 0.7, 1.0))
    world.after(fault.duration_ms, setattr, container.disk, "full", False)
    return True


def _disk_slow(world: World, fault: Fault) -> bool:
    """Journal, checkpoints and log share it."""
    disk = world.containers[fault.target % len(world.containers)].disk
    disk.sync_ms, disk.megabyte_ms = world.draw.choice(((5.0, 10.0), (30.0, 50.0), (1.0, 5_000.0)))
    world.after(2 * fault.duration_ms, _disk_quick, disk)
    return True


def _disk_quick(disk: VirtualDisk) -> None:
    disk.sync_ms = disk.megabyte_ms = 0.0


def _sync_fails(world: World, fault: Fault) -> bool:
    """The next sync of a container is refused, and what it was for is never durable."""
    container = _victim(world, fault)
    if container is None or not world.journals:
        return False
    container.disk.sync_failures = 1
    if fault.other % 2:
        # What the machine has given up shows when it starts anew.
        world.after(fault.duration_ms, _lose_power, world, container)
    return True


def _lose_power(world: World, container: SimulatedContainer) -> None:
    if container.alive and not world.healed and world.may_fail([container]):
        world.crash(container, power=True)
        world.restart_later(container, 50)


def _crash_in_storage(world: World, fault: Fault) -> bool:
    """Between two operations of its disk, whosever they are. Counted when it happens."""
    container = _victim(world, fault)
    if container is not None and world.journals:
        container.disk.ends_in = fault.other % 60
    return False


def _log_damaged(world: World, fault: Fault) -> bool:
    """A container comes back with a log of which something is not what it was."""
    container = _victim(world, fault)
    if container is None or not world.journals or not _intact_everywhere(world):
        return False
    paths = [path for path in container.disk.paths(DATA, LOG_FILES) if path.parent.name.startswith("log-")]
    if not paths:
        return False
    world.crash(container)
    world.lose_copies(container)
    kind = container.disk.damage(paths[fault.other % len(paths)], paths)
    world.restart_later(container, fault.duration_ms)
    return kind is not None


def _journal_damaged(world: World, fault: Fault) -> bool:
    """A container comes back with a journal of which something was flipped, cut, removed, exchanged or put back."""
    container = _victim(world, fault)
    if container is None or not world.journals:
        return False
    directory = journal_directory(DATA, container.index)
    paths = [path for path in container.disk.paths(directory, (".journal", MARKER_FILE)) if path.parent == directory]
    if not paths:
        return False
    # Its segments, or now and then the end marker.
    segments = [path for path in paths if path.suffix] or paths
    chosen = world.draw.choice(segments if world.draw.random() < 0.85 else paths)
    world.crash(container)
    kind = container.disk.damage(chosen, segments)
    world.restart_later(container, fault.duration_ms)
    if kind is None:
        return False
    world.repairs_due.add(container.index)
    world.count_fault(f"journal_{kind}")
    if fault.other % 4 < 2:
        # What it has lost matters when the next view is built from the records of those who are left.
        world.after(fault.duration_ms + 5, _suspect, world, fault)
    return True


def _intact_everywhere(world: World) -> bool:
    """Whether what every executor has leads to the stable checkpoint, and can be read."""
    return world.stores.copies(world.monitor.stable, intact=True) == world.graph.sites


def _holders(world: World) -> list[tuple[int, SimulatedContainer]]:
    """The executors and their containers."""
    return [
        (number, world.host_of(number)) for number, name in enumerate(world.graph.names) if name.stage is Stage.EXECUTOR
    ]


def _checkpoint_damaged(world: World, fault: Fault) -> bool:
    """One copy of a base or a segment; never the last intact one."""
    if not _intact_everywhere(world):
        return False
    holders = _holders(world)
    number, container = holders[fault.target % len(holders)]
    paths = world.stores.parts(number)
    if not paths:
        return False
    # Half of the time one that a restart would begin with.
    path = paths[fault.other % min(2, len(paths)) if fault.other % 4 < 2 else fault.other % len(paths)]
    # Then its next life begins with it.
    ends = container.alive and fault.other % 2 and world.may_fail([container])
    if ends:
        world.lose_copies(container)
    damage = container.disk.damage(path, [])
    if damage is None:
        return False
    if ends:
        _kill(world, container, fault.duration_ms)
    else:
        world.removed[container.index] = world.monitor.stable
    return True


def _rotten_checkpoint(world: World, fault: Fault) -> bool:
    """An executor starts at once with its newest base or segment, but for one bit, and nobody is further than it. What
    was damaged while others went on would be passed over for what they have."""
    if not world.journals or not _intact_everywhere(world):
        return False
    holders = [(number, container) for number, container in _holders(world) if world.may_fail([container])]
    newest = max((world.stores.reach(number) for number, _ in holders), default=0)
    holders = [(number, container) for number, container in holders if world.stores.reach(number) == newest]
    if not holders or not newest:
        return False
    number, container = holders[fault.target % len(holders)]
    world.crash(container)
    world.lose_copies(container)
    parts = world.stores.parts(number)
    container.disk.flip(parts[fault.other % min(2, len(parts))], random.Random(fault.other))
    world.restart_later(container, 1)
    return True


def _torn_blocks(world: World, fault: Fault) -> bool:
    """From now on, some blocks of a log are written in part, and have to be written again."""
    disks = [container.disk for container in world.containers if container.disk.paths(DATA, LOG_FILES)]
    if not disks or not world.journals:
        return False
    disk = disks[fault.target % len(disks)]
    disk.torn_suffix, disk.torn_share = ".tail", 0.3
    return True


def _store(world: World, fault: Fault) -> bool:
    # Half of the time, a store that fails can be written.
    unreadable = fault.kind == "store_failing" and fault.other % 2
    until_ms = world.now_ms + max(2 * fault.duration_ms, _LOOK_MS if unreadable else 0)
    world.stores.trouble("store_unreadable" if unreadable else fault.kind, until_ms)
    if world.journals and (unreadable or fault.other % 3 == 0):
        # Everybody begins anew while it cannot be read.
        for container in world.containers:
            if container.alive:
                _kill(world, container, 20)
    return True


def _client_restart(world: World, fault: Fault) -> bool:
    world.clients[fault.target % len(world.clients)].restart(orderly=fault.other % 2 == 0)
    return True


def _client_pause(world: World, fault: Fault) -> bool:
    world.clients[fault.target % len(world.clients)].pause(world.now_ms + 2 * fault.duration_ms)
    return True


def _overload(world: World, fault: Fault) -> bool:
    for client in world.clients:
        client.burst()
    return True


def _poison(world: World, fault: Fault) -> bool:
    world.clients[fault.target % len(world.clients)].poison()
    return True


def _stranger(world: World, fault: Fault) -> bool:
    """Somebody else writes in a client's session: under the numbers that the client uses next, or closes it."""
    client = world.clients[fault.target % len(world.clients)]
    if not isinstance(client, Client) or not client.session:
        return False
    number = client.next_number + fault.other % 3
    kind = (t.EXECUTE, t.EXECUTE, t.QUERY, t.CLOSE, t.KEEPALIVE)[fault.other % 5]
    payload = wrap(world.next_unique(), None)
    stranger = principal_of(b"the secret of a stranger")
    # He may even say that he is that client.
    claimed = client.principal if fault.other % 2 else stranger
    command = t.Command(client.session, number, number, payload, kind, claimed)
    for site in range(world.graph.sites):
        world.client_links.say(site, b"a stranger", stranger, [command])
    return True


def _garbage(world: World, fault: Fault) -> bool:
    """Something comes to a container, as from a peer or a client, that is nothing, or is not for it. Counted by the
    container, and no more than that."""
    draw, container = world.draw, world.containers[fault.target % len(world.containers)]
    if not container.alive or container.rest is not None or container.paused_until_ms > world.now_ms:
        return False
    version, cluster, era = t.FORMAT_VERSION + draw.choice((0, 0, 1)), draw.choice((1, 2)), draw.choice((1, 1, 2))
    header = peer_wire.Header(version, cluster, era, draw.randrange(50), 1, 0)
    torn = Fragment([draw.randrange(40)], 7, draw.choice((10, 1 << 40)), draw.choice((0, 3)), draw.randbytes(5))
    frame = t.encode(peer_wire.Frame(header, [], [], draw.choice(([], [torn]))))
    if fault.other % 4 == 1:
        frame = _odd_frame(world, container, fault.target)
    data = draw.choice((frame, frame, frame[: draw.randrange(len(frame))], draw.randbytes(draw.randrange(60))))
    world.hears_garbage = True
    if fault.other % 2:
        world.arrive(container, Inputs(frames=[data]))
    else:
        world.arrive(container, Inputs(messages=[Message(b"nobody", data)]))
    world.hears_garbage = False
    return True


def _odd_frame(world: World, container: SimulatedContainer, choice: int) -> bytes:
    """As from a peer: with a tuple that no node sends to such a node, or one with a number that there is not, or with
    something else where a commit should be. Votes are for slots that nobody has decided: others are not even looked
    at."""
    peer = world.containers[(container.index + 1) % len(world.containers)]
    header = peer_wire.Header(t.FORMAT_VERSION, world.cluster, world.era, peer.index, peer.life, 0)
    numbers, executors = container.numbers[:1], world.executors_of(container)
    sinks = [number for number in container.numbers if world.graph.names[number].stage is Stage.VIEW_SINK]
    parcels: list[tuple[list[int], t.WireTuple]] = []
    votes: list[tuple[list[int], peer_wire.PackedCommit]] = []
    fragments: list[Fragment] = []

    def vote(commit: object, end: int = _FAR) -> peer_wire.PackedCommit:
        return peer_wire.PackedCommit(0, end, Raw(t.encode(commit)))

    foreign, misplaced = t.Commit(99, 0, 1, _FAR, []), t.encode(t.Results(0, [], []))
    match choice % 10:
        case 0:
            parcels.append((numbers, t.Results(0, [], [])))
        case 1:
            parcels.append(([9_999], t.Vote(0, 0, 1, 1, 1)))
        case 2:
            parcels.append((sinks, t.Vote(99, 0, 1, 1, 1)))
        case 3:
            votes.append(([9_999], vote(foreign)))
        case 4:
            votes.append((executors, vote(foreign)))
        case 5:
            votes.append((executors, vote(foreign, _FAR + 1)))
        case 6:
            votes.append((executors, vote([])))
        case 7:
            votes.append((executors, vote([_TAG_OF_COMMIT, "nobody", 0, 1, _FAR, []])))
        case 8:
            fragments.append(Fragment(numbers, 0, len(misplaced), 0, misplaced))
        case _:
            votes.append((executors, vote(t.Vote(0, 0, 1, 1, 1))))
    return t.encode(peer_wire.Frame(header, parcels, votes, fragments))


def _operator(world: World, fault: Fault) -> bool:
    """An operator looks at the sessions, perhaps closes one, and has the digests of the states drawn; a stranger may
    not even look."""
    name, site = OPERATOR + bytes(16), fault.target % world.graph.sites
    listing = client_wire.ReadMessage(fault.other % 1000, t.encode(t.ListSessions(0)), False, t.SESSIONS)
    world.client_links.say(site, b"an operator", name, [], [listing])
    world.client_links.say(site, b"a stranger", principal_of(b"the secret of a stranger"), [], [listing])
    world.client_links.say(site, b"nobody", b"", [t.Command(0, 1, 0, b"", t.OPEN)])
    for number, container in _holders(world):
        # The rest is asked for as long as there is somebody who looks.
        world.deliver(container, [(t.DrawDigest(begins), number) for begins in (True, False)])
    client = world.clients[fault.target % len(world.clients)]
    if isinstance(client, Client) and client.session and fault.other % 3 == 0 and not client.name:
        world.client_links.say(
            site, b"an operator", name, [t.Command(client.session, world.next_unique(), 0, b"", t.CLOSE)]
        )
    return True


def _trouble(world: World, fault: Fault) -> bool:
    """One of a container that has what it is about, and may fail; or later."""
    if not world.journals:
        return False
    begin, harms = container_faults.OF_CONTAINERS[fault.kind]
    able = [container for container in world.containers if container.alive and harms(container)]
    container = able[fault.target % len(able)] if able else None
    if container is None or not world.may_fail([container]):
        world.after(_WAIT_MS, _strike, world, fault)
        return False
    return begin(world, container, fault)


def _idle_partition(world: World, fault: Fault) -> bool:
    """All clients that have something to say use partition 0."""
    world.idle_until_ms = world.now_ms + fault.duration_ms
    return True


def _fatal_command(world: World, fault: Fault) -> bool:
    """Counted when it strikes."""
    if not FatalCommand.can_happen(world):
        world.after(_WAIT_MS, _strike, world, fault)
        return False
    sites, first = world.graph.sites, fault.target % world.graph.sites
    count = (sites, sites, 1, world.graph.f + 1)[fault.other % 4]
    chosen = {(first + offset) % sites for offset in range(count)}
    # What ends more than f processes at once, `memory` does not survive.
    world.fatal = FatalCommand(world, chosen, ends=world.journals and fault.other % 8 < 4)
    return False


_STRIKES = {
    "crash": _crash,
    "crash_before_sync": _crash_in_step,
    "crash_after_sync": _crash_in_step,
    "crash_in_multicast": _crash_in_step,
    "crash_between": _crash_in_step,
    "crash_in_start": _crash_in_start,
    "amnesia": _amnesia,
    "crash_stage": _crash_stage,
    "crash_stage_again": _crash_stage_again,
    "crash_in_storage": _crash_in_storage,
    "crash_many": _crash_many,
    "crash_all": _crash_all,
    "zombie": _zombie,
    "old_disk": _old_disk,
    "older_directory": _older_directory,
    "older_records": _older_records,
    "life_damaged": _life_damaged,
    "stage_storm": _stage_storm,
    "unreadable": _unreadable,
    "orderly_restart": _orderly_restart,
    "odd_commands": _odd_commands,
    "losses_beyond_f": _losses_beyond_f,
    "new_era": _new_era,
    **dict.fromkeys(_STORIES, _story),
    **dict.fromkeys(container_faults.OF_CONTAINERS, _trouble),
    "many_reads": container_faults.many_reads,
    "pause": _pause,
    "suspicion": _suspicion,
    "clock_jump": _clock_jump,
    "partition": _partition,
    "one_way": _one_way,
    "partition_inside": _partition_inside,
    "slow_link": _slow_link,
    "controller_cut": _controller_cut,
    "disk_full": _disk_full,
    "disk_slow": _disk_slow,
    "sync_fails": _sync_fails,
    "log_damaged": _log_damaged,
    "log_gap": log_gap,
    "journal_damaged": _journal_damaged,
    "checkpoint_damaged": _checkpoint_damaged,
    "rotten_checkpoint": _rotten_checkpoint,
    "torn_blocks": _torn_blocks,
    "store_slow": _store,
    "store_failing": _store,
    "client_restart": _client_restart,
    "client_pause": _client_pause,
    "overload": _overload,
    "poison": _poison,
    "stranger": _stranger,
    "garbage": _garbage,
    "operator": _operator,
    "fatal_command": _fatal_command,
    "idle_partition": _idle_partition,
}
