"""Faults of one container that do not end it by themselves: single calls of its disk that fail, a node whose invariant
is broken, and somebody who asks more than can be answered."""

import errno
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tara.application import Get
from tara.host import client_wire
from tara.protocol.journal import HEAD_BYTES, read_marker
from tara.protocol.nodes.executor import Executor
from tara.protocol.principals import principal_of
from tara.simulator.container import DATA, SimulatedContainer
from tara.simulator.faults.fatal_snapshot import FatalSnapshot
from tara.simulator.workload import wrap
from tara.storage.journal import MARKER_FILE, journal_directory

if TYPE_CHECKING:
    from tara.simulator.plan import Fault
    from tara.simulator.world import World

#: A record is written in part, and what is there of it cannot be cut off.
TORN_RECORD = (("write", "*.journal", errno.ENOSPC), ("truncate", "*.journal", errno.EIO))
#: One after the other: a kind of call, the names of the files that it is for, and how it fails, once.
DISK_ERRORS: tuple[tuple[tuple[str, str, int], ...], ...] = (
    (("write", MARKER_FILE, errno.EIO),),
    (("write", MARKER_FILE, errno.ENOSPC),),
    TORN_RECORD,
    (("create", "*.journal", errno.ENOSPC),),
    (("create", "*.journal", errno.EIO),),
    (("sync", "journal-*", errno.ENOSPC),),
    (("sync", "journal-*", errno.EIO),),
    (("rename", MARKER_FILE, errno.EIO),),
    (("rename", "*.base", errno.EIO),),
    (("unlink", "*.base", errno.EIO),),
    (("rename", "0*-*.base", errno.ENOSPC),),
    (("write", "*.base.*", errno.ENOSPC),),
    (("sync", "*.base.*", errno.EIO),),
    (("rename", "*.tail", errno.ENOSPC),),
    (("write", "*.tail", errno.EIO), ("truncate", "*.tail", errno.EIO)),
    (("rename", "*.segment", errno.EIO),),
    (("write", "begin*", errno.ENOSPC),),
    (("map", "execution-*", errno.ENOSPC),),
    (("write", "life-*", errno.EIO),),
)
#: The same for directories, of which the names are synced and listed.
DIRECTORY_ERRORS: tuple[tuple[str, str, int], ...] = (
    ("sync", "log-*", errno.EIO),
    ("sync", "log-*", errno.ENOSPC),
    ("list", "bases-*", errno.EIO),
    ("list", "bases-*", errno.EMFILE),
    ("sync", "bases-*", errno.EIO),
    ("list", "log-*", errno.EACCES),
)
#: What is asked beyond what a front end remembers; and of each key, when values are long.
READS_BEYOND = 50
LONG_READS = 40


def _disk_error(world: "World", container: SimulatedContainer, fault: "Fault") -> bool:
    """The next call of a kind fails, once. Counted when it does."""
    container.disk.errors = list(DISK_ERRORS[fault.other % len(DISK_ERRORS)])
    container.disk.on_error = partial(world.count_fault, fault.kind)
    return False


def _torn_record(world: "World", container: SimulatedContainer, fault: "Fault") -> bool:
    container.disk.errors = list(TORN_RECORD)
    container.disk.on_error = partial(world.count_fault, fault.kind)
    return False


def _directory_error(world: "World", container: SimulatedContainer, fault: "Fault") -> bool:
    """Like that, for a directory."""
    container.disk.errors = [DIRECTORY_ERRORS[fault.other % len(DIRECTORY_ERRORS)]]
    container.disk.on_error = partial(world.count_fault, fault.kind)
    return False


def _marker_lost(world: "World", container: SimulatedContainer, fault: "Fault") -> bool:
    """A container comes back to a journal without its end marker."""
    world.crash(container)
    container.disk.forget(_marker(container))
    world.repairs_due.add(container.index)
    world.restart_later(container, fault.duration_ms)
    return True


def _damage_after_power_cut(world: "World", container: SimulatedContainer, fault: "Fault") -> bool:
    """Of the end marker, a machine may come back with an older one; and then a segment is gone, or all but its
    beginning. (What is cut off behind the place of an older marker looks like a record that was being written.)"""
    directory = journal_directory(DATA, container.index)
    world.crash(container, power=True)
    world.restart_later(container, fault.duration_ms)
    segments = [path for path in container.disk.paths(directory, (".journal",)) if path.parent == directory]
    marker, _ = read_marker(container.disk.read(_marker(container)))
    if not segments or marker is None or not marker.states:
        # Nobody would know that anything was promised.
        return False
    draw = random.Random(fault.other)
    if draw.random() < 0.3:
        container.disk.cut(segments[-1], draw.randrange(HEAD_BYTES))
    else:
        container.disk.forget(draw.choice((segments[-1], *segments)))
    world.repairs_due.add(container.index)
    return True


def _marker(container: SimulatedContainer) -> Path:
    return journal_directory(DATA, container.index) / MARKER_FILE


def _has_marker(container: SimulatedContainer) -> bool:
    segments = container.disk.paths(journal_directory(DATA, container.index), (".journal",))
    return container.disk.exists(_marker(container)) and bool(segments) and not container.founding


def _broken_node(world: "World", container: SimulatedContainer, fault: "Fault") -> bool:
    """An invariant of a node is broken, and it stops; the others of its container go on without it, until an operator
    starts that anew."""
    if world.fatal is not None:
        return False
    executors = world.executors_of(container)
    some = executors if executors and fault.other % 3 == 0 else container.numbers
    world.broken.add(some[fault.other // 3 % len(some)])
    world.after(fault.duration_ms + 50, _repair, world, container)
    return True


def _bad_snapshot(world: "World", container: SimulatedContainer, fault: "Fault") -> bool:
    """The application of a replica cannot give its next snapshot: that base is given up, and nothing else. Counted when
    it is asked for that."""
    world.bad_snapshots.add(container.index)
    return False


def _fatal_snapshot(world: "World", container: SimulatedContainer, fault: "Fault") -> bool:
    """Snapshots end the process, on one replica or on all. Counted when they do."""
    if world.fatal_snapshot is None:
        sites = {container.site} if fault.other % 2 else set(range(world.graph.sites))
        world.fatal_snapshot = FatalSnapshot(world, sites, 4 * fault.duration_ms + 1_000)
    return False


def _executes(container: SimulatedContainer) -> bool:
    return any(isinstance(node, Executor) and node.ready for node in container.nodes.values())


def _repair(world: "World", container: SimulatedContainer) -> None:
    world.broken.difference_update(container.numbers)
    if container.alive:
        world.crash(container)
        world.restart_later(container, 20)


def many_reads(world: "World", fault: "Fault") -> bool:
    """Two strangers ask more than a front end remembers; or, if values are long, all of them again and again."""
    site, stranger = fault.target % world.graph.sites, principal_of(b"the secret of a stranger")
    payloads = [b"\xc1"] * (world.plan.limits.reads_max // 2 + READS_BEYOND)
    if world.plan.value_bytes:
        keys = [f"key-{number}" for number in range(world.plan.keys)] * LONG_READS
        payloads = [wrap(0, msgspec.msgpack.encode(Get(key))) for key in keys]
    for connection in (b"one who asks", b"another one", b"one who asks"):
        reads = [
            client_wire.ReadMessage(index, payload, fault.other % 2 == 0) for index, payload in enumerate(payloads)
        ]
        world.client_links.say(site, connection, stranger, [], reads)
    return True


#: How each begins, and whom it can happen to.
OF_CONTAINERS: dict[
    str, tuple[Callable[["World", SimulatedContainer, "Fault"], bool], Callable[[SimulatedContainer], bool]]
] = {
    "disk_error": (_disk_error, lambda container: True),
    "torn_record": (_torn_record, _has_marker),
    "directory_error": (_directory_error, _executes),
    "marker_lost": (_marker_lost, _has_marker),
    "damage_after_power_cut": (_damage_after_power_cut, _has_marker),
    "bad_snapshot": (_bad_snapshot, _executes),
    "fatal_snapshot": (_fatal_snapshot, _executes),
    "broken_node": (_broken_node, lambda container: container.rest is None),
}
