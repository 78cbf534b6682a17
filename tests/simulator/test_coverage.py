"""Which lines a campaign reaches, and what is known of the others."""

from pathlib import Path

import pytest

import tara
from tara.simulator.coverage import OMITTED, PACKAGES, measure
from tara.simulator.missed_lines import explain, unknown_places
from tara.simulator.unreached import UNREACHED

SOURCE = Path(tara.__file__).parent
CODE = """\
class Store:
    def take(self, job):
        try:
            return self.job(job)
        except OSError as error:
            self.give_up(error)
            return None
        match job:
            case 1:
                first()
            case _:
                other()
        def inner():
            return 3

    def give_up(self, error):
        raise error
"""


@pytest.mark.parametrize("name", UNREACHED)
def test_what_is_explained_is_there(name: str) -> None:
    assert any(name.startswith(f"{folder}/") for folder in PACKAGES.values())
    assert unknown_places((SOURCE / name).read_text(), UNREACHED[name]) == []


@pytest.mark.parametrize("name", OMITTED)
def test_what_does_not_count_is_there(name: str) -> None:
    assert (SOURCE / name).is_file()


@pytest.mark.parametrize(
    ("place", "lines"),
    [
        ("Store.give_up", [16, 17]),
        ("Store.take: except OSError", [5, 6, 7]),
        ("Store.take: self.give_up", [6]),
        ("Store.take: case 1:", [9, 10]),
        ("Store.take.inner", [13, 14]),
    ],
)
def test_a_place_has_its_lines(place: str, lines: list[int]) -> None:
    missed = list(range(1, 18))

    explained, unexplained, needless = explain(CODE, missed, {place: "because"})

    assert (explained[place].lines, explained[place].why) == (lines, "because")
    assert unexplained == [line for line in missed if line not in lines]
    assert needless == []


def test_what_was_reached_needs_no_explanation() -> None:
    explained, unexplained, needless = explain(CODE, [12], {"Store.give_up": "because"})
    assert (explained, unexplained, needless) == ({}, [12], ["Store.give_up"])


def test_a_place_that_is_gone_is_noticed() -> None:
    gone = {"Store.gave_up": "", "Store.take: except ValueError": "", "Store.take: case 2": ""}
    assert unknown_places(CODE, gone) == list(gone)


@pytest.mark.slow
def test_a_campaign_says_what_it_reaches() -> None:
    found = measure(seeds=1, processes=1)

    # No clients of the coordination service are in this one.
    assert found.packages.pop("gateway") == 0.0
    assert set(found.packages) == set(PACKAGES) - {"gateway"}
    assert all(30.0 < percent < 100.0 for percent in found.packages.values())
    # Nothing is lost between what is explained and what is not.
    assert found.missed and found.unexplained
    for name, lines in found.missed.items():
        explained = {line for known in found.explained.get(name, {}).values() for line in known.lines}
        assert explained.isdisjoint(found.unexplained.get(name, []))
        assert sorted([*explained, *found.unexplained.get(name, [])]) == lines
    assert found.omitted == OMITTED
    assert found.violations == []
