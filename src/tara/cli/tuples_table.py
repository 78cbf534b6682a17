"""The table of tuples in `docs/protocol.md`: their tags, and who emits them to whom.

`python -m tara.cli.tuples_table` prints it; a test compares it with the page.
"""

from collections.abc import Iterator

from tara.protocol import tuples as t
from tara.protocol.graph import EDGES, Stage


def lines() -> Iterator[str]:
    """The table, in Markdown."""
    yield "| tag | tuple | from → to |"
    yield "| --- | --- | --- |"
    kinds = {kind for _, kind, _ in EDGES}
    travelling = set(t.WireTuple.__args__)
    for title, some in (("may travel in frames", kinds & travelling), ("never travel", kinds - travelling)):
        yield f"| | **{title}** | |"
        for kind in sorted(some, key=_tag):
            yield f"| {_tag(kind)} | `{kind.__name__}` | {'; '.join(_ways(kind))} |"


def _tag(kind: type[t.Tuple]) -> int:
    tag = kind.__struct_config__.tag
    assert isinstance(tag, int)
    return tag


def _ways(kind: type[t.Tuple]) -> Iterator[str]:
    for by in Stage:
        receivers = [to for to in Stage if (by, kind, to) in EDGES]
        if receivers:
            yield f"{_spoken(by)} → {', '.join(map(_spoken, receivers))}"


def _spoken(stage: Stage) -> str:
    return stage.value.replace("_", " ")


if __name__ == "__main__":
    print("\n".join(lines()))
