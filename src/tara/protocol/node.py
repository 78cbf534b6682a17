"""The node contract: how a host drives a node.

A host calls `process(tuple)` for each tuple that arrives and `tick(now_ms)` regularly, and after each such step takes
what the node left in its outbox. It guarantees one thing: what a node *persists* in a step is on stable storage before
anybody hears what the node *emits* in that step or later. What it *tells* promises nothing, and waits for nothing.
Which of the two a tuple is, the node decides; no host looks at its kind to find out. Time is handed in, by `tick`;
between two ticks it stands still, and within a life it never falls: a host takes it from a monotonic clock. Nodes and
hosts talk by tuples only, in both directions. Beside them there is what is below: what a host asks a node so that it
need not know which one it is, and which changes nothing.
"""

from typing import Any, ClassVar, NamedTuple, Protocol

from tara.protocol import tuples as t
from tara.protocol.errors import EdgeError
from tara.protocol.graph import Graph, Name, Receivers, allowed_edges
from tara.protocol.limits import Limits
from tara.protocol.places import Cell
from tara.protocol.sessions import Application


class Outbox:
    """What one or several nodes want done. The host takes the lists and leaves new ones."""

    __slots__ = ("emitted", "persisted", "told")

    def __init__(self) -> None:
        #: May be heard when everything that was persisted is durable.
        self.emitted: list[tuple[t.Tuple, Receivers]] = []
        #: May be heard at once.
        self.told: list[tuple[t.Tuple, Receivers]] = []
        self.persisted: list[t.JournalEntry] = []


class Boot(NamedTuple):
    """What a host tells a node when it starts."""

    #: Rises with every start of the container; the epoch of a request source.
    life: int
    #: Rises only when the node lost what it had promised.
    incarnation: int
    #: True once in the history of a cluster's era, on the very first start.
    genesis: bool
    now_ms: float
    #: The number of the checkpoint that the era was founded with; 0: with nothing. No slot below it is ever used.
    threshold: int = 0
    #: Whether the host wants to hear what was executed (`Executed`), and whether it keeps bases.
    listens: bool = True
    keeps_bases: bool = True
    #: Where an executor writes down what the application is doing, if the host wants to know it when the process is
    #: gone; and the places (`tara.protocol.places`) that it must not let the application into any more.
    cell: Cell | None = None
    barred: frozenset[int] = frozenset()
    #: The last command that the cell says was executed in a life before.
    executed: int = 0


class Replica(Protocol):
    """A copy of the application, as the application's own front end sees it (`tara.net.gateway`): between two steps, to
    be read and never changed, until its executor has halted or begins with another copy."""

    @property
    def application(self) -> Application: ...
    @property
    def counter(self) -> int:
        """How many commands it has executed."""


class Node:
    """The common part. `handlers` maps the kinds of tuples that a node takes to its methods."""

    #: Whether it runs the application. Then running out of memory is the application's fault, and costs this node
    #: alone; any other node would have lost what it had promised.
    runs_application: ClassVar[bool] = False

    def __init__(self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox) -> None:
        self.name = name
        self.index = name.replica
        self.partition = name.partition
        self.graph = graph
        self.limits = limits
        self.boot = boot
        self.now_ms = boot.now_ms
        self.outbox = outbox
        self.handlers: dict[type[t.Tuple], Any] = {}
        #: Requests, slots and records that it has sent again. For those who watch; no node reads it.
        self.resent = 0
        self._edges = allowed_edges(name.stage)
        self._report_due_ms = boot.now_ms

    def process(self, tuple_: t.Tuple) -> None:
        """Handle one tuple. One that this stage does not take is ignored: the host's routing was wrong, and a
        node must not die of what others send."""
        handler = self.handlers.get(type(tuple_))
        if handler is not None:
            handler(tuple_)

    def tick(self, now_ms: float) -> None:
        """Let time pass."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.now_ms >= self._report_due_ms:
            self._report_due_ms = self.now_ms + self.limits.report_interval_ms
            self.report()

    def needs_commit(self, partition: int, end: int) -> bool:
        """Whether a commit for slots of this partition, all below `end`, can change anything here. If not, a host need
        not even decode it."""
        return True

    def give_up(self, reason: str) -> bool:
        """An invariant does not hold, as the host has found out. Whether the node stays, to say so; if not, it is gone
        as if it had crashed."""
        return False

    def promised(self) -> t.Resumed | None:
        """All that it has promised so far: how a new segment of a journal begins. None: nothing."""
        return None

    def remembered(self) -> t.Restored | None:
        """All that it knows of what it has promised: how a journal begins that takes the place of a damaged one. None:
        it has promised nothing."""
        return None

    def replica(self) -> Replica | None:
        """The copy of the application that it has, if it has one."""
        return None

    def report(self) -> None:
        """Called once per report interval: tell the others what they may have missed."""

    def emit(self, tuple_: t.Tuple, receivers: Receivers) -> None:
        """Say something that may rest on what was persisted."""
        self._check_edge(tuple_, receivers)
        self.outbox.emitted.append((tuple_, receivers))

    def tell(self, tuple_: t.Tuple, receivers: Receivers) -> None:
        """Say something that stays right if the node crashes before what it persisted is durable."""
        self._check_edge(tuple_, receivers)
        self.outbox.told.append((tuple_, receivers))

    def _check_edge(self, tuple_: t.Tuple, receivers: Receivers) -> None:
        if receivers.stage not in self._edges.get(type(tuple_), ()):
            raise EdgeError(f"{self.name.stage} may not emit {type(tuple_).__name__} to {receivers.stage}")

    def persist(self, entry: t.JournalEntry) -> None:
        """Have something written to stable storage."""
        self.outbox.persisted.append(entry)
