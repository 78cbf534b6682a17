"""Where the seconds of a start go: the phases of a driver's start, each from the end of the one before."""

import os
import time
from pathlib import Path

#: The interpreter, our modules, the registry.
PYTHON = "python"
#: The JVM, until Python can talk to it.
JVM = "jvm"
#: Spark in it, with its UI.
SPARK = "spark"
#: Jobs, tasks and Python workers, until all containers have registered.
CONTAINERS = "containers"
#: Journals and nodes, until all containers have reported.
NODES = "nodes"
PHASES = (PYTHON, JVM, SPARK, CONTAINERS, NODES)


class StartPhases:
    def __init__(self, began_s: float) -> None:
        """`began_s` is a time of `time.monotonic`."""
        self.seconds: dict[str, float] = {}
        self._last_s = began_s

    def end(self, phase: str) -> None:
        """This phase is over."""
        now_s = time.monotonic()
        self.seconds[phase] = round(now_s - self._last_s, 3)
        self._last_s = now_s


def process_began_s() -> float:
    """When this process was started, as a time of `time.monotonic`."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s
