"""The decided log as columns: what readers get for the runs that are in the files. The writer does without it.

The view in which a slot was decided is no column: replicas may learn one decision in different views, and the rows are
the same on all of them.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import pyarrow as pa

from tara.protocol import tuples as t
from tara.storage.log_format import LoggedCommand, Run

SCHEMA = pa.schema(
    [
        # The command counter: numbers rows without a gap, from 1. What readers use as offset.
        pa.field("counter", pa.int64(), nullable=False),
        # The execution number of the request that let the command execute.
        pa.field("sequence", pa.int64(), nullable=False),
        # The partition, the source and the source's epoch of that request.
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("source", pa.int32(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        # The command: (session, number) identify it. For OPEN, session is 0, number a nonce of the client, and the new
        # session's id is the counter.
        pa.field("session", pa.int64(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        # EXECUTE, QUERY, OPEN, CLOSE or EXPIRE of `tara.protocol.tuples`.
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("command", pa.large_binary(), nullable=False),
        # OK or FAILED; other commands do not execute and have no row.
        pa.field("status", pa.int8(), nullable=False),
        pa.field("result", pa.large_binary(), nullable=False),
        # The agreed time, milliseconds since 1970; and the clock of the sessions, which stalls do not move.
        pa.field("time_ms", pa.int64(), nullable=False),
        pa.field("clock_ms", pa.int64(), nullable=False),
        # Who sent the command, as in `tara.protocol.principals`; of an EXPIRE, the session's owner.
        pa.field("principal", pa.binary(), nullable=False),
    ]
)

_SIGN = 1 << 63
_NO_RESULT = t.Result(0, 0, 0, t.OK, b"")


def rows_of(runs: Sequence[Run], partitions: int) -> pa.RecordBatch:
    """The rows of runs that follow each other."""
    commands = list(chain.from_iterable(map(commands_of, runs)))
    #: Per row, the columns that belong to its request.
    owners: list[list[int]] = [[], [], [], [], []]
    results: list[t.Result] = []
    for run in runs:
        _expand(run, owners)
        results += _results_of(run)
    sequences, sources, epochs, times, clocks = owners
    first = runs[0].counter + 1 if runs else 1
    columns: list[Iterable[Any]] = [
        range(first, first + len(commands)),
        sequences,
        [sequence % partitions for sequence in sequences],
        sources,
        epochs,
        [command.session for command in commands],
        # Only the nonce of an OPEN can have 64 bits: it is the client's, and any 64 bits will do.
        [number if number < _SIGN else number - 2 * _SIGN for number in [command.number for command in commands]],
        [command.kind for command in commands],
        [command.payload for command in commands],
        [result.status for result in results],
        [result.payload for result in results],
        times,
        clocks,
        [command.principal for command in commands],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _expand(run: Run, owners: list[list[int]]) -> None:
    """Give every row what its request has."""
    sequences = range(run.first, run.first + len(run.sources))
    of_requests = (sequences, run.sources, run.epochs, run.times, run.clocks)
    before = run.counter
    if run.counters == list(range(before + 1, before + 1 + len(run.counters))):
        # One command per request: the usual case.
        for column, values in zip(owners, of_requests, strict=True):
            column += values
        return
    for counter, *values in zip(run.counters, *of_requests, strict=True):
        for column, value in zip(owners, values, strict=True):
            column += repeat(value, counter - before)
        before = counter


def commands_of(run: Run) -> list[t.Command | LoggedCommand]:
    """One for each number of the counter."""
    carried = list(chain.from_iterable(map(t.decode_commands, run.bodies)))
    if run.commands is None:
        return [*carried]
    return [carried[command] if isinstance(command, int) else command for command in run.commands]


def _results_of(run: Run) -> list[t.Result]:
    """The results of the commands, one each: without answers that were repeated, and without refusals."""
    executed = (t.OK, t.FAILED, t.SKIPPED)
    fresh = {result.counter: result for result in run.results if result.status in executed}
    first = run.counter + 1
    return [fresh.get(number, _NO_RESULT) for number in range(first, first + run.counters[-1] - run.counter)]
