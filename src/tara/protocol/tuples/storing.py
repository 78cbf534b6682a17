"""Between an executor and the storage of its host; never on the wire."""

from collections.abc import Iterable, Sequence

from tara.protocol.tuples.base import Tuple
from tara.protocol.tuples.collection import CheckpointId
from tara.protocol.tuples.commands import Command, Request, Result


class Save(Tuple, frozen=True, tag=101):
    """executor → store: keep this checkpoint. `chunks` may be drawn later, off the hot path."""

    number: int
    state: bytes
    chunks: Iterable[bytes]


class Saved(Tuple, frozen=True, tag=102):
    """store → executor: the checkpoint is durable."""

    checkpoint: CheckpointId


class Unsaved(Tuple, frozen=True, tag=107):
    """store → executor: the application raised this while its snapshot was drawn."""

    number: int
    reason: str


class Load(Tuple, frozen=True, tag=103):
    """executor → store: the newest checkpoint not older than `minimum`, your own or a holder's."""

    minimum: int
    holders: Sequence[int]


class Loaded(Tuple, frozen=True, tag=104):
    """store → executor: a checkpoint, or None when there is none to be had just now."""

    checkpoint: CheckpointId | None
    state: bytes
    chunks: Sequence[bytes]


class Discard(Tuple, frozen=True, tag=106):
    """executor → store: checkpoints with lower numbers are not needed any more, saved or still to be saved. A store
    that is slower than the others' thus never has more to do than fits the window. It keeps the newest it has."""

    below: int


class Executed(Tuple, frozen=True, tag=105):
    """executor → store: requests in execution order, for the decided log. `first` is an execution number."""

    first: int
    requests: list[Request]
    #: All results; those of the i-th request and the ones before it are results[:ends[i]].
    results: list[Result]
    ends: list[int]
    #: The agreed time after each request.
    times: list[int]
    #: The command counter before the first request, and after each.
    counter: int
    counters: list[int]
    #: What each number of the command counter stands for, in its order: commands that were executed now, though one
    #: that had to wait for its turn came with an earlier request, and the ends of expired sessions.
    commands: list[Command]
    #: The clock of the sessions after each request.
    clocks: list[int]


class Unbarred(Tuple, frozen=True, tag=108):
    """executor → store: this command, which has ended the process, is tried again; an operator wants it."""

    counter: int
