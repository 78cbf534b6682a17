"""The sink of `format("tara")`: every row of a query is a command of a live cluster, executed exactly once.

Spark executes a micro-batch again after a failure, perhaps with its rows in another order and other tasks, and two
drivers may execute it at once. So a row gets its identity late: tasks only stage rows in files. Then the micro-batch's
commit claims its number in a session named after the stream, with the list of the files as value. The first claim wins;
whoever commits then sends the rows of the winner's files, with the numbers that the claim has fixed.
"""

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tara.application import Delete, Put
from tara.client import Client, ClientError, CommandFailed
from tara.client.secrets import kept_secret
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError, TaraError
from tara.storage.disk import LOCAL
from tara.storage.files import DamagedFile, pack_small, read_small
from tara.streaming.log_source import timeout_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Rows that are submitted ahead of their answers.
AHEAD_MAX = 4_096
#: The file beside the staged rows that shows whose the stream's session is.
SECRET = "session.secret"


class SinkError(TaraError):
    """The rows of a micro-batch cannot be submitted."""


class Staged(WriterCommitMessage):
    """A file of rows."""

    def __init__(self, name: str, rows: int) -> None:
        self.name, self.rows = name, rows


class StagedFile(Struct, array_like=True, frozen=True):
    """One entry of a manifest, which is the value of a claim."""

    name: str
    rows: int


class SinkOptions(Struct, frozen=True):
    endpoints: str
    #: Names the session: one stream is one query, over all its restarts.
    stream: str
    staging: str
    timeout_s: float
    key_value: bool
    #: The directory with the client's keys; None: the cluster has none.
    keys: str | None = None


def sink_options(options: Any) -> SinkOptions:
    """What `option(…)` said; an error names the option."""
    for option in ("endpoints", "stream"):
        if not options.get(option):
            raise ConfigurationError(f"format tara: the option {option} is missing")
    staging = options.get("staging")
    if not staging:
        checkpoint = options.get("checkpointLocation")
        if not checkpoint:
            raise ConfigurationError("format tara: say where rows are staged, with the option staging")
        staging = str(Path(checkpoint.removeprefix("file:")) / "tara-staging")
    keys = options.get("keys") or None
    return SinkOptions(
        options["endpoints"], options["stream"], staging, timeout_of(options), is_key_value(options), keys
    )


def is_key_value(options: Any) -> bool:
    application = options.get("application", "")
    if application not in ("", "key-value"):
        raise ConfigurationError(f"format tara: application = {application}: only key-value can be encoded and decoded")
    return bool(application)


class TaraWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, schema: "StructType") -> None:
        self._options = options
        names = [field.name for field in schema.fields]
        wanted = ["key", "value"] if options.key_value else ["payload"]
        for column in wanted:
            if column not in names:
                raise ConfigurationError(
                    f"format tara: the column {column} is missing (there are: {', '.join(names)}); rows are commands "
                    "in a column payload, or key and value with the option application = key-value"
                )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        """In a task: stage the rows."""
        commands = [command for batch in iterator for command in self._commands(batch)]
        if not commands:
            return Staged("", 0)
        directory = Path(self._options.staging)
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{uuid.uuid4().hex}.rows"
        path = directory / name
        # Not for its owner only: tasks may run as somebody else than the driver that reads it.
        with path.open("wb") as file:
            file.write(pack_small(msgspec.msgpack.encode(commands)))
            file.flush()
            os.fsync(file.fileno())
        LOCAL.sync_directory(directory)
        return Staged(name, len(commands))

    def _commands(self, batch: "pa.RecordBatch") -> list[bytes]:
        if not self._options.key_value:
            return [_bytes(payload, "payload") for payload in batch.column("payload").to_pylist()]
        pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        return [_put(key, value) for key, value in pairs]

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: claim the micro-batch, and send its rows."""
        mine = [StagedFile(staged.name, staged.rows) for staged in _staged(messages)]
        if not mine:
            return
        options = self._options
        # Without keys, the stream's session belongs to whoever can read this file: every driver of the query.
        secret = kept_secret(Path(options.staging) / SECRET) if options.keys is None else b""
        with Client(
            options.endpoints, options.timeout_s, name=options.stream, keys=options.keys, secret=secret
        ) as client:
            decided = self._claim(client, batchId, mine)
            manifest = msgspec.msgpack.decode(decided.value, type=list[StagedFile])
            self._submit(client, manifest, decided.next - decided.base, batchId)
        # Whoever comes again with this micro-batch finds all its commands executed, and needs no file.
        self._remove([*mine, *manifest])

    def _claim(self, client: Client, batch: int, mine: list[StagedFile]) -> t.Claim:
        try:
            return client.claim(batch, msgspec.msgpack.encode(mine))
        except CommandFailed as error:
            raise SinkError(
                f"stream {self._options.stream}, micro-batch {batch}: {error}. A query with another checkpoint needs "
                "another stream name; a query of which another copy is running has to stop"
            ) from error

    def _submit(self, client: Client, manifest: list[StagedFile], done: int, batch: int) -> None:
        """Send the rows after the first `done`, which have executed already. A command that the application refuses has
        executed, too: its result is in the log."""
        if done >= sum(file.rows for file in manifest):
            return
        waiting: list[Future[bytes]] = []
        for command in self._rows(manifest, done):
            waiting.append(client.submit(command))
            if len(waiting) >= AHEAD_MAX:
                _await(waiting[: AHEAD_MAX // 2], self._options.stream, batch)
                del waiting[: AHEAD_MAX // 2]
        _await(waiting, self._options.stream, batch)

    def _rows(self, manifest: list[StagedFile], skipped: int) -> Iterator[bytes]:
        for file in manifest:
            if skipped >= file.rows:
                skipped -= file.rows
                continue
            yield from self._staged_rows(Path(self._options.staging) / file.name)[skipped:]
            skipped = 0

    def _staged_rows(self, path: Path) -> list[bytes]:
        try:
            return msgspec.msgpack.decode(read_small(path), type=list[bytes])
        except (OSError, DamagedFile, msgspec.DecodeError) as error:
            stream = self._options.stream
            raise SinkError(
                f"stream {stream}: staged rows are damaged or gone: {error}. Put a copy of the file back. Without one, "
                f"close the stream's session (`tara sessions close {stream}`) and start the query again: rows of this "
                "micro-batch that have been executed are then executed once more"
            ) from error

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # A commit that failed may have won its claim, and then these files are what will be sent: they stay.
        return

    def _remove(self, files: list[StagedFile]) -> None:
        for file in files:
            (Path(self._options.staging) / file.name).unlink(missing_ok=True)


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged) and message.rows]


def _await(futures: list[Future[bytes]], stream: str, batch: int) -> None:
    for future in futures:
        try:
            future.result()
        except CommandFailed:
            continue
        except ClientError as error:
            raise SinkError(f"stream {stream}, micro-batch {batch}: {error}") from error


def _bytes(value: object, column: str) -> bytes:
    if value is None:
        raise SinkError(f"a row has no {column}: filter such rows out before the sink")
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]


def _put(key: object, value: object) -> bytes:
    """A row of a key-value stream; without a value, the key is deleted."""
    if not isinstance(key, str):
        raise SinkError(f"a row has no key (a string), but {key!r}: filter such rows out before the sink")
    return t.encode(Delete(key) if value is None else Put(key, _bytes(value, "value")))
