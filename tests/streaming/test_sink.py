"""The sink of `format("tara")` and its staged rows, without Spark and without a cluster."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tara.protocol import tuples as t
from tara.streaming import sink
from tara.streaming.sink import SECRET, SinkError, TaraWriter, sink_options


class Executed:
    """A client of a cluster that has nothing of this stream yet, and executes everything."""

    commands: list[bytes]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        Executed.commands = []

    def __enter__(self) -> "Executed":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def claim(self, number: int, value: bytes) -> t.Claim:
        return t.Claim(number, value, 1, 1)

    def submit(self, command: bytes) -> "Future[bytes]":
        Executed.commands.append(command)
        future: Future[bytes] = Future()
        future.set_result(b"")
        return future


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaraWriter:
    monkeypatch.setattr(sink, "Client", Executed)
    options = {"endpoints": "127.0.0.1:1", "stream": "orders", "staging": str(tmp_path)}
    return TaraWriter(sink_options(options), StructType().add("payload", "binary"))


def rows(*payloads: bytes) -> Any:
    return iter([pa.RecordBatch.from_pydict({"payload": list(payloads)})])


def test_staged_rows_are_sent_and_removed(writer: TaraWriter, tmp_path: Path) -> None:
    writer.commit([writer.write(rows(b"one", b"two")), writer.write(rows(b"three"))], 0)
    assert Executed.commands == [b"one", b"two", b"three"]
    assert [path.name for path in tmp_path.iterdir()] == [SECRET]


@pytest.mark.parametrize("place", [0, 3, -1])
def test_staged_rows_that_are_damaged_are_not_sent(writer: TaraWriter, tmp_path: Path, place: int) -> None:
    staged = writer.write(rows(b"one", b"two"))
    path = tmp_path / staged.name
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(SinkError, match=f"{path}: is damaged: .* Put a copy of the file back"):
        writer.commit([staged], 0)
    assert Executed.commands == []


def test_staged_rows_that_are_gone_are_told(writer: TaraWriter, tmp_path: Path) -> None:
    staged = writer.write(rows(b"one"))
    (tmp_path / staged.name).unlink()
    with pytest.raises(SinkError, match="damaged or gone"):
        writer.commit([staged], 0)
