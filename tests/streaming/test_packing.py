"""Commands of a micro-batch in few rows."""

import random

import pyarrow as pa
import pytest

from tara.streaming import packing
from tara.streaming.clients import CommandRow

Keyed = tuple[int, str, int, bytes | None]
SCHEMA = pa.schema([("key", pa.int32()), ("client", pa.string()), ("number", pa.int64()), ("payload", pa.binary())])


def batches(commands: list[Keyed], size: int) -> list[pa.RecordBatch]:
    found = []
    for start in range(0, len(commands), size):
        columns = zip(*commands[start : start + size], strict=True)
        found.append(pa.RecordBatch.from_pydict(dict(zip(packing.INPUT, map(list, columns), strict=True)), SCHEMA))
    return found


def unpacked(commands: list[Keyed], size: int) -> dict[int, list[CommandRow]]:
    data: dict[int, list[bytes]] = {}
    for packed in packing.pack(batches(commands, size)):
        for row in packed.to_pylist():
            data.setdefault(row["key"], []).append(row["data"])
    return {key: packing.unpack(some) for key, some in data.items()}


def commands() -> list[Keyed]:
    draw = random.Random(1)
    found: list[Keyed] = [
        (draw.randrange(3), f"client-{draw.randrange(5)}", draw.randrange(20), draw.randbytes(draw.randrange(4)))
        for _ in range(200)
    ]
    return [*found, (1, "client-1", 3, None), (1, "", -1, b"")]


@pytest.mark.parametrize("bytes_max", [1 << 20, 100])
def test_the_order_does_not_depend_on_how_they_came(bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACKED_BYTES", bytes_max)
    sent = commands()
    first = unpacked(sent, 50)
    random.Random(2).shuffle(sent)
    assert unpacked(sent, 7) == first
    assert sorted(first) == [0, 1, 2]
    for key, found in first.items():
        wanted = [(client, number, payload) for place, client, number, payload in sent if place == key]
        assert found == sorted(wanted, key=lambda row: (row[1], row[0], row[2] is None, row[2] or b""))


def test_a_task_keeps_no_more_than_a_few_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACKED_BYTES", 10_000)
    taken = 0

    def arrive() -> object:
        nonlocal taken
        for _ in range(50):
            taken += 1
            yield batches([(0, "a", taken, b"x" * 3_000)], 1)[0]

    kept = []
    for packed in packing.pack(arrive()):  # type: ignore[arg-type]
        assert packed.num_rows == 1
        kept.append(taken)
    assert kept[0] <= 5
    assert len(kept) >= 10


def test_nothing_is_no_row() -> None:
    assert list(packing.pack([])) == []
    assert packing.unpack([]) == []
