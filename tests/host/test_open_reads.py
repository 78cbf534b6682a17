"""Who asked what, and what each connection is told."""

import msgspec

from tara.application import Get, Put
from tara.host import client_wire
from tara.host.open_reads import OpenReads
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.limits import Limits
from tara.protocol.principals import principal_of
from tara.simulator.container import SimulatedContainer
from tara.simulator.scene import Scene
from tara.simulator.workload import wrap


def test_an_answer_goes_to_who_asked_under_the_number_that_they_gave_it() -> None:
    reads = OpenReads(10)
    reads.open(b"a", b"", client_wire.ReadMessage(5, b"x"))
    reads.open(b"b", b"", client_wire.ReadMessage(5, b"y"))
    first, second = reads.take_new()
    reads.route(t.ReadResults(0, [t.ReadResult(second.ticket, t.OK, b"Y"), t.ReadResult(first.ticket, t.OK, b"X")]))

    assert (first.payload, second.payload) == (b"x", b"y")
    assert reads.take_outcomes() == {b"a": [(5, t.OK, b"X")], b"b": [(5, t.OK, b"Y")]}
    assert reads.take_new() == []
    assert reads.take_outcomes() == {}


def test_a_read_is_answered_once() -> None:
    reads = OpenReads(10)
    reads.open(b"a", b"", client_wire.ReadMessage(5, b"x"))
    (asked,) = reads.take_new()
    answers = t.ReadResults(0, [t.ReadResult(asked.ticket, t.OK, b"X")])
    reads.route(answers)
    reads.route(answers)

    assert reads.take_outcomes() == {b"a": [(5, t.OK, b"X")]}


def test_beyond_its_capacity_the_oldest_read_is_forgotten() -> None:
    reads = OpenReads(2)
    for number in range(3):
        reads.open(b"a", b"", client_wire.ReadMessage(number, b""))
    asked = reads.take_new()
    reads.route(t.ReadResults(0, [t.ReadResult(read.ticket, t.OK, b"") for read in asked]))

    assert [id_ for id_, _, _ in reads.take_outcomes()[b"a"]] == [1, 2]


def test_who_asks_much_does_not_have_others_forgotten() -> None:
    reads = OpenReads(10)
    reads.open(b"few", b"", client_wire.ReadMessage(1, b""))
    for number in range(20):
        reads.open(b"many", b"", client_wire.ReadMessage(number, b""))
    asked = reads.take_new()
    reads.route(t.ReadResults(0, [t.ReadResult(read.ticket, t.OK, b"") for read in asked]))

    answers = reads.take_outcomes()
    assert answers[b"few"] == [(1, t.OK, b"")]
    assert [id_ for id_, _, _ in answers[b"many"]] == list(range(11, 20))


def test_an_answer_to_a_read_of_a_former_life_is_dropped() -> None:
    """The front end restarts and its tickets begin again; the executor lives on, and answers an old read under a
    ticket that is another client's now."""
    scene = Scene(Limits(f=1, report_interval_ms=20.0, controller_timeout_ms=300.0), packing="node")
    world, graph = scene.world, scene.world.graph
    stages = (Stage.REQUEST_SOURCE, Stage.EXECUTOR, Stage.REPLY_SINK)
    source, executor, sink = (graph.number(stage, 0) for stage in stages)
    session = scene.open(site=1)
    scene.call(session, Put("a", b"the secret of a"), site=1)
    scene.call(session, Put("b", b"the value of b"), site=1)
    scene.run(100)
    answers: dict[bytes, list[bytes]] = {}

    def reply(container: SimulatedContainer, connection: bytes, messages: list[bytes]) -> None:
        for message in messages:
            told = client_wire.decode_reply(message).answers
            answers.setdefault(connection, []).extend([msgspec.msgpack.decode(answer) for *_, answer in told])

    world.client_links.reply = reply  # type: ignore[method-assign]

    def ask(connection: bytes, key: str) -> None:
        read = client_wire.ReadMessage(7, wrap(0, msgspec.msgpack.encode(Get(key))))
        world.client_links.say(0, connection, principal_of(b"the secret of a client"), [], [read])

    # The executor lacks the last slot, so the read waits there.
    held = Held(executor)
    world.stories.append(held)  # type: ignore[arg-type]
    scene.call(session, Put("c", b"new"), site=1)
    ask(b"a client", "a")
    scene.run(50)
    assert world.host_of(source) is world.host_of(sink)
    scene.crash(world.host_of(source))
    scene.restart(world.host_of(source))
    scene.run(300)
    ask(b"another client", "b")
    scene.run(50)
    held.on = False
    scene.run(500)

    assert {who: told for who, told in answers.items() if told} == {b"another client": [b"the value of b"]}


class Held:
    """A story: the commits for one executor are late."""

    kind = "held"

    def __init__(self, executor: int) -> None:
        self._executor = executor
        self.on = True

    def take(self, sender: object, peer: object, parcel: tuple[t.Tuple, int]) -> bool:
        return self.on and isinstance(parcel[0], t.Commit) and parcel[1] == self._executor

    def end(self) -> None:
        return
