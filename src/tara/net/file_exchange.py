"""Files between hosts: bases and segments of the decided log, from the container that has them to one that lacks
them.

Each container with an executor serves that executor's files on a socket and a thread of its own; its address is
registered beside the one for tuples. Who lacks a file asks for one piece after the other, writes them to a file of its
own, and goes on there after a loss, from whichever replica: files are the same on all of them. Memory is bounded by one
piece on either side, and so is what waits for the receiver's disk. What has arrived is not trusted: its reader verifies
the digest that every such file carries.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct

from tara.net import bounds
from tara.net.budget import Budget
from tara.net.certificates import Keys
from tara.net.channel import Channel
from tara.net.names import Names
from tara.net.port import OnTrouble, Terms
from tara.net.server import Address, Server
from tara.protocol.errors import TaraError
from tara.storage.disk import LOCAL
from tara.storage.pacer import PacedFile, Pacer
from tara.storage.remote import BASES, LOG

PIECE_BYTES = 1 << 19
#: Larger than any answer of this protocol.
_REPLY_BYTES_MAX = 1 << 21
#: Names in one listing: more files than anybody keeps.
_NAMES_MAX = 10_000
_TIMEOUT_S = 2.0
_POLL_S = 0.5
#: What may wait for a slow receiver, who asks for one piece at a time: of one that asks for more, no more is answered.
_UNREAD_BYTES_MAX = 4 * PIECE_BYTES
#: Between two attempts, when nobody is there.
_PAUSE_S = 0.2
_ATTEMPTS = 3
#: What is served: nothing that is being written, and nothing outside the directory.
_NAMES = {
    BASES: re.compile(r"\d{12}\.base"),
    LOG: re.compile(r"\d{12}-\d{16}-\d{16}-[0-9a-f]{8}\.segment"),
}


class ExchangeError(TaraError):
    """A file could not be got from this replica, now."""


class FileRequest(Struct, array_like=True, frozen=True):
    """An empty name asks for the names of all files; another one for a piece of that file."""

    ticket: int
    cluster: int
    era: int
    kind: str
    replica: int
    name: str = ""
    offset: int = 0


class FileReply(Struct, array_like=True, frozen=True):
    ticket: int
    #: Why not; empty if all is well.
    error: str = ""
    names: list[str] = []
    #: The bytes of each.
    sizes: list[int] = []
    piece: bytes = b""
    #: The bytes of the whole file.
    size: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(FileRequest).decode
_decode_reply = msgspec.msgpack.Decoder(FileReply).decode


class FileServer:
    """Answers on a thread. The socket is bound already, and belongs to the thread from `start` on."""

    def __init__(
        self,
        address: Address,
        identity: tuple[int, int],
        keys: Keys | None = None,
        budget: Budget | None = None,
        on_bad: OnTrouble = lambda reason: None,
        on_refused: OnTrouble = lambda reason: None,
    ) -> None:
        """`identity` is the cluster and its era. `on_bad` is told, on the thread, of each request that cannot be
        read; `on_refused`, of connections that did not come about."""
        guard = None if keys is None else keys.members_only()
        terms = Terms(bounds.FILE_REQUEST_BYTES_MAX, bounds.READERS_OF_FILES_MAX, guard, on_bad, on_refused)
        self._server = Server(address, terms, budget)
        self.address = self._server.address
        self._on_bad = on_bad
        self._identity = identity
        self._directories: Mapping[tuple[str, int], Path] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="file-server", daemon=True)

    def start(self, directories: Mapping[tuple[str, int], Path]) -> None:
        """`directories`: by kind and replica."""
        self._directories = directories
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._server.close()

    def _serve(self) -> None:
        """The thread of the server."""
        while not self._stopping.is_set():
            self._server.wait(_POLL_S)
            self._server.tick()
            for name, data in self._server.receive():
                try:
                    request = _decode_request(data)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    self._on_bad(str(error))
                    continue
                if self._server.unread_bytes(name) < _UNREAD_BYTES_MAX:
                    self._server.send(name, _encode(self._answer(request)))
        self._server.close()

    def _answer(self, request: FileRequest) -> FileReply:
        directory = self._directories.get((request.kind, request.replica))
        if (request.cluster, request.era) != self._identity or directory is None:
            return FileReply(request.ticket, f"no {request.kind} of replica {request.replica} of that cluster here")
        pattern = _NAMES[request.kind]
        try:
            if not request.name:
                names = sorted(filter(pattern.fullmatch, os.listdir(directory)), reverse=True)[:_NAMES_MAX]
                sizes = [os.stat(directory / name).st_size for name in names]
                return FileReply(request.ticket, names=names, sizes=sizes)
            if not pattern.fullmatch(request.name):
                return FileReply(request.ticket, "no such file")
            return _piece(directory / request.name, request)
        except OSError as error:
            return FileReply(request.ticket, f"{request.name}: {error.strerror}")


def _piece(path: Path, request: FileRequest) -> FileReply:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        offset = min(max(request.offset, 0), size)
        return FileReply(request.ticket, piece=os.pread(descriptor, PIECE_BYTES, offset), size=size)
    finally:
        os.close(descriptor)


class FetchedFiles:
    """The files of one kind that other replicas have. One thread uses it, between `with` and its end."""

    def __init__(
        self,
        kind: str,
        identity: tuple[int, int],
        incoming: Path,
        addresses: Callable[[int], str | None],
        keys: Keys | None = None,
    ) -> None:
        """`incoming` is where files arrive; `addresses` tells where a replica's files are served now, if anywhere."""
        self._kind = kind
        self._identity = identity
        self._incoming = incoming
        self._addresses = addresses
        self._keys = keys
        self._ticket = 0
        self._channels: dict[str, Channel] = {}
        self._names = Names(_TIMEOUT_S)
        #: Set when whoever waits for the files has to end.
        self.closing = threading.Event()
        #: How fast they are written here.
        self.pacer = Pacer()

    def __enter__(self) -> "FetchedFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def names(self, replica: int) -> dict[str, int]:
        """The names of this replica's files, the newest first, and how long they are."""
        pattern = _NAMES[self._kind]
        reply = self._ask(replica)
        return {name: size for name, size in zip(reply.names, reply.sizes, strict=False) if pattern.fullmatch(name)}

    def path(self, name: str) -> Path:
        """Where a file will be that is fetched."""
        return self._incoming / name

    def fetch(self, replica: int, name: str) -> Path:
        """Bring the file here, or go on with it where it was interrupted; it has still to be verified, and to be synced
        as a whole. If it is no good: `forget`."""
        LOCAL.make_directory(self._incoming)
        path = self.path(name)
        opened = LOCAL.open(path) if path.exists() else LOCAL.create(path)
        file, offset = PacedFile(opened, self.pacer), LOCAL.size(path)
        try:
            while True:
                reply = self._ask(replica, name, offset)
                if offset > reply.size:
                    # A leftover of something else.
                    opened.truncate(0)
                    offset = 0
                    continue
                if offset == reply.size:
                    return path
                if not reply.piece:
                    raise ExchangeError(f"{name} of replica {replica}: nothing comes at {offset} of {reply.size}")
                file.append(reply.piece)
                offset += len(reply.piece)
        except OSError:
            # What was to be synced may never be on the disk, whatever the next sync says.
            self.forget(name)
            raise
        finally:
            file.close()

    def forget(self, name: str) -> None:
        """Remove what has come of this file."""
        self.path(name).unlink(missing_ok=True)

    def forget_others(self, names: Collection[str]) -> None:
        """Remove what has come of files that are none of these."""
        for path in self._incoming.glob("*"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _ask(self, replica: int, name: str = "", offset: int = 0) -> FileReply:
        for _ in range(_ATTEMPTS):
            address = self._addresses(replica)
            if address is None or self.closing.is_set():
                break
            self._ticket += 1
            request = FileRequest(self._ticket, *self._identity, self._kind, replica, name, offset)
            reply = self._try(address, request)
            if reply is None:
                self.closing.wait(_PAUSE_S)
                continue
            if reply.error:
                raise ExchangeError(f"replica {replica}: {reply.error}")
            return reply
        raise ExchangeError(f"replica {replica}: its files are not reachable")

    def _try(self, address: str, request: FileRequest) -> FileReply | None:
        channel = self._channels.get(address)
        if channel is None:
            channel = Channel(address, self._keys, _REPLY_BYTES_MAX, self._names.address_of)
            self._channels[address] = channel
        end_s = time.monotonic() + _TIMEOUT_S
        channel.send(_encode(request))
        while not channel.broken and (left_s := end_s - time.monotonic()) > 0 and not self.closing.is_set():
            channel.wait(min(left_s, _POLL_S))
            for data in channel.receive():
                try:
                    reply = _decode_reply(data)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue
                # Another ticket is a late answer to a former attempt.
                if reply.ticket == request.ticket:
                    return reply
        # Whatever was wrong with it, the next attempt begins with a new connection.
        self._channels.pop(address).close()
        return None
