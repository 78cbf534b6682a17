"""No file meets two classes of the same name: whoever reads a name there need not look up which one is meant."""

import ast
import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tara"


def classes_of(tree: ast.Module, module: str) -> Iterator[type]:
    """The classes of `tara` that a module defines, imports by name, or reaches through a module that it imports."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "tara":
            for alias in node.names:
                found = getattr(importlib.import_module(node.module), alias.name, None)
                if inspect.isclass(found):
                    yield found
                else:
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            try:
                found = getattr(importlib.import_module(modules[node.value.id]), node.attr, None)
            except ModuleNotFoundError:
                # Not a module, but a function or a constant.
                continue
            if inspect.isclass(found):
                yield found
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield getattr(importlib.import_module(module), node.name)


def meetings(module: str, source: str) -> list[str]:
    places: dict[str, set[str]] = defaultdict(set)
    for found in classes_of(ast.parse(source), module):
        if found.__module__.split(".")[0] == "tara":
            places[found.__name__].add(found.__module__)
    return [f"{module}: {name} of {sorted(where)}" for name, where in places.items() if len(where) > 1]


def test_no_file_meets_two_classes_of_the_same_name() -> None:
    paths = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(SOURCE.rglob("*.py"))
    }
    assert len(paths) > 100
    assert [met for module, path in paths.items() for met in meetings(module, path.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "from tara.net.connection import Connection\n"
        "from tara.apps.coordination.gateway.connection import Connection as Other\n",
        "from tara.protocol import tuples as t\nfrom tara.client import Refused\nfound = t.Refused\n",
    ],
)
def test_two_that_meet_are_found(source: str) -> None:
    assert len(meetings("tara.net.channel", source)) == 1
