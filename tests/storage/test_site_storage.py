"""What a container keeps, for whom, and how long it waits for room."""

import time
from pathlib import Path

import pytest

from tara.application import KeyValueStore
from tara.host.counters import Counters
from tara.host.placement import placement_of
from tara.host.site import Site, SiteSpec
from tara.live.observability.events import EventLog
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.storage.journal import FULL_DISK_PATIENCE_S, FULL_DISK_PAUSE_S, FileJournal, Identity, NoRoom
from tara.storage.site_storage import LifeStart, SiteStorage, StorageSpec
from tara.storage.store import IDLE_S
from tests.storage.logs import simple

GRAPH = Graph(1, 1)
WRITTEN: list[tuple[int, t.JournalEntry]] = [(GRAPH.number(Stage.COMMITTER, 0), t.Voted(1, 0, []))]
SPEC = SiteSpec(
    cluster=1, era=1, shape=0, container=0, placement=placement_of(GRAPH, "site"), limits=Limits(), journal=True
)


def test_a_full_disk_is_waited_for_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SiteStorage(
        SPEC, StorageSpec(data_dir=tmp_path), EventLog(None, 1, ""), Counters(), lambda *_: None, lambda: None
    )
    storage.journal = FileJournal(tmp_path / "journal", Identity(1, 1, 0))
    storage.journal.replay()
    full = True
    append = storage.journal.append

    def append_if_there_is_room(entries: list[tuple[int, t.JournalEntry]]) -> None:
        if full:
            raise NoRoom("no room")
        append(entries)

    monkeypatch.setattr(storage.journal, "append", append_if_there_is_room)

    def sync(now_s: float) -> float:
        return storage.sync(WRITTEN, False, now_s)

    assert [sync(100.0), sync(100.0 + FULL_DISK_PATIENCE_S)] == [FULL_DISK_PAUSE_S] * 2
    full = False
    assert sync(200.0) == 0.0
    full = True
    assert sync(300.0) == FULL_DISK_PAUSE_S, "it is patient again"
    with pytest.raises(NoRoom):
        sync(300.1 + FULL_DISK_PATIENCE_S)
    storage.close()


class Recorded:
    """What happened, for whoever wants to know."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def info(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None:
        self.events.append(("info", event))

    def warning(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None:
        self.events.append(("warning", event))

    def error(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None:
        self.events.append(("error", event))

    def flood(self, event: str, node: str | None = None, **details: object) -> None:
        self.events.append(("flood", event))


def started(tmp_path: Path, life: int, **settings: int) -> tuple[SiteStorage, Recorded]:
    events = Recorded()
    spec = StorageSpec(data_dir=tmp_path, **settings)
    storage = SiteStorage(SPEC, spec, events, Counters(), lambda *_: None, lambda: None)
    storage.start(LifeStart(life=life, genesis=life == 1), lambda: Site(SPEC, life, Counters()), KeyValueStore, 0.0)
    return storage, events


def work(storage: SiteStorage) -> list[t.Tuple]:
    for store in storage.stores.values():
        store.log.work()
        while (pause_s := store.work()) < IDLE_S:
            # It leaves the disk to others for a moment.
            time.sleep(pause_s)
    return [answer for answer, _ in storage.answers()]


def test_each_executor_has_bases_and_a_log_of_its_own(tmp_path: Path) -> None:
    storage, _ = started(tmp_path, 1)
    (number,) = storage.stores
    assert GRAPH.names[number].stage is Stage.EXECUTOR
    work(storage)
    assert {path.name for path in tmp_path.iterdir()} == {"journal-0", "execution-0", "bases-0", "log-0"}
    storage.close()


@pytest.mark.parametrize("retention_bytes", [0, 1 << 30])
def test_there_is_a_log_whatever_is_to_be_kept_of_it(tmp_path: Path, retention_bytes: int) -> None:
    """Checkpoints rest on it."""
    storage, events = started(tmp_path, 1, log_retention_bytes=retention_bytes)
    (store,) = storage.stores.values()
    for tuple_ in simple(40, interval=4_000):
        store.submit(tuple_)
    work(storage)
    assert store.log.status()["last"] == 40
    assert [event for event in events.events if event[0] != "info"] == []
    storage.close()


def test_it_is_told_what_became_of_bases(tmp_path: Path) -> None:
    storage, events = started(tmp_path, 1)
    (store,) = storage.stores.values()
    work(storage)
    store.log.sealed = 9
    store.submit(t.Base(t.CheckpointId(9, b"digest"), b"state"))
    store.submit(t.Drawn(9, []))
    work(storage)
    store.bases.pacer.rest()
    store.submit(t.GivenUp(10, "the application raised KeyError"))
    work(storage)
    assert events.events[-2:] == [("info", "base_saved"), ("flood", "base_given_up")]
    assert store.bases.counts.bases_saved == store.bases.counts.bases_given_up == 1
    storage.close()
