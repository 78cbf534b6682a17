"""The virtual world: containers of nodes on a virtual network, clock, disk and store.

Everything happens in events, one after the other. An event that reaches a container is a step, as in the live
runtime: nodes of the container work until they have nothing left to say to each other; then what they persisted is
synced; then what they emitted leaves, peer by peer. A crash can come between any two of these.
"""

import heapq
import random
from array import array
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from tara.application import StateMachine
from tara.host.condition import described
from tara.host.strikes import Strikes, next_life
from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.journal import Written
from tara.protocol.node import GENESIS_MEMORY, Boot, Node, Outbox
from tara.protocol.nodes.committer import Committer, segment_head
from tara.protocol.nodes.factory import NODE_TYPES, create
from tara.protocol.places import CELLS, EXECUTED, EXECUTING, THREADS
from tara.simulator.client import Client
from tara.simulator.disk import Disk, StoredCheckpoint
from tara.simulator.fatal_command import FatalCommand
from tara.simulator.monitor import Monitor
from tara.simulator.plan import Plan
from tara.simulator.story import Story
from tara.simulator.subject import subject_of
from tara.simulator.transcript import Transcript
from tara.simulator.uplinks import Uplinks
from tara.simulator.violation import Violation
from tara.simulator.workload import Audited

TICK_MS = 10
Parcel = tuple[t.Tuple, int]  # a tuple, and the number of the node that it is for


class Container:
    """A process that hosts nodes. Its disk survives it; a new life is a new process."""

    def __init__(self, index: int, site: int, numbers: list[int], disk: Disk) -> None:
        self.index = index
        self.site = site
        self.numbers = numbers
        self.disk = disk
        self.life = 0
        self.alive = False
        self.nodes: dict[int, Node] = {}
        self.outboxes: dict[int, Outbox] = {}
        #: Where in its next step it will crash, if it will.
        self.doom: str | None = None
        self.paused_until_ms = 0.0
        self.waiting: list[Parcel] = []
        #: Per executor: checkpoints below are not to be saved any more.
        self.discarded: dict[int, int] = {}
        self.clock_offset_ms = 0.0
        #: By how much the clock was set back; shows in the next life.
        self.next_clock_offset_ms = 0.0
        #: Of a zombie: until when each container still sends to its address, and not to that of the new life; None:
        #: both get everything.
        self.known_until_ms: dict[int, float] | None = None
        #: Gone, disk and all; never to be started again.
        self.lost = False
        #: The application has ended the process.
        self.ended = False


class World:
    #: A host syncs before it sends. Only a mutant does otherwise.
    sync_before_send = True

    def __init__(
        self, plan: Plan, transcript: Transcript | None = None, application: Callable[[], StateMachine] | None = None
    ) -> None:
        self.plan = plan
        self.subject = subject_of(plan.app, plan.keys)
        #: What executors execute with; the subject's, unless another one is given.
        self._application = application or self.subject.replica
        self.graph = Graph(plan.limits.f, plan.limits.partitions)
        self.draw = random.Random(f"run-{plan.seed}")
        self.now_ms = 0.0
        self.faults: Counter[str] = Counter()
        self.restarts = 0
        self.rejoins = 0
        #: Committers that lost their memory and are not full again.
        self.rejoins_due: set[int] = set()
        #: Containers whose journal was damaged, and that have not started since.
        self.repairs_due: set[int] = set()
        #: Containers that lost their checkpoints, and the newest one that each of them had held.
        self.wiped: dict[int, int] = {}
        #: Whether what committers persist outlives their container.
        self.journals = plan.durability == "disk"
        self.checkpoints_loaded = 0
        #: Questions that were answered without being ordered.
        self.reads = 0
        self.types = dict(NODE_TYPES)
        self.transcript = transcript
        self.monitor = Monitor(self)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._unique = 0
        self._link_ms: dict[tuple[int, int], float] = {}
        #: Links that are down or slow, and until when: (from container's site, to site) or kinds of their own.
        self._blocked: dict[tuple[Any, ...], float] = {}
        self._slow: dict[tuple[int, int], float] = {}
        self._store_trouble: dict[str, float] = {}
        self._old_frames: deque[tuple[int, int, list[Parcel]]] = deque(maxlen=64)
        #: Where links have a rate.
        self._uplinks = (
            Uplinks(self, plan.rate_mbit, self.graph.names, self._send_frame) if plan.rate_mbit > 0 else None
        )
        self.healed = False
        self.containers = self._make_containers()
        self._host = {number: container for container in self.containers for number in container.numbers}
        self.zombies: list[Container] = []
        #: Who delays tuples on their way.
        self.stories: list[Story] = []
        #: The command at which the application breaks down, if there is one.
        self.fatal: FatalCommand | None = None
        self.idle_until_ms = 0.0
        #: Until then, the next container that emits a start crashes in doing so.
        self.start_doom_until_ms = 0.0
        #: Sees all results that reach a site, if set.
        self.on_results: Callable[[int, t.Results], None] | None = None
        self.clients = [Client(index, self) for index in range(plan.clients)]
        if min(plan.limits.window, plan.limits.checkpoint_slots * 2) <= 2:
            self.count_fault("smallest_window")

    def _make_containers(self) -> list[Container]:
        numbers = range(len(self.graph.names))
        sites = [self.graph.site(name) for name in self.graph.names]
        if self.plan.packing == "node":
            return [Container(number, sites[number], [number], Disk()) for number in numbers]
        return [
            Container(site, site, [number for number in numbers if sites[number] == site], Disk())
            for site in range(self.graph.sites)
        ]

    # Events

    def at(self, time_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time_ms, self._sequence, action, arguments))

    def after(self, delay_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now_ms + delay_ms, action, *arguments)

    def run_until(self, time_ms: float) -> None:
        while self._events and self._events[0][0] <= time_ms:
            self.now_ms, _, action, arguments = heapq.heappop(self._events)
            action(*arguments)
        self.now_ms = time_ms

    def next_unique(self) -> int:
        self._unique += 1
        return self._unique

    def count_fault(self, kind: str) -> None:
        self.faults[kind] += 1

    def start(self) -> None:
        """Genesis."""
        for container in self.containers:
            self.boot(container, genesis=True)
        for client in self.clients:
            self.after(10, self._wake, client)

    def _wake(self, client: Client) -> None:
        client.wake(self.now_ms)
        if not client.done or not self.healed:
            self.after(Client.WAKE_MS, self._wake, client)

    # Containers

    def boot(self, container: Container, genesis: bool = False) -> None:
        container.life += 1
        container.alive = True
        container.clock_offset_ms += container.next_clock_offset_ms
        container.next_clock_offset_ms = 0.0
        container.doom = None
        container.waiting = []
        container.paused_until_ms = 0.0
        container.nodes, container.outboxes = {}, {}
        container.ended = False
        if not genesis:
            self.restarts += 1
        disk = container.disk
        disk.strikes = next_life(disk.strikes, disk.cell[:THREADS])
        disk.cell[:THREADS] = array("Q", [0] * THREADS)
        self._replay(container, genesis)
        self._tell("starts", container)
        self._step(container, [])
        for number, node in container.nodes.items():
            self.monitor.inspect(number, container.life, node)
        self.after(self.draw.random() * TICK_MS, self._tick, container, container.life)

    def _replay(self, container: Container, genesis: bool) -> None:
        """Make the nodes, with what the journal has. A damaged one is restored; if nobody can know what was promised,
        it is given up."""
        disk, nodes = container.disk, container.nodes
        journals = disk.replay()
        damaged = bool(disk.problems)

        def committers() -> dict[int, Committer]:
            return {number: node for number, node in nodes.items() if isinstance(node, Committer)}

        disk.resumed = lambda: segment_head(committers())
        try:
            self._create(container, journals, genesis)
        except NodeHalted as error:
            if not damaged:
                raise Violation("halted", f"container {container.index}: {error!r} in replay"[:2000]) from error
            self.count_fault("journal_given_up")
            self.wipe(container, checkpoints=False)
            self._create(container, {}, genesis)
        if disk.broken:
            disk.restore(
                [
                    (number, node.restored())
                    for number, node in [pair for pair in committers().items() if not pair[1].recovering]
                ]
            )
            self.count_fault("journal_repaired")
        else:
            disk.mark()
        self.repairs_due.discard(container.index)
        if damaged and self.has_holes(container):
            self.count_fault("holes")

    def _create(self, container: Container, journals: dict[int, list[t.ReplayedEntry]], genesis: bool) -> None:
        for number in container.numbers:
            name = self.graph.names[number]
            # Proposers lose what they knew with every start; a committer's number is in its journal, if it has one.
            memory = GENESIS_MEMORY if genesis else container.life
            boot = Boot(container.life, memory, genesis, self._clock(container))
            application = self._application
            if name.stage is Stage.EXECUTOR:
                disk = container.disk
                barred, executed = frozenset(disk.strikes.barred), disk.cell[EXECUTED]
                boot = boot._replace(cell=disk.cell, barred=barred, executed=executed)
                application = partial(self._fragile, container, container.life)
            outbox = container.outboxes[number] = Outbox()
            entries = journals.get(number, [])
            container.nodes[number] = create(
                name, self.graph, self.plan.limits, boot, outbox, application, entries, self.types
            )

    def _fragile(self, container: Container, life: int) -> StateMachine:
        """An application that breaks down where it is to."""

        def before(operation: int, counter: int) -> None:
            if self.fatal is not None:
                self.fatal.strike(container, life, operation, counter)

        application = self._application()
        if isinstance(application, Audited):
            application.before = before
        return application

    def has_holes(self, container: Container) -> bool:
        """Whether a committer of the container does not know all that it accepted, or will not when it is back."""
        if container.index in self.repairs_due:
            return True
        return any(isinstance(node, Committer) and node.holes for node in container.nodes.values())

    def _clock(self, container: Container) -> float:
        return 1_000_000.0 + self.now_ms + container.clock_offset_ms

    def crash(self, container: Container) -> None:
        container.alive = False
        container.doom = None
        container.nodes, container.outboxes = {}, {}
        container.waiting = []
        if self._uplinks is not None:
            self._uplinks.crashed(container)
        self._tell("crashes", container)
        if not self.journals and container in self.containers:
            self.wipe(container, checkpoints=True)

    def lose(self, container: Container) -> None:
        container.lost = True
        if container.alive:
            self.crash(container)

    def wipe(self, container: Container, checkpoints: bool) -> None:
        """The container's disk is gone: what its committers had promised is forgotten."""
        container.disk.forget_journal()
        container.disk.cell, container.disk.strikes = array("Q", [0] * CELLS), Strikes()
        if checkpoints and container.disk.checkpoints:
            lost = max(number for held in container.disk.checkpoints.values() for number in (*held, 0))
            self.wiped[container.index] = max(lost, self.wiped.get(container.index, 0))
            container.disk.checkpoints.clear()
        for number in container.numbers:
            if self.graph.names[number].stage is Stage.COMMITTER:
                self.rejoins_due.add(number)

    def split(self, container: Container, copies_elsewhere: bool) -> None:
        """Start a new life of the container on another host, with an empty disk, while the old process goes on as a
        zombie on the old one."""
        zombie = Container(container.index, container.site, container.numbers, container.disk)
        zombie.life, zombie.alive = container.life, True
        zombie.nodes, zombie.outboxes = container.nodes, container.outboxes
        zombie.clock_offset_ms = container.clock_offset_ms
        if self.draw.random() < 0.7:
            zombie.known_until_ms = {other.index: self.now_ms + self.draw.randrange(600) for other in self.containers}
        self.zombies.append(zombie)
        self.after(TICK_MS, self._tick, zombie, zombie.life)
        container.disk = Disk(zombie.disk.generation)
        container.disk.checkpoints = {number: dict(held) for number, held in zombie.disk.checkpoints.items()}
        self.wipe(container, checkpoints=copies_elsewhere)
        self.boot(container)

    def restart_later(self, container: Container, delay_ms: float) -> None:
        self.after(delay_ms, self._restart, container)

    def _restart(self, container: Container) -> None:
        if container.alive or container.lost:
            return
        if container.disk.full:
            self.restart_later(container, 100)
            return
        self.boot(container)

    def _tick(self, container: Container, life: int) -> None:
        if not container.alive or container.life != life:
            return
        if self.now_ms >= container.paused_until_ms:
            waiting, container.waiting = container.waiting, []
            self._step(container, waiting, tick=True)
        self.after(TICK_MS, self._tick, container, life)

    def arrive(self, container: Container, parcels: list[Parcel], sender: int | None = None) -> None:
        """The parcels of a container (None: of somebody else) have come for the nodes of a container."""
        for zombie in [zombie for zombie in self.zombies if zombie.index == container.index]:
            if sender is None or zombie.known_until_ms is None:
                self._step(zombie, parcels)
            elif self.now_ms < zombie.known_until_ms[sender]:
                self._step(zombie, parcels)
                return
        if not container.alive:
            return
        if self.now_ms < container.paused_until_ms:
            container.waiting.extend(parcels)
        else:
            self._step(container, parcels)

    # A step

    def _step(self, container: Container, parcels: list[Parcel], tick: bool = False) -> None:
        queue = deque(parcels)
        sends: list[Parcel] = []
        host: list[Parcel] = []
        emissions: list[tuple[int, t.Tuple]] = []
        written: list[Written] = []
        for number in list(container.nodes):
            if tick:
                self._drive(container, number, None, queue, sends, host, emissions, written)
            else:
                self._collect(container, number, queue, sends, host, emissions, written)
        while queue and not container.ended:
            tuple_, number = queue.popleft()
            if self._uplinks is not None and type(tuple_) is t.Stable:
                self._uplinks.heard(container, tuple_)
            if number in container.nodes:
                self._drive(container, number, tuple_, queue, sends, host, emissions, written)
        if container.ended:
            # Where the process was when it ended, it has not left.
            container.disk.cell[EXECUTING] = self.fatal.counter if self.fatal is not None else 0
            self.crash(container)
            self.restart_later(container, self.draw.choice((20, 50, 200)))
            return
        self._finish(container, sends, host, emissions, written)

    def _drive(
        self, container: Container, number: int, tuple_: t.Tuple | None, queue: deque[Parcel], *collected: Any
    ) -> None:
        """Let a node process a tuple, or (None) the time."""
        node = container.nodes[number]
        try:
            if tuple_ is None:
                node.tick(self._clock(container))
            else:
                self.monitor.processes(number, container.life, tuple_)
                node.process(tuple_)
        except (NodeHalted, AssertionError) as error:
            raise Violation("halted", f"{self.graph.label(number)}: {error!r} on {tuple_!r}"[:2000]) from error
        if self.transcript is not None:
            self.transcript.step(self, container, number, tuple_, container.outboxes[number])
        if tuple_ is None and self.draw.random() < 0.2:
            self.monitor.inspect(number, container.life, node)
        self._collect(container, number, queue, *collected)

    def _collect(
        self,
        container: Container,
        number: int,
        queue: deque[Parcel],
        sends: list[Parcel],
        host: list[Parcel],
        emissions: list[tuple[int, t.Tuple]],
        written: list[Written],
    ) -> None:
        outbox = container.outboxes[number]
        if outbox.persisted:
            written.extend((number, entry) for entry in outbox.persisted)
            outbox.persisted = []
        for tuple_, receivers in outbox.emitted:
            emissions.append((number, tuple_))
            for receiver in receivers.numbers:
                if receiver < 0:
                    host.append((tuple_, number))
                elif receiver in container.nodes:
                    queue.append((tuple_, receiver))
                else:
                    sends.append((tuple_, receiver))
        if outbox.emitted:
            outbox.emitted = []

    def _finish(
        self,
        container: Container,
        sends: list[Parcel],
        host: list[Parcel],
        emissions: list[tuple[int, t.Tuple]],
        written: list[Written],
    ) -> None:
        """Sync, then send; unless the container is to crash somewhere on the way."""
        frames = self._frames(sends)
        if self.now_ms < self.start_doom_until_ms and any(type(emission[1]) is t.Start for emission in emissions):
            self.start_doom_until_ms = 0.0
            container.doom = "crash_in_start"
        doom = container.doom if written or (frames and not self._waits_for_sync(container)) else None
        if doom and not self.journals and not self.may_fail([container]):
            # Others have failed since: it has to wait for them.
            doom = None
        if written and container.disk.full and self.journals:
            # Nothing can be promised.
            self._die(container)
            return
        if doom == "crash_before_sync":
            if written and self.journals:
                container.disk.tear(written, self.draw)
                self.count_fault("torn_tail")
            if not self.sync_before_send:
                self._send(container, frames)
            self._die(container)
            return
        if written:
            self._sync(container, written)
        for number, tuple_ in emissions:
            self.monitor.emitted(number, container.life, container.disk.generation, tuple_)
        if doom == "crash_after_sync":
            self._die(container)
            return
        if doom in ("crash_in_multicast", "crash_in_start"):
            self._send(container, frames[: self.draw.randrange(len(frames) + 1)])
            self._die(container)
            return
        self._send(container, frames)
        for tuple_, number in host:
            self._to_host(container, number, tuple_)

    def _sync(self, container: Container, written: list[Written]) -> None:
        if self.journals:
            container.disk.append(written)
        self.monitor.persisted(written, container.disk.generation)
        for number, entry in written:
            if isinstance(entry, t.Installed):
                self.rejoins += 1
                self.rejoins_due.discard(number)
                self.monitor.inspect(number, container.life, container.nodes[number])
        if not self.journals:
            return
        if any(isinstance(entry, t.Collected) for _, entry in written):
            committers = {number: node for number, node in container.nodes.items() if isinstance(node, Committer)}
            container.disk.roll(lambda number: committers[number].commits.min)
        if self.draw.random() < 0.02:
            self._check_replay(container)

    def _check_replay(self, container: Container) -> None:
        """Would a restart right now find the committers as they are?"""
        for number, entries in container.disk.replay().items():
            name, node = self.graph.names[number], container.nodes[number]
            boot = Boot(container.life, container.life, False, 0.0)
            try:
                twin = create(name, self.graph, self.plan.limits, boot, Outbox(), self._application, entries)
            except NodeHalted as error:
                raise Violation("replay", f"{self.graph.label(number)}: {error}"[:2000]) from error
            assert isinstance(node, Committer)
            assert isinstance(twin, Committer)
            self.monitor.same_committer(number, node, twin)

    def _waits_for_sync(self, container: Container) -> bool:
        """Is it to crash beside a sync, and will there be one?"""
        if container.doom not in ("crash_before_sync", "crash_after_sync"):
            return False
        return any(self.graph.names[number].stage is Stage.COMMITTER for number in container.numbers)

    def _die(self, container: Container) -> None:
        doom, zombie = container.doom, container in self.zombies
        self.crash(container)
        if zombie:
            self.zombies.remove(container)
            return
        if doom is not None:
            self.count_fault(doom)
        self.restart_later(container, self.draw.choice((20, 50, 200, 700)))

    # Network

    def _frames(self, sends: list[Parcel]) -> list[tuple[Container, list[Parcel]]]:
        if self.plan.frames:
            by_peer: dict[int, list[Parcel]] = {}
            for tuple_, number in sends:
                by_peer.setdefault(self._host[number].index, []).append((tuple_, number))
            return [(self.containers[index], parcels) for index, parcels in by_peer.items()]
        return [(self._host[number], [(tuple_, number)]) for tuple_, number in sends]

    def _send(self, sender: Container, frames: list[tuple[Container, list[Parcel]]]) -> None:
        decoded: dict[int, t.Tuple] = {}
        for peer, parcels in frames:
            if self.plan.wire:
                parcels = [(self._through_wire(tuple_, decoded), number) for tuple_, number in parcels]
            parcels = [parcel for parcel in parcels if not self._is_blocked(sender, peer, parcel)]
            for story in self.stories:
                parcels = [parcel for parcel in parcels if not story.take(sender, peer, parcel)]
            if not parcels:
                continue
            if self._uplinks is not None and sender.site != peer.site:
                self._uplinks.send(sender, peer, parcels)
            else:
                self._send_frame(sender, peer, parcels)

    def _through_wire(self, tuple_: t.Tuple, decoded: dict[int, t.Tuple]) -> t.Tuple:
        if id(tuple_) not in decoded:
            decoded[id(tuple_)] = t.decode_tuple(t.encode(tuple_))
        return decoded[id(tuple_)]

    def _is_blocked(self, sender: Container, peer: Container, parcel: Parcel) -> bool:
        if not self._blocked:
            return False
        tuple_, number = parcel
        now = self.now_ms
        if self._blocked.get((sender.site, peer.site), 0) > now:
            return True
        return isinstance(tuple_, t.Progress) and self._blocked.get(("progress", number), 0) > now

    def _send_frame(self, sender: Container, peer: Container, parcels: list[Parcel]) -> None:
        plan, draw = self.plan, self.draw
        delay = plan.delay_ms * (0.5 + draw.random())
        if self.healed:
            self._deliver_in_order(sender, peer, parcels, delay)
            return
        if self._slow.get((sender.site, peer.site), 0) > self.now_ms:
            delay += draw.randrange(50, 400)
        chance = draw.random()
        if chance < plan.drop:
            self.count_fault("drop")
            return
        if draw.random() < plan.duplicate:
            self.count_fault("duplicate")
            self.after(delay + draw.randrange(100), self.arrive, peer, parcels, sender.index)
        if draw.random() < plan.replay:
            self._old_frames.append((sender.index, peer.index, parcels))
            if draw.random() < 0.3:
                self.count_fault("replay")
                _, index, old = self._old_frames[draw.randrange(len(self._old_frames))]
                self.after(delay, self.arrive, self.containers[index], old)
        if draw.random() < plan.reorder:
            self.count_fault("reorder")
            self.after(delay + draw.randrange(1, 60), self.arrive, peer, parcels, sender.index)
            return
        self._deliver_in_order(sender, peer, parcels, delay)

    def _deliver_in_order(self, sender: Container, peer: Container, parcels: list[Parcel], delay: float) -> None:
        link = (sender.index, peer.index)
        arrival = max(self.now_ms + delay, self._link_ms.get(link, 0.0))
        self._link_ms[link] = arrival
        self.at(arrival, self.arrive, peer, parcels, sender.index)

    def clear_network(self) -> None:
        self._blocked.clear()
        self._slow.clear()

    def block(self, sender: Any, receiver: Any, until_ms: float) -> None:
        self._blocked[sender, receiver] = until_ms

    def slow(self, sender: int, receiver: int, until_ms: float) -> None:
        self._slow[sender, receiver] = until_ms

    # Clients

    def submit(self, client: Client, commands: list[t.Command]) -> None:
        partitions = self.graph.partitions
        partition = 0 if self.now_ms < self.idle_until_ms else (client.index + self.draw.randrange(2)) % partitions
        self.submit_to(client.site, partition, commands)

    def submit_to(self, site: int, partition: int, commands: list[t.Command]) -> None:
        number = self.graph.number(Stage.REQUEST_SOURCE, site, partition)
        for delay in self._client_delays():
            self.after(delay, self.arrive, self._host[number], [(t.Submit(commands), number)])

    def ask(self, client: Client, question: t.Question) -> None:
        number = self.graph.number(Stage.REQUEST_SOURCE, client.site)
        for delay in self._client_delays():
            self.after(delay, self.arrive, self._host[number], [(t.Ask([question]), number)])

    def _client_delays(self) -> list[float]:
        """When copies of a message to or from a client arrive: once, unless it is lost or doubled."""
        delays = [self.plan.delay_ms * (0.5 + self.draw.random())]
        if not self.healed:
            if self.draw.random() < self.plan.drop:
                self.count_fault("drop")
                return []
            if self.draw.random() < self.plan.duplicate:
                self.count_fault("duplicate")
                delays.append(delays[0] + self.draw.randrange(200))
        return delays

    def _reply(self, container: Container, results: t.Results) -> None:
        if self.on_results is not None:
            self.on_results(container.site, results)
        by_client: dict[int, list[t.Result]] = {}
        for result in results.results:
            for client in self.clients:
                # As a front end does it: by whom the answer is for, and by the session.
                mine = result.principal == client.principal and result.session in (0, client.session)
                if mine and client.site == container.site:
                    by_client.setdefault(client.index, []).append(result)
        for index, mine_results in by_client.items():
            for delay in self._client_delays():
                self.after(delay, self._receive, self.clients[index], mine_results)

    def _receive(self, client: Client, results: list[t.Result]) -> None:
        for result in results:
            client.receive(result, self.now_ms)

    # The store

    def trouble_store(self, kind: str, until_ms: float) -> None:
        self._store_trouble[kind] = until_ms

    def _store_has(self, kind: str) -> bool:
        return not self.healed and self._store_trouble.get(kind, 0) > self.now_ms

    def _to_host(self, container: Container, number: int, tuple_: t.Tuple) -> None:
        life = container.life
        match tuple_:
            case t.Results():
                self._reply(container, tuple_)
            case t.Answers():
                for client in self.clients:
                    for delay in self._client_delays():
                        self.after(delay, client.hear, tuple_.answers)
            case t.Save():
                delay = self.draw.randrange(1, 500 if self._store_has("store_slow") else 20)
                self.after(delay, self._save, container, life, number, tuple_)
            case t.Load():
                delay = self.draw.randrange(1, 500 if self._store_has("store_slow") else 20)
                self.after(delay, self._load, container, life, number, tuple_)
            case t.Halted():
                self._on_halted(container, number, tuple_)
            case t.Unbarred(counter):
                strikes = container.disk.strikes
                barred = [place for place in strikes.barred if place != counter]
                container.disk.strikes = Strikes([0] * THREADS, [0] * THREADS, barred)
            case t.AskIndex():
                source = self.graph.number(Stage.REQUEST_SOURCE, container.site)
                self.after(self.plan.delay_ms * self.draw.random(), self.arrive, self._host[source], [(tuple_, source)])
            case t.Discard():
                container.discarded[number] = tuple_.below
                stored = container.disk.checkpoints_of(number)
                for old in [known for known in stored if known < tuple_.below and known < max(stored)]:
                    del stored[old]

    def _on_halted(self, container: Container, number: int, halted: t.Halted) -> None:
        if self.graph.names[number].stage is Stage.EXECUTOR:
            expected = self.fatal is not None and halted.counter == self.fatal.counter and not halted.checkpoint
            if halted.reason and not expected:
                raise Violation("halted", f"{self.graph.label(number)} has {described(halted)}")
            return
        for partition in range(self.graph.partitions):
            source = self.graph.number(Stage.REQUEST_SOURCE, container.site, partition)
            self.after(self.plan.delay_ms * self.draw.random(), self.arrive, self._host[source], [(halted, source)])

    def _save(self, container: Container, life: int, number: int, save: t.Save) -> None:
        if not container.alive or container.life != life:
            return
        if save.number < container.discarded.get(number, 0):
            return
        if self._store_has("store_failing") or container.disk.full:
            self.after(50, self._save, container, life, number, save)
            return
        stored = StoredCheckpoint(save.number, save.state, save.chunks)
        self.monitor.saved(stored.id)
        container.disk.checkpoints_of(number)[save.number] = stored
        if container in self.zombies:
            # It tells of a copy that nobody will find.
            self.wiped[container.index] = max(save.number, self.wiped.get(container.index, 0))
        self.arrive(container, [(t.Saved(stored.id), number)])

    def _load(self, container: Container, life: int, number: int, load: t.Load) -> None:
        if not container.alive or container.life != life:
            return
        stored = None if self._store_has("store_failing") and load.minimum else self._find(container, number, load)
        if stored is None:
            self.arrive(container, [(t.Loaded(None, b"", []), number)])
            return
        if load.minimum:
            self.checkpoints_loaded += 1
        self.arrive(container, [(t.Loaded(stored.id, stored.state, stored.chunks), number)])

    def _find(self, container: Container, number: int, load: t.Load) -> StoredCheckpoint | None:
        """The newest intact checkpoint that is new enough: the executor's own, else a holder's."""
        own = container.disk.checkpoints_of(number)
        sources = [own]
        for holder in load.holders:
            node = self.graph.number(Stage.EXECUTOR, holder)
            host = self._host[node]
            if node != number and (host.alive or (self.plan.store_shared and not host.lost)):
                sources.append(host.disk.checkpoints_of(node))
        minimum = 0 if self._store_has("store_stale") else load.minimum
        choice = min if self._store_has("store_stale") else max
        for stored in sources:
            usable = [known for known, checkpoint in stored.items() if known >= minimum and checkpoint.intact]
            if usable:
                return stored[choice(usable)]
        return None

    def copies(self, checkpoint: int) -> int:
        """Executors that hold a checkpoint of this number or a newer one."""
        return sum(
            1
            for number, name in enumerate(self.graph.names)
            if name.stage is Stage.EXECUTOR
            and max(self._host[number].disk.checkpoints_of(number), default=0) >= checkpoint
        )

    # Looking around

    def inspect_all(self) -> None:
        for container in self.containers:
            for number, node in container.nodes.items():
                self.monitor.inspect(number, container.life, node)

    def host_of(self, number: int) -> Container:
        return self._host[number]

    def nodes_of(self, stage: Stage) -> list[tuple[Name, Node]]:
        """The living nodes of a stage."""
        return [
            (name, self._host[number].nodes[number])
            for number, name in enumerate(self.graph.names)
            if name.stage is stage and number in self._host[number].nodes
        ]

    def may_fail(self, containers: list[Container]) -> bool:
        """Whether at most f replicas of each stage are down if these fail, too. One that lost its memory, a part of its
        journal or its checkpoints counts as down until it is what it was."""
        down: Counter[tuple[Stage, int]] = Counter()
        for container in self.containers:
            if not container.alive or container.paused_until_ms > self.now_ms or container in containers:
                for number in container.numbers:
                    name = self.graph.names[number]
                    down[name.stage, name.partition] += 1
            else:
                for number in self.rejoins_due.intersection(container.numbers):
                    down[Stage.COMMITTER, self.graph.names[number].partition] += 1
                for number, node in container.nodes.items():
                    if isinstance(node, Committer) and node.holes and number not in self.rejoins_due:
                        down[Stage.COMMITTER, self.graph.names[number].partition] += 1
                if self._lacks_checkpoints(container):
                    down[Stage.EXECUTOR, 0] += 1
        return max(down.values(), default=0) <= self.graph.f

    def is_at_full_strength(self) -> bool:
        """Whether every executor that is left holds the stable checkpoint or a newer one: then the next loss is
        survived like the first one."""
        executors = [number for number, name in enumerate(self.graph.names) if name.stage is Stage.EXECUTOR]
        return all(
            max(self._host[number].disk.checkpoints_of(number), default=0) >= self.monitor.stable
            for number in executors
            if not self._host[number].lost
        )

    def _lacks_checkpoints(self, container: Container) -> bool:
        lost = self.wiped.get(container.index)
        if lost is None:
            return False
        executors = [number for number in container.numbers if self.graph.names[number].stage is Stage.EXECUTOR]
        held = [max(container.disk.checkpoints_of(number), default=0) for number in executors]
        return min(held, default=lost) < max(lost, self.monitor.stable if executors else 0)

    def _tell(self, what: str, container: Container) -> None:
        if self.transcript is not None:
            self.transcript.container(self, container, what)
