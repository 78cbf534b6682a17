"""What containers, the registry and the command line say to each other: the control plane. Not on the request path."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from tara.protocol.errors import MalformedTuple


class Register(Struct, array_like=True, tag=1):
    """container → registry: I run."""

    container: int
    pid: int
    peer_address: str
    client_address: str
    cluster: int = 0
    era: int = 0
    host: str = ""
    #: Where the files of its executors are served.
    files_address: str = ""
    #: The name of the journal that it found on its host, if any; and a name for a new one.
    journal: str = ""
    fresh_journal: str = ""
    #: What it knows itself: its newest life, and whether its first start was complete.
    life: int = 0
    begun: bool = False
    #: Its clock, milliseconds since 1970; 0: it does not say.
    clock_ms: int = 0


class Welcome(Struct, array_like=True, tag=2):
    """registry → container: this is your life; `genesis` if your first start was never completed."""

    life: int
    genesis: bool
    #: Lives just before this one that ended soon after their start: a reason not to hurry with the next one.
    short_lives: int = 0
    #: Whether the journal that it found is the one that its last life wrote; and the name of its journal from now on,
    #: which counts when the container has said that it exists.
    keep_journal: bool = True
    journal: str = ""
    #: What it says in this life, it says with this: others may know which life it is.
    token: bytes = b""


class Founded(Struct, array_like=True, tag=3):
    """container → registry: my journal exists, under this name."""

    container: int
    life: int
    journal: str = ""
    token: bytes = b""


class Go(Struct, array_like=True, tag=4):
    """registry → container: that is recorded; begin."""

    life: int


class Heartbeat(Struct, array_like=True, tag=5):
    """container → registry, about once a second: alive, and how it is going."""

    container: int
    life: int
    #: JSON: see `tara.live.container.Container.status`.
    status: bytes
    token: bytes = b""


class Addresses(Struct, array_like=True, tag=6):
    """registry → containers: where everybody is now."""

    peers: list[str | None]
    #: Heartbeats are to carry a digest of the executor's state.
    digest: bool = False
    #: Where clients connect.
    front_ends: list[str] = []
    #: Where each container serves the files of its executors.
    files: list[str | None] = []


class Die(Struct, array_like=True, tag=7):
    """registry → container: a fault drill; end with SIGKILL."""

    life: int


class Stop(Struct, array_like=True, tag=8):
    """registry → container: the cluster goes down in order."""


class AskStatus(Struct, array_like=True, tag=9):
    """command line → registry."""

    cluster: int = 0
    #: With the digests of the executors' states, as soon as they have told them.
    digests: bool = False


class AskKill(Struct, array_like=True, tag=10):
    """command line → registry: kill the container that hosts this node (`proposer-1`) or site (`site-0`)."""

    target: str
    #: Which cluster is meant: a port may have been taken over by the registry of another one. 0: whichever it is.
    cluster: int = 0


class AskDown(Struct, array_like=True, tag=11):
    """command line → registry: stop everything."""

    cluster: int = 0


class Answer(Struct, array_like=True, tag=12):
    """registry → command line."""

    ok: bool
    #: JSON, or a message.
    body: bytes


class Refuse(Struct, array_like=True, tag=20):
    """registry → container: you are none of mine."""

    reason: str


class Warned(Struct, array_like=True, tag=21):
    """container → registry: lines of its log that somebody should see."""

    container: int
    lines: list[bytes]


class AskSite(Struct, array_like=True, tag=22):
    """driver of a site → registry of another one: who are you, and how are you? Answered with a
    `tara.live.sites.other_sites.SiteCard`."""

    cluster: int = 0
    digests: bool = False
    #: As in `AskBase`; 0: none.
    base: int = 0


class Elsewhere(Struct, array_like=True, tag=23):
    """registry → command line: ask the one at this address."""

    address: str


class AskBase(Struct, array_like=True, tag=24):
    """command line → registry: let every executor take a base at this checkpoint, once."""

    number: int
    cluster: int = 0


class BaseWanted(Struct, array_like=True, tag=25):
    """registry → containers: take a base at this checkpoint."""

    number: int


#: What the command line and other drivers ask; each says which cluster it means.
Question = AskStatus | AskKill | AskDown | AskSite | AskBase

Message = (
    Register
    | Welcome
    | Founded
    | Go
    | Heartbeat
    | Addresses
    | Die
    | Stop
    | AskStatus
    | AskKill
    | AskDown
    | Answer
    | Refuse
    | Warned
    | AskSite
    | Elsewhere
    | AskBase
    | BaseWanted
)

encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode


def decode(data: bytes) -> Message:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedTuple(f"control message: {error}") from error
