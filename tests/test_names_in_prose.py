"""What docstrings, comments and pages name is there: modules, and what is in them; files."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
SOURCES = sorted((CHECKOUT / "src").rglob("*.py"))
PAGES = [*sorted((CHECKOUT / "docs").glob("*.md")), CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md"]
WALK = (CHECKOUT / "docs" / "walk.md").read_text()
#: Files that are called like modules.
FILES = {"tara.toml"}
#: What a page is about: its files are called by their names there.
SUBJECTS = {
    "benchmarks.md": "evaluation",
    "coordination.md": "src/tara/apps/coordination",
    "protocol.md": "src/tara/protocol",
    "simulator.md": "src/tara/simulator",
}
#: Made by a measurement, with the files that there were then.
MADE = CHECKOUT / "docs" / "evaluation.md"
#: Files of a reader, in an example.
EXAMPLES = {"stock.py"}


def named() -> dict[str, str]:
    """Every `tara.…` in backticks, and where it stands."""
    return {
        name: str(path.relative_to(CHECKOUT))
        for path in (*SOURCES, *PAGES)
        for name in re.findall(r"`(tara(?:\.\w+)+)(?:\([^`]*\))?`", path.read_text())
        if name not in FILES
    }


def exists(name: str) -> bool:
    """Whether it is a module, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_module_in_backticks_exists() -> None:
    assert {name: where for name, where in named().items() if not exists(name)} == {}


def test_every_path_of_the_pages_exists() -> None:
    paths = {
        path: str(page.relative_to(CHECKOUT))
        for page in PAGES
        for path in re.findall(r"`((?:src|tests|docs|deploy|examples|evaluation)/[\w/.*-]*)`", page.read_text())
    }
    assert {path: where for path, where in paths.items() if not list(CHECKOUT.glob(path.rstrip("/")))} == {}


def python_files(page: Path) -> Iterator[tuple[str, bool]]:
    """Every `….py` in backticks, and whether it is there: from the checkout or the sources, in what the page is about,
    or beside one that the same paragraph (or the same row of a table) has named before."""
    places = [CHECKOUT, CHECKOUT / "src", CHECKOUT / "src" / "tara", CHECKOUT / SUBJECTS.get(page.name, "")]
    for paragraph in re.split(r"\n\n|\n(?=\|)", page.read_text()):
        near: list[Path] = []
        for name in re.findall(r"`([\w/]+\.py)`", paragraph):
            found = [place / name for place in (*places, *near) if (place / name).is_file()]
            yield name, bool(found)
            near += [path.parent for path in found if "/" in name]


def test_every_python_file_of_the_pages_is_where_they_say() -> None:
    missing = {
        name: page.name
        for page in PAGES
        if page != MADE
        for name, is_there in python_files(page)
        if not is_there and name not in EXAMPLES
    }
    assert missing == {}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([a-z_]\w*(?:/\w+)*(?:\.py|/))`", WALK))))
def test_every_file_of_the_walk_exists(path: str) -> None:
    assert (CHECKOUT / "src" / "tara" / path).exists()


def steps(walk: str) -> Iterator[tuple[list[str], set[str]]]:
    """Of each step or paragraph: the files that it names, and the names of what is in them."""
    for step in re.split(r"\n\n|\n(?=\d+\. |- )", walk):
        files = re.findall(r"`([a-z]\w*(?:/\w+)*\.py)`", step)
        yield files, set(re.findall(r"`((?!\w+\.py`)[A-Za-z_]\w*(?:\.\w+)?)`", step))


def stands_in(name: str, files: list[str]) -> bool:
    """A class (or a tuple) is used or made in one of the files; a function or a field is defined in one. What is named
    with its class is where the class is."""
    class_, _, part = name.rpartition(".")
    if class_:
        code = [text for path in SOURCES if re.search(rf"^class {class_}\b", text := path.read_text(), re.MULTILINE)]
    else:
        code = [(CHECKOUT / "src" / "tara" / path).read_text() for path in files]
    pattern = rf"\b{part}\b" if part[0].isupper() else rf"def {part}\(|\bself\.{part}(:.*)? = "
    return any(re.search(pattern, text) for text in code)


def test_every_name_of_the_walk_stands_in_a_file_that_its_step_names() -> None:
    found = list(steps(WALK))
    assert sum(len(names) for _, names in found) > 50
    assert [(name, files) for files, names in found for name in sorted(names) if not stands_in(name, files)] == []
