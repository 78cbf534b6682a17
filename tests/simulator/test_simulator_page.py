"""`docs/simulator.md` has every fault, check and mutant of the code: its tables are made from it."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tara.simulator import tables
from tara.simulator.checks.kinds import CHECKS
from tara.simulator.disk import DAMAGES
from tara.simulator.faults import nemesis
from tara.simulator.faults.kinds import FAULT_KINDS, SECTIONS
from tara.simulator.plan import APART, NOISE, SCHEDULED

CHECKOUT = Path(__file__).parent.parent.parent
PAGE = (CHECKOUT / "docs" / "simulator.md").read_text()
TREES = [
    ast.parse(path.read_text())
    for part in ("simulator", "apps/coordination")
    for path in sorted((CHECKOUT / "src" / "tara" / part).rglob("*.py"))
]
#: Which argument of a call names a check.
NAMES_CHECK = {"Violation": 0, "violation": 0, "require": 1}


@pytest.mark.parametrize("table", [tables.faults, tables.checks, tables.rules])
def test_the_tables_are_the_code(table: Callable[[], Iterator[str]]) -> None:
    """`python -m tara.simulator.tables` prints them."""
    assert "\n".join(table()) in PAGE


def test_a_fault_is_in_one_section() -> None:
    assert sum(map(len, SECTIONS.values())) == len(FAULT_KINDS)


def test_every_fault_that_is_planned_or_counted_is_in_the_table_and_no_other() -> None:
    stories = {kind for tree in TREES for kind in _story_kinds(tree)}
    counted = {kind for tree in TREES for kind in _counted(tree)}
    damages = {f"journal_{damage}" for damage in DAMAGES}
    notices = {"journal_repaired", "journal_given_up"}
    planned = {*SCHEDULED, *NOISE, *APART, *nemesis._STRIKES}
    nuisances = {kind for tree in TREES for kind in _nuisances(tree)}

    assert planned | stories | counted | damages | notices | nuisances == FAULT_KINDS


def test_every_check_of_the_code_is_in_the_table_and_no_other() -> None:
    assert {name for tree in TREES for name in _checks(tree)} == set(CHECKS)


def _strings(node: ast.expr) -> Iterator[str]:
    """Those that an expression may be; what depends on a condition is both."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp():
            yield from _strings(node.body)
            yield from _strings(node.orelse)


def _called(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    match node:
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return name, arguments
        case ast.Call(func=ast.Attribute(attr=name), args=arguments):
            return name, arguments
    return None


def _counted(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node, _called(node):
            case _, ("count_fault", [kind]):
                yield from _strings(kind)
            case ast.Subscript(value=ast.Attribute(attr="faults"), slice=kind), _:
                yield from _strings(kind)


def _story_kinds(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id="kind")], value=ast.Constant(value=str(kind))):
                yield kind


def _nuisances(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr="_kinds")], value=ast.Dict(keys=keys)):
                yield from (text for key in keys if key is not None for text in _strings(key))


def _checks(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node, _called(node):
            case _, (name, arguments) if name in NAMES_CHECK and len(arguments) > NAMES_CHECK[name]:
                yield from _strings(arguments[NAMES_CHECK[name]])
            case ast.Subscript(value=ast.Attribute(attr="checks"), slice=key), _:
                yield from _strings(key)
