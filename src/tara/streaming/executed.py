"""What an executor of a query has executed, as its state keeps it: a base, and the runs of requests since.

A micro-batch appends one run. When the runs since the last base have become as long as that base, a new one is taken in
their place. So what is written per micro-batch is what it carried, and coming back executes no more than the state is
long. An execution that is still in memory, at an older version, comes back by the runs that it lacks.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.execution import Execution, ExecutionState
from tara.storage.files import DamagedFile, pack_small, unpack_small
from tara.streaming.errors import NO_WAY_ON, StreamingError

#: A base is not taken for less than this.
RUNS_BYTES_MIN = 1 << 20
#: Chunks of a base are stored in pieces of this length, about.
PIECE_BYTES = 1 << 20
BASE_VERSION = 1
RUN_VERSION = 1
_encode = msgspec.msgpack.Encoder().encode


class Kept(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What there is of an executor's base and runs; a part of its state."""

    #: The checkpoint of the base; number 0: there is none, the runs begin with the very first request.
    base: t.CheckpointId = t.CheckpointId(0, b"")
    #: Its pieces, and the bytes in them.
    pieces: int = 0
    base_bytes: int = 0
    #: The runs [first, end), and the bytes in them.
    first: int = 0
    end: int = 0
    runs_bytes: int = 0


class RunOfBatch(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What an executor executed in one micro-batch."""

    version: int
    #: Its checkpoints before and after.
    before: t.CheckpointId
    after: t.CheckpointId
    #: The execution number of the first of these requests.
    first: int
    requests: list[t.Request]
    #: The counters of commands among them that were skipped.
    skipped: list[int]


class Piece(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Some chunks of a base. The protocol's part is the first chunk of the first piece."""

    version: int
    checkpoint: int
    number: int
    chunks: list[bytes]


_decode_run = msgspec.msgpack.Decoder(RunOfBatch).decode
_decode_piece = msgspec.msgpack.Decoder(Piece).decode


def run_of(executed: list[t.Executed], before: t.CheckpointId, after: t.CheckpointId) -> bytes:
    requests = [request for some in executed for request in some.requests]
    skipped = [counter for some in executed for counter in some.skipped]
    return pack_small(_encode(RunOfBatch(RUN_VERSION, before, after, executed[0].first, requests, skipped)))


def pieces_of(checkpoint: t.CheckpointId, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A base in pieces; there is at least one."""
    number = size = 0
    piece: list[bytes] = []
    for chunk in chunks:
        if piece and size + len(chunk) > PIECE_BYTES:
            yield pack_small(_encode(Piece(BASE_VERSION, checkpoint.number, number, piece)))
            number, size, piece = number + 1, 0, []
        piece.append(chunk)
        size += len(chunk)
    yield pack_small(_encode(Piece(BASE_VERSION, checkpoint.number, number, piece)))


def base_of(execution: Execution) -> Iterator[bytes]:
    """The chunks of a base: the protocol's part, and the application's."""
    yield t.encode(execution.state())
    yield from execution.application.snapshot()


def come_back(
    execution: Execution,
    kept: Kept,
    piece: Callable[[int], bytes],
    run: Callable[[int], bytes],
    renew: Callable[[], Execution],
) -> Execution:
    """Bring an execution to what was kept: from where it is, if the runs lead on from there; otherwise from a new one.
    `piece` and `run` read the state store."""
    missing: list[RunOfBatch] = []
    number = kept.end
    while number > kept.first and (not missing or missing[-1].first > execution.next):
        number -= 1
        missing.append(_read(run(number), _decode_run, RUN_VERSION))
    if missing and missing[0].after == execution.checkpoint:
        return execution
    if not missing and execution.checkpoint == kept.base:
        return execution
    if not (missing and missing[-1].before == execution.checkpoint):
        execution = renew()
        if kept.base.number:
            _restore(execution, kept, piece)
        missing += [_read(run(number), _decode_run, RUN_VERSION) for number in range(number - 1, kept.first - 1, -1)]
    for lacking in reversed(missing):
        _execute_again(execution, lacking)
    return execution


def _restore(execution: Execution, kept: Kept, piece: Callable[[int], bytes]) -> None:
    chunks: list[bytes] = []
    for number in range(kept.pieces):
        found = _read(piece(number), _decode_piece, BASE_VERSION)
        if (found.checkpoint, found.number) != (kept.base.number, number):
            raise StreamingError(f"an executor's base is not the one that its state names: {NO_WAY_ON}")
        chunks += found.chunks
    state = msgspec.msgpack.decode(chunks[0], type=ExecutionState)
    execution.application.restore(chunks[1:])
    execution.restore(state)
    if execution.checkpoint != kept.base:
        raise StreamingError(f"an executor's base is of another history: {NO_WAY_ON}")


def _execute_again(execution: Execution, lacking: RunOfBatch) -> None:
    """Request by request: each of them is a checkpoint."""
    for position, request in enumerate(lacking.requests, lacking.first):
        run = execution.replay(position, [request], lacking.skipped)
        if run.failure:
            raise StreamingError(f"a command that was executed before cannot be executed again: {run.failure}")
    if execution.checkpoint != lacking.after:
        raise StreamingError(
            f"executing again what leads to checkpoint {lacking.after.number} gives digest "
            f"{execution.checkpoint.digest.hex()}, but it was {lacking.after.digest.hex()}: the application is not "
            "deterministic"
        )


def _read(data: bytes, decode: Callable[[bytes], Any], version: int) -> Any:
    try:
        found = decode(unpack_small(data))
    except (DamagedFile, msgspec.DecodeError) as error:
        raise StreamingError(f"what an executor keeps in the checkpoint directory {error}: {NO_WAY_ON}") from error
    if found.version != version:
        raise StreamingError(
            f"what an executor keeps is of format version {found.version}, not {version}: start with a new checkpoint"
        )
    return found
