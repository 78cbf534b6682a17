"""Builds single nodes and drives them by hand: tuples in, tuples out.

`Bench` makes nodes for one graph, `Driven` is a node that is alone on its site, and `Network` connects all nodes of
a graph without delay, loss or faults, for the few tests that follow a command through the whole graph.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tara.application import KeyValueStore
from tara.bench.protocol_speed import InProcessCluster
from tara.host.bare_site import BareSite
from tara.host.effects import Effect, Emit, Executes, Inputs, Store, Sync, Unbar
from tara.protocol import tuples as t
from tara.protocol.graph import STORE, Graph, Receivers, Stage
from tara.protocol.incarnations import FIRST_INCARNATION
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node
from tara.protocol.places import Cell
from tara.protocol.sessions import Application
from tara.protocol.state_digest import digest_of

Kind = TypeVar("Kind", bound=t.Tuple)
Record = TypeVar("Record", bound=msgspec.Struct)
Entry = TypeVar("Entry")


class Step:
    """What a node has said, and what it persisted."""

    def __init__(self, emitted: list[tuple[t.Tuple, Receivers]], persisted: list[Any]) -> None:
        self.emitted = emitted
        self.persisted = persisted

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The emitted tuples of a kind."""
        return [tuple_ for tuple_, _ in self.emitted if isinstance(tuple_, kind)]

    def only(self, kind: type[Kind]) -> Kind:
        """The one emitted tuple of a kind."""
        found = self.of(kind)
        assert len(found) == 1, found
        return found[0]

    def receivers(self, kind: type[t.Tuple]) -> list[Receivers]:
        """Where the tuples of a kind went."""
        return [receivers for tuple_, receivers in self.emitted if isinstance(tuple_, kind)]

    def written(self, kind: type[Entry]) -> list[Entry]:
        """The persisted entries of a kind."""
        return [entry for entry in self.persisted if isinstance(entry, kind)]


NodeType = TypeVar("NodeType", bound=Node)


class Driven(Generic[NodeType]):
    def __init__(self, site: BareSite, number: int, node: NodeType) -> None:
        """`node` is the only one that the site has."""
        self._site = site
        self._number = number
        self.node = node
        self._now_ms = 0.0

    def take(self) -> Step:
        """What the node has emitted and persisted since the last look."""
        return step_of([*self._site.begin(), *self._site.step(Inputs(), self._now_ms)])

    def feed(self, *tuples: t.Tuple, resumes: bool = True) -> Step:
        """`resumes`: a base is restored to its end, as if nothing else came in between."""
        waiting, effects = deque(tuples), list[Effect]()
        while waiting:
            for effect in self._site.step(Inputs(tuples=[(waiting.popleft(), self._number)]), self._now_ms):
                effects.append(effect)
                match effect:
                    case Store(_, t.Restoring(number)) if resumes:
                        waiting.appendleft(t.Resume(number))
        return step_of(effects)

    def tick(self, now_ms: float) -> Step:
        self._now_ms = now_ms
        return step_of(self._site.step(Inputs(tick=True), now_ms))


def step_of(effects: Iterable[Effect]) -> Step:
    """What a node wants done. A node that was stopped ends the test, but for executors: they stay, and say so."""
    step = Step([], [])
    for effect in effects:
        match effect:
            case Sync(entries):
                step.persisted += [entry for _, entry in entries]
            case Emit(_, tuple_, receivers):
                step.emitted.append((tuple_, receivers))
            case Store(_, job):
                step.emitted.append((job, STORE))
            case Executes(_, halted):
                step.emitted.append((halted, STORE))
            case Unbar(_, counter):
                step.emitted.append((t.Unbarred(counter), STORE))
            case _:
                raise AssertionError(effect)
    return step


class Bench:
    """A graph and small limits; makes nodes."""

    def __init__(self, f: int = 1, partitions: int = 1, **settings: Any) -> None:
        sizes: dict[str, Any] = {"window": 8, "checkpoint_interval": 4 * partitions}
        self.limits = Limits(f=f, partitions=partitions, **(sizes | settings))
        self.graph = Graph(f, partitions)

    def make(
        self,
        kind: type[NodeType],
        stage: Stage,
        replica: int = 0,
        partition: int = 0,
        *,
        genesis: bool = True,
        life: int = 1,
        incarnation: int = FIRST_INCARNATION,
        now_ms: float = 0.0,
        threshold: int = 0,
        journal: Iterable[t.ReplayedEntry] = (),
        application: Callable[[], Application] = KeyValueStore,
        cell: Cell | None = None,
        barred: frozenset[int] = frozenset(),
        executed: int = 0,
    ) -> Driven[NodeType]:
        number = self.graph.number(stage, replica, partition)
        site = BareSite(self.graph, self.limits, [number])
        boot = Boot(life, incarnation, genesis, now_ms, threshold, cell=cell, barred=barred, executed=executed)
        site.create(number, boot, application, journal)
        node = site.nodes[number]
        assert isinstance(node, kind)
        return Driven(site, number, node)

    @property
    def incarnations(self) -> list[int]:
        """The incarnations of all proposers and committers of a partition at genesis."""
        return [FIRST_INCARNATION] * self.graph.members

    def views(
        self, view: int, sources: Iterable[int] | None = None, incarnations: list[int] | None = None
    ) -> list[t.View]:
        """The view as published by f+1 view sources, or by the given ones."""
        who = range(self.limits.quorum) if sources is None else sources
        known = self.incarnations if incarnations is None else incarnations
        return [blank(t.View, source=source, view=view, incarnations=known) for source in who]

    def record(
        self,
        committer: int,
        view: int,
        slots: Sequence[t.Accepted] = (),
        minimum: int = 0,
        incarnation: int = FIRST_INCARNATION,
        incarnations: list[int] | None = None,
    ) -> t.Record:
        """A committer's whole record in one part."""
        known = self.incarnations if incarnations is None else incarnations
        end = minimum + len(slots)
        return blank(
            t.Record,
            committer=committer,
            view=view,
            incarnation=incarnation,
            incarnations=known,
            minimum=minimum,
            end=end,
            first=minimum,
            slots=list(slots),
        )

    def start(self, view: int, first: int = 0, next_slot: int = 0, incarnations: list[int] | None = None) -> t.Start:
        """The start of a view, on the records of the first f+1 committers."""
        proposer = self.graph.proposer_of(view)
        assert proposer is not None
        known = self.incarnations if incarnations is None else incarnations
        credentials = [t.Credential(committer, FIRST_INCARNATION, known) for committer in range(self.limits.quorum)]
        return blank(
            t.Start,
            proposer=proposer,
            view=view,
            incarnations=known,
            credentials=credentials,
            first=first,
            next=next_slot,
        )

    def proposal(self, view: int, first: int, requests: list[t.Request], stable: int = 0) -> t.Proposal:
        proposer = self.graph.proposer_of(view)
        assert proposer is not None
        return blank(t.Proposal, proposer=proposer, view=view, first=first, stable=stable, requests=requests)

    def status(self, executor: int, round_: int = 1, **changes: Any) -> t.ExecutorStatus:
        """An executor's report; by default of one that has done nothing."""
        sources, partitions = self.graph.replicas(Stage.REQUEST_SOURCE), self.limits.partitions
        nothing = {"positions": [0] * partitions, "progress": [[(0, 0)] * sources for _ in range(partitions)]}
        return blank(t.ExecutorStatus, executor=executor, round=round_, **({"life": 1} | nothing | changes))

    def progress(
        self, executor: int, reaches: dict[int, t.Reach] | None = None, position: int = 0, frontier: int = 0
    ) -> t.Progress:
        """What an executor tells the controllers of the slowest partition, whose window has room: how far its sources
        have got."""
        sources = range(self.graph.replicas(Stage.REQUEST_SOURCE))
        return blank(
            t.Progress,
            executor=executor,
            progress=[(reaches or {}).get(source, (0, 0)) for source in sources],
            position=position,
            frontier=max(frontier, position),
            slowest=position,
            window_end=position + self.limits.window,
        )

    def committer_status(self, committer: int, round_: int = 1, **changes: Any) -> t.CommitterStatus:
        """A committer's report; by default of one that has not entered any view."""
        usual = {"life": 1, "incarnation": FIRST_INCARNATION, "position": -1}
        return blank(t.CommitterStatus, committer=committer, round=round_, **(usual | changes))

    def stables(
        self,
        number: int,
        sources: Iterable[int] | None = None,
        digest: bytes = b"digest",
        executors: Iterable[t.ExecutorStatus] = (),
        committers: Iterable[t.CommitterStatus] = (),
    ) -> list[t.Stable]:
        """The threshold as published by f+1 gc sources, or by the given ones."""
        who = range(self.limits.quorum) if sources is None else sources
        checkpoint = t.CheckpointId(number, digest)
        return [
            blank(
                t.Stable,
                source=source,
                checkpoint=checkpoint,
                executors=list(executors),
                committers=list(committers),
            )
            for source in who
        ]


def blank(kind: type[Record], **fields: Any) -> Record:
    """A tuple whose other fields are zero or empty, so that tests name only the fields that matter to them."""
    zeros: dict[str, Any] = {}
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if field.name not in fields:
            zeros[field.name] = _zero(field.type)
    return kind(**zeros, **fields)


def _zero(kind: msgspec.inspect.Type) -> Any:
    match kind:
        case msgspec.inspect.IntType():
            return 0
        case msgspec.inspect.BytesType():
            return b""
        case msgspec.inspect.StrType():
            return ""
        case msgspec.inspect.ListType():
            return []
        case msgspec.inspect.TupleType(item_types=items):
            return tuple(_zero(item) for item in items)
        case msgspec.inspect.StructType(cls=struct):
            return blank(struct)
    raise NotImplementedError(kind)


def request(number: int, source: int = 0, epoch: int = 1, body: bytes = b"\x90", time: int = 0) -> t.Request:
    """A request that, unless told otherwise, holds no command at all."""
    return t.Request(source, epoch, number, time, body)


def identity(request: t.Request) -> tuple[int, int, int]:
    """What tells one request from another."""
    return (request.source, request.epoch, request.number)


def requests(first: int, end: int, source: int = 0, epoch: int = 1) -> list[t.Request]:
    return [request(number, source, epoch) for number in range(first, end)]


def batch(number: int, commands: Sequence[t.Command], source: int = 0, time: int = 0) -> t.Request:
    """A request that holds these commands."""
    return request(number, source, body=t.encode(list(commands)), time=time)


def open_session(nonce: int = 0, timeout_ms: int = 10_000) -> t.Command:
    return t.Command(0, nonce, 0, msgspec.msgpack.encode(timeout_ms), t.OPEN)


def session_id(result: t.Result) -> int:
    """The id in the result of an OPEN."""
    assert result.status == t.OK, result
    session, *_ = msgspec.msgpack.decode(result.payload, type=tuple[int, ...])
    return session


def base_of(executor: "Driven[Any]", step: Step) -> t.Loaded:
    """The base that begins in this step, drawn to its end, as the store of another executor gives it."""
    base = step.only(t.Base)
    state, chunks = base.state, list[bytes]()
    while (drawn := executor.feed(t.Draw(base.checkpoint.number)).only(t.Drawn)).chunks:
        if drawn.is_state:
            state += b"".join(drawn.chunks)
        else:
            chunks += drawn.chunks
    return loaded_base(t.Base(base.checkpoint, state), chunks)


def loaded_base(base: t.Base, chunks: list[bytes], until: int = 0) -> t.Loaded:
    """With no requests behind it, unless they lead to a later checkpoint."""
    length = len(base.state) + sum(map(len, chunks))
    digest = digest_of(base.state, chunks)
    return t.Loaded(base.checkpoint, base.state, chunks, digest, length, max(until, base.checkpoint.number))


def loaded_nothing(until: int = 0) -> t.Loaded:
    """No base; but requests, if they lead to a checkpoint."""
    return t.Loaded(None, b"", [], b"", 0, until)


def replays(step: Step, last: bool = True) -> list[t.Replay]:
    """What was executed in this step, as a store gives it to be executed again, with the checkpoints in it."""
    found = []
    for tuple_, _ in step.emitted:
        match tuple_:
            case t.Executed():
                found.append(t.Replay(tuple_.first, tuple_.requests, tuple_.skipped, None, False, False))
            case t.Mark():
                found.append(t.Replay(0, [], [], tuple_.checkpoint, False, False))
    return [*found, t.Replay(0, [], [], None, False, True)] if last else found


def commits(
    slots: Sequence[t.Request], first: int = 0, view: int = 1, committers: Iterable[int] = (0, 1), partition: int = 0
) -> list[t.Commit]:
    """Equal votes of several committers for a run of slots."""
    return [t.Commit(committer, partition, view, first, list(slots)) for committer in committers]


class Network(InProcessCluster):
    """All nodes of a graph; a tuple arrives at once, unless its receiver is down."""

    def __init__(self, bench: Bench, down: Iterable[int] = ()) -> None:
        #: What clients got: (reply sink, result).
        self.replies: list[tuple[int, t.Result]] = []
        up = set(range(len(bench.graph.names))) - set(down)
        super().__init__(bench.limits, [sorted(up)])

    def submit_at(self, source: int, *commands: t.Command, partition: int = 0) -> list[t.Result]:
        """Hand commands to a request source and return the results that its site gives at once."""
        seen = len(self.replies)
        self.give(t.Submit(list(commands)), self.graph.number(Stage.REQUEST_SOURCE, source, partition))
        return [result for sink, result in self.replies[seen:] if sink == source]

    def run(self, duration_ms: float, step_ms: float = 10.0) -> None:
        """Let time pass everywhere."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.tick(self.now_ms + step_ms)

    def reply(self, sender: int, tuple_: t.Tuple) -> None:
        assert isinstance(tuple_, t.Results)
        self.replies += [(self.graph.names[sender].replica, result) for result in tuple_.results]
