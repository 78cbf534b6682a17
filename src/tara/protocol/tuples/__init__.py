"""What flows along the edges of the graph, and its wire format.

Tuples are immutable records, written as MessagePack arrays whose first element says which tuple it is. A tuple
names its creator by the replica's index within its stage; the kind of tuple implies the stage. Slots (sequence
numbers of a partition) travel in runs: `first` and the requests of first, first+1, … This is what makes the
protocol cheap: a node handles a run, not a request.

Every number is checked when it is read from the wire, so that a node may trust the shape of what it processes. What a
record does not have is refused, not passed over: whatever is passed over may be nested as deeply as its sender likes.

By purpose: `commands` (what is replicated), `ordering` (request handling), `reads`, `collection` (garbage collection),
`view_change`, `storing` (an executor and its storage), `journal` (what committers write), `codec`. Used as a whole:
`from tara.protocol import tuples as t`.
"""

from tara.protocol.tuples.base import (
    DECODE_ERRORS,
    FORMAT_VERSION,
    CheckpointNumber,
    ClientNumber,
    Number,
    Principal,
    Reach,
    Tuple,
    encode,
)
from tara.protocol.tuples.codec import Sized, WireTuple, decode_tuple, split
from tara.protocol.tuples.collection import CheckpointId, CommitterStatus, ExecutorStatus, Stable
from tara.protocol.tuples.commands import (
    ASK_SKIP,
    CLAIM,
    CLOSE,
    CONFIRM_SKIP,
    EXECUTE,
    EXPIRE,
    EXPIRED,
    FAILED,
    FORBIDDEN,
    FULL,
    HALTED,
    KEEPALIVE,
    NOOP,
    OK,
    OPEN,
    OVERLOADED,
    QUERY,
    REJECTED,
    SKIP,
    SKIPPED,
    TOO_LARGE,
    UNACKNOWLEDGED,
    WAITING,
    WITHDRAW_SKIP,
    Claim,
    Command,
    Event,
    Request,
    Result,
    Skip,
    commands_of,
    decode_commands,
)
from tara.protocol.tuples.journal import (
    Collected,
    Installed,
    JournalEntry,
    Lost,
    Promised,
    ReplayedEntry,
    Restored,
    Resumed,
    Started,
    Voted,
)
from tara.protocol.tuples.ordering import (
    REASON_LENGTH_MAX,
    Commit,
    Halted,
    Proposal,
    Refused,
    Requests,
    Results,
    Submit,
    Unkept,
    Waiting,
)
from tara.protocol.tuples.reads import (
    APPLICATION,
    SESSIONS,
    START_NONCE,
    IndexRequest,
    ListSessions,
    PendingReads,
    ReadIndex,
    ReadRequest,
    ReadResult,
    ReadResults,
    SessionRow,
    StartIndexRequest,
    Subject,
    SubmitReads,
    SubmitStaleReads,
)
from tara.protocol.tuples.storing import (
    Arrived,
    Base,
    BaseSaved,
    Doubted,
    Draw,
    DrawDigest,
    Drawn,
    Executed,
    GivenUp,
    Load,
    Loaded,
    Mark,
    More,
    Replay,
    Restoring,
    Resume,
    Saved,
    Settled,
    TakeBase,
    Unbarred,
)
from tara.protocol.tuples.view_change import (
    Accepted,
    Advance,
    Collecting,
    Credential,
    Presence,
    Progress,
    Record,
    Start,
    Target,
    View,
    Vote,
)

# fmt: off
__all__ = [  # noqa: RUF022 (by module)
    "CheckpointNumber", "ClientNumber", "DECODE_ERRORS", "FORMAT_VERSION", "Number", "Principal", "Reach",
    "Tuple", "encode",
    "ASK_SKIP", "CLAIM", "CLOSE", "CONFIRM_SKIP", "Claim", "Command", "EXECUTE", "EXPIRE", "EXPIRED", "Event",
    "FAILED", "FORBIDDEN", "FULL", "HALTED", "KEEPALIVE", "NOOP", "OK", "OPEN", "OVERLOADED", "QUERY",
    "REJECTED", "Request", "Result", "SKIP", "SKIPPED", "Skip", "TOO_LARGE", "UNACKNOWLEDGED", "WAITING",
    "WITHDRAW_SKIP", "commands_of", "decode_commands",
    "Commit", "Halted", "Proposal", "REASON_LENGTH_MAX", "Refused", "Requests", "Results", "Submit", "Unkept",
    "Waiting",
    "APPLICATION", "IndexRequest", "ListSessions", "PendingReads", "ReadIndex", "ReadRequest", "ReadResult",
    "ReadResults", "SESSIONS", "START_NONCE", "SessionRow", "StartIndexRequest", "Subject", "SubmitReads",
    "SubmitStaleReads",
    "CheckpointId", "CommitterStatus", "ExecutorStatus", "Stable",
    "Accepted", "Advance", "Collecting", "Credential", "Presence", "Progress", "Record", "Start", "Target", "View",
    "Vote",
    "Arrived", "Base", "BaseSaved", "Doubted", "Draw", "DrawDigest", "Drawn", "Executed", "GivenUp", "Load", "Loaded",
    "Mark", "More", "Replay", "Restoring", "Resume", "Saved", "Settled", "TakeBase", "Unbarred",
    "Collected", "Installed", "JournalEntry", "Lost", "Promised", "ReplayedEntry", "Restored", "Resumed",
    "Started", "Voted",
    "Sized", "WireTuple", "decode_tuple", "split",
]
# fmt: on
