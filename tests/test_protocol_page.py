"""`docs/protocol.md` says what the code does: what every node takes and emits, and the numbers of the formats."""

import re
from pathlib import Path

import pytest

from tara.cli import tuples_table
from tara.protocol.graph import EDGES, Stage
from tara.protocol.tuples import JournalEntry, commands
from tara.simulator.checks.kinds import CHECKS
from tara.simulator.faults.kinds import FAULT_KINDS
from tara.simulator.mutants.registry import mutants

PAGE = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text()

SECTIONS = {
    "Request source": Stage.REQUEST_SOURCE,
    "Proposer": Stage.PROPOSER,
    "Committer": Stage.COMMITTER,
    "Executor, with one learner per partition": Stage.EXECUTOR,
    "Gc source": Stage.GC_SOURCE,
    "Controller": Stage.CONTROLLER,
    "View source": Stage.VIEW_SOURCE,
}


def said(section: str, word: str) -> set[str]:
    """The tuples that a section names behind the word, up to the next word or the list of rules."""
    text = PAGE.split(f"### {section}\n")[1].split("\n### ")[0].split("\n## ")[0]
    found = re.search(rf"\*{word}\*(.*?)(?=\n\n|\*(?:Keeps|Takes|Emits|Persists)\*)", text, re.DOTALL)
    assert found is not None, f"{section} does not say what it {word.lower()}"
    return set(re.findall(r"`([A-Z][A-Za-z]+)`", found[1]))


@pytest.mark.parametrize("section", SECTIONS)
def test_a_node_takes_what_the_page_says(section: str) -> None:
    assert said(section, "Takes") == {kind.__name__ for _, kind, to in EDGES if to is SECTIONS[section]}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_node_emits_what_the_page_says(section: str) -> None:
    assert said(section, "Emits") == {kind.__name__ for by, kind, _ in EDGES if by is SECTIONS[section]}


def test_the_table_of_tuples_is_the_code() -> None:
    """`python -m tara.cli.tuples_table` prints it."""
    assert "\n".join(tuples_table.lines()) in PAGE


def numbered(paragraph: str) -> dict[str, int]:
    """What the paragraph of that name says a number of."""
    text = PAGE.split(f"\n**{paragraph}**")[1].split("\n\n")[0]
    return {name: int(number) for name, number in re.findall(r"`([A-Za-z_]+)` (\d+)", text)}


def test_commands_and_results_have_the_numbers_that_the_page_says() -> None:
    steps = ("ASK_SKIP", "CONFIRM_SKIP", "WITHDRAW_SKIP")
    constants = {name: value for name, value in vars(commands).items() if name.isupper() and isinstance(value, int)}
    assert numbered("Commands") == {name: value for name, value in constants.items() if name not in steps}


def test_journal_entries_have_the_tags_that_the_page_says() -> None:
    assert numbered("Journal") == {kind.__name__: kind.__struct_config__.tag for kind in JournalEntry.__args__}


def test_every_mutant_that_the_page_names_exists_and_so_does_every_fault() -> None:
    tables = PAGE.split("## Deviations from the paper")[1].split("## What one request costs")[0]
    cells = [row.rsplit("|", 2)[1] for row in tables.splitlines() if row.startswith("|")]
    known = {mutant.name for mutant in mutants()} | FAULT_KINDS | set(CHECKS)
    named = {name for cell in cells for name in re.findall(r"`([a-z]+(?:_[a-z0-9]+)*)`", cell)}
    tests = {name for name in named if name.startswith("test_")}
    assert named - tests <= known


def test_every_rule_with_a_label_is_in_the_tables() -> None:
    labels = {mutant.undoes.split(":")[0] for mutant in mutants() if re.match(r"[SLR]\d+:", mutant.undoes)}
    listed = {label for row in re.findall(r"^\| ([SLR]\d+[^|]*) \|", PAGE, re.MULTILINE) for label in row.split(", ")}
    assert labels <= listed
