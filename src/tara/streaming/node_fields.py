"""What of a node is its state in a streaming query: field by field, with types.

Whoever gives a node of `tara.protocol` a new attribute says here whether it is state. Without that, no state is
written; and as the encoding changes with the declaration, `tara.streaming.seats.FORMAT_VERSION` changes, too. What a
host of its own keeps for a live cluster (a cell, journals, bases) is not here: see `tara.streaming.host`.
"""

from collections import deque

from tara.protocol import tuples as t
from tara.protocol.acceptor import Acceptor
from tara.protocol.backoff import Backoff
from tara.protocol.base_taker import BaseTaker
from tara.protocol.bases import BaseSchedule
from tara.protocol.node import Node
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import Controller
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.gc_source import GcSource
from tara.protocol.nodes.learner import Learner, Votes
from tara.protocol.nodes.proposer import HeldRequests, Mode, Proposer, RecordParts
from tara.protocol.nodes.reads import Reads, StartIndex
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.nodes.sink import RecordSource, Sink
from tara.protocol.nodes.view_source import ViewSource
from tara.protocol.observer import Observer
from tara.protocol.opinions import ProgressOpinions, Reach
from tara.protocol.progress import SourceProgress
from tara.protocol.resend import Laggards
from tara.protocol.skips import Skips
from tara.protocol.stalls import Stalls
from tara.protocol.status import Newest, Status
from tara.protocol.throttle import Throttle
from tara.protocol.transfer import Transfer
from tara.protocol.window import Value, Window
from tara.streaming.errors import StreamingError
from tara.streaming.typed_state import Bodies, Fields, TypedState

_PARTS: dict[type, Fields] = {
    Acceptor: Fields(
        {
            "commits": Window[t.Request],
            "records": Window[t.Accepted],
            "holes": set[int],
            "view": int,
            "started": bool,
            "incarnation": int,
            "incarnations": list[int],
            "known": list[int],
            "recovering": bool,
        },
        ("_member", "_members"),
    ),
    Backoff: Fields({"pause": int}, ("_first",)),
    BaseSchedule: Fields(
        {"_length": int, "_bytes": int, "_time_ms": int, "_not_before": int, "_failures": int},
        ("_bytes_min", "_interval_ms"),
    ),
    # A query keeps its states itself: none of its executors ever takes a base.
    BaseTaker: Fields(
        {
            "known": list[t.CheckpointId],
            "trouble": str,
            "_schedule": BaseSchedule,
            "_capture": None,
            "_ordered": int,
            "_wanted": int,
        },
        ("_interval", "_keeps_bases", "_cell", "_tell", "_ended", "barred"),
    ),
    HeldRequests: Fields(
        {"epoch": int, "low": int, "held": dict[int, t.Request], "cursor": int, "again": set[int]}, ("_capacity",)
    ),
    Laggards: Fields(
        {
            "_sent": deque[int],
            "_positions": list[int],
            "_stuck": list[int],
            "_backoff": list[Backoff],
            "_until": list[int],
            "_heard": list[tuple[int, int]],
            "_lives": list[int],
        },
        ("_rounds",),
    ),
    Learner: Fields(
        {
            "_votes": list[Votes],
            "decided": deque[t.Request],
            "position": int,
            "bytes": int,
            "progress": list[SourceProgress],
        },
        ("_partition", "_quorum", "_capacity"),
    ),
    Newest: Fields({"_statuses": list[Status | None]}),  # type: ignore[valid-type]
    Observer: Fields({"_values": list[int], "current": int}, ("_threshold",)),
    ProgressOpinions: Fields({"_opinions": list[list[Reach]]}),
    # Nobody reads in a query: these stay as they were made.
    Reads: Fields(
        {"bytes": int, "_open": dict[str, None], "_waiting": list[None], "_newest": dict[str, None]},
        ("_graph", "_quorum", "_capacity", "_bytes_max"),
    ),
    RecordParts: Fields(
        {
            "credential": t.Credential,
            "minimum": int,
            "end": int,
            "slots": dict[int, t.Accepted],
            "missing": int,
            "bytes": int,
        }
    ),
    Skips: Fields(
        {
            "barred": set[int],
            "_orders": dict[int, list[tuple[int, int]]],
            "asked": set[int],
            "confirmed": set[int],
            "_settled": set[int],
            "known": set[int],
        }
    ),
    SourceProgress: Fields({"epoch": int, "low": int, "early": set[int]}),
    Stalls: Fields(
        {"allowance_ms": float, "_usual_ms": float, "_last_ms": float, "_stalled_ms": float}, ("_short_ms",)
    ),
    StartIndex: Fields(
        {"_indexes": list[dict[int, t.ReadIndex]], "until": int | None},
        ("_graph", "_quorum"),
    ),
    Throttle: Fields({"_allowance": float, "_now_ms": float}, ("_capacity", "_per_ms")),
    Transfer: Fields(
        {
            "_bytes": int,
            "_pending": dict[int, int],
            "_ms_per_byte": float,
            "_known": float,
            "_samples": deque[float],
            "_wait": tuple[float, int],
            "_reported": dict[int, tuple[int, int]],
        }
    ),
    Votes: Fields({"view": int, "first": int, "end": int, "requests": list[t.Request]}),
    Window: Fields({"min": int, "_values": list[Value]}, ("capacity",)),  # type: ignore[valid-type]
}

_NODES: dict[type, Fields] = {
    Node: Fields(
        {"now_ms": float, "resent": int, "_report_due_ms": float},
        ("name", "index", "partition", "graph", "limits", "boot", "outbox", "handlers", "_edges"),
    ),
    RequestSource: Fields(
        {
            "next": int,
            "_pending": deque[t.Request],
            "_taken": set[tuple[int, int, int, bytes]],
            "_pending_bytes": int,
            "backlog_bytes": int,
            "_backlog": deque[t.Command],
            "_signs": deque[t.Command],
            "_order_moved_ms": float,
            "_moved_ms": float,
            "_late": int,
            "_unanswered": deque[tuple[int, t.Command]],
            "_answered": int,
            "_answered_ms": float,
            "_told_ms": float,
            "_orders": deque[t.Command],
            "_orders_open": int,
            "_halted_until_ms": float,
            "_stable": int,
            "_decided": int,
            "_batch_since_ms": float,
            "_silent_since_ms": float,
            "_sessions_open": bool,
            "_views": Observer,
            "_executors": Newest[t.ExecutorStatus],
            "_heard_ms": list[float],
            "_oldest": int,
            "_stuck": int,
            "_backoff": Backoff,
            "_nonce": int,
        },
        # What is pending says which commands are, and the view who is active.
        ("epoch", "_commands", "_active", "_committers", "_executor", "_proposers", "_others", "_controllers"),
    ),
    GcSource: Fields(
        {
            "stable": t.CheckpointId,
            "_executors": Newest[t.ExecutorStatus],
            "_committers": list[Newest[t.CommitterStatus]],
            "_news": bool,
        },
        ("_receivers",),
    ),
    ViewSource: Fields(
        {
            "view": int,
            "incarnations": list[int],
            "_entered": list[int],
            "_entries": dict[int, list[int]],
            "_votes": list[t.Vote | None],
            "_heard_ms": list[float],
            "voted": int,
            "_round": int,
        },
        ("_receivers",),
    ),
    RecordSource: Fields({}),
    Sink: Fields({}, ("_receivers",)),
    Proposer: Fields(
        {
            "mode": Mode,
            "proposals": Window[t.Request],
            "_held": list[HeldRequests],
            "_turn": int,
            "_bytes": int,
            "_logged": tuple[int, int],
            "_throttle": Throttle | None,
            "_records": dict[int, RecordParts],
            "_start": t.Start | None,
            "_thresholds": Observer,
            "_views": Observer,
            "_known_to": set[int],
            "_executors": Newest[t.ExecutorStatus],
            "_committers": Newest[t.CommitterStatus],
            "_laggards": Laggards,
            "_behind_since_ms": float | None,
            "_advance": tuple[int, int, int],
        },
        ("_member", "_to_committers", "_to_committer", "_view_sinks", "_controllers"),
    ),
    Committer: Fields(
        {
            "acceptor": Acceptor,
            "_holes_backoff": Backoff,
            "_holes_due": int,
            "views_entered": int,
            "_install_until": int,
            "_left_out": bool,
            "_views": Observer,
            "_thresholds": Observer,
            "_round": int,
            "_record_repeats": int,
            "_record_due": int,
            "_record_sent": int,
            "_record_missing": int,
            "_lagging_sources": bool,
            "_statuses": Newest[t.ExecutorStatus],
            "_committers": Newest[t.CommitterStatus],
            "_laggards": Laggards,
        },
        # The view says which executors get its votes.
        ("_member", "_executors", "_executor", "_record_sinks", "_gc_sinks", "_view_sinks"),
    ),
    Executor: Fields(
        {
            "bases": BaseTaker,
            "skips": Skips,
            "starts": int,
            "_executed": int,
            "_learners": list[Learner],
            "stable": Observer,
            "checkpoints": list[t.CheckpointId],
            "_durable": int,
            "_reads": Reads,
            "_round": int,
            "_serves": bool,
            "halted": t.Halted | None,
            "_broken": bool,
            "_not_restored": int,
            "_breakdowns": int,
            "_restored": bool,
            "_loading": bool,
            "_replaying": bool,
            "_restoration": None,
            "_doubted": t.Doubted | None,
            "_load_due_ms": float,
            "_asked_at": int,
            "_own_due_ms": float,
            "_looked": int,
            "_must_look": bool,
            "_horizon": StartIndex,
        },
        # What it has executed is kept by itself, see `tara.streaming.executed`.
        ("_cell", "_make", "_execution", "_ahead_max", "_digest", "_reply_sink", "_gc_sinks", "_controllers"),
    ),
    Controller: Fields(
        {
            "_target": list[Reach],
            "_ordered": ProgressOpinions,
            "_actual": list[Reach],
            "_places": list[t.Progress | None],
            "_heard_ms": list[float],
            "_position": int,
            "_since_ms": list[float | None],
            "timeout_ms": float,
            "_moved_ms": float,
            "_calm_since_ms": float,
            "_transfer": Transfer,
            "_stalls": Stalls,
            "_lost_patience_ms": float,
            "_begun": tuple[int, int],
            "asked": int | None,
            "_round": int,
            "_views": Observer,
        },
        ("_view_sinks",),
    ),
}

STATES = TypedState({**_PARTS, **_NODES})


def encode_node(node: Node, bodies: Bodies) -> bytes:
    """Between two micro-batches: nothing is on its way."""
    outbox = node.outbox
    if outbox.emitted or outbox.told or outbox.persisted:
        raise StreamingError(f"{node.name.stage}-{node.name.replica} has something to say that nobody took")
    return STATES.encode(node, bodies)


def decode_node(node: Node, data: bytes, bodies: Bodies) -> None:
    """Give a node that was just made its state."""
    node.outbox.emitted, node.outbox.told, node.outbox.persisted = [], [], []
    STATES.decode(node, data, bodies)
    if isinstance(node, RequestSource):
        node._commands = deque(t.decode_commands(request.body) for request in node._pending)
        if node._views.current:
            node._active = node.graph.request_receivers(node.partition, node._views.current)
    elif isinstance(node, Committer):
        if node.acceptor.view:
            view = node.acceptor.view
            node._executors = node.graph.commit_receivers(node.index, node.partition, view)
    elif isinstance(node, Executor) and node._broken:
        node.handlers = {}


def position_of(node: Node) -> tuple[int | None, int | None]:
    """Its view, and how far it is, for those who watch: the next slot, checkpoint, request or command."""
    match node:
        case RequestSource():
            return node._views.current, node.next
        case GcSource():
            return None, node.stable.number
        case ViewSource():
            return node.view, None
        case Proposer():
            return node.view, node.proposals.pos
        case Committer():
            return node.acceptor.view, node.acceptor.commits.pos
        case Executor():
            return None, node.sessions.counter
        case Controller():
            return node._views.current, node._position
    return None, None
