"""What a benchmark sees of the bases that containers take: their files, and the memory of the processes."""

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tara.storage.base_format import base_directory, list_bases, number_of
from tara.storage.files import TEMPORARY

POLL_S = 0.02
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class SeenBase(NamedTuple):
    """What was seen of a base that was taken."""

    bytes: int
    seconds: float
    #: The memory of the container: when it began, the most meanwhile, and the most afterwards.
    before: int
    most: int
    after: int


class BaseWatch:
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

    def stop(self) -> list[SeenBase]:
        """The last base that each site has taken."""
        self._ends.set()
        self._thread.join()
        return [found for site in self._sites if (found := self._capture(site)) is not None]

    def _capture(self, site: int) -> SeenBase | None:
        seen = self._seen[site]
        writing = [index for index, (_, _, writes) in enumerate(seen) if writes]
        if not writing:
            # It was too short to be seen.
            return None
        end = writing[-1] + 1
        begin = next((index for index in range(end - 1, 0, -1) if not seen[index - 1][2]), 0)
        memory = [size for _, size, _ in seen]
        return SeenBase(
            newest_base(self._data_dir, site)[1],
            seen[end - 1][0] - seen[begin][0],
            memory[max(begin - 1, 0)],
            max(memory[begin:end]),
            max(memory[end:], default=memory[end - 1]),
        )


def newest_base(data_dir: Path, site: int) -> tuple[int, int]:
    """Its number and length; (0, 0): there is none."""
    found = list_bases(base_directory(data_dir, site))
    return (number_of(found[-1]), found[-1].stat().st_size) if found else (0, 0)


def _memory(pid: int) -> int:
    """In bytes; of a process that has ended, none."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0
