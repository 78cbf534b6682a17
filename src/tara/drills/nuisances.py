"""Connections that misbehave, at one port, beside those that send frames: silent, half-open, reset, endless, those that
ask and do not read, and strangers whose keys are wrong or missing; and readers of the decided log who are many, or who
ask for very much. They go on until they are stopped."""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from random import Random

import msgspec

from tara.application import Get
from tara.apps.coordination import jute
from tara.apps.coordination.codes import Op
from tara.drills.targets import AttackTarget, foreign_context
from tara.host import client_wire
from tara.live import control
from tara.net import bounds, log_wire
from tara.net.file_exchange import FileReply, FileRequest
from tara.net.framing import Splitter, framed, head
from tara.protocol import tuples as t
from tara.storage.remote import LOG

#: Between two of them at one port; and two of readers, each of which takes as much as several others.
PAUSE_S = 1.0
READERS_PAUSE_S = 6.0
#: How many of a kind stay open; the oldest has to go.
SILENT_MAX = 80
HALF_OPEN_MAX = 20
ENDLESS_MAX = 3
NOT_READING_MAX = 3
#: What an endless one sends, if it is not closed before; and how often one that does not read asks.
ENDLESS_BYTES = 4 << 20
QUESTIONS = 300
#: Empty frames that come all at once.
FLOOD_FRAMES = 500
#: Readers of the log at once, more than there may be, and how long they stay.
CROWD = bounds.READERS_OF_THE_LOG_MAX + 8
CROWD_S = 1.0
#: How long one reader asks for the same thing again and again, and how often without waiting for the answer.
REPEATING_S = 1.0
REPEATED_AHEAD = 8
#: Readers whose requests are as long as messages of clients may be, and how they begin.
LONG_REQUESTS = 3
LONG_REQUEST = b"\x9a\xa3log".ljust(8_000_000)
#: A value, and a node, that are long.
LARGE_KEY = "large"
LARGE_PATH = "/large"
LARGE_BYTES = 500_000
#: How a TLS client greets.
_GREETING = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


class Nuisances:
    def __init__(self, target: AttackTarget, turn: int) -> None:
        """At each port another trick is the first one, by its turn: so all are played, however short the attack."""
        self._target = target
        self._turn = turn
        self._random = Random(f"{target.seed}/nuisances")
        self._stopping = threading.Event()
        self._open: dict[str, deque[socket.socket]] = {}
        self._counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name=f"nuisances-{target.kind}", daemon=True)
        self._tricks: dict[str, Callable[[], None]] = {
            "silent": self._silent,
            "half_open": self._half_open,
            "reset": self._reset,
            "endless": self._endless,
            "not_reading": self._not_reading,
            "stranger": self._stranger,
            "flood": self._flood,
        }
        self._pause_s = PAUSE_S
        if target.kind == "log":
            # Its port is a target already, with all of these.
            self._pause_s = READERS_PAUSE_S
            self._tricks = {
                "crowd": self._crowd,
                "repeating": self._repeating,
                "long_requests": self._long_requests,
                "not_reading": self._not_reading,
            }

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Counter[str]:
        """How many of each kind there were."""
        self._stopping.set()
        self._thread.join()
        for sockets in self._open.values():
            for sock in sockets:
                sock.close()
        return self._counts

    def _run(self) -> None:
        names = list(self._tricks)
        while True:
            name = names[self._turn % len(names)]
            self._turn += 1
            # That it is refused, closed or not even connected is what it is there for.
            with contextlib.suppress(OSError, EOFError):
                self._tricks[name]()
            self._counts[name] += 1
            if self._stopping.wait(self._pause_s):
                return

    def _keep(self, name: str, sock: socket.socket, count_max: int) -> None:
        kept = self._open.setdefault(name, deque())
        kept.append(sock)
        while len(kept) > count_max:
            kept.popleft().close()

    def _silent(self) -> None:
        self._keep("silent", self._target.open(), SILENT_MAX)

    def _half_open(self) -> None:
        """Something begins, and does not go on."""
        sock = self._target.open()
        self._keep("half_open", sock, HALF_OPEN_MAX)
        sock.sendall(self._random.choice((self._begun(60_000) + bytes(100), _GREETING, self._begun(5)[:2], b"GET")))

    def _begun(self, length: int) -> bytes:
        return struct.pack(">i", length) if self._target.kind == "zookeeper" else head(length)

    def _reset(self) -> None:
        with self._target.open() as sock:
            if self._random.random() < 0.5:
                sock.sendall(self._random.choice((self._begun(1000), _GREETING)))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _endless(self) -> None:
        """A frame, or a handshake, as long as one can be, and longer."""
        if self._target.keys and self._random.random() < 0.5:
            sock = self._target.connect()
            first, more = self._begun(8_000_000), b"\xff" * (1 << 16)
        elif self._target.keys:
            sock = self._target.open()
            first, more = b"", b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + bytes((1 << 14) - 4)
        else:
            sock = self._target.open()
            first, more = self._begun(self._random.choice((900_000, 3_000_000, 8_000_000))), b"\xff" * (1 << 16)
        self._keep("endless", sock, ENDLESS_MAX)
        sock.settimeout(0.5)
        sock.sendall(first)
        for _ in range(ENDLESS_BYTES // len(more)):
            sock.sendall(more)
            if self._stopping.is_set():
                return

    def _flood(self) -> None:
        """As many frames as there can be in so many bytes: they are all empty."""
        sock = self._target.connect()
        with sock:
            sock.settimeout(0.5)
            sock.sendall(bytes(FLOOD_FRAMES * 4))
            self._counts["flood_frames"] += FLOOD_FRAMES

    def _not_reading(self) -> None:
        """It asks for long answers, and does not want them."""
        sock = self._target.connect()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._keep("not_reading", sock, NOT_READING_MAX)
        sock.settimeout(0.5)
        question = self._question(sock)
        for _ in range(QUESTIONS if question else 0):
            sock.sendall(question)

    def _crowd(self) -> None:
        """Readers who do not read, and stay for a while."""
        with contextlib.ExitStack() as crowd:
            for _ in range(CROWD):
                if self._stopping.is_set():
                    return
                sock = crowd.enter_context(self._target.connect())
                sock.sendall(self._question(sock))
                self._counts["crowd_readers"] += 1
            self._stopping.wait(CROWD_S)

    def _repeating(self) -> None:
        """It reads, and asks for the same piece as quickly as it can."""
        with self._target.connect() as sock:
            sock.settimeout(2.0)
            question, splitter = self._question(sock), Splitter(2 * bounds.LOG_PIECE_BYTES)
            sock.sendall(question * REPEATED_AHEAD)
            end_s = time.monotonic() + REPEATING_S
            while time.monotonic() < end_s and not self._stopping.is_set() and (data := sock.recv(1 << 18)):
                sock.sendall(question * len(splitter.feed(data)))

    def _long_requests(self) -> None:
        """All at once, as far as the other side takes them."""
        for _ in range(LONG_REQUESTS):
            if self._stopping.is_set():
                return
            sock = self._target.connect()
            self._keep("long_requests", sock, LONG_REQUESTS)
            sock.settimeout(2.0)
            self._counts["long_readers"] += 1
            sock.sendall(framed(LONG_REQUEST))

    def _question(self, sock: socket.socket) -> bytes:
        target = self._target
        match target.kind:
            case "log":
                return framed(log_wire.encode(log_wire.LogRequest(log_wire.VERSION, 1, log_wire.PIECE)))
            case "clients":
                reads = [
                    client_wire.ReadMessage(number, msgspec.msgpack.encode(Get(LARGE_KEY)), True)
                    for number in range(10)
                ]
                return framed(client_wire.encode(client_wire.ClientRequest(t.FORMAT_VERSION, [], reads)))
            case "registry":
                return framed(control.encode(control.AskStatus()))
            case "files":
                return self._piece(sock)
            case "zookeeper":
                connect = struct.pack(">iqiq", 0, 0, 5000, 0) + jute.pack_buffer(bytes(16)) + b"\0"
                get = struct.pack(">ii", 1, Op.GET_DATA) + jute.pack_text(LARGE_PATH) + b"\0"
                sock.sendall(jute.pack_int(len(connect)) + connect)
                return jute.pack_int(len(get)) + get
            case "metrics":
                return b"GET /metrics HTTP/1.1\r\n\r\n"
            case _:
                return b""

    def _piece(self, sock: socket.socket) -> bytes:
        """Of a file that is there; else, of what is there."""
        target = self._target
        ask = FileRequest(1, target.cluster, target.era, LOG, target.replica)
        sock.sendall(framed(msgspec.msgpack.encode(ask)))
        with contextlib.suppress(TimeoutError, msgspec.DecodeError):
            names = msgspec.msgpack.decode(sock.recv(1 << 16)[4:], type=FileReply).names
            ask = FileRequest(2, target.cluster, target.era, LOG, target.replica, names[0] if names else "")
        return framed(msgspec.msgpack.encode(ask))

    def _stranger(self) -> None:
        """Who has no keys, or wrong ones; or has some where there are none."""
        target = self._target
        sock = target.open()
        sock.settimeout(2.0)
        with sock:
            kind = self._random.randrange(4)
            if kind == 0:
                sock.sendall(framed(bytes([0x93, 1, 0x90, 0x90])))
                sock.recv(100)
                return
            context = foreign_context(target.foreign_keys if kind == 1 else "")
            if kind == 3:
                context.maximum_version = ssl.TLSVersion.TLSv1_2
            with contextlib.suppress(ssl.SSLError), context.wrap_socket(sock) as tls:
                tls.sendall(b"hello")
                tls.recv(100)
