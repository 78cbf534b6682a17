"""Crash-tolerant state-machine replication, expressed as a stream-processing graph."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("tara")
except PackageNotFoundError:  # imported from a source tree or an archive, without package metadata
    __version__ = "0+unknown"
