"""A slow disk under each site of a live cluster: the local one, but what is synced is carried there at a fixed rate.

Journal, decided log and bases of a site share the rate, first come, first served, as they would on a real disk. Under
such a disk clients are to be slowed down evenly, and no leader is to be replaced for it.
"""

import os
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

from tara.bench.filling import write_all
from tara.bench.load_process import LoadPlan, LoadProcess
from tara.drills.process_cluster import ProcessCluster
from tara.drills.safety import Safety
from tara.live import control
from tara.live.hosting import run_container
from tara.operations import health
from tara.operations.deployment import Say
from tara.operations.fresh_checkpoint import next_checkpoint
from tara.operations.registry_client import ask
from tara.simulator.checks.linearizability import KeyValueModel, check
from tara.storage.disk import LocalDisk, LocalFile

RATE_BYTES_PER_S = 20_000_000
CLIENTS = 64
#: The state, which each base has to carry to the disk while the clients go on: some seconds of its time.
VALUES = 8_000
VALUE_BYTES = 4096
#: When a base is asked for, if none is due by then.
BASE_AT_S = 4.0
#: What the slowest client is to get of what the fastest one gets. Clients of the leader's site are one turn nearer to
#: it, on a fast disk as well.
EVEN_MIN = 0.5


class Carrier:
    """Brings bytes to a disk, first come, first served. Any thread may have some."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def carry(self, count: int) -> None:
        """Returns when they are there."""
        with self._lock:
            done_s = self._free_at_s = max(self._free_at_s, time.monotonic()) + count / self._bytes_per_s
        while (left_s := done_s - time.monotonic()) > 0:
            time.sleep(left_s)


class SlowDisk(LocalDisk):
    """What is written to a file waits for the carrier at the next sync of it, by whatever name."""

    def __init__(self, bytes_per_s: float) -> None:
        self._carrier = Carrier(bytes_per_s)
        #: By inode: bytes that no sync has carried yet.
        self._unsynced: Counter[int] = Counter()

    def create(self, path: Path, exclusive: bool = False) -> "SlowFile":
        return SlowFile(super().create(path, exclusive), self)

    def open(self, path: Path) -> "SlowFile":
        return SlowFile(super().open(path), self)

    def note(self, inode: int, count: int) -> None:
        self._unsynced[inode] += count

    def carry(self, inode: int) -> None:
        self._carrier.carry(self._unsynced.pop(inode, 0))


class SlowFile(LocalFile):
    def __init__(self, file: LocalFile, disk: SlowDisk) -> None:
        super().__init__(file.descriptor)
        self._disk = disk
        self._inode = os.fstat(file.descriptor).st_ino

    def write(self, offset: int, data: bytes) -> None:
        self._disk.note(self._inode, len(data))
        super().write(offset, data)

    def sync(self) -> None:
        self._disk.carry(self._inode)
        super().sync()


def run_on_slow_disk(spec_json: bytes, app: str, registry: str, bytes_per_s: float = RATE_BYTES_PER_S) -> None:
    """A container, as it is run elsewhere, on such a disk."""
    run_container(spec_json, app, registry, SlowDisk(bytes_per_s))


class SlowDiskVerdict(Safety, kw_only=True):
    drill: str = "slow-disk"
    bytes_per_s: int
    seconds: float
    throughput_per_s: float
    latency_ms_p50: float
    latency_ms_p99: float
    gap_ms_max: float
    #: Commands of the client that got the fewest answers, and of the one that got the most.
    client_least: int
    client_most: int
    #: Bases that the sites wrote meanwhile, all together.
    bases: int
    view_changes: int
    #: Commands that a client did not wait for any longer; and answers that were errors.
    resent: int
    errors: int
    died: list[str]

    @property
    def failures(self) -> list[str]:
        """What is not as promised, in words."""
        found = self.violations + [f"{name} has ended" for name in self.died]
        if self.view_changes:
            found.append(f"{self.view_changes} view changes")
        if self.resent or self.errors:
            found.append(f"{self.resent} commands sent again, {self.errors} errors")
        if self.client_least < EVEN_MIN * self.client_most:
            found.append(f"one client got {self.client_least} answers and another one {self.client_most}")
        if not self.bases:
            found.append("no base was written, so the disk had little to do")
        return found

    @property
    def summary(self) -> str:
        return (
            f"{self.bytes_per_s / 1e6:.0f} MB/s per site: {self.throughput_per_s:.0f} commands/s, p50 "
            f"{self.latency_ms_p50:.0f} ms, p99 {self.latency_ms_p99:.0f} ms, longest gap {self.gap_ms_max:.0f} ms, "
            f"clients from {self.client_least} to {self.client_most} answers, {self.bases} bases, "
            f"{self.view_changes} view changes, {self.resent} sent again, {self.in_short}"
        )


def slow_disk(directory: Path, say: Say, seconds: float = 30.0, bytes_per_s: int = RATE_BYTES_PER_S) -> SlowDiskVerdict:
    """64 clients on a cluster each of whose sites has a disk of 20 MB/s, while bases are written."""
    run = partial(run_on_slow_disk, bytes_per_s=bytes_per_s)
    with ProcessCluster.whole(directory / "slow-disk", {}, run=run) as cluster:
        data_dir = Path(cluster.registries[0].settings.data_dir)
        say(f"slow-disk: {VALUES} values of {VALUE_BYTES} bytes are written")
        filled = write_all(cluster.endpoints, VALUES, VALUE_BYTES)
        before = cluster.status()
        load = LoadProcess(
            LoadPlan(
                endpoints=cluster.endpoints,
                clients=CLIENTS,
                seconds=seconds,
                payload_bytes=VALUE_BYTES,
                recorded_keys=CLIENTS // 2,
            )
        )
        say(f"slow-disk: {CLIENTS} clients write, {seconds:.0f} s")
        asked = False
        for at_s, _ in load.seconds():
            if at_s > BASE_AT_S and not asked:
                asked = True
                ask(data_dir, control.AskBase(next_checkpoint(data_dir)))
        report = load.finish()
        after = cluster.status()
        cluster.want_digests()
        status = cluster.await_status(lambda found: health.replicas_equal(found) is not None, "equally far replicas")
        executed = health.counter(status) - filled.ordered - 2 * (filled.sessions + report.sessions)
        return SlowDiskVerdict(
            bytes_per_s=bytes_per_s,
            seconds=report.seconds,
            throughput_per_s=report.throughput_per_s,
            latency_ms_p50=report.latency_ms_p50,
            latency_ms_p99=report.latency_ms_p99,
            gap_ms_max=report.gap_ms_max,
            client_least=report.client_least,
            client_most=report.client_most,
            bases=health.bases_saved(after) - health.bases_saved(before),
            view_changes=health.view(after) - health.view(before),
            resent=report.resent,
            errors=report.errors,
            died=cluster.died,
            halted=cluster.halted,
            lost=report.lost,
            duplicated=max(executed - report.ordered, 0),
            linearizable=check(load.history, KeyValueModel()).linearizable,
            recorded=len(load.history),
            replicas_equal=bool(health.replicas_equal(status)),
        )
