"""Hostile frames: mutations of real ones, for every port of a cluster. With one seed, always the same.

A peer whose frame has a correct header is trusted to be honest, so of such frames there are only those that every
honest node must refuse: wrong types, numbers and lengths that the cluster does not have, tuples for nodes that do not
take them, frames that are cut or go on. Frames with a wrong header may say anything. Clients are trusted in nothing,
except that they do not speak in the name of another client's session.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from tara.application import Get, Put
from tara.bench.protocol_speed import InProcessCluster
from tara.host import client_wire
from tara.host.effects import Emit
from tara.live import control
from tara.net import log_wire
from tara.net.file_exchange import FileRequest
from tara.protocol import tuples as t
from tara.protocol.graph import EDGES, Graph, Stage
from tara.protocol.limits import Limits
from tara.protocol.principals import SECRET_BYTES_MAX, SECRET_BYTES_MIN

encode = t.encode
_decode = msgspec.msgpack.Decoder().decode

#: Fields that name a replica, a member or a partition: none of a cluster has so many.
_INDEXES = frozenset({"proposer", "committer", "executor", "controller", "member", "source", "partition"})
_ABSURD_INDEXES = (64, 255, 1 << 31, (1 << 61) + 5)
_VECTORS = frozenset({"incarnations", "progress", "positions"})
_ABSURD_NUMBERS = (1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
#: No session of an honest client has such an id.
_NOBODY = 1 << 55
#: A slot that no cluster reaches.
_UNDECIDED = 1 << 50
#: Where the mark of a request for the log ends, and places of fields behind it.
_LOG_MARK_END = 5
_SKIP, _FILE, _OFFSET = 5, 7, 8
_NESTED = Raw(b"\x91" * 3000 + b"\x00")
_ENDLESS = (Raw(b"\xdd\xff\xff\xff\xff"), Raw(b"\xdf\xff\xff\xff\xff"), Raw(b"\xc6\xff\xff\xff\xff"))


class Recorder(InProcessCluster):
    """Keeps some of the tuples of each kind that its nodes send each other; each node is a site of its own."""

    def __init__(self, limits: Limits, each: int = 12) -> None:
        self.tuples: dict[type[t.Tuple], list[t.Tuple]] = {}
        self._each = each
        nodes = Graph(limits.f, limits.partitions).names
        super().__init__(limits, [[number] for number in range(len(nodes))])

    def carry(self, emit: Emit) -> None:
        kept = self.tuples.setdefault(type(emit.tuple), [])
        if len(kept) < self._each:
            kept.append(emit.tuple)
        super().carry(emit)

    def read(self, reads: list[t.ReadRequest]) -> None:
        self.give(t.SubmitReads(reads), self.graph.number(Stage.REQUEST_SOURCE, 0))


def recorded(limits: Limits) -> dict[type[t.Tuple], list[t.Tuple]]:
    """Tuples of all kinds that travel between nodes, from a run of the whole graph."""
    cluster = Recorder(limits)
    for step in range(1, 8):
        cluster.tick(step * 60.0)
    cluster.submit([t.Command(0, nonce, 0, encode(60_000), t.OPEN) for nonce in range(1, 9)])
    sessions = [_decode(result.payload)[0] for result in cluster.take_results()]
    for number in range(20):
        cluster.submit([t.Command(s, number, number, encode(Put(f"key-{s}", b"value"))) for s in sessions])
        cluster.read([t.ReadRequest(number + 1, encode(Get("key-1")))])
        cluster.tick(500.0 + number * 20.0)
    cluster.tuples[t.Vote] = [t.Vote(index, 0, 1, 1, 2) for index in range(limits.replicas)]
    return cluster.tuples


class Identity(NamedTuple):
    """What a correct header of one container says."""

    cluster: int
    era: int
    container: int
    life: int
    shape: int


class PeerFrames:
    """Frames for the peer port of one container. Each has to be refused, and counted."""

    def __init__(
        self,
        random: Random,
        graph: Graph,
        limits: Limits,
        here: list[int],
        sender: Identity,
        containers: int,
        samples: dict[type[t.Tuple], list[t.Tuple]] | None = None,
    ) -> None:
        """`samples` are tuples as nodes send them; else some are made."""
        self._random = random
        self._sender = sender
        self._containers = containers
        self._names = len(graph.names)
        self._incarnations = [1] * graph.members
        self._takers: dict[type[t.Tuple], list[int]] = {}
        self._samples: list[tuple[type[t.Tuple], list[Any], list[int], list[int]]] = []
        for kind, tuples in (samples or recorded(limits)).items():
            stages = {stage for sender_stage, edge, stage in EDGES if edge is kind and sender_stage is not Stage.CLIENT}
            takers = [number for number in here if graph.names[number].stage in stages]
            others = [number for number in here if graph.names[number].stage not in stages]
            self._takers[kind] = takers
            for tuple_ in tuples if takers else ():
                self._samples.append((kind, _decode(encode(tuple_)), takers, others))
        self._sources = [number for number in here if graph.names[number].stage is Stage.REQUEST_SOURCE]
        self._mutations: list[Callable[[], bytes]] = [
            self._noise,
            self._foreign,
            self._foreign,
            self._cut,
            self._extended,
            self._wrong_type,
            self._wrong_type,
            self._absurd_index,
            self._absurd_number,
            self._wrong_length,
            self._wrong_source,
            self._wrong_run,
            self._misdirected,
            self._broken_vote,
            self._from_nobody,
            self._fragments,
            self._swapped,
            self._nested,
        ]

    def next(self) -> bytes:
        return self._random.choice(self._mutations)()

    def _header(self, **changes: int) -> list[int]:
        sender = self._sender._replace(**{key: value for key, value in changes.items() if key != "version"})
        version = changes.get("version", t.FORMAT_VERSION)
        return [version, sender.cluster, sender.era, sender.container, sender.life, sender.shape]

    def _sample(self) -> tuple[type[t.Tuple], list[Any], list[int], list[int]]:
        kind, fields, takers, others = self._random.choice(self._samples)
        return kind, _copied(fields), takers, others

    def _frame(self, numbers: list[int], tuple_: object, header: list[int] | None = None) -> bytes:
        return encode([header or self._header(), [[numbers, tuple_]], [], []])

    def _noise(self) -> bytes:
        return self._random.randbytes(self._random.randrange(64))

    def _foreign(self) -> bytes:
        """A wrong header; what follows may be a lie, or broken by flipped bits."""
        random = self._random
        key, value = random.choice(
            [
                ("version", random.choice((0, t.FORMAT_VERSION + 1, -1))),
                ("cluster", self._sender.cluster ^ (1 << random.randrange(40))),
                ("era", self._sender.era + random.choice((-1, 1, 7))),
                ("shape", self._sender.shape ^ (1 << random.randrange(40))),
                ("container", random.choice((-1, self._containers, 1 << 40))),
                ("life", random.choice((0, -1))),
            ]
        )
        header = self._header(**{key: value})
        _, fields, takers, _ = self._sample()
        frame = bytearray(self._frame(takers[:1], fields, header))
        begin = 1 + len(encode(header))
        for _ in range(random.choice((0, 0, 1, 3))):
            frame[random.randrange(begin, len(frame))] ^= 1 << random.randrange(8)
        return bytes(frame)

    def _cut(self) -> bytes:
        _, fields, takers, _ = self._sample()
        frame = self._frame(takers, fields)
        return frame[: self._random.randrange(len(frame))]

    def _extended(self) -> bytes:
        _, fields, takers, _ = self._sample()
        return self._frame(takers, fields) + self._random.randbytes(self._random.randrange(1, 9))

    def _wrong_type(self) -> bytes:
        _, fields, takers, _ = self._sample()
        _spoil(self._random, fields)
        return self._frame(takers[:1], fields)

    def _top_level(self, names: frozenset[str]) -> tuple[list[Any], list[int], int] | None:
        """A sample that has one of these fields, and where."""
        kind, fields, takers, _ = self._sample()
        places = [place for place, name in enumerate(kind.__struct_fields__, 1) if name in names]
        return (fields, takers, self._random.choice(places)) if places else None

    def _absurd_index(self) -> bytes:
        found = self._top_level(_INDEXES)
        if found is None:
            return self._wrong_type()
        fields, takers, place = found
        fields[place] = self._random.choice(_ABSURD_INDEXES)
        return self._frame(takers, fields)

    def _absurd_number(self) -> bytes:
        _, fields, takers, _ = self._sample()
        places = [place for place in range(1, len(fields)) if type(fields[place]) is int]
        if not places:
            return self._noise()
        fields[self._random.choice(places)] = self._random.choice(_ABSURD_NUMBERS)
        return self._frame(takers[:1], fields)

    def _wrong_length(self) -> bytes:
        found = self._top_level(_VECTORS)
        if found is None:
            return self._cut()
        fields, takers, place = found
        vector = fields[place]
        fields[place] = self._random.choice(([], vector[1:], vector + vector[:1], vector * 50))
        return self._frame(takers[:1], fields)

    def _wrong_source(self) -> bytes:
        """Requests of a source that does not exist."""
        for _ in range(20):
            kind, fields, takers, _ = self._sample()
            if kind in (t.Requests, t.Proposal, t.Commit) and fields[-1]:
                self._random.choice(fields[-1])[0] = self._random.choice((21, 64, (1 << 31) - 1))
                return self._frame(takers, fields)
        return self._noise()

    def _wrong_run(self) -> bytes:
        """Slots far from where they can be."""
        far = self._random.choice((1 << 40, 1 << 61))
        incarnations = self._incarnations
        tuple_ = self._random.choice(
            [
                t.Record(0, 0, 1, 1, incarnations, 0, far, 0, []),
                t.Record(0, 0, 1, 1, incarnations, 0, 0, far, [t.Accepted(1, t.NOOP)]),
                t.Record(0, 0, 1, 1, incarnations, far + 1, far + 2, far + 1, [t.Accepted(1, t.NOOP)]),
                t.Start(0, 0, 1, incarnations, [], 0, far),
                t.Start(0, 0, 1, incarnations, [t.Credential(64, 1, incarnations)], 0, 0),
                t.Start(0, 0, 1, incarnations, [t.Credential(0, 1, [])], 0, 0),
                t.Proposal(0, 0, 1, 0, far, [t.NOOP]),
                t.Proposal(0, 0, 1, far, 0, [t.NOOP]),
                t.Commit(0, 64, 1, far, [t.NOOP]),
            ]
        )
        return self._frame(self._takers[type(tuple_)] or [0], tuple_)

    def _misdirected(self) -> bytes:
        _, fields, takers, others = self._sample()
        numbers = self._random.choice(
            (others, [-1], [self._names], [1 << 40], takers * 200, [*takers, self._names], [*takers, -5])
        )
        return self._frame(numbers or [self._names], fields)

    def _broken_vote(self) -> bytes:
        """Votes for slots that nobody has decided, so that they are opened, with something else in them; or with
        nobody to take them."""
        executors = self._takers[t.Commit]
        commit = t.Commit(0, 0, 1, _UNDECIDED - 1, [t.NOOP])
        numbers, partition, end, content = self._random.choice(
            [
                (executors, 64, _UNDECIDED, commit),
                ([self._names], 0, _UNDECIDED, commit),
                (executors * 200, 0, _UNDECIDED, commit),
                (executors, 0, _UNDECIDED, t.Vote(0, 0, 1, 1, 1)),
                (executors, 0, _UNDECIDED + 1, commit),
                (executors, 0, _UNDECIDED, msgspec.structs.replace(commit, committer=64)),
                (executors, 0, _UNDECIDED, Raw(b"\xc0")),
                (executors, 0, _UNDECIDED, _NESTED),
            ]
        )
        return encode([self._header(), [], [[numbers, [partition, end, content]]], []])

    def _fragments(self) -> bytes:
        """Parts of tuples that can belong to nothing; or all of one, for nobody who could take it, or spoiled."""
        random = self._random
        _, fields, takers, _ = self._sample()
        data = encode(fields)
        size = len(data)
        numbers, lane, total, offset, part = random.choice(
            [
                (takers, random.choice((-1, 6, 1 << 40)), size, 0, data),
                (takers, 0, random.choice((size - 1, 0, -1, 1 << 40)), 0, data),
                (takers, 0, size, random.choice((1, size, -1, 1 << 62)), data),
                (takers, 0, size, 0, b""),
                (random.choice(([self._names], [*takers, -1], takers * 200)), 0, size, 0, data),
                (takers, 0, size + 1, 0, data + b"\x00"),
                (takers, 0, size - 1, 0, data[:-1]),
            ]
        )
        return encode([self._header(), [], [], [[numbers, lane, total, offset, part]]])

    def _from_nobody(self) -> bytes:
        """What only a host gives its own nodes."""
        command = t.Command(_NOBODY, 0, 0, b"")
        tuple_ = self._random.choice((t.Submit([command]), t.SubmitReads([t.ReadRequest(1, b"")])))
        return self._frame(self._sources or [0], tuple_)

    def _swapped(self) -> bytes:
        """A number in the place of something else, and the other way round."""
        _, fields, takers, _ = self._sample()
        numbers = [place for place in range(1, len(fields)) if type(fields[place]) is int]
        others = [place for place in range(1, len(fields)) if type(fields[place]) is not int]
        if not numbers or not others:
            return self._extended()
        one, other = self._random.choice(numbers), self._random.choice(others)
        fields[one], fields[other] = fields[other], fields[one]
        return self._frame(takers, fields)

    def _nested(self) -> bytes:
        _, fields, takers, _ = self._sample()
        fields[self._random.randrange(1, len(fields))] = self._random.choice((_NESTED, *_ENDLESS))
        return self._frame(takers, fields)


class ClientFrames:
    """Messages for a front end: `bad` ones have to be refused and counted, `odd` ones get an answer at most."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def bad(self) -> bytes:
        random = self._random
        good = _decode(self.odd())
        match random.randrange(6):
            case 0:
                return random.randbytes(random.randrange(40))
            case 1:
                return encode(good)[: random.randrange(len(encode(good)))]
            case 2:
                return encode(good) + random.randbytes(random.randrange(1, 9))
            case 3:
                good[0] = random.choice((0, t.FORMAT_VERSION + 1, -1, 1 << 60))
            case 4:
                good[1] = [[_NOBODY, 0, 0, random.choice((_NESTED, *_ENDLESS, 5, "text", None))]]
            case _:
                good = [good[0], good[1] or [[_NOBODY, 0, 0, b""]]]
                _spoil(random, good)
        return encode(good)

    def odd(self) -> bytes:
        random = self._random
        commands: list[t.Command] = []
        reads: list[client_wire.ReadMessage] = []
        for _ in range(random.randrange(1, 4)):
            session = _NOBODY + random.randrange(1 << 62)
            number, acknowledged = random.getrandbits(random.randrange(1, 65)), random.getrandbits(64)
            payload = random.randbytes(random.randrange(32))
            match random.randrange(4):
                case 0:
                    commands.append(t.Command(0, number, acknowledged, b"\xc1" + payload, t.OPEN))
                case 1:
                    reads.append(client_wire.ReadMessage(random.getrandbits(63), payload, random.random() < 0.5))
                case _:
                    kind = random.choice((t.EXECUTE, t.QUERY, t.CLOSE, t.CLAIM))
                    commands.append(t.Command(session, number, acknowledged, payload, kind))
        secret = random.randbytes(random.choice((0, SECRET_BYTES_MIN - 1, SECRET_BYTES_MIN, SECRET_BYTES_MAX)))
        return encode(client_wire.ClientRequest(t.FORMAT_VERSION, commands, reads, secret))


class ControlMessages:
    """Messages for a registry. A valid order to kill a node or to go down is no attack, but an order."""

    def __init__(self, random: Random, lives: dict[int, int]) -> None:
        """`lives`: of the containers that the registry has."""
        self._random = random
        self._lives = lives

    def bad(self) -> bytes:
        random = self._random
        good = _decode(self.odd())
        match random.randrange(6):
            case 0:
                return b"\xc1" + random.randbytes(random.randrange(40))
            case 1:
                return encode(good)[: random.randrange(len(encode(good)))]
            case 2:
                return encode(good) + random.randbytes(random.randrange(1, 9))
            case 3:
                good[0] = random.choice((0, 13, 99, -1, "x", None, [], _NESTED))
            case 4:
                # The right container and life, but a report that makes no sense.
                report = random.choice((b"{", b"[]", b"{}", b'{"counters":{}}', b"7", b"\xff", b"[" * 5000))
                container = random.choice(list(self._lives))
                return control.encode(control.Heartbeat(container, self._lives[container], report))
            case _:
                good[1] = random.choice((_NESTED, *_ENDLESS, {}, 1.5))
        return encode(good)

    def odd(self) -> bytes:
        random = self._random
        other = random.getrandbits(40) + (1 << 50)
        number = random.choice((-1, 0, 99, 1 << 40))
        return control.encode(
            random.choice(
                [
                    control.Register(number, 1, "tcp://x", "tcp://y", other, 1),
                    control.Founded(number, -7),
                    control.Heartbeat(number, -7, b"{}"),
                    control.AskKill("site-0", other),
                    control.AskDown(other),
                    control.AskStatus(other),
                ]
            )
        )


class FileRequests:
    """Messages for a file server."""

    def __init__(self, random: Random, cluster: int, era: int) -> None:
        self._random = random
        self._identity = (cluster, era)

    def bad(self) -> bytes:
        good = _decode(self.odd())
        random = self._random
        match random.randrange(4):
            case 0:
                return b"\xc1" + random.randbytes(random.randrange(40))
            case 1:
                return encode(good)[: random.randrange(len(encode(good)))]
            case 2:
                return encode(good) + random.randbytes(random.randrange(1, 9))
            case _:
                good[random.randrange(5)] = random.choice((_NESTED, *_ENDLESS, {}, 1.5, None))
        return encode(good)

    def odd(self) -> bytes:
        random = self._random
        kind = random.choice(("bases", "log", "..", "", "journal"))
        names = ("", "../cluster.json", "000000000001.base", "/etc/passwd", "x" * 1000, "\0", "٠" * 12)
        cluster, era = self._identity
        return encode(
            FileRequest(
                random.getrandbits(63),
                random.choice((cluster, cluster, 5)),
                era,
                kind,
                random.choice((0, 1, 2, -1, 1 << 40)),
                random.choice(names),
                random.choice((0, -1, 1 << 62, 5)),
            )
        )


class LogRequests:
    """Requests of readers of the decided log: `bad` ones end their connection and are counted, `odd` ones get an
    answer. All have the mark that makes a connection one for reading."""

    def __init__(self, random: Random) -> None:
        self._random = random
        #: One that is there, as soon as an answer has told of one.
        self.file = ""

    def bad(self) -> bytes:
        random = self._random
        good = _decode(self.odd())
        match random.randrange(5):
            case 0:
                return encode(good)[: random.randrange(_LOG_MARK_END, len(encode(good)))]
            case 1:
                return encode(good) + random.randbytes(random.randrange(1, 9))
            case 2:
                return encode(good[: random.randrange(1, 4)])
            case 3:
                place, value = random.choice(((_SKIP, -1), (_OFFSET, -(1 << 63)), (_FILE, "x" * 256)))
                good[place] = value
            case _:
                good[random.randrange(1, len(good))] = random.choice((_NESTED, *_ENDLESS, {}, 1.5, True, b"y"))
        return encode(good)

    def odd(self) -> bytes:
        random = self._random
        numbers = (0, 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
        counters = (1, random.randrange(1, 1 << 12), -1, -(1 << 63), *numbers)
        files = ("", "../cluster.json", "/etc/passwd", "\0", "x" * 255, f"{'٠' * 12}-{'٠' * 16}.tail", self.file)
        return encode(
            log_wire.LogRequest(
                random.choice((*[log_wire.VERSION] * 5, 0, -1, 1 << 63)),
                random.getrandbits(63),
                random.choice((*[log_wire.BOUNDS, log_wire.PIECE, log_wire.ADVANCE] * 2, 3, -1, 1 << 63)),
                random.choice(counters),
                skip=random.choice((*numbers, random.getrandbits(16))),
                checksum=random.choice((None, -1, *numbers)),
                file=random.choice((*files, self.file)),
                offset=random.choice((*numbers, random.getrandbits(16))),
                bytes_max=random.choice((-1, -(1 << 63), *numbers)),
            )
        )

    def flipped(self) -> bytes:
        """An odd one with some bits turned: still one, or not."""
        request = bytearray(self.odd())
        for _ in range(self._random.randrange(1, 4)):
            request[self._random.randrange(_LOG_MARK_END, len(request))] ^= 1 << self._random.randrange(8)
        return bytes(request)


def _copied(value: Any) -> Any:
    return [_copied(item) for item in value] if isinstance(value, list) else value


_WRONG: dict[type, tuple[Any, ...]] = {
    int: ("x", 1.5, None, {}, b"y", -5, True, [1]),
    bytes: (7, None, "s", [], 2.5),
    list: (7, None, "s", {"a": 1}, b"z"),
    str: (7, None, [], b"z"),
    bool: (7, None, "s", []),
}


def _spoil(random: Random, fields: list[Any]) -> None:
    """Put something of a wrong type in a random place, at any depth."""
    place = random.randrange(len(fields))
    value = fields[place]
    if isinstance(value, list) and value and random.random() < 0.7:
        _spoil(random, value)
    else:
        fields[place] = random.choice(_WRONG[type(value)])
