"""Admission: which tuples of a peer's frame reach the nodes that are here.

A peer whose frame has the right header is trusted to be honest, not to be free of faults: a frame of it may have been
made by a broken machine, or by somebody who can open a connection and knows the header. Decoding has checked types;
here is checked what depends on the shape of the cluster, so that a node may use what it gets as an index, a range or a
length: that nodes and partitions exist and take this kind of tuple, that vectors have the length they must have, and
that runs of slots fit a window. What a well-formed tuple claims is not judged: crashes are tolerated, not lies.

A frame is admitted or refused as a whole; what a vote holds is judged when somebody needs it and opens it.
"""

from collections.abc import Callable, Iterable
from typing import Any

from tara.host.peer_wire import Frame, Header, PackedCommit, beginning, decode_frame, decode_header
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple
from tara.protocol.graph import EDGES, PARTITIONED, Graph, Stage
from tara.protocol.limits import Limits

_OUTSIDE = (Stage.CLIENT, Stage.STORE)


class ForeignFrame(Exception):
    """A frame of somebody who does not belong here, or no more."""


class Arrivals:
    """Makes frames of what peers send, if it is of this cluster, era and shape, and not of a life that is over."""

    def __init__(self, origin: tuple[int, int, int], containers: int, admission: "Admission") -> None:
        self._origin = origin
        self._admission = admission
        #: The newest life that was heard of each container.
        self.lives = [0] * containers
        #: How the frames of these lives begin. Of a frame that begins otherwise, the header is looked at first.
        self._heads: dict[int, bytes] = {}
        self._beginnings: tuple[bytes, ...] = ()

    def open(self, data: bytes) -> Frame:
        known = data.startswith(self._beginnings)
        if not known:
            self._check(decode_header(data))
        frame = decode_frame(data)
        refusal = self._admission.refusal(frame)
        if refusal is not None:
            raise MalformedTuple(refusal)
        if not known:
            self._meet(frame.header)
        return frame

    def _check(self, header: Header) -> None:
        if (header.cluster, header.era, header.shape) != self._origin:
            shape = "the same" if header.shape == self._origin[2] else "another"
            raise ForeignFrame(f"cluster {header.cluster:x}, era {header.era}, {shape} shape")
        if not 0 <= header.container < len(self.lives):
            raise ForeignFrame(f"container {header.container}, which the cluster does not have")
        if header.life < self.lives[header.container]:
            raise ForeignFrame(f"container {header.container}, life {header.life}, which is over")

    def _meet(self, header: Header) -> None:
        """Only a frame that was admitted says which life its container is in."""
        self.lives[header.container] = header.life
        self._heads[header.container] = beginning(header)
        self._beginnings = tuple(self._heads.values())


class Admission:
    def __init__(self, graph: Graph, limits: Limits, here: Iterable[int]) -> None:
        self._sites = graph.sites
        self._partitions = range(graph.partitions)
        self._members = graph.members
        self._proposers = graph.replicas(Stage.PROPOSER)
        self._window = limits.window
        self._slots = limits.checkpoint_slots
        self._nodes = frozenset(here)
        self._checks: dict[type[t.Tuple], Callable[[Any], bool]] = {
            t.Requests: self._requests,
            t.Proposal: self._proposal,
            t.Commit: self._commit,
            t.Results: lambda results: results.executor < self._sites,
            t.ReadResults: lambda answers: answers.executor < self._sites,
            t.Halted: lambda halted: halted.executor < self._sites,
            t.StartIndexRequest: lambda ask: ask.executor < self._sites,
            t.PendingReads: lambda reads: reads.source < self._sites,
            t.IndexRequest: lambda read: read.source < self._sites and read.executor < self._sites,
            t.ReadIndex: self._read_index,
            t.CommitterStatus: self._committer_status,
            t.ExecutorStatus: self._executor_status,
            t.Stable: self._stable,
            t.Target: lambda target: target.source < self._sites,
            t.Advance: lambda advance: advance.proposer < self._proposers,
            t.Progress: lambda report: report.executor < self._sites and len(report.progress) == self._sites,
            t.Vote: lambda vote: vote.controller < self._sites,
            t.Presence: lambda presence: presence.member < self._members and self._knows_all(presence.incarnations),
            t.View: lambda view: view.source < self._sites and self._knows_all(view.incarnations),
            t.Record: self._record,
            t.Start: self._start,
            t.Collecting: self._collecting,
        }
        #: Who here takes a kind of tuple; where the kind names a partition, who takes it of that one.
        self._takers: dict[object, frozenset[int]] = {}
        self._partitioned = {kind for kind in self._checks if "partition" in kind.__struct_fields__}
        for kind in self._checks:
            stages = {stage for sender, edge, stage in EDGES if edge is kind and sender not in _OUTSIDE}
            numbers = [number for number in self._nodes if graph.names[number].stage in stages]
            self._takers[kind] = frozenset(numbers)
            for partition in self._partitions if kind in self._partitioned else ():
                self._takers[kind, partition] = frozenset(
                    number
                    for number in numbers
                    if graph.names[number].stage not in PARTITIONED or graph.names[number].partition == partition
                )

    def refusal(self, frame: Frame) -> str | None:
        """Why what it brings may not be delivered; None if it may."""
        checks, takers, partitioned = self._checks, self._takers, self._partitioned
        for numbers, tuple_ in frame.parcels:
            kind = type(tuple_)
            check = checks.get(kind)
            if check is None:
                return f"{kind.__name__}: not between nodes"
            key = (kind, tuple_.partition) if kind in partitioned else kind  # type: ignore[union-attr]
            who = takers.get(key)
            if who is None or len(numbers) > len(who) or not who.issuperset(numbers):
                return f"{kind.__name__}: for nodes that do not take it"
            if not check(tuple_):
                return f"{kind.__name__}: a number or a length that this cluster does not have"
        for numbers, vote in frame.votes:
            who = takers.get((t.Commit, vote.partition))
            if who is None or len(numbers) > len(who) or not who.issuperset(numbers):
                return "Commit: for nodes that do not take it"
        return None

    def open(self, vote: PackedCommit) -> t.Commit:
        """The commit of a vote that was not refused."""
        commit = t.decode_tuple(vote.commit)
        if not isinstance(commit, t.Commit):
            raise MalformedTuple(f"{type(commit).__name__}: in the place of a commit")
        if (commit.partition, commit.first + len(commit.requests)) != (vote.partition, vote.end):
            raise MalformedTuple("Commit: not the one that was announced")
        if not self._commit(commit):
            raise MalformedTuple("Commit: a number or a length that this cluster does not have")
        return commit

    def _knows_all(self, incarnations: list[int]) -> bool:
        return len(incarnations) == self._members

    def _sources_exist(self, requests: list[t.Request]) -> bool:
        return max([request.source for request in requests], default=-1) < self._sites

    def _requests(self, requests: t.Requests) -> bool:
        sources = [request.source for request in requests.requests]
        return not sources or (min(sources) >= 0 and max(sources) < self._sites)

    def _proposal(self, proposal: t.Proposal) -> bool:
        return (
            proposal.proposer < self._proposers
            and proposal.stable % self._slots == 0
            and proposal.stable <= proposal.first
            and proposal.first + len(proposal.requests) <= proposal.stable + self._window
            and self._sources_exist(proposal.requests)
        )

    def _commit(self, commit: t.Commit) -> bool:
        return (
            commit.committer < self._sites
            and len(commit.requests) <= self._window
            and self._sources_exist(commit.requests)
        )

    def _read_index(self, index: t.ReadIndex) -> bool:
        return index.committer < self._sites and index.source < self._sites and self._knows_all(index.incarnations)

    def _committer_status(self, status: t.CommitterStatus) -> bool:
        return status.committer < self._sites and status.partition in self._partitions

    def _executor_status(self, status: t.ExecutorStatus) -> bool:
        partitions = len(self._partitions)
        return (
            status.executor < self._sites
            and len(status.positions) == partitions
            and len(status.progress) == partitions
            and all(len(sources) == self._sites for sources in status.progress)
        )

    def _stable(self, stable: t.Stable) -> bool:
        return (
            stable.source < self._sites
            and len(stable.executors) <= self._sites
            and len(stable.committers) <= self._sites * len(self._partitions)
            and all(map(self._executor_status, stable.executors))
            and all(map(self._committer_status, stable.committers))
        )

    def _record(self, record: t.Record) -> bool:
        return (
            record.committer < self._sites
            and self._knows_all(record.incarnations)
            and record.minimum % self._slots == 0
            and record.end <= record.minimum + self._window
            and record.minimum <= record.first
            and record.first + len(record.slots) <= record.end
            and self._sources_exist([slot.request for slot in record.slots])
        )

    def _collecting(self, collecting: t.Collecting) -> bool:
        return (
            collecting.proposer < self._proposers
            and len(collecting.missing) <= self._sites
            and all(committer < self._sites for committer, _ in collecting.missing)
        )

    def _start(self, start: t.Start) -> bool:
        return (
            start.proposer < self._proposers
            and self._knows_all(start.incarnations)
            and len(start.credentials) <= self._sites
            and all(
                credential.committer < self._sites and self._knows_all(credential.incarnations)
                for credential in start.credentials
            )
            and start.first % self._slots == 0
            and start.first <= start.next <= start.first + self._window
        )
