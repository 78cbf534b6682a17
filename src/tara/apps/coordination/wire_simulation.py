"""ZooKeeper's wire protocol in the simulator: the real front end of each site, and clients that talk to it in bytes.

What a client must be able to rely on, whatever happens to sites and connections, and what is checked here:

- answers come in the order of the requests, each to whom it was for;
- the zxids that a client sees never go back, also when it comes back with its session through another site;
- a client reads its own writes; a write of an old connection does not happen after those of a newer one;
- who watches a node hears that it changed before it sees the change.
"""

import random
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tara.apps.coordination import jute
from tara.apps.coordination.acl import OPEN
from tara.apps.coordination.codes import ALL, Code, Event, Mode, Op
from tara.apps.coordination.gateway.connection import Connection
from tara.apps.coordination.gateway.front_end import FrontEnd
from tara.apps.coordination.jute import Reader
from tara.apps.coordination.settings import gateway_settings
from tara.apps.coordination.wire_nuisances import Nuisances, Stranger
from tara.net.gateway import Options
from tara.protocol import tuples as t
from tara.simulator.checks.byte_bounds import Kept
from tara.simulator.checks.linearizability import Operation
from tara.simulator.gateways import GatewaySite

if TYPE_CHECKING:
    from tara.simulator.world import World

PING_XID, NOTIFICATION_XID, SET_WATCHES_XID, AUTH_XID = -2, -1, -8, -4
TICK_TIME_MS = 300
TIMEOUT_MS = 2_000
#: A client that hears nothing for so much of its time-out tries another site; it pings after so much.
SILENCE = 2 / 3
PING = 1 / 3
#: In so many runs, gateways have so much of the room that they usually have.
CRAMPED_SHARE = 0.3
CRAMPED = 1 / 4_000
#: So many gateways are so slow that a turn is over before all is done: so much time passes at each look at the clock.
SLUGGISH_SHARE = 0.3
SLUGGISH_S = 1e-4
#: What every client watches.
WATCHED = "/watched"
WORDS = (b"ruok", b"mntr", b"srvr", b"conf", b"envi", b"isro", b"wchs", b"stat", b"cons", b"dump", b"wchc", b"wchp")


def watches_max(seed: int) -> int:
    """What a connection may watch. The same everywhere: what a client may watch at one front end, it may watch at the
    next."""
    return random.Random(f"watches-{seed}").choice((50_000, 50_000, 4))


class Caller(Protocol):
    """Who has a connection."""

    index: int

    def room(self, count: int) -> int: ...
    def hear(self, data: bytes) -> None: ...
    def lose(self, link: "Link") -> None: ...


class Link:
    """One connection between a client and a front end: bytes arrive in their order, after a while, in pieces."""

    def __init__(self, world: "World", client: Caller, gateway: "Gateway", draw: random.Random | None = None) -> None:
        self._world = world
        self._draw = draw or world.draw
        self.client: Caller | None = client
        self.gateway: Gateway | None = gateway
        self.connection: Connection | None = None
        self._to_gateway_ms = self._to_client_ms = 0.0

    def _later(self, not_before_ms: float) -> float:
        return max(not_before_ms, self._world.now_ms + self._world.plan.delay_ms * (0.5 + self._draw.random()))

    def send(self, data: bytes) -> None:
        """To the front end."""
        draw = self._draw
        cut = draw.randrange(len(data) + 1) if draw.random() < 0.2 else len(data)
        for piece in (data[:cut], data[cut:]):
            if piece:
                self._to_gateway_ms = self._later(self._to_gateway_ms)
                self._world.at(self._to_gateway_ms, self._arrive, piece)

    def _arrive(self, data: bytes) -> None:
        if self.gateway is not None:
            self.gateway.hear(self, data)

    def answer(self, data: bytes) -> None:
        """To the client."""
        self._to_client_ms = self._later(self._to_client_ms)
        self._world.at(self._to_client_ms, self._hear, data)

    def _hear(self, data: bytes) -> None:
        if self.client is not None:
            self.client.hear(data)

    def break_off(self) -> None:
        """The front end is gone, or has closed it; the client notices when it has got what was on its way."""
        self.gateway = None
        self._world.at(self._later(self._to_client_ms), self._tell)

    def _tell(self) -> None:
        if self.client is not None:
            self.client.lose(self)

    def hang_up(self) -> None:
        """The client does not want it any more."""
        self.client = None
        self._world.at(self._later(self._to_gateway_ms), self._end)

    def _end(self) -> None:
        if self.gateway is not None:
            self.gateway.lose(self)


class Gateway:
    """The front end of one life of a site, with links instead of sockets."""

    def __init__(self, world: "World", site: GatewaySite) -> None:
        self._world = world
        self._site = site
        options: Options = {
            "tick_time_ms": TICK_TIME_MS,
            "collect_interval_ms": 1_000,
            "max_client_connections": world.draw.choice((0, 0, 8)),
            "watches_per_connection_max": watches_max(world.plan.seed),
            "four_letter_words": "*",
        }
        #: How much time passes when it looks at the clock.
        self._step_s = world.draw.choice((0.0, 0.0, 2e-6))
        self._now_s = 0.0
        draw = random.Random(f"sluggish-{world.plan.seed}-{site.site}")
        if draw.random() < SLUGGISH_SHARE:
            world.count_fault("sluggish_gateway")
            self._step_s = SLUGGISH_S
        if draw.random() < 0.5:
            options["four_letter_words"] = "ruok,srvr,isro,mntr,conf,envi,wchs"
        self.front_end = FrontEnd(site, gateway_settings(options), self._look, world.draw.randbytes)
        if random.Random(f"cramped-{world.plan.seed}").random() < CRAMPED_SHARE:
            world.count_fault("cramped_gateway")
            self.front_end.pressure.share = CRAMPED
        self._inbox: deque[tuple[Link, bytes | None]] = deque()
        #: Something has come since it last looked.
        self._heard = False
        self._links: dict[Connection, Link] = {}

    def _look(self) -> float:
        self._now_s = max(self._world.now_ms / 1e3, self._now_s + self._step_s)
        return self._now_s

    @property
    def busy(self) -> bool:
        return self.front_end.busy or self._heard

    @property
    def serving(self) -> bool:
        return self.front_end.serving

    def connect(self, link: Link) -> bool:
        """Whether it may."""
        connection = self.front_end.admit(f"client-{link.client.index if link.client else 0}", 1)
        if connection is None:
            return False
        link.connection, self._links[connection] = connection, link
        return True

    def hear(self, link: Link, data: bytes) -> None:
        self._inbox.append((link, data))
        self._heard = True
        self._site.wake()

    def lose(self, link: Link) -> None:
        self._inbox.append((link, None))
        self._heard = True
        self._site.wake()

    def receive(self) -> None:
        front_end = self.front_end
        front_end.begin()
        waiting: deque[tuple[Link, bytes | None]] = deque()
        muted: set[Link] = set()
        while self._inbox:
            link, data = self._inbox.popleft()
            connection = link.connection
            if connection is None or connection.closed:
                continue
            if data is None:
                front_end.drop(connection)
            elif link in muted or not front_end.may_read(connection):
                muted.add(link)
                waiting.append((link, data))
            else:
                try:
                    front_end.receive(connection, data)
                except Exception as error:
                    front_end.fail(connection, error)
        self._inbox, self._heard = waiting, False
        front_end.received_all()
        self._flush()

    def take(self, results: list[t.Result]) -> None:
        self.front_end.take(results)

    def respond(self, now_s: float) -> None:
        self.front_end.respond(now_s)
        self._flush()
        if self.front_end.fault:
            self._world.monitor.violation("gateway", f"site {self._site.site}: {self.front_end.fault}")
        self._recount()

    def _recount(self) -> None:
        """What is held for all connections is what is held for each of them."""
        connections, pressure = self.front_end.connections, self.front_end.pressure
        for what, counted, noted in (
            ("unsent", sum([connection.unsent for connection in connections]), pressure.unsent),
            ("unsent, as weighed", sum([connection.weighed_out for connection in connections]), pressure.unsent),
            ("held, as weighed", sum([connection.weighed for connection in connections]), pressure.held),
        ):
            kept = Kept(f"{what} at the front end", counted, noted, noted)
            self._world.monitor.require(kept.holds, "bytes", "{} keeps {}", self._site.site, kept)

    def _flush(self) -> None:
        front_end = self.front_end
        unsettled, front_end.unsettled = front_end.unsettled, set()
        # In the order in which they were opened, several perhaps at one time: a set has another order in each process.
        for connection, link in list(self._links.items()):
            if connection not in unsettled or connection.closed:
                continue
            before = len(connection.out)
            taken = link.client.room(before) if link.client is not None else before
            if taken:
                link.answer(bytes(connection.out[:taken]))
                del connection.out[:taken]
            if connection.out:
                # It is told again when there may be room.
                front_end.unsettled.add(connection)
            front_end.flushed(connection, taken > 0 or not before)
        for connection in front_end.dropped:
            gone = self._links.pop(connection, None)
            if gone is not None:
                gone.break_off()
        front_end.dropped = []

    def close(self) -> None:
        self.front_end.close()
        self._flush()


class Sent:
    """A request without an answer."""

    def __init__(self, xid: int, op: int, at_ms: float, check: Callable[[int, Reader, int], None] | None) -> None:
        self.xid = xid
        self.op = op
        self.at_ms = at_ms
        #: Is told the error, the body and the zxid of the answer.
        self.check = check


class ZooKeeperWire:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.gateways: dict[int, Gateway] = {}

    def clients(self, count: int) -> Sequence["ZooKeeperClient"]:
        Nuisances(self._world, self).schedule()
        return [ZooKeeperClient(index, self._world, self) for index in range(count)]

    def link(self, stranger: Stranger, gateway: Gateway, draw: random.Random) -> Link:
        return Link(self._world, stranger, gateway, draw)

    def open(self, site: GatewaySite) -> Gateway:
        gateway = self.gateways[site.site] = Gateway(self._world, site)
        return gateway


class ZooKeeperClient:
    """What it may expect is in what it remembers of its session: the last zxid, its own node, and its watch."""

    def __init__(self, index: int, world: "World", wire: ZooKeeperWire) -> None:
        self.index = index
        self._world = world
        self._wire = wire
        self._draw = world.draw
        self.history: list[Operation] = []
        self.answered = 0
        self._left = world.plan.commands_per_client
        self._next_ms = 100.0 + 7 * index
        self._paused_until_ms = 0.0
        self._burst = self._poison = 0
        self._site = index % world.graph.sites
        #: Since when it has not been served; and whether it is, on this connection.
        self._since_ms = 0.0
        self._served = False
        self._own = f"/own-{index}"
        #: What former lives have written there whose sessions live on, and nobody knows whether it has happened.
        self._abandoned: set[int] = set()
        self._number = 0
        self._forget()

    def _forget(self) -> None:
        """It has no session, and nothing to rely on."""
        self._link: Link | None = None
        self._joined = False
        self._in = b""
        self._xid = 0
        self._pending: deque[Sent] = deque()
        self._pings: deque[float] = deque()
        self._session, self._password, self._zxid = 0, bytes(16), 0
        self._heard_ms = self._sent_ms = 0.0
        #: What its own node can say: what it has read or written last, and what may have been written since.
        self._known: int | None = None
        self._possible: set[int] = set()
        #: What the node that it watches was when it left the watch there; None: it has none.
        self._watched: int | None = None

    @property
    def done(self) -> bool:
        return self._left <= 0 and not self._pending

    @property
    def in_flight(self) -> Sequence[int]:
        return [sent.xid for sent in self._pending]

    @property
    def waiting_since_ms(self) -> float:
        if self.done:
            return float("inf")
        return min((sent.at_ms for sent in self._pending), default=float("inf") if self._joined else self._since_ms)

    def restart(self, orderly: bool = False) -> None:
        """Its process died, or forgot to end its session: that lives on for a while, and its next life begins anew."""
        self._hang_up()
        # What it wrote may still happen, also when its next life has written more.
        self._abandoned |= self._possible
        possible = {*self._possible, *(() if self._known is None else (self._known,))}
        self._forget()
        self._possible = possible
        self._since_ms = self._world.now_ms

    def pause(self, until_ms: float) -> None:
        self._paused_until_ms = until_ms

    def burst(self) -> None:
        self._burst = 40

    def poison(self) -> None:
        self._poison += 1

    def finish(self) -> None:
        self._hang_up()

    def room(self, count: int) -> int:
        """How much it takes now of what is to be sent to it."""
        return 0 if self._world.now_ms < self._paused_until_ms and self._draw.random() < 0.8 else count

    def wake(self, now_ms: float) -> None:
        if now_ms < self._paused_until_ms or self.done:
            return
        if self._link is None:
            if now_ms >= self._next_ms:
                self._connect(now_ms)
            return
        if now_ms - self._heard_ms > SILENCE * TIMEOUT_MS:
            self._world.count_fault("client_retry")
            self._hang_up()
            return
        if not self._joined:
            return
        if now_ms - self._sent_ms > PING * TIMEOUT_MS:
            self._pings.append(now_ms)
            self._write(PING_XID, Op.PING)
        if self._left > 0 and (now_ms >= self._next_ms or self._burst):
            for _ in range(max(self._burst, 1)):
                if self._left > 0 and len(self._pending) < max(self._world.plan.pipeline, self._burst):
                    self._left -= 1
                    self._say_next(now_ms)
            self._burst = 0
            self._next_ms = now_ms + self._draw.expovariate(1 / self._world.plan.think_ms)

    def _connect(self, now_ms: float) -> None:
        self._next_ms = now_ms + 50
        self._site = (self._site + 1) % self._world.graph.sites
        gateway = self._wire.gateways.get(self._site)
        if gateway is None or not self._world.serves(self._site):
            return
        link = Link(self._world, self, gateway)
        if not gateway.connect(link):
            return
        self._link, self._heard_ms, self._sent_ms = link, now_ms, now_ms
        self._in = b""
        self._poke(link)
        body = struct.pack(">iqiq", 0, self._zxid, TIMEOUT_MS, self._session)
        body += jute.pack_buffer(self._password) + b"\0"
        link.send(jute.pack_int(len(body)) + body)

    def _poke(self, link: Link) -> None:
        """Somebody else, who does not keep to the rules, or has a question, on a connection of its own."""
        draw = self._draw
        if draw.random() > 0.3 or link.gateway is None:
            return
        stranger = Link(self._world, self, link.gateway)
        if not link.gateway.connect(stranger):
            return
        stranger.client = None
        garbage = draw.choice(
            (
                draw.choice(WORDS),
                draw.choice(WORDS),
                draw.randbytes(draw.randrange(1, 80)),
                jute.pack_int(draw.choice((-5, 1 << 30, 3))) + draw.randbytes(8),
                jute.pack_int(44) + draw.randbytes(20),
            )
        )
        stranger.send(garbage)
        if draw.random() < 0.5:
            stranger.hang_up()

    def _hang_up(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            link.hang_up()
            self._end_connection()

    def lose(self, link: Link) -> None:
        """The front end has closed the connection."""
        if link is self._link:
            self._link = None
            self._end_connection()

    def _end_connection(self) -> None:
        """What is on its way may happen, but not once it has come back: then only what it says from there on."""
        self._pending.clear()
        self._pings.clear()
        self._joined = False
        if self._served:
            # A connection on which nothing was answered changes nothing.
            self._since_ms, self._served = self._world.now_ms, False
        self._next_ms = self._world.now_ms + self._draw.randrange(5, 60)

    def _write(self, xid: int, op: int, body: bytes = b"") -> None:
        if self._link is not None:
            self._sent_ms = self._world.now_ms
            self._link.send(jute.pack_int(8 + len(body)) + jute.REQUEST_HEADER.pack(xid, op) + body)

    def _request(self, op: int, body: bytes = b"", check: Callable[[int, Reader, int], None] | None = None) -> None:
        self._xid += 1
        self._pending.append(Sent(self._xid, op, self._world.now_ms, check))
        self._write(self._xid, op, body)

    def _say_next(self, now_ms: float) -> None:
        if self._poison > 0:
            # Something that is no request of this protocol.
            self._poison -= 1
            op = self._draw.choice((Op.CREATE, Op.SET_DATA, Op.MULTI, Op.GET_DATA, Op.SET_WATCHES, Op.RECONFIG, 77))
            self._request(op, self._draw.randbytes(self._draw.randrange(20)))
            return
        kind = self._draw.random()
        if kind < 0.2:
            self._set_own()
        elif kind < 0.4:
            self._request(Op.GET_DATA, jute.pack_text(self._own) + b"\0", self._check_own())
        elif kind < 0.55:
            self._request(Op.EXISTS, jute.pack_text(WATCHED) + b"\1", self._check_watched())
        elif kind < 0.65:
            self._change_watched()
        else:
            self._anything()

    def _create(self, path: str, data: bytes, mode: int) -> bytes:
        return jute.pack_text(path) + jute.pack_buffer(data) + jute.pack_acl(OPEN) + jute.pack_int(mode)

    def _set_own(self) -> None:
        """Only this client writes there, higher and higher numbers."""
        self._number += 1
        number, data = self._number, b"%d" % self._number
        if self._draw.random() < 0.05:
            data += b" " * self._draw.randrange(3_000, 9_000)
        self._possible.add(number)

        def check(error: int, reader: Reader, zxid: int) -> None:
            if error == Code.OK:
                self._known = number
                self._possible = {later for later in self._possible if later > number}
            else:
                self._require(error == Code.NO_NODE, f"a write to {self._own} was answered {error}")
                self._possible.discard(number)

        self._request(Op.SET_DATA, jute.pack_text(self._own) + jute.pack_buffer(data) + jute.pack_int(-1), check)

    def _check_own(self) -> Callable[[int, Reader, int], None]:
        def check(error: int, reader: Reader, zxid: int) -> None:
            if error == Code.NO_NODE:
                return
            self._require(error == Code.OK, f"a read of {self._own} was answered {error}")
            number = int(reader.buffer() or b"0")
            possible = self._possible | self._abandoned
            allowed = self._known is None or number == self._known or number in possible
            self._require(allowed, f"{self._own} is {number}, not {self._known} or one of {possible}")
            self._known = number
            self._abandoned.discard(number)
            self._possible = {later for later in self._possible if later > number}

        return check

    def _check_watched(self) -> Callable[[int, Reader, int], None]:
        def check(error: int, reader: Reader, zxid: int) -> None:
            if error == Code.THROTTLED_OP:
                return
            self._require(error in (Code.OK, Code.NO_NODE), f"exists was answered {error}")
            seen = jute.Stat.read(reader).mzxid if error == Code.OK else 0
            self._require(
                self._watched is None or self._watched == seen,
                f"{WATCHED} is of zxid {seen}, was of {self._watched}, and no event has come",
            )
            self._watched = seen

        return check

    def _change_watched(self) -> None:
        kind = self._draw.random()
        if kind < 0.3:
            self._request(Op.CREATE, self._create(WATCHED, b"", Mode.PERSISTENT))
        elif kind < 0.8:
            self._request(Op.SET_DATA, jute.pack_text(WATCHED) + jute.pack_buffer(b"x") + jute.pack_int(-1))
        else:
            self._request(Op.DELETE, jute.pack_text(WATCHED) + jute.pack_int(-1))

    def _anything(self) -> None:
        draw = self._draw
        path = "/" + "/".join(draw.choice("abc") for _ in range(draw.randrange(1, 4)))
        text, flag = jute.pack_text(path), draw.choice((b"\0", b"\1"))
        version = jute.pack_int(draw.choice((-1, -1, 0)))
        requests: list[tuple[int, bytes]] = [
            (Op.CREATE2, self._create(path, b"data", draw.randrange(5))),
            (Op.CREATE, self._create(path, b"data", draw.randrange(4))),
            (Op.CREATE_TTL, self._create(path, b"", Mode.PERSISTENT_WITH_TTL) + jute.pack_long(500)),
            (Op.CREATE_CONTAINER, self._create(path, b"", Mode.CONTAINER)),
            (Op.DELETE, text + version),
            (Op.GET_CHILDREN, text + flag),
            (Op.GET_CHILDREN2, text + flag),
            (Op.GET_DATA, text + flag),
            (Op.GET_ACL, text),
            (Op.SET_ACL, text + jute.pack_acl(((ALL, "world", "anyone"),)) + version),
            (Op.SYNC, text),
            (Op.CHECK, text + version),
            (Op.GET_EPHEMERALS, text),
            (Op.GET_ALL_CHILDREN_NUMBER, text),
            (Op.WHO_AM_I, b""),
            (Op.AUTH, jute.pack_int(0) + jute.pack_text("digest") + jute.pack_buffer(b"me:secret")),
            (Op.ADD_WATCH, text + jute.pack_int(draw.choice((0, 1, 1, 7)))),
            (Op.REMOVE_WATCHES, text + jute.pack_int(draw.choice((1, 2, 3, 9)))),
            (Op.CHECK_WATCHES, text + jute.pack_int(3)),
            (Op.MULTI_READ, _multi([(Op.GET_DATA, text + b"\0"), (Op.GET_CHILDREN, text + b"\0")])),
            (Op.MULTI, _multi([(Op.CREATE, self._create(path, b"", 0)), (Op.CHECK, text + version)])),
            (Op.SET_WATCHES, self._pack_watches(self._watches(2))),
            (Op.CLOSE_SESSION, b""),
        ]
        op, body = draw.choice(requests)
        self._request(op, body)

    def _watches_that_it_had(self) -> bytes:
        """For a front end that does not know. They are no more than it may have: else it would be refused, there and
        everywhere, whenever it came back."""
        parts, left = self._watches(5), watches_max(self._world.plan.seed)
        for part in parts:
            del part[left:]
            left -= len(part)
        return self._pack_watches(parts)

    def _pack_watches(self, parts: list[list[str]]) -> bytes:
        return jute.pack_long(self._zxid) + b"".join(jute.pack_texts(part) for part in parts)

    def _watches(self, lists: int) -> list[list[str]]:
        """What it might have watches on: the node that it watches first, and others."""
        draw = self._draw
        some = [f"/{one}" for one in "abc"]
        watched = [WATCHED] if self._watched else []
        absent = [WATCHED] if self._watched == 0 else []
        parts = [[*watched, *draw.sample(some, 1)], [*absent, *draw.sample(some, 1)], draw.sample(some, 2)]
        if lists > 2:
            parts += [draw.sample(some, 1), draw.sample(some, 1)]
        return parts

    def hear(self, data: bytes) -> None:
        self._heard_ms = self._world.now_ms
        self._in += data
        while len(self._in) >= 4:
            length = jute.unpack_int(self._in)[0]
            if len(self._in) < 4 + length:
                return
            frame, self._in = self._in[4 : 4 + length], self._in[4 + length :]
            if self._joined:
                self._take(frame)
            else:
                self._join(frame)
            if self._link is None:
                return

    def _join(self, frame: bytes) -> None:
        reader = Reader(frame)
        reader.number()
        timeout_ms, session, password = reader.number(), reader.long(), reader.buffer() or b""
        if timeout_ms <= 0:
            # Its session has ended: it begins anew.
            known, possible = self._known, self._possible
            self._hang_up()
            self._forget()
            # Nothing that it sent before can happen any more.
            self._known = None
            self._possible = {*possible, *(() if known is None else (known,))}
            self._since_ms = self._world.now_ms
            return
        self._require(self._session in (0, session), f"came back with session {session}, not {self._session}")
        self._session, self._password, self._joined = session, password, True
        fresh = self._known is None
        if self._watched is not None or self._draw.random() < 0.3:
            self._write(SET_WATCHES_XID, Op.SET_WATCHES2, self._watches_that_it_had())
        if fresh:
            self._request(Op.CREATE, self._create(self._own, b"0", Mode.PERSISTENT))
        else:
            # What older connections left on their way shows in the first read, or never.
            self._request(Op.SYNC, jute.pack_text("/"), lambda *_: None)
            self._request(Op.GET_DATA, jute.pack_text(self._own) + b"\0", self._settle())

    def _settle(self) -> Callable[[int, Reader, int], None]:
        before = set(self._possible)
        read = self._check_own()

        def check(error: int, reader: Reader, zxid: int) -> None:
            read(error, reader, zxid)
            self._possible -= before

        return check

    def _take(self, frame: bytes) -> None:
        xid, zxid, error = jute.REPLY_HEADER.unpack_from(frame)
        reader = Reader(frame, jute.REPLY_HEADER.size)
        if xid == NOTIFICATION_XID:
            event, _, path = Event(reader.number()), reader.number(), reader.text()
            if path == WATCHED and event is not Event.CHILDREN_CHANGED:
                self._watched = None
            return
        self._require(zxid >= self._zxid, f"zxid {zxid} after {self._zxid}")
        self._zxid = zxid
        if xid == PING_XID:
            self._require(bool(self._pings), "an answer to no ping")
            self._pings.popleft()
            self._served = True
            return
        if xid == SET_WATCHES_XID:
            return
        self._served = True
        self._require(bool(self._pending), f"an answer to request {xid}, and none is open")
        sent = self._pending.popleft()
        self._require(sent.xid == xid, f"an answer to request {xid}, {sent.xid} is next")
        self.answered += 1
        self._world.monitor.checks["wire"] += 1
        self._require(error != Code.SESSION_MOVED, "its session moved, and it did not move it")
        if sent.check is not None and error not in (Code.SESSION_EXPIRED, Code.THROTTLED_OP):
            sent.check(error, reader, zxid)
        if sent.op == Op.CLOSE_SESSION and error == Code.OK:
            self._hang_up()
            possible = {*self._possible, *(() if self._known is None else (self._known,))}
            self._forget()
            self._possible = possible
            self._since_ms = self._world.now_ms

    def _require(self, condition: bool, detail: str) -> None:
        self._world.monitor.require(condition, "wire", "{}", f"client {self.index}: {detail}")


def _multi(parts: list[tuple[int, bytes]]) -> bytes:
    body = b"".join(jute.MULTI_HEADER.pack(op, False, -1) + part for op, part in parts)
    return body + jute.MULTI_HEADER.pack(-1, True, -1)
