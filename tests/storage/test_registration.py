"""What a container is told when it registers, whichever copy of what was known is put back."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tara.live import hosting
from tara.live.control import Go, Welcome
from tara.storage.lives import Lives
from tara.storage.registration import StartClaim, admit, found, must_be_founded


@dataclass
class Records:
    lives: list[int] = field(default_factory=lambda: [0])
    founded: list[bool] = field(default_factory=lambda: [False])
    journals: list[str] = field(default_factory=lambda: [""])
    begun: list[int] = field(default_factory=lambda: [0])


def claim(life: int = 0, journal: str = "", begun: bool = False) -> StartClaim:
    return StartClaim(container=0, life=life, begun=begun, journal=journal, fresh_journal="fresh")


def test_only_a_container_that_has_never_been_founded_is_there_for_the_first_time() -> None:
    records = Records()

    first = admit(records, claim())
    again = admit(records, claim(journal="fresh"))
    found(records, 0, "fresh")
    later = admit(records, claim(2, "fresh", begun=True))

    assert (first.life, first.genesis, first.journal) == (1, True, "fresh")
    assert (again.life, again.genesis, again.keep_journal) == (2, True, True)
    assert (later.life, later.genesis, later.keep_journal, later.journal) == (3, False, True, "fresh")


@pytest.mark.parametrize("journal", ["", "former"])
def test_a_journal_of_another_name_is_not_the_newest_one(journal: str) -> None:
    admission = admit(Records([5], [True], ["current"], [5]), claim(3, journal, begun=True))

    assert (admission.keep_journal, admission.journal) == (False, "fresh")
    assert must_be_founded(admission.genesis, admission.journal, journal)


def test_an_older_copy_of_the_directory_is_found_out_as_often_as_it_is_tried() -> None:
    records = Records([5], [True], ["current"], [5])

    admissions = [admit(records, claim(4, "current", begun=True)) for _ in range(3)]

    assert [admission.life for admission in admissions] == [6, 7, 8]
    assert all(admission.older_directory and not admission.keep_journal for admission in admissions)


def test_a_container_knows_better_than_an_older_copy_of_the_records() -> None:
    records = Records()

    admission = admit(records, claim(7, "current", begun=True))

    assert (admission.life, admission.genesis, admission.older_records) == (8, False, True)
    assert (admission.keep_journal, records.journals, records.founded) == (True, ["current"], [True])


def test_a_life_is_noted_only_when_an_outdated_journal_is_out_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that ends between the two would be taken for one that has the newest journal."""
    done: list[str] = []

    class Container:
        def __init__(self, *_: object) -> None:
            self.graph = self.nodes = self.counters = None

        def release(self) -> None:
            pass

        def start(self, start: object) -> None:
            done.append("journal set aside")

        def found(self) -> None:
            done.append("synced")

    hosted = hosting.Hosted.__new__(hosting.Hosted)
    welcome = Welcome(6, False, 0, False, "fresh", b"")
    for name, value in {
        "_spec": type("Spec", (), {"container": 0, "data_dir": str(Path("/nowhere"))})(),
        "_events": None,
        "_disk": None,
        "_journal": "current",
        "_resources": type("Resources", (), {"callback": lambda self, call: None})(),
        "_known_lives": lambda: Lives(cluster=1, era=1, container=0, life=4, begun=True),
        "_register": lambda known: welcome,
        "_say": lambda message: done.append("on record"),
        "_expect": lambda kind: Go(6),
    }.items():
        monkeypatch.setattr(hosted, name, value, raising=False)
    monkeypatch.setattr(hosting, "Container", Container)
    monkeypatch.setattr(hosting, "application_of", lambda app: None)
    monkeypatch.setattr(hosting, "NodeEvents", lambda *_: None)
    monkeypatch.setattr(hosting, "write_lives", lambda data_dir, lives: done.append(f"life {lives.life}"))

    hosted.start("key-value")

    assert done == ["journal set aside", "synced", "on record", "life 6"]
