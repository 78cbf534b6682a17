"""The machine: what it is, and what runs on it."""

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path

from msgspec import Struct

from tara import __version__

#: Samples of a sync; the median is reported.
_SYNCS = 20


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
