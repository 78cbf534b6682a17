"""The native client: verbs, watches, recipes, and the command line, on a live cluster."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tara.apps.coordination.acl import digest_id
from tara.apps.coordination.async_client import AsyncCoordinationClient, digest_acl
from tara.apps.coordination.async_recipes import AsyncElection, AsyncLock
from tara.apps.coordination.client import CoordinationClient
from tara.apps.coordination.codes import Event
from tara.apps.coordination.errors import BadVersion, ConnectionLoss, NoAuth, NodeExists, NoNode, NotEmpty, SessionLost
from tara.apps.coordination.wire_client import State, WatchEvent
from tara.live.spark import Cluster
from tara.protocol.errors import ConfigurationError, TaraError
from tests.apps.coordination.live import serving
from tests.patience import DEADLINE_S, await_condition

pytestmark = pytest.mark.spark


@pytest.fixture
def client(hosts: str) -> Iterator[CoordinationClient]:
    with CoordinationClient(hosts) as started:
        yield started


@pytest.fixture
def other(hosts: str) -> Iterator[CoordinationClient]:
    with CoordinationClient(hosts) as started:
        yield started


@pytest.fixture
def path(client: CoordinationClient) -> str:
    return client.create(f"/native-{uuid.uuid4().hex[:8]}")


def test_the_verbs(client: CoordinationClient, path: str) -> None:
    assert client.create(f"{path}/a", b"one") == f"{path}/a"
    value, stat = client.get(f"{path}/a")
    assert (value, stat.version) == (b"one", 0)
    assert client.set(f"{path}/a", b"two", version=0).version == 1
    assert client.exists(f"{path}/none") is None
    assert client.create(f"{path}/s-", sequence=True, ephemeral=True) == f"{path}/s-0000000001"
    assert client.create(f"{path}/deep/er", makepath=True) == f"{path}/deep/er"
    assert client.create(f"{path}/box", container=True)
    assert client.create(f"{path}/ttl", ttl_ms=3_600_000)
    names, parent = client.get_children(path, include_data=True)
    assert names == ["a", "box", "deep", "s-0000000001", "ttl"]
    assert parent.num_children == 5
    client.sync(path)
    client.delete(path, recursive=True)
    assert client.exists(path) is None


def test_errors_have_types_and_name_the_path(client: CoordinationClient, path: str) -> None:
    with pytest.raises(NodeExists, match=path):
        client.create(path)
    with pytest.raises(NoNode):
        client.get(f"{path}/none")
    with pytest.raises(BadVersion):
        client.set(path, b"", version=7)
    client.create(f"{path}/a")
    with pytest.raises(NotEmpty):
        client.delete(path)
    with pytest.raises(ConfigurationError, match="host:port"):
        CoordinationClient("nonsense")
    nobody = CoordinationClient("127.0.0.1:1")
    with pytest.raises(ConnectionLoss):
        nobody.start(timeout_s=0.3)
    nobody.stop()


def test_access_lists(client: CoordinationClient, other: CoordinationClient, path: str) -> None:
    client.add_auth("digest", "ann:secret")
    client.create(f"{path}/mine", b"x", acl=digest_acl("ann", "secret"))
    with pytest.raises(NoAuth):
        other.set(f"{path}/mine", b"y")
    acl, _ = client.get_acls(f"{path}/mine")
    assert acl == digest_acl("ann", "secret")
    client.set_acls(f"{path}/mine", ((31, "world", "anyone"),))
    other.sync()
    other.set(f"{path}/mine", b"y")


def test_transactions(client: CoordinationClient, path: str) -> None:
    with pytest.raises(BadVersion), client.transaction() as bad:
        bad.create(f"{path}/a")
        bad.check(path, 5)
    assert client.get_children(path) == []
    good = client.transaction()
    good.create(f"{path}/a", b"1")
    good.set_data(f"{path}/a", b"2")
    good.delete(f"{path}/a")
    created, stat, nothing = good.commit()
    assert (created, nothing) == (f"{path}/a", None)
    assert stat is not None


def test_watches(client: CoordinationClient, other: CoordinationClient, path: str) -> None:
    once: list[WatchEvent] = []
    always: list[WatchEvent] = []
    client.exists(f"{path}/a", watch=once.append)
    client.get_children(path, watch=once.append)
    client.add_watch(path, always.append, recursive=True)
    other.create(f"{path}/a")
    other.set(f"{path}/a", b"x")
    await_condition(lambda: len(once) == 2 and len(always) == 2, "two events each")
    assert once == [(Event.CREATED, f"{path}/a"), (Event.CHILDREN_CHANGED, path)]
    assert [event.event for event in always] == [Event.CREATED, Event.DATA_CHANGED]
    client.remove_watches(path)
    other.set(f"{path}/a", b"y")
    client.sync()
    assert len(always) == 2


def test_a_watch_callback_may_use_the_client_and_even_wait_for_a_lock(
    client: CoordinationClient, other: CoordinationClient, path: str
) -> None:
    done = threading.Event()
    seen: list[object] = []

    def on_change(event: WatchEvent) -> None:
        seen.append(client.get(event.path)[0])
        with client.lock(f"{path}/lock"):
            seen.append(client.create(f"{path}/from-callback"))
        done.set()

    held = other.lock(f"{path}/lock")
    assert held.acquire()
    client.get(path, watch=on_change)
    other.set(path, b"new")
    await_condition(lambda: len(held.contenders()) == 2, "the callback to wait for the lock")
    held.release()
    assert done.wait(DEADLINE_S)
    assert seen == [b"new", f"{path}/from-callback"]


def test_the_lock_has_one_holder(client: CoordinationClient, other: CoordinationClient, path: str) -> None:
    holders: list[int] = []
    most: list[int] = []

    def work(index: int) -> None:
        for _ in range(5):
            with (client if index % 2 else other).lock(f"{path}/lock", str(index)) as lock:
                holders.append(index)
                most.append(len(holders))
                assert lock.acquired
                assert not lock.lost
                holders.remove(index)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, index) for index in range(4)]:
            future.result(DEADLINE_S)
    assert most == [1] * 20
    assert client.get_children(f"{path}/lock") == []


def test_a_lock_can_be_given_up(client: CoordinationClient, other: CoordinationClient, path: str) -> None:
    with client.lock(f"{path}/lock", "ann") as held:
        waiting = other.lock(f"{path}/lock", "bob")
        assert not waiting.acquire(blocking=False)
        assert not waiting.acquire(timeout_s=0.1)
        assert waiting.lost
        assert held.contenders() == ["ann"]
    assert waiting.acquire(timeout_s=DEADLINE_S)
    waiting.release()


def test_elections(client: CoordinationClient, other: CoordinationClient, path: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit((client if index % 2 else other).election(f"{path}/e", str(index)).run, lambda i=index: i * i)
            for index in range(3)
        ]
        assert [future.result(DEADLINE_S) for future in futures] == [0, 1, 4]


def test_asyncio(hosts: str, path: str) -> None:
    async def work() -> list[int]:
        async with AsyncCoordinationClient(hosts) as one, AsyncCoordinationClient(hosts) as two:
            changed = asyncio.Event()

            async def on_change(event: WatchEvent) -> None:
                await one.get(event.path)
                changed.set()

            await one.get(path, watch=on_change)
            await two.set(path, b"x")
            await asyncio.wait_for(changed.wait(), DEADLINE_S)
            order: list[int] = []

            async def critical(client: AsyncCoordinationClient, index: int) -> None:
                async with AsyncLock(client, f"{path}/async-lock"):
                    order.append(index)
                    await asyncio.sleep(0)
                    assert order[-1] == index

            await asyncio.gather(*(critical(one if index % 2 else two, index) for index in range(6)))

            async def lead() -> int:
                return 7

            assert await AsyncElection(one, f"{path}/async-election").run(lead) == 7
            return sorted(order)

    assert asyncio.run(work()) == list(range(6))


def test_a_client_comes_back_with_its_session_and_watches(cluster: Cluster, hosts: str, path: str) -> None:
    """The process of a site is killed; a client that was connected there goes on elsewhere."""
    first = hosts.split(",")[0]
    states: list[State] = []
    seen = threading.Event()
    with (
        CoordinationClient(first + "," + hosts.split(",")[1]) as client,
        CoordinationClient(hosts) as other,
    ):
        client.add_listener(states.append)
        session = client.session_id
        client.create(f"{path}/e", ephemeral=True)
        client.get(path, watch=lambda event: seen.set())
        for container in (0, 1):
            life = cluster.registry.state.lives[container]
            os.kill(cluster.registry.members[container].pid, signal.SIGKILL)
            await_condition(lambda c=container, life=life: cluster.registry.state.lives[c] > life, "a new process")  # type: ignore[misc]
            await_condition(lambda: serving(cluster), "all front ends to serve again")
        await_condition(lambda: states[-1:] == [State.CONNECTED], "the client to be back")
        assert client.session_id == session
        await_condition(lambda: other.state is State.CONNECTED, "the other client to be back")
        other.set(path, b"now")
        assert seen.wait(DEADLINE_S)
        assert other.exists(f"{path}/e") is not None


def test_an_expired_session_is_told_and_replaced(hosts: str, path: str) -> None:
    states: list[State] = []
    with CoordinationClient(hosts, timeout_s=4) as client, CoordinationClient(hosts) as other:
        client.add_listener(states.append)
        client.create(f"{path}/e", ephemeral=True)
        session = client.session_id
        # The loop stands still for longer than the time-out: no pings, no reading.
        client._loop.call_soon_threadsafe(time.sleep, 7.0)
        await_condition(lambda: other.exists(f"{path}/e") is None, "the end of the session")
        await_condition(lambda: State.LOST in states and states[-1] is State.CONNECTED, "a new session")
        assert client.session_id != session
        assert client.exists(f"{path}/e") is None


def test_a_stopped_client_says_so(hosts: str) -> None:
    client = CoordinationClient(hosts)
    with pytest.raises(TaraError, match="not started"):
        client.exists("/")
    client.start()
    client.stop()
    client.stop()
    with pytest.raises(TaraError, match="stopped"):
        client.exists("/")
    assert issubclass(SessionLost, TaraError)


def tara(hosts: str, *arguments: str, status: int = 0, auth: str = "") -> str:
    command = [sys.executable, "-c", "from tara.cli import main; main()", "zk", *arguments]
    environment = {**os.environ, "TARA_ZK_HOSTS": hosts, "TARA_ZK_AUTH": auth}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=DEADLINE_S, check=False)
    assert finished.returncode == status, finished.stderr
    return finished.stdout


def test_the_command_line(hosts: str, path: str) -> None:
    assert tara(hosts, "create", f"{path}/a", "hello") == f"{path}/a\n"
    assert tara(hosts, "get", "--sync", f"{path}/a") == "hello\n"
    tara(hosts, "set", f"{path}/a", "bye", "--version", "0")
    assert tara(hosts, "ls", path) == "a\n"
    assert tara(hosts, "ls", "-R", path) == f"{path}\n{path}/a\n"
    assert '"version":1' in tara(hosts, "stat", "--json", f"{path}/a")
    tara(hosts, "stat", f"{path}/none", status=1)
    tara(hosts, "get", f"{path}/none", status=2)
    command = [sys.executable, "-c", "from tara.cli import main; main()", "zk", "watch", path, "-R", "--count", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TARA_ZK_HOSTS": hosts}
    ) as watching:
        assert watching.stderr is not None
        assert "watching" in watching.stderr.readline()
        tara(hosts, "delete", "-R", f"{path}/a")
        assert watching.communicate(timeout=DEADLINE_S)[0] == f"deleted {path}/a\n"


def test_the_command_line_proves_an_identity(client: CoordinationClient, hosts: str, path: str) -> None:
    client.create(f"{path}/own", b"mine", acl=((31, "digest", digest_id(b"ann:secret")),))
    tara(hosts, "get", f"{path}/own", status=2)
    assert tara(hosts, "get", f"{path}/own", auth="bob:secret\nann:secret") == "mine\n"
