"""Links: how frames travel between containers.

Each container listens at one address, and has one connection to each peer on which it only sends. A link is fair-lossy:
what does not fit into a slow peer's queue, or is on its way when a connection breaks, is dropped, and sent again by the
protocol. Connections come back by themselves.
"""

import select
import time

from tara.net import bounds
from tara.net.budget import Budget
from tara.net.certificates import Keys
from tara.net.connection import Connection
from tara.net.errors import Broken, ConnectionRefused
from tara.net.names import Names
from tara.net.port import OnTrouble, Port, Terms

#: Before a broken connection is tried again; and one that was refused.
RETRY_S = 0.05
REFUSED_RETRY_S = 1.0
#: Nobody sends anything to us on our own connections, but for a word why it does not talk.
_ANSWER_BYTES_MAX = 4096


class _Outgoing:
    """The way to one peer."""

    def __init__(self, peer: int, address: str) -> None:
        self.peer = peer
        self.address = address
        self.connection: Connection | None = None
        self.retry_s = 0.0
        self.events = 0


class Links:
    def __init__(
        self,
        host: str,
        port: int,
        peers: int,
        frame_bytes_max: int,
        on_bad: OnTrouble,
        keys: Keys | None = None,
        on_refused: OnTrouble = lambda reason: None,
        budget: Budget | None = None,
    ) -> None:
        self._keys = keys
        self._on_refused = on_refused
        guard = None if keys is None else keys.members_only()
        terms = Terms(frame_bytes_max, bounds.PEERS_MAX, guard, on_bad, on_refused)
        self._port = Port(host, port, terms, budget or Budget())
        #: Where peers connect to.
        self.address = self._port.address
        self._epoll = self._port.epoll
        self._outgoing: list[_Outgoing | None] = [None] * peers
        self._by_descriptor: dict[int, _Outgoing] = {}
        self._writable: set[int] = set()
        self._names = Names()

    def fileno(self) -> int:
        """A descriptor that is readable when there is news."""
        return self._epoll.fileno()

    def connect(self, peer: int, address: str | None) -> None:
        """From now on frames for this peer go to this address; None: nowhere."""
        old = self._outgoing[peer]
        if old is not None:
            self._break(old)
        self._outgoing[peer] = None if address is None else _Outgoing(peer, address)
        self.tick()

    def tick(self) -> None:
        """Time has passed."""
        now_s = time.monotonic()
        for link in self._outgoing:
            if link is not None and link.connection is None and now_s >= link.retry_s:
                self._open(link)
        self._port.tick()

    def _open(self, link: _Outgoing) -> None:
        make_tls = None if self._keys is None else self._keys.connecting
        try:
            connection = Connection.connect(link.address, _ANSWER_BYTES_MAX, make_tls, self._names.address_of)
        except Broken:
            self._break(link)
            return
        connection.unsent_frames_max, connection.unsent_bytes_max = bounds.LINK_FRAMES_MAX, bounds.LINK_BYTES_MAX
        connection.limit_kernel_queue(bounds.LINK_NOT_SENT_BYTES)
        link.connection, link.events = connection, select.EPOLLIN | select.EPOLLOUT
        self._by_descriptor[connection.fileno()] = link
        self._epoll.register(connection, link.events)

    def _break(self, link: _Outgoing, retry_s: float = RETRY_S) -> None:
        """The connection is gone, and with it what waits."""
        if link.connection is not None:
            self._epoll.unregister(link.connection)
            del self._by_descriptor[link.connection.fileno()]
            link.connection.close()
            link.connection = None
            self._writable.add(link.peer)
        link.retry_s = time.monotonic() + retry_s

    def send(self, peer: int, frame: bytes) -> bool:
        """Whether it is on its way. It may get lost all the same."""
        link = self._outgoing[peer]
        if link is None or link.connection is None:
            return False
        try:
            taken = link.connection.send(frame)
        except Broken:
            self._break(link)
            return False
        self._set_events(link)
        return taken

    def unsent_bytes(self, peer: int) -> int:
        """What waits here because the network does not take it. See `take_writable`."""
        link = self._outgoing[peer]
        return 0 if link is None or link.connection is None else link.connection.unsent_bytes

    def take_writable(self) -> set[int]:
        """The peers for whom something waited, and nothing does any more, since this was last asked. That it is so, the
        descriptor tells; `receive` finds it out."""
        writable, self._writable = self._writable, set()
        return writable

    def _set_events(self, link: _Outgoing) -> None:
        assert link.connection is not None
        events = select.EPOLLIN | select.EPOLLOUT if link.connection.waits_to_write else select.EPOLLIN
        if events != link.events:
            link.events = events
            self._epoll.modify(link.connection, events)

    def _go_on(self, link: _Outgoing, events: int) -> None:
        """The connection has come about, or takes more, or is broken."""
        assert link.connection is not None
        waited = link.connection.unsent_bytes
        try:
            if events & select.EPOLLOUT:
                link.connection.flush()
            if events & ~select.EPOLLOUT and link.connection.receive():
                raise Broken("a peer answers on a link")
        except Broken as broken:
            if isinstance(broken, ConnectionRefused):
                self._on_refused(f"{link.address}: {broken}")
            self._break(link, REFUSED_RETRY_S if isinstance(broken, ConnectionRefused) else RETRY_S)
            return
        if waited and not link.connection.unsent_bytes:
            self._writable.add(link.peer)
        self._set_events(link)

    def receive(self) -> list[bytes]:
        """The frames that have arrived, in the order of each sender."""
        frames: list[bytes] = []
        port, outgoing = self._port, self._by_descriptor
        for descriptor, events in port.poll():
            link = outgoing.get(descriptor)
            if link is None:
                frames += port.handle(descriptor, events)[1]
            else:
                self._go_on(link, events)
        for _, early in port.take_early():
            frames += early
        return frames

    def close(self) -> None:
        for link in self._outgoing:
            if link is not None:
                self._break(link)
        self._port.close()
