"""Backups: one file with a whole state of a cluster, and a new cluster made from it.

The state is the one at the newest stable checkpoint, which f+1 executors have, or the one as of any command that their
logs reach. It is rebuilt from their bases and logs, of a cluster that runs or of one that does not, by executing
commands again (`tara.storage.rebuild`).

A backup file is a header line (JSON), the sessions and the application's chunks with their lengths, and a checksum of
everything before it. It is written and read in pieces.

A restored cluster is a new one: it has an identity of its own, and its history begins with checkpoint 1, which is the
state of the backup. No slot below that checkpoint is ever used, so an executor without its disk can only get its state
from a peer's base, as in any cluster. Command counter and agreed time go on from the backup. Sessions of the old
cluster end with the first request: their clients may have seen answers that the backup does not have, and the
application is told that they are closed.
"""

import os
import shutil
import struct
import time
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from msgspec import Struct

from tara.configuration.settings import Settings
from tara.configuration.state import ClusterState, StateFile, new_state
from tara.operations.founding import install
from tara.operations.rebuilding import NothingLeft, RebuildError, Rebuilt, app_of, rebuild_state
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.protocol.sessions import SessionsState
from tara.protocol.state_digest import StateDigest
from tara.storage.disk import LOCAL
from tara.storage.files import write_whole

FORMAT = "tara-backup"
FORMAT_VERSION = 3
CHECKSUM_BYTES = 32
HEADER_BYTES_MAX = 4096
_LENGTH = struct.Struct("<Q")
#: In place of a length: no part follows.
_END = (1 << 64) - 1
#: A restored cluster's first checkpoint.
RESTORED_CHECKPOINT = 1


class BackupError(TaraError):
    """A backup that cannot be made, or cannot be used."""


class BackupHeader(Struct, frozen=True, kw_only=True):
    format: str
    version: int
    #: Where it comes from.
    cluster: int
    era: int
    app: str
    f: int
    partitions: int
    checkpoint_interval: int
    #: What it is: the last command in it, and the last checkpoint before; and the state's digest in hexadecimal.
    counter: int
    checkpoint: int
    digest: str
    sessions: int
    #: The agreed time of the state, and when the backup was made: milliseconds since 1970.
    time_ms: int
    created_ms: int


class Backup(NamedTuple):
    """One that was found to be intact."""

    header: BackupHeader
    sessions: SessionsState
    path: Path
    #: Offset and length of each of the application's chunks.
    places: list[tuple[int, int]]

    def chunks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            for offset, length in self.places:
                file.seek(offset)
                yield file.read(length)


def back_up(data_dir: Path, path: Path, at: int | None = None) -> BackupHeader:
    """Write the newest stable checkpoint of the cluster in a data directory, or its state as of a command, to a file
    that must not exist yet."""
    if path.exists():
        raise BackupError(f"{path}: exists already; a backup does not overwrite")
    if not path.absolute().parent.is_dir():
        raise BackupError(f"{path.absolute().parent}: no such directory")
    cluster = StateFile(data_dir).read()
    found = _state(data_dir, cluster, at)
    sessions = found.execution.sessions.state()
    header = BackupHeader(
        format=FORMAT,
        version=FORMAT_VERSION,
        cluster=cluster.cluster,
        era=cluster.era,
        app=app_of(cluster),
        f=cluster.f,
        partitions=cluster.partitions,
        checkpoint_interval=cluster.checkpoint_interval,
        counter=sessions.counter,
        checkpoint=found.checkpoint.number,
        digest=found.execution.digest().hex(),
        sessions=len(sessions.sessions),
        time_ms=sessions.time_ms,
        created_ms=int(time.time() * 1e3),
    )
    parts = chain((t.encode(sessions),), found.execution.application.snapshot())
    try:
        write_whole(path, _pack(header, parts))
    except OSError as error:
        raise BackupError(f"{path}: {error}") from error
    # Trust the disk only as far as it gives back what it was given.
    read_backup(path)
    return header


def _state(data_dir: Path, cluster: ClusterState, at: int | None) -> Rebuilt:
    try:
        return rebuild_state(cluster, data_dir, until=at, copies=0 if at is not None else cluster.f + 1)
    except NothingLeft as error:
        raise BackupError(
            f"{data_dir}: no checkpoint has {cluster.f + 1} intact copies; one is taken every "
            f"{cluster.checkpoint_interval} requests{f': {error.problems[-1]}' if error.problems else ''}"
        ) from error
    except RebuildError as error:
        raise BackupError(str(error)) from error


def _pack(header: BackupHeader, parts: Iterable[bytes]) -> Iterator[bytes]:
    framed = chain.from_iterable((_LENGTH.pack(len(part)), part) for part in parts)
    checksum = blake2b(digest_size=CHECKSUM_BYTES)
    for piece in chain((msgspec.json.encode(header), b"\n"), framed, (_LENGTH.pack(_END),)):
        checksum.update(piece)
        yield piece
    yield checksum.digest()


class _Reader:
    """Reads on, and sums up what it has read."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._size = path.stat().st_size
        self._checksum = blake2b(digest_size=CHECKSUM_BYTES)

    @property
    def offset(self) -> int:
        return self._file.tell()

    def line(self) -> bytes:
        line = self._file.readline(HEADER_BYTES_MAX)
        self._checksum.update(line)
        return line

    def take(self, length: int) -> bytes:
        data = self._file.read(length) if length <= self._size else b""
        if len(data) != length:
            raise self.damaged()
        self._checksum.update(data)
        return data

    def check_end(self) -> None:
        if self._file.read(CHECKSUM_BYTES + 1) != self._checksum.digest():
            raise self.damaged()

    def damaged(self) -> BackupError:
        return BackupError(f"{self._path}: is damaged or incomplete (bad checksum)")


def read_backup(path: Path) -> Backup:
    """A backup that is intact."""
    try:
        with path.open("rb") as file:
            return _read(_Reader(file, path), path)
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error


def _read(reader: _Reader, path: Path) -> Backup:
    line = reader.line()
    _check_format(line, path)
    digest, sessions, places = StateDigest(), b"", []
    while (length := _LENGTH.unpack(reader.take(_LENGTH.size))[0]) != _END:
        offset = reader.offset
        part = reader.take(length)
        digest.add(part)
        sessions = sessions or part
        places.append((offset, length))
    reader.check_end()
    try:
        header = msgspec.json.decode(line, type=BackupHeader)
        known = msgspec.msgpack.decode(sessions, type=SessionsState)
    except t.DECODE_ERRORS as error:
        raise BackupError(f"{path}: {error}") from error
    if digest.digest().hex() != header.digest:
        raise BackupError(f"{path}: the state does not have the digest that the header says")
    return Backup(header, known, path, places[1:])


def _check_format(line: bytes, path: Path) -> None:
    try:
        header = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        header = {}
    if header.get("format") != FORMAT:
        raise BackupError(f"{path}: is not a backup of Tara")
    if header.get("version") != FORMAT_VERSION:
        raise BackupError(
            f"{path}: has format version {header.get('version')}, this Tara reads version {FORMAT_VERSION}"
        )


def restore(path: Path, settings: Settings) -> ClusterState:
    """Make a data directory for a new cluster, with these settings, whose state is that of the backup."""
    if settings.durability != "disk":
        raise BackupError(f"durability = {settings.durability}: only a cluster with durability = disk can be restored")
    directory = Path(settings.data_dir)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BackupError(f"{directory}: is not empty; a backup is restored into a new directory")
    backup = read_backup(path)
    if settings.app != backup.header.app:
        raise BackupError(f"app = {settings.app}: the backup is of application {backup.header.app}")
    cluster = new_state(settings)
    cluster.threshold = RESTORED_CHECKPOINT
    # Under another name until it is complete: a half of it must not be taken for a cluster.
    unfinished = directory.absolute().with_name(f".{directory.name}.restoring-{os.getpid()}")
    try:
        install(unfinished, cluster, _first_sessions(backup), backup.chunks)
        StateFile(unfinished).write(cluster)
        unfinished.rename(directory)
        LOCAL.sync_directory(unfinished.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise BackupError(f"{directory}: {error}") from error
    return cluster


def _first_sessions(backup: Backup) -> SessionsState:
    """The sessions at the first checkpoint of the new cluster: those of the old one, about to expire."""
    old = backup.sessions
    # Their time is up on a clock that the first request moves: they expire then, before anything executes.
    sessions = [
        # Those with names never expire: what was claimed in them stays claimed.
        msgspec.structs.replace(session, timeout_ms=1, active_ms=old.clock_ms - 1, early={})
        if session.timeout_ms
        else msgspec.structs.replace(session, early={})
        for session in old.sessions
    ]
    # The agreed time may not fall, but need not start from the past: it would catch up in small steps only.
    now_ms = max(old.time_ms, int(time.time() * 1e3))
    return SessionsState(old.counter, now_ms, 1, old.clock_ms, sessions)
