"""A site without I/O: what comes in, what is to be done, and in which order."""

from collections.abc import Iterable

import msgspec

from tara.application import Get, KeyValueStore, Put
from tara.host import client_wire, peer_wire
from tara.host.counters import Counters
from tara.host.effects import Effect, Hand, Inputs, Listen, Message, Replies, Respond, Send, Store, Sync, Trouble
from tara.host.placement import placement_of
from tara.host.site import Site, SiteSpec
from tara.protocol import tuples as t
from tara.protocol.graph import Graph
from tara.protocol.incarnations import FIRST_INCARNATION
from tara.protocol.limits import Limits
from tara.protocol.node import Boot
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.principals import gateway_of

SECRET = b"a secret of sixteen bytes"


class Alone:
    """The only site of a cluster with f = 0. Its store has nothing, and keeps what it is given."""

    def __init__(self, **changes: int) -> None:
        limits, graph = msgspec.structs.replace(Limits(f=0), **changes), Graph(0, 1)
        spec = SiteSpec(
            cluster=1, era=1, shape=0, container=0, placement=[list(range(len(graph.names)))], limits=limits,
            journal=True,
        )  # fmt: skip
        self.site = Site(spec, 1, Counters())
        self.now_ms = 1_000_000.0
        self._answers: list[tuple[t.Tuple, int]] = []
        for number in range(len(graph.names)):
            self.site.create(number, Boot(1, FIRST_INCARNATION, True, self.now_ms), KeyValueStore, [])
        self._do(self.site.begin())
        for _ in range(20):
            self.step(tick=True)

    def _do(self, effects: Iterable[Effect]) -> list[Effect]:
        done = list(effects)
        for effect in done:
            if isinstance(effect, Store) and isinstance(effect.job, t.Load):
                self._answers.append((t.Loaded(None, b"", [], b"", 0, 0), effect.number))
        return done

    def step(self, *messages: bytes, frames: list[bytes] | None = None, tick: bool = False) -> list[Effect]:
        self.now_ms += 10
        answers, self._answers = self._answers, []
        heard = [Message(b"client", message) for message in messages]
        return self._do(
            self.site.step(Inputs(frames=frames or [], messages=heard, tuples=answers, tick=tick), self.now_ms)
        )

    def say(self, *commands: t.Command, reads: list[client_wire.ReadMessage] | None = None) -> list[Effect]:
        (message,) = client_wire.encode_request(list(commands), reads or [], SECRET)
        return self.step(message)

    def open(self) -> int:
        replies = results_of(self.say(t.Command(0, 1, 0, msgspec.msgpack.encode(60_000), t.OPEN)))
        return int(msgspec.msgpack.decode(replies[0].payload)[0])


def replies_of(effects: list[Effect]) -> list[client_wire.ClientReply]:
    replies = [reply for one in effects if isinstance(one, Replies) for reply in one.replies]
    return [client_wire.decode_reply(data) for reply in replies for data in reply.messages]


def results_of(effects: list[Effect]) -> list[t.Result]:
    return [result for reply in replies_of(effects) for result in reply.results]


def put(session: int, number: int, value: bytes = b"value") -> t.Command:
    return t.Command(session, number, 0, msgspec.msgpack.encode(Put("key", value)))


def test_a_command_is_durable_before_it_is_answered() -> None:
    alone = Alone()
    effects = alone.say(put(alone.open(), 0))
    kinds = [type(effect) for effect in effects]
    synced = next(effect for effect in effects if isinstance(effect, Sync))
    assert any(isinstance(entry, t.Voted) for _, entry in synced.entries)
    assert kinds.index(Sync) < kinds.index(Replies)
    assert [result.status for result in results_of(effects)] == [t.OK]


def test_the_same_command_again_is_answered_and_not_executed() -> None:
    alone = Alone()
    session = alone.open()
    first = results_of(alone.say(put(session, 0)))
    for _ in range(20):
        # Its source hears that it is decided.
        alone.step(tick=True)
    assert results_of(alone.say(put(session, 0))) == first
    assert alone.site.replica is not None
    assert alone.site.replica.counter == 2, "the opening and the write"


def test_what_is_no_message_is_refused_and_counted() -> None:
    alone = Alone()
    effects = alone.step(b"\x00nonsense")
    assert [(one.kind, one.sender) for one in effects if isinstance(one, Trouble)] == [("bad_frame", "client")]
    assert alone.site.counters.frames_bad == 1


def test_a_frame_of_another_cluster_is_foreign() -> None:
    alone = Alone()
    frame = t.encode(peer_wire.Frame(peer_wire.Header(t.FORMAT_VERSION, 2, 1, 0, 1, 0), [], [], []))
    effects = alone.step(frames=[frame])
    assert [one.kind for one in effects if isinstance(one, Trouble)] == ["foreign_frame"]


def test_a_command_that_is_too_long_is_refused_at_once() -> None:
    alone = Alone(command_bytes_max=100)
    (result,) = results_of(alone.say(put(alone.open(), 0, bytes(200))))
    assert (result.status, result.number) == (t.TOO_LARGE, 0)


def test_what_there_is_no_room_for_is_refused_with_its_number() -> None:
    alone = Alone(source_backlog_max=2, source_pending_max=1)
    session = alone.open()
    results = results_of(alone.say(*[put(session, number) for number in range(8)]))
    refused = [result.number for result in results if result.status == t.OVERLOADED]
    assert refused == [2, 3, 4, 5, 6, 7]
    assert alone.site.counters.overloaded == 6


def test_a_read_for_which_any_state_will_do_is_answered_in_the_same_step() -> None:
    alone = Alone()
    alone.say(put(alone.open(), 0))
    payload = msgspec.msgpack.encode(Get("key"))
    effects = alone.say(reads=[client_wire.ReadMessage(7, payload, stale=True)])
    ((id_, status, payload),) = [answer for reply in replies_of(effects) for answer in reply.answers]
    assert (id_, status, msgspec.msgpack.decode(payload)) == (7, t.OK, b"value")


def test_a_client_is_told_how_long_commands_may_be_before_anything_else() -> None:
    alone = Alone(command_bytes_max=100)
    first = replies_of(alone.say(t.Command(0, 1, 0, msgspec.msgpack.encode(60_000), t.OPEN)))[0]
    assert (first.command_bytes_max, first.results) == (100, [])


def test_a_gateway_listens_first_and_responds_last() -> None:
    """What it orders is part of the step, and what it tells its clients is durable."""
    alone = Alone()
    effects = alone.site.step(Inputs(gateway=True), alone.now_ms)
    assert next(effects) == Listen()
    alone.site.submit([t.Command(0, 1, 0, msgspec.msgpack.encode("gateway"), t.OPEN, gateway_of(0))])
    rest = list(effects)
    hands = [place for place, effect in enumerate(rest) if isinstance(effect, Hand)]
    assert len(hands) == 1
    assert any(isinstance(effect, Sync) for effect in rest[: hands[0]])
    assert rest[-1] == Respond()
    assert Listen() not in list(alone.site.step(Inputs(), alone.now_ms))


def test_nothing_is_kept_for_a_connection_that_is_closed() -> None:
    alone = Alone()
    session = alone.open()
    alone.say(put(session, 0))
    desk = alone.site._desk
    assert (len(desk._routes._sessions), desk._told) == (1, {b"client"})
    list(alone.site.step(Inputs(gone=[b"client"]), alone.now_ms))
    assert (len(desk._routes._sessions), desk._told) == (0, set())
    assert results_of(alone.say(put(session, 1)))[0].status == t.OK, "it may come back, on another connection"


def test_reads_are_refused_where_the_request_source_has_stopped() -> None:
    alone = Alone()
    source = next(number for number, node in alone.site.nodes.items() if isinstance(node, RequestSource))
    del alone.site._nodes._nodes[source]
    effects = alone.say(reads=[client_wire.ReadMessage(7, b"?")])
    answers = [answer for reply in replies_of(effects) for answer in reply.answers]
    assert answers == [(7, t.OVERLOADED, b"")]
    assert alone.site._desk._reads._ids == {}


def test_nothing_is_sent_on_a_link_that_is_full_until_it_is_drained() -> None:
    graph = Graph(1, 1)
    spec = SiteSpec(
        cluster=1, era=1, shape=0, container=0, placement=placement_of(graph, "site"), limits=Limits(), journal=False
    )
    site = Site(spec, 1, Counters())
    for number in spec.placement[0]:
        site.create(number, Boot(1, FIRST_INCARNATION, True, 0.0), KeyValueStore, [])

    def receivers(now_ms: float) -> set[int]:
        """Of the frames of a tick. The link to container 1 takes one frame, and no more."""
        sends = []
        for effect in site.step(Inputs(tick=True), now_ms):
            if isinstance(effect, Send):
                site.sent(effect, len(effect.frames), full=effect.container == 1)
                sends.append(effect.container)
        return set(sends)

    assert receivers(1_000.0) == {1, 2}
    assert receivers(2_000.0) == {2}
    assert [site.drained(container) for container in (1, 2)] == [True, False]
    assert receivers(3_000.0) == {1, 2}
