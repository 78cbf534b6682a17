"""The machine: what it is, what runs on it, and who uses its processors."""

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from tara import __version__

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Samples of a sync; the median is reported.
_SYNCS = 20
#: Entries of a table that is made and added up, as a measure of the processor's speed.
_WORK = 40_000


class Machine(Struct, kw_only=True):
    """What a reader needs to know to judge the figures."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    #: The file system of the data directories, and how long a 4 KiB write with fdatasync takes there.
    disk: str
    disk_sync_ms: float
    load_before: float
    versions: dict[str, str]


class CpuUse(Struct, kw_only=True):
    """Cores in use, on average."""

    #: None: the load runs inside one of the servers.
    client: float | None
    server: float
    #: By anything else on the machine. A figure with much of it is not to be trusted.
    other: float


def describe(disk: Path) -> Machine:
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        kernel=f"{platform.system()} {platform.release()}",
        disk=_file_system(disk),
        disk_sync_ms=_sync_ms(disk),
        load_before=round(os.getloadavg()[0], 2),
        versions={
            "tara": _own_version(),
            "python": platform.python_version(),
            "java": _java_version(),
            **{
                name: _package_version(name) for name in ("pyspark", "cryptography", "msgspec", "pyarrow", "matplotlib")
            },
        },
    )


def work_s() -> float:
    """Processor time that a fixed piece of work needs now, some milliseconds. It differs from minute to minute where
    the processor is shared with others, or changes its frequency."""
    began_s = time.thread_time()
    table = {number: str(number) for number in range(_WORK)}
    sum(map(len, table.values()))
    return time.thread_time() - began_s


class CpuMeter:
    """From the moment it is made until `stop`: who used how much."""

    def __init__(self, servers: Iterable[int], client: int | None) -> None:
        self._servers = list(servers)
        self._client = client
        self._used_s: dict[int, float] = {}
        self._began = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        client_s = cpu_s(self._client) if self._client is not None else 0.0
        for pid in self._servers:
            # One that was killed has used at least what it had used before.
            self._used_s[pid] = max(cpu_s(pid), self._used_s.get(pid, 0.0))
        return time.monotonic(), client_s, sum(self._used_s.values()), _busy_s()

    def stop(self, client_s: float | None = None) -> CpuUse:
        """`client_s`: what the client says that it used, if it has ended by now."""
        seconds, client, server, busy = (now - then for now, then in zip(self._now(), self._began, strict=True))
        if client_s is not None:
            client = client_s
        known = self._client is not None or client_s is not None
        return CpuUse(
            client=round(client / seconds, 2) if known else None,
            server=round(server / seconds, 2),
            other=round(max(busy - client - server, 0.0) / seconds, 2),
        )


def cpu_s(pid: int) -> float:
    """What a process has used so far; nothing, if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _busy_s() -> float:
    """Of all processors, without idling, waiting for disks, and what the hypervisor took."""
    user, nice, system, _, _, interrupt, soft_interrupt, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + interrupt + soft_interrupt) / _TICKS_PER_S


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _file_system(path: Path) -> str:
    path = path.resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    fitting = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point)]
    return max(fitting)[1] if fitting else "unknown"


def _sync_ms(directory: Path) -> float:
    path = directory / f"sync-{os.getpid()}"
    times = []
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for _ in range(_SYNCS):
            began_s = time.perf_counter()
            os.write(file, bytes(4096))
            os.fdatasync(file)
            times.append(time.perf_counter() - began_s)
    finally:
        os.close(file)
        path.unlink()
    return round(sorted(times)[_SYNCS // 2] * 1e3, 3)


def _own_version() -> str:
    """With the commit, where there is one."""
    commit = _output("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty").strip()
    return f"{__version__} ({commit})" if commit else __version__


def _java_version() -> str:
    text = _output("java", "-version")
    return text.split('"')[1] if '"' in text else "none"


def _output(*command: str) -> str:
    """What a program says; nothing if it fails or is not there."""
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return found.stdout + found.stderr if found.returncode == 0 else ""


def _package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"
