"""`tara drill log`, small; and that its comparison notices what it has to."""

import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tara.drills import log_readers
from tara.drills.log_readers import Comparison, compare
from tara.storage.log_reader import LogReader
from tests.storage.logs import simple, written

COMMANDS = 60


def batches(directory: Path, *ranges: tuple[int, int], harm: int = 0) -> list[list[Path]]:
    """As a query would have written these commands of the log, each range a micro-batch; `harm` is one whose result is
    another."""
    log = written(directory / "log", simple(COMMANDS))
    found = []
    for number, (start, end) in enumerate(ranges):
        rows = log.read(start, end)
        results = [zlib.crc32(data) for data in rows.column("result").to_pylist()]
        if start <= harm < end:
            results[harm - start] += 1
        path = directory / f"{number}.parquet"
        columns = {name: rows.column(name) for name in ("counter", "session", "number")}
        columns["command"] = pa.array([zlib.crc32(data) for data in rows.column("command").to_pylist()], pa.int64())
        columns["result"] = pa.array(results, pa.int64())
        pq.write_table(pa.table(columns), path)
        found.append([path])
    return found


@pytest.mark.parametrize(
    ("ranges", "harm", "found"),
    [
        ([(1, 30), (30, 61)], 0, Comparison(0, 0, 0, 0)),
        ([(1, 30), (31, 61)], 0, Comparison(1, 0, 0, 0)),
        ([(1, 31), (30, 61)], 0, Comparison(0, 1, 0, 0)),
        ([(30, 61), (1, 30)], 0, Comparison(0, 0, 1, 0)),
        ([(1, 30), (30, 61)], 33, Comparison(0, 0, 0, 1)),
        ([(1, 30)], 0, Comparison(31, 0, 0, 0)),
    ],
)
def test_what_is_wrong_is_noticed(tmp_path: Path, ranges: list[tuple[int, int]], harm: int, found: Comparison) -> None:
    copy = batches(tmp_path, *ranges, harm=harm)
    assert compare(iter(copy), [LogReader(tmp_path / "log")]) == found


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_elsewhere_has_every_command_once_though_sites_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_readers, "KILL_PAUSE_S", 0.5)
    verdict = log_readers.log(tmp_path, print, commands=20_000)
    assert verdict.failures == []
    assert verdict.commands >= 20_000
    assert verdict.faults >= 2
