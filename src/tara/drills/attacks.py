"""Attacks on the ports of a cluster: frames that no honest sender makes, at a steady rate, each port from a thread.

They run in a process of their own, so that they are not in the way of the registries, and what they take is not taken
for what those keep. An attacker at a port with keys has some: of a member, or of a client. Those who have none are
among the `tara.drills.nuisances`, which go on beside the frames.
"""

import abc
import contextlib
import multiprocessing
import os
import queue
import select
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from tara.apps.coordination import jute
from tara.apps.coordination.codes import Op
from tara.drills.hostile import (
    ClientFrames,
    ControlMessages,
    FileRequests,
    Identity,
    LogRequests,
    PeerFrames,
    recorded,
)
from tara.drills.nuisances import Nuisances
from tara.drills.targets import AttackTarget
from tara.live import control
from tara.net import bounds, log_wire
from tara.net.file_exchange import FileRequest
from tara.net.framing import Splitter, framed
from tara.protocol.errors import TaraError
from tara.protocol.graph import Graph
from tara.protocol.limits import Limits

#: Frames that are made, and how often they are sent before others are made; and how many are sent at once.
MADE = 400
REPEATED = 8
AT_ONCE = 50
#: Of a client's messages, how many are well-formed: they are ordered, or asked, like any other.
ODD = 0.02
#: Requests of one ZooKeeper session, or of one reader of the log; and how many of the latter have bits turned.
REQUESTS = 24
FLIPPED = 0.05
#: The attackers yield to the clusters by so much.
NICE = 10
#: In the last message of an attack, and in no other.
_MARK = 0x1234_5678_9ABC_DEF0


class AttackFailed(TaraError):
    """An attack could not be carried out: a port did not do what it has to."""


class Sent(Struct):
    """What an attack did."""

    #: Mode and kind of port.
    port: str
    frames: int
    #: Those of them that the other side has to count; and those of which nobody knows whether it has read them.
    refusable: int
    unsure: int
    #: Connections that the other side has closed while frames were sent.
    hung_up: int


class Attack(abc.ABC):
    """Frames for one port, on a thread of its own."""

    def __init__(self, target: AttackTarget) -> None:
        self.target = target
        self.random = Random(target.seed)
        self.sent = 0
        self.refusable = self.unsure = self.hung_up = 0
        self.failure: Exception | None = None
        self._due_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"attack-{target.kind}", daemon=True)

    def start(self) -> None:
        self._due_s = time.monotonic()
        self._thread.start()

    def join(self) -> Sent:
        self._thread.join()
        if self.failure is not None:
            raise AttackFailed(f"{self.target.port} at {self.target.address}: {self.failure!r}") from self.failure
        return Sent(self.target.port, self.sent, self.refusable, self.unsure, self.hung_up)

    def _run(self) -> None:
        try:
            self.attack()
        except Exception as error:
            self.failure = error

    @abc.abstractmethod
    def attack(self) -> None:
        """Send all of them."""

    def count(self, frames: int, refusable: int = 0) -> None:
        """So many have been sent: wait until the next ones are due."""
        self.sent += frames
        self.refusable += refusable
        now_s = time.monotonic()
        # What could not be sent in time is not made up for in a burst.
        self._due_s = max(self._due_s + frames / self.target.rate_per_s, now_s - 1.0)
        time.sleep(max(self._due_s - now_s, 0.0))

    @property
    def left(self) -> int:
        return self.target.count - self.sent


class FrameAttack(Attack):
    """Many frames per connection, without waiting for answers."""

    def __init__(self, target: AttackTarget, make: Callable[[Random], tuple[bytes, bool]]) -> None:
        """`make` gives a frame, and whether it has to be refused."""
        super().__init__(target)
        self._make = make

    def attack(self) -> None:
        while self.left > 0:
            self._too_long()
            before = self.refusable
            try:
                self._attack_once()
            except (BrokenPipeError, ConnectionResetError):
                self.hung_up += 1
                self.unsure += self.refusable - before
                self.refusable = before

    def _attack_once(self) -> None:
        with self.target.connect() as connection:
            for _ in range(10):
                made = [self._make(self.random) for _ in range(min(MADE, self.left))]
                for _ in range(REPEATED):
                    self._send(connection, made[: self.left])
                    drain(connection)
                if self.left <= 0:
                    break
            end(connection)

    def _send(self, connection: socket.socket, made: list[tuple[bytes, bool]]) -> None:
        for first in range(0, len(made), AT_ONCE):
            some = made[first : first + AT_ONCE]
            connection.sendall(b"".join(framed(frame) for frame, _ in some))
            self.count(len(some), sum(bad for _, bad in some))

    def _too_long(self) -> None:
        """A length beyond every limit: ends its connection."""
        with self.target.connect() as connection:
            connection.sendall(b"\xff\xff\xff\x7f" + b"x" * 100)
            end(connection, hang_up=False)
        self.count(1, 1)


def drain(connection: socket.socket) -> None:
    """Answers are of no interest, but in the way."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    with contextlib.suppress(BlockingIOError, TimeoutError):
        while poller.poll(0) and connection.recv(1 << 16):
            pass


def end(connection: socket.socket, hang_up: bool = True) -> None:
    """Wait for the other side to close: then it has read everything."""
    if hang_up:
        connection.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass


class MessageAttack(Attack):
    """For ports that answer messages; now and then, something that is no frame."""

    def __init__(
        self, target: AttackTarget, make: Callable[[Random], tuple[bytes, bool]], last: bytes, mark: bytes
    ) -> None:
        """`last` is a question whose answer contains `mark`: it is answered when everything before it was looked at."""
        super().__init__(target)
        self._make = make
        self._last = last
        self._mark = mark

    def attack(self) -> None:
        with self.target.connect() as connection:
            while self.left > 0:
                made = [self._make(self.random) for _ in range(min(MADE, self.left))]
                for first in range(0, len(made), AT_ONCE):
                    some = made[first : first + AT_ONCE]
                    connection.sendall(b"".join(framed(frame) for frame, _ in some))
                    self.count(len(some), sum(bad for _, bad in some))
                    drain(connection)
            self._await_end(connection)

    def _await_end(self, connection: socket.socket) -> None:
        connection.sendall(framed(self._last))
        heard = b""
        while self._mark not in heard:
            more = connection.recv(1 << 16)
            if not more:
                raise AttackFailed("no answer to the last question")
            heard = heard[-len(self._mark) :] + more


class LogAttack(Attack):
    """Readers of the decided log, one after the other. Each is served, asks what nobody would, and at last what ends
    its connection. One that is one too many is hung up on before: that is counted in its place."""

    def __init__(self, target: AttackTarget, made: LogRequests) -> None:
        super().__init__(target)
        self._made = made

    def attack(self) -> None:
        while self.left > 0:
            self.unsure += 1
            with contextlib.suppress(ConnectionError, EOFError, ssl.SSLError), self.target.connect() as connection:
                self._ask(connection)
                # It is a reader's now: if it is closed, something was refused.
                self.unsure -= 1
                self.refusable += 1
                self._go_on(connection)

    def _ask(self, connection: socket.socket) -> None:
        """What is right, until the answer is there."""
        connection.sendall(framed(log_wire.encode(log_wire.LogRequest(log_wire.VERSION, 1, log_wire.PIECE))))
        self.count(1)
        splitter = Splitter(2 * bounds.LOG_PIECE_BYTES)
        frames: list[bytes] = []
        while not frames:
            data = connection.recv(1 << 16)
            if not data:
                raise EOFError
            frames = splitter.feed(data)
        reply = log_wire.decode_reply(frames[0])
        if (reply.status == log_wire.FORBIDDEN) != self.target.forbidden:
            raise AttackFailed(f"a reader was told {reply.status} ({reply.message})")
        self._made.file = reply.file or self._made.file

    def _go_on(self, connection: socket.socket) -> None:
        for _ in range(min(REQUESTS, self.left)):
            flipped = self.random.random() < FLIPPED
            connection.sendall(framed(self._made.flipped() if flipped else self._made.odd()))
            self.count(1)
            drain(connection)
        connection.sendall(framed(self._made.bad()))
        self.count(1)
        end(connection, hang_up=False)


class MetricsAttack(Attack):
    def attack(self) -> None:
        requests = (
            b"\x00" * 100,
            b"GET /metrics HTTP/9.9\r\n\r\n",
            b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
            b"POST /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
            b"GET /../../etc/passwd HTTP/1.0\r\n\r\n",
        )
        while self.left > 0:
            with self.target.connect() as connection, contextlib.suppress(OSError):
                connection.sendall(self.random.choice(requests))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
            self.count(1)


class ZooKeeperAttack(Attack):
    """Sessions of its own, and in them requests that no client would send; the last one ends the connection."""

    def attack(self) -> None:
        while self.left > 0:
            with self.target.connect() as connection, contextlib.suppress(OSError):
                if self.random.random() < 0.1:
                    connection.sendall(self.random.randbytes(self.random.randrange(1, 200)))
                    self.count(1)
                else:
                    self._session(connection)

    def _session(self, connection: socket.socket) -> None:
        random = self.random
        session = random.choice((0, 0, 0, 0, 0, 0, 77, -1, 1 << 62))
        connect = struct.pack(
            ">iqiq", 0, random.choice((0, 0, 0, 0, -1, 1 << 62)), random.choice((5000, -1, 1 << 30)), session
        )
        connection.sendall(_framed(connect + jute.pack_buffer(bytes(16)) + b"\0"))
        self.count(1)
        connection.settimeout(2.0)
        if not connection.recv(1 << 16):
            return
        for _ in range(min(REQUESTS, self.left)):
            connection.sendall(_framed(self._request()))
            self.count(1)
            drain(connection)
        connection.sendall(self._spoiled(self._request()))
        self.count(1)
        end(connection)

    def _request(self) -> bytes:
        random = self.random
        path = jute.pack_text(random.choice(("/", "/fuzz", "/fuzz/a", "", "//", "/a/../b", "/\0", "x" * 500, "/é")))
        body = path + random.choice(
            (
                jute.pack_buffer(b"data") + jute.pack_int(-1),
                jute.pack_buffer(None) + jute.pack_acl(((31, "world", "anyone"),)) + jute.pack_int(random.randrange(9)),
                jute.pack_int(-7),
                b"\0",
            )
        )
        op = random.choice((Op.EXISTS, Op.GET_DATA, Op.GET_CHILDREN, Op.SET_DATA, Op.CREATE, Op.DELETE, Op.PING))
        return struct.pack(">ii", random.getrandbits(31) - (1 << 30), op) + body

    def _spoiled(self, body: bytes) -> bytes:
        random = self.random
        match random.randrange(5):
            case 0:
                return struct.pack(">i", random.choice((-1, 1 << 30, 3, 0))) + body
            case 1:
                spoiled = bytearray(body)
                spoiled[random.randrange(8, len(spoiled))] ^= 1 << random.randrange(8)
                return _framed(bytes(spoiled))
            case 2:
                return _framed(body[: random.randrange(len(body))])
            case 3:
                return _framed(struct.pack(">ii", 1, random.choice((9999, -12, 1 << 30))) + random.randbytes(20))
            case _:
                return _framed(body + random.randbytes(random.randrange(1, 40)))


def _framed(body: bytes) -> bytes:
    return jute.pack_int(len(body)) + body


_recorded = lru_cache(maxsize=4)(recorded)


def attack_on(target: AttackTarget) -> Attack:
    random = Random(f"{target.seed}/frames")
    match target.kind:
        case "peers":
            return _peer_attack(target, random)
        case "clients":
            return FrameAttack(target, _mixed(ClientFrames(random), ODD))
        case "log":
            return LogAttack(target, LogRequests(random))
        case "files":
            last = msgspec.msgpack.encode(FileRequest(_MARK, 0, 0, "", 0))
            made = _mixed(FileRequests(random, target.cluster, target.era), 0.5)
            return MessageAttack(target, made, last, msgspec.msgpack.encode(_MARK))
        case "registry":
            last = control.encode(control.AskStatus(_MARK))
            return MessageAttack(target, _mixed(ControlMessages(random, target.lives), 0.5), last, b"%x" % _MARK)
        case "zookeeper":
            return ZooKeeperAttack(target)
        case _:
            return MetricsAttack(target)


def _peer_attack(target: AttackTarget, random: Random) -> Attack:
    limits: Limits = target.limits
    sender = Identity(target.cluster, target.era, target.sender, target.life, target.shape)
    graph = Graph(limits.f, limits.partitions)
    made = PeerFrames(random, graph, limits, target.here, sender, target.containers, _recorded(limits))
    return FrameAttack(target, lambda _: (made.next(), True))


def _mixed(made: ClientFrames | ControlMessages | FileRequests, odd: float) -> Callable[[Random], tuple[bytes, bool]]:
    def make(random: Random) -> tuple[bytes, bool]:
        return (made.odd(), False) if random.random() < odd else (made.bad(), True)

    return make


class Attackers:
    """The process. It is made ready, and attacks when it is told to."""

    def __init__(self, targets: list[AttackTarget]) -> None:
        context = multiprocessing.get_context("spawn")
        self._messages: Queue[Any] = context.Queue()
        self._begin = context.Event()
        self._process = context.Process(target=_work, args=(targets, self._messages, self._begin), daemon=True)
        self._process.start()
        self._next("ready")

    def attack(self) -> None:
        self._begin.set()

    def finish(self) -> tuple[list[Sent], dict[str, int]]:
        """Wait for the end: what was sent, and how many nuisances of each kind there were."""
        sent, nuisances = self._next("done")
        self._process.join(timeout=30)
        return sent, nuisances

    def stop(self) -> None:
        self._process.kill()
        self._process.join()

    def _next(self, expected: str) -> Any:
        while True:
            try:
                kind, value = self._messages.get(timeout=1.0)
            except queue.Empty:
                if not self._process.is_alive():
                    raise AttackFailed(f"the attackers ended with status {self._process.exitcode}") from None
                continue
            if kind != expected:
                raise AttackFailed(value)
            return value


def _work(targets: list[AttackTarget], messages: "Queue[Any]", begin: Event) -> None:
    # Those who attack a cluster have machines of their own.
    os.nice(NICE)
    try:
        attacks = [attack_on(target) for target in targets]
        nuisances = [Nuisances(target, turn) for turn, target in enumerate(targets)]
        messages.put(("ready", None))
        begin.wait()
        for attack in attacks:
            attack.start()
        for nuisance in nuisances:
            nuisance.start()
        sent = [attack.join() for attack in attacks]
        counts: Counter[str] = Counter()
        for nuisance in nuisances:
            counts.update(nuisance.stop())
        messages.put(("done", (sent, dict(counts))))
    except Exception as error:
        messages.put(("failed", f"{type(error).__name__}: {error}"))
        raise
