"""What a large state costs: a live cluster with many values, beside the same one with none.

Both run at once, and are under load in turns: the empty one, the full one, the empty one again, and so on, so that each
turn of the full one stands between two of the empty one. The load is the same for both: closed-loop clients write
values of the same length, in turn; the empty cluster has as few as there are clients. In each of its turns the full
cluster takes a base, from its beginning to its end. Then sites of it are killed under the same load: one, and another
one together with its files. In the end every value is read, and the states of the replicas are compared.
"""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from tara.application import Put
from tara.bench.base_watch import BaseWatch, newest_base
from tara.bench.filling import TIMEOUT_S, missing_values, write_all
from tara.bench.load import LoadError, LoadReport, key_of
from tara.bench.load_process import UNTIL_STOPPED_S, LoadPlan, LoadProcess
from tara.live import control
from tara.operations import health
from tara.operations.deployment import Deployment
from tara.operations.fresh_checkpoint import next_checkpoint
from tara.operations.registry_client import ask
from tara.operations.running_states import compare_states
from tara.protocol import tuples as t

CLIENTS = 64
WARM_UP_S = 2.0
#: How long the clients write before and after a site is killed, and how long memory is looked at after a base.
PAUSE_S = 2.0
#: What a container keeps on its disk, by its site.
FILES = ("journal-{}", "bases-{}", "log-{}", "life-{}", "execution-{}")

Say = Callable[[str], None]


class StateReport(Struct, kw_only=True):
    values: int
    value_bytes: int
    clients: int
    turns: int
    #: The length of a base with all values.
    state_bytes: int = 0
    #: The full cluster, while it takes bases, against the empty one: medians over the turns. The longest time in which
    #: no client got an answer is of all turns.
    throughput_ratio: float = 0.0
    p99_ratio: float = 0.0
    pause_ms_max: float = 0.0
    view_changes: int = 0
    #: Bytes that a site of the full cluster wrote to its disk for each byte of commands, from its first value to its
    #: last turn.
    written_per_command_byte: float = 0.0
    #: The most memory of a container while it takes a base, against what it had before.
    capture_memory_ratio: float = 0.0
    #: Seconds from the kill of a site to full strength: with its files, and without them; and the 99th percentile of
    #: the latency meanwhile, against that of the full cluster's turns.
    recovery_s: float = 0.0
    transfer_s: float = 0.0
    recovery_p99_ratio: float = 0.0
    transfer_p99_ratio: float = 0.0
    #: The longest time in which no client got an answer, while sites were killed.
    killed_gap_ms: float = 0.0
    #: Turn by turn, the empty cluster's first; there is one more of its.
    empty_per_s: list[float] = []
    full_per_s: list[float] = []
    empty_p99_ms: list[float] = []
    full_p99_ms: list[float] = []
    empty_gap_ms: list[float] = []
    full_gap_ms: list[float] = []
    #: While all values were written for the first time.
    loading_per_s: float = 0.0
    loading_gap_ms: float = 0.0
    #: Seconds that each site needed for each base, and the memory of its container before.
    base_s: list[float] = []
    memory_mb: list[float] = []
    #: Commands that were never answered, and answers that were errors; values that are not there in the end; whether
    #: the replicas differed.
    lost: int = 0
    errors: int = 0
    missing: int = 0
    unequal: bool = False

    @property
    def all_is_there(self) -> bool:
        return not (self.lost or self.errors or self.missing or self.unequal)


def measure(values: int, value_bytes: int, seconds: float, turns: int, say: Say = lambda line: None) -> StateReport:
    """Turns of so many seconds; those of the full cluster are as long as a base takes, if that is longer."""
    report = StateReport(values=values, value_bytes=value_bytes, clients=CLIENTS, turns=turns)
    with tempfile.TemporaryDirectory(prefix="tara-state-") as directory, ExitStack() as stack:
        clusters = []
        for name in ("empty", "full"):
            cluster = Deployment(Path(directory) / name)
            stack.callback(cluster.stop)
            cluster.start()
            clusters.append(cluster)
        empty, full = clusters
        _Comparison(empty, full, report, seconds, say).run()
    return report


class _Comparison:
    def __init__(self, empty: Deployment, full: Deployment, report: StateReport, seconds: float, say: Say) -> None:
        self._empty = empty
        self._full = full
        self._report = report
        self._seconds = seconds
        self._say = say
        #: The lengths of a command, and of all commands that the full cluster has answered.
        self._command_bytes = len(t.encode(Put(key_of(0), bytes(report.value_bytes))))
        self._commands = 0

    def run(self) -> None:
        report = self._report
        written = self._written
        self._write_all()
        for _ in range(report.turns):
            self._measure_empty()
            self._measure_full()
        self._measure_empty()
        of_commands = len(self._pids(self._full)) * self._commands * self._command_bytes
        report.written_per_command_byte = round((self._written - written) / of_commands, 2)
        report.throughput_ratio = round(_ratio(report.full_per_s, report.empty_per_s), 3)
        report.p99_ratio = round(_ratio(report.full_p99_ms, report.empty_p99_ms), 3)
        report.pause_ms_max = max(report.full_gap_ms)
        report.recovery_s, report.recovery_p99_ratio = self._kill_under_load()
        report.transfer_s, report.transfer_p99_ratio = self._kill_under_load(without_files=True)
        self._say("every value is read")
        report.missing = missing_values(self._full.endpoints, report.values, report.value_bytes)
        report.unequal = not compare_states(self._full.data_dir, TIMEOUT_S).equal

    def _load(self, cluster: Deployment, values: int, seconds: float) -> LoadProcess:
        plan = LoadPlan(
            endpoints=cluster.endpoints,
            clients=CLIENTS,
            values=values,
            seconds=seconds,
            warm_up_s=WARM_UP_S,
            payload_bytes=self._report.value_bytes,
            interval_s=0.2,
        )
        return LoadProcess(plan)

    def _count(self, found: LoadReport, full: bool = True) -> LoadReport:
        self._report.lost += found.lost
        self._report.errors += found.errors
        if full:
            self._commands += found.answered
        return found

    def _write_all(self) -> None:
        report = self._report
        self._say(f"{report.values} values of {report.value_bytes} bytes are written")
        found = self._count(write_all(self._full.endpoints, report.values, report.value_bytes))
        report.loading_per_s, report.loading_gap_ms = found.throughput_per_s, found.gap_ms_max
        self._say(f"{found.throughput_per_s:.0f} commands/s")

    def _measure_empty(self) -> None:
        report = self._report
        found = self._count(self._load(self._empty, CLIENTS, self._seconds).finish(), full=False)
        report.empty_per_s.append(found.throughput_per_s)
        report.empty_p99_ms.append(found.latency_ms_p99)
        report.empty_gap_ms.append(found.gap_ms_max)
        self._say(f"empty: {_described(found)}")

    def _measure_full(self) -> None:
        report = self._report
        view = health.view(self._full.status())
        watch = BaseWatch(self._full.data_dir, self._pids(self._full))
        try:
            found = self._write_while_base_is_taken()
            time.sleep(PAUSE_S)
        finally:
            captures = watch.stop()
        report.full_per_s.append(found.throughput_per_s)
        report.full_p99_ms.append(found.latency_ms_p99)
        report.full_gap_ms.append(found.gap_ms_max)
        report.view_changes += health.view(self._full.status()) - view
        if not captures:
            raise LoadError("a base was written too quickly to be seen: the state is too small")
        report.state_bytes = max(capture.bytes for capture in captures)
        report.base_s += [round(capture.seconds, 2) for capture in captures]
        report.memory_mb += [round(capture.before / 1e6, 1) for capture in captures]
        ratio = max(capture.most / capture.before for capture in captures)
        report.capture_memory_ratio = max(report.capture_memory_ratio, round(ratio, 2))
        self._say(f"full: {_described(found)}; a base of {report.state_bytes / 1e6:.0f} MB in {report.base_s[-1]} s")

    def _write_while_base_is_taken(self) -> LoadReport:
        data_dir, sites = self._full.data_dir, self._pids(self._full)
        load, number = self._load(self._full, self._report.values, UNTIL_STOPPED_S), 0

        def is_there(site: int, number: int) -> bool:
            return newest_base(data_dir, site)[0] >= number

        try:
            for at_s, _ in load.seconds():
                if not number and at_s > WARM_UP_S:
                    number = next_checkpoint(data_dir)
                    ask(data_dir, control.AskBase(number))
                elif at_s > WARM_UP_S + self._seconds and all(is_there(site, number) for site in sites):
                    load.stop()
                elif at_s > TIMEOUT_S:
                    raise LoadError(f"no base within {TIMEOUT_S:.0f} s")
        finally:
            load.stop()
        return self._count(load.finish())

    @property
    def _written(self) -> int:
        """By all sites of the full cluster together."""
        return sum(map(_written, self._pids(self._full).values()))

    @staticmethod
    def _pids(cluster: Deployment) -> dict[int, int]:
        """The processes of its sites."""
        return {found["sites"][0]: found["pid"] for found in cluster.status()["containers"]}

    def _kill_under_load(self, without_files: bool = False) -> tuple[float, float]:
        """Seconds until the site is back, and the ratio of the latencies."""
        report = self._report
        load = self._load(self._full, report.values, UNTIL_STOPPED_S)
        try:
            time.sleep(WARM_UP_S + PAUSE_S)
            back_s = self._kill(without_files)
            time.sleep(PAUSE_S)
        finally:
            load.stop()
        found = self._count(load.finish())
        report.killed_gap_ms = max(found.gap_ms_max, report.killed_gap_ms)
        self._say(f"killed{', and its files removed' * without_files}: back after {back_s} s; {_described(found)}")
        return back_s, round(found.latency_ms_p99 / statistics.median(report.full_p99_ms), 2)

    def _kill(self, without_files: bool) -> float:
        """A site that does not lead; seconds until it is back."""
        status = self._full.status()
        leader = health.leader(status)
        place, victim = next(
            (place, found)
            for place, found in enumerate(status["containers"])
            if leader is None or found["container"] != leader["container"]
        )
        if without_files:
            # It is not to see that they go.
            os.kill(victim["pid"], signal.SIGSTOP)
            self._remove_files(victim["sites"][0])
        began_s = time.monotonic()
        os.kill(victim["pid"], signal.SIGKILL)

        def is_back(found: dict[str, Any]) -> bool:
            return found["containers"][place]["life"] > victim["life"] and health.full_strength(found)

        self._full.await_status(is_back, "a site that was killed", TIMEOUT_S)
        return round(time.monotonic() - began_s, 2)

    def _remove_files(self, site: int) -> None:
        """At once, however long they are."""
        removed = self._full.data_dir.parent / "removed"
        removed.mkdir()
        for path in (self._full.data_dir / pattern.format(site) for pattern in FILES):
            if path.exists():
                path.rename(removed / path.name)


def _described(found: LoadReport) -> str:
    return (
        f"{found.throughput_per_s:.0f} commands/s, p99 {found.latency_ms_p99:.0f} ms, longest pause "
        f"{found.gap_ms_max:.0f} ms"
    )


def _ratio(full: list[float], empty: list[float]) -> float:
    """Of each turn against the mean of those before and after it: the median."""
    return statistics.median(
        value / statistics.mean(beside) for value, beside in zip(full, pairwise(empty), strict=True)
    )


def _written(pid: int) -> int:
    """Bytes that it wrote to disks."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
