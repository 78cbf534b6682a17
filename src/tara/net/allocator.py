"""How this process takes memory from the system and gives it back.

Left to itself, the C library learns from every large buffer that is freed to keep the next ones in its heap, up to 32
MiB each: then a frame that only begins to arrive costs its whole length, and the heap stays as large and as scattered
as it once was. With fixed thresholds a large buffer costs what is used of it, and is given back when it is freed.
"""

import ctypes
import sys

#: Buffers of this length and above are the system's, page by page. Commands of the usual lengths stay in the heap:
#: fresh pages are slow.
LARGE_BUFFER_BYTES = 2 << 20
#: The heap gives back what is free at its end when that is so much.
FREE_BYTES_MAX = 8 << 20
#: Each thread that finds the heap in use would open one of its own.
HEAPS_MAX = 2

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def give_memory_back() -> None:
    """Where the C library is glibc; others have no such habits."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE_BUFFER_BYTES)
        mallopt(_TRIM_THRESHOLD, FREE_BYTES_MAX)
        mallopt(_ARENA_MAX, HEAPS_MAX)
