"""Backups: one file with the newest stable checkpoint of a cluster, and a new cluster made from it.

A backup file is a header line (JSON), the parts of the checkpoint with their lengths, and a checksum of everything
before it. It is taken from the checkpoint directories, of a cluster that runs or of one that does not: a checkpoint
that f+1 executors hold with the same digest is stable.

A restored cluster is a new one: it has an identity of its own, and its history begins with checkpoint 1, which is the
state of the backup. No slot below that checkpoint is ever used, so an executor without its disk can only get its state
from a peer's checkpoint, as in any cluster. Command counter and agreed time go on from the backup. Sessions of the old
cluster end with the first request: their clients may have seen answers that the backup does not have, and the
application is told that they are closed.
"""

import os
import shutil
import time
from collections import Counter
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from tara.configuration.settings import Settings
from tara.configuration.state import ClusterState, StateFile, new_state
from tara.operations.founding import install
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.protocol.nodes.executor import ExecutorState
from tara.protocol.sessions import SessionsState
from tara.protocol.state_digest import digest_of
from tara.storage.disk import LOCAL
from tara.storage.files import write_whole
from tara.storage.store import (
    CHECKPOINT_FILES,
    StoreError,
    checkpoint_directory,
    checkpoint_path,
    pack_parts,
    read_checkpoint,
    unpack_parts,
)

FORMAT = "tara-backup"
FORMAT_VERSION = 2
CHECKSUM_BYTES = 32
#: A restored cluster's first checkpoint.
RESTORED_CHECKPOINT = 1
#: Looks at the directories: executors that run save and discard meanwhile.
LOOKS_MAX = 5


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
    #: What it is: a checkpoint, its digest in hexadecimal, and the last command in it.
    checkpoint: int
    digest: str
    counter: int
    sessions: int
    #: The agreed time of the state, and when the backup was made: milliseconds since 1970.
    time_ms: int
    created_ms: int


class Backup(Struct, frozen=True):
    header: BackupHeader
    #: The protocol's part of the state, and the application's.
    state: bytes
    chunks: list[bytes]


def back_up(data_dir: Path, path: Path) -> BackupHeader:
    """Write the newest stable checkpoint of the cluster in a data directory to a file that must not exist yet."""
    if path.exists():
        raise BackupError(f"{path}: exists already; a backup does not overwrite")
    if not path.absolute().parent.is_dir():
        raise BackupError(f"{path.absolute().parent}: no such directory")
    cluster = StateFile(data_dir).read()
    loaded = _newest_stable(data_dir, cluster)
    assert loaded.checkpoint is not None
    state = msgspec.msgpack.decode(loaded.state, type=ExecutorState)
    header = BackupHeader(
        format=FORMAT,
        version=FORMAT_VERSION,
        cluster=cluster.cluster,
        era=cluster.era,
        app=cluster.app,
        f=cluster.f,
        partitions=cluster.partitions,
        checkpoint_interval=cluster.checkpoint_interval,
        checkpoint=loaded.checkpoint.number,
        digest=loaded.checkpoint.digest.hex(),
        counter=state.sessions.counter,
        sessions=len(state.sessions.sessions),
        time_ms=state.sessions.time_ms,
        created_ms=int(time.time() * 1e3),
    )
    body = b"".join((msgspec.json.encode(header), b"\n", *pack_parts((loaded.state, *loaded.chunks))))
    try:
        write_whole(path, (body, _checksum(body)))
    except OSError as error:
        raise BackupError(f"{path}: {error}") from error
    # Trust the disk only as far as it gives back what it was given.
    read_backup(path)
    return header


def _newest_stable(data_dir: Path, cluster: ClusterState) -> t.Loaded:
    """The newest checkpoint of which f+1 executors have intact copies with one digest."""
    problems: list[str] = []
    for _ in range(LOOKS_MAX):
        directories = [checkpoint_directory(data_dir, replica) for replica in range(2 * cluster.f + 1)]
        numbers = {int(path.stem) for directory in directories for path in directory.glob(CHECKPOINT_FILES)}
        for number in sorted(numbers, reverse=True):
            copies: dict[bytes, t.Loaded] = {}
            holders: Counter[bytes] = Counter()
            for directory in directories:
                path = checkpoint_path(directory, number)
                try:
                    loaded = read_checkpoint(path, cluster.cluster, cluster.era)
                except FileNotFoundError:
                    continue
                except (OSError, StoreError) as error:
                    problems.append(f"{path}: {error}")
                    continue
                assert loaded.checkpoint is not None
                copies[loaded.checkpoint.digest] = loaded
                holders[loaded.checkpoint.digest] += 1
            for digest, count in holders.items():
                if count > cluster.f:
                    return copies[digest]
    raise BackupError(
        f"{data_dir}: no checkpoint has {cluster.f + 1} intact copies; one is taken every "
        f"{cluster.checkpoint_interval} requests{': ' + problems[-1] if problems else ''}"
    )


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=CHECKSUM_BYTES).digest()


def read_backup(path: Path) -> Backup:
    """A backup that is intact."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from error
    end, stop = data.find(b"\n"), len(data) - CHECKSUM_BYTES
    try:
        header = msgspec.json.decode(data[: max(end, 0)], type=dict[str, object])
    except msgspec.DecodeError:
        header = {}
    if header.get("format") != FORMAT:
        raise BackupError(f"{path}: is not a backup of Tara")
    version = header.get("version")
    if version != FORMAT_VERSION:
        raise BackupError(f"{path}: has format version {version}, this Tara reads version {FORMAT_VERSION}")
    if stop <= end or _checksum(data[:stop]) != data[stop:]:
        raise BackupError(f"{path}: is damaged or incomplete (bad checksum)")
    try:
        known = msgspec.json.decode(data[:end], type=BackupHeader)
        parts = unpack_parts(data, end + 1, stop)
    except (msgspec.DecodeError, StoreError) as error:
        raise BackupError(f"{path}: {error}") from error
    if not parts or digest_of(parts[0], parts[1:]).hex() != known.digest:
        raise BackupError(f"{path}: the checkpoint does not have the digest that the header says")
    return Backup(known, parts[0], parts[1:])


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
    old = msgspec.msgpack.decode(backup.state, type=ExecutorState).sessions
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
