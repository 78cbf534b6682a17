"""The storage drill, small and without Spark; and proof that it can fail."""

import shutil
from pathlib import Path
from unittest import mock

import pytest

from tara.client import KeyValueClient
from tara.drills.process_cluster import ProcessCluster
from tara.drills.storage import (
    SETTINGS,
    Harvest,
    StorageVerdict,
    Task,
    Tried,
    bare_starts,
    try_start,
)
from tara.operations import health
from tara.protocol import journal
from tara.protocol import tuples as t

DAMAGES = 120
#: Than the drill's: it writes less.
SMALLER = {"checkpoint_interval": 64, "window": 256, "base_bytes_min": 10_000}
#: Enough for a reader that notices nothing.
FEW_DAMAGES = 40


@pytest.fixture(scope="module")
def harvested(tmp_path_factory: pytest.TempPathFactory) -> Harvest:
    """The files of a cluster that ran twice."""
    root = tmp_path_factory.mktemp("drill")
    flags = {key: int(value) for key, value in SETTINGS.items()} | SMALLER
    written: dict[str, bytes] = {}
    for turn in range(2):
        with ProcessCluster.whole(root / "data", flags) as cluster, KeyValueClient(cluster.endpoints) as client:
            for number in range(400):
                client.put(f"{turn}-{number}", b"value" * 10)
            cluster.await_status(
                lambda found: health.full_strength(found) and health.logs_whole(found), "full strength and whole logs"
            )
            for process in cluster.processes.values():
                process.kill()
                process.join()
        if turn == 0:
            shutil.copytree(root / "data", root / "older")
    return Harvest(root / "data", root / "older", written)


def drilled(
    harvested: Harvest, scratch: Path, monkeypatch: pytest.MonkeyPatch, start: object, damages: int = DAMAGES
) -> StorageVerdict:
    settings = SETTINGS | {key: str(value) for key, value in SMALLER.items()}
    monkeypatch.setattr("tara.drills.storage.SETTINGS", settings)
    verdict = StorageVerdict()
    bare_starts(harvested, scratch, damages, 3, print, verdict, start)  # type: ignore[arg-type]
    return verdict


def test_damages_are_noticed_and_nothing_wrong_is_accepted(
    harvested: Harvest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = drilled(harvested, tmp_path / "scratch", monkeypatch, try_start)

    assert verdict.failures == []
    assert verdict.damages > 0.9 * DAMAGES
    assert verdict.noticed > 0.7 * verdict.damages
    assert verdict.repaired + verdict.rejoined + verdict.refused + verdict.harmless == verdict.damages
    assert verdict.journal_damages > 0.3 * DAMAGES
    assert verdict.journal_repaired >= 0.95 * verdict.journal_damages


def forgetful_start(task: Task) -> Tried:
    """With a reader of journals that does not notice that records are missing."""
    original = journal.assemble

    def assemble(scans: dict[int, journal.Scan], marker: journal.Marker | None, exact: bool) -> journal.Assembled:
        found = original(scans, None, exact)
        found.entries = {
            number: [entry for entry in entries if not isinstance(entry, t.Lost)]
            for number, entries in found.entries.items()
        }
        found.problems, found.broken = [], False
        return found

    with mock.patch.object(journal, "assemble", assemble):
        return try_start(task)


def test_a_reader_that_does_not_notice_fails_the_drill(
    harvested: Harvest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = drilled(harvested, tmp_path / "scratch", monkeypatch, forgetful_start, FEW_DAMAGES)

    assert verdict.accepted_wrong > 0
    assert any("accepted_wrong" in failure for failure in verdict.failures)
