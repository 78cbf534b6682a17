"""What flows along the edges of the graph, and its wire format.

Tuples are immutable records, written as MessagePack arrays whose first element says which tuple it is. A tuple
names its creator by the replica's index within its stage; the kind of tuple implies the stage. Slots (sequence
numbers of a partition) travel in runs: `first` and the requests of first, first+1, … This is what makes the
protocol cheap: a node handles a run, not a request.

Every number is checked when it is read from the wire, so that a node may trust the shape of what it processes. What a
record does not have is refused, not passed over: whatever is passed over may be nested as deeply as its sender likes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from tara.protocol.errors import MalformedTuple
from tara.protocol.principals import PRINCIPAL_BYTES_MAX

#: The version of the wire format; a frame of a newer one is refused.
FORMAT_VERSION = 2

#: What the protocol counts: views, slots, lives. Far beyond what is ever reached, and so far below what the wire format
#: can hold that sums of such numbers can be sent, too.
Number = Annotated[int, Meta(ge=0, lt=1 << 62)]
#: Checkpoints; a product with the checkpoint interval is still a number.
CheckpointNumber = Annotated[int, Meta(ge=0, lt=1 << 40)]
#: What clients choose: anything that the wire format holds.
ClientNumber = Annotated[int, Meta(ge=0)]
#: Who sends a command; see `tara.protocol.principals`.
Principal = Annotated[bytes, Meta(max_length=PRINCIPAL_BYTES_MAX)]
Reach = tuple[Number, Number]


# What is replicated


class Command(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """One client command. (session, number) identifies it for ever: it executes at most once."""

    session: ClientNumber
    number: ClientNumber
    #: The client has the results of all its commands below this number; they may be forgotten.
    acknowledged: ClientNumber
    payload: bytes
    kind: Annotated[int, Meta(ge=0, le=6)] = 0
    #: Who sent it. Only front ends say so: what a client writes here is overwritten.
    principal: Principal = b""


EXECUTE = 0  # apply the payload to the application
QUERY = 1  # ask the application, in order
OPEN = 2  # open a session; number is a nonce of the client, payload a MessagePack integer (the time-out in ms) or name
CLOSE = 3  # end the session
KEEPALIVE = 4  # let the agreed time pass, and renew the session (0: none)
# In a named session: decide what a key stands for; number is a nonce of its own, payload a MessagePack `Claim`.
CLAIM = 5
# An operator's: in no session, number is a nonce, payload a MessagePack `Skip`. See `tara.protocol.skips`.
SKIP = 6
# Sent by nobody, and refused from everybody: how the decided log tells that a session's time was up.
EXPIRE = 7


class Skip(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """What an operator wants done about a command that no replica can execute."""

    #: Marks requests that have such a command in them.
    mark: bytes
    #: The command.
    counter: Number
    step: Annotated[int, Meta(ge=0, le=2)]


ASK_SKIP = 0
CONFIRM_SKIP = 1
WITHDRAW_SKIP = 2


class Claim(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a key of a named session stands for. The first claim of a key wins, and everybody gets its value."""

    #: Rises from claim to claim; only the newest one is remembered, an older one is refused.
    key: ClientNumber
    value: bytes
    #: In the answer: the number of the session's next command when the claim was decided, and now.
    base: Number = 0
    next: Number = 0


class Result(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a command returned. The same on every replica, however often it is asked for."""

    session: ClientNumber
    number: ClientNumber
    #: The command counter at which it executed.
    counter: Number
    status: Annotated[int, Meta(ge=0, le=11)]
    payload: bytes
    #: Whom it is for: who sent the command.
    principal: Principal = b""


OK = 0
FAILED = 1  # the application raised; the payload is the message
EXPIRED = 2  # no such session (any more); the command does not execute, unless an earlier copy of it did
REJECTED = 3  # beyond a bound of the session, or ill-formed; this copy of the command does not execute
FULL = 4  # no room for another session
# Said by a front end, about a command that it did not pass on:
OVERLOADED = 5  # no room now
TOO_LARGE = 6  # longer than command_bytes_max
# Said by the replicas, and by a front end to whoever has neither a key nor a secret:
FORBIDDEN = 7  # the session belongs to somebody else; the command does not execute and changes nothing
# Said by a front end again:
HALTED = 8  # the replica of its site does not execute any more; the payload says why
# Said by the replicas:
SKIPPED = 9  # an operator had it skipped: no replica has executed it, and none will
UNACKNOWLEDGED = 10  # too much is kept for the client; acknowledge and send it again: this copy does not execute
# Said by a front end, about a long command that it has:
WAITING = 11  # it waits for its turn, and the queue moves; no result, but a reason to be patient


class Event(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Something the application published for a session (0: for all) while it executed a command."""

    session: ClientNumber
    counter: Number
    payload: bytes
    #: Whom it is for: the session's owner.
    principal: Principal = b""


class Request(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a slot holds: a batch of commands as numbered by a request source and stamped by a proposer."""

    #: -1 marks a no-op: it fills a slot that nobody needs.
    source: Annotated[int, Meta(ge=-1, lt=2**31)]
    #: One start of the source; its numbers begin at 0 in each epoch.
    epoch: Number
    number: Number
    #: Milliseconds on the proposer's clock when it first proposed the request; 0 before that.
    time: Number
    #: The commands, encoded once by the source and decoded once by each executor.
    body: bytes


NOOP = Request(-1, 0, 0, 0, b"")


class Tuple(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The common base of everything that a node processes or emits."""


# Request handling


class Submit(Tuple, frozen=True, tag=1):
    """client → request source: commands to be ordered. Those that there is no room for come back as `Refused`."""

    commands: list[Command]
    #: How many bytes may wait before more are refused; 0: any number.
    bytes_max: Number = 0


class Requests(Tuple, frozen=True, tag=2):
    """request source → proposers of its partition: numbered requests."""

    requests: list[Request]


class Proposal(Tuple, frozen=True, tag=3):
    """proposer → committers of its partition: the requests of a run of slots, valid in one view."""

    proposer: Number
    partition: Number
    view: Number
    first: Number
    #: The proposer's stability threshold, as a slot; teaches a committer that missed it.
    stable: Number
    requests: list[Request]


class Commit(Tuple, frozen=True, tag=4):
    """committer → executors: it has accepted the requests of a run of slots in this view."""

    committer: Number
    partition: Number
    view: Number
    first: Number
    requests: list[Request]


class Results(Tuple, frozen=True, tag=5):
    """executor → reply sink of its site → client."""

    executor: Number
    results: list[Result]
    events: list[Event]


#: Characters of a reason; it is shown to operators and to clients.
REASON_LENGTH_MAX = 1000


class Halted(Tuple, frozen=True, tag=21):
    """executor → reply sink of its site → client → request source, and → store: this replica does not execute any more,
    although all others may; said again and again. Without a reason: it executes again."""

    executor: Number
    #: The command that it could not execute, by its counter; or the checkpoint that it could not take or restore.
    counter: Number
    checkpoint: Number
    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)]


# Reads without the log


#: Whom a question is for.
Subject = Annotated[int, Meta(ge=0, le=1)]
APPLICATION = 0
SESSIONS = 1  # the list of sessions, for operators; the payload is a `ListSessions`


class ListSessions(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Sessions with higher ids than this one, in the order of their ids, as many as fit an answer."""

    after: Number = 0


class SessionRow(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """What an operator is told of a session."""

    id: Number
    name: str
    owner: Principal
    #: 0: it never expires.
    timeout_ms: int
    #: Since it was opened, and since it was last heard of, on the session clock.
    age_ms: int
    idle_ms: int
    #: The number of its next command.
    next: ClientNumber
    #: Results that are kept until the client has acknowledged them.
    results: int
    results_bytes: int
    #: Commands that came too early, and wait for their turn.
    waiting: int
    waiting_bytes: int


class Question(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a client asks the application. The host that took it knows by the ticket who is waiting."""

    ticket: Number
    payload: bytes
    #: The life of that host: its next one counts tickets anew.
    life: Number = 0
    #: Who asks; said by the front end, as in a command.
    principal: Principal = b""
    subject: Subject = 0


class Answer(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    ticket: Number
    status: Annotated[int, Meta(ge=0, le=10)]
    payload: bytes
    #: As in the question.
    life: Number = 0


class Ask(Tuple, frozen=True, tag=18):
    """client → request source: questions that need a linearizable answer, but no place in the order."""

    questions: list[Question]


class Questions(Tuple, frozen=True, tag=19):
    """request source → the executor of its site: to be answered when the committers have said how far."""

    source: Number
    epoch: Number
    nonce: Number
    questions: list[Question]


class Read(Tuple, frozen=True, tag=6):
    """request source → committers of all partitions: where does the log end? Answered to one executor."""

    source: Number
    epoch: Number
    nonce: Number
    executor: Number


#: The number of the one read of an executor that has started; no request source gives one that high.
START_NONCE = 1 << 61


class AskIndex(Tuple, frozen=True, tag=22):
    """executor → reply sink of its site → client → request source: it has started. How far may something be decided?
    The source asks the committers, as for any other read."""

    executor: Number
    life: Number


class ReadIndex(Tuple, frozen=True, tag=7):
    """committer → executor: no slot at or beyond `position` was accepted here when the question came."""

    committer: Number
    partition: Number
    memory: Number
    #: The highest memory numbers that it has heard of: they expose an answer of a life that is over.
    memories: list[Number]
    source: Number
    epoch: Number
    nonce: Number
    position: Number


class Answers(Tuple, frozen=True, tag=20):
    """executor → reply sink of its site → client."""

    executor: Number
    answers: list[Answer]


# Garbage collection, and the positions that drive re-sending


class CommitterStatus(Tuple, frozen=True, tag=8):
    """committer → gc sinks → gc sources."""

    committer: Number
    partition: Number
    #: (life, round) orders the reports of one node; a later one replaces an earlier one.
    life: Number
    round: Number
    memory: Number
    view: Number
    #: The next slot it accepts in `view`; -1 while it has not seen the start of that view.
    position: Annotated[int, Meta(ge=-1, lt=1 << 62)]
    #: The newest stable checkpoint that it knows of.
    stable: CheckpointNumber


class CheckpointId(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A checkpoint: the state after `number` · interval slots; equal states have equal digests."""

    number: CheckpointNumber
    digest: bytes


class ExecutorStatus(Tuple, frozen=True, tag=9):
    """executor → gc sinks → gc sources; also announces checkpoints."""

    executor: Number
    life: Number
    round: Number
    #: Per partition, the next slot it has no decision for.
    positions: list[Number]
    #: Per partition and request source, (epoch, number) below which every request is decided.
    progress: list[list[Reach]]
    #: The checkpoints that it holds durably, oldest first.
    checkpoints: list[CheckpointId]
    #: The newest stable checkpoint that it knows of.
    stable: CheckpointNumber
    #: Open sessions, so that request sources know whether the agreed time must pass.
    sessions: Number


class Stable(Tuple, frozen=True, tag=10):
    """gc source → proposers, committers, executors, request sources, and the queues of the other gc sources: the
    threshold, and everybody's positions."""

    source: Number
    #: The newest checkpoint that f+1 executors hold or held with the same digest. The digest is empty where only
    #: the number is known: from a node that outlived those who had vouched for it.
    checkpoint: CheckpointId
    executors: list[ExecutorStatus]
    committers: list[CommitterStatus]


# View change


class Target(Tuple, frozen=True, tag=11):
    """request source → controllers of its partition: it has numbered this many requests in this epoch."""

    source: Number
    partition: Number
    reach: Reach
    #: Bytes of the oldest undecided requests: what has to travel before something is decided.
    bytes: Number


class Progress(Tuple, frozen=True, tag=12):
    """executor → controllers of a partition: what is decided there."""

    executor: Number
    partition: Number
    #: A restarted executor may be behind where its former life was.
    life: Number
    progress: list[Reach]
    position: Number
    #: The highest position of any partition: an idle partition has to skip up to it.
    frontier: Number
    #: The lowest position of any partition: the one that all others wait for.
    slowest: Number
    #: The first slot that does not fit the partition's window, as far as the executor knows.
    window_end: Number
    #: Bytes of requests that were decided in this life of the executor.
    bytes: Number


class Advance(Tuple, frozen=True, tag=23):
    """proposer → controllers of its partition: how far the beginning of its view is. Sent while that changes."""

    proposer: Number
    partition: Number
    view: Number
    #: Bytes of records that have come; then, of the slots that are proposed again, how many committers accepted, added
    #: up over the committers.
    records: Number
    slots: Number


class Vote(Tuple, frozen=True, tag=13):
    """controller → view sinks → view sources: the partition needs this view; 0: it needs none, whatever it said before.
    A vote counts for a while only, so a controller repeats it."""

    controller: Number
    partition: Number
    #: (life, round) orders the votes of one controller; a later one replaces an earlier one.
    life: Number
    round: Number
    view: Number


class Presence(Tuple, frozen=True, tag=14):
    """committer or proposer → view sinks → view sources: my memory number, the view I know, and the memory numbers
    under which it was entered. A restarted proposer joins with it, and a committer that lost its memory; any committer
    corrects a source that lags."""

    #: Index into `memories`: the proposers of the partition, then its committers.
    member: Number
    partition: Number
    memory: Number
    view: Number
    memories: list[Number]


class View(Tuple, frozen=True, tag=15):
    """view source → proposers, committers, controllers, request sources of its partition, and the queues of its other
    view sources."""

    source: Number
    partition: Number
    view: Number
    #: The highest memory number known of each proposer, then of each committer.
    memories: list[Number]


class Accepted(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """One slot of a record: what was accepted there in the highest view, and that view."""

    view: Number
    request: Request


class Record(Tuple, frozen=True, tag=16):
    """committer → record sink → record source → the proposer of the view: part of what it had accepted when it
    entered the view. Frozen at that moment: re-sent, never changed."""

    committer: Number
    partition: Number
    view: Number
    memory: Number
    #: The memory numbers that it knew when it entered the view.
    memories: list[Number]
    #: The record covers the slots [minimum, end); this part begins at `first`.
    minimum: Number
    end: Number
    first: Number
    slots: list[Accepted]


class Credential(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Whose record a start was computed from, and which memory numbers that record names."""

    committer: Number
    memory: Number
    memories: list[Number]


class Start(Tuple, frozen=True, tag=17):
    """proposer → committers of its partition: this view begins. The slots [first, next) are proposed again."""

    proposer: Number
    partition: Number
    view: Number
    #: The highest memory numbers in the credentials; a committer votes only if its own is named.
    memories: list[Number]
    credentials: list[Credential]
    first: Number
    next: Number


WireTuple = (
    Submit
    | Requests
    | Proposal
    | Commit
    | Results
    | Halted
    | Ask
    | Questions
    | Read
    | AskIndex
    | ReadIndex
    | Answers
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
    | Start
)


# Between an executor and the storage of its host; never on the wire


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


class Refused(Tuple, frozen=True, tag=109):
    """request source → client: there is no room for these commands."""

    commands: list[Command]


class Waiting(Tuple, frozen=True, tag=110):
    """request source → client: these long commands wait for their turn or for their answer, while the queue moves.
    Without their payload."""

    commands: list[Command]


class Unkept(Tuple, frozen=True, tag=111):
    """client → request source: the replicas did not keep a command that went through here, and it will come again."""

    session: int
    number: int
    principal: bytes


class AskHere(Tuple, frozen=True, tag=112):
    """client → executor of its site: questions for which any state will do; the answers may have so many bytes."""

    questions: list[Question]
    bytes_max: int


class Unbarred(Tuple, frozen=True, tag=108):
    """executor → store: this command, which has ended the process, is tried again; an operator wants it."""

    counter: int


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


# What a committer writes to its journal


class Promised(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True, tag=1):
    """It entered this view, under these memory numbers; it will not vote in a lower one."""

    view: Number
    memories: list[Number]


class Started(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True, tag=2):
    """The view began: it proposes the slots [first, next) again, and nothing was decided from `next` on before it."""

    view: Number
    first: Number
    next: Number


class Voted(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True, tag=3):
    """It accepted these requests in this view."""

    view: Number
    first: Number
    requests: list[Request]


class Resumed(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True, tag=4):
    """The first entry of a journal segment: what it had promised by then. The requests that it had accepted are in
    older segments; where those were dropped, a later entry says that a stable checkpoint covers them."""

    memory: Number
    view: Number
    memories: list[Number]
    started: bool
    #: The slots [minimum, commits) were accepted in this view, [minimum, records) in lower ones.
    minimum: Number
    commits: Number
    records: Number


class Installed(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True, tag=6):
    """It had lost its memory, and has a new one: all that could have been decided before this view, as accepted in it.
    One record, so that it is there as a whole or not at all; whatever stands before it in the journal is void."""

    memory: Number
    view: Number
    memories: list[Number]
    first: Number
    requests: list[Request]


class Collected(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True, tag=5):
    """The slots below are in a stable checkpoint; what was said of them is void."""

    stable: Number


class Restored(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True, tag=7):
    """What could be saved of a damaged journal: everything that it has promised, and what it knows of what it accepted.
    Whatever stands before it in the journal is void."""

    memory: Number
    view: Number
    memories: list[Number]
    started: bool
    minimum: Number
    #: From `minimum` on: accepted in this view, and in lower ones.
    commits: list[Request]
    records: list[Accepted]
    #: Slots in which it accepted something newer than it knows: what the lists have there means nothing.
    holes: list[Number]


JournalEntry = Promised | Started | Voted | Resumed | Collected | Installed | Restored


class Lost(Struct, frozen=True):
    """Entries are missing here, nobody knows how many. In no journal: who reads one puts it where the gap is."""


#: A journal as it was read.
ReplayedEntry = JournalEntry | Lost


# Codecs

encode = msgspec.msgpack.Encoder().encode
_decode_commands: Callable[[bytes], list[Command]] = msgspec.msgpack.Decoder(list[Command]).decode
_decode_tuple: Callable[[bytes], WireTuple] = msgspec.msgpack.Decoder(WireTuple).decode


#: What decoding bytes that are not ours may raise.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_commands(body: bytes) -> list[Command]:
    """The commands of a request."""
    try:
        return _decode_commands(body)
    except DECODE_ERRORS as error:
        raise MalformedTuple(f"request body: {error}") from error


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


def identity(request: Request) -> tuple[int, int, int]:
    """What tells one request from another."""
    return (request.source, request.epoch, request.number)


Sized = TypeVar("Sized", Request, Accepted, Result, Event, Answer)


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
