"""The bounds of the ZooKeeper port, in counts, bytes and seconds. `docs/operations.md` has them in its table."""

#: Connections, also if the process may open more files.
CONNECTIONS_MAX = 20_000

#: Connections that have not asked for a session yet, which whoever can reach the port can make: over all addresses, and
#: from one. One more takes the place of the oldest, of the address that has the most of them.
ARRIVALS_MAX = 512
ARRIVALS_PER_ADDRESS_MAX = 256
#: How long the handshake of TLS may take, and how many bytes a client may send before it is over.
HANDSHAKE_S = 10.0
HANDSHAKE_BYTES_MAX = 64 << 10
#: The share of the time that handshakes may take, and how much of it may be saved up.
HANDSHAKE_SHARE = 0.25
HANDSHAKE_SAVED_S = 0.02
#: The request for a session.
JOIN_BYTES_MAX = 1_024
#: How long a connection may be without a session, and how often that is looked at.
SESSIONLESS_S = 30.0
SESSIONLESS_INTERVAL_S = 1.0

#: In one turn of the container's loop: connections taken, connections read, and bytes read of each.
ACCEPTED_PER_TURN = 64
READ_PER_TURN = 256
RECEIVE_BYTES = 65_536
#: How long no connection is taken when the process has no file descriptor left.
ACCEPT_PAUSE_S = 0.5
#: Time for requests, in each of the two halves of a turn; what is not done then waits for the next one.
TURN_S = 0.01
#: Requests of one connection that are dealt with at once. The others get as much time as everything else took since
#: the last turn, all of them together, and at least this: so who sends many at once takes half of the time at most.
REQUESTS_AT_ONCE = 16
BACKLOG_S = 0.0002
#: Likewise: paths of a client that sets its watches again, and watches of those who are gone.
PATHS_AT_ONCE = 100
SWEPT_AT_ONCE = 200

#: Watches, over all connections and of one. The two are options (`watches_max`, `watches_per_connection_max`).
WATCHES_MAX = 200_000
WATCHES_PER_CONNECTION_MAX = 50_000
#: Bytes of paths, for each watch that there may be.
WATCH_BYTES = 128
PATH_CHARACTERS_MAX = 4_096

#: Of one connection: requests without an answer, and their bytes; then nothing more is read from it.
REQUESTS_MAX = 256
REQUEST_BYTES_MAX = 2 << 20
#: Of one connection: answers that were not fetched. Then nothing more is executed for it, and at the second one it is
#: closed.
UNSENT_BYTES_MAX = 256 << 10
UNSENT_BYTES_CLOSED = 16 << 20
#: Over all connections: such answers; then only those are answered for whom nothing waits, and at the second one
#: nobody.
ALL_UNSENT_BYTES_MAX = 8 << 20
ALL_UNSENT_BYTES_EXTREME = 16 << 20
#: Over all connections: such answers and requests; then only those are read that hold little, and at the second one
#: nobody.
ALL_HELD_BYTES_MAX = 16 << 20
ALL_HELD_BYTES_EXTREME = 24 << 20
LIGHT_BYTES = 64 << 10
#: At a first bound over all, those are closed that have not moved for this time, and at a second one for this.
STALLED_S = 1.0
STALLED_EXTREME_S = 0.1
PRESSURE_INTERVAL_S = 0.05
#: Ordered commands that wait for their turn, also those of connections that are gone; then no connection is read.
ORDERED_MAX = 20_000
ORDERED_BYTES_MAX = 8 << 20
#: Long requests that arrive at the same time, over all connections; those of so many bytes are not long. How many
#: connections may wait for room, and how fast those that have it must be if somebody waits.
UPLOAD_BYTES_MAX = 8 << 20
UPLOAD_BYTES_FREE = 4 << 10
UPLOADS_WAITING_MAX = 256
UPLOAD_BYTES_PER_S = 256 << 10
#: The answer to several reads in one request.
MULTI_READ_BYTES_MAX = 4 << 20
MULTI_OPERATIONS_MAX = 10_000

#: Identities that a connection may prove, and their bytes together: every write carries them.
IDENTITIES_MAX = 16
IDENTITY_BYTES_MAX = 2_048
#: Of an access list, which is in the replicated state: its entries, and the characters of an id in it.
ACL_ENTRIES_MAX = 256
ACL_ID_CHARACTERS_MAX = 256

#: Sessions of ZooKeeper clients, of all front ends.
SESSIONS_MAX = 100_000
