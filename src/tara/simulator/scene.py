"""A small world without clients, noise or faults, in which things happen only when they are told to: for stories,
demonstrations and tests."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from tara.application import Get, Put, StateMachine
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Node
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.proposer import Mode, Proposer
from tara.simulator.container import SimulatedContainer
from tara.simulator.plan import Plan
from tara.simulator.transcript import Transcript
from tara.simulator.world import World

Kind = TypeVar("Kind", bound=Node)


def quiet_plan(limits: Limits, packing: str = "site", rate_mbit: float = 0.0) -> Plan:
    """No clients, no noise, no faults."""
    return Plan(
        seed=0,
        app="key-value",
        limits=limits,
        durability="disk",
        packing=packing,
        clients=0,
        batch_writers=0,
        wire=False,
        commands_per_client=0,
        keys=1,
        value_bytes=0,
        long_share=0.0,
        pipeline=1,
        think_ms=1,
        session_timeout_ms=60_000,
        delay_ms=1,
        rate_mbit=rate_mbit,
        drop=0.0,
        duplicate=0.0,
        reorder=0.0,
        replay=0.0,
        store_shared=True,
        log_retention_bytes=1 << 20,
        faults_end_ms=0,
        lost_site=None,
        faults=[],
    )


class Scene:
    """A world to direct by hand. Results of commands are collected in `results`."""

    def __init__(
        self,
        limits: Limits,
        packing: str = "site",
        transcript: Transcript | None = None,
        application: Callable[[], StateMachine] | None = None,
        principal: bytes = b"",
        rate_mbit: float = 0.0,
    ) -> None:
        self.world = World(quiet_plan(limits, packing, rate_mbit), transcript, application)
        #: Who sends all commands.
        self._principal = principal
        self.results: dict[tuple[int, int], t.Result] = {}
        self._numbers: dict[int, int] = {}
        self._sent: dict[tuple[int, int], t.Command] = {}
        self._nonce = 0
        self.world.on_results = self._take
        self.world.start()

    def _take(self, site: int, results: t.Results) -> None:
        for result in results.results:
            self.results.setdefault((result.session, result.number), result)

    def run(self, duration_ms: float) -> None:
        self.world.run_until(self.world.now_ms + duration_ms)

    def wait(self, key: tuple[int, int], deadline_ms: float = 10_000) -> t.Result:
        """Let time pass until the result is there."""
        end_ms = self.world.now_ms + deadline_ms
        while key not in self.results:
            if self.world.now_ms > end_ms:
                raise TimeoutError(f"no result for {key} within {deadline_ms} ms")
            self.run(1)
        return self.results[key]

    def open(self, site: int = 0, partition: int = 0) -> int:
        self._nonce += 1
        timeout = msgspec.msgpack.encode(60_000)
        self.submit(site, [t.Command(0, self._nonce, 0, timeout, t.OPEN, self._principal)], partition)
        return int(msgspec.msgpack.decode(self.wait((0, self._nonce)).payload)[0])

    def send(self, session: int, command: Put | Get, site: int = 0, partition: int = 0) -> tuple[int, int]:
        """Submit a command; the result will have this key."""
        number = self._numbers.get(session, 0)
        self._numbers[session] = number + 1
        payload = msgspec.msgpack.encode((self.world.next_unique(), msgspec.msgpack.encode(command)))
        self._sent[session, number] = t.Command(session, number, 0, payload, t.EXECUTE, self._principal)
        self.send_again((session, number), site, partition)
        return (session, number)

    def send_again(self, key: tuple[int, int], site: int, partition: int = 0) -> None:
        """Submit the very same command once more, as a client does that got no answer in time."""
        self.submit(site, [self._sent[key]], partition)

    def call(self, session: int, command: Put | Get, site: int = 0, partition: int = 0) -> object:
        """Submit a command and wait for its result."""
        result = self.wait(self.send(session, command, site, partition))
        assert result.status == t.OK, result
        return msgspec.msgpack.decode(result.payload)

    def submit(self, site: int, commands: list[t.Command], partition: int = 0) -> None:
        self.world.client_links.submit_to(site, partition, commands)

    def node(self, kind: type[Kind], stage: Stage, replica: int, partition: int = 0) -> Kind:
        number = self.world.graph.number(stage, replica, partition)
        node = self.world.host_of(number).nodes[number]
        assert isinstance(node, kind)
        return node

    def leader(self, partition: int = 0) -> SimulatedContainer | None:
        """The container of the active proposer."""
        for name, node in self.world.nodes_of(Stage.PROPOSER):
            if isinstance(node, Proposer) and node.mode is Mode.ACTIVE and name.partition == partition:
                return self.world.host_of(self.world.graph.number(Stage.PROPOSER, name.replica, partition))
        return None

    def crash(self, container: SimulatedContainer) -> None:
        self.world.crash(container)

    def restart(self, container: SimulatedContainer) -> None:
        self.world.boot(container)

    @property
    def view(self) -> int:
        return max(
            node.acceptor.view for _, node in self.world.nodes_of(Stage.COMMITTER) if isinstance(node, Committer)
        )

    def executors(self) -> list[Executor]:
        return [node for _, node in self.world.nodes_of(Stage.EXECUTOR) if isinstance(node, Executor)]

    def states_equal(self) -> bool:
        states = {(executor.next, b"".join(executor.application.snapshot())) for executor in self.executors()}
        return len(states) == 1

    def title(self, text: str) -> None:
        """A heading in the transcript."""
        if self.world.transcript is not None:
            self.world.transcript.lines.append(f"== {text}")
