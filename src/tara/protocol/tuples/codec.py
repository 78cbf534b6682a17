"""Tuples from the wire, and runs cut so that they fit a frame."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from tara.protocol.errors import MalformedTuple
from tara.protocol.tuples.base import DECODE_ERRORS
from tara.protocol.tuples.collection import CommitterStatus, ExecutorStatus, Stable
from tara.protocol.tuples.commands import Event, Request, Result
from tara.protocol.tuples.ordering import Commit, Halted, Proposal, Requests, Results, Submit
from tara.protocol.tuples.reads import (
    IndexRequest,
    PendingReads,
    ReadIndex,
    ReadRequest,
    ReadResult,
    ReadResults,
    StartIndexRequest,
    SubmitReads,
)
from tara.protocol.tuples.view_change import (
    Accepted,
    Advance,
    Collecting,
    Presence,
    Progress,
    Record,
    Start,
    Target,
    View,
    Vote,
)

WireTuple = (
    Submit
    | Requests
    | Proposal
    | Commit
    | Results
    | Halted
    | SubmitReads
    | PendingReads
    | IndexRequest
    | StartIndexRequest
    | ReadIndex
    | ReadResults
    | CommitterStatus
    | ExecutorStatus
    | Stable
    | Target
    | Progress
    | Advance
    | Vote
    | Presence
    | View
    | Record
    | Collecting
    | Start
)
_decode_tuple: Callable[[bytes], WireTuple] = msgspec.msgpack.Decoder(WireTuple).decode


def decode_tuple(data: bytes) -> WireTuple:
    """One tuple from the wire. A malformed one is refused with the name of the field that is wrong."""
    try:
        return _decode_tuple(data)
    except DECODE_ERRORS as error:
        raise MalformedTuple(_explain(data, str(error))) from error


_BY_TAG: dict[object, type[Struct]] = {kind.__struct_config__.tag: kind for kind in WireTuple.__args__}


def _explain(data: bytes, problem: str) -> str:
    """Turn msgspec's `$[3]` into the field's name."""
    try:
        parts = msgspec.msgpack.decode(data)
    except DECODE_ERRORS:
        return f"not a tuple: {problem}"
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], int) or parts[0] not in _BY_TAG:
        return f"not a tuple: {problem}"
    kind = _BY_TAG[parts[0]]
    message, _, path = problem.partition(" - at `$[")
    position, _, rest = path.rstrip("`").partition("]")
    if not position.isdigit():
        return f"{kind.__name__}: {message}"
    field = kind.__struct_fields__[int(position) - 1]
    return f"{kind.__name__}.{field}{rest}: {message}"


Sized = TypeVar("Sized", Request, Accepted, Result, Event, ReadRequest, ReadResult)


def split(items: list[Sized], count_max: int, bytes_max: int) -> Iterator[list[Sized]]:
    """Cut a run so that each piece fits a frame."""
    if not items:
        return
    costs = _costs(items)
    if len(items) <= count_max and sum(costs) <= bytes_max:
        yield items
        return
    piece: list[Sized] = []
    size = 0
    for item, cost in zip(items, costs, strict=True):
        if piece and (len(piece) >= count_max or size + cost > bytes_max):
            yield piece
            piece, size = [], 0
        piece.append(item)
        size += cost
    yield piece


def _costs(items: list[Any]) -> list[int]:
    """Bytes on the wire, about. All are of one kind."""
    kind = type(items[0])
    if kind is Request:
        return [len(item.body) + 48 for item in items]
    if kind is Accepted:
        return [len(item.request.body) + 48 for item in items]
    return [len(item.payload) + 48 for item in items]
