"""The bounds of the ZooKeeper port, in counts, bytes and seconds. `docs/operations.md` has them in its table."""

#: Connections, also if the process may open more files.
CONNECTIONS_MAX = 20_000

# Connections that have not asked for a session yet: whoever can reach the port can make them.

#: Over all addresses, and from one. One more takes the place of the oldest, of the address that has the most of them.
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

# One turn of the container's loop.

#: Connections taken, connections read, and bytes read of each.
ACCEPTED_PER_TURN = 64
READ_PER_TURN = 256
RECEIVE_BYTES = 65_536
#: How long no connection is taken when the process has no file descriptor left.
ACCEPT_PAUSE_S = 0.5
#: Time for requests, in each of the two halves of a turn; what is not done then waits for the next one.
TURN_S = 0.01
#: Watches of those who are gone that are taken away at once.
SWEPT_PER_TURN = 2_000

# Watches. The two numbers are options (`watches_max`, `watches_per_connection_max`).

WATCHES_MAX = 200_000
WATCHES_PER_CONNECTION_MAX = 50_000
#: Bytes of paths, for each watch that there may be.
WATCH_BYTES = 128
PATH_CHARACTERS_MAX = 4_096
