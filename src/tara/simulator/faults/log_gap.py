"""A log with a gap where the committers still have what is missing: an executor is ahead of the stable checkpoint,
because the stores of the others stand still, and comes back without the first segment behind it.
"""

from typing import TYPE_CHECKING

from tara.protocol.graph import Stage
from tara.simulator.container import DATA, SimulatedContainer
from tara.storage.base_format import base_directory, number_of
from tara.storage.log import log_directory
from tara.storage.log_format import parse_segment

if TYPE_CHECKING:
    from tara.simulator.plan import Fault
    from tara.simulator.world import World

#: How long the others stand still at most, and how often it is looked.
STILL_MS = 2_500.0
LOOK_MS = 10.0


def log_gap(world: "World", fault: "Fault") -> bool:
    """Counted when it happens."""
    hosts = [world.host_of(number) for number, name in enumerate(world.graph.names) if name.stage is Stage.EXECUTOR]
    victim = hosts[fault.target % len(hosts)]
    if world.journals:
        until_ms = world.now_ms + STILL_MS
        for other in hosts:
            if other is not victim:
                world.stores.stand_still(other, until_ms)
        world.after(LOOK_MS, _look, world, victim, victim.life, until_ms)
    return False


def _look(world: "World", victim: SimulatedContainer, life: int, until_ms: float) -> None:
    if world.now_ms >= until_ms or world.healed or not victim.alive or victim.life != life:
        return
    replica = world.graph.names[world.executors_of(victim)[0]].replica
    bases, log = base_directory(DATA, replica), log_directory(DATA, replica)
    files = [
        file for path in victim.disk.paths(log, (".segment",)) if path.parent == log and (file := parse_segment(path))
    ]
    # What is damaged lies in a directory below.
    kept = [path for path in victim.disk.paths(bases, (".base",)) if path.parent == bases]
    newest = max([world.monitor.stable, *map(number_of, kept)])
    paths = {file.number: file.path for file in files}
    if newest + 2 not in paths or newest + 1 not in paths or not world.may_fail([victim]):
        world.after(LOOK_MS, _look, world, victim, life, until_ms)
        return
    world.crash(victim)
    victim.disk.damage(paths[newest + 1], [])
    # It counts as down until what it has leads there again.
    world.wiped[victim.index] = max(newest + 2, world.wiped.get(victim.index, 0))
    world.restart_later(victim, 1)
    world.count_fault("log_gap")
