"""Development effort: the paper's rule, and a category for every file."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evaluation import code_lines
from evaluation.code_lines import BEYOND_CATEGORIES, CATEGORIES, PAPER_CATEGORIES, UnknownCategory
from tara.cli import app


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
    assert set(CATEGORIES) == set(code_lines.counted_files())
    assert set(CATEGORIES.values()) <= {*PAPER_CATEGORIES, *BEYOND_CATEGORIES}


def test_a_file_without_a_category_is_an_error_that_names_it(tmp_path: Path) -> None:
    for file in CATEGORIES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert code_lines.totals(code_lines.count(tmp_path))["total"] == 0
    (tmp_path / "runtime" / "new.py").touch()
    (tmp_path / "protocol" / "graph.py").unlink()
    with pytest.raises(UnknownCategory, match=r"no category for runtime/new\.py; no file protocol/graph\.py"):
        code_lines.count(tmp_path)


def test_the_command_prints_the_total_and_each_category() -> None:
    result = CliRunner().invoke(app, ["bench", "loc", "--json"])
    assert result.exit_code == 0
    printed = json.loads(result.stdout.splitlines()[-1])
    assert all(printed.pop("beside").values())
    assert list(printed) == ["total", *PAPER_CATEGORIES, *BEYOND_CATEGORIES]
    assert printed.pop("total") == sum(printed.values()) > 0
    assert all(printed[category] > 0 for category in PAPER_CATEGORIES)


def test_the_command_shows_a_table_with_the_paper_beside() -> None:
    result = CliRunner().invoke(app, ["bench", "loc"])
    assert result.exit_code == 0
    for text in ("request handling", "3997", "1476", "observability"):
        assert text in result.stdout
