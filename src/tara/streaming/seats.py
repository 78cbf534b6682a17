"""Seats: what is kept of a key of the query from micro-batch to micro-batch, and its encoding.

A key is a node, or all reply sinks together. Its state is written in parts, so that what does not change is not
written again:

- the version: a token that names the state, and what users may want to know of the node (`tara.streaming.nodes`);
- the node: everything else that is small, typed, with a version and a checksum;
- the bodies of requests, each under a digest of its content, written once;
- of an executor, a base and the runs since (`tara.streaming.executed`).
"""

from collections import deque
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.graph import Graph
from tara.protocol.node import Node
from tara.protocol.principals import gateway_of
from tara.protocol.progress import SourceProgress
from tara.storage.files import DamagedFile, pack_small, unpack_small
from tara.streaming.errors import NO_WAY_ON, StreamingError
from tara.streaming.executed import Kept
from tara.streaming.node_fields import decode_node, encode_node
from tara.streaming.typed_state import Bodies, Fields, Long, TypedState

#: The version of the states' format; a state of another one is refused.
FORMAT_VERSION = 8


class Version(NamedTuple):
    """What names a state, and what users can read of it with `spark.read.format("statestore")`."""

    #: Names this very state: two executions of one micro-batch never have the same.
    token: bytes
    label: str
    stage: str
    partition: int
    replica: int
    view: int | None
    position: int | None
    tick: int
    #: Why the node does nothing any more; empty: it works.
    condition: str
    node_bytes: int
    body_bytes: int
    base_bytes: int
    run_bytes: int


#: The columns of a version; whole numbers are long.
VERSION_COLUMNS: dict[str, type] = {
    "token": bytes,
    "label": str,
    "stage": str,
    "partition": int,
    "replica": int,
    "view": int,
    "position": int,
    "tick": int,
    "condition": str,
    "node_bytes": int,
    "body_bytes": int,
    "base_bytes": int,
    "run_bytes": int,
}
assert tuple(VERSION_COLUMNS) == Version._fields


class Changes(NamedTuple):
    """What a micro-batch writes of one key."""

    version: Version
    node: bytes
    #: Bodies that the state refers to since, by digest, and digests that it refers to no longer.
    bodies: dict[bytes, bytes]
    forgotten: set[bytes]
    #: A new base, in the place of the one that there was and of its runs; None: that stays.
    base: list[bytes] | None
    #: A run that is appended: its number, and what it is.
    run: tuple[int, bytes] | None


class KeyStore(Protocol):
    """The state of one key, as it was when the micro-batch began."""

    def token(self) -> bytes | None:
        """None: there is no state."""

    def node(self) -> bytes: ...
    def body(self, digest: bytes) -> bytes: ...
    def piece(self, number: int) -> bytes: ...
    def run(self, number: int) -> bytes: ...
    def write(self, changes: Changes) -> None: ...


class FrontEnd:
    """The client of a request source: a named session, and the slices of micro-batches that wait for it."""

    def __init__(self, site: int) -> None:
        self.site = site
        self.asked = False
        self.session = 0
        #: The number of the next slice.
        self.next = 0
        self.waiting: deque[bytes] = deque()

    def opening(self) -> t.Command:
        self.asked = True
        return t.Command(0, self.site, 0, t.encode(f"front-end-{self.site}"), t.OPEN, gateway_of(self.site))

    def opened(self, results: t.Results) -> None:
        (result,) = results.results
        if result.status != t.OK:
            raise StreamingError(f"front end {self.site}: {result.payload.decode(errors='replace')}")
        self.session, _, self.next = msgspec.msgpack.decode(result.payload, type=tuple[int, int, int])

    def take(self) -> list[t.Command]:
        """Slices to submit now. Repetitions are dropped behind the log, so results need not be kept for them."""
        if not self.session:
            return []
        commands = [
            t.Command(self.session, number, number, payload, t.EXECUTE, gateway_of(self.site))
            for number, payload in enumerate(self.waiting, self.next)
        ]
        self.waiting.clear()
        self.next += len(commands)
        return commands

    def refused(self, commands: list[t.Command]) -> None:
        """The source has no room for the last of them now."""
        assert [command.number for command in commands] == list(range(self.next - len(commands), self.next)), commands
        self.next -= len(commands)
        self.waiting.extendleft(command.payload for command in reversed(commands))


class Replies:
    """What the reply sinks have passed on: every result once, whichever of the 2f+1 executors is first."""

    def __init__(self) -> None:
        self.passed: dict[int, SourceProgress] = {}
        self.opened: set[int] = set()
        #: The executors that execute nothing any more, and why.
        self.halted: dict[int, str] = {}

    def is_new(self, result: t.Result) -> bool:
        if result.session == 0:
            new = result.number not in self.opened
            self.opened.add(result.number)
            return new
        progress = self.passed.setdefault(result.session, SourceProgress())
        new = result.number >= progress.low and result.number not in progress.early
        progress.note(0, result.number)
        return new


class Seat:
    def __init__(self, nodes: list[Node], boot_ms: float) -> None:
        self.nodes = nodes
        #: When the nodes were made for the very first time.
        self.boot_ms = boot_ms
        #: Tuples emitted so far.
        self.emission = 0
        self.tick = 0
        #: The view of the newest votes that an executor has taken, or that a result came with.
        self.view = 0
        self.front_end: FrontEnd | None = None
        self.replies: Replies | None = None
        #: Of an executor: what the state store has of what it executed.
        self.kept = Kept()
        #: Why its node was stopped; then there is none any more.
        self.halted = ""
        #: The digests of the bodies that the state store has, and how long they are.
        self.stored: dict[bytes, int] = {}
        self.bodies = Bodies()


_SEATS = TypedState(
    {
        FrontEnd: Fields({"asked": bool, "session": int, "next": int, "waiting": deque[Long]}, ("site",)),
        Replies: Fields({"passed": dict[int, SourceProgress], "opened": set[int], "halted": dict[int, str]}),
        SourceProgress: Fields({"epoch": int, "low": int, "early": set[int]}),
    }
)


class _State(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    boot_ms: float
    emission: int
    tick: int
    view: int
    front_end: bytes
    replies: bytes
    kept: Kept
    halted: str
    #: The bodies that it refers to, and how long they are.
    bodies: dict[bytes, int]
    nodes: list[bytes]


_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(_State).decode


def head(graph: Graph) -> bytes:
    """What every state begins with."""
    return f"tara-streaming {FORMAT_VERSION} f={graph.f}\n".encode()


def encode_seat(seat: Seat, graph: Graph) -> bytes:
    """The small part of its state; `seat.bodies.met` are the bodies that belong to it."""
    bodies = seat.bodies
    bodies.begin()
    nodes = [] if seat.halted else [encode_node(node, bodies) for node in seat.nodes]
    front_end = b"" if seat.front_end is None else _SEATS.encode(seat.front_end, bodies)
    replies = b"" if seat.replies is None else _SEATS.encode(seat.replies, bodies)
    lengths = {digest: len(body) for digest, body in sorted(bodies.met.items())}
    state = _State(
        seat.boot_ms, seat.emission, seat.tick, seat.view, front_end, replies, seat.kept, seat.halted, lengths, nodes
    )
    bodies.end()
    return pack_small(head(graph) + _encode_state(state))


def decode_seat(seat: Seat, data: bytes, graph: Graph, store: KeyStore) -> None:
    """Give a seat its state, whatever it had before. What its executor has executed comes by itself."""
    try:
        _fill(seat, _decode_state(_body_of(data, graph)), store)
    except msgspec.DecodeError as error:
        # Its checksum is right, so it was written like this.
        raise StreamingError(f"a node's state in the checkpoint directory is malformed: {error}") from error


def _fill(seat: Seat, state: _State, store: KeyStore) -> None:
    seat.boot_ms, seat.emission, seat.tick, seat.view = state.boot_ms, state.emission, state.tick, state.view
    seat.kept, seat.halted, seat.stored = state.kept, state.halted, dict(state.bodies)
    seat.bodies = Bodies(store.body)
    for node, encoded in zip(seat.nodes, state.nodes, strict=False):
        decode_node(node, encoded, seat.bodies)
    if seat.front_end is not None:
        _SEATS.decode(seat.front_end, state.front_end, seat.bodies)
    if seat.replies is not None:
        _SEATS.decode(seat.replies, state.replies, seat.bodies)


def boot_ms_of(data: bytes, graph: Graph) -> float:
    """When the nodes of a state were made for the first time: with this, they are made again."""
    return _decode_state(_body_of(data, graph)).boot_ms


def _body_of(data: bytes, graph: Graph) -> bytes:
    wanted = head(graph)
    if not data.startswith(wanted):
        found = data.partition(b"\n")[0][:40].decode(errors="replace")
        raise StreamingError(
            f"the checkpoint is of another version of Tara or has another f ({found!r}, but this is "
            f"{wanted.strip().decode()!r}): start with a new checkpoint directory"
        )
    try:
        return unpack_small(data)[len(wanted) :]
    except DamagedFile as error:
        raise StreamingError(f"a node's state in the checkpoint directory {error}: {NO_WAY_ON}") from error
