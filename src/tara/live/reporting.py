"""What a container says of itself in a heartbeat: counters, gauges, histograms, and the state of every node.

`tara status`, `tara nodes` and the metrics endpoint show nothing but this. Looking does not change anything.
"""

import time
from typing import TYPE_CHECKING, Any

import msgspec

from tara.live.observability.metrics import process_report
from tara.protocol import tuples as t
from tara.protocol.graph import PARTITIONED
from tara.protocol.node import Node
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import Controller
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.gc_source import GcSource
from tara.protocol.nodes.proposer import Mode, Proposer
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.nodes.view_source import ViewSource
from tara.storage.bases import StoreCounts

if TYPE_CHECKING:
    from tara.live.container import Container


def status_report(container: "Container") -> dict[str, object]:
    partitions: dict[str, dict[str, object]] = {}
    status: dict[str, object] = {}
    for number, node in container.nodes.items():
        name = container.graph.names[number]
        here = partitions.setdefault(str(name.partition), {}) if name.stage in PARTITIONED else {}
        match node:
            case Committer():
                here["view"] = node.acceptor.view
                here["committer"] = {
                    "position": node.acceptor.commits.pos,
                    "started": node.acceptor.started,
                    "recovering": node.acceptor.recovering,
                }
            case Proposer():
                here["proposer"] = {"index": node.index, "mode": node.mode.value, "view": node.view}
            case RequestSource():
                here["pending"] = node.pending
                here["backlog"] = node.backlog
            case Executor():
                drawn = node.drawn_digest
                status["executor"] = {
                    "next": node.next,
                    "counter": node.sessions.counter,
                    "sessions": len(node.sessions),
                    # Of this container's clock; what it is behind is no news: it moves with requests only.
                    "time_ahead_ms": max(round(node.sessions.time_ms - time.time() * 1e3), 0),
                    "stable": node.stable.current,
                    "checkpoints": [checkpoint.number for checkpoint in node.checkpoints],
                    "bases": [{"number": base.number, "digest": base.digest.hex()} for base in node.bases.known],
                    # The one that is being written: its number, and its bytes so far.
                    "base_growing": container.storage.stores[number].growing,
                    # Why the last one could not be taken or written.
                    "base_trouble": node.bases.trouble or None,
                    "digest": None if drawn is None else drawn.hex(),
                    "halted": None if node.halted is None else halt_report(node.halted),
                    "skip_asked": node.skip_asked,
                    "executed": node.executed,
                }
                status["log"] = container.storage.stores[number].log.status()
    if container.gateway is not None:
        status["gateway"] = container.gateway.status()
    return {
        **status,
        "partitions": partitions,
        "lives": container.site.lives,
        "counters": _counters(container),
        "histograms": {
            "latency": container.site.latency.histogram.report(),
            "journal_sync": container.sync_times.report(),
        },
        "process": process_report(),
        "log_readers": container.log_readers,
        "nodes": {label: {"state": "halted", "reason": reason} for label, reason in container.counters.halted.items()}
        | {container.graph.label(number): node_report(node) for number, node in container.nodes.items()},
    }


def _counters(container: "Container") -> dict[str, Any]:
    nodes = container.nodes.values()
    counters: dict[str, Any] = {
        **msgspec.to_builtins(container.counters),
        **msgspec.to_builtins(StoreCounts()),
        "requests": container.site.latency.requests,
        "resends": sum(node.resent for node in nodes),
        "view_changes": sum(node.views_entered for node in nodes if isinstance(node, Committer)),
        "log_errors": container.events.errors,
    }
    for store in container.storage.stores.values():
        for key, count in msgspec.to_builtins(store.bases.counts).items():
            counters[key] += count
    return counters


def halt_report(halted: t.Halted) -> dict[str, object]:
    return {"counter": halted.counter, "checkpoint": halted.checkpoint, "reason": halted.reason}


def node_report(node: Node) -> dict[str, object]:
    """One node, for `tara nodes`: a word for its state, its position if it has one, and what else is worth knowing."""
    report: dict[str, object]
    match node:
        case Committer():
            state = "recovering" if node.acceptor.recovering else "voting" if node.acceptor.started else "waiting"
            report = {
                "state": state,
                "view": node.acceptor.view,
                "position": node.acceptor.commits.pos,
                "stable": node.acceptor.commits.min,
            }
            report["views_entered"] = node.views_entered
            if node.acceptor.holes:
                report["holes"] = len(node.acceptor.holes)
        case Proposer():
            report = {"state": node.mode.value, "view": node.view}
            if node.mode is Mode.ACTIVE:
                report["position"] = node.proposals.pos
        case Executor():
            state = "halted" if node.halted is not None else "executing" if node.restored else "restoring"
            report = {"state": state, "position": node.next, "stable": node.stable.current}
            if node.halted is not None:
                report |= halt_report(node.halted)
        case RequestSource():
            full = node.capacity <= 0 or node.backlog_bytes >= node.limits.source_backlog_bytes_max
            report = {"state": "full" if full else "open", "position": node.next}
            report |= {"pending": node.pending, "backlog": node.backlog, "backlog_bytes": node.backlog_bytes}
        case Controller():
            asks = node.asked is not None
            report = {"state": f"asks for view {node.asked}" if asks else "watching", "timeout_ms": node.timeout_ms}
        case ViewSource():
            report = {"state": "publishing", "view": node.view}
        case GcSource():
            report = {"state": "publishing", "stable": node.stable.number}
        case _:
            report = {"state": "passing on"}
    if node.resent:
        report["resent"] = node.resent
    return report
