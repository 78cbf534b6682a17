"""How requests become runs: what comes together is proposed together, and while many read, a few wait for more."""

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tara.application import KeyValueStore
from tara.host import client_wire, pacing
from tara.live import container as module
from tara.live.container import Container
from tara.net.connection import Connection
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tests.live.single import container_of
from tests.patience import DEADLINE_S

#: Nobody is deposed while a test is slow.
PATIENT = {"controller_timeout_ms": 1000 * int(DEADLINE_S), "controller_timeout_ms_max": 1000 * int(DEADLINE_S)}


def turn(container: Container) -> None:
    container.turn(True, True, False, False, lambda: None)


def tick(container: Container) -> None:
    time.sleep(module.TICK_MS / 1e3)
    turn(container)


def accepted(container: Container) -> int:
    committer = container.nodes[container.graph.number(Stage.COMMITTER, 0)]
    assert isinstance(committer, Committer)
    return committer.acceptor.commits.pos if committer.acceptor.started else -1


def submit(container: Container, number: int) -> None:
    container.site.submit([t.Command(9, number, 0, b"")])


@contextlib.contextmanager
def started(directory: Path, durability: str, **limits: int) -> Iterator[Container]:
    """In its first view; its turns are the test's."""
    container = container_of(KeyValueStore, directory, None, durability, **PATIENT, **limits)
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while accepted(container) < 0:
            assert time.monotonic() < deadline_s
            turn(container)
        yield container
    finally:
        container.stopping = True
        container.run(lambda: None)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    with started(tmp_path, "disk") as container:
        yield container


def runs(container: Container) -> int:
    return container.counters.journal_entries


def ask(container: Container, count: int) -> None:
    """Turns until this many reads of a client are answered."""
    reads = [client_wire.ReadMessage(number, msgspec.msgpack.encode(["get", "key"])) for number in range(count)]
    connection = Connection.connect(container.client_address, 1 << 20)
    connection.send(client_wire.encode(client_wire.ClientRequest(t.FORMAT_VERSION, [], reads)))
    deadline_s = time.monotonic() + DEADLINE_S
    while container.counters.answers < count:
        assert time.monotonic() < deadline_s
        connection.flush()
        turn(container)
    connection.close()


def test_what_comes_together_is_proposed_together(container: Container) -> None:
    position, before = accepted(container), runs(container)
    for number in range(3):
        submit(container, number)
    turn(container)

    assert accepted(container) == position + 3
    assert runs(container) == before + 1


@pytest.fixture
def busy(container: Container, monkeypatch: pytest.MonkeyPatch) -> Container:
    """Many read there, and it has just made a run."""
    monkeypatch.setattr(pacing, "BUSY_READS", 0)
    monkeypatch.setattr(pacing, "BUSY_RUN", 3)
    monkeypatch.setattr(pacing, "BUSY_PAUSE_MS", 1e3 * DEADLINE_S)
    tick(container)
    for number in range(3):
        submit(container, number)
    turn(container)
    return container


def test_while_many_read_a_few_requests_wait_for_more(busy: Container) -> None:
    position, before = accepted(busy), runs(busy)
    for number in (3, 4):
        submit(busy, number)
        turn(busy)
    assert accepted(busy) == position
    submit(busy, 5)
    turn(busy)

    assert accepted(busy) == position + 3
    assert runs(busy) == before + 1


def test_they_do_not_wait_long(busy: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    position = accepted(busy)
    submit(busy, 3)
    turn(busy)
    assert accepted(busy) == position
    monkeypatch.setattr(pacing, "BUSY_PAUSE_MS", 0.0)
    turn(busy)

    assert accepted(busy) == position + 1


@pytest.mark.parametrize(
    ("durability", "reads", "waits"),
    [
        ("disk", pacing.BUSY_READS, True),
        ("disk", pacing.BUSY_READS - 1, False),
        ("memory", pacing.BUSY_READS, False),
    ],
)
def test_many_reads_make_them_wait_where_there_is_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, reads: int, waits: bool
) -> None:
    monkeypatch.setattr(pacing, "BUSY_PAUSE_MS", 1e3 * DEADLINE_S)
    with started(tmp_path, durability) as container:
        submit(container, 0)
        turn(container)
        position = accepted(container)
        # All of them within one tick, and what follows within the next.
        monkeypatch.setattr(module, "TICK_MS", math.inf)
        container._next_tick_ms = math.inf
        ask(container, reads)
        container._next_tick_ms = 0.0
        turn(container)
        submit(container, 1)
        turn(container)

        assert accepted(container) == (position if waits else position + 1)
