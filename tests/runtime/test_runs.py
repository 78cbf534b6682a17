"""How requests become runs: what comes together is proposed together, and while many read, a few wait for more."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tara.application import KeyValueStore
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.runtime import container as module
from tara.runtime.container import Container
from tests.patience import DEADLINE_S
from tests.runtime.single import container_of


def turn(container: Container) -> None:
    container.turn(True, True, False, False, lambda: None)


def accepted(container: Container) -> int:
    committer = container.nodes[container.graph.number(Stage.COMMITTER, 0)]
    assert isinstance(committer, Committer)
    return committer.commits.pos if committer.started else -1


def submit(container: Container, number: int) -> None:
    container.submit([t.Command(9, number, 0, b"")])


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    """On a disk, and in its first view; its turns are the test's."""
    container = container_of(KeyValueStore, tmp_path, None, "disk")
    deadline_s = time.monotonic() + DEADLINE_S
    while accepted(container) < 0:
        assert time.monotonic() < deadline_s
        turn(container)
    yield container
    container.release()


def runs(container: Container) -> int:
    return container.counters.journal_entries


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
    monkeypatch.setattr(module, "BUSY_QUESTIONS", 0)
    monkeypatch.setattr(module, "BUSY_RUN", 3)
    monkeypatch.setattr(module, "BUSY_PAUSE_S", DEADLINE_S)
    time.sleep(module.TICK_MS / 1e3)
    turn(container)
    monkeypatch.setattr(module, "BUSY_RUN", 1)
    submit(container, 0)
    turn(container)
    monkeypatch.setattr(module, "BUSY_RUN", 3)
    return container


def test_while_many_read_a_few_requests_wait_for_more(busy: Container) -> None:
    position, before = accepted(busy), runs(busy)
    for number in (1, 2):
        submit(busy, number)
        turn(busy)
    assert accepted(busy) == position
    submit(busy, 3)
    turn(busy)

    assert accepted(busy) == position + 3
    assert runs(busy) == before + 1


def test_they_do_not_wait_long(busy: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    position = accepted(busy)
    submit(busy, 1)
    turn(busy)
    assert accepted(busy) == position
    monkeypatch.setattr(module, "BUSY_PAUSE_S", 0.0)
    turn(busy)

    assert accepted(busy) == position + 1
