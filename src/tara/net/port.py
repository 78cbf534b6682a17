"""A port: one address of this process, and the connections that others have opened to it.

It is bounded in every way that `tara.net.bounds` lists. Where there are too many connections, the one that has been
silent for the longest time has to go; where they keep too much, the one that keeps most; so those who use theirs stay.
"""

import errno
import heapq
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tara.net import bounds
from tara.net.budget import Budget
from tara.net.certificates import Guard
from tara.net.connection import Connection
from tara.net.errors import Broken, Closed, ConnectionRefused
from tara.net.large_frames import LargeFrames
from tara.net.principal import Kind

#: How often it looks for frames that do not come to their end.
_LOOK_S = 1.0
#: Connections that are gone may be remembered in `Silence`, so many more than those that are there.
_GONE_MAX = 64

#: What `accept` says if the host has no room for another connection.
_NO_ROOM = (errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

#: Is told why a connection or a frame was given up.
OnTrouble = Callable[[str], None]


class Terms(NamedTuple):
    """What holds at a port."""

    frame_bytes_max: int
    connections_max: int
    #: Who may connect; None: anybody, without keys.
    guard: Guard | None
    on_bad: OnTrouble
    #: For connections that did not come about.
    on_refused: OnTrouble
    #: Called when a connection is closed that frames had come on.
    on_gone: Callable[[bytes], None] = lambda name: None


class Incoming:
    """A connection that somebody has opened to us."""

    def __init__(self, connection: Connection, name: bytes, now_s: float) -> None:
        self.connection = connection
        #: Unlike a descriptor, it is never used again.
        self.name = name
        self.opened_s = now_s
        #: When the last complete frame came.
        self.heard_s = now_s
        #: The bytes that it kept here when that was last looked at, without the large frame that has room of its own.
        self.kept_bytes = 0
        #: When the frame that arrives began, if one does.
        self.begun_s = 0.0
        #: The frame that arrives needs room of its own; and has none, so that it is not read.
        self.large = False
        self.paused = False
        self.in_handshake = False
        #: It was refused, and still has to read why.
        self.leaving = False
        self.events = select.EPOLLIN


class Silence:
    """Who has said nothing for the longest time. To find it costs little however many there are: when somebody was last
    heard is looked at only when it seems to be its turn to go. It knows names only: who is gone takes no room."""

    def __init__(self, there: Mapping[bytes, Incoming]) -> None:
        self._there = there
        self._heap: list[tuple[float, int, bytes]] = []

    def add(self, incoming: Incoming) -> None:
        """It is there already."""
        if len(self._heap) > 2 * len(self._there) + _GONE_MAX:
            self._heap = [_entry(other) for other in self._there.values()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, _entry(incoming))

    def longest(self) -> Incoming | None:
        while self._heap:
            heard_s, _, name = self._heap[0]
            incoming = self._there.get(name)
            if incoming is None:
                heapq.heappop(self._heap)
            elif incoming.heard_s > heard_s:
                heapq.heapreplace(self._heap, _entry(incoming))
            else:
                return incoming
        return None


def _entry(incoming: Incoming) -> tuple[float, int, bytes]:
    """Of two that were last heard at the same moment, the older one comes first."""
    return incoming.heard_s, int(incoming.name), incoming.name


class Port:
    def __init__(self, host: str, port: int, terms: Terms, budget: Budget) -> None:
        self._terms = terms
        self.listener = socket.socket()
        self.listener.setblocking(False)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.listener.bind((host, port))
            self.listener.listen(bounds.BACKLOG)
        except OSError:
            self.listener.close()
            raise
        bound_host, bound_port = self.listener.getsockname()[:2]
        self.address = f"tcp://{bound_host}:{bound_port}"
        self.epoll = select.epoll()
        self.epoll.register(self.listener, select.EPOLLIN)
        self._share = budget.share()
        self.connections: dict[int, Incoming] = {}
        self.by_name: dict[bytes, Incoming] = {}
        self._silence = Silence(self.by_name)
        #: Those of whom nothing is known yet, the oldest first: in a handshake, or without a frame.
        self._strangers: dict[bytes, Incoming] = {}
        #: The connections of each client that has a key, by its digest.
        self._by_client: dict[bytes, list[Incoming]] = {}
        #: Each port has room of its own for large frames: clients that send slowly keep no other site out.
        self._large = LargeFrames()
        #: Those whose handshake is not over have an epoll of their own, which is part of the other while there is time
        #: for handshakes; how much of it is left; and when that was last counted.
        self._handshakes = select.epoll()
        self._handshakes_wait = False
        self._handshake_s_left = bounds.HANDSHAKE_SAVED_S
        self._counted_s = time.monotonic()
        self.epoll.register(self._handshakes, select.EPOLLIN)
        self._early: list[tuple[bytes, list[bytes]]] = []
        #: Connections with more frames than could be taken in their turn, and what keeps the loop awake for them.
        self._left: dict[bytes, Incoming] = {}
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.epoll.register(self._awake, select.EPOLLIN)
        self._count = 0
        self._look_s = 0.0
        #: When it listens again; 0: it does.
        self._accept_due_s = 0.0

    def poll(self) -> list[tuple[int, int]]:
        """A turn begins: descriptors that have news, and which."""
        return self.epoll.poll(0, bounds.NEWS_PER_TURN)

    def take_early(self) -> list[tuple[bytes, list[bytes]]]:
        """Frames that came together with the end of a handshake, or in a former turn, as from `handle`. To be asked
        last in a turn."""
        early, self._early = self._early, []
        return early

    def handle(self, descriptor: int, events: int) -> tuple[bytes, list[bytes]]:
        """Go on with whatever has news: the frames that have come, and the name of their connection."""
        incoming = self.connections.get(descriptor)
        if incoming is None:
            if descriptor == self.listener.fileno():
                self._accept()
            elif descriptor == self._handshakes.fileno():
                self._shake_hands()
            elif descriptor == self._awake:
                self._take_left()
            return b"", []
        if incoming.leaving:
            if incoming.connection.discard():
                self.hang_up(incoming)
            return b"", []
        frames: list[bytes] = []
        try:
            if events & select.EPOLLOUT:
                incoming.connection.flush()
            # What is left of former turns comes first, and in its order.
            if events & ~select.EPOLLOUT and incoming.name not in self._left:
                frames = incoming.connection.receive()
        except Broken as broken:
            self._give_up(incoming, broken)
            return b"", []
        if frames:
            incoming.heard_s, incoming.begun_s = time.monotonic(), 0.0
            if incoming.name in self._strangers:
                self._know(incoming)
        self.look_at(incoming)
        return incoming.name, frames

    def send(self, name: bytes, frame: bytes) -> None:
        """To this connection. What it does not read in time is dropped."""
        incoming = self.by_name.get(name)
        if incoming is None or incoming.leaving:
            return
        try:
            incoming.connection.send(frame)
        except Broken:
            self.hang_up(incoming)
            return
        if incoming.connection.unsent_bytes:
            self.look_at(incoming)

    def _accept(self) -> None:
        """Take the connections that wait, but not so many that others have to."""
        for _ in range(bounds.ACCEPTED_PER_TURN):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EMFILE:
                    self._make_room(str(error))
                    return
                if error.errno in _NO_ROOM:
                    self._pause_accepting(str(error))
                    return
                # That one was gone before it was here.
                continue
            if len(self.connections) >= self._terms.connections_max:
                self._make_room("too many connections")
            if self._terms.guard is not None and len(self._strangers) >= bounds.HANDSHAKES_MAX:
                self._refuse(next(iter(self._strangers.values())), "too many handshakes at once")
            try:
                self._add(sock)
            except OSError as error:
                # It has been reset meanwhile.
                sock.close()
                self._terms.on_bad(str(error))

    def _pause_accepting(self, reason: str) -> None:
        """The whole host has no room: no connection of ours is to blame, and to look again at once would be to spin."""
        self._terms.on_bad(reason)
        self.epoll.unregister(self.listener)
        self._accept_due_s = time.monotonic() + bounds.ACCEPT_PAUSE_S

    def _shake_hands(self) -> None:
        """Go on with some handshakes, if there is time for them."""
        self._count_handshake_time()
        if self._handshakes_wait:
            return
        for descriptor, _ in self._handshakes.poll(0, bounds.HANDSHAKES_PER_TURN):
            incoming = self.connections[descriptor]
            began_s = time.monotonic()
            try:
                if incoming.connection.waits_to_write:
                    incoming.connection.flush()
                frames = incoming.connection.receive()
            except Broken as broken:
                self._give_up(incoming, broken)
                continue
            finally:
                self._handshake_s_left -= time.monotonic() - began_s
            if incoming.connection.open:
                self._handshakes.unregister(incoming.connection)
                incoming.in_handshake = False
                self.epoll.register(incoming.connection, incoming.events)
                incoming.heard_s = time.monotonic()
                self._know(incoming)
                if frames:
                    self._early.append((incoming.name, frames))
                self.look_at(incoming)
        self._count_handshake_time()

    def _count_handshake_time(self) -> None:
        """Others have their turn when the share of the time is used up."""
        now_s = time.monotonic()
        saved_s = self._handshake_s_left + (now_s - self._counted_s) * bounds.HANDSHAKE_SHARE
        self._handshake_s_left, self._counted_s = min(saved_s, bounds.HANDSHAKE_SAVED_S), now_s
        wait = self._handshake_s_left <= 0
        if wait and not self._handshakes_wait:
            self.epoll.unregister(self._handshakes)
        elif self._handshakes_wait and not wait:
            self.epoll.register(self._handshakes, select.EPOLLIN)
        self._handshakes_wait = wait

    def _add(self, sock: socket.socket) -> None:
        guard = self._terms.guard
        connection = Connection(sock, self._terms.frame_bytes_max, None if guard is None else guard.accepting)
        connection.frames_max = bounds.FRAMES_PER_TURN
        self._count += 1
        incoming = Incoming(connection, b"%d" % self._count, time.monotonic())
        incoming.in_handshake = guard is not None
        (self._handshakes if incoming.in_handshake else self.epoll).register(sock, select.EPOLLIN)
        self.connections[sock.fileno()] = self.by_name[incoming.name] = self._strangers[incoming.name] = incoming
        self._silence.add(incoming)

    def _know(self, incoming: Incoming) -> None:
        """It is no stranger any more."""
        del self._strangers[incoming.name]
        principal = incoming.connection.principal
        if principal.kind is Kind.CLIENT:
            others = self._by_client.setdefault(principal.digest, [])
            others.append(incoming)
            if len(others) > bounds.CLIENT_CONNECTIONS_MAX:
                self._terms.on_bad("too many connections of one client")
                # Never this one: whoever made it known goes on with it.
                self.hang_up(min(others[:-1], key=lambda other: other.heard_s))

    def _make_room(self, reason: str) -> None:
        self._terms.on_bad(reason)
        if (longest := self._silence.longest()) is not None:
            self.hang_up(longest)

    def _give_up(self, incoming: Incoming, broken: Broken) -> None:
        if isinstance(broken, ConnectionRefused):
            self._terms.on_refused(str(broken))
            self._let_leave(incoming)
            return
        if not isinstance(broken, Closed):
            self._terms.on_bad(str(broken))
        elif not incoming.connection.open:
            self._terms.on_refused("the other side closed the connection during the handshake")
        self.hang_up(incoming)

    def _refuse(self, incoming: Incoming, reason: str) -> None:
        self._terms.on_refused(reason)
        self.hang_up(incoming)

    def _let_leave(self, incoming: Incoming) -> None:
        """It has been told why; a connection that is closed at once may be lost with these words. Its time counts like
        that of a handshake."""
        incoming.leaving = True
        incoming.opened_s = time.monotonic()
        if incoming.in_handshake:
            # To wait for its end costs no more than any other connection.
            self._handshakes.unregister(incoming.connection)
            self.epoll.register(incoming.connection, incoming.events)
            incoming.in_handshake = False
        self._strangers.pop(incoming.name, None)
        self._strangers[incoming.name] = incoming
        incoming.connection.finish()
        self._end_large(incoming)
        self.look_at(incoming)

    def hang_up(self, incoming: Incoming) -> None:
        self._forget(incoming)
        incoming.connection.close()

    def give_away(self, name: bytes) -> Connection | None:
        """Let somebody else serve this connection from now on; None if it is gone, or leaving."""
        incoming = self.by_name.get(name)
        if incoming is None or incoming.leaving:
            return None
        self._forget(incoming)
        return incoming.connection

    def _forget(self, incoming: Incoming) -> None:
        (self._handshakes if incoming.in_handshake else self.epoll).unregister(incoming.connection)
        del self.connections[incoming.connection.fileno()]
        del self.by_name[incoming.name]
        if self._strangers.pop(incoming.name, None) is None:
            self._terms.on_gone(incoming.name)
        self._left.pop(incoming.name, None)
        self._forget_client(incoming)
        self._share.kept_bytes -= incoming.kept_bytes
        self._end_large(incoming)

    def _forget_client(self, incoming: Incoming) -> None:
        digest = incoming.connection.principal.digest
        others = self._by_client.get(digest)
        if others is not None and incoming in others:
            others.remove(incoming)
            if not others:
                del self._by_client[digest]

    def _take_left(self) -> None:
        """Of those that have sent too much at once, one after the other."""
        room = bounds.LEFT_FRAMES_PER_TURN
        while self._left and room > 0:
            incoming = self._left.pop(next(iter(self._left)))
            try:
                frames = incoming.connection.receive()
            except Broken as broken:
                self._give_up(incoming, broken)
                continue
            room -= len(frames)
            incoming.heard_s, incoming.begun_s = time.monotonic(), 0.0
            self._early.append((incoming.name, frames))
            self.look_at(incoming)
        if not self._left:
            os.eventfd_read(self._awake)

    def look_at(self, incoming: Incoming) -> None:
        """After anything that may have changed what it keeps here, or what it waits for."""
        connection = incoming.connection
        if connection.unread and not incoming.leaving:
            if not self._left:
                os.eventfd_write(self._awake, 1)
            self._left[incoming.name] = incoming
        if connection.kept_bytes or incoming.kept_bytes or incoming.large:
            self._look_at_arrival(incoming)
            self._weigh(incoming)
        self._set_events(incoming)
        if incoming.kept_bytes:
            self._make_room_for_bytes()

    def _weigh(self, incoming: Incoming) -> None:
        """Count what it keeps. A frame that has room of its own is counted there: it may be longer than all others may
        be together."""
        connection = incoming.connection
        has_room = incoming.large and not incoming.paused
        kept_bytes = connection.unsent_bytes if has_room else connection.kept_bytes
        self._share.kept_bytes += kept_bytes - incoming.kept_bytes
        incoming.kept_bytes = kept_bytes

    def _make_room_for_bytes(self) -> None:
        while self._share.is_over():
            greediest = max(self.connections.values(), key=lambda other: other.kept_bytes)
            if not greediest.kept_bytes:
                return
            self._terms.on_bad(f"a connection that keeps {greediest.kept_bytes} bytes here")
            self.hang_up(greediest)

    def _look_at_arrival(self, incoming: Incoming) -> None:
        """A large frame needs room before it is read to its end."""
        connection = incoming.connection
        if not incoming.begun_s:
            # Whatever was arriving has come, and this is the next one.
            self._end_large(incoming)
        if not connection.begun_bytes:
            incoming.begun_s = 0.0
            return
        if not incoming.begun_s:
            incoming.begun_s = time.monotonic()
        large = bounds.LARGE_FRAME_BYTES
        # To announce a large frame costs nothing, and is no reason for others to wait.
        if incoming.large or connection.begun_bytes < large or connection.arriving_bytes <= large:
            return
        if not connection.unread and not incoming.leaving:
            principal = connection.principal
            client = principal.digest if principal.kind is Kind.CLIENT else incoming.name
            incoming.large = True
            incoming.paused = not self._large.begin(incoming.name, client, connection.arriving_bytes)

    def _end_large(self, incoming: Incoming) -> None:
        """The large frame has come, or will not, and others may go on."""
        if not incoming.large:
            return
        incoming.large = incoming.paused = False
        for name in self._large.end(incoming.name):
            other = self.by_name[name]
            other.paused, other.begun_s = False, time.monotonic()
            self._weigh(other)
            self._set_events(other)

    def _set_events(self, incoming: Incoming) -> None:
        waits = incoming.paused or (incoming.connection.unread and not incoming.leaving)
        events = 0 if waits else select.EPOLLIN
        if incoming.connection.waits_to_write and not incoming.leaving:
            events |= select.EPOLLOUT
        if events != incoming.events:
            incoming.events = events
            self.epoll.modify(incoming.connection, events)

    def tick(self) -> None:
        """Time has passed."""
        if self._handshakes_wait:
            self._count_handshake_time()
        now_s = time.monotonic()
        for name in self._large.too_slow(now_s, self._begun_bytes):
            self._terms.on_bad("a large frame that comes slowly while others wait")
            self.hang_up(self.by_name[name])
        if self._accept_due_s and now_s >= self._accept_due_s:
            self._accept_due_s = 0.0
            self.epoll.register(self.listener, select.EPOLLIN)
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        for stranger in list(self._strangers.values()):
            if self._is_late(stranger, now_s):
                self._hang_up_late(stranger)
        for incoming in [other for other in self.connections.values() if other.begun_s and not other.paused]:
            patience_s = bounds.FRAME_S_MAX + incoming.connection.arriving_bytes / bounds.ARRIVING_BYTES_PER_S
            if now_s - incoming.begun_s > patience_s:
                self._terms.on_bad(f"a frame that is not complete after {now_s - incoming.begun_s:.0f} s")
                self.hang_up(incoming)
        self._make_room_for_bytes()

    def _begun_bytes(self, name: bytes) -> int:
        return self.by_name[name].connection.begun_bytes

    def _is_late(self, stranger: Incoming, now_s: float) -> bool:
        in_handshake = stranger.leaving or not stranger.connection.open
        return now_s - stranger.opened_s > (bounds.HANDSHAKE_S_MAX if in_handshake else bounds.FIRST_FRAME_S_MAX)

    def _hang_up_late(self, stranger: Incoming) -> None:
        if not stranger.leaving:
            what = "frame" if stranger.connection.open else "handshake"
            self._terms.on_refused(f"no {what} within {time.monotonic() - stranger.opened_s:.0f} s")
        self.hang_up(stranger)

    def stop_listening(self) -> None:
        """Accept no new connections, and close those that are still in their handshake."""
        if not self._accept_due_s:
            self.epoll.unregister(self.listener)
        self._accept_due_s = 0.0
        for incoming in [other for other in self.connections.values() if other.in_handshake]:
            self.hang_up(incoming)

    def close(self) -> None:
        for incoming in list(self.connections.values()):
            self.hang_up(incoming)
        self.listener.close()
        self._handshakes.close()
        os.close(self._awake)
        self.epoll.close()
        self._share.close()
