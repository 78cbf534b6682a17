"""The virtual world: sites on a virtual network, clock, disk and store.

Everything happens in events, one after the other. An event that reaches a container is a step of its site, the same one
that the live runtime drives (`tara.host.site`); what the site wants done is done by `driver.py`. Here is who is there:
containers that start, end, move and come back, their clocks, and the eras that an operator begins.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from tara.application import StateMachine
from tara.host.counters import Counters
from tara.host.effects import Effect, Inputs
from tara.host.placement import container_label, placement_of
from tara.host.site import Site, SiteSpec
from tara.host.strikes import STRIKES_MAX
from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.factory import NODE_TYPES, create
from tara.protocol.places import EXECUTING, SNAPSHOT, cause
from tara.protocol.principals import principal_of
from tara.simulator.batch_writer import BatchWriter
from tara.simulator.checks.monitor import Monitor
from tara.simulator.client import Client
from tara.simulator.client_links import ClientLinks
from tara.simulator.container import CLUSTER, DATA, Parcel, ProcessEnded, Said, SimulatedContainer
from tara.simulator.disk import Crash, VirtualDisk
from tara.simulator.driver import Driver
from tara.simulator.eras import FormerEra
from tara.simulator.faults.fatal_command import FatalCommand
from tara.simulator.faults.fatal_snapshot import FatalSnapshot
from tara.simulator.faults.kinds import FAULT_KINDS
from tara.simulator.gateways import GatewaySite, Wire, WireClient
from tara.simulator.network import Network
from tara.simulator.plan import Plan
from tara.simulator.storage_events import StorageEvents
from tara.simulator.stores import Stores
from tara.simulator.stories.story import Story
from tara.simulator.system_under_test import subject_of
from tara.simulator.transcript import Transcript
from tara.simulator.workload import Audited
from tara.storage.base_format import base_directory
from tara.storage.execution_record import record_path
from tara.storage.files import DamagedFile
from tara.storage.journal import (
    JournalError,
    journal_directory,
    journal_name,
)
from tara.storage.lives import Lives, lives_path, read_lives, write_lives
from tara.storage.log import log_directory
from tara.storage.registration import Granted, StartClaim, admit, found, must_be_founded, none_handed_out
from tara.storage.site_storage import LifeStart, SiteStorage, StorageSpec

TICK_MS = 10
#: How often clients look around.
CLIENT_MS = 10
#: How long a start that failed is not tried again.
FAILED_START_MS = 100
#: What lets a node keep more: it is looked at right then.
GROWING = (t.Submit, t.PendingReads)
#: How often a command may end a container's process.
ENDS_MAX = 6
#: What a site keeps is looked at after about one tick of so many.
INSPECTED_EVERY = 20


class World:
    def __init__(
        self, plan: Plan, transcript: Transcript | None = None, application: Callable[[], StateMachine] | None = None
    ) -> None:
        self.plan = plan
        self.subject = subject_of(plan.app, plan.keys, plan.value_bytes, plan.long_share)
        self.wire: Wire | None = self.subject.wire(self)
        #: What executors execute with; the subject's, unless another one is given.
        self.application = application or self.subject.replica
        self.graph = Graph(plan.limits.f, plan.limits.partitions)
        self.draw = random.Random(f"run-{plan.seed}")
        self.now_ms = 0.0
        self.faults: Counter[str] = Counter()
        self.restarts = 0
        self.rejoins = 0
        #: When the last process ended at a command, of those that may; and how often each container's has.
        self.ended_ms = 0.0
        self._ends: Counter[int] = Counter()
        #: Committers that lost their journals and are not full again.
        self.rejoins_due: set[int] = set()
        #: Containers whose journal was damaged, and that have not started since.
        self.repairs_due: set[int] = set()
        #: Containers that lost their checkpoints, and the newest one that each of them had held.
        self.wiped: dict[int, int] = {}
        #: Containers from which a checkpoint was taken away, and which one: nobody looks before the next start.
        self.removed: dict[int, int] = {}
        #: Whether what committers persist outlives their container.
        self.journals = plan.durability == "disk"
        #: Bases that were saved and loaded, and requests that were executed again.
        self.bases_saved = self.bases_loaded = self.replayed = 0
        #: Reads that were answered without being ordered.
        self.reads = 0
        self.types = dict(NODE_TYPES)
        self.transcript = transcript
        self.monitor = Monitor(self)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._unique = 0
        self.driver = Driver(self)
        self.stores = Stores(self)
        self.client_links = ClientLinks(self)
        self.healed = False
        self.containers = self._make_containers()
        self.cluster, self.era = CLUSTER, 1
        #: What the driver has handed out.
        self.records = none_handed_out(len(self.containers))
        #: The checkpoint that this era was founded with.
        self.threshold = 0
        #: The eras before this one.
        self.former: list[FormerEra] = []
        #: More was lost than the protocol survives: nothing has to be answered any more.
        self.beyond = False
        #: Nothing may start.
        self.closed = False
        self._set_clocks()
        if plan.stack_depth:
            self.count_fault("deep_stack")
        if plan.bulk:
            self.count_fault("bulk")
        if plan.rate_mbit:
            self.count_fault("narrow_links")
        if plan.work_megabyte_ms:
            self.count_fault("long_work")
        self._host = {number: container for container in self.containers for number in container.numbers}
        self.network = Network(self)
        self.zombies: list[SimulatedContainer] = []
        #: What a container receives now is garbage.
        self.hears_garbage = False
        #: Who delays tuples on their way.
        self.stories: list[Story] = []
        #: The command at which the application breaks down, if there is one.
        self.fatal: FatalCommand | None = None
        #: The state of which the application cannot give a snapshot, if there is one.
        self.fatal_snapshot: FatalSnapshot | None = None
        #: Containers whose application cannot give its next snapshot.
        self.bad_snapshots: set[int] = set()
        #: Nodes whose next step breaks an invariant, and those that have stopped like that.
        self.broken: set[int] = set()
        self.idle_until_ms = 0.0
        #: Until then, the next container that emits a start crashes in doing so.
        self.start_doom_until_ms = 0.0
        #: Sees all results that reach a site, if set.
        self.on_results: Callable[[int, t.Results], None] | None = None
        self.clients: Sequence[Client | WireClient]
        if self.wire is None:
            writers = plan.batch_writers if plan.app == "key-value" else 0
            self.clients = [(BatchWriter if index < writers else Client)(index, self) for index in range(plan.clients)]
        else:
            self.clients = self.wire.clients(plan.clients)
        if min(plan.limits.window, plan.limits.checkpoint_slots * 2) <= 2:
            self.count_fault("smallest_window")

    def _make_containers(self) -> list[SimulatedContainer]:
        placement = placement_of(self.graph, self.plan.packing)
        return [
            SimulatedContainer(index, self.graph.site(self.graph.names[numbers[0]]), numbers, VirtualDisk(self.draw))
            for index, numbers in enumerate(placement)
        ]

    def _set_clocks(self) -> None:
        draw, drift = random.Random(f"clocks-{self.plan.seed}"), self.plan.clock_drift
        if drift:
            self.count_fault("clock_drift")
        for container in self.containers:
            container.clock_rate = 1 + draw.uniform(-drift, drift)
            container.label = container_label(self.graph, self.plan.packing, container.numbers)

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
        assert kind in FAULT_KINDS, kind
        self.faults[kind] += 1

    def start(self) -> None:
        """Genesis."""
        for container in self.containers:
            self.boot(container)
        self.wake_clients()

    def wake_clients(self) -> None:
        for client in self.clients:
            self.after(10, self._wake, client)

    def _wake(self, client: Client | WireClient) -> None:
        client.wake(self.now_ms)
        if not self.healed or any(not other.done for other in self.clients):
            self.after(CLIENT_MS, self._wake, client)

    def boot(self, container: SimulatedContainer) -> None:
        container.disk.end_process()
        container.disk.ends_in, container.start_ends_in = container.start_ends_in, None
        claim = self._claim(container)
        admission = admit(self.records, claim)
        container.life = admission.life
        container.was_founding = container.founding
        container.founding = must_be_founded(admission.genesis, admission.journal, claim.journal)
        container.alive = True
        container.clock_offset_ms += container.next_clock_offset_ms
        container.next_clock_offset_ms = 0.0
        container.doom = None
        container.waiting = Inputs()
        container.paused_until_ms = 0.0
        container.ended_at = 0
        container.rest, container.again, container.due_ms = None, None, {}
        container.busy_ms = {}
        if not admission.genesis:
            self.restarts += 1
        self.monitor.require(
            container.on_old_disk or not admission.older_directory, "storage", "container {}: {}", claim, admission
        )
        self._tell("starts", container)
        if not self._start(container, admission):
            return
        self.stores.attach(container)
        self.open_gateway(container)
        self.driver.go_on(container, chain(container.running.begin(), self._found(container, admission)))
        if container.alive and container.rest is None:
            self.driver.step(container, Inputs())
        for number, node in container.nodes.items():
            self.monitor.inspect(number, container.life, node)
        self.after(self.draw.random() * TICK_MS, self._tick, container, container.life)

    def _claim(self, container: SimulatedContainer) -> StartClaim:
        """What it finds on its disk."""
        try:
            known = read_lives(DATA, CLUSTER, self.era, container.index, container.disk)
        except DamagedFile:
            # The records know, too.
            self.count_fault("life_unknown")
            known = Lives(cluster=CLUSTER, era=self.era, container=container.index)
        return StartClaim(
            container=container.index,
            life=known.life,
            begun=known.begun,
            journal=journal_name(journal_directory(DATA, container.index), container.disk),
            fresh_journal=f"{container.index}-{self.records.lives[container.index]}" if self.journals else "",
        )

    def _found(self, container: SimulatedContainer, admission: Granted) -> Iterator[Effect]:
        """What is done when all that its nodes have persisted is durable, and before anything else leaves."""
        if container.founding:
            found(self.records, container.index, admission.journal)
            container.founding = False
        lives = Lives(cluster=CLUSTER, era=self.era, container=container.index, life=container.life, begun=True)
        write_lives(DATA, lives, container.disk)
        container.on_old_disk = False
        yield from ()

    def _start(self, container: SimulatedContainer, admission: Granted) -> bool:
        """Whether it has started; else it will be tried again."""
        spec = SiteSpec(
            cluster=CLUSTER,
            era=self.era,
            shape=0,
            container=container.index,
            placement=[other.numbers for other in self.containers],
            limits=self.plan.limits,
            journal=self.journals,
        )
        kept = StorageSpec(
            data_dir=DATA,
            segment_bytes=container.segment_bytes,
            log_retention_bytes=self.plan.log_retention_bytes,
            threshold=self.threshold,
        )
        self.stores.mount(container)
        container.disk.harmed.clear()
        container.storage = SiteStorage(
            spec,
            kept,
            StorageEvents(self, container),
            Counters(),
            partial(self.stores.remote_files, container),
            lambda: None,
            container.disk,
            self.draw.randbytes,
            lambda: self.now_ms / 1e3,
            lambda seconds: None,
        )
        start = LifeStart(
            life=admission.life,
            genesis=admission.genesis,
            keep_journal=admission.keep_journal,
            journal=admission.journal,
        )
        make = partial(self._make_site, container, spec)
        application = partial(self._fragile, container, container.life)
        damaged = container.index in self.repairs_due
        generation = container.generation
        try:
            container.host = container.storage.start(start, make, application, self.clock(container))
        except (Crash, JournalError, OSError) as error:
            self.count_fault("crash_in_storage" if isinstance(error, Crash) else "start_failed")
            self.crash(container)
            self.restart_later(container, FAILED_START_MS)
            return False
        self.repairs_due.discard(container.index)
        # Some may not have come back from an earlier loss.
        forgot = not any(container.host.promised())
        if damaged and forgot and container.generation == generation:
            # The life before has set the journal aside, and ended before it could say so.
            self.journal_lost(container)
        if damaged and self.has_holes(container):
            self.count_fault("holes")
        return True

    def open_gateway(self, container: SimulatedContainer) -> None:
        replica = container.running.replica
        if self.wire is not None and replica is not None:
            container.gateway = self.wire.open(GatewaySite(self, container, replica))

    def close_gateway(self, container: SimulatedContainer) -> None:
        if container.gateway is not None:
            container.gateway.close()
            container.gateway = None

    def wake_gateway(self, container: SimulatedContainer) -> None:
        """Something has come for the gateway of a container."""
        if container.gateway is not None:
            self.arrive(container, Inputs())

    def serves(self, site: int) -> bool:
        """Whether somebody listens at a site."""
        return any(container.gateway is not None and container.site == site for container in self.containers)

    def _make_site(self, container: SimulatedContainer, spec: SiteSpec) -> Site:
        container.said = Said()
        make = partial(self._make, container, container.life)
        site = Site(spec, container.life, Counters(), make, self._principal_of)
        if self.clients:
            site.know_front_ends([str(number) for number in range(self.graph.sites)])
        return site

    def journal_lost(self, container: SimulatedContainer) -> None:
        """What its committers had promised is forgotten."""
        container.generation += 1
        for number in container.numbers:
            if self.graph.names[number].stage is Stage.COMMITTER:
                self.rejoins_due.add(number)

    def _make(
        self,
        container: SimulatedContainer,
        life: int,
        name: Name,
        graph: Graph,
        limits: Limits,
        boot: Boot,
        outbox: Outbox,
        application: Callable[[], StateMachine],
        journal: list[t.ReplayedEntry],
    ) -> Node:
        """A node that is watched."""
        boot = boot._replace(listens=True)
        node = create(name, graph, limits, boot, outbox, application, journal, self.types)
        number = graph.number(name.stage, name.replica, name.partition)
        process, tick, said = node.process, node.tick, container.said

        def note() -> None:
            said.note(number, outbox, self.now_ms, len(self.monitor.log))

        def see(tuple_: t.Tuple | None) -> None:
            if container.ended_at and container.life == life:
                raise ProcessEnded
            if self.transcript is not None:
                self.transcript.step(self, container, number, tuple_, outbox)
            note()

        def watched_process(tuple_: t.Tuple) -> None:
            if number in self.broken:
                raise MemoryError if name.stage is Stage.EXECUTOR and number % 2 else NodeHalted("broken")
            self.monitor.processes(number, life, tuple_)
            process(tuple_)
            self.monitor.processed(number, life, tuple_, node)
            see(tuple_)
            if type(tuple_) in GROWING:
                self.monitor.inspect_bytes(number, node)

        def watched_tick(now_ms: float) -> None:
            if number in self.broken and number % 3 == 0:
                raise NodeHalted("broken")
            tick(now_ms)
            see(None)
            if self.draw.random() < 0.2:
                self.monitor.inspect(number, life, node)

        note()
        node.process, node.tick = watched_process, watched_tick  # type: ignore[method-assign]
        return node

    def _principal_of(self, secret: bytes, key: bytes, is_member: bool, operator: bytes) -> bytes:
        return self.client_links.principals.get(secret) or principal_of(secret, key, is_member, operator)

    def _fragile(self, container: SimulatedContainer, life: int) -> StateMachine:
        """The application, made to break down at the command that is chosen for it."""

        def before(operation: int, counter: int) -> None:
            if self.fatal is not None:
                self.fatal.strike(container, life, operation, counter)

        application = self.application()
        if isinstance(application, Audited):
            application.before = before
            application.answered = self.monitor.replied
            application.on_snapshot = partial(self._snapshot, container, life)
        return application

    def _snapshot(self, container: SimulatedContainer, life: int, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """A snapshot that fails once, or ends the process, if it is an executor that asks for it."""
        executors = [number for number in self.executors_of(container) if container.storage is not None]
        places = [container.kept.records[number].cell[EXECUTING] for number in executors]
        asked = [place for place in places if cause(place) == SNAPSHOT]
        fatal = self.fatal_snapshot
        if fatal is not None and asked and container.life == life and fatal.strikes(container):
            return fatal.end(container, asked[0])
        if container.index not in self.bad_snapshots or container.life != life or not asked:
            return chunks
        self.bad_snapshots.discard(container.index)
        self.count_fault("bad_snapshot")
        match (self.monitor.stable + container.index) % 3:
            case 0:
                raise MemoryError
            case 1:
                odd: Any = "not bytes"
                return chain(chunks, (odd,))
        return (bytes(1 // (index - 1)) for index, _ in enumerate(chain(chunks, (b"", b""))))

    def has_holes(self, container: SimulatedContainer) -> bool:
        """Whether a committer of the container does not know all that it accepted, or will not when it is back."""
        if container.index in self.repairs_due:
            return True
        return any(isinstance(node, Committer) and node.acceptor.holes for node in container.nodes.values())

    def clock(self, container: SimulatedContainer) -> float:
        return 1_000_000.0 + self.now_ms * container.clock_rate + container.clock_offset_ms

    def clock_s(self, container: SimulatedContainer) -> float:
        return self.clock(container) / 1e3

    def crash(self, container: SimulatedContainer, power: bool = False) -> None:
        """`power`: what was not synced may be gone."""
        container.alive = False
        container.doom = None
        container.snapshot_ends = 0
        container.host = container.storage = container.rest = None
        self.close_gateway(container)
        container.waiting = Inputs()
        container.disk.end_process()
        self._tell("crashes", container)
        if not power and not container.lost and container in self.containers:
            self.client_links.end_with(container)
        if power and self.journals:
            container.disk.lose_power()
            self.count_fault("power_cut")
        if container.uncertain:
            self.driver.find_out(container)
        if not self.journals and container in self.containers:
            self.wipe(container, checkpoints=True)

    def end_orderly(self, container: SimulatedContainer) -> None:
        """Stop it in an orderly way, as a driver does."""
        try:
            for store in container.kept.stores.values():
                store.interrupt()
            container.kept.close()
        except Crash:
            self.count_fault("crash_in_storage")
        self.crash(container)

    def lose(self, container: SimulatedContainer) -> None:
        container.lost = True
        if container.alive:
            self.crash(container)

    def wipe(self, container: SimulatedContainer, checkpoints: bool) -> None:
        """The container's disk is gone."""
        disk = container.disk
        if checkpoints:
            self.lose_copies(container)
        container.snapshot_ends = 0
        disk.forget(journal_directory(DATA, container.index))
        self.journal_lost(container)
        for number in self.executors_of(container):
            replica = self.graph.names[number].replica
            disk.forget(record_path(DATA, replica))
            if checkpoints:
                disk.forget(base_directory(DATA, replica))
                disk.forget(log_directory(DATA, replica))
        if checkpoints:
            disk.forget(lives_path(DATA, container.index))

    def lose_copies(self, container: SimulatedContainer) -> None:
        """Something will happen to what leads to its checkpoints, which it may have announced. It counts as down until
        what it has leads there again."""
        for number in self.executors_of(container):
            lost = self.stores.reach(number)
            self.wiped[container.index] = max(lost, self.wiped.get(container.index, 0))

    def move(self, container: SimulatedContainer, disk: VirtualDisk) -> None:
        """The next life of a container that is down finds another disk."""
        self.lose_copies(container)
        container.disk = disk
        container.snapshot_ends = 0
        container.on_old_disk = not disk.is_empty
        self.journal_lost(container)

    def forget_records(self, container: SimulatedContainer) -> None:
        """An older copy of what the driver knows of the container is put back: of before its first start."""
        records, index = self.records, container.index
        records.lives[index] = records.begun[index] = 0
        records.founded[index], records.journals[index] = False, ""

    def split(self, container: SimulatedContainer, copies_elsewhere: bool) -> None:
        """Start a new life of the container on another host, with an empty disk, while the old process goes on as a
        zombie on the old one."""
        zombie = SimulatedContainer(container.index, container.site, container.numbers, container.disk)
        zombie.life, zombie.alive, zombie.generation = container.life, True, container.generation
        zombie.host, zombie.said, zombie.storage = container.host, container.said, container.storage
        # Its clients come back where the new life is.
        self.close_gateway(container)
        zombie.clock_offset_ms, zombie.clock_rate = container.clock_offset_ms, container.clock_rate
        if self.draw.random() < 0.7:
            zombie.known_until_ms = {other.index: self.now_ms + self.draw.randrange(600) for other in self.containers}
        self.zombies.append(zombie)
        self.stores.attach(zombie)
        self.after(TICK_MS, self._tick, zombie, zombie.life)
        container.disk, container.storage = VirtualDisk(self.draw), None
        for number in self.executors_of(container):
            replica = self.graph.names[number].replica
            for directory in (base_directory(DATA, replica), log_directory(DATA, replica)):
                container.disk.copy(zombie.disk, directory)
        self.wipe(container, checkpoints=copies_elsewhere)
        self.boot(container)

    def end_in_application(self, container: SimulatedContainer) -> None:
        """The application has ended its process. After two such ends at a command it is barred; an operator may have it
        tried again, and a disk that is lost knows nothing of either. More is no fault, but a replica that learns
        nothing. The same holds for snapshots, whichever bases they are for."""
        self._ends[container.index] += 1
        if self._ends[container.index] <= ENDS_MAX:
            self.ended_ms = self.now_ms
        ends = container.snapshot_ends + 1 if cause(container.ended_at) == SNAPSHOT else 0
        self.monitor.require(
            ends <= STRIKES_MAX, "strikes", "container {}: {} lives have ended in a snapshot", container.index, ends
        )
        self.crash(container)
        container.snapshot_ends = ends

    def restart_later(self, container: SimulatedContainer, delay_ms: float) -> None:
        self.after(delay_ms, self._restart, container)

    def _restart(self, container: SimulatedContainer) -> None:
        if not container.alive and not container.lost and not self.closed:
            self.boot(container)

    def _tick(self, container: SimulatedContainer, life: int) -> None:
        if not container.alive or container.life != life:
            return
        if container not in self.zombies:
            # Its first heartbeat, and all that follow.
            self.records.begun[container.index] = container.life
        if self.now_ms >= container.paused_until_ms and container.rest is None:
            waiting, container.waiting = container.waiting, Inputs()
            waiting.tick = True
            self.driver.step(container, waiting)
            if container.host is not None and int(self.now_ms) % INSPECTED_EVERY == 0:
                self.monitor.inspect_site(container.host)
        self.after(TICK_MS / container.clock_rate, self._tick, container, life)

    def arrive(self, container: SimulatedContainer, inputs: Inputs, sender: int | None = None) -> None:
        """Something of a container (None: of somebody else) has come."""
        for zombie in [zombie for zombie in self.zombies if zombie.index == container.index]:
            if sender is None or zombie.known_until_ms is None:
                self.driver.step(zombie, inputs)
            elif self.now_ms < zombie.known_until_ms[sender]:
                self.driver.step(zombie, inputs)
                return
        if not container.alive:
            return
        if self.now_ms < container.paused_until_ms or container.rest is not None:
            container.waiting.frames = container.waiting.frames + inputs.frames
            container.waiting.messages = container.waiting.messages + inputs.messages
            container.waiting.gone = container.waiting.gone + inputs.gone
            container.waiting.tuples = container.waiting.tuples + inputs.tuples
        else:
            self.driver.step(container, inputs)

    def deliver(self, container: SimulatedContainer, parcels: list[Parcel]) -> None:
        """Tuples have come for the nodes of a container."""
        self.arrive(container, Inputs(tuples=list(parcels)))

    def close_down(self) -> None:
        """Nothing runs any more, and nothing starts until somebody says so."""
        self.closed = True
        for told in list(self.stories):
            told.end()
        for container in (*self.zombies, *self.containers):
            if container.alive:
                self.crash(container)
        self.zombies.clear()

    def open_up(self) -> None:
        self.closed = False
        for container in self.containers:
            self.restart_later(container, self.draw.randrange(1, 200))

    def begin_era(self, counter: int) -> None:
        """Everything of the era before is of no use to this one, except what its first checkpoint has: all commands up
        to this counter. Nobody holds that checkpoint yet."""
        self.monitor = self.monitor.of_next_era(counter)
        self.beyond = False
        self.rejoins_due.clear()
        self.repairs_due.clear()
        self.wiped = {box.index: self.threshold for box in self.containers if self.executors_of(box)}
        for container in self.containers:
            container.on_old_disk = True
            container.founding = False
            # Whoever begins an era sees to it that there is room.
            container.disk.heal()

    def executors_of(self, container: SimulatedContainer) -> list[int]:
        return [number for number in container.numbers if self.graph.names[number].stage is Stage.EXECUTOR]

    def inspect_all(self) -> None:
        for container in self.containers:
            if container.host is not None:
                self.monitor.inspect_site(container.host)
            for number, node in container.nodes.items():
                self.monitor.inspect(number, container.life, node)

    def host_of(self, number: int) -> SimulatedContainer:
        return self._host[number]

    def nodes_of(self, stage: Stage) -> list[tuple[Name, Node]]:
        """The living nodes of a stage."""
        return [
            (name, self._host[number].nodes[number])
            for number, name in enumerate(self.graph.names)
            if name.stage is stage and number in self._host[number].nodes
        ]

    def may_fail(self, containers: list[SimulatedContainer]) -> bool:
        """Whether at most f replicas of each stage are down if these fail, too. One that lost its journal, or a
        part of it, or its checkpoints counts as down until it is what it was."""
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
                    if isinstance(node, Committer) and node.acceptor.holes and number not in self.rejoins_due:
                        down[Stage.COMMITTER, self.graph.names[number].partition] += 1
                halted = any(isinstance(node, Executor) and node.halted for node in container.nodes.values())
                if halted or self.stores.lacks_checkpoints(container):
                    down[Stage.EXECUTOR, 0] += 1
        return max(down.values(), default=0) <= self.graph.f

    def is_at_full_strength(self) -> bool:
        """Whether every executor that is left holds the stable checkpoint or a newer one: then the next loss is
        survived like the first one."""
        executors = [number for number, name in enumerate(self.graph.names) if name.stage is Stage.EXECUTOR]
        return all(
            self.stores.reach(number) >= self.monitor.stable
            # It does not know that something is gone, and will hold the next one.
            or self.monitor.stable == self.removed.get(self._host[number].index)
            for number in executors
            if not self._host[number].lost
        )

    def _tell(self, what: str, container: SimulatedContainer) -> None:
        if self.transcript is not None:
            self.transcript.container(self, container, what)
