"""Who uses the processors of this machine, and how fast they are just now."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Entries of a table that is made and added up, as a measure of the processor's speed.
_WORK = 40_000


class CpuUse(Struct, kw_only=True):
    """Cores in use, on average."""

    #: None: the load runs inside one of the servers.
    client: float | None
    server: float
    #: By anything else on the machine. A figure with much of it is not to be trusted.
    other: float


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
