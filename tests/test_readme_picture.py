"""The picture in the README is the graph of the code, but for what is left out to keep it readable."""

import re
from pathlib import Path

from tara.protocol import tuples as t
from tara.protocol.graph import EDGES, Stage

README = (Path(__file__).parent.parent / "README.md").read_text()
PICTURE = README.split("```mermaid\n")[1].split("```")[0]

Edge = tuple[str, str, str]

#: What the paragraph under the picture says is left out.
READS = {t.SubmitReads, t.SubmitStaleReads, t.PendingReads, t.IndexRequest, t.ReadIndex, t.ReadResults}
STARTS = {t.StartIndexRequest}
REFUSALS = {t.Refused, t.Waiting, t.Unkept}
HALTS = {t.Halted, t.Unbarred}
LEFT_OUT = READS | STARTS | REFUSALS | HALTS


def drawn(arrow: str) -> set[Edge]:
    """The edges of one kind: `from -- tuples --> to & to`."""
    begin, end = arrow.split()
    found = re.findall(rf"^  (\w+) {re.escape(begin)} (.*) {re.escape(end)} (.*)$", PICTURE, re.MULTILINE)
    return {
        (sender, kind, receiver)
        for sender, kinds, receivers in found
        for kind in kinds.split(", ")
        for receiver in receivers.split(" & ")
    }


SOLID, DOTTED = drawn("-- -->"), drawn("-. .->")


def test_every_line_of_the_picture_is_understood() -> None:
    lines = [line for line in PICTURE.splitlines()[1:] if line]
    assert all(re.fullmatch(r"  \w+ (--|-\.) [\w, ]+ (-->|\.->) [\w& ]+", line) for line in lines)


def test_the_picture_is_the_graph_of_the_code() -> None:
    edges = {(str(by), kind.__name__, str(to)) for by, kind, to in EDGES if kind not in LEFT_OUT}
    assert (SOLID | DOTTED) - edges == set()
    assert edges - (SOLID | DOTTED) == set()


def test_feedback_queues_are_dotted_and_nothing_else_is() -> None:
    def is_queue(edge: Edge) -> bool:
        return edge[2].endswith("_source") and (edge[0].endswith("_sink") or edge[0] == edge[2])

    assert all(map(is_queue, DOTTED))
    assert not any(map(is_queue, SOLID))


def test_without_the_dotted_edges_the_graph_has_no_cycle() -> None:
    outside = {Stage.CLIENT, Stage.STORE}
    left = {(sender, receiver) for sender, _, receiver in SOLID if outside.isdisjoint((sender, receiver))}
    while left:
        ends = {receiver for _, receiver in left} - {sender for sender, _ in left}
        assert ends, f"a cycle among {left}"
        left = {edge for edge in left if edge[1] not in ends}
