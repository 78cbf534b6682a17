"""Under fire: clients hold locks, lead, watch and own ephemeral nodes while the processes of the sites are killed."""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from tara.apps.coordination import jute
from tara.apps.coordination.codes import Code, Op
from tara.live.spark import Cluster
from tests.apps.coordination.live import Wire, kazoo, serving
from tests.patience import DEADLINE_S, await_condition

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LOCKERS = 20
CANDIDATES = 5
WATCHERS = 3


class Tenure:
    """Who holds something, and since when: from when it is granted until it is given back, or until the client learns
    that it is cut off, when it must stop."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holders: dict[str, float] = {}
        self.history: list[tuple[float, float, str]] = []

    def begin(self, name: str) -> None:
        with self._guard:
            self._holders[name] = time.monotonic()

    def end(self, name: str) -> None:
        with self._guard:
            since = self._holders.pop(name, None)
            if since is not None:
                self.history.append((since, time.monotonic(), name))

    def overlaps(self) -> list[object]:
        ordered = sorted(self.history)
        return [pair for pair in itertools.pairwise(ordered) if pair[0][1] > pair[1][0]]


class Crowd:
    """Clients on threads of their own, until they are told to stop."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self.stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def add(
        self, name: str, work: Callable[[KazooClient], None], on_cut_off: Callable[[], None] = lambda: None
    ) -> None:
        def run() -> None:
            try:
                retry = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}
                with kazoo(self._hosts, connection_retry=retry, randomize_hosts=True) as client:
                    client.add_listener(lambda state: on_cut_off() if state != KazooState.CONNECTED else None)
                    while not self.stop.is_set():
                        with contextlib.suppress(KazooException, KazooTimeoutError):
                            work(client)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def finish(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.errors == []


@pytest.fixture
def crowd(hosts: str) -> Iterator[Crowd]:
    made = Crowd(hosts)
    yield made
    made.stop.set()


def active_proposer(cluster: Cluster) -> int:
    for container, member in enumerate(cluster.registry.members):
        if member.status.get("partitions", {}).get("0", {}).get("proposer", {}).get("mode") == "active":
            return container
    return 0


def kill(cluster: Cluster, container: int) -> None:
    """End the process; come back when Spark has started it again and it serves."""
    life = cluster.registry.state.lives[container]
    os.kill(cluster.registry.members[container].pid, signal.SIGKILL)
    await_return(cluster, container, life)


def await_return(cluster: Cluster, container: int, life: int) -> None:
    await_condition(lambda: cluster.registry.state.lives[container] > life, "Spark to start the container again")
    await_condition(lambda: serving(cluster), "all front ends to serve again")


def test_locks_leaders_watches_and_ephemerals_while_every_site_is_killed(
    cluster: Cluster, hosts: str, crowd: Crowd
) -> None:
    locks, leaders = Tenure(), Tenure()
    seen: list[int] = [0] * WATCHERS
    written = [0]
    paused = threading.Event()
    retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=0.5)
    with kazoo(hosts) as admin:
        admin.create("/fire")
        admin.create("/fire/value", b"0")
        admin.create("/fire/members")

    def lock(name: str) -> Callable[[KazooClient], None]:
        def work(client: KazooClient) -> None:
            mine = client.Lock("/fire/lock", name)
            if not mine.acquire(timeout=5):
                return
            try:
                locks.begin(name)
                client.exists("/fire/lock")
                time.sleep(0.005)
            finally:
                locks.end(name)
                mine.release()

        return work

    def lead(name: str) -> Callable[[KazooClient], None]:
        def reign() -> None:
            leaders.begin(name)
            time.sleep(0.05)
            leaders.end(name)

        def work(client: KazooClient) -> None:
            client.Election("/fire/election", name).run(reign)

        return work

    def watch(index: int) -> Callable[[KazooClient], None]:
        def work(client: KazooClient) -> None:
            """Reads again only when it is told to: a lost event would leave it behind for good."""
            changed = threading.Event()

            def read() -> None:
                value, _ = retry(client.get, "/fire/value", watch=lambda event: changed.set())
                assert int(value) >= seen[index], "time ran backwards"
                seen[index] = int(value)

            read()
            while not crowd.stop.is_set():
                if changed.wait(0.1):
                    changed.clear()
                    read()

        return work

    def write(client: KazooClient) -> None:
        if paused.is_set():
            time.sleep(0.02)
            return
        retry(client.set, "/fire/value", str(written[0] + 1).encode())
        written[0] += 1
        paused.wait(0.02)

    def join(client: KazooClient) -> None:
        if not client.exists("/fire/members/me"):
            client.create("/fire/members/me", ephemeral=True)
        time.sleep(0.05)

    for index in range(LOCKERS):
        name = f"locker-{index}"
        crowd.add(name, lock(name), lambda name=name: locks.end(name))  # type: ignore[misc]
    for index in range(CANDIDATES):
        name = f"candidate-{index}"
        crowd.add(name, lead(name), lambda name=name: leaders.end(name))  # type: ignore[misc]
    for index in range(WATCHERS):
        crowd.add(f"watcher-{index}", watch(index))
    crowd.add("writer", write)
    crowd.add("member", join)
    await_condition(lambda: len(locks.history) > 20 and len(leaders.history) > 3 and written[0] > 5, "a running crowd")

    for container in (active_proposer(cluster), 0, 1, 2):
        locked, led, wrote = len(locks.history), len(leaders.history), written[0]
        kill(cluster, container)
        await_condition(
            lambda locked=locked, led=led, wrote=wrote: (  # type: ignore[misc]
                len(locks.history) > locked + 5 and len(leaders.history) > led + 2 and written[0] > wrote + 5
            ),
            "work to go on",
        )
    paused.set()
    with kazoo(hosts) as admin:

        def settled() -> bool:
            admin.sync("/")
            return set(seen) == {int(admin.get("/fire/value")[0])}

        await_condition(settled, "every watcher to have heard of the last value")
        crowd.finish()
        assert locks.overlaps() == []
        assert leaders.overlaps() == []
        admin.sync("/")
        assert admin.exists("/fire/members/me") is None
        assert [name for name in admin.get_children("/fire/lock") if admin.exists(f"/fire/lock/{name}")] == []
        assert admin.get_children("/fire/election") == []
        admin.delete("/fire", recursive=True)


def test_a_session_survives_its_front_end_and_ends_on_all_sites_at_once(cluster: Cluster, hosts: str) -> None:
    """The client comes back at once, not when its front end does: how long that takes is no matter of its session."""
    addresses = hosts.split(",")
    with Wire(addresses[0]) as wire:
        assert wire.connect(timeout_ms=8_000)
        assert wire.create("/survivor", flags=1) == 0
        life = cluster.registry.state.lives[0]
        os.kill(cluster.registry.members[0].pid, signal.SIGKILL)
        assert wire.receive() is None
    with Wire(addresses[1]) as again:
        assert again.connect(session=wire.session, password=wire.password)
        assert again.create("/survivor", flags=1) == -110
    await_return(cluster, 0, life)
    ended: list[int] = []
    for address in addresses:
        with kazoo(address) as client:
            await_condition(lambda client=client: client.exists("/survivor") is None, "the end of the session")  # type: ignore[misc]
            ended.append(client.get("/")[1].pzxid)
    assert len(set(ended)) == 1


def test_a_stall_of_the_service_costs_no_session_its_life(cluster: Cluster, hosts: str) -> None:
    """Two of three sites stand still for longer than the time-out. The third one closes its connections, because it
    cannot renew their sessions; when the others go on, the session is as it was. From then on its time runs again: the
    client asks for its session at once, until it is served."""
    address = hosts.split(",")[0]
    with Wire(address) as wire, Wire(address) as idle:
        assert wire.connect(timeout_ms=8_000)
        assert idle.connect(timeout_ms=8_000)
        assert wire.create("/patient", flags=1) == 0
        stopped = [cluster.registry.members[container].pid for container in (1, 2)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            started_s = time.monotonic()
            assert idle.receive() is None
            assert wire.receive() is None
            with Wire(address) as refused:
                assert not refused.connect()
            time.sleep(max(started_s + 10 - time.monotonic(), 0))
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
    await_condition(lambda: finds_its_node(address, wire, "/patient"), "the session to be served again")


def test_a_site_that_missed_too_much_begins_anew_from_a_checkpoint(cluster: Cluster, hosts: str) -> None:
    """It cannot know which events it missed, so it closes its connections; its replica catches up with the others."""
    addresses = hosts.split(",")
    stopped = cluster.registry.members[2].pid
    life = cluster.registry.state.lives[2]
    with Wire(addresses[2]) as left_behind, Wire(addresses[0]) as writer:
        assert left_behind.connect()
        assert left_behind.call(Op.GET_DATA, jute.pack_text("/") + b"\1")[0] == 0
        assert writer.connect()
        assert writer.create("/missed") == 0
        stable = cluster.registry.members[0].status["executor"]["stable"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            body = jute.pack_text("/missed") + jute.pack_buffer(b"x") + jute.pack_int(-1)
            end_s = time.monotonic() + DEADLINE_S
            while cluster.registry.members[0].status["executor"]["stable"] < stable + 5:
                assert time.monotonic() < end_s, "no checkpoints"
                for xid in range(100):
                    writer.request(xid, Op.SET_DATA, body)
                for _ in range(100):
                    answer = writer.reply()
                    assert answer is not None
                    assert answer[2] == 0
        finally:
            os.kill(stopped, signal.SIGCONT)
        while (answer := left_behind.reply()) is not None:
            assert answer[0] == -1
    await_condition(lambda: accepts(addresses[2]), "its front end to serve again")
    assert cluster.registry.state.lives[2] == life
    versions = []
    for address in addresses:
        with Wire(address) as reader:
            assert reader.connect()
            stat = reader.call(Op.EXISTS, jute.pack_text("/missed") + b"\0")[1]
            versions.append(jute.Stat.read(jute.Reader(stat)).version)
    assert versions[0] >= 2_000
    assert len(set(versions)) == 1
    assert [member.status["counters"]["halted"] for member in cluster.registry.members] == [{}, {}, {}]


def accepts(address: str) -> bool:
    with Wire(address) as wire:
        return wire.connect()


def finds_its_node(address: str, former: Wire, path: str) -> bool:
    """Whether the session of a former connection is served, with its ephemeral node still there."""
    with Wire(address) as again:
        if not again.connect(session=former.session, password=former.password):
            return False
        assert again.create(path, flags=1) == Code.NODE_EXISTS
        return True
