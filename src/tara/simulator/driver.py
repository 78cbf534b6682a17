"""What a simulated process does with the effects of its site, one after the other, and where it dies in that.

The counterpart of `tara.live.container`: it decides nothing, but a crash can come between any two effects, and in the
middle of what a disk is asked to do.
"""

import random
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tara.host.effects import (
    Effect,
    Executes,
    Halt,
    Hand,
    Inputs,
    Listen,
    Replies,
    Respond,
    Send,
    Store,
    Sync,
    Trouble,
    Unbar,
)
from tara.host.executor_condition import described
from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import Stage
from tara.protocol.journal import Written
from tara.protocol.node import Boot, Outbox
from tara.protocol.nodes.factory import create
from tara.protocol.places import EXECUTING
from tara.simulator.checks.violation import Violation
from tara.simulator.container import CLUSTER, DATA, ProcessEnded, SimulatedContainer
from tara.simulator.disk import Crash
from tara.storage.journal import Identity, JournalError, journal_directory, read_journal

if TYPE_CHECKING:
    from tara.simulator.world import World

#: So often, who sends to a container that is down knows that nobody is there.
NO_LINK_SHARE = 0.5
#: So many steps of a run that has a depth are made from there.
DEEP_SHARE = 0.25
_IN_MULTICAST = ("crash_in_multicast", "crash_in_start")


class Driver:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._links = random.Random(f"links-{world.plan.seed}")
        self._depths = random.Random(f"depths-{world.plan.seed}")

    def step(self, container: SimulatedContainer, inputs: Inputs) -> None:
        inputs.gateway = container.gateway is not None
        self.go_on(container, container.running.step(inputs, self._world.clock(container)))

    def go_on(self, container: SimulatedContainer, effects: Iterator[Effect]) -> None:
        """Now and then from deep in the stack: what comes of it must not depend on how deep that is."""
        depth = self._world.plan.stack_depth
        levels = self._depths.randrange(depth) if depth and self._depths.random() < DEEP_SHARE else 0
        self._go_on_below(levels, container, effects)

    def _go_on_below(self, levels: int, container: SimulatedContainer, effects: Iterator[Effect]) -> None:
        if levels:
            self._go_on_below(levels - 1, container, effects)
        else:
            self._go_on_here(container, effects)

    def _go_on_here(self, container: SimulatedContainer, effects: Iterator[Effect]) -> None:
        """Do one effect after the other, until one has to wait for the disk, or the process ends."""
        world = self._world
        site = container.host
        try:
            for effect in effects:
                if self._strikes(container, effect):
                    self.die(container)
                    return
                wait_ms = self._do(container, effect)
                if container.host is not site:
                    return
                if wait_ms:
                    container.rest = effects
                    world.after(wait_ms, self._resume, container, container.life)
                    return
        except ProcessEnded:
            # Where the process was when it ended, it has not left.
            for number in world.executors_of(container):
                container.kept.records[number].cell[EXECUTING] = container.ended_at
            world.end_in_application(container)
            world.restart_later(container, world.draw.choice((20, 50, 200)))
            return
        except Crash:
            self.on_crash(container)
            return
        except OSError:
            # What it cannot write, it cannot do without.
            world.count_fault("disk_failed")
            self.die(container)
            return
        self._see(container)
        if container.doom in _IN_MULTICAST and container.sending:
            self.die(container)
        container.sending = False
        gateway = container.gateway
        if gateway is not None and (gateway.busy or not container.running.is_idle):
            world.after(0.2, self._go_on_soon, container, container.life)

    def _go_on_soon(self, container: SimulatedContainer, life: int) -> None:
        if container.alive and container.life == life:
            self._world.arrive(container, Inputs())

    def _resume(self, container: SimulatedContainer, life: int) -> None:
        """The disk has done what the step waited for."""
        rest = container.rest
        if rest is None or not container.alive or container.life != life:
            return
        if self._world.now_ms < container.paused_until_ms:
            self._world.at(container.paused_until_ms, self._resume, container, life)
            return
        again, container.rest, container.again = container.again, None, None
        self.go_on(container, rest if again is None else chain((again,), rest))
        if container.alive and container.life == life and container.rest is None:
            waiting, container.waiting = container.waiting, Inputs()
            self.step(container, waiting)

    def _strikes(self, container: SimulatedContainer, effect: Effect) -> bool:
        """Whether the container dies here, before it has done this."""
        world = self._world
        if isinstance(effect, Sync) and self._doom(container) == "crash_before_sync":
            if not world.journals:
                return True
            # Somewhere on the way.
            container.disk.ends_in = world.draw.choice((0, 0, 0, 1, 2, 3))
            world.count_fault("torn_tail")
        if container.doom == "crash_between" and self._doom(container) is not None:
            # Before this effect, or one that follows in this step or in another one.
            return world.draw.random() < 0.2
        if not isinstance(effect, Send):
            return False
        starts = any(type(said.tuple) is t.Start for said in container.said.leaving)
        if starts and world.now_ms < world.start_doom_until_ms:
            world.start_doom_until_ms = 0.0
            container.doom = "crash_in_start"
        doom = self._doom(container)
        if doom in ("crash_before_sync", "crash_after_sync"):
            # One that never has anything to sync dies here.
            return not any(world.graph.names[number].stage is Stage.COMMITTER for number in container.numbers)
        if doom in _IN_MULTICAST:
            # Before this frame, or behind the last one of the step, or in between.
            container.sending = True
            return world.draw.random() < 0.3
        return False

    def _doom(self, container: SimulatedContainer) -> str | None:
        """How it is to die, if that may be now."""
        if container.doom and not self._world.journals and not self._world.may_fail([container]):
            # Others have failed since: it has to wait for them.
            return None
        return container.doom

    def _see(self, container: SimulatedContainer) -> None:
        """What the nodes have said is about to leave."""
        for said in container.said.take():
            self._world.monitor.emitted(said, container.life, container.generation)
            from_sink = self._world.graph.names[said.number].stage is Stage.REPLY_SINK
            if self._world.on_results is not None and isinstance(said.tuple, t.Results) and from_sink:
                self._world.on_results(container.site, said.tuple)

    def _do(self, container: SimulatedContainer, effect: Effect) -> float:
        """Returns for how long its process has to wait for that."""
        world = self._world
        match effect:
            case Sync(entries, collected):
                return self._sync(container, entries, collected)
            case Send():
                self._see(container)
                receiver = world.containers[effect.container]
                # A story wants to see everything that is on its way.
                if not receiver.alive and not world.stories and self._links.random() < NO_LINK_SHARE:
                    world.count_fault("no_link")
                    container.running.sent(effect, 0, full=False)
                else:
                    full = world.network.send(container, receiver, effect.frames)
                    container.running.sent(effect, len(effect.frames), full)
            case Replies(replies):
                self._see(container)
                answered, clock_s = container.running.latency.answered, partial(world.clock_s, container)
                for reply in replies:
                    world.client_links.reply(container, reply.connection, list(reply.messages))
                    answered(reply.results, clock_s)
            case Store(number, job):
                self._see(container)
                world.stores.submit(container, container.life, number, job)
            case Unbar(number, counter):
                container.kept.records[number].unbar(counter)
            case Executes(number, halted):
                expected = world.fatal is not None and halted.counter == world.fatal.counter and not halted.checkpoint
                expected = expected or number in world.broken
                if halted.reason and not expected:
                    raise Violation("halted", f"{world.graph.label(number)} has {described(halted)}")
                world.close_gateway(container)
                if not halted.reason:
                    world.open_gateway(container)
            case Halt(number, _) if number in world.broken:
                world.count_fault("node_halted")
            case Halt(number, reason):
                raise Violation("halted", f"{world.graph.label(number)}: {reason}"[:2000])
            case Trouble("bad_frame", _, _) if world.hears_garbage:
                world.count_fault("refused_frame")
            case Trouble("bad_frame", sender, reason):
                raise Violation("refused", f"container {container.index} refused what a {sender} sent: {reason}"[:2000])
            case Trouble():
                world.count_fault("foreign_frame")
            case Listen() if container.gateway is not None:
                container.gateway.receive()
            case Respond() if container.gateway is not None:
                container.gateway.respond(world.now_ms / 1e3)
            case Hand(results):
                container.running.latency.answered(results, partial(world.clock_s, container))
                if container.gateway is not None:
                    container.gateway.take(results)
                elif world.wire is None:
                    raise Violation("routes", "results for a gateway, and there is none")
        return 0.0

    def _sync(self, container: SimulatedContainer, written: list[Written], collected: bool) -> float:
        """If there is no room it is tried again; what the disk refuses for good ends the container."""
        world = self._world
        container.uncertain = written
        try:
            pause_s = container.kept.sync(written, collected, world.now_ms / 1e3)
        except JournalError:
            world.count_fault("journal_failed")
            self.die(container)
            return 0.0
        if pause_s:
            # If it was for the end marker, the record is there.
            world.count_fault("no_room")
            container.again = Sync(written, collected)
            return pause_s * 1e3
        container.uncertain = []
        container.said.synced()
        self.note_written(container, written)
        if self._doom(container) in ("crash_before_sync", "crash_after_sync"):
            self._see(container)
            self.die(container)
        # Without a journal, no step waits for the disk.
        return self.owed_ms(container) if world.journals else 0.0

    def note_written(self, container: SimulatedContainer, written: list[Written]) -> None:
        world = self._world
        world.monitor.persisted(written, container.generation)
        for number, entry in written:
            # What an older life has remembered, the new one has not.
            if isinstance(entry, t.Installed) and container not in world.zombies:
                world.rejoins += 1
                world.rejoins_due.discard(number)
                world.monitor.inspect(number, container.life, container.nodes[number])
        if world.journals and world.draw.random() < 0.02:
            self._check_replay(container)

    def find_out(self, container: SimulatedContainer) -> None:
        """Whether what it was writing is in its journal, and will be replayed."""
        written, container.uncertain = container.uncertain, []
        identity = Identity(CLUSTER, self._world.era, container.index)
        found = read_journal(journal_directory(DATA, container.index), identity, container.disk).found.entries
        if all(entry in found.get(number, ()) for number, entry in written):
            self._world.monitor.persisted(written, container.generation)

    def owed_ms(self, container: SimulatedContainer) -> float:
        owed_ms, container.disk.owed_ms = container.disk.owed_ms, 0.0
        return owed_ms

    def _check_replay(self, container: SimulatedContainer) -> None:
        """Would a restart right now find the committers as they are?"""
        world = self._world
        identity = Identity(CLUSTER, world.era, container.index)
        found = read_journal(journal_directory(DATA, container.index), identity, container.disk).found
        if found.problems:
            raise Violation("replay", f"container {container.index}: {found.problems}"[:2000])
        for number, entries in found.entries.items():
            name, node = world.graph.names[number], container.nodes.get(number)
            if node is None and number in world.broken:
                continue
            boot = Boot(container.life, container.life, False, 0.0)
            try:
                twin = create(name, world.graph, world.plan.limits, boot, Outbox(), world.application, entries)
            except NodeHalted as error:
                raise Violation("replay", f"{world.graph.label(number)}: {error}"[:2000]) from error
            world.monitor.same_committer(number, node, twin)

    def on_crash(self, container: SimulatedContainer) -> None:
        if container.doom is None:
            self._world.count_fault("crash_in_storage")
        self.die(container)

    def die(self, container: SimulatedContainer) -> None:
        world = self._world
        doom, zombie = container.doom, container in world.zombies
        container.sending = False
        world.crash(container, power=doom is not None and world.draw.random() < 0.3)
        if zombie:
            world.zombies.remove(container)
            return
        if doom is not None:
            world.count_fault(doom)
        world.restart_later(container, world.draw.choice((20, 50, 200, 700)))
