"""`docs/protocol.md` says of every node what it takes and emits: exactly what the graph allows."""

import re
from pathlib import Path

import pytest

from tara.protocol.graph import EDGES, Stage

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
