"""What a stranger, a client or a peer can make a process keep or do through its ports: every bound of this package.

`docs/operations.md` has them as a table, which a test compares with this module. They are looked up when they are
needed, never copied. First come those before the handshake is over (at ports without keys, before the first frame has
come); then those for one connection, for one client, for one port, and for all ports of a process; and last those of
what we have for others.
"""

#: Connections that the kernel keeps until they are taken, and how many of them are taken in one turn.
BACKLOG = 1024
ACCEPTED_PER_TURN = 64
#: Nobody is taken for that long after the host had no room for another connection.
ACCEPT_PAUSE_S = 0.5
#: Connections of one port whose handshake is not over; beyond that the oldest of them is closed.
HANDSHAKES_MAX = 128
#: A handshake that is not over by then is given up.
HANDSHAKE_S_MAX = 5.0
#: What one may send before its handshake is over.
HANDSHAKE_BYTES_MAX = 64 << 10
#: Handshakes of one port that go on in one turn: each costs about a millisecond.
HANDSHAKES_PER_TURN = 4
#: The share of its time that a thread gives to the handshakes of one port, and how much of it may be saved up.
HANDSHAKE_SHARE = 0.25
HANDSHAKE_SAVED_S = 0.05
#: Without keys: a connection that has not sent a frame by then is closed.
FIRST_FRAME_S_MAX = 30.0

#: The longest message of a client: so many times the longest command; a longer command than allowed is still answered.
CLIENT_FRAME_COMMANDS = 8
#: The longest request to a file server, and the longest message to a registry.
FILE_REQUEST_BYTES_MAX = 64 << 10
CONTROL_BYTES_MAX = 16 << 20
#: What a reader of the decided log may have sent before he is looked at, and then beyond the request that is being
#: answered: he has one at a time. And what is answered to one: with it, it is all that a reader who does not read keeps
#: here.
LOG_REQUEST_BYTES_MAX = 64 << 10
LOG_PIECE_BYTES = 256 << 10
#: Blocks that are looked at for one who asks how far so many bytes lead.
LOG_BLOCKS_MAX = 1024
#: Messages for a registry that is not there, and wait.
KEPT_MESSAGES_MAX = 256
#: Frames of one connection that are taken in one turn: the others wait for the next ones. Who is honest sends few, with
#: much in them.
FRAMES_PER_TURN = 32
#: A frame has to be complete that long after it has begun; a large one has the time that its pace allows in addition.
FRAME_S_MAX = 60.0
#: What TLS itself has to say, such as new keys that the other side asks for, waits for the next frame that is sent.
TLS_ANSWERS_BYTES_MAX = 4 << 10
#: Frames and bytes that wait for one that does not read. What comes on top is dropped: it has to be asked for again.
UNREAD_FRAMES_MAX = 10_000
UNREAD_BYTES_MAX = 16 << 20

#: Connections of one client, by its key, to one port; beyond that the one of his that has been silent for the longest
#: time is closed. With TLS, each costs about 30 KiB.
CLIENT_CONNECTIONS_MAX = 256

#: Connections of one port that are looked at in one turn; and frames that are taken of those that have sent too many.
NEWS_PER_TURN = 256
LEFT_FRAMES_PER_TURN = 64
#: Connections of one port; beyond that the one that has been silent for the longest time is closed.
CLIENTS_MAX = 10_000
PEERS_MAX = 256
READERS_OF_FILES_MAX = 64
CONTROLLERS_MAX = 256
#: As many again may wait until they are looked at for the first time.
READERS_OF_THE_LOG_MAX = 64
#: What the connections of one port keep together: frames that have begun to arrive, without large ones that have room
#: of their own, and what is not read. Beyond that the connection that keeps most is closed.
KEPT_BYTES_MAX = 24 << 20
#: A frame that is longer than `LARGE_FRAME_BYTES`, and of which so much is there, needs room of its own to be read on.
#: Those that have it are so long together, and the others wait. One by itself may be longer.
LARGE_FRAME_BYTES = 64 << 10
ARRIVING_BYTES_MAX = 8 << 20
#: While others wait, a frame that has room has to come at this pace; it may be so far behind it.
ARRIVING_BYTES_PER_S = 512 << 10
ARRIVING_LAG_S_MAX = 1.0

#: The share of a processor that readers of the log get, and how much of it may be saved up: clients wait meanwhile.
LOG_SHARE = 0.1
LOG_SAVED_S = 0.05

#: What all ports of one process keep together; beyond that the port that keeps most closes its greediest connection.
PROCESS_KEPT_BYTES_MAX = 32 << 20

#: Frames and bytes that wait for a peer that does not read. What comes on top is dropped: the protocol sends it again.
LINK_FRAMES_MAX = 10_000
LINK_BYTES_MAX = 64 << 20
#: Bytes on a link that the kernel takes before it has sent them: what is urgent waits for no more than these.
LINK_NOT_SENT_BYTES = 128 << 10
