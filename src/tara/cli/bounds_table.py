"""The table of bounds in `docs/operations.md`: what a stranger or a client can make grow, and what happens then.

`python -m tara.cli.bounds_table` prints it; a test compares it with the page. Who adds a bound adds a row.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tara.apps.coordination import limits as zookeeper_limits
from tara.host import client_desk, client_wire, latency, outgoing, routes
from tara.live.observability import prometheus
from tara.net import bounds, large_frames
from tara.protocol import principals, skips
from tara.protocol import sessions as protocol_sessions
from tara.protocol.limits import Limits
from tara.protocol.nodes import reads, request_source
from tara.protocol.session_quotas import OVERHEAD_BYTES


class Row(NamedTuple):
    #: The module, or the setting, and its name there.
    name: str
    value: float
    #: `bytes`, `s`, or nothing: a number of them.
    unit: str
    what: str
    then: str


class Section(NamedTuple):
    scope: str
    rows: list[Row]


_FAIR = "the oldest session of the connection that has most gets no answer, and its client has to send again"


def sections() -> list[Section]:
    """From the code as it is."""
    limits = Limits()

    def net(name: str, unit: str, what: str, then: str) -> Row:
        return Row(name, getattr(bounds, name), unit, what, then)

    def setting(name: str, unit: str, what: str, then: str) -> Row:
        return Row(name, getattr(limits, name), unit, what, then)

    return [
        Section(
            "before the handshake is over (without keys: before the first frame)",
            [
                net("BACKLOG", "", "connections that wait to be taken, per port", "the kernel drops more"),
                net("ACCEPTED_PER_TURN", "", "connections taken in one turn", "the others wait"),
                net("ACCEPT_PAUSE_S", "s", "nobody is taken after the host had no room for a connection", "-"),
                net("HANDSHAKES_MAX", "", "handshakes that are not over, per port", "the oldest is closed"),
                net("HANDSHAKES_PER_TURN", "", "handshakes that go on in one turn", "the others wait"),
                net("HANDSHAKE_SHARE", "", "share of a thread's time for them, per port", "the others wait"),
                net(
                    "HANDSHAKE_SAVED_S", "s", "of that share that is saved up while nobody connects", "the others wait"
                ),
                net("HANDSHAKE_S_MAX", "s", "for a handshake", "closed"),
                net("HANDSHAKE_BYTES_MAX", "bytes", "sent before it is over", "closed"),
                net("FIRST_FRAME_S_MAX", "s", "for the first frame, without keys", "closed"),
            ],
        ),
        Section(
            "per connection",
            [
                setting("frame_bytes_max", "bytes", "a frame of a peer", "closed"),
                net("CLIENT_FRAME_COMMANDS", "", "a message of a client, in longest commands", "closed"),
                net("FILE_REQUEST_BYTES_MAX", "bytes", "a request to a file server", "closed"),
                net("LOG_REQUEST_BYTES_MAX", "bytes", "sent by a reader of the log before he is answered", "closed"),
                net(
                    "LOG_PIECE_BYTES",
                    "bytes",
                    "answered to a reader of the log at once",
                    "the next request is not looked at before he has read it",
                ),
                net("CONTROL_BYTES_MAX", "bytes", "a message to a registry", "closed"),
                net("FRAMES_PER_TURN", "", "frames taken in one turn", "the others wait for the next turn"),
                net(
                    "FRAME_S_MAX",
                    "s",
                    "for a frame, from its first byte to its last, and its length / `ARRIVING_BYTES_PER_S`",
                    "closed",
                ),
                net("TLS_ANSWERS_BYTES_MAX", "bytes", "answers of TLS itself, such as new keys", "closed"),
                net("UNREAD_FRAMES_MAX", "", "answers that are not read", "further ones are dropped"),
                net("UNREAD_BYTES_MAX", "bytes", "answers that are not read", "further ones are dropped"),
                Row(
                    "ROUTES_PER_CONNECTION_MAX",
                    routes.ROUTES_PER_CONNECTION_MAX,
                    "",
                    "sessions whose answers are waited for, and as many that are being opened",
                    "the oldest session gets no answer, and its client has to send again",
                ),
                Row(
                    "UNREAD_ANSWERS_BYTES_MAX",
                    client_desk.UNREAD_ANSWERS_BYTES_MAX,
                    "bytes",
                    "answers that are not read",
                    "no reads are answered",
                ),
                Row(
                    "MESSAGE_LENGTH_MAX",
                    client_wire.MESSAGE_LENGTH_MAX,
                    "",
                    "commands, and reads, in a message",
                    "refused",
                ),
                Row("READER_TIMEOUT_S", prometheus.READER_TIMEOUT_S, "s", "for a reader of the metrics", "closed"),
            ],
        ),
        Section(
            "per client, by its key",
            [
                net(
                    "CLIENT_CONNECTIONS_MAX",
                    "",
                    "connections to one port, of about 30 KiB each",
                    "the one that was silent longest is closed",
                ),
            ],
        ),
        Section(
            "over all connections of a port",
            [
                net("NEWS_PER_TURN", "", "connections looked at in one turn", "the others wait for the next turn"),
                net("LEFT_FRAMES_PER_TURN", "", "frames taken of those that sent too many", "the others wait"),
                net(
                    "CLIENTS_MAX",
                    "",
                    "connections of clients; at most half of the descriptors (`ulimit -n`)",
                    "the one that was silent longest is closed",
                ),
                net("PEERS_MAX", "", "connections of peers", "the one that was silent longest is closed"),
                net("READERS_OF_FILES_MAX", "", "connections for files", "the one that was silent longest is closed"),
                net(
                    "READERS_OF_THE_LOG_MAX",
                    "",
                    "readers of the log, and as many that nobody has looked at yet; beside the bytes of the ports, "
                    "their answers take up to 16 MiB",
                    "one that may not read, or else the one that was silent longest, is closed",
                ),
                net(
                    "LOG_BLOCKS_MAX",
                    "",
                    "blocks looked at for a reader who asks how far so many bytes of the log lead",
                    "it is told of these; it asks again",
                ),
                net("LOG_SHARE", "", "share of a processor's time for them", "they wait"),
                net("LOG_SAVED_S", "s", "of that share that is saved up while nobody reads", "they wait"),
                net("CONTROLLERS_MAX", "", "connections to a registry", "the one that was silent longest is closed"),
                Row("ROUTES_MAX", routes.ROUTES_MAX, "", "sessions whose answers are waited for", _FAIR),
                Row(
                    "PRINCIPALS_CACHED",
                    client_desk.PRINCIPALS_CACHED,
                    "",
                    "secrets of which it is remembered whom they stand for",
                    "the one that was used longest ago is forgotten",
                ),
                Row("SAMPLES_MAX", latency.SAMPLES_MAX, "", "commands that are timed at once", "others are not timed"),
                Row(
                    "CLIENTS_REMEMBERED_MAX",
                    large_frames.CLIENTS_REMEMBERED_MAX,
                    "",
                    "clients whose last turn with a large frame is remembered",
                    "the oldest is forgotten",
                ),
                net(
                    "LARGE_FRAME_BYTES",
                    "bytes",
                    "of a frame that are read before it needs room of its own",
                    "longer ones wait for it, one client after the other",
                ),
                net(
                    "ARRIVING_BYTES_MAX",
                    "bytes",
                    "large frames that arrive at once (one may be longer)",
                    "others are not read until there is room",
                ),
                net(
                    "ARRIVING_BYTES_PER_S",
                    "bytes",
                    "per second of a large frame, while others wait for room",
                    "it lags behind",
                ),
                net("ARRIVING_LAG_S_MAX", "s", "so far behind that pace", "closed"),
                net(
                    "KEPT_BYTES_MAX",
                    "bytes",
                    "frames that have begun and have no room of their own, and answers that are not read",
                    "the connection that keeps most is closed",
                ),
                Row("READERS_MAX", prometheus.READERS_MAX, "", "readers of the metrics at once", "closed"),
                Row(
                    "ANSWERED_BYTES_MAX",
                    reads.ANSWERED_BYTES_MAX,
                    "bytes",
                    "answers to reads in one turn",
                    "the other reads have to be sent again",
                ),
                setting(
                    "reads_max",
                    "",
                    "reads that wait for an executor",
                    "the oldest read of the connection that has most is ordered",
                ),
                Row(
                    "ORDERS_MAX",
                    request_source.ORDERS_MAX,
                    "",
                    "operators' orders that are not decided, per partition",
                    "`Overloaded`",
                ),
                Row(
                    "UNANSWERED_MAX",
                    request_source.UNANSWERED_MAX,
                    "",
                    "decided commands without a result that are remembered, per partition",
                    "the oldest is forgotten",
                ),
                setting("source_backlog_max", "", "commands that wait to be ordered, per partition", "`Overloaded`"),
                setting(
                    "source_backlog_bytes_max",
                    "bytes",
                    "commands that wait to be ordered, per partition",
                    "`Overloaded`",
                ),
            ],
        ),
        Section(
            "over all ports of a process",
            [
                net(
                    "PROCESS_KEPT_BYTES_MAX",
                    "bytes",
                    "frames that have begun and have no room of their own, and answers that are not read",
                    "the port that keeps most closes its greediest connection",
                ),
            ],
        ),
        Section(
            "over all peers of a process",
            [
                setting(
                    "link_bytes_max",
                    "bytes",
                    "tuples of which only a part has come",
                    "that of which nothing came for longest is dropped, and sent again",
                ),
            ],
        ),
        Section(
            "per peer or registry, for what leaves",
            [
                setting(
                    "link_bytes_max",
                    "bytes",
                    "requests, votes and results that wait for a peer",
                    "further ones are dropped, and sent again",
                ),
                Row(
                    "CONTROL_LANE_BYTES_MAX",
                    outgoing.CONTROL_LANE_BYTES_MAX,
                    "bytes",
                    "everything else that waits for a peer",
                    "further ones are dropped, and sent again",
                ),
                net(
                    "LINK_FRAMES_MAX",
                    "",
                    "frames that a peer does not read",
                    "further ones are dropped, and sent again",
                ),
                net("LINK_BYTES_MAX", "bytes", "the same in bytes", "further ones are dropped, and sent again"),
                net("LINK_NOT_SENT_BYTES", "bytes", "given to the kernel before it is sent", "the rest waits in Tara"),
                net("KEPT_MESSAGES_MAX", "", "messages for a registry that is away", "the oldest is dropped"),
            ],
        ),
        Section(
            "in the replicated state",
            [
                setting("sessions_max", "", "sessions", "no new one is opened"),
                setting("principal_sessions_max", "", "sessions of one key or secret", "no new one is opened"),
                setting(
                    "session_pipeline_max",
                    "",
                    "results that a session has not acknowledged",
                    "refused until results are acknowledged",
                ),
                setting(
                    "session_bytes_max",
                    "bytes",
                    "the same in bytes, of one session; also commands that wait for their turn, each "
                    f"{OVERHEAD_BYTES} bytes more than its payload",
                    "refused until results are acknowledged, or the next command has come",
                ),
                setting("principal_bytes_max", "bytes", "the same, of one key or secret; also claims", "refused"),
                setting("sessions_bytes_max", "bytes", "the same, of all sessions; also claims", "refused"),
                Row("NAME_BYTES_MAX", protocol_sessions.NAME_BYTES_MAX, "bytes", "a session's name", "an error"),
                Row("SECRET_BYTES_MAX", principals.SECRET_BYTES_MAX, "bytes", "a secret", "refused"),
                Row(
                    "SKIPS_REMEMBERED_MAX",
                    skips.SKIPS_REMEMBERED_MAX,
                    "",
                    "skipped commands that operators are told of",
                    "the oldest is forgotten",
                ),
                setting("command_bytes_max", "bytes", "a command", "`CommandTooLarge`"),
                setting("result_bytes_max", "bytes", "a result", "an error in its place"),
            ],
        ),
        *_zookeeper(),
    ]


def _zookeeper() -> list[Section]:
    """The port of the coordination service."""

    def row(name: str, unit: str, what: str, then: str) -> Row:
        return Row(name, getattr(zookeeper_limits, name), unit, what, then)

    greediest = "the oldest of the address that has the most is closed"
    stalled = "closed, the heaviest first"
    return [
        Section(
            "the ZooKeeper port: before a session is asked for",
            [
                row("CONNECTIONS_MAX", "", "connections; at most 3/8 of the descriptors (`ulimit -n`)", "closed"),
                row("ARRIVALS_MAX", "", "connections that have not asked for a session", greediest),
                row("ARRIVALS_PER_ADDRESS_MAX", "", "the same, of one address", "its oldest is closed"),
                row("HANDSHAKE_S", "s", "for the handshake of TLS", "closed"),
                row("HANDSHAKE_BYTES_MAX", "bytes", "sent before it is over", "closed"),
                row("HANDSHAKE_SHARE", "", "the share of the time for handshakes", "the others wait"),
                row("HANDSHAKE_SAVED_S", "s", "the time for handshakes that is saved up", "the others wait"),
                row("JOIN_BYTES_MAX", "bytes", "a request for a session", "closed"),
                row("SESSIONLESS_S", "s", "without a session", "closed"),
                row("SESSIONLESS_INTERVAL_S", "s", "between two looks at those times", "-"),
            ],
        ),
        Section(
            "the ZooKeeper port: one turn of the container's loop",
            [
                row("ACCEPTED_PER_TURN", "", "connections taken", "the others wait"),
                row("READ_PER_TURN", "", "connections read", "the others wait"),
                row("RECEIVE_BYTES", "bytes", "read of one connection", "the rest waits"),
                row("ACCEPT_PAUSE_S", "s", "no connection is taken after the last descriptor was used", "-"),
                row("TURN_S", "s", "for requests, in each half of a turn", "the others wait"),
                row("REQUESTS_AT_ONCE", "", "requests of one connection", "the others get half of the time at most"),
                row("BACKLOG_S", "s", "for those others, at least", "-"),
                row("PATHS_AT_ONCE", "", "paths of a `setWatches`", "the others get half of the time at most"),
                row("SWEPT_AT_ONCE", "", "watches of closed connections that are removed", "likewise"),
            ],
        ),
        Section(
            "the ZooKeeper port: per connection",
            [
                row("REQUESTS_MAX", "", "requests and pings without an answer", "not read"),
                row("REQUEST_BYTES_MAX", "bytes", "requests without an answer", "not read"),
                row("UNSENT_BYTES_MAX", "bytes", "answers that were not fetched", "not read, nothing is executed"),
                row("UNSENT_BYTES_CLOSED", "bytes", "the same, with events", "closed"),
                row("WATCHES_PER_CONNECTION_MAX", "", "watches (`watches_per_connection_max`)", "`THROTTLED_OP`"),
                row("WATCH_BYTES", "bytes", "of paths, times the watches that there may be", "`THROTTLED_OP`"),
                row("MULTI_OPERATIONS_MAX", "", "operations in a multi", "closed"),
                row("MULTI_READ_BYTES_MAX", "bytes", "the answer to a multi of reads", "`BAD_ARGUMENTS`"),
                row("IDENTITIES_MAX", "", "identities that are proved", "`AUTH_FAILED`, closed"),
                row("IDENTITY_BYTES_MAX", "bytes", "the same together", "`AUTH_FAILED`, closed"),
            ],
        ),
        Section(
            "the ZooKeeper port: over all connections",
            [
                row("WATCHES_MAX", "", "watches (`watches_max`)", "`THROTTLED_OP`"),
                row(
                    "ALL_UNSENT_BYTES_MAX",
                    "bytes",
                    "answers that were not fetched",
                    "only connections without any are answered",
                ),
                row("ALL_UNSENT_BYTES_EXTREME", "bytes", "the same", "no connection is answered"),
                row(
                    "ALL_HELD_BYTES_MAX",
                    "bytes",
                    "these, and requests without an answer",
                    "only connections that hold little are read",
                ),
                row("ALL_HELD_BYTES_EXTREME", "bytes", "the same", "no connection is read"),
                row("LIGHT_BYTES", "bytes", "what counts as little", "-"),
                row("STALLED_S", "s", "without moving, beyond a first of these bounds", stalled),
                row("STALLED_EXTREME_S", "s", "without moving, beyond a second one", stalled),
                row("PRESSURE_INTERVAL_S", "s", "between two looks at that", "-"),
                row("ORDERED_MAX", "", "commands that wait to be ordered", "no connection is read"),
                row("ORDERED_BYTES_MAX", "bytes", "the same in bytes", "no connection is read"),
                row("UPLOAD_BYTES_FREE", "bytes", "requests that need no room of their own", "longer ones wait for it"),
                row("UPLOAD_BYTES_MAX", "bytes", "longer ones that arrive at once", "others are not read"),
                row("UPLOAD_BYTES_PER_S", "bytes", "per second of one that arrives while others wait", "closed"),
                row("UPLOADS_WAITING_MAX", "", "connections that wait for room", "closed"),
            ],
        ),
        Section(
            "the coordination service: in the replicated state",
            [
                row("PATH_CHARACTERS_MAX", "", "characters of a path", "`BAD_ARGUMENTS`"),
                row("ACL_ENTRIES_MAX", "", "entries of an access list", "`INVALID_ACL`"),
                row("ACL_ID_CHARACTERS_MAX", "", "characters of an id in it", "`INVALID_ACL`"),
                row("SESSIONS_MAX", "", "ZooKeeper sessions", "closed"),
            ],
        ),
    ]


def lines() -> Iterator[str]:
    """The table, in Markdown."""
    yield "| bound | value | of what | beyond it |"
    yield "| --- | --- | --- | --- |"
    for scope, rows in sections():
        yield f"| **{scope}** | | | |"
        for row in rows:
            yield f"| `{row.name}` | {_shown(row.value, row.unit)} | {row.what} | {row.then} |"


def _shown(value: float, unit: str) -> str:
    if unit == "bytes":
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= size and value % size == 0:
                return f"{value // size} {name}"
        return f"{value:,} bytes"
    return f"{value:g} s" if unit == "s" else f"{value:,}"


if __name__ == "__main__":
    print("\n".join(lines()))
