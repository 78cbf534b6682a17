"""Places: what the application is doing, as one number that can outlive its process.

An application may take the whole process with it: a crash in C, `os._exit`, the kernel's killer. So an executor writes
down where it lets the application run, in a cell that its host keeps: the counter of a command, a snapshot, a
restoration, a read. After a crash the host finds there what ended the process.
"""

import zlib
from typing import Protocol

#: The kinds. A command's place is its counter; no counter is that high.
SNAPSHOT = 1 << 61
RESTORATION = 2 << 61
READ = 3 << 61
_KINDS = 3 << 61


class Cell(Protocol):
    """What an executor writes to."""

    def __getitem__(self, cell: int, /) -> int: ...
    def __setitem__(self, cell: int, place: int, /) -> None: ...


#: Where the executor is; 0: nowhere. And the last command that was executed, in any life: its result may be known to
#: its client.
EXECUTING, EXECUTED = 0, 1
CELLS = 2


def read(payload: bytes) -> int:
    """Reads have no numbers. Two of them may have the same place; few are ever asked about."""
    return READ | zlib.crc32(payload)


def cause(place: int) -> int:
    """What stands for a place when two lives have ended there. A snapshot is of another base in every life."""
    return SNAPSHOT if place & _KINDS == SNAPSHOT else place


def is_restoration(place: int) -> bool:
    return place & _KINDS == RESTORATION


def describe(place: int) -> str:
    match place & _KINDS:
        case 0:
            return f"command {place}"
        case kind if kind == SNAPSHOT:
            return f"the snapshot for base {place ^ SNAPSHOT}"
        case kind if kind == RESTORATION:
            return f"the restoration of base {place ^ RESTORATION}"
    return f"a read ({place ^ READ:08x})"
