"""A site with nothing around its nodes: tuples in, effects out, in the order in which they are to be done."""

from typing import Any

from tara.application import KeyValueStore
from tara.host.bare_site import BareSite
from tara.host.effects import Effect, Emit, Executes, Halt, Inputs, Store, Sync, Trouble, Unbar
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple, NodeHalted
from tara.protocol.graph import CLIENT, STORE, Graph, Name, Stage
from tara.protocol.incarnations import FIRST_INCARNATION
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.nodes.factory import create

GRAPH = Graph(1, 1)
BOOT = Boot(1, FIRST_INCARNATION, True, 0.0)
COMMITTER = GRAPH.number(Stage.COMMITTER, 0)
PROPOSER = GRAPH.number(Stage.PROPOSER, 0)
EXECUTOR = GRAPH.number(Stage.EXECUTOR, 0)
REPLY_SINK = GRAPH.number(Stage.REPLY_SINK, 0)
EXECUTORS = GRAPH.all(Stage.EXECUTOR)
PROPOSAL = t.Proposal(1, 0, 1, 0, 0, [])
VOTED = t.Voted(1, 0, [])
COMMIT = t.Commit(0, 0, 1, 0, [])
INDEX = t.ReadIndex(0, 0, 1, [], 0, 1, 1, 5)


class Acceptor(Node):
    """Answers a read and votes, in one step."""

    def process(self, tuple_: t.Tuple) -> None:
        self.persist(VOTED)
        self.emit(COMMIT, EXECUTORS)
        self.tell(INDEX, EXECUTORS)


class Broken(Node):
    def process(self, tuple_: t.Tuple) -> None:
        raise NodeHalted("broken") if isinstance(tuple_, t.Proposal) else MalformedTuple("no such thing")


class Speaker(Node):
    """An executor that has something for everybody."""

    def process(self, tuple_: t.Tuple) -> None:
        self.emit(t.Results(0, [], []), GRAPH.one(Stage.REPLY_SINK, 0))
        self.emit(t.Mark(t.CheckpointId(3, b"digest"), 4), STORE)
        self.emit(t.Unbarred(7), STORE)
        self.emit(t.Halted(0, 5, 0, "why"), STORE)


class Listener(Node):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.heard: list[t.Tuple] = []

    def process(self, tuple_: t.Tuple) -> None:
        self.heard.append(tuple_)


def site_of(nodes: dict[int, type[Node]], journal: bool = False) -> BareSite:
    site = BareSite(GRAPH, Limits(), nodes, journal)
    for number, kind in nodes.items():
        site.add(number, kind(GRAPH.names[number], GRAPH, Limits(), BOOT, Outbox()))
    return site


def give(site: BareSite, *tuples: tuple[t.Tuple, int]) -> list[Effect]:
    return list(site.step(Inputs(tuples=list(tuples)), 0.0))


def test_with_a_journal_what_promises_nothing_leaves_before_the_sync_and_the_vote_behind_it() -> None:
    effects = give(site_of({COMMITTER: Acceptor}, journal=True), (PROPOSAL, COMMITTER))
    assert effects == [
        Emit(COMMITTER, INDEX, EXECUTORS),
        Sync([(COMMITTER, VOTED)], False),
        Emit(COMMITTER, COMMIT, EXECUTORS),
    ]


def test_without_a_journal_nothing_waits_and_what_is_persisted_is_shown() -> None:
    effects = give(site_of({COMMITTER: Acceptor}), (PROPOSAL, COMMITTER))
    assert [effect for effect in effects if isinstance(effect, Sync)] == [Sync([(COMMITTER, VOTED)], False)]
    said = [effect for effect in effects if isinstance(effect, Emit)]
    assert said == [Emit(COMMITTER, INDEX, EXECUTORS), Emit(COMMITTER, COMMIT, EXECUTORS)]


def test_who_is_here_hears_it_without_an_effect() -> None:
    site = site_of({EXECUTOR: Speaker, REPLY_SINK: Listener})
    effects = give(site, (COMMIT, EXECUTOR))
    sink = site.nodes[REPLY_SINK]
    assert isinstance(sink, Listener)
    assert sink.heard == [t.Results(0, [], [])]
    assert not [effect for effect in effects if isinstance(effect, Emit)]


def test_what_is_for_the_host_comes_in_the_order_in_which_it_was_said() -> None:
    effects = give(site_of({EXECUTOR: Speaker}), (COMMIT, EXECUTOR))
    assert effects == [
        Emit(EXECUTOR, t.Results(0, [], []), GRAPH.one(Stage.REPLY_SINK, 0)),
        Store(EXECUTOR, t.Mark(t.CheckpointId(3, b"digest"), 4)),
        Unbar(EXECUTOR, 7),
        Executes(EXECUTOR, t.Halted(0, 5, 0, "why")),
    ]


def test_what_is_for_clients_is_an_effect_as_well() -> None:
    site = BareSite(GRAPH, Limits(), [REPLY_SINK])
    site.create(REPLY_SINK, BOOT, KeyValueStore)
    results = t.Results(1, [t.Result(1, 0, 1, t.OK, b"")], [])
    assert give(site, (results, REPLY_SINK)) == [Emit(REPLY_SINK, results, CLIENT)]


def test_requests_that_come_at_once_become_one_run() -> None:
    site = site_of({PROPOSER: Listener})
    requests = [t.Request(source, 1, 0, 0, b"\x90") for source in range(3)]
    give(site, *[(t.Requests([request]), PROPOSER) for request in requests])
    proposer = site.nodes[PROPOSER]
    assert isinstance(proposer, Listener)
    assert proposer.heard == [t.Requests(requests)]


def test_a_node_that_breaks_down_is_gone_and_shows() -> None:
    site = site_of({COMMITTER: Broken})
    assert give(site, (PROPOSAL, COMMITTER)) == [Halt(COMMITTER, "NodeHalted('broken')")]
    assert site.nodes == {}
    assert give(site, (PROPOSAL, COMMITTER)) == []


def test_what_a_node_cannot_take_is_refused_and_counted() -> None:
    site = site_of({COMMITTER: Broken})
    assert give(site, (t.IndexRequest(0, 1, 1, 0), COMMITTER)) == [Trouble("bad_frame", "peer", "no such thing")]
    assert site.counters.frames_bad == 1


def test_what_a_node_persists_when_it_is_made_is_synced_before_anything_leaves() -> None:
    def make(name: Name, *arguments: Any) -> Node:
        node = create(name, *arguments)
        node.persist(VOTED)
        node.emit(COMMIT, EXECUTORS)
        return node

    site = BareSite(GRAPH, Limits(), [COMMITTER], journal=True, make=make)
    site.create(COMMITTER, BOOT, KeyValueStore)
    (sync,) = site.begin()
    assert isinstance(sync, Sync)
    assert (COMMITTER, VOTED) in sync.entries
    assert Emit(COMMITTER, COMMIT, EXECUTORS) in give(site)
