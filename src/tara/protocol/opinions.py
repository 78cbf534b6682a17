"""What the replicas of another stage say, and what enough of them agree on (paper, "Comparison").

A value that `threshold` replicas have reached is the threshold-highest of their values. Opinions only rise: a
replica that restarts and reports less than before has not taken anything back.
"""

from collections.abc import Sequence


def highest(values: Sequence[int], threshold: int) -> int:
    """The value that at least `threshold` of the values have reached."""
    return sorted(values, reverse=True)[threshold - 1]


#: How far a request source has got: its epoch, then the number within the epoch. Compared as a pair.
Reach = tuple[int, int]


class ProgressOpinions:
    """Each executor's progress, source by source; rises component by component."""

    __slots__ = ("_opinions",)

    def __init__(self, executors: int, sources: int) -> None:
        self._opinions: list[list[Reach]] = [[(0, 0)] * sources for _ in range(executors)]

    def update(self, executor: int, progress: Sequence[Reach]) -> None:
        opinion = self._opinions[executor]
        for source, reach in enumerate(progress):
            if reach > opinion[source]:
                opinion[source] = reach

    def highest(self, source: int, threshold: int) -> Reach:
        """What at least `threshold` executors have reached for this source."""
        return sorted((opinion[source] for opinion in self._opinions), reverse=True)[threshold - 1]
