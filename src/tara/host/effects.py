"""What a site takes and what it wants done: the whole interface between a host and its driver."""

from collections.abc import Iterable

from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.graph import Receivers
from tara.protocol.journal import Written


class Message(Struct, frozen=True):
    """What a client has sent."""

    connection: bytes
    data: bytes
    #: The digest of the key that the connection has shown, if any, and whether that is a member's.
    key: bytes = b""
    is_member: bool = False
    #: What waits for this connection to be read.
    unread_bytes: int = 0


class Inputs(Struct):
    """What has come since the last step."""

    #: Of peers, in the order of each.
    frames: list[bytes] = []
    messages: list[Message] = []
    #: Connections of clients that are closed since; after all that has come on them.
    gone: list[bytes] = []
    #: For nodes that are here, by number: answers of their stores.
    tuples: list[tuple[t.Tuple, int]] = []
    #: Clients of the gateway have sent something.
    gateway: bool = False
    #: It is time for a tick.
    tick: bool = False
    #: What the ports of the process keep: what waits to be read, and frames that are arriving.
    unread_bytes: int = 0


class Sync(Struct, frozen=True):
    """Make this durable before anything else is done."""

    entries: list[Written]
    #: Slots are needed no longer: a journal may begin a new segment, and drop old ones.
    collected: bool


class Send(Struct, frozen=True):
    """Frames for a container; what became of them is told with `Site.sent`."""

    container: int
    frames: list[bytes]
    tuples: int


class Emit(Struct, frozen=True):
    """A tuple for receivers that are not here, of a site that has no frames (`tara.host.bare_site`)."""

    sender: int
    tuple: t.Tuple
    receivers: Receivers


class Reply(Struct, frozen=True):
    """Messages for one connection of a client."""

    connection: bytes
    messages: Iterable[bytes]
    #: What of it answers commands.
    results: list[t.Result]


class Replies(Struct, frozen=True):
    """What clients are told, in this order."""

    replies: list[Reply]


class Listen(Struct, frozen=True):
    """Let the gateway take what its clients have sent."""


class Hand(Struct, frozen=True):
    """Results for the gateway."""

    results: list[t.Result]


class Respond(Struct, frozen=True):
    """Let the gateway answer what it can: all that it has seen is durable. The last thing in every step."""


class Store(Struct, frozen=True):
    """A job for the store of an executor."""

    number: int
    job: t.Tuple


class Unbar(Struct, frozen=True):
    """A command is not barred any more, for an executor."""

    number: int
    counter: int


class Executes(Struct, frozen=True):
    """An executor has halted, or executes again."""

    number: int
    halted: t.Halted


class Halt(Struct, frozen=True):
    """A node was stopped, because an invariant of it is broken."""

    number: int
    reason: str


class Trouble(Struct, frozen=True):
    """To be noted: something was refused."""

    kind: str
    sender: str
    reason: str


Effect = Sync | Send | Emit | Replies | Listen | Hand | Respond | Store | Unbar | Executes | Halt | Trouble
