"""What the evaluation has measured, as it is kept in `results.json`: samples, their medians and their spread."""

import contextlib
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from evaluation.machine import Machine
from tara.bench.processors import CpuUse
from tara.protocol.errors import TaraError

FORMAT_VERSION = 1


class ResultsError(TaraError):
    """The file with the results cannot be used."""


class Sample(Struct, kw_only=True):
    """One measurement of one system under one load."""

    throughput_per_s: float
    latency_ms_p50: float
    latency_ms_p99: float
    #: The longest time in which no client got an answer.
    gap_ms_max: float
    errors: int = 0
    cpu: CpuUse | None = None


class Point(Struct, kw_only=True):
    """The repetitions of one measurement. `x` is what its series varies."""

    x: float
    clients: int
    samples: list[Sample]

    def values(self, of: Callable[[Sample], float]) -> list[float]:
        return [of(sample) for sample in self.samples]

    def median(self, of: Callable[[Sample], float]) -> float:
        return statistics.median(self.values(of))

    def spread(self, of: Callable[[Sample], float]) -> tuple[float, float]:
        """From the median down to the least, and up to the largest."""
        values, median = self.values(of), self.median(of)
        return median - min(values), max(values) - median

    @property
    def throughput_per_s(self) -> float:
        return self.median(throughput)

    @property
    def server_us(self) -> float | None:
        """Processor time of all servers per answer."""
        known = [
            sample.cpu.server / sample.throughput_per_s
            for sample in self.samples
            if sample.cpu is not None and sample.throughput_per_s
        ]
        return statistics.median(known) * 1e6 if known else None


def throughput(sample: Sample) -> float:
    return sample.throughput_per_s


def latency_p50(sample: Sample) -> float:
    return sample.latency_ms_p50


def latency_p99(sample: Sample) -> float:
    return sample.latency_ms_p99


def gap(sample: Sample) -> float:
    return sample.gap_ms_max


class Series(Struct, kw_only=True):
    """A curve: one system in one setting."""

    system: str
    setting: str
    durability: str
    points: list[Point]

    @property
    def label(self) -> str:
        return f"{self.system}, {self.setting}" if self.setting else self.system

    def at(self, clients: int) -> Point | None:
        return next((point for point in self.points if point.clients == clients), None)

    @property
    def peak(self) -> float:
        return max((point.throughput_per_s for point in self.points), default=0.0)


class Moment(Struct, kw_only=True):
    """Something that happened while the load ran."""

    at_s: float
    #: crash, view change, restart, or full strength.
    kind: str
    what: str


class Timeline(Struct, kw_only=True):
    """Throughput over time, and what happened."""

    interval_s: float
    #: The end of each interval, and answers per second in it.
    rates: list[tuple[float, float]]
    moments: list[Moment]
    gap_ms_max: float
    lost: int


class Step(Struct, kw_only=True):
    """What a request costs in one step, all sites together."""

    step: str
    microseconds: list[float]


class Section(Struct, kw_only=True):
    """What one experiment brought, and how it was made. Unused kinds of results stay empty."""

    measured_at: str
    took_s: float
    seconds: float
    repetitions: int
    quick: bool
    machine: Machine
    #: One line for each thing that was left out, and why.
    skipped: list[str] = []
    #: Why there are no results, if the experiment failed.
    failure: str = ""
    series: list[Series] = []
    timelines: list[Timeline] = []
    steps: list[Step] = []
    #: Code lines of the live path, in all and by category; by package; and those of all other packages.
    lines: dict[str, int] = {}
    packages: dict[str, int] = {}
    other_packages: dict[str, int] = {}


class Results(Struct, kw_only=True):
    version: int = FORMAT_VERSION
    sections: dict[str, Section] = {}


def load(path: Path) -> Results:
    """What is there; nothing, if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Results()
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from error
    try:
        results = msgspec.json.decode(data, type=Results)
    except msgspec.DecodeError as error:
        raise ResultsError(f"{path}: {error}; remove it to begin anew") from error
    if results.version != FORMAT_VERSION:
        raise ResultsError(f"{path}: format {results.version}, but this program has {FORMAT_VERSION}; remove it")
    return results


def save(results: Results, path: Path) -> None:
    write_whole(path, msgspec.json.format(msgspec.json.encode(results), indent=1))


def write_whole(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error
