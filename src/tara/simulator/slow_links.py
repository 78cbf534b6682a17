"""Large commands over slow links: nothing fails, everything just takes its time. Does the system let it?

Three sites with the default limits, each with an uplink of a given rate, and one client that keeps a given number of
commands in flight. Every command has to be answered, and the active proposer, which does what it can, is not to be
deposed again and again.
"""

from msgspec import Struct

from tara.application import Put
from tara.protocol import tuples as t
from tara.protocol.limits import Limits
from tara.simulator.checks.bulk import VIEW_CHANGES_MAX
from tara.simulator.scene import Scene

#: No command takes longer than this, in virtual time.
PATIENCE_MS = 600_000.0
_LOOK_MS = 20.0


class SlowRun(Struct, kw_only=True):
    rate_mbit: float
    commands: int
    command_bytes: int
    in_flight: int
    answered: int = 0
    view_changes: int = 0
    #: Virtual time: of the slowest command, and of all.
    slowest_s: float = 0.0
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        return self.answered == self.commands and self.view_changes <= VIEW_CHANGES_MAX


def play(rate_mbit: float, commands: int, command_bytes: int, in_flight: int, limits: Limits | None = None) -> SlowRun:
    run = SlowRun(rate_mbit=rate_mbit, commands=commands, command_bytes=command_bytes, in_flight=in_flight)
    scene = Scene(limits or Limits(), rate_mbit=rate_mbit)
    world = scene.world
    session = scene.open()
    view, began_ms = scene.view, world.now_ms
    # The command's own fields take some bytes, too.
    value = bytes(command_bytes - 64)
    sent_ms: dict[tuple[int, int], float] = {}
    sent = 0
    while run.answered < commands:
        while sent < commands and len(sent_ms) < in_flight:
            sent_ms[scene.send(session, Put("key", value))] = world.now_ms
            sent += 1
        scene.run(_LOOK_MS)
        for key in [key for key in sent_ms if key in scene.results]:
            if scene.results[key].status == t.OK:
                run.answered += 1
            run.slowest_s = max(run.slowest_s, (world.now_ms - sent_ms.pop(key)) / 1e3)
        if sent_ms and world.now_ms - min(sent_ms.values()) > PATIENCE_MS:
            break
    run.view_changes = scene.view - view
    run.seconds = round((world.now_ms - began_ms) / 1e3, 3)
    run.slowest_s = round(run.slowest_s, 3)
    return run
