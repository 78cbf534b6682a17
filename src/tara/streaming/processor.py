"""The nodes as stateful processors: what Spark calls in a Python worker, once per key and micro-batch.

The state of a key is in several variables of the state store, so that what a micro-batch does not change is not
written: `tara.streaming.seats` says what is in each.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from tara.application import StateMachine
from tara.streaming.config import StreamingConfig
from tara.streaming.errors import StreamingError
from tara.streaming.host import Host
from tara.streaming.rows import COLUMNS, Row
from tara.streaming.seats import VERSION_COLUMNS, Changes

VERSION, NODE, BODIES, BASE, RUNS = "version", "node", "bodies", "base", "runs"


def _schema(**columns: DataType) -> StructType:
    """As an object: a text would be a question to the JVM each time."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


_TYPES: dict[type, DataType] = {bytes: BinaryType(), str: StringType(), int: LongType()}
_VERSION_SCHEMA = _schema(**{name: _TYPES[kind] for name, kind in VERSION_COLUMNS.items()})
_NODE_SCHEMA = _schema(data=BinaryType())
_DIGEST_SCHEMA = _schema(digest=BinaryType())
_NUMBER_SCHEMA = _schema(number=LongType())
#: Queries whose nodes a Python worker keeps in memory.
HOSTS_MAX = 4
#: By checkpoint directory: which start of the query it is of, and its nodes.
_hosts: "OrderedDict[str, tuple[str, Host]]" = OrderedDict()
_OutRow = SparkRow(*COLUMNS)


def _host(start: str, config: StreamingConfig, application: Callable[[], StateMachine]) -> Host:
    """The nodes that this process has of a query. `start` names one start of it: the next one may have another
    application."""
    known = _hosts.pop(config.checkpoint, None)
    host = known[1] if known is not None and known[0] == start else Host(config, application)
    _hosts[config.checkpoint] = (start, host)
    while len(_hosts) > HOSTS_MAX:
        _hosts.popitem(last=False)
    return host


class SparkStore:
    """The state of one key, in Spark's state store. Each question is a question to the JVM: what is not needed is not
    asked."""

    def __init__(self, handle: StatefulProcessorHandle, executes: bool) -> None:
        self._version = handle.getValueState(VERSION, _VERSION_SCHEMA)
        self._node = handle.getValueState(NODE, _NODE_SCHEMA)
        self._bodies = handle.getMapState(BODIES, _DIGEST_SCHEMA, _NODE_SCHEMA)
        # Only executors have these.
        self._base = handle.getMapState(BASE, _NUMBER_SCHEMA, _NODE_SCHEMA) if executes else None
        self._runs = handle.getMapState(RUNS, _NUMBER_SCHEMA, _NODE_SCHEMA) if executes else None

    def token(self) -> bytes | None:
        found = self._version.get()
        return None if found is None else bytes(found[0])

    def node(self) -> bytes:
        return _value(self._node.get(), "a node")

    def body(self, digest: bytes) -> bytes:
        return _value(self._bodies.getValue((digest,)), f"the body {digest.hex()}")

    def piece(self, number: int) -> bytes:
        assert self._base is not None
        return _value(self._base.getValue((number,)), f"piece {number} of a base")

    def run(self, number: int) -> bytes:
        assert self._runs is not None
        return _value(self._runs.getValue((number,)), f"run {number} of an executor")

    def write(self, changes: Changes) -> None:
        self._version.update(changes.version)
        self._node.update((changes.node,))
        for digest, body in changes.bodies.items():
            self._bodies.updateValue((digest,), (body,))
        for digest in changes.forgotten:
            self._bodies.removeKey((digest,))
        if changes.base is not None:
            assert self._base is not None and self._runs is not None
            self._base.clear()
            self._runs.clear()
            for number, piece in enumerate(changes.base):
                self._base.updateValue((number,), (piece,))
        if changes.run is not None:
            assert self._runs is not None
            number, run = changes.run
            self._runs.updateValue((number,), (run,))


def _value(found: tuple[Any, ...] | None, what: str) -> bytes:
    if found is None:
        raise StreamingError(f"{what} is missing in the state store, although the state refers to it")
    return bytes(found[0])


class NodeProcessor(StatefulProcessor):
    """What travels to the Python workers: hosts the nodes of one operator, and passes on what is for others."""

    def __init__(
        self, start: str, config: StreamingConfig, application: Callable[[], StateMachine], executes: bool
    ) -> None:
        self._start = start
        self._config = config
        self._application = application
        self._executes = executes
        self._store: SparkStore | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = SparkStore(handle, self._executes)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802
        (number,) = key
        if number < 0:
            yield from rows
            return
        assert self._store is not None
        taken = [Row(*(row[name] for name in COLUMNS)) for row in rows]
        host = _host(self._start, self._config, self._application)
        for said in host.turn(number, self._store, taken):
            yield _OutRow(*said)

    def close(self) -> None:
        self._store = None
