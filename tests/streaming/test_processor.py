"""What Spark calls in a Python worker, with a state store in memory."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row as SparkRow

from tara.application import AppendRegister
from tara.streaming import processor, queue, rows
from tara.streaming.config import StreamingConfig
from tara.streaming.errors import StreamingError
from tara.streaming.processor import NodeProcessor
from tara.streaming.rows import COLUMNS, Row

CONFIG = StreamingConfig(checkpoint="somewhere")


class Value:
    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None

    def get(self) -> tuple[Any, ...] | None:
        return self.value

    def update(self, value: tuple[Any, ...]) -> None:
        self.value = tuple(value)


class Map:
    def __init__(self) -> None:
        self.values: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        return self.values.get(key)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        self.values[key] = value

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        del self.values[key]

    def clear(self) -> None:
        self.values.clear()


class Handle:
    """The state of one key."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}

    def getValueState(self, name: str, schema: Any) -> Value:  # noqa: N802
        return self.variables.setdefault(name, Value())

    def getMapState(self, name: str, key: Any, value: Any) -> Map:  # noqa: N802
        return self.variables.setdefault(name, Map())


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    processor._hosts.clear()
    yield
    processor._hosts.clear()


def turn(handle: Handle, number: int, taken: list[Row], start: str = "first") -> list[Row]:
    """A micro-batch: Spark makes a processor anew each time."""
    node = NodeProcessor(start, CONFIG, AppendRegister, executes=True)
    node.init(handle)  # type: ignore[arg-type]
    make = SparkRow("operator", *COLUMNS)
    found = [Row(*(row[name] for name in COLUMNS)) for row in node.handleInputRows((number,), feed(make, taken), None)]
    node.close()
    return found


def feed(make: Any, taken: list[Row]) -> Iterator[Any]:
    """Rows have the column that they are grouped by, too."""
    return (make(row.key, *row) for row in taken)


def tick(key: int, number: int) -> list[Row]:
    return [row for row in queue.ticks(CONFIG.graph, number, 1_000_000 + number) if row.node == key]


def test_rows_for_other_operators_pass_through() -> None:
    handle = Handle()
    passing = [Row(3, 3, 1, 5, data=b"for somebody else"), Row(-1, -1, rows.BUSY, 0)]
    assert turn(handle, -1, passing) == passing
    assert handle.variables["version"].value is None


def test_a_node_stays_in_memory_as_long_as_its_state_is_the_one_that_it_left() -> None:
    handle = Handle()
    for number in range(1, 4):
        turn(handle, 0, tick(0, number))
    ((_, host),) = processor._hosts.values()
    assert (host.hits, host.stale, host.misses) == (2, 0, 0)
    assert handle.variables["version"].value[1:4] == ("request_source-0", "request_source", 0)
    handle.variables["version"].value = (b"another", *handle.variables["version"].value[1:])
    turn(handle, 0, tick(0, 4))
    assert (host.hits, host.stale, host.misses) == (2, 1, 0)


def test_another_start_of_the_query_has_nodes_of_its_own() -> None:
    """With another application, perhaps; and the former one's leave the memory."""
    handle = Handle()
    turn(handle, 0, tick(0, 1))
    turn(handle, 0, tick(0, 2), start="second")
    ((start, host),) = processor._hosts.values()
    assert (start, host.hits, host.misses) == ("second", 0, 1)


def test_what_is_missing_in_the_state_store_is_told() -> None:
    handle = Handle()
    turn(handle, 0, tick(0, 1))
    processor._hosts.clear()
    handle.variables["node"].value = None
    with pytest.raises(StreamingError, match="a node is missing in the state store"):
        turn(handle, 0, tick(0, 2))
