"""The order of requests and answers, and its bounds, without sockets."""

import time

from tara.coordination import jute, limits
from tara.coordination.codes import Code, Op
from tara.coordination.gateway.connection import Connection
from tests.coordination.desk import Desk, framed

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
    began_s = time.thread_time()
    desk.front_end.drop(client)
    longest_s, turns = time.thread_time() - began_s, 0
    while len(desk.front_end.watches):
        began_s = time.thread_time()
        desk.turn()
        longest_s = max(longest_s, time.thread_time() - began_s)
        turns += 1
    assert longest_s < 0.05
    assert turns == count // limits.SWEPT_PER_TURN
    assert not desk.front_end.busy
