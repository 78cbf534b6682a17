"""The decided log as text: lines for people, JSON for programs. Knows the built-in key-value commands."""

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tara.application import KeyValueCommand
from tara.client.remote_log import RemoteLogReader
from tara.configuration.state import StateFile
from tara.protocol import tuples as t
from tara.protocol.principals import describe as describe_principal
from tara.storage.log import log_directory
from tara.storage.log_format import LogError
from tara.storage.log_reader import LogReader, RowReader, best_log

KINDS = {
    t.EXECUTE: "execute",
    t.QUERY: "query",
    t.OPEN: "open",
    t.CLOSE: "close",
    t.EXPIRE: "expire",
    t.SKIP: "skip",
}
STATUSES = {t.OK: "ok", t.FAILED: "failed", t.REJECTED: "rejected", t.SKIPPED: "skipped"}
SKIP_STEPS = {t.ASK_SKIP: "ask", t.CONFIRM_SKIP: "confirm", t.WITHDRAW_SKIP: "withdraw"}
#: Characters of a command or result in a line.
TEXT_MAX = 60


def print_log(
    data_dir: Path,
    start: int | None,
    end: int | None,
    follow: bool,
    replica: int | None,
    as_json: bool,
    echo: Callable[[str], None],
) -> None:
    """Print the commands of [start, end): those that are there, or, when following, those that come as well."""
    state = StateFile(data_dir).read()
    reader = best_log(data_dir) if replica is None else LogReader(log_directory(data_dir, replica))
    if not reader.directory.is_dir():
        raise LogError(f"{reader.directory}: no decided log here")
    _print(reader, start, end, follow, state.app in ("", "key-value"), as_json, echo)


def print_remote_log(
    endpoints: str,
    keys: str | None,
    start: int | None,
    end: int | None,
    follow: bool,
    as_json: bool,
    echo: Callable[[str], None],
) -> None:
    """The same from the front ends. Commands are shown as those of the key-value application if they can be."""
    with RemoteLogReader(endpoints, keys) as reader:
        _print(reader, start, end, follow, True, as_json, echo)


def _print(
    reader: RowReader,
    start: int | None,
    end: int | None,
    follow: bool,
    key_value: bool,
    as_json: bool,
    echo: Callable[[str], None],
) -> None:
    for batch in _batches(reader, reader.bounds().first if start is None else start, end, follow):
        for row in batch.to_pylist():
            described = describe(row, key_value)
            echo(msgspec.json.encode(described).decode() if as_json else line(described))


def _batches(reader: RowReader, start: int, end: int | None, follow: bool) -> Iterator[pa.RecordBatch]:
    if not follow:
        yield from reader.batches(start, end)
        return
    position = start

    def done() -> bool:
        return end is not None and position >= end

    for batch in reader.follow(start, done):
        yield batch if end is None else batch.slice(0, max(end - position, 0))
        position += batch.num_rows
        if done():
            return


def describe(row: dict[str, Any], key_value: bool) -> dict[str, Any]:
    """A row with names for numbers, and with its command and result in readable form as far as they are known."""
    kind, status = row["kind"], row["status"]
    described = row | {"kind": KINDS.get(kind, str(kind)), "status": STATUSES.get(status, str(status))}
    described["principal"] = describe_principal(row.get("principal", b""))
    described["command"] = _command(kind, row["command"], key_value)
    described["result"] = _result(kind, status, row["result"], key_value)
    return described


def readable(kind: int, status: int, payload: bytes, key_value: bool) -> list[Any]:
    """A result: its status, and what it says."""
    return [STATUSES.get(status, str(status)), _result(kind, status, payload, key_value)]


def _command(kind: int, payload: bytes, key_value: bool) -> Any:
    if kind == t.OPEN:
        opening = msgspec.msgpack.decode(payload, type=int | str)
        return {"name": opening} if isinstance(opening, str) else {"timeout_ms": opening}
    if kind in (t.CLOSE, t.EXPIRE):
        return None
    if kind == t.SKIP:
        skip = msgspec.msgpack.decode(payload, type=t.Skip)
        return {"counter": skip.counter, "step": SKIP_STEPS[skip.step]}
    if key_value:
        try:
            command = msgspec.msgpack.decode(payload, type=KeyValueCommand)
        except t.DECODE_ERRORS:
            return _bytes(payload)
        fields = {name: _plain(getattr(command, name)) for name in command.__struct_fields__}
        return {"operation": type(command).__name__} | fields
    return _bytes(payload)


def _result(kind: int, status: int, payload: bytes, key_value: bool) -> Any:
    if kind == t.OPEN and status == t.OK:
        session, timeout_ms, *_ = msgspec.msgpack.decode(payload, type=tuple[int, ...])
        return {"session": session, "timeout_ms": timeout_ms}
    if kind in (t.CLOSE, t.EXPIRE):
        return None
    if key_value and status == t.OK:
        try:
            return _plain(msgspec.msgpack.decode(payload))
        except t.DECODE_ERRORS:
            return _bytes(payload)
    return _bytes(payload)


def _plain(value: Any) -> Any:
    return _bytes(value) if isinstance(value, bytes) else value


def _bytes(value: bytes) -> str | dict[str, str]:
    """Text if it is text; else base64, said to be that."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\x00"
    return text if text.isprintable() else {"base64": base64.b64encode(value).decode()}


def line(described: dict[str, Any]) -> str:
    """One row for people."""
    seconds, milliseconds = divmod(described["time_ms"], 1000)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    who = "-" if described["kind"] == "open" else f"{described['session']}/{described['number']}"
    start = f"{described['counter']:>10}  {when}.{milliseconds:03}  {who:>12}  {described['kind']:8}"
    if described["kind"] in ("close", "expire"):
        return start.rstrip()
    failed = "failed: " if described["status"] == "failed" else ""
    return f"{start}{short(described['command'])} → {failed}{short(described['result'])}"


def short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "operation" in value:
        fields = [short(field) for name, field in value.items() if name != "operation"]
        text = " ".join([value["operation"].lower(), *fields])
    elif isinstance(value, dict):
        text = " ".join(f"{name}={field}" for name, field in value.items())
    elif isinstance(value, list):
        text = " ".join(map(str, value))
    else:
        text = str(value)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
