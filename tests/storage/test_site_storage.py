"""What a container keeps: how long it waits for room."""

from pathlib import Path

import pytest

from tara.host.counters import Counters
from tara.host.placement import placement_of
from tara.host.site import Site, SiteSpec
from tara.live.observability.events import EventLog
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.storage.journal import FULL_DISK_PATIENCE_S, FULL_DISK_PAUSE_S, FileJournal, Identity, NoRoom
from tara.storage.site_storage import SiteStorage, StorageSpec

GRAPH = Graph(1, 1)
WRITTEN: list[tuple[int, t.JournalEntry]] = [(GRAPH.number(Stage.COMMITTER, 0), t.Voted(1, 0, []))]
SPEC = SiteSpec(
    cluster=1, era=1, shape=0, container=0, placement=placement_of(GRAPH, "site"), limits=Limits(), journal=True
)


def test_a_full_disk_is_waited_for_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SiteStorage(
        SPEC, StorageSpec(data_dir=tmp_path), EventLog(None, 1, ""), Counters(), lambda *_: None, lambda: None
    )
    site = Site(SPEC, 1, Counters())
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
        return storage.sync(site, WRITTEN, False, now_s)

    assert [sync(100.0), sync(100.0 + FULL_DISK_PATIENCE_S)] == [FULL_DISK_PAUSE_S] * 2
    full = False
    assert sync(200.0) == 0.0
    full = True
    assert sync(300.0) == FULL_DISK_PAUSE_S, "it is patient again"
    with pytest.raises(NoRoom):
        sync(300.1 + FULL_DISK_PATIENCE_S)
    storage.close()
