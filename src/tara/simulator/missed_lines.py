"""Which of the lines that a campaign missed have an explanation (`tara.simulator.unreached`), by place.

A place is a function (`Class.function`) or, in a function, whatever begins with the given words: a statement with all
that is in it, a handler, a case.
"""

import ast
from collections.abc import Iterator

from msgspec import Struct

_MODULE = "<module>"


class Explained(Struct, frozen=True):
    why: str
    lines: list[int]


def explain(
    source: str, missed: list[int], reasons: dict[str, str]
) -> tuple[dict[str, Explained], list[int], list[str]]:
    """Of the lines of a file that were missed: those that have an explanation, by place, and those that have none; and
    the places whose explanation was not needed."""
    spans = list(_spans(source))
    explained: dict[str, Explained] = {}
    for place, why in reasons.items():
        lines = sorted(set(missed) & set(lines_of(spans, place)))
        if lines:
            explained[place] = Explained(why, lines)
    known = {line for found in explained.values() for line in found.lines}
    return (
        explained,
        [line for line in missed if line not in known],
        [place for place in reasons if place not in explained],
    )


def unknown_places(source: str, reasons: dict[str, str]) -> list[str]:
    """Places that are not there."""
    spans = list(_spans(source))
    return [place for place in reasons if not lines_of(spans, place)]


class _Span(Struct, frozen=True):
    function: str
    #: Of its first line; empty: it is the function itself.
    text: str
    lines: range


def lines_of(spans: list[_Span], place: str) -> list[int]:
    function, _, text = place.partition(": ")
    return [
        line
        for span in spans
        if span.function == function and (span.text.startswith(text) if text else not span.text)
        for line in span.lines
    ]


def _spans(source: str) -> Iterator[_Span]:
    """Everything that may be a place."""
    lines = source.splitlines()

    def walk(node: ast.AST, function: str) -> Iterator[_Span]:
        for child in ast.iter_child_nodes(node):
            inner = function
            match child:
                case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                    inner = child.name if function == _MODULE else f"{function}.{child.name}"
                    yield _Span(inner, "", range(child.lineno, _end(child) + 1))
                case ast.stmt() | ast.ExceptHandler():
                    yield _Span(function, lines[child.lineno - 1].strip(), range(child.lineno, _end(child) + 1))
                case ast.match_case():
                    first = child.pattern.lineno
                    yield _Span(function, lines[first - 1].strip(), range(first, _end(child.body[-1]) + 1))
            yield from walk(child, inner)

    yield from walk(ast.parse(source), _MODULE)


def _end(node: ast.stmt | ast.ExceptHandler) -> int:
    assert node.end_lineno is not None
    return node.end_lineno
