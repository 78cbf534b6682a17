"""A command at which the application breaks down, on some replicas or on all, and the operator who sees to it.

The next command that anybody executes is the one. Replicas that are chosen run out of memory in it, or their process
ends in it, until what it lacked is there: when it has been skipped, or when the operator has found out that a replica
has executed it. The operator does what `tara skip` does, from what the replicas report.
"""

from typing import TYPE_CHECKING

from tara.host.skipping import ReplicaReport, Step, next_step
from tara.protocol import skips
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor
from tara.protocol.principals import OPERATOR

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World

_LOOK_MS = 60
#: Before the operator orders the same again. Each order takes a slot, and nothing makes room until one has helped.
_AGAIN_MS = 600
#: Commands that do nothing, which are sent then to have checkpoints taken.
_FILLING = 24
_NAME = OPERATOR + bytes(16)


class FatalCommand:
    @staticmethod
    def can_happen(world: "World") -> bool:
        """An old process of a container may have executed what the others skip: no operator has a command skipped
        then."""
        return world.fatal is None and not world.zombies and world.wire is None

    def __init__(self, world: "World", sites: set[int], ends: bool) -> None:
        self._world = world
        self._sites = sites
        #: Whether it takes the process with it.
        self._ends = ends
        self.operation: int | None = None
        self.counter = 0
        #: What it lacked is there.
        self.cured = False
        self.over = False
        #: What the operator has ordered last, and when.
        self._ordered = (-1, 0.0)
        world.after(_LOOK_MS, self._look)

    def strike(self, container: "SimulatedContainer", life: int, operation: int, counter: int) -> None:
        """A replica is about to execute this operation."""
        if self.operation is None and not self._world.monitor.was_executed(counter):
            # One that executed it before, and has lost its disk since, would not know any more that it has.
            self.operation, self.counter = operation, counter
        if self.cured or operation != self.operation or container.site not in self._sites:
            return
        self._world.count_fault("fatal_command")
        if self._ends and container.life == life:
            container.ended_at = counter
        raise MemoryError

    def _look(self) -> None:
        if self.over:
            return
        if self.operation is not None:
            self._act()
        self._world.after(_LOOK_MS, self._look)

    def _act(self) -> None:
        reports = self._reports()
        step, _ = next_step(reports, self.counter)
        if not self.cured and any(self.counter in node.sessions.skipped for node in self._executors()):
            self.cured = True
            self._world.count_fault("command_skipped")
            self._restart_one()
        if step is Step.ASK:
            self._order(t.ASK_SKIP)
        elif step is Step.CONFIRM:
            self._order(t.CONFIRM_SKIP)
        elif step is Step.REFUSE and any(report.halted_at == self.counter for report in reports):
            self.cured = True
            self._world.count_fault("command_tried_again")
            if self._order(t.WITHDRAW_SKIP):
                # Whoever has halted behind the windows does not hear of that, and waits for a base of the others: these
                # take it at the next checkpoint.
                self._fill()
        # Nobody waits for it any more, and no life that begins later can come to it again.
        interval = self._world.plan.limits.checkpoint_interval
        done = all(report.executed is not None and report.executed >= self.counter for report in reports)
        self.over = done and self._world.monitor.stable * interval > self._world.monitor.request_of(self.counter)

    def _restart_one(self) -> None:
        """A life that begins now, with a checkpoint from before, comes to the command again."""
        world = self._world
        container = world.host_of(world.graph.number(Stage.EXECUTOR, world.draw.randrange(world.graph.sites)))
        if container.alive and world.may_fail([container]):
            world.crash(container)
            world.restart_later(container, 20)

    def _executors(self) -> list[Executor]:
        return [node for _, node in self._world.nodes_of(Stage.EXECUTOR) if isinstance(node, Executor)]

    def _reports(self) -> list[ReplicaReport]:
        alive = {node.index: node for node in self._executors()}
        found = []
        for replica in range(self._world.graph.sites):
            node = alive.get(replica)
            if node is None:
                found.append(ReplicaReport(f"executor-{replica}", False, None, None, False))
                continue
            halted_at = None if node.halted is None else node.halted.counter
            found.append(ReplicaReport(f"executor-{replica}", True, node.executed, halted_at, node.skip_asked))
        return found

    def _order(self, step: int) -> bool:
        """Whether it is time for that."""
        world = self._world
        last, ordered_ms = self._ordered
        if step == last and world.now_ms - ordered_ms < _AGAIN_MS:
            return False
        self._ordered = (step, world.now_ms)
        payload = skips.encode(self.counter, step)
        command = t.Command(0, world.next_unique() * 16 + 15, 0, payload, t.SKIP, _NAME)
        for site in range(world.graph.sites):
            world.client_links.submit_to(site, world.draw.randrange(world.graph.partitions), [command])
        return True

    def _fill(self) -> None:
        world = self._world
        for number in range(_FILLING):
            command = t.Command(0, world.next_unique() * 16 + 15, 0, b"\0", t.KEEPALIVE, _NAME)
            world.client_links.submit_to(number % world.graph.sites, 0, [command])
