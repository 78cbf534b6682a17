"""Incarnations: on which incarnation of a node a statement rests.

A node has another incarnation when it has lost what it had promised: a proposer with every start, a committer when it
starts without its journal. What a former incarnation said may still be on its way, and must not count together with
what the new one says. Nodes tell each other the highest incarnations that they have heard of, in a vector per
partition: the proposers, then the committers (`Graph.member`). Three rules rest on it:

- R1: a proposer becomes active in a view only with records that name its own incarnation. So only one start of it can,
  and it proposes at most one request per slot and view.
- R2: a statement of a committer does not count if another one knows a higher incarnation of it: it was made before a
  loss. (`current`; for the records of a view, and for the answers to a read.)
- R3: a committer takes part in a view only if the start of the view names its own incarnation.

Numbers only rise: whoever hears of a higher one remembers it, and nobody goes back.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

#: Of every node at genesis: no number is lower.
FIRST_INCARNATION = 1


class Statement(Protocol):
    """What a committer says, with its incarnation, and with those that it had heard of."""

    @property
    def incarnation(self) -> int: ...

    @property
    def incarnations(self) -> list[int]: ...


Said = TypeVar("Said", bound=Statement)


def newest(vectors: Iterable[Sequence[int]]) -> list[int]:
    """What is known by all of them together."""
    return [max(column) for column in zip(*vectors, strict=True)]


def current(said: list[Said], member: Callable[[Said], int]) -> list[Said]:
    """Those that no other one knows to be of a former incarnation (R2); `member` is the place of who said it."""
    if not said:
        return []
    known = newest([one.incarnations for one in said])
    return [one for one in said if one.incarnation >= known[member(one)]]
