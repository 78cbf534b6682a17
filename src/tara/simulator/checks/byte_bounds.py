"""What nodes and sites keep, mostly in bytes, counted anew: is it what they think, and no more than they may?"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tara.host.client_desk import ClientDesk
from tara.host.fair_table import FairTable
from tara.host.routes import ROUTES_MAX
from tara.host.site import Site
from tara.protocol import tuples as t
from tara.protocol.limits import Limits
from tara.protocol.node import Node
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.reads import _STALE_TIMES, READ_BYTES, Reads
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.session_quotas import OVERHEAD_BYTES
from tara.protocol.sessions import Sessions


class Kept(NamedTuple):
    what: str
    #: What is there; what it is said to be; and what it may be.
    counted: int
    noted: int
    bytes_max: int

    @property
    def holds(self) -> bool:
        return self.counted == self.noted <= self.bytes_max


def of_node(node: Node, gateways: bool) -> Iterator[Kept]:
    """`gateways`: whether there are some, which bound by themselves what they submit."""
    match node:
        case RequestSource():
            yield from _of_source(node, gateways)
        case Executor():
            yield _of_reads(node._reads, node.limits)
            entries = len(node._reads)
            yield Kept("entries of reads", entries, entries, _STALE_TIMES * node.limits.reads_max)
            if node.halted is None:
                # Otherwise it is in the middle of a command.
                yield from _of_sessions(node.sessions, node.limits)


def of_site(site: Site) -> Iterator[Kept]:
    peers, limits = site._peers, site.spec.limits
    for container, outgoing in enumerate(peers._outgoing):
        noted = outgoing.waiting_bytes if container in peers._waiting else 0
        yield Kept(f"for container {container}", outgoing.recount(), noted, outgoing.bytes_max)
    yield Kept("begun tuples", peers._assembly.recount(), peers._assembly.kept_bytes, limits.link_bytes_max)
    yield from _of_desk(site._desk, limits)


def _of_desk(desk: ClientDesk, limits: Limits) -> Iterator[Kept]:
    """Who is waited for, in numbers: what they sent is with the nodes."""
    reads, routes = desk._reads, desk._routes
    yield Kept("open reads", len(reads._ids), len(reads._connections), limits.reads_max)
    tables: tuple[tuple[str, FairTable[Any, bytes], int], ...] = (
        ("open reads by connection", reads._connections, limits.reads_max),
        ("routes", routes._sessions, ROUTES_MAX),
        ("openings", routes._openings, ROUTES_MAX),
    )
    for what, table, most in tables:
        yield Kept(what, sum(map(len, table._keys.values())), len(table), most)


def _of_source(source: RequestSource, gateways: bool) -> Iterator[Kept]:
    """The last command that finds room, and the last request, may be longer than the room. Orders need none."""
    limits = source.limits
    waiting = [len(command.payload) for command in source._backlog]
    allowed = sum(waiting) if gateways else limits.source_backlog_bytes_max + max(waiting, default=0)
    yield Kept("backlog", sum(waiting), source.backlog_bytes, allowed)
    pending = [sum([len(command.payload) for command in batch]) for batch in source._commands]
    orders = sum([size for size, batch in zip(pending, source._commands, strict=True) if batch[0].kind == t.SKIP])
    allowed = limits.source_pending_bytes_max + max(pending, default=0) + orders
    yield Kept("undecided", sum(pending), source._pending_bytes, allowed)


def _of_reads(reads: Reads, limits: Limits) -> Kept:
    kept = [len(read.payload) + READ_BYTES for round_ in reads._open.values() for read in round_.reads or ()]
    return Kept("reads", sum(kept), reads.bytes, limits.reads_bytes_max)


def _of_sessions(sessions: Sessions, limits: Limits) -> Iterator[Kept]:
    """One result may be beyond the bound: how long it is, is known only when it is there."""
    results = early = 0
    longest = limits.result_bytes_max + OVERHEAD_BYTES
    for session in sessions._sessions.values():
        kept = sum([len(result.payload) + OVERHEAD_BYTES for result in session.results.values()])
        yield Kept(f"results of session {session.id}", kept, session.results_bytes, limits.session_bytes_max + longest)
        results += kept
        early += sum([len(command.payload) + OVERHEAD_BYTES for command in session.early.values()])
    everything = limits.sessions_bytes_max
    yield Kept("results of all sessions", results, sessions._quotas.all.results_bytes, everything + longest)
    yield Kept("early commands of all sessions", early, sessions._quotas.all.early_bytes, everything)
