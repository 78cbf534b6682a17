"""Development effort: the paper's rule, the whole live path, and a category for every file."""

import ast
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evaluation import code_lines
from evaluation.code_lines import (
    BEYOND_CATEGORIES,
    CATEGORIES,
    INFRASTRUCTURE,
    LIVE_PATH,
    PAPER_CATEGORIES,
    SECURITY,
    SOURCES,
    UnknownCategory,
)
from tara.cli import app
from tests.test_imports import imports, module_name


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("import os\nfrom a import (\n    b,\n    c,\n)\n", 0),
        ('"""A module.\n\nWith a text."""\n\nx = 1  # one\n# two\n', 1),
        ('class A:\n    """Text."""\n\n    x = 1\n', 2),
        ('def f():\n    """Text."""\n    import os\n    return os\n', 2),
        ("x = [\n    1,\n    2,\n]\n", 3),
        ("f(\n    {\n        1: 2,\n    },\n)\n", 2),
        ('x = """\n\ntext\n"""\n', 4),
        ("def f(\n    a,\n) -> None:\n    pass\n", 4),
        ("if (\n    a\n):\n    b()\n", 3),
    ],
)
def test_the_rule(source: str, lines: int) -> None:
    assert code_lines.code_lines(source) == lines


def test_every_file_has_a_category_and_every_category_is_known() -> None:
    assert [file for file in code_lines.live_files() if code_lines.category_of(file) is None] == []
    assert set(CATEGORIES.values()) <= {*PAPER_CATEGORIES, *BEYOND_CATEGORIES}


def as_loaded(source: str) -> str:
    """Without what only type checkers read."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def test_the_live_path_is_what_the_processes_of_a_cluster_and_its_clients_import() -> None:
    modules = {module_name(path, SOURCES): path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.py")}
    pending, reached = list(code_lines.BEGINNINGS), set[str]()
    while pending:
        name = pending.pop()
        if name in modules and name not in reached:
            reached.add(name)
            # A module's package is imported with it.
            pending += [
                name.rpartition(".")[0],
                *imports(name, as_loaded((SOURCES / modules[name]).read_text()), frozenset(modules)),
            ]

    assert {code_lines.package_of(modules[name]) for name in reached} == set(LIVE_PATH)


def test_every_file_is_counted_once() -> None:
    files = code_lines.count()
    counted = sum(code_lines.live_packages(files).values()) + sum(code_lines.other_packages().values())
    assert counted == sum(code_lines.code_lines(path.read_text()) for path in SOURCES.rglob("*.py"))
    assert code_lines.totals(files)["total"] == sum(code_lines.live_packages(files).values())


def test_a_file_without_a_category_is_an_error_that_names_it(tmp_path: Path) -> None:
    for name in CATEGORIES:
        path = tmp_path / name
        if name.endswith("/"):
            path /= "some.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert code_lines.totals(code_lines.count(tmp_path))["total"] == 0
    (tmp_path / "protocol" / "new.py").touch()
    (tmp_path / "protocol" / "graph.py").unlink()
    with pytest.raises(UnknownCategory, match=r"no category for protocol/new\.py; no file protocol/graph\.py"):
        code_lines.count(tmp_path)


def test_a_new_file_of_a_directory_has_the_category_of_the_others() -> None:
    assert code_lines.category_of("net/new.py") == code_lines.category_of("net/parts/new.py") == INFRASTRUCTURE
    assert code_lines.category_of("net/tls.py") == SECURITY


def test_the_command_prints_the_total_each_category_and_each_package() -> None:
    result = CliRunner().invoke(app, ["bench", "loc", "--json"])
    assert result.exit_code == 0
    printed = json.loads(result.stdout.splitlines()[-1])
    packages, others = printed.pop("packages"), printed.pop("other_packages")
    assert list(packages) == list(LIVE_PATH)
    assert {"cli", "apps", "simulator", "streaming"} <= set(others)
    assert list(printed) == ["total", *PAPER_CATEGORIES, *BEYOND_CATEGORIES]
    assert printed.pop("total") == sum(printed.values()) == sum(packages.values()) > 0
    assert all(printed[category] > 0 for category in PAPER_CATEGORIES)


def test_the_command_shows_a_table_with_the_paper_beside() -> None:
    result = CliRunner().invoke(app, ["bench", "loc"])
    assert result.exit_code == 0
    for text in ("request handling", "3997", "1476", "beyond: observability", "live path: host", "other: simulator"):
        assert text in result.stdout
