"""A bare site: nodes, and the order in which they work, sync and speak. Pure.

A driver gives it what has arrived and does what it wants done, in the order given: one step of a site is

- what has arrived is taken in;
- the nodes work until they have nothing left to say to each other;
- time passes, if it is due;
- what they have said to others leaves.

Things leave in the middle of it, too: what rests on nothing that was persisted leaves before the sync, and votes leave
before the executors work. Therefore `step` gives one effect after the other, each when it is to be done. A process that
ends between two of them is a crash like any other.

Nothing is around the nodes here: tuples come in, and each tuple for others, be they nodes elsewhere or clients, is an
effect (`Emit`). That is what rows of a query, a benchmark or a test want. `tara.host.site` puts frames and clients
around it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from tara.host.counters import Counters
from tara.host.effects import Effect, Emit, Executes, Halt, Inputs, Store, Sync, Trouble, Unbar
from tara.host.nodes import Nodes
from tara.host.pacing import Pacing
from tara.host.peer_wire import PackedCommit
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Receivers, Stage
from tara.protocol.journal import Written
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.nodes.factory import create
from tara.protocol.sessions import Application


class BareSite:
    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        here: Collection[int],
        journal: bool = False,
        make: Callable[..., Node] = create,
        counters: Counters | None = None,
    ) -> None:
        """`here` are the numbers of its nodes, `journal` is whether they wait until what they persist is durable, and
        `make` makes them, as `tara.protocol.nodes.factory.create` does."""
        self.graph = graph
        self.counters = counters or Counters()
        self._limits = limits
        self._journal = journal
        self._make = make
        self._now_ms = 0.0
        #: What is to be done when things leave next.
        self._effects: list[Effect] = []
        self._nodes = Nodes(graph, here, journal, self)
        # Partitions do not wait: the others would have to, in the merged order.
        self._pacing = Pacing(waits=journal and limits.partitions == 1)
        self._nodes.watch(t.Requests, self._see_requests)
        self._nodes.watch(t.SubmitReads, self._see_reads)

    def create(
        self, number: int, boot: Boot, application: Callable[[], Application], journal: Iterable[t.ReplayedEntry] = ()
    ) -> None:
        """Make a node, with what the journal has of it. Nothing leaves before the first step."""
        self._now_ms = boot.now_ms
        name = self.graph.names[number]
        self.add(number, self._make(name, self.graph, self._limits, boot, Outbox(), application, journal))

    def add(self, number: int, node: Node) -> None:
        """Take in a node that was made before."""
        self._nodes.add(number, node)

    def begin(self) -> Iterator[Effect]:
        """All nodes are there: what they persisted when they were made is synced."""
        for number in self._nodes.all:
            self._nodes.collect(number)
        if self._nodes.persisted:
            yield from self._sync()

    @property
    def nodes(self) -> Mapping[int, Node]:
        """By number; without those that were stopped."""
        return self._nodes.all

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do until something arrives."""
        return self._nodes.is_idle

    def promised(self) -> list[Written]:
        """How a new segment of the journal begins. A node that has halted is not sure of anything any more."""
        return [(number, promised) for number, node in self.nodes.items() if (promised := node.promised()) is not None]

    def remembered(self) -> dict[int, t.Restored]:
        """How a new journal begins."""
        return {
            number: remembered for number, node in self.nodes.items() if (remembered := node.remembered()) is not None
        }

    def step(self, inputs: Inputs, now_ms: float) -> Iterator[Effect]:
        """What is to be done, one after the other."""
        self._now_ms = now_ms
        self._take_in(inputs)
        yield from self._work()
        if inputs.tick:
            self._pacing.tick()
            self._nodes.tick(now_ms)
            self._on_tick()
            yield from self._work()
        yield from self._send()
        yield from self._answer()

    def _take_in(self, inputs: Inputs) -> None:
        for tuple_, number in inputs.tuples:
            self._nodes.deliver(tuple_, number)

    def _work(self) -> Iterator[Effect]:
        """Let the nodes work until there is nothing left to do."""
        nodes = self._nodes
        self._settle()
        while nodes.persisted or nodes.may_execute:
            if not nodes.persisted:
                yield from self._send()
                nodes.execute()
            else:
                if self._journal:
                    # What does not rest on what is written now need not wait for it.
                    yield from self._send()
                yield from self._sync()
            self._settle()

    def _settle(self) -> None:
        """Then come the requests that were made meanwhile, as one run."""
        self._nodes.settle()
        if runs := self._pacing.take(self._now_ms):
            for requests, number in runs:
                self._nodes.enqueue(requests, number)
            self._nodes.settle()

    def _sync(self) -> Iterator[Effect]:
        entries = self._nodes.take_persisted()
        self.counters.journal_entries += len(entries)
        yield Sync(entries, any(type(entry) is t.Collected for _, entry in entries))
        self._nodes.release()

    def _on_tick(self) -> None:
        """Time has passed for the nodes."""

    def _send(self) -> Iterable[Effect]:
        """What others wait for."""
        return self._take_effects()

    def _answer(self) -> Iterable[Effect]:
        """What is to be done at the end of the step."""
        return self._take_effects()

    def _take_effects(self) -> list[Effect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def _see_requests(self, requests: t.Requests, number: int) -> bool:
        self._pacing.add(requests, number)
        return True

    def _see_reads(self, submitted: t.SubmitReads, number: int) -> bool:
        self._pacing.note_reads(len(submitted.reads))
        return False

    def leave(self, sender: int, tuple_: t.Tuple, receivers: Receivers) -> None:
        """Of a node; `tara.host.nodes` calls it, as the following."""
        if receivers.stage is not Stage.STORE:
            self._effects.append(Emit(sender, tuple_, receivers))
        else:
            self._store(sender, tuple_)

    def _store(self, sender: int, job: t.Tuple) -> None:
        if type(job) is t.Halted:
            self._effects.append(Executes(sender, job))
        elif type(job) is t.Unbarred:
            self._effects.append(Unbar(sender, job.counter))
        else:
            self._effects.append(Store(sender, job))

    def stop(self, number: int, reason: str) -> None:
        self._effects.append(Halt(number, reason))

    def refuse(self, reason: str) -> None:
        self.counters.frames_bad += 1
        self._effects.append(Trouble("bad_frame", "peer", reason))

    def open_vote(self, vote: PackedCommit) -> t.Tuple:
        raise AssertionError("votes come in frames, and there are none")
