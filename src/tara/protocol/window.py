"""The window: consecutive numbers of which a bounded part is remembered (paper, "Window").

The numbers below `pos` have been filled, the numbers from `min` on are remembered, and `min + capacity` is the
first number that does not fit. Runs of numbers are filled at once, because that is how tuples carry them.

Invariant: min <= pos <= max, and max == min + capacity.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from tara.protocol.errors import NodeHalted

Value = TypeVar("Value")


class Window(Generic[Value]):
    __slots__ = ("_values", "capacity", "min")

    def __init__(self, minimum: int, capacity: int) -> None:
        if minimum < 0 or capacity <= 0:
            raise NodeHalted(f"a window from {minimum} on with room for {capacity}")
        self.min = minimum
        self.capacity = capacity
        self._values: list[Value] = []

    @property
    def pos(self) -> int:
        """The next number to fill."""
        return self.min + len(self._values)

    @property
    def room(self) -> int:
        return self.capacity - len(self._values)

    def __getitem__(self, index: int) -> Value:
        if not self.min <= index < self.pos:
            raise NodeHalted(f"number {index} is not in the window [{self.min}, {self.pos})")
        return self._values[index - self.min]

    def slice(self, first: int, end: int) -> list[Value]:
        """The values of [first, end), which must be remembered."""
        if not self.min <= first <= end <= self.pos:
            raise NodeHalted(f"numbers [{first}, {end}) are not in the window [{self.min}, {self.pos})")
        return self._values[first - self.min : end - self.min]

    def extend(self, values: Sequence[Value]) -> None:
        """Fill the next numbers. The caller has made sure that they fit."""
        if len(values) > self.room:
            raise NodeHalted(f"{len(values)} more do not fit the window [{self.min}, {self.pos}) of {self.capacity}")
        self._values.extend(values)

    def put(self, index: int, value: Value) -> None:
        """Fill the next number, or overwrite one that was filled: the newer value wins (unlike in the paper)."""
        if index == self.pos:
            self.extend((value,))
        else:
            if not self.min <= index < self.pos:
                raise NodeHalted(f"number {index} leaves a gap in the window [{self.min}, {self.pos})")
            self._values[index - self.min] = value

    def move(self, minimum: int) -> None:
        """Forget the numbers below `minimum`. A window only moves forward."""
        if minimum > self.min:
            del self._values[: minimum - self.min]
            self.min = minimum

    def clear(self) -> None:
        """Forget everything; the numbers from `min` on are to be filled again."""
        self._values.clear()
