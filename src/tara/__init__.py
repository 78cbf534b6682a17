"""Crash-tolerant state-machine replication, expressed as a stream-processing graph."""

import sys

__all__ = ["__version__"]

__version__: str

if sys.flags.optimize:
    raise ImportError(
        "Tara does not run without assertions, which guard what replicas have promised: start Python without -O and "
        "without PYTHONOPTIMIZE"
    )


def __getattr__(name: str) -> str:
    """The version, when somebody asks for it: to find it takes as long as to load half of what a container needs."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tara")
    except PackageNotFoundError:  # imported from a source tree or an archive, without package metadata
        return "0+unknown"
