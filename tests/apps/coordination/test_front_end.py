"""The order of requests and answers, and its bounds, without sockets."""

import time
from unittest import mock

import pytest

from tara.application import KeyValueStore
from tara.apps.coordination import jute, limits
from tara.apps.coordination.codes import Code, Op
from tara.apps.coordination.gateway import make_gateway
from tara.apps.coordination.gateway.connection import Connection
from tara.protocol.errors import ConfigurationError
from tara.simulator.campaign import Job, run_seed
from tests.apps.coordination.desk import Desk, framed

NEVER = 1 << 60


def set_watches(paths: list[str], missing: bool = True) -> bytes:
    """For nodes that are not there, which are watched, or are said to have gone."""
    exists, data = (paths, []) if missing else ([], paths)
    return jute.pack_long(NEVER) + jute.pack_texts(data) + jute.pack_texts(exists) + jute.pack_texts([])


def watched(desk: Desk, connection: Connection, path: str) -> int:
    """Ask whether a node exists, and leave a watch; the error."""
    desk.request(connection, 1, Op.EXISTS, jute.pack_text(path) + b"\1")
    (answer,) = desk.fetch(connection)
    return answer[1]


def test_one_watch_too_many_is_refused_and_the_connection_stays() -> None:
    desk = Desk(watches_per_connection_max=2)
    client = desk.connect()
    assert [watched(desk, client, path) for path in ("/a", "/b", "/a", "/c")] == [
        Code.NO_NODE,
        Code.NO_NODE,
        Code.NO_NODE,
        Code.THROTTLED_OP,
    ]
    desk.request(client, 2, Op.ADD_WATCH, jute.pack_text("/c") + jute.pack_int(1))
    assert [error for _, error, _ in desk.fetch(client)] == [Code.THROTTLED_OP]
    desk.create(desk.connect(), "/a")
    assert len(desk.fetch(client)) == 1, "the event"
    assert watched(desk, client, "/c") == Code.NO_NODE
    assert len(desk.front_end.watches) == 2


def test_set_watches_beyond_the_bound_is_refused_and_its_connection_closed() -> None:
    """Clients do not look at the answer; one that believes to watch must not be left in that belief."""
    desk = Desk(watches_per_connection_max=100)
    client = desk.connect()
    desk.request(client, -8, Op.SET_WATCHES, set_watches([f"/{number}" for number in range(101)]))
    desk.turn()
    assert desk.fetch(client) == [(-8, Code.THROTTLED_OP, b"")]
    assert client.closed
    desk.turn()
    assert len(desk.front_end.watches) == 0


def test_set_watches_takes_several_turns_and_what_follows_waits() -> None:
    desk = Desk()
    client = desk.connect()
    paths = [f"/{number}" for number in range(1_000)]
    # Each look at the clock takes a tenth of a turn.
    desk.clock_step_s = 0.001
    desk.request(client, -8, Op.SET_WATCHES, set_watches(paths))
    desk.request(client, 1, Op.EXISTS, jute.pack_text("/") + b"\0")
    assert 0 < len(desk.front_end.watches) < 100
    assert desk.front_end.busy
    assert not client.out
    for _ in range(500):
        desk.turn()
        if client.out:
            break
    desk.clock_step_s = 0.0
    desk.turn()
    assert [xid for xid, _, _ in desk.fetch(client)] == [-8, 1]
    assert len(desk.front_end.watches) == 1_000
    assert not desk.front_end.busy


def test_who_sends_many_requests_waits_for_those_who_send_few() -> None:
    desk = Desk()
    greedy, other = desk.connect(), desk.connect()
    request = framed(jute.REQUEST_HEADER.pack(7, Op.EXISTS) + jute.pack_text("/") + b"\0")
    desk.feed(greedy, request * 1_000)
    desk.feed(other, request)
    assert (greedy.sent, other.sent) == (1 + limits.REQUESTS_AT_ONCE, 2)
    # From now on, a look at the clock takes more time than there is for the others: one portion a turn.
    desk.clock_step_s = 2 * limits.TURN_S
    for _ in range(10):
        before = greedy.sent
        desk.turn()
        assert before < greedy.sent <= before + limits.REQUESTS_AT_ONCE
        assert desk.front_end.busy
    desk.clock_step_s = 0.0
    desk.turn()
    assert greedy.sent == 1_001
    assert not desk.front_end.busy
    assert greedy.readable


def test_events_of_set_watches_come_before_its_answer() -> None:
    desk = Desk()
    client = desk.connect()
    desk.request(client, -8, Op.SET_WATCHES, set_watches(["/gone", "/zookeeper"], missing=False))
    assert [xid for xid, _, _ in desk.fetch(client)] == [-1, -8]


def test_requests_of_a_client_do_not_take_more_than_their_time() -> None:
    desk = Desk()
    greedy, other = desk.connect(), desk.connect()
    request = jute.REQUEST_HEADER.pack(7, Op.GET_ALL_CHILDREN_NUMBER) + jute.pack_text("/")
    desk.clock_step_s = 0.001
    desk.front_end.begin()
    desk.feed(greedy, framed(request) * 100)
    answered = greedy.sent
    assert answered < 20
    assert not greedy.readable
    desk.turn()
    assert answered < greedy.sent < 40
    desk.front_end.begin()
    desk.request(other, 1, Op.EXISTS, jute.pack_text("/") + b"\0")
    assert len(desk.fetch(other)) == 1
    for _ in range(100):
        desk.turn()
    assert len(desk.fetch(greedy)) == 100
    assert greedy.readable


def test_a_client_with_all_the_watches_goes_without_a_pause() -> None:
    """In processor time, which does not depend on who else uses the machine."""
    desk = Desk()
    client = desk.connect()
    count = limits.WATCHES_PER_CONNECTION_MAX
    for begin in range(0, count, 10_000):
        paths = [f"/a-path-of-usual-length/{number}" for number in range(begin, begin + 10_000)]
        desk.request(client, -8, Op.SET_WATCHES, set_watches(paths))
        desk.turn()
    assert len(desk.front_end.watches) == count
    # Each look at the clock takes half of the time that there is.
    desk.clock_step_s = limits.BACKLOG_S / 2
    began_s = time.thread_time()
    desk.front_end.drop(client)
    longest_s, turns = time.thread_time() - began_s, 0
    while len(desk.front_end.watches):
        began_s = time.thread_time()
        desk.turn()
        longest_s = max(longest_s, time.thread_time() - began_s)
        turns += 1
    assert longest_s < 0.05
    assert turns > 20
    assert not desk.front_end.busy


def get(path: str) -> bytes:
    return framed(jute.REQUEST_HEADER.pack(1, Op.GET_DATA) + jute.pack_text(path) + b"\0")


def put(path: str, size: int) -> bytes:
    body = jute.pack_text(path) + jute.pack_buffer(bytes(size)) + jute.pack_int(-1)
    return framed(jute.REQUEST_HEADER.pack(1, Op.SET_DATA) + body)


def with_big_node(size: int = 1_000_000) -> Desk:
    desk = Desk(session_timeout_ms_max=1_000_000)
    desk.create(desk.connect(), "/big", bytes(size))
    return desk


def test_answers_that_nobody_fetches_are_not_made() -> None:
    desk = with_big_node()
    client = desk.connect()
    desk.feed(client, get("/big") * 100)
    for _ in range(10):
        desk.turn()
    assert len(client.out) < 1_001_000, "one was made, and the others wait"
    assert not desk.front_end.may_read(client)
    answers = []
    for _ in range(100):
        answers += desk.fetch(client)
        desk.turn()
    assert [len(body) for _, _, body in answers] == [1_000_000 + 4 + 68] * 100
    assert desk.front_end.may_read(client)


def test_a_client_that_does_not_fetch_does_not_hold_the_others_up() -> None:
    desk = with_big_node()
    greedy = [desk.connect() for _ in range(60)]
    for client in greedy:
        desk.feed(client, get("/big") * 12)
    held = sum(len(client.out) for client in greedy)
    assert limits.ALL_UNSENT_BYTES_EXTREME < held < limits.ALL_UNSENT_BYTES_EXTREME + 1_001_000
    assert desk.front_end.pressure.unsent == held
    honest = desk.connect()
    desk.feed(honest, get("/zookeeper"))
    desk.turn(limits.STALLED_EXTREME_S / 2)
    assert not any(client.closed for client in greedy)
    for _ in range(10):
        desk.turn(limits.STALLED_EXTREME_S)
        assert desk.front_end.pressure.unsent < limits.ALL_UNSENT_BYTES_EXTREME + 1_001_000
    assert len(desk.fetch(honest)) == 1
    gone = [client.closed for client in greedy]
    assert 10 < sum(gone) < 60, "some had to go, and no more than needed"
    for _ in range(20):
        # Those that fetch are served.
        for client in greedy:
            desk.fetch(client)
        desk.turn()
        desk.turn(limits.PRESSURE_INTERVAL_S)
    assert [client.closed for client in greedy] == gone
    assert desk.front_end.pressure.unsent == 0


def test_nobody_counts_as_stalled_for_having_been_idle() -> None:
    desk = with_big_node()
    clients = [desk.connect() for _ in range(30)]
    desk.turn(1_000)
    for client in clients:
        desk.feed(client, get("/big"))
    desk.turn(limits.PRESSURE_INTERVAL_S)
    assert desk.front_end.pressure.high
    assert not any(client.closed for client in clients)


def test_who_fetches_slowly_is_not_closed_for_others() -> None:
    desk = with_big_node()
    slow = [desk.connect() for _ in range(30)]
    for client in slow:
        desk.feed(client, get("/big"))
    for _ in range(100):
        for client in slow:
            del client.out[:5_000]
            desk.front_end.flushed(client, moved=True, unsent=0)
        desk.turn(0.09)
    assert not any(client.closed for client in slow)


def test_what_is_encrypted_and_not_fetched_counts_like_other_answers() -> None:
    """With TLS, nothing may be left in `out`, and the client has got nothing all the same."""
    desk = Desk()
    clients = [desk.connect() for _ in range(150)]
    idle = desk.connect()

    def encrypt_all() -> None:
        for client in clients:
            if not client.closed:
                count = client.unsent
                client.out.clear()
                desk.front_end.flushed(client, moved=False, unsent=count)

    for client in clients:
        desk.front_end.send(client, bytes(60_000))
    encrypt_all()
    assert desk.front_end.pressure.unsent == desk.front_end.pressure.held == 150 * 60_000
    assert desk.front_end.pressure.high
    desk.feed(clients[0], get("/zookeeper"))
    assert not clients[0].out
    desk.turn(limits.STALLED_S / 2)
    for client in clients:
        desk.front_end.sessions.ping(client)
    encrypt_all()
    assert not any(client.closed for client in clients)
    desk.turn(limits.STALLED_S / 2 + limits.PRESSURE_INTERVAL_S)
    gone = sum(client.closed for client in clients)
    assert 0 < gone < 150
    assert not idle.closed
    for client in clients:
        if not client.closed:
            desk.front_end.flushed(client, moved=True, unsent=0)
    assert desk.front_end.pressure.held == desk.front_end.pressure.unsent == 0


def test_twice_as_much_as_there_may_be_ends_the_heaviest_at_once() -> None:
    desk = Desk()
    clients = [desk.connect() for _ in range(4)]
    for client, size in zip(clients, (12, 3, 11, 2), strict=True):
        desk.front_end.send(client, bytes(size << 20))
    desk.turn(limits.PRESSURE_INTERVAL_S)
    assert not any(client.closed for client in clients)
    desk.front_end.send(clients[0], bytes(5 << 20))
    desk.turn(limits.PRESSURE_INTERVAL_S)
    assert [client.closed for client in clients] == [True, False, True, False]


def test_requests_of_one_connection_are_bounded_in_bytes() -> None:
    desk = with_big_node()
    client = desk.connect()
    desk.executing = False
    desk.feed(client, put("/big", 900_000) * 10)
    assert client.outstanding == 3
    assert client.request_bytes < limits.REQUEST_BYTES_MAX + 1_000_000
    assert not desk.front_end.may_read(client)
    desk.executing = True
    for _ in range(20):
        desk.execute()
        desk.turn()
    assert len(desk.fetch(client)) == 10
    assert client.request_bytes == 0
    desk.turn()
    assert desk.front_end.pressure.held == 0


def test_requests_of_all_connections_are_bounded_in_bytes() -> None:
    desk = with_big_node()
    clients = [desk.connect() for _ in range(60)]
    desk.executing = False
    for client in clients:
        if desk.front_end.may_read(client):
            desk.feed(client, put("/big", 900_000) + get("/zookeeper") + put("/big", 900_000))
    assert desk.front_end.pressure.held <= limits.ALL_HELD_BYTES_EXTREME + 2_000_000
    assert desk.front_end.log_session.waiting_bytes <= limits.ORDERED_BYTES_MAX + 1_000_000
    assert not desk.front_end.may_read(desk.admit())


def test_what_was_read_is_executed_however_much_is_held() -> None:
    """Otherwise everybody would wait for everybody."""
    desk = with_big_node()
    clients = [desk.connect() for _ in range(60)]
    desk.executing = False
    for client in clients:
        # A read behind a write, and long writes behind the read: all of it is queued.
        desk.feed(client, put("/big", 10) + get("/zookeeper") + put("/big", 900_000) * 2)
    assert desk.front_end.pressure.extreme
    desk.executing = True
    for _ in range(100):
        desk.execute()
        desk.turn()
        for client in clients:
            if not client.closed:
                desk.fetch(client)
    assert not any(client.closed for client in clients)
    assert [client.received for client in clients] == [5] * 60
    assert all(client.sent == 5 for client in clients)


def test_pings_are_requests_too() -> None:
    desk = Desk()
    client = desk.connect()
    desk.executing = False
    desk.feed(client, framed(jute.REQUEST_HEADER.pack(-2, Op.PING)) * 1_000)
    desk.turn()
    assert client.pings == limits.REQUESTS_MAX
    assert not client.readable
    desk.executing = True
    for _ in range(20):
        desk.execute()
        desk.turn(0.3)
        desk.fetch(client)
    assert client.pings == 0
    assert client.received == 1_001
    assert client.readable


def test_many_that_ask_for_sessions_and_go_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDERED_MAX", 10)
    desk = Desk()
    desk.executing = False
    client = desk.connect_later()
    for _ in range(20):
        stranger = desk.connect_later()
        desk.front_end.drop(stranger)
    assert desk.front_end.full
    assert not desk.front_end.may_read(desk.admit())
    desk.executing = True
    desk.execute()
    desk.turn()
    assert not desk.front_end.full
    assert client.session


def test_long_requests_arrive_a_few_at_a_time_and_all_of_them() -> None:
    desk = with_big_node()
    clients = [desk.connect() for _ in range(40)]
    request = put("/big", 900_000)
    position = dict.fromkeys(clients, 0)
    most = 0
    for _ in range(10_000):
        for client, begin in list(position.items()):
            if desk.front_end.may_read(client):
                desk.feed(client, request[begin : begin + 65_536])
                position[client] = begin + 65_536
                if begin + 65_536 >= len(request):
                    del position[client]
        most = max(most, desk.front_end.uploads.reserved)
        desk.turn()
        if not position:
            break
    assert not position
    assert limits.UPLOAD_BYTES_MAX - 1_000_000 < most <= limits.UPLOAD_BYTES_MAX
    desk.turn()
    assert all(len(desk.fetch(client)) == 1 for client in clients)
    assert desk.front_end.uploads.reserved == 0


def test_a_long_request_that_does_not_come_loses_its_room_when_others_wait() -> None:
    desk = with_big_node()
    request = put("/big", 900_000)
    slow = [desk.connect() for _ in range(limits.UPLOAD_BYTES_MAX // 900_000)]
    for client in slow:
        desk.feed(client, request[:1_000])
    desk.turn(100)
    assert not any(client.closed for client in slow), "nobody waits"
    honest = desk.connect()
    desk.feed(honest, request[:65_536])
    assert not desk.front_end.may_read(honest)
    desk.turn(1)
    assert all(client.closed for client in slow)
    assert desk.front_end.may_read(honest)
    desk.feed(honest, request[65_536:])
    desk.turn()
    assert len(desk.fetch(honest)) == 1


def test_not_everybody_can_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UPLOADS_WAITING_MAX", 3)
    monkeypatch.setattr(limits, "UPLOAD_BYTES_MAX", 1_000_000)
    desk = with_big_node(1)
    clients = [desk.connect() for _ in range(5)]
    for client in clients:
        desk.feed(client, put("/big", 900_000)[:1_000])
    assert [client.closed for client in clients] == [False] * 4 + [True]
    desk.front_end.drop(clients[0])
    assert [desk.front_end.may_read(client) for client in clients[1:4]] == [True, False, False]


def test_several_reads_in_one_request_have_an_answer_of_bounded_length() -> None:
    desk = with_big_node()
    client = desk.connect()
    part = jute.MULTI_HEADER.pack(Op.GET_DATA, False, -1) + jute.pack_text("/big") + b"\0"
    end = jute.MULTI_HEADER.pack(-1, True, -1)
    desk.request(client, 1, Op.MULTI_READ, part * 4 + end)
    desk.request(client, 2, Op.MULTI_READ, part * 5 + end)
    found: list[tuple[int, int]] = []
    for _ in range(3):
        found += [(xid, error) for xid, error, _ in desk.fetch(client)]
        desk.turn()
    assert found == [(1, Code.OK), (2, Code.BAD_ARGUMENTS)]
    assert not client.closed


def test_the_gateway_serves_the_coordination_service_only() -> None:
    with pytest.raises(ConfigurationError, match="the coordination service only"):
        make_gateway(mock.Mock(application=KeyValueStore()), {})


def test_strangers_come_to_simulated_front_ends_and_do_no_harm() -> None:
    outcome = run_seed(Job(4, 1, 1, app="coordination", packing="site"))

    assert outcome.violation is None, outcome.detail
    assert {"crowd", "deaf_client", "many_watches", "odd_requests", "torrent", "unended_uploads"} <= set(outcome.faults)
