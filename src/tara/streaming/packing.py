"""Commands on their way into the query: many of them in one row.

A row costs the same in every step between the JVM and Python, whatever is in it. So the tasks that read the commands
pack those of one request source into rows of a few megabytes, as Arrow's columns, before anything is shuffled.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tara.streaming import rows
from tara.streaming.clients import CommandRow
from tara.streaming.rows import COLUMNS, Row

if TYPE_CHECKING:
    import pyarrow as pa

#: What is packed together, at most: a task keeps no more than this of what it reads.
PACKED_BYTES = 4 << 20
#: What a task gets: the key of the request source, and the command.
INPUT = ("key", "client", "number", "payload")


def pack(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """In a task: rows of packed commands."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= PACKED_BYTES:
            yield from _packed(waiting)
            waiting, size = [], 0
    if waiting:
        yield from _packed(waiting)


def _packed(batches: "Sequence[pa.RecordBatch]") -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.Table.from_batches(batches)
    out = []
    for key in sorted(pc.unique(table["key"]).to_pylist()):
        some = table.filter(pc.equal(table["key"], key)).drop_columns(["key"])
        out.append(Row(key, key, rows.COMMAND, 0, some.num_rows, rows.PLAIN, table_to_bytes(some)))
    if out:
        columns = dict(zip(COLUMNS, zip(*out, strict=True), strict=True))
        types = {"key": pa.int32(), "node": pa.int32(), "sender": pa.int32(), "emission": pa.int64()}
        types |= {"number": pa.int64(), "form": pa.int32(), "data": pa.binary()}
        yield pa.RecordBatch.from_arrays([pa.array(columns[name], types[name]) for name in COLUMNS], names=COLUMNS)


def table_to_bytes(table: "pa.Table") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


def unpack(packed: Sequence[bytes]) -> list[CommandRow]:
    """All commands of these rows. Their order does not depend on that of the rows, nor on how they were packed: by
    number, so that clients take turns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not packed:
        return []
    table = pa.concat_tables([pa.ipc.open_stream(data).read_all() for data in packed])
    keys = [("number", "ascending"), ("client", "ascending"), ("payload", "ascending")]
    table = table.take(pc.sort_indices(table, sort_keys=keys))
    return list(zip(*(table[name].to_pylist() for name in INPUT[1:]), strict=True))
