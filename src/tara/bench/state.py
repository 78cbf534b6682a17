"""What a large state costs: a live cluster with many values, beside the same one with hardly any.

In each turn a cluster is started. Pipelining clients write a few values again and again, then as many as asked for,
then all of these again, while the executors take a base. Then one site is killed under the same load, and another one
together with its files. In the end every value is read, and the states of the replicas are compared.
"""

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from tara.application import Get, Put
from tara.bench.load import LoadError, LoadReport
from tara.bench.load_process import LoadPlan, LoadProcess
from tara.bench.pipelines import VALUES, key_of, value_of
from tara.client import Client
from tara.configuration.settings import load_settings
from tara.live import control
from tara.live.spark import Cluster
from tara.operations import health
from tara.operations.fresh_checkpoint import bring_to, next_checkpoint
from tara.operations.registry_client import ask
from tara.operations.running_states import compare_states
from tara.protocol import tuples as t
from tara.storage.base_format import base_directory, list_bases, number_of
from tara.storage.files import TEMPORARY

CLIENTS = 4
IN_FLIGHT = 64
WARM_UP_S = 2.0
#: Longer than anything takes here.
UNTIL_STOPPED_S = 24 * 3600.0
TIMEOUT_S = 300.0
POLL_S = 0.01
#: How long the clients write before a site is killed, and how long memory is looked at after a base.
PAUSE_S = 2.0
#: Values that are read at once.
READ_AHEAD = 256
#: What a container keeps on its disk, by its site.
FILES = ("journal-{}", "bases-{}", "log-{}", "life-{}", "execution-{}")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Say = Callable[[str], None]


class StateReport(Struct, kw_only=True):
    values: int
    value_bytes: int
    clients: int
    in_flight: int
    #: Commands per second in each turn: with hardly any state, while the values were written first, and with all.
    empty_per_s: list[float] = []
    loading_per_s: list[float] = []
    full_per_s: list[float] = []
    #: With all values, against hardly any in the same turn: the median.
    full_to_empty: float = 0.0
    #: The longest times in which no client got an answer: in the same times, and while sites were killed.
    empty_gap_ms: float = 0.0
    loading_gap_ms: float = 0.0
    full_gap_ms: float = 0.0
    killed_gap_ms: float = 0.0
    #: Until the first site was killed.
    view_changes: int = 0
    #: The length of a base with all values, and how long it took to write one.
    base_bytes: int = 0
    base_s: list[float] = []
    #: Bytes that a site wrote to its disk for each byte of commands with all values, in each turn; and how much of that
    #: were bases.
    written: list[float] = []
    written_bases: list[float] = []
    #: The memory of each container before a base; and the most, while it was taken and afterwards, against that.
    memory_mb: list[float] = []
    memory_while: float = 0.0
    memory_after: float = 0.0
    #: Seconds from the kill of a site until it votes and holds the stable checkpoint again.
    back_s: list[float] = []
    back_without_files_s: list[float] = []
    #: Commands that were never answered, and answers that were errors; values that are not there in the end; turns
    #: after which the replicas differed.
    lost: int = 0
    errors: int = 0
    missing: int = 0
    unequal: int = 0

    @property
    def all_is_there(self) -> bool:
        return not (self.lost or self.errors or self.missing or self.unequal)


def measure(values: int, value_bytes: int, seconds: float, turns: int, say: Say = lambda line: None) -> StateReport:
    report = StateReport(values=values, value_bytes=value_bytes, clients=CLIENTS, in_flight=IN_FLIGHT)
    for _ in range(turns):
        with tempfile.TemporaryDirectory(prefix="tara-state-") as directory:
            cluster = Cluster(load_settings(environment={}, flags={"data_dir": str(Path(directory) / "data")}))
            try:
                cluster.start()
                _Turn(cluster, report, seconds, say).run()
            finally:
                cluster.stop()
    ratios = [full / empty for full, empty in zip(report.full_per_s, report.empty_per_s, strict=True)]
    report.full_to_empty = round(statistics.median(ratios), 3)
    return report


class _Turn:
    """One cluster, from its start on."""

    def __init__(self, cluster: Cluster, report: StateReport, seconds: float, say: Say) -> None:
        self._registry = cluster.registry
        self._data_dir = Path(cluster.settings.data_dir)
        self._report = report
        self._seconds = seconds
        self._say = say

    def run(self) -> None:
        report = self._report
        self._say("hardly any state")
        empty = self._note(self._load(VALUES, self._seconds).finish())
        report.empty_per_s.append(empty.throughput_per_s)
        report.empty_gap_ms = max(empty.gap_ms_max, report.empty_gap_ms)
        self._say(f"{empty.throughput_per_s:.0f} commands/s; all values are written")
        self._write_all()
        self._say(f"{report.loading_per_s[-1]:.0f} commands/s; they are written again, and a base is taken")
        self._measure_full()
        self._say(f"{report.full_per_s[-1]:.0f} commands/s; sites are killed")
        self._kill_sites()
        self._say("every value is read")
        report.missing += missing_values(",".join(self._registry.endpoints), report.values, report.value_bytes)
        comparison = compare_states(self._data_dir, TIMEOUT_S)
        report.unequal += not comparison.equal

    def _load(self, values: int, seconds: float, warm_up_s: float = WARM_UP_S) -> LoadProcess:
        plan = LoadPlan(
            endpoints=",".join(self._registry.endpoints),
            clients=CLIENTS,
            in_flight=IN_FLIGHT,
            values=values,
            seconds=seconds,
            warm_up_s=warm_up_s,
            payload_bytes=self._report.value_bytes,
            interval_s=0.2,
        )
        return LoadProcess(plan)

    def _note(self, found: LoadReport) -> LoadReport:
        self._report.lost += found.lost
        self._report.errors += found.errors
        return found

    def _write_all(self) -> None:
        load, answered = self._load(self._report.values, UNTIL_STOPPED_S, 0.0), 0
        for _, count in load.seconds():
            answered += count
            if answered >= self._report.values:
                load.stop()
        found = self._note(load.finish())
        self._report.loading_per_s.append(found.throughput_per_s)
        self._report.loading_gap_ms = max(found.gap_ms_max, self._report.loading_gap_ms)

    # With all values

    def _measure_full(self) -> None:
        report, sites = self._report, self._sites()
        view, saved, written = self._view, self._bases_saved, sum(map(_written, sites.values()))
        watch = _Watch(self._data_dir, sites)
        try:
            found = self._write_and_take_base()
            time.sleep(PAUSE_S)
        finally:
            captures = watch.stop()
        report.full_per_s.append(found.throughput_per_s)
        report.full_gap_ms = max(found.gap_ms_max, report.full_gap_ms)
        report.view_changes += self._view - view
        if not captures:
            raise LoadError("a base was written too quickly to be seen: the state is too small")
        report.base_bytes = max(capture.bytes for capture in captures)
        commands = len(sites) * found.answered * len(t.encode(Put(key_of(0), bytes(report.value_bytes))))
        report.written.append(round((sum(map(_written, sites.values())) - written) / commands, 2))
        report.written_bases.append(round((self._bases_saved - saved) * report.base_bytes / commands, 2))
        report.base_s += [round(capture.seconds, 2) for capture in captures]
        report.memory_mb += [round(capture.before / 1e6, 1) for capture in captures]
        report.memory_while = max(report.memory_while, max(round(c.most / c.before, 2) for c in captures))
        report.memory_after = max(report.memory_after, max(round(c.after / c.before, 2) for c in captures))

    def _write_and_take_base(self) -> LoadReport:
        load, number = self._load(self._report.values, self._seconds), 0
        for at_s, _ in load.seconds():
            if not number and at_s > WARM_UP_S:
                number = next_checkpoint(self._data_dir)
                ask(self._data_dir, control.AskBase(number))
        found = self._note(load.finish())
        # Where the clients have not come as far as that, others do. That is not in what is measured.
        bring_to(self._data_dir, next_checkpoint(self._data_dir), time.monotonic() + TIMEOUT_S)
        sites = self._sites()
        self._await(lambda: all(_newest_base(self._data_dir, site)[0] >= number for site in sites), "a base")
        return found

    @property
    def _view(self) -> int:
        """The highest one of any committer."""
        containers = self._registry.status()["containers"]
        partitions = [found for container in containers for found in container.get("partitions", {}).values()]
        return max((int(partition.get("view", 0)) for partition in partitions), default=0)

    @property
    def _bases_saved(self) -> int:
        """By all sites together."""
        return sum(int(container["counters"]["bases_saved"]) for container in self._registry.status()["containers"])

    # Sites that are killed

    def _kill_sites(self) -> None:
        report = self._report
        load = self._load(report.values, UNTIL_STOPPED_S)
        try:
            time.sleep(WARM_UP_S + PAUSE_S)
            report.back_s.append(self._kill())
            time.sleep(PAUSE_S)
            report.back_without_files_s.append(self._kill(remove_files=True))
            time.sleep(PAUSE_S)
        finally:
            load.stop()
        report.killed_gap_ms = max(self._note(load.finish()).gap_ms_max, report.killed_gap_ms)

    def _kill(self, remove_files: bool = False) -> float:
        """A site that does not lead; seconds until it is back."""
        status = self._registry.status()
        leader = health.leader(status)
        place, victim = next(
            (place, found)
            for place, found in enumerate(status["containers"])
            if leader is None or found["container"] != leader["container"]
        )
        if remove_files:
            # It is not to see that they go.
            os.kill(victim["pid"], signal.SIGSTOP)
            self._remove_files(victim["sites"][0])
        began_s = time.monotonic()
        os.kill(victim["pid"], signal.SIGKILL)

        def is_back() -> bool:
            found = self._registry.status()
            return found["containers"][place]["life"] > victim["life"] and health.full_strength(found)

        self._await(is_back, "a site that was killed")
        return round(time.monotonic() - began_s, 2)

    def _remove_files(self, site: int) -> None:
        """At once, however long they are."""
        removed = self._data_dir.parent / "removed"
        removed.mkdir()
        for path in (self._data_dir / pattern.format(site) for pattern in FILES):
            if path.exists():
                path.rename(removed / path.name)

    def _sites(self) -> dict[int, int]:
        """Their processes."""
        return {found["sites"][0]: found["pid"] for found in self._registry.status()["containers"]}

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > end_s:
                raise LoadError(f"not within {TIMEOUT_S:.0f} s: {what}")
            time.sleep(POLL_S)


def missing_values(endpoints: str, values: int, value_bytes: int) -> int:
    """Values that are not what was written."""
    expected, missing = t.encode(value_of(CLIENTS, value_bytes)), 0
    with Client(endpoints, timeout_s=TIMEOUT_S) as client:
        for first in range(0, values, READ_AHEAD):
            indexes = range(first, min(first + READ_AHEAD, values))
            answers = [client.submit_query(t.encode(Get(key_of(index)))) for index in indexes]
            missing += sum(answer.result() != expected for answer in answers)
    return missing


class _Capture(NamedTuple):
    """What was seen of a base that was taken."""

    bytes: int
    seconds: float
    #: The memory of the container: when it began, the most meanwhile, and the most afterwards.
    before: int
    most: int
    after: int


class _Watch:
    """Looks at the containers' memory and bases until it is stopped."""

    def __init__(self, data_dir: Path, sites: dict[int, int]) -> None:
        self._data_dir = data_dir
        self._sites = sites
        #: By site: when, how much memory, and whether a base was being written.
        self._seen: dict[int, list[tuple[float, int, bool]]] = {site: [] for site in sites}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ends.wait(POLL_S):
            for site, pid in self._sites.items():
                writes = any(self._directory(site).glob(f"*{TEMPORARY}"))
                self._seen[site].append((time.monotonic(), _memory(pid), writes))

    def _directory(self, site: int) -> Path:
        return base_directory(self._data_dir, site)

    def stop(self) -> list[_Capture]:
        """The last base that each site has taken."""
        self._ends.set()
        self._thread.join()
        return [found for site in self._sites if (found := self._capture(site)) is not None]

    def _capture(self, site: int) -> _Capture | None:
        seen = self._seen[site]
        writing = [index for index, (_, _, writes) in enumerate(seen) if writes]
        if not writing:
            # It was too short to be seen.
            return None
        end = writing[-1] + 1
        begin = next((index for index in range(end - 1, 0, -1) if not seen[index - 1][2]), 0)
        memory = [size for _, size, _ in seen]
        return _Capture(
            _newest_base(self._data_dir, site)[1],
            seen[end - 1][0] - seen[begin][0],
            memory[max(begin - 1, 0)],
            max(memory[begin:end]),
            max(memory[end:], default=memory[end - 1]),
        )


def _newest_base(data_dir: Path, site: int) -> tuple[int, int]:
    """Its number and length; (0, 0): there is none."""
    found = list_bases(base_directory(data_dir, site))
    return (number_of(found[-1]), found[-1].stat().st_size) if found else (0, 0)


def _memory(pid: int) -> int:
    """In bytes; of a process that has ended, none."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _written(pid: int) -> int:
    """Bytes that it wrote to disks."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
