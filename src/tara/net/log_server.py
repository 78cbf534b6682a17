"""Serves the decided log of a site to readers, on a thread of its own.

A front end gives the connections of readers away to it, so what they read passes the container's loop by. It answers
one request of a reader after the other, and does not look at the next one before the answer is gone: who does not read
keeps one piece here, and his place, until somebody else needs that. All of them together get a share of one processor.
"""

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tara.net import bounds
from tara.net import log_wire as wire
from tara.net.connection import Connection
from tara.net.errors import Broken
from tara.net.log_wire import LogReply, LogRequest
from tara.net.principal import Principal
from tara.net.server import Server
from tara.protocol.errors import TaraError
from tara.storage.log_blocks import LogBlocks, LogBounds, Place
from tara.storage.log_format import LogIdentity

#: How often it looks whether it has to end.
_POLL_S = 0.5
_TOO_MANY = "too many readers of the log"
_LONG = "a reader of the log: a long request"

#: Whether somebody may read the log.
Admits = Callable[[Principal], bool]


class _Reader:
    def __init__(self, connection: Connection, blocks: LogBlocks, requests: list[bytes], admitted: bool) -> None:
        self.connection = connection
        #: When it came: who was not has to go before those who were.
        self.admitted = admitted
        self.blocks = blocks
        #: That came before the connection was given away.
        self.requests = deque(requests)
        self.heard_s = time.monotonic()
        self.events = 0
        #: It may have a request here, and waits for its turn.
        self.ready = False


class LogServer:
    def __init__(
        self,
        directory: Path,
        admits: Admits,
        front_ends: Callable[[], list[str]],
        on_bad: Callable[[str], None],
    ) -> None:
        """`front_ends` tells where those of all sites are. `on_bad` is told, on the thread, of requests that are none,
        and of what went wrong."""
        self._directory = directory
        self._admits = admits
        self._front_ends = front_ends
        self._on_bad = on_bad
        #: Connections that are given to it, and what has come on them.
        self._given: deque[tuple[Connection, list[bytes]]] = deque()
        self._readers: dict[int, _Reader] = {}
        #: Those who have a request here that was not looked at.
        self._ready: deque[_Reader] = deque()
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        #: For the time in which nobody is served.
        self._woken = select.poll()
        self._woken.register(self._wake, select.POLLIN)
        self._thread: threading.Thread | None = None
        self._left_s = bounds.LOG_SAVED_S
        self._counted_s = time.monotonic()

        #: Processor time that it has used, and requests that it has answered.
        self.used_s = 0.0
        self.answered = 0

    @property
    def readers(self) -> int:
        return len(self._readers)

    @property
    def kept_bytes(self) -> int:
        """What waits for readers."""
        return sum(reader.connection.kept_bytes for reader in list(self._readers.values()))

    def take_readers(self, front_end: Server, received: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Whoever asks for the log is served here from now on. Of what a front end has received, returns the rest.
        Called by the thread of the front end."""
        if not any(wire.is_log_request(message) for _, message in received):
            return received
        readers: dict[bytes, list[bytes]] = {}
        rest = []
        for name, message in received:
            if name in readers or wire.is_log_request(message):
                readers.setdefault(name, []).append(message)
            else:
                rest.append((name, message))
        for name, messages in readers.items():
            connection = front_end.give_away(name)
            if connection is None:
                continue
            if sum(map(len, messages)) > bounds.LOG_REQUEST_BYTES_MAX:
                self._turn_away(connection, _LONG)
            else:
                self._take(connection, messages)
        return rest

    def _take(self, connection: Connection, messages: list[bytes]) -> None:
        if self._thread is None:
            # Most sites never have a reader.
            self._thread = threading.Thread(target=self._serve, name="log-server", daemon=True)
            self._thread.start()
        self._given.append((connection, messages))
        if len(self._given) > bounds.READERS_OF_THE_LOG_MAX:
            # The thread takes them from the same end, and may have been quicker.
            with contextlib.suppress(IndexError):
                self._turn_away(self._given.popleft()[0], _TOO_MANY)
        os.eventfd_write(self._wake, 1)

    def _turn_away(self, connection: Connection, reason: str) -> None:
        self._on_bad(reason)
        connection.close()

    def stop(self) -> None:
        self._stopping = True
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        for connection, _ in self._given:
            connection.close()
        self._epoll.close()
        os.close(self._wake)

    def _serve(self) -> None:
        """The thread."""
        while not self._stopping:
            if owed_s := self._owed_s():
                # Whoever comes meanwhile is welcome: who has to go for him is known at once.
                self._woken.poll(min(owed_s, _POLL_S) * 1e3)
            for descriptor, events in self._epoll.poll(0.0 if self._ready else _POLL_S):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                    self._welcome()
                elif (reader := self._readers.get(descriptor)) is not None:
                    self._go_on(reader, events)
            self._answer_ready()
        for reader in list(self._readers.values()):
            self._drop(reader)

    def _owed_s(self) -> float:
        """How long nobody is served, because they have used up their share of the time."""
        now_s = time.monotonic()
        saved_s = self._left_s + (now_s - self._counted_s) * bounds.LOG_SHARE
        self._left_s, self._counted_s = min(saved_s, bounds.LOG_SAVED_S), now_s
        return max(-self._left_s / bounds.LOG_SHARE, 0.0)

    def _welcome(self) -> None:
        while self._given:
            connection, messages = self._given.popleft()
            connection.frames_max = 1
            admitted = self._admits(connection.principal)
            reader = _Reader(connection, LogBlocks(self._directory), messages, admitted)
            self._readers[connection.fileno()] = reader
            self._epoll.register(connection, 0)
            self._make_ready(reader)
            if len(self._readers) > bounds.READERS_OF_THE_LOG_MAX:
                self._on_bad(_TOO_MANY)
                self._drop(min(self._readers.values(), key=lambda reader: (reader.admitted, reader.heard_s)))

    def _drop(self, reader: _Reader) -> None:
        self._epoll.unregister(reader.connection)
        del self._readers[reader.connection.fileno()]
        reader.connection.close()

    def _go_on(self, reader: _Reader, events: int) -> None:
        try:
            if events & ~select.EPOLLIN:
                reader.connection.flush()
            if not reader.connection.waits_to_write:
                self._make_ready(reader)
        except Broken:
            self._drop(reader)

    def _make_ready(self, reader: _Reader) -> None:
        if not reader.ready:
            reader.ready = True
            self._ready.append(reader)
            self._listen(reader, 0)

    def _listen(self, reader: _Reader, events: int) -> None:
        if reader.events != events:
            reader.events = events
            self._epoll.modify(reader.connection, events)

    def _answer_ready(self) -> None:
        """One request of each."""
        for _ in range(len(self._ready)):
            if self._stopping or self._owed_s():
                return
            reader = self._ready.popleft()
            reader.ready = False
            if self._readers.get(reader.connection.fileno()) is not reader:
                continue
            began_s = time.thread_time()
            try:
                self._answer_next(reader)
            except Broken:
                self._drop(reader)
            except Exception as error:
                # Whatever it is, the others are served, and it shows.
                self._on_bad(f"reader of the log: {error!r}")
                self._drop(reader)
            used_s = time.thread_time() - began_s
            self._left_s -= used_s
            self.used_s += used_s

    def _answer_next(self, reader: _Reader) -> None:
        connection = reader.connection
        if not reader.requests:
            reader.requests.extend(connection.receive())
        if reader.requests:
            reader.heard_s = time.monotonic()
            self.answered += 1
            answer = self._answer(reader, reader.requests.popleft())
            connection.send(wire.encode(answer))
        elif connection.begun_bytes > bounds.LOG_REQUEST_BYTES_MAX:
            self._on_bad(_LONG)
            raise Broken(_LONG)
        if connection.waits_to_write:
            self._listen(reader, select.EPOLLOUT)
        elif reader.requests or connection.unread:
            self._make_ready(reader)
        else:
            self._listen(reader, select.EPOLLIN)

    def _answer(self, reader: _Reader, message: bytes) -> LogReply:
        try:
            request = wire.decode_request(message)
        except wire.DECODE_ERRORS as error:
            self._on_bad(f"reader of the log: {error}")
            raise Broken(str(error)) from error
        if request.version != wire.VERSION:
            return self._refusal(request, wire.FAILED, f"this site speaks version {wire.VERSION} of this protocol")
        if not self._admits(reader.connection.principal):
            return self._refusal(request, wire.FORBIDDEN, "only members and observers may read the log")
        try:
            if not self._directory.is_dir():
                return self._refusal(request, wire.FAILED, "no decided log here")
            if request.what == wire.PIECE:
                return self._piece(reader.blocks, request)
            if request.what == wire.ADVANCE:
                end = reader.blocks.advance(request.counter, request.bytes_max, bounds.LOG_BLOCKS_MAX)
                return LogReply(wire.VERSION, request.ticket, wire.OK, first=request.counter, end=end)
            if request.what == wire.BOUNDS:
                return self._bounds(reader.blocks.bounds(), reader.blocks.identity(), request, wire.OK)
            return self._refusal(request, wire.FAILED, f"nobody here knows what {request.what} asks for")
        except (OSError, TaraError) as error:
            self._on_bad(f"reader of the log: {error}")
            return self._refusal(request, wire.FAILED, str(error))

    def _piece(self, blocks: LogBlocks, request: LogRequest) -> LogReply:
        guess = Place(request.file, request.offset)
        piece = blocks.piece(request.counter, bounds.LOG_PIECE_BYTES, guess, request.skip, request.checksum)
        if piece is None:
            there = blocks.bounds()
            status = wire.TRUNCATED if request.counter < there.first else wire.NOT_YET
            return self._bounds(there, blocks.identity(), request, status)
        header, block, place, data = piece
        return LogReply(
            wire.VERSION,
            request.ticket,
            wire.OK,
            cluster=header.cluster,
            era=header.era,
            partitions=header.partitions,
            file=place.file,
            offset=place.offset,
            checksum=block.checksum,
            data=data,
        )

    def _bounds(self, there: LogBounds, whose: LogIdentity | None, request: LogRequest, status: int) -> LogReply:
        first, end = there
        cluster, era = (whose.cluster, whose.era) if whose else (0, 0)
        endpoints = self._front_ends()
        return LogReply(
            wire.VERSION, request.ticket, status, first=first, end=end, endpoints=endpoints, cluster=cluster, era=era
        )

    def _refusal(self, request: LogRequest, status: int, message: str) -> LogReply:
        return LogReply(wire.VERSION, request.ticket, status, message)
