"""kazoo, a client that nobody here wrote, on a live cluster: its API, and every one of its recipes."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from kazoo import exceptions, security
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.recipe.cache import TreeCache, TreeEvent
from kazoo.recipe.lease import MultiNonBlockingLease
from kazoo.recipe.partitioner import PartitionState
from kazoo.recipe.watchers import PatientChildrenWatch

from evaluation.zookeeper_peer import four_letter_word
from tara.apps.coordination import jute
from tara.apps.coordination.codes import Code, Event, Op
from tests.apps.coordination.live import Wire, kazoo
from tests.patience import DEADLINE_S, await_condition

pytestmark = pytest.mark.spark


@pytest.fixture
def client(hosts: str) -> Iterator[KazooClient]:
    with kazoo(hosts) as started:
        yield started


@pytest.fixture
def other(hosts: str) -> Iterator[KazooClient]:
    with kazoo(",".join(reversed(hosts.split(",")))) as started:
        yield started


@pytest.fixture
def path(client: KazooClient) -> str:
    """A node of the test's own."""
    return str(client.create(f"/test-{uuid.uuid4().hex[:8]}"))


def test_nodes_live_and_die(client: KazooClient, path: str) -> None:
    created, stat = client.create(f"{path}/a", b"one", include_data=True)
    assert (created, stat.version, stat.dataLength) == (f"{path}/a", 0, 3)
    assert client.exists(f"{path}/a") == stat
    assert client.get(f"{path}/a") == (b"one", stat)
    changed = client.set(f"{path}/a", b"two!")
    assert (changed.version, changed.czxid) == (1, stat.czxid)
    assert changed.mzxid > stat.mzxid
    assert client.get_children(path, include_data=True)[0] == ["a"]
    with pytest.raises(exceptions.NotEmptyError):
        client.delete(path)
    client.delete(f"{path}/a", version=1)
    assert client.exists(f"{path}/a") is None
    with pytest.raises(exceptions.NoNodeError):
        client.get(f"{path}/a")


def test_every_kind_of_node(client: KazooClient, path: str) -> None:
    assert client.create(f"{path}/s-", sequence=True) == f"{path}/s-0000000000"
    assert client.create(f"{path}/e-", sequence=True, ephemeral=True) == f"{path}/e-0000000001"
    owner = client.exists(f"{path}/e-0000000001").ephemeralOwner
    assert owner == client.client_id[0]
    client.ensure_path(f"{path}/deep/er")
    assert client.exists(f"{path}/deep/er")
    client.delete(f"{path}/deep", recursive=True)
    assert not client.exists(f"{path}/deep")


def test_transactions_are_all_or_nothing(client: KazooClient, path: str) -> None:
    bad = client.transaction()
    bad.create(f"{path}/a")
    bad.check(path, version=9)
    assert [type(result) for result in bad.commit()] == [exceptions.RolledBackError, exceptions.BadVersionError]
    assert client.get_children(path) == []
    with client.transaction() as good:
        good.create(f"{path}/a", b"x")
        good.set_data(f"{path}/a", b"y")
        good.create(f"{path}/b")
        good.delete(f"{path}/b")
    assert client.get(f"{path}/a")[0] == b"y"


def test_access_lists(client: KazooClient, other: KazooClient, path: str) -> None:
    client.add_auth("digest", "ann:secret")
    client.create(f"{path}/mine", b"x", acl=[security.make_digest_acl("ann", "secret", all=True)])
    assert client.get(f"{path}/mine")[0] == b"x"
    other.sync(path)  # a read of another session may be behind
    with pytest.raises(exceptions.NoAuthError):
        other.get(f"{path}/mine")
    other.add_auth("digest", "ann:secret")
    assert other.get(f"{path}/mine")[0] == b"x"
    acls, stat = client.get_acls(f"{path}/mine")
    assert acls[0].id.id.startswith("ann:")
    client.set_acls(f"{path}/mine", security.OPEN_ACL_UNSAFE, version=stat.aversion)
    with pytest.raises(exceptions.InvalidACLError):
        client.create(f"{path}/bad", acl=[security.make_acl("nonsense", "x")])


def test_one_shot_watches_across_front_ends(client: KazooClient, other: KazooClient, path: str) -> None:
    seen: list[WatchedEvent] = []
    client.exists(f"{path}/a", watch=seen.append)
    client.get_children(path, watch=seen.append)
    other.create(f"{path}/a")
    await_condition(lambda: len(seen) == 2, "both events")
    client.get(f"{path}/a", watch=seen.append)
    other.set(f"{path}/a", b"1")
    other.set(f"{path}/a", b"2")
    await_condition(lambda: len(seen) == 3, "the third event")
    client.sync(path)  # the third event is of the first change; the second may not be here yet
    client.get(f"{path}/a", watch=seen.append)
    other.delete(f"{path}/a")
    await_condition(lambda: len(seen) == 4, "the fourth event")
    kinds = [event.type for event in seen]
    assert kinds == [EventType.CREATED, EventType.CHILD, EventType.CHANGED, EventType.DELETED]


def test_persistent_and_recursive_watches(hosts: str, client: KazooClient, path: str) -> None:
    def told(wire: Wire) -> tuple[Event, str]:
        answer = wire.reply()
        assert answer is not None
        assert answer[0] == -1
        reader = jute.Reader(answer[3])
        event, _, where = Event(reader.number()), reader.number(), reader.text()
        return event, where.removeprefix(path)

    with Wire(hosts.split(",")[0]) as recursive, Wire(hosts.split(",")[1]) as persistent:
        for wire, mode in ((recursive, 1), (persistent, 0)):
            assert wire.connect()
            assert wire.call(Op.SYNC, jute.pack_text(path))[0] == Code.OK
            assert wire.call(Op.ADD_WATCH, jute.pack_text(path) + jute.pack_int(mode)) == (Code.OK, jute.pack_int(0))
        client.create(f"{path}/a")
        client.set(f"{path}/a", b"x")
        client.create(f"{path}/a/b")
        client.delete(f"{path}/a/b")
        client.set(path, b"y")
        assert [told(recursive) for _ in range(5)] == [
            (Event.CREATED, "/a"),
            (Event.DATA_CHANGED, "/a"),
            (Event.CREATED, "/a/b"),
            (Event.DELETED, "/a/b"),
            (Event.DATA_CHANGED, ""),
        ]
        assert [told(persistent) for _ in range(2)] == [(Event.CHILDREN_CHANGED, ""), (Event.DATA_CHANGED, "")]
        anything = jute.pack_text(path) + jute.pack_int(3)
        assert recursive.call(Op.CHECK_WATCHES, anything)[0] == Code.OK
        assert recursive.call(Op.REMOVE_WATCHES, anything)[0] == Code.OK
        assert recursive.call(Op.REMOVE_WATCHES, anything)[0] == Code.NO_WATCHER
        client.set(path, b"z")
        assert recursive.call(Op.SYNC, jute.pack_text(path))[0] == Code.OK


def test_sync_makes_a_read_see_what_was_written_elsewhere(client: KazooClient, other: KazooClient, path: str) -> None:
    for value in range(20):
        other.set(path, str(value).encode())
        client.sync(path)
        assert client.get(path)[0] == str(value).encode()


def test_containers_and_time_to_live(hosts: str, client: KazooClient, path: str) -> None:
    with Wire(hosts.split(",")[0]) as wire:
        assert wire.connect()
        body = jute.pack_text(f"{path}/box") + jute.pack_buffer(b"") + jute.pack_acl(((31, "world", "anyone"),))
        assert wire.call(Op.CREATE_CONTAINER, body + jute.pack_int(4))[0] == Code.OK
        body = jute.pack_text(f"{path}/ttl") + jute.pack_buffer(b"") + jute.pack_acl(((31, "world", "anyone"),))
        assert wire.call(Op.CREATE_TTL, body + jute.pack_int(5) + jute.pack_long(300))[0] == Code.OK
        client.create(f"{path}/box/child")
        client.delete(f"{path}/box/child")
        await_condition(lambda: client.get_children(path) == [], "both to be gone")


def test_an_expired_session_loses_its_nodes_and_a_watch_tells(hosts: str, client: KazooClient, path: str) -> None:
    gone = threading.Event()
    with Wire(hosts.split(",")[1]) as wire:
        assert wire.connect(timeout_ms=4_000)
        assert wire.timeout_ms == 4_000
        heard_s = time.monotonic()
        assert wire.create(f"{path}/e", flags=1) == Code.OK
        client.sync(path)
        assert client.exists(f"{path}/e", watch=lambda event: gone.set())
    assert gone.wait(DEADLINE_S)
    # It has had its time. How much longer it takes until its end is noticed and told is the machine's.
    assert time.monotonic() - heard_s > 3.5
    with Wire(hosts.split(",")[0]) as late:
        assert not late.connect(session=wire.session, password=wire.password)
        assert late.timeout_ms == 0


def test_a_session_moves_to_another_front_end(hosts: str, path: str) -> None:
    first_address, second_address, _ = hosts.split(",")
    with Wire(first_address) as first, Wire(second_address) as second, Wire(second_address) as thief:
        assert first.connect()
        assert first.create(f"{path}/e", flags=1) == Code.OK
        assert second.connect(session=first.session, password=first.password)
        assert second.session == first.session
        assert first.receive() is None
        assert second.call(Op.GET_EPHEMERALS, jute.pack_text(path))[1] == jute.pack_texts([f"{path}/e"])
        assert not thief.connect(session=first.session, password=b"x" * 16)
        assert second.create(f"{path}/f") == Code.OK


def test_a_client_that_has_seen_the_future_is_refused(hosts: str) -> None:
    with Wire(hosts.split(",")[0]) as wire:
        assert not wire.connect(last_zxid=1 << 60)
    with Wire(hosts.split(",")[0]) as wire, Wire(hosts.split(",")[1]) as other:
        assert wire.connect()
        assert not other.connect(last_zxid=1 << 60, session=wire.session, password=wire.password)


def test_pipelined_requests_are_answered_in_order(hosts: str, path: str) -> None:
    with Wire(hosts.split(",")[0]) as wire:
        assert wire.connect()
        for xid in range(1, 301):
            if xid % 3:
                data = str(xid).encode()
                wire.request(xid, Op.SET_DATA, jute.pack_text(path) + jute.pack_buffer(data) + jute.pack_int(-1))
            else:
                wire.request(xid, Op.GET_DATA, jute.pack_text(path) + b"\0")
        zxids = []
        for xid in range(1, 301):
            answer = wire.reply()
            assert answer is not None
            assert (answer[0], answer[2]) == (xid, Code.OK)
            zxids.append(answer[1])
            if xid % 3 == 0:
                assert jute.Reader(answer[3]).buffer() == str(xid - 1).encode()
        assert zxids == sorted(zxids)


def test_a_client_sees_the_event_before_the_answer_with_the_new_state(hosts: str, path: str) -> None:
    with Wire(hosts.split(",")[0]) as watcher, Wire(hosts.split(",")[1]) as writer:
        assert watcher.connect()
        assert writer.connect()
        for value in range(50):
            watcher.call(Op.GET_DATA, jute.pack_text(path) + b"\1")
            body = jute.pack_text(path) + jute.pack_buffer(str(value).encode()) + jute.pack_int(-1)
            writer.request(7, Op.SET_DATA, body)
            told = False
            for xid in range(1000, 20_000):
                watcher.request(xid, Op.GET_DATA, jute.pack_text(path) + b"\0")
                answer = watcher.reply()
                assert answer is not None
                if answer[0] == -1:
                    told = True
                    answer = watcher.reply()
                    assert answer is not None
                if jute.Reader(answer[3]).buffer() == str(value).encode():
                    break
            assert told
            assert writer.reply() is not None


def test_missed_events_are_told_when_watches_are_set_again(hosts: str, client: KazooClient, path: str) -> None:
    for name in ("same", "changed", "deleted"):
        client.create(f"{path}/{name}")
    with Wire(hosts.split(",")[0]) as wire, Wire(hosts.split(",")[1]) as again:
        assert wire.connect()
        client.sync(path)
        last_zxid = client.get(path)[1].pzxid
        client.set(f"{path}/changed", b"x")
        client.delete(f"{path}/deleted")
        client.create(f"{path}/created")
        assert again.connect(session=wire.session, password=wire.password, last_zxid=last_zxid)
        body = jute.pack_long(last_zxid)
        body += jute.pack_texts([f"{path}/same", f"{path}/changed", f"{path}/deleted"])
        body += jute.pack_texts([f"{path}/created", f"{path}/not-yet"])
        body += jute.pack_texts([path, f"{path}/same"])
        again.request(-8, Op.SET_WATCHES, body)
        told = []
        while (answer := again.reply()) is not None and answer[0] == -1:
            reader = jute.Reader(answer[3])
            told.append((Event(reader.number()), reader.number(), reader.text()))
        assert told == [
            (Event.DATA_CHANGED, 3, f"{path}/changed"),
            (Event.DELETED, 3, f"{path}/deleted"),
            (Event.CREATED, 3, f"{path}/created"),
            (Event.CHILDREN_CHANGED, 3, path),
        ]
        client.create(f"{path}/not-yet")
        answer = again.reply()
        assert answer is not None
        assert answer[0] == -1


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x04abcd",
        b"\0\0\0\x02ab",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_garbage_closes_that_connection_only(hosts: str, client: KazooClient, garbage: bytes) -> None:
    for address in hosts.split(","):
        with Wire(address) as wire:
            wire.socket.sendall(garbage)
            assert wire.receive() is None
        with Wire(address) as wire:
            assert wire.connect()
            wire.socket.sendall(garbage)
            assert wire.receive() is None
    assert client.connected
    assert client.exists("/")


def test_a_malformed_body_is_answered_and_closed(hosts: str) -> None:
    for op in (Op.GET_DATA, Op.SET_DATA, Op.MULTI):
        with Wire(hosts.split(",")[0]) as wire:
            assert wire.connect()
            assert wire.call(op, b"\0\0\0\x50/x")[0] == Code.MARSHALLING_ERROR
            assert wire.receive() is None


def test_unknown_operations_get_an_error(hosts: str) -> None:
    with Wire(hosts.split(",")[0]) as wire:
        assert wire.connect()
        assert wire.call(4711)[0] == Code.UNIMPLEMENTED
        assert wire.call(Op.RECONFIG)[0] == Code.RECONFIG_DISABLED


def test_the_largest_request(hosts: str, path: str) -> None:
    def body(size: int) -> bytes:
        return jute.pack_text(path) + jute.pack_buffer(bytes(size)) + jute.pack_int(-1)

    overhead = len(body(0)) + 8
    with Wire(hosts.split(",")[0]) as wire:
        assert wire.connect()
        assert wire.call(Op.SET_DATA, body(0xFFFFF - overhead))[0] == Code.OK
        assert len(wire.call(Op.GET_DATA, jute.pack_text(path) + b"\0")[1]) == 4 + 0xFFFFF - overhead + 68
        # It is refused for its length, maybe before all of it is sent.
        with suppress(ConnectionResetError):
            wire.request(2, Op.SET_DATA, body(0xFFFFF - overhead + 1))
            assert wire.receive() is None


def test_four_letter_words(hosts: str, client: KazooClient) -> None:
    address = hosts.split(",")[0]
    assert four_letter_word(address, b"ruok") == "imok"
    assert four_letter_word(address, b"isro") == "rw\n"
    assert "Mode: " in four_letter_word(address, b"srvr")
    assert "zk_znode_count\t" in four_letter_word(address, b"mntr")
    assert "Clients:" in four_letter_word(address, b"stat")
    assert "tickTime=3000" in four_letter_word(address, b"conf")
    for word in (b"cons", b"dump", b"wchs", b"envi"):
        assert four_letter_word(address, word)
    assert client.server_version()[:2] == (3, 8)


def test_who_am_i_and_counting(hosts: str, client: KazooClient, path: str) -> None:
    client.ensure_path(f"{path}/a/b")
    client.ensure_path(f"{path}/c")
    with Wire(hosts.split(",")[0]) as wire:
        assert wire.connect()
        wire.call(Op.SYNC, jute.pack_text(path))
        assert wire.call(Op.GET_ALL_CHILDREN_NUMBER, jute.pack_text(path))[1] == jute.pack_int(3)
        assert wire.call(Op.WHO_AM_I)[1] == b"\0\0\0\1" + jute.pack_text("ip") + jute.pack_text("127.0.0.1")


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return [future.result(timeout=DEADLINE_S) for future in [pool.submit(work, index) for index in range(count)]]


def test_lock(client: KazooClient, other: KazooClient, path: str) -> None:
    holders: list[int] = []
    worst: list[int] = []

    def work(index: int) -> None:
        for _ in range(3):
            with (client if index % 2 else other).Lock(f"{path}/lock", str(index)):
                holders.append(index)
                worst.append(len(holders))
                holders.remove(index)

    in_threads(4, work)
    assert max(worst) == 1
    assert len(worst) == 12


def test_read_and_write_locks(client: KazooClient, other: KazooClient, path: str) -> None:
    with client.ReadLock(f"{path}/lock"), other.ReadLock(f"{path}/lock"):
        assert not client.WriteLock(f"{path}/lock").acquire(blocking=False)
    with client.WriteLock(f"{path}/lock"):
        assert not other.ReadLock(f"{path}/lock").acquire(blocking=False)


def test_semaphore(client: KazooClient, other: KazooClient, path: str) -> None:
    with client.Semaphore(f"{path}/s", max_leases=2), other.Semaphore(f"{path}/s", max_leases=2):
        third = client.Semaphore(f"{path}/s", max_leases=2)
        assert not third.acquire(blocking=False)
    assert third.acquire(timeout=DEADLINE_S)
    third.release()


def test_election(client: KazooClient, other: KazooClient, path: str) -> None:
    led: list[int] = []
    in_threads(
        4, lambda index: (client if index % 2 else other).Election(f"{path}/e", str(index)).run(led.append, index)
    )
    assert sorted(led) == [0, 1, 2, 3]


def test_barriers(client: KazooClient, other: KazooClient, path: str) -> None:
    barrier = client.Barrier(f"{path}/b")
    barrier.create()
    other.sync(path)  # a read of another session may be behind
    assert not other.Barrier(f"{path}/b").wait(timeout=0.1)
    barrier.remove()
    assert other.Barrier(f"{path}/b").wait(timeout=DEADLINE_S)
    entered: list[int] = []

    def work(index: int) -> None:
        double = (client if index % 2 else other).DoubleBarrier(f"{path}/d", 3, str(index))
        double.enter()
        entered.append(index)
        double.leave()

    in_threads(3, work)
    assert sorted(entered) == [0, 1, 2]


def test_counter(client: KazooClient, other: KazooClient, path: str) -> None:
    counters = [client.Counter(f"{path}/c"), other.Counter(f"{path}/c")]

    def work(index: int) -> None:
        for _ in range(10):
            counters[index] += 1

    in_threads(2, work)
    client.sync(path)
    assert client.Counter(f"{path}/c").value == 20


def test_parties(client: KazooClient, other: KazooClient, path: str) -> None:
    for kind in ("Party", "ShallowParty"):
        party, guest = (getattr(c, kind)(f"{path}/{kind}", name) for c, name in ((client, "ann"), (other, "bob")))
        party.join()
        guest.join()
        client.sync(path)
        assert sorted(party) == ["ann", "bob"]
        guest.leave()
        client.sync(path)
        assert list(party) == ["ann"]


def test_queues(client: KazooClient, other: KazooClient, path: str) -> None:
    queue = client.Queue(f"{path}/q")
    for value in (b"one", b"two"):
        queue.put(value)
    queue.put(b"zero", priority=1)
    other.sync(path)
    assert [other.Queue(f"{path}/q").get() for _ in range(4)] == [b"zero", b"one", b"two", None]
    locking = client.LockingQueue(f"{path}/lq")
    locking.put(b"job")
    taker = other.LockingQueue(f"{path}/lq")
    assert taker.get(timeout=DEADLINE_S) == b"job"
    assert taker.consume()


def test_partitioner(client: KazooClient, other: KazooClient, path: str) -> None:
    partitioners = [
        c.SetPartitioner(f"{path}/sp", set(range(4)), identifier=name, time_boundary=0.1)
        for c, name in ((client, "ann"), (other, "bob"))
    ]

    def settled() -> bool:
        for partitioner in partitioners:
            if partitioner.release:
                partitioner.release_set()
            elif partitioner.allocating:
                partitioner.wait_for_acquire(0.1)
        return all(partitioner.state == PartitionState.ACQUIRED for partitioner in partitioners)

    await_condition(
        lambda: settled() and sorted(x for p in partitioners for x in p) == [0, 1, 2, 3], "a division of the set"
    )
    for partitioner in partitioners:
        partitioner.finish()


def test_leases(client: KazooClient, other: KazooClient, path: str) -> None:
    import datetime

    minute = datetime.timedelta(minutes=1)
    assert client.NonBlockingLease(f"{path}/l", minute, identifier="ann")
    other.sync(path)
    assert not other.NonBlockingLease(f"{path}/l", minute, identifier="bob")
    assert MultiNonBlockingLease(client, 2, f"{path}/m", minute, identifier="ann")
    other.sync(path)
    assert MultiNonBlockingLease(other, 2, f"{path}/m", minute, identifier="bob")


def test_data_and_children_watches(client: KazooClient, other: KazooClient, path: str) -> None:
    data: list[bytes | None] = []
    children: list[list[str]] = []
    client.DataWatch(f"{path}/d", lambda value, stat: data.append(value))
    client.ChildrenWatch(path, lambda names: children.append(sorted(names)))
    other.create(f"{path}/d", b"1")
    await_condition(lambda: data[-1:] == [b"1"] and children[-1:] == [["d"]], "creation")
    other.set(f"{path}/d", b"2")
    await_condition(lambda: data[-1:] == [b"2"], "change")
    other.delete(f"{path}/d")
    await_condition(lambda: data[-1:] == [None] and children[-1:] == [[]], "deletion")
    patient = PatientChildrenWatch(client, path, 0.05).start()
    assert patient.get(timeout=DEADLINE_S)[0] == []


def test_tree_cache(client: KazooClient, other: KazooClient, path: str) -> None:
    cache = TreeCache(client, path)
    events: list[int] = []
    cache.listen(lambda event: events.append(event.event_type))
    cache.start()
    await_condition(lambda: TreeEvent.INITIALIZED in events, "the cache to be ready")
    other.create(f"{path}/a", b"x")
    await_condition(lambda: cache.get_data(f"{path}/a") is not None, "the node in the cache")
    assert cache.get_data(f"{path}/a").data == b"x"
    cache.close()


def test_a_lost_front_end_is_only_a_pause(hosts: str, path: str) -> None:
    """The socket is cut under kazoo; it comes back elsewhere with its session, its nodes and its watches."""
    states: list[str] = []
    seen = threading.Event()
    with kazoo(hosts) as client, kazoo(hosts) as writer:
        client.add_listener(states.append)
        client.create(f"{path}/e", ephemeral=True)
        client.get(path, watch=lambda event: seen.set())
        session = client.client_id[0]
        client._connection._socket.shutdown(2)
        await_condition(lambda: states[-1:] == [KazooState.CONNECTED], "kazoo to be back")
        assert client.client_id[0] == session
        writer.set(path, b"now")
        assert seen.wait(DEADLINE_S)
        assert writer.exists(f"{path}/e")
