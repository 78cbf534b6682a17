"""Crash-tolerant state-machine replication, expressed as a stream-processing graph.

The public API: what an application, its tests, a client, a reader of the decided log and a Spark job need. Names are
found when they are asked for: a container must not load a client to start, and a client no Spark.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tara.application import ApplicationError, Context, Execute, KeyValueStore, Query, Simulation, StateMachine
    from tara.client import (
        AsyncClient,
        Client,
        ClientClosed,
        ClientError,
        ClientOptions,
        CommandFailed,
        CommandTooLarge,
        Forbidden,
        KeyValueClient,
        NotReachable,
        Overloaded,
        Refused,
        ServiceHalted,
        SessionExpired,
        TimedOut,
    )
    from tara.client.remote_log import RemoteLogReader
    from tara.protocol.errors import ConfigurationError, TaraError
    from tara.protocol.limits import Limits
    from tara.protocol.tuples import Command, Result
    from tara.simulator.scene import Scene
    from tara.simulator.transcript import Transcript
    from tara.storage.log_blocks import LogBounds
    from tara.storage.log_format import LogError
    from tara.storage.log_reader import LogReader, LogTruncated, best_log
    from tara.streaming import StreamingConfig, StreamingReplication, read_results
    from tara.table import Table

__version__: str

__all__ = [
    "ApplicationError",
    "AsyncClient",
    "Client",
    "ClientClosed",
    "ClientError",
    "ClientOptions",
    "Command",
    "CommandFailed",
    "CommandTooLarge",
    "ConfigurationError",
    "Context",
    "Execute",
    "Forbidden",
    "KeyValueClient",
    "KeyValueStore",
    "Limits",
    "LogBounds",
    "LogError",
    "LogReader",
    "LogTruncated",
    "NotReachable",
    "Overloaded",
    "Query",
    "Refused",
    "RemoteLogReader",
    "Result",
    "Scene",
    "ServiceHalted",
    "SessionExpired",
    "Simulation",
    "StateMachine",
    "StreamingConfig",
    "StreamingReplication",
    "Table",
    "TaraError",
    "TimedOut",
    "Transcript",
    "__version__",
    "best_log",
    "read_results",
]

#: Where the public names are; those of `tara.client` are not named here.
_HOMES = {
    "ApplicationError": "tara.application",
    "Command": "tara.protocol.tuples",
    "ConfigurationError": "tara.protocol.errors",
    "Context": "tara.application",
    "Execute": "tara.application",
    "KeyValueStore": "tara.application",
    "Limits": "tara.protocol.limits",
    "LogBounds": "tara.storage.log_blocks",
    "LogError": "tara.storage.log_format",
    "LogReader": "tara.storage.log_reader",
    "LogTruncated": "tara.storage.log_reader",
    "Query": "tara.application",
    "RemoteLogReader": "tara.client.remote_log",
    "Result": "tara.protocol.tuples",
    "Scene": "tara.simulator.scene",
    "Simulation": "tara.application",
    "StateMachine": "tara.application",
    "StreamingConfig": "tara.streaming",
    "StreamingReplication": "tara.streaming",
    "Table": "tara.table",
    "TaraError": "tara.protocol.errors",
    "Transcript": "tara.simulator.transcript",
    "best_log": "tara.storage.log_reader",
    "read_results": "tara.streaming",
}

if sys.flags.optimize:
    raise ImportError(
        "Tara does not run without assertions, which guard what replicas have promised: start Python without -O and "
        "without PYTHONOPTIMIZE"
    )


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "tara.client")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    """Found when somebody asks for it: that takes as long as to load half of what a container needs."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tara")
    except PackageNotFoundError:  # imported from a source tree or an archive, without package metadata
        return "0+unknown"
