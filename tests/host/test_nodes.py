"""Nodes beside each other: what waits for a sync, what does not, and whose turn it is."""

from tara.host.nodes import Nodes
from tara.host.peer_wire import PackedCommit
from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import Graph, Receivers, Stage
from tara.protocol.incarnations import FIRST_INCARNATION
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox

GRAPH = Graph(1, 1)
COMMITTER = GRAPH.number(Stage.COMMITTER, 0)
ANOTHER = GRAPH.number(Stage.COMMITTER, 1)
EXECUTOR = GRAPH.number(Stage.EXECUTOR, 0)
VOTED = t.Voted(1, 0, [])
COMMIT = t.Commit(0, 0, 1, 0, [])
INDEX = t.ReadIndex(0, 0, 1, [], 0, 1, 1, 5)
PROPOSAL = t.Proposal(1, 0, 1, 0, 0, [])
READ = t.IndexRequest(0, 1, 1, 0)


class Acceptor(Node):
    """Votes for every proposal and answers every read, as a committer does."""

    def process(self, tuple_: t.Tuple) -> None:
        if isinstance(tuple_, t.Stable):
            raise NodeHalted("broken")
        executors = self.graph.all(Stage.EXECUTOR)
        if isinstance(tuple_, t.IndexRequest):
            self.tell(INDEX, executors)
        else:
            self.persist(VOTED)
            self.emit(COMMIT, executors)


class Learner(Node):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.heard: list[t.Tuple] = []

    def process(self, tuple_: t.Tuple) -> None:
        self.heard.append(tuple_)


class Host:
    """Two acceptors and a learner are here; the other learners are elsewhere."""

    def __init__(self, holds: bool = True) -> None:
        self.left: list[tuple[int, t.Tuple]] = []
        self.stopped: list[tuple[int, str]] = []
        self.nodes = Nodes(GRAPH, (COMMITTER, ANOTHER, EXECUTOR), holds, self)
        boot = Boot(1, FIRST_INCARNATION, True, 0.0)
        made = {COMMITTER: Acceptor, ANOTHER: Acceptor, EXECUTOR: Learner}
        for number, kind in made.items():
            self.nodes.add(number, kind(GRAPH.names[number], GRAPH, Limits(), boot, Outbox()))

    @property
    def heard(self) -> list[t.Tuple]:
        learner = self.nodes.all[EXECUTOR]
        assert isinstance(learner, Learner)
        return learner.heard

    def give(self, tuple_: t.Tuple, number: int = COMMITTER) -> None:
        self.nodes.deliver(tuple_, number)
        self.nodes.settle()
        self.nodes.execute()

    def leave(self, sender: int, tuple_: t.Tuple, receivers: Receivers) -> None:
        self.left.append((sender, tuple_))

    def stop(self, number: int, reason: str) -> None:
        self.stopped.append((number, reason))

    def refuse(self, reason: str) -> None:
        raise AssertionError(reason)

    def open_vote(self, vote: PackedCommit) -> t.Tuple:
        raise AssertionError(vote)


def test_nobody_hears_of_a_vote_before_it_is_durable() -> None:
    host = Host()
    host.give(PROPOSAL)
    assert (host.left, host.heard) == ([], []), "not even the replica beside it"
    assert host.nodes.take_persisted() == [(COMMITTER, VOTED)]
    assert (host.left, host.heard) == ([], []), "it is being written"

    host.nodes.release()
    host.nodes.execute()
    assert (host.left, host.heard) == ([(COMMITTER, COMMIT)], [COMMIT])


def test_what_promises_nothing_waits_for_nothing() -> None:
    host = Host()
    host.give(PROPOSAL)
    host.give(READ)
    assert (host.left, host.heard) == ([(COMMITTER, INDEX)], [INDEX])


def test_a_node_that_wrote_nothing_does_not_wait_for_one_that_did() -> None:
    host = Host()
    host.give(PROPOSAL)
    host.nodes.all[ANOTHER].emit(COMMIT, GRAPH.all(Stage.EXECUTOR))
    host.nodes.collect(ANOTHER)
    assert host.left == [(ANOTHER, COMMIT)]


def test_what_is_said_after_the_sync_began_waits_for_the_next_one() -> None:
    host = Host()
    host.give(PROPOSAL)
    host.nodes.take_persisted()
    host.nodes.release()
    host.left.clear()

    host.give(PROPOSAL)
    assert host.left == []
    assert host.nodes.take_persisted() == [(COMMITTER, VOTED)]
    host.nodes.release()
    assert host.left == [(COMMITTER, COMMIT)]


def test_without_a_journal_nothing_waits() -> None:
    host = Host(holds=False)
    host.give(PROPOSAL)
    assert host.left == [(COMMITTER, COMMIT)]
    assert host.nodes.persisted == [(COMMITTER, VOTED)]


def test_executors_come_last() -> None:
    host = Host(holds=False)
    host.nodes.deliver(PROPOSAL, COMMITTER)
    host.nodes.deliver(READ, COMMITTER)
    host.nodes.settle()
    assert host.heard == []
    assert len(host.left) == 2, "what others wait for has left"
    host.nodes.execute()
    assert host.heard == [COMMIT, INDEX]


def test_a_node_that_breaks_down_is_stopped_alone() -> None:
    host = Host()
    host.give(t.Stable(0, t.CheckpointId(0, b""), [], []))
    assert [number for number, _ in host.stopped] == [COMMITTER]
    host.give(PROPOSAL)
    host.give(READ, ANOTHER)
    assert host.left == [(ANOTHER, INDEX)]
