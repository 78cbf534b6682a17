"""A container goes where its journal is: what Spark is told of that."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tara.live import task_placement

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local = "127.0.0.1"
    builder = SparkSession.builder.master("local[1]").config("spark.driver.host", local)
    session = builder.config("spark.driver.bindAddress", local).config("spark.ui.enabled", "false").getOrCreate()
    yield session.sparkContext
    session.stop()


def test_an_element_says_where_it_wants_to_be(context: Any, tmp_path: Path) -> None:
    found = tmp_path / "found"
    element = task_placement.element_at(context, 7, ["127.0.0.3"])

    element.foreachPartition(lambda elements: found.write_text(str(list(elements))))

    assert found.read_text() == "[7]"
    data = element._jrdd.rdd()
    assert data.preferredLocations(data.partitions()[0]).mkString(",") == "127.0.0.3"


def test_without_a_place_it_runs_anywhere(context: Any) -> None:
    assert task_placement.element_at(context, 7, []).collect() == [7]


def test_the_driver_is_no_executor(context: Any) -> None:
    assert task_placement.executor_hosts(context) == set()
    assert task_placement.await_executors(context, ["127.0.0.9"], timeout_s=0.3) == ["127.0.0.9"]
    assert task_placement.await_executors(context, []) == []


def test_hosts_are_known_by_name_or_address(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_placement, "executor_hosts", lambda context: {"localhost", "127.0.0.9"})

    assert task_placement.hosts_at(context, "127.0.0.1") == ["localhost"]
    assert task_placement.hosts_at(context, "127.0.0.9") == ["127.0.0.9"]
    assert task_placement.hosts_at(context, "127.0.0.8") == []
