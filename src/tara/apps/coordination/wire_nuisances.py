"""Strangers at the front ends of the simulator: what a port has to bear that anybody can connect to.

They ask all four-letter words, come in crowds, send more than is dealt with at once, do not fetch their answers, begin
long requests and do not end them, take each other's sessions, and say what is no request. Nothing that they are
answered is judged: what is judged is what the other clients see meanwhile. Nobody comes any more when the faults are
over.
"""

import random
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from tara.apps.coordination import jute, limits
from tara.apps.coordination.acl import OPEN
from tara.apps.coordination.codes import Mode, Op
from tara.apps.coordination.gateway.four_letter_words import WORDS
from tara.apps.coordination.jute import Reader

if TYPE_CHECKING:
    from tara.apps.coordination.wire_simulation import Gateway, Link, ZooKeeperWire
    from tara.simulator.world import World

#: In so many runs there are such strangers.
SHARE = 0.8
TIMEOUT_MS = 3_000
#: How long they stay, unless they are thrown out.
STAY_MS = 2_500
#: Bytes of what is read again and again, by those who do not fetch it.
LONG_BYTES = 3_000
_FIRST_INDEX = 1_000


class Stranger:
    """One connection. With a session if it asks for one; then it says what it has to say."""

    def __init__(self, nuisances: "Nuisances", says: bytes = b"", deaf_ms: float = 0.0, index: int = 0) -> None:
        self._nuisances = nuisances
        self._says = says
        self._deaf_until_ms = nuisances.world.now_ms + deaf_ms
        self.index = _FIRST_INDEX + index
        self.session, self.password = 0, bytes(16)
        self._joining = False
        self._in = b""
        #: Called once it has its session.
        self.on_joined: Callable[[], None] = lambda: None

    def come(self, gateway: "Gateway") -> bool:
        self.link = self._nuisances.link(self, gateway)
        return gateway.connect(self.link)

    def join(self, session: int = 0, password: bytes = bytes(16), zxid: int = 0, at_once: bytes = b"") -> None:
        """Ask for a session, or to have that one."""
        self._joining = True
        body = struct.pack(">iqiq", 0, zxid, TIMEOUT_MS, session) + jute.pack_buffer(password) + b"\0"
        self.link.send(jute.pack_int(len(body)) + body + at_once)

    def room(self, count: int) -> int:
        return 0 if self._nuisances.world.now_ms < self._deaf_until_ms else count

    def hear(self, data: bytes) -> None:
        self._in += data
        if not self._joining or len(self._in) < 4 or len(self._in) < 4 + jute.unpack_int(self._in)[0]:
            return
        self._joining = False
        reader = Reader(self._in[4:])
        reader.number()
        reader.number()
        self.session, self.password = reader.long(), reader.buffer() or b""
        if self.session:
            self.link.send(self._says)
            self.on_joined()

    def lose(self, link: "Link") -> None:
        pass


def _frame(op: int, body: bytes = b"", xid: int = 1) -> bytes:
    return jute.pack_int(8 + len(body)) + jute.REQUEST_HEADER.pack(xid, op) + body


def _auth(scheme: str, credentials: bytes) -> bytes:
    return _frame(Op.AUTH, jute.pack_int(0) + jute.pack_text(scheme) + jute.pack_buffer(credentials))


class Nuisances:
    def __init__(self, world: "World", wire: "ZooKeeperWire") -> None:
        self.world = world
        self._wire = wire
        self._draw = random.Random(f"nuisances-{world.plan.seed}")
        self._kinds = {
            "inquiry": self._inquire,
            "crowd": self._crowd,
            "torrent": self._torrent,
            "deaf_client": self._deaf,
            "many_watches": self._watch,
            "odd_requests": self._odd,
            "unended_uploads": self._upload,
            "taken_session": self._take_session,
        }

    def schedule(self) -> None:
        draw, end_ms = self._draw, self.world.plan.faults_end_ms
        if draw.random() >= SHARE or end_ms < 1_000:
            return
        for kind in self._kinds:
            for _ in range(draw.choice((0, 1, 2))):
                self.world.at(draw.randrange(400, max(end_ms - 300, 401)), self._strike, kind, draw.randrange(1 << 20))

    def _strike(self, kind: str, choice: int) -> None:
        serving = [
            gateway
            for site, gateway in sorted(self._wire.gateways.items())
            if self.world.serves(site) and gateway.serving
        ]
        if serving and not self.world.healed:
            self.world.count_fault(kind)
            self._kinds[kind](serving[choice % len(serving)])

    def link(self, stranger: Stranger, gateway: "Gateway") -> "Link":
        return self._wire.link(stranger, gateway, self._draw)

    def _comes(self, gateway: "Gateway", stranger: Stranger) -> bool:
        if not stranger.come(gateway):
            return False
        self.world.after(STAY_MS, stranger.link.hang_up)
        return True

    def _visit(self, gateway: "Gateway", says: bytes, deaf_ms: float = 0.0, index: int = 0) -> Stranger | None:
        """Somebody with a session, who says this at once."""
        stranger = Stranger(self, says, deaf_ms, index)
        if not self._comes(gateway, stranger):
            return None
        stranger.join()
        return stranger

    def _inquire(self, gateway: "Gateway") -> None:
        for index, word in enumerate(WORDS):
            stranger = Stranger(self, index=index)
            if self._comes(gateway, stranger):
                stranger.link.send(word)

    def _crowd(self, gateway: "Gateway") -> None:
        """Nobody of them says anything; first from many addresses, then from one."""
        addresses = [index % 5 for index in range(limits.ARRIVALS_MAX + 8)] + [9] * (
            limits.ARRIVALS_PER_ADDRESS_MAX + 8
        )
        for index in addresses:
            self._comes(gateway, Stranger(self, index=index))

    def _torrent(self, gateway: "Gateway") -> None:
        """In one piece: some requests that are ordered, and many that are not."""
        reads = _frame(Op.EXISTS, jute.pack_text("/") + b"\0") * 80
        syncs = _frame(Op.SYNC, jute.pack_text("/"))
        self._visit(gateway, (reads + syncs) * 4)
        self._visit(gateway, syncs * 3 + reads * 3 + _frame(Op.PING) * 200, index=1)

    def _deaf(self, gateway: "Gateway") -> None:
        path = jute.pack_text("/long")
        create = path + jute.pack_buffer(bytes(LONG_BYTES)) + jute.pack_acl(OPEN) + jute.pack_int(Mode.PERSISTENT)
        says = _frame(Op.CREATE, create) + _frame(Op.GET_DATA, path + b"\0") * 150
        # One fetches its answers late, the other never.
        for index, deaf_ms in enumerate((700.0, 1e6)):
            self._visit(gateway, says, deaf_ms, index)

    def _watch(self, gateway: "Gateway") -> None:
        missing = jute.pack_texts([f"/none-{number}" for number in range(2 * limits.PATHS_AT_ONCE + 50)])
        absent = jute.pack_long(0) + jute.pack_texts([]) + missing + jute.pack_texts([])
        too_long = jute.pack_text("/" + "x" * limits.PATH_CHARACTERS_MAX) + jute.pack_int(0)
        self._visit(gateway, _frame(Op.SET_WATCHES, absent) + _frame(Op.SYNC, jute.pack_text("/")))
        self._visit(gateway, _frame(Op.ADD_WATCH, too_long) * 2, index=1)
        deleted = jute.pack_long(0) + missing * 2 + jute.pack_texts([])
        self._visit(gateway, _frame(Op.SET_WATCHES, deleted), deaf_ms=300.0, index=2)
        self._visit(gateway, _frame(Op.SET_WATCHES, jute.pack_long(0) + jute.pack_int(3)), index=3)

    def _odd(self, gateway: "Gateway") -> None:
        for index, says in enumerate(
            (
                _frame(Op.RECONFIG) + _frame(77) + _auth("ip", b"") + _auth("digest", b"no colon"),
                _auth("sasl", b"") + _frame(Op.PING),
                _frame(Op.GET_DATA, b"\0\0\0\x09/"),
                _frame(Op.CREATE, b"\0\0\0\x09/") + _frame(Op.SYNC, jute.pack_text("/")),
            )
        ):
            self._visit(gateway, says, index=index)
        eager = Stranger(self, index=7)
        if self._comes(gateway, eager):
            eager.join(at_once=_frame(Op.PING))

    def _upload(self, gateway: "Gateway") -> None:
        """More long requests are begun than there is room for, and none of them is ended."""
        begin = jute.pack_int(1_000_000) + jute.REQUEST_HEADER.pack(1, Op.SET_DATA)
        for index in range(limits.UPLOAD_BYTES_MAX // 1_000_000 + 3):
            self._visit(gateway, begin, index=index)

    def _take_session(self, gateway: "Gateway") -> None:
        """One session, and others who say that it is theirs: with what it takes, and without."""
        first = self._visit(gateway, _frame(Op.SYNC, jute.pack_text("/")))
        if first is None:
            return

        def others() -> None:
            for index, (password, zxid) in enumerate(
                ((b"wrong", 0), (first.password, 1 << 60), (first.password, 0)), 1
            ):
                other = Stranger(self, index=index)
                if self._comes(gateway, other):
                    other.join(first.session, password, zxid)

        first.on_joined = lambda: self.world.after(100, others)
