"""The graph: which stages exist, how many replicas each has, who may emit what to whom, and where nodes run.

This is the only place that knows. A node asks the graph for its receivers; emitting along an edge that is not in
`EDGES` is an error. A feedback queue of the paper is a sink → source edge, or a source → source edge: gc and view
sources also put what they publish into each other's queues, so that a source whose sink is down learns it, too.
"""

from enum import StrEnum
from typing import NamedTuple

from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError


class Stage(StrEnum):
    REQUEST_SOURCE = "request_source"
    PROPOSER = "proposer"
    COMMITTER = "committer"
    EXECUTOR = "executor"
    REPLY_SINK = "reply_sink"
    GC_SINK = "gc_sink"
    GC_SOURCE = "gc_source"
    CONTROLLER = "controller"
    VIEW_SINK = "view_sink"
    VIEW_SOURCE = "view_source"
    RECORD_SINK = "record_sink"
    RECORD_SOURCE = "record_source"
    #: Outside the graph: who submits commands and gets results.
    CLIENT = "client"
    #: Outside the graph: the bases and the decided log of an executor's host.
    STORE = "store"


S = Stage

EDGES: frozenset[tuple[Stage, type[t.Tuple], Stage]] = frozenset(
    {
        (S.CLIENT, t.Submit, S.REQUEST_SOURCE),
        (S.CLIENT, t.Unkept, S.REQUEST_SOURCE),
        (S.REQUEST_SOURCE, t.Refused, S.CLIENT),
        (S.REQUEST_SOURCE, t.Waiting, S.CLIENT),
        (S.CLIENT, t.SubmitReads, S.REQUEST_SOURCE),
        (S.CLIENT, t.SubmitStaleReads, S.EXECUTOR),
        (S.CLIENT, t.StartIndexRequest, S.REQUEST_SOURCE),
        (S.CLIENT, t.Halted, S.REQUEST_SOURCE),
        (S.REQUEST_SOURCE, t.Requests, S.PROPOSER),
        (S.REQUEST_SOURCE, t.Requests, S.REQUEST_SOURCE),
        (S.REQUEST_SOURCE, t.Target, S.CONTROLLER),
        (S.REQUEST_SOURCE, t.IndexRequest, S.COMMITTER),
        (S.REQUEST_SOURCE, t.PendingReads, S.EXECUTOR),
        (S.PROPOSER, t.Start, S.COMMITTER),
        (S.PROPOSER, t.Proposal, S.COMMITTER),
        (S.PROPOSER, t.Collecting, S.COMMITTER),
        (S.PROPOSER, t.Presence, S.VIEW_SINK),
        (S.PROPOSER, t.Advance, S.CONTROLLER),
        (S.COMMITTER, t.Commit, S.EXECUTOR),
        (S.COMMITTER, t.ReadIndex, S.EXECUTOR),
        (S.COMMITTER, t.Record, S.RECORD_SINK),
        (S.COMMITTER, t.CommitterStatus, S.GC_SINK),
        (S.COMMITTER, t.Presence, S.VIEW_SINK),
        (S.RECORD_SINK, t.Record, S.RECORD_SOURCE),
        (S.RECORD_SOURCE, t.Record, S.PROPOSER),
        (S.EXECUTOR, t.Results, S.REPLY_SINK),
        (S.EXECUTOR, t.ReadResults, S.REPLY_SINK),
        (S.EXECUTOR, t.Halted, S.REPLY_SINK),
        (S.EXECUTOR, t.StartIndexRequest, S.REPLY_SINK),
        (S.EXECUTOR, t.Progress, S.CONTROLLER),
        (S.EXECUTOR, t.ExecutorStatus, S.GC_SINK),
        (S.EXECUTOR, t.Executed, S.STORE),
        (S.EXECUTOR, t.Mark, S.STORE),
        (S.EXECUTOR, t.Base, S.STORE),
        (S.EXECUTOR, t.Drawn, S.STORE),
        (S.EXECUTOR, t.GivenUp, S.STORE),
        (S.EXECUTOR, t.Load, S.STORE),
        (S.EXECUTOR, t.Restoring, S.STORE),
        (S.EXECUTOR, t.More, S.STORE),
        (S.EXECUTOR, t.Arrived, S.STORE),
        (S.EXECUTOR, t.Doubted, S.STORE),
        (S.EXECUTOR, t.Halted, S.STORE),
        (S.EXECUTOR, t.Unbarred, S.STORE),
        (S.STORE, t.Saved, S.EXECUTOR),
        (S.STORE, t.Draw, S.EXECUTOR),
        (S.STORE, t.BaseSaved, S.EXECUTOR),
        (S.STORE, t.GivenUp, S.EXECUTOR),
        (S.STORE, t.TakeBase, S.EXECUTOR),
        (S.STORE, t.DrawDigest, S.EXECUTOR),
        (S.STORE, t.Loaded, S.EXECUTOR),
        (S.STORE, t.Resume, S.EXECUTOR),
        (S.STORE, t.Replay, S.EXECUTOR),
        (S.STORE, t.Settled, S.EXECUTOR),
        (S.REPLY_SINK, t.Results, S.CLIENT),
        (S.REPLY_SINK, t.ReadResults, S.CLIENT),
        (S.REPLY_SINK, t.Halted, S.CLIENT),
        (S.REPLY_SINK, t.StartIndexRequest, S.CLIENT),
        (S.GC_SINK, t.CommitterStatus, S.GC_SOURCE),
        (S.GC_SINK, t.ExecutorStatus, S.GC_SOURCE),
        (S.GC_SOURCE, t.Stable, S.GC_SOURCE),
        (S.GC_SOURCE, t.Stable, S.PROPOSER),
        (S.GC_SOURCE, t.Stable, S.COMMITTER),
        (S.GC_SOURCE, t.Stable, S.EXECUTOR),
        (S.GC_SOURCE, t.Stable, S.REQUEST_SOURCE),
        (S.CONTROLLER, t.Vote, S.VIEW_SINK),
        (S.VIEW_SINK, t.Vote, S.VIEW_SOURCE),
        (S.VIEW_SINK, t.Presence, S.VIEW_SOURCE),
        (S.VIEW_SOURCE, t.View, S.VIEW_SOURCE),
        (S.VIEW_SOURCE, t.View, S.PROPOSER),
        (S.VIEW_SOURCE, t.View, S.COMMITTER),
        (S.VIEW_SOURCE, t.View, S.CONTROLLER),
        (S.VIEW_SOURCE, t.View, S.REQUEST_SOURCE),
    }
)

#: Stages of which every partition has its own replicas; the others are shared by all partitions.
PARTITIONED = frozenset(
    {
        S.REQUEST_SOURCE,
        S.PROPOSER,
        S.COMMITTER,
        S.CONTROLLER,
        S.VIEW_SINK,
        S.VIEW_SOURCE,
        S.RECORD_SINK,
        S.RECORD_SOURCE,
    }
)
_OUTSIDE = (S.CLIENT, S.STORE)


class Name(NamedTuple):
    """A node: a replica of a stage, in a partition (0 for the shared stages)."""

    stage: Stage
    partition: int
    replica: int


class Receivers(NamedTuple):
    """Where a tuple goes: node numbers of one stage. Numbers outside the graph are -1 (the node's own host)."""

    stage: Stage
    numbers: tuple[int, ...]
    #: Those of `numbers` that do not need the tuple at once: a host may let it wait for the next frame to their site,
    #: but not beyond its next tick.
    patient: tuple[int, ...] = ()


#: The host of the emitting node: its store, and the clients that are connected to it.
STORE = Receivers(S.STORE, (-1,))
CLIENT = Receivers(S.CLIENT, (-1,))


class Graph:
    """The nodes for f faults and P partitions, numbered; node i of `names` has number i everywhere."""

    def __init__(self, f: int, partitions: int) -> None:
        if f < 0:
            raise ConfigurationError(f"f = {f}: must not be negative")
        if partitions < 1:
            raise ConfigurationError(f"partitions = {partitions}: must be positive")
        self.f = f
        self.partitions = partitions
        self.sites = 2 * f + 1
        self.names: tuple[Name, ...] = tuple(
            Name(stage, partition, index)
            for stage in Stage
            if stage not in _OUTSIDE
            for partition in range(partitions if stage in PARTITIONED else 1)
            for index in range(self.replicas(stage))
        )
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def replicas(self, stage: Stage) -> int:
        """Replicas of a stage (of each partition, where it is partitioned): f+1 proposers, 2f+1 of the others.

        The paper has f+1 controllers, of which f+1 must agree: one crash would disable them. Request sources and
        reply sinks are one per site, so that a client finds a front end wherever it connects."""
        return self.f + 1 if stage is S.PROPOSER else self.sites

    def number(self, stage: Stage, index: int, partition: int = 0) -> int:
        return self._numbers[Name(stage, partition, index)]

    def one(self, stage: Stage, index: int, partition: int = 0) -> Receivers:
        return Receivers(stage, (self.number(stage, index, partition),))

    def all(self, stage: Stage, partition: int = 0) -> Receivers:
        """All replicas of a stage; of a partitioned one, those of the partition."""
        indexes = range(self.replicas(stage))
        return Receivers(stage, tuple(self.number(stage, index, partition) for index in indexes))

    def others(self, stage: Stage, index: int, partition: int = 0) -> Receivers:
        """All replicas of a stage but one."""
        numbers = self.all(stage, partition).numbers
        return Receivers(stage, numbers[:index] + numbers[index + 1 :])

    def everywhere(self, stage: Stage) -> Receivers:
        """All replicas of a partitioned stage, over all partitions."""
        groups = [self.all(stage, partition).numbers for partition in range(self.partitions)]
        return Receivers(stage, tuple(number for numbers in groups for number in numbers))

    def site(self, name: Name) -> int:
        """The site of a node: at most one replica of a stage per site. Partitions rotate, so that the active
        proposers of different partitions are on different sites. What a sink feeds back stays on its site."""
        if name.stage in (S.PROPOSER, S.COMMITTER, S.CONTROLLER):
            return (name.replica + name.partition) % self.sites
        return name.replica

    def commit_receivers(self, committer: int, partition: int, view: int) -> Receivers:
        """All executors. One is patient if it can do without this committer's vote: with those of its own site and of
        the proposer's site it has f+1 for f = 1, and more than that with the next sites' for a higher f."""
        everyone = self.all(S.EXECUTOR)
        proposer = self.proposer_of(view)
        if proposer is None:
            return everyone
        voter = self.site(Name(S.COMMITTER, partition, committer))
        first = self.site(Name(S.PROPOSER, partition, proposer))
        patient = []
        for executor, number in enumerate(everyone.numbers):
            others = [(executor + step) % self.sites for step in range(1, self.sites)]
            others.sort(key=lambda site: site != first)
            if executor != first and voter in others[2 * self.f - 1 :]:
                patient.append(number)
        return everyone._replace(patient=tuple(patient))

    def request_receivers(self, partition: int, view: int) -> Receivers:
        """The proposer whose view it is; all proposers of the partition, if it is nobody's."""
        active = self.proposer_of(view)
        return self.all(S.PROPOSER, partition) if active is None else self.one(S.PROPOSER, active, partition)

    def label(self, number: int) -> str:
        """`committer-1`, or with several partitions `committer-p0-1`."""
        if number < 0:
            return "host"
        name = self.names[number]
        if self.partitions == 1 or name.stage not in PARTITIONED:
            return f"{name.stage}-{name.replica}"
        return f"{name.stage}-p{name.partition}-{name.replica}"

    def proposer_of(self, view: int) -> int | None:
        """The index of the view's active proposer. View 0 has none: it is before the first start."""
        return view % (self.f + 1) if view > 0 else None

    @property
    def members(self) -> int:
        """Nodes of a partition whose incarnation matters: proposers, then committers."""
        return (self.f + 1) + (2 * self.f + 1)

    def member(self, stage: Stage, index: int) -> int:
        """The place of a proposer or committer in a vector of incarnations."""
        return index if stage is S.PROPOSER else self.f + 1 + index


def allowed_edges(stage: Stage) -> dict[type[t.Tuple], frozenset[Stage]]:
    """What nodes of a stage may emit, and to which stages."""
    kinds = {kind for sender, kind, _ in EDGES if sender is stage}
    return {
        kind: frozenset(receiver for sender, k, receiver in EDGES if sender is stage and k is kind) for kind in kinds
    }
