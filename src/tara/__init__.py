"""Crash-tolerant state-machine replication, expressed as a stream-processing graph."""

import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

if sys.flags.optimize:
    raise ImportError(
        "Tara does not run without assertions, which guard what replicas have promised: start Python without -O and "
        "without PYTHONOPTIMIZE"
    )

try:
    __version__ = version("tara")
except PackageNotFoundError:  # imported from a source tree or an archive, without package metadata
    __version__ = "0+unknown"
