"""What a heartbeat must say of a container (see `tara.live.reporting`) before the registry believes it.

Status, metrics and whoever asks are made of it, and none of them may fail over a report that makes no sense.
"""

from typing import Any

import msgspec
from msgspec import Struct

from tara.host.latency import BOUNDS_S
from tara.live.observability.prometheus import COUNTERS, HISTOGRAMS
from tara.protocol.errors import MalformedTuple
from tara.protocol.tuples import DECODE_ERRORS


class _Executor(Struct):
    next: int
    counter: int
    sessions: int
    stable: int
    checkpoints: list[int]
    digest: str | None = None
    time_ahead_ms: int = 0


class _Committer(Struct):
    position: int
    started: bool
    recovering: bool


class _Proposer(Struct):
    index: int
    mode: str
    view: int


class _Partition(Struct):
    view: int = 0
    pending: int = 0
    backlog: int = 0
    committer: _Committer | None = None
    proposer: _Proposer | None = None


class _Histogram(Struct):
    counts: list[int]
    sum_s: float


class _Process(Struct):
    rss_bytes: int
    cpu_s: float


class _Node(Struct):
    state: str
    view: int = 0
    position: int = 0
    stable: int = 0
    pending: int = 0
    backlog: int = 0
    backlog_bytes: int = 0
    resent: int = 0
    views_entered: int = 0


class _Gateway(Struct):
    address: str
    serving: bool
    error: str


class _Report(Struct):
    partitions: dict[str, _Partition]
    lives: list[int]
    counters: dict[str, int | dict[str, str]]
    histograms: dict[str, _Histogram]
    process: _Process
    nodes: dict[str, _Node]
    executor: _Executor | None = None
    gateway: _Gateway | None = None


_check = msgspec.json.Decoder(_Report).decode


def decode_status(data: bytes) -> dict[str, Any]:
    """The report of a heartbeat."""
    try:
        report = _check(data)
    except DECODE_ERRORS as error:
        raise MalformedTuple(f"heartbeat: {error}") from error
    for name, *_ in COUNTERS:
        if not isinstance(report.counters.get(name), int):
            raise MalformedTuple(f"heartbeat: counters.{name} is not a number")
    if not isinstance(report.counters.get("halted"), dict):
        raise MalformedTuple("heartbeat: counters.halted is not a table")
    for name, *_ in HISTOGRAMS:
        if name not in report.histograms or len(report.histograms[name].counts) != len(BOUNDS_S) + 1:
            raise MalformedTuple(f"heartbeat: histograms.{name} is not a histogram")
    return dict(msgspec.json.decode(data))
