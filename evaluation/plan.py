"""How much the evaluation measures: the whole of it, or quickly."""

from pathlib import Path

from msgspec import Struct

from evaluation import reference


class Plan(Struct, frozen=True, kw_only=True):
    """Every number that decides how long it takes."""

    quick: bool
    repetitions: int
    #: Measured seconds per point, and those before, which are not measured.
    seconds: float
    warm_up_s: float
    #: A load on each new cluster that nobody looks at: code gets compiled, files get their size.
    first_warm_up_s: float
    clients: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    partitions: tuple[int, ...]
    crashes_at_s: tuple[float, ...]
    failures_seconds: float
    payload_bytes: tuple[int, ...]
    read_shares: tuple[float, ...]
    #: Requests that are run through the pure code to see what a step costs.
    step_requests: int
    #: After a peer's leader is killed, how long the load goes on.
    peer_after_kill_s: float
    #: Where data that must survive are written, and where others are.
    disk: Path
    memory: Path


_CRASHES = reference.CRASHES_AT_S
_PAYLOADS = (64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10)
#: The clients of those experiments that vary something else, and of the comparisons.
FEW_CLIENTS = 16
SOME_CLIENTS = 64
MANY_CLIENTS = 256
COMPARED_CLIENTS = (SOME_CLIENTS, MANY_CLIENTS)
#: Throttled proposers are to be kept busy, however many there are.
THROTTLED_CLIENTS = 128


def whole_plan(disk: Path, memory: Path, seconds: float | None = None) -> Plan:
    return Plan(
        quick=False,
        repetitions=3,
        seconds=seconds or 8.0,
        warm_up_s=2.0,
        first_warm_up_s=5.0,
        clients=tuple(1 << power for power in range(10)),
        batch_sizes=(reference.PAPER_BATCH_SIZE, 20, 100),
        partitions=(1, 2, 3, 4),
        crashes_at_s=_CRASHES,
        failures_seconds=reference.FAILURES_SECONDS,
        payload_bytes=_PAYLOADS,
        read_shares=(0.0, 0.25, 0.5, 0.75, 0.9, 1.0),
        step_requests=100_000,
        peer_after_kill_s=12.0,
        disk=disk,
        memory=memory,
    )


def quick_plan(disk: Path, memory: Path, seconds: float | None = None) -> Plan:
    return Plan(
        quick=True,
        repetitions=1,
        seconds=seconds or 3.0,
        warm_up_s=1.0,
        first_warm_up_s=2.0,
        clients=(1, 16, SOME_CLIENTS, MANY_CLIENTS),
        batch_sizes=(reference.PAPER_BATCH_SIZE, 50),
        partitions=(1, 2, 3, 4),
        crashes_at_s=tuple(at / 4 for at in _CRASHES),
        failures_seconds=reference.FAILURES_SECONDS / 4,
        payload_bytes=(_PAYLOADS[0], *_PAYLOADS[2::2], _PAYLOADS[-1]),
        read_shares=(0.0, 0.5, 0.9, 1.0),
        step_requests=20_000,
        peer_after_kill_s=8.0,
        disk=disk,
        memory=memory,
    )
