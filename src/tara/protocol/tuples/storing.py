"""Between an executor and the storage of its host; never on the wire.

A checkpoint is a *base*, a snapshot of the whole state that is taken now and then, and the decided requests from there
on, which the storage writes as they come. So taking a checkpoint writes nothing of the state (`Mark`, `Saved`), and
coming back to one is to restore its base, slice by slice (`Load`, `Loaded`, `Restoring`, `Resume`), and to execute
again what follows (`More`, `Replay`).
"""

from collections.abc import Iterable, Sequence

from tara.protocol.tuples.base import Tuple
from tara.protocol.tuples.collection import CheckpointId
from tara.protocol.tuples.commands import Command, Request, Result, decode_commands


class Executed(Tuple, frozen=True, tag=105):
    """executor → store: requests in execution order, for the decided log. `first` is an execution number. No run goes
    across a checkpoint."""

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
    #: What each number of the command counter stands for, in its order; None: the commands of the requests. Otherwise
    #: a number says which of these it is, and a command that it came with an earlier request and had to wait for its
    #: turn, or that it is the end of a session whose time was up.
    commands: list[int | Command] | None
    #: The counters of commands that were skipped.
    skipped: list[int]
    #: The clock of the sessions after each request.
    clocks: list[int]

    def command_of(self) -> dict[int, Command]:
        """By counter."""
        carried = [command for request in self.requests for command in decode_commands(request.body)]
        references = range(len(carried)) if self.commands is None else self.commands
        found = [carried[known] if isinstance(known, int) else known for known in references]
        return dict(enumerate(found, self.counter + 1))


class Mark(Tuple, frozen=True, tag=101):
    """executor → store: here is a checkpoint; make durable what was executed up to it."""

    checkpoint: CheckpointId
    #: The command counter here.
    counter: int


class Saved(Tuple, frozen=True, tag=102):
    """store → executor: what leads to the checkpoint is durable: a base, and all that follows. May be long after its
    `Mark`, if something before it was lost."""

    checkpoint: CheckpointId


class Base(Tuple, frozen=True, tag=106):
    """executor → store: a base begins, at a checkpoint that was marked before. The rest of it comes piece by piece,
    when the store asks for it. An earlier one that is not complete is given up."""

    checkpoint: CheckpointId
    #: The beginning of the protocol's part.
    state: bytes


class Draw(Tuple, frozen=True, tag=107):
    """store → executor: the next piece of the base."""

    number: int


class Drawn(Tuple, frozen=True, tag=115):
    """executor → store: some chunks of the base; none: these were all."""

    number: int
    chunks: list[bytes]
    #: Whether they go on with the protocol's part. All of that comes before the application's.
    is_state: bool = False


class GivenUp(Tuple, frozen=True, tag=116):
    """executor → store, or store → executor: the base will not be completed, and why."""

    number: int
    reason: str


class BaseSaved(Tuple, frozen=True, tag=117):
    """store → executor: the base is durable. `digest` is that of the state, and of how many bytes it is."""

    number: int
    digest: bytes
    length: int


class TakeBase(Tuple, frozen=True, tag=118):
    """host → executor: take a base at this checkpoint, even if none is due. If an operator wants it: also if snapshots
    have ended the process before."""

    number: int
    by_operator: bool = False


class DrawDigest(Tuple, frozen=True, tag=124):
    """host → executor: draw some of the digest of your whole state, for an operator who compares replicas at rest. What
    was drawn is of no use any more when something was executed. `begins`: anew, if so; then all of a small state at
    once, because signs of life are executed, too."""

    begins: bool


class Load(Tuple, frozen=True, tag=103):
    """executor → store: bring me to a checkpoint not older than `minimum`, with what you or the holders have."""

    minimum: int
    #: The state that I have is the one of this execution number; -1: I have none.
    next: int
    #: Bases before this checkpoint are of no use to me.
    bases_from: int
    holders: Sequence[int]


class Loaded(Tuple, frozen=True, tag=104, gc=True):
    """store → executor: what there is. Ask for the requests that follow with `More`. (Unlike other tuples it has what
    leads back to its owner, in `chunks`, and so it has to be collected.)"""

    #: The state to begin with; None: go on from the one that you have.
    base: CheckpointId | None
    state: bytes
    chunks: Iterable[bytes]
    #: The digest of the base's state, and its bytes.
    digest: bytes
    length: int
    #: The checkpoint that the requests lead to; if it is not newer than the base, there are none.
    until: int


class Restoring(Tuple, frozen=True, tag=119):
    """executor → store: there is more to restore of this base. Say when my site has done its other work."""

    number: int


class Resume(Tuple, frozen=True, tag=120):
    """store → executor: restore some more of the base."""

    number: int


class Arrived(Tuple, frozen=True, tag=121):
    """executor → store: I am where what you have leads."""


class More(Tuple, frozen=True, tag=113):
    """executor → store: the next requests."""


class Replay(Tuple, frozen=True, tag=114):
    """store → executor: decided requests, in execution order."""

    first: int
    requests: list[Request]
    #: The counters of commands among them that were skipped when they were executed first.
    skipped: list[int]
    #: The checkpoint behind these requests; None: there is none.
    checkpoint: CheckpointId | None
    #: Whether to ask for what follows; if not, it comes by itself. And whether nothing follows.
    asks: bool
    last: bool
    #: Whether the checkpoint is durable here. If not: `Saved` when it is.
    durable: bool = True


class Doubted(Tuple, frozen=True, tag=122):
    """executor → store: the requests that were to lead to this checkpoint have led to one with another digest. Have
    others got something else?"""

    checkpoint: CheckpointId
    digest: bytes


class Settled(Tuple, frozen=True, tag=123):
    """store → executor: an answer to `Doubted`."""

    checkpoint: CheckpointId
    #: Whether to begin again: what was doubted is not here any more. If not, others have the same, or nobody has it.
    again: bool


class Unbarred(Tuple, frozen=True, tag=108):
    """executor → store: this command, which has ended the process, is tried again; an operator wants it. Or snapshots,
    which have ended it, do not any more."""

    counter: int
