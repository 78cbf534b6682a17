"""Where an executor's checkpoints are kept: one file each, written under a temporary name and renamed.

A file is a header line (JSON: format version, cluster, era, checkpoint), the protocol's state and the application's
chunks with their lengths, the digest of these, which is also the checkpoint's identity, and a checksum of everything
that the digest does not cover: header, lengths and the digest itself. A copy that is damaged, or is another checkpoint
than its name says, is refused, reported and set aside; the next one is tried: an older one of our own, or a peer's.

Writing happens in `work`, which a thread of the store's own calls (`tara.storage.worker`), off the hot path; answers
come back through `take`. A disk that fails is reported, and what it was to do is tried again. Anything else that goes
wrong there comes up in `take`, and ends the container.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.protocol.sessions import raised
from tara.protocol.state_digest import DIGEST_BYTES, checkpoint_of, digest_of
from tara.storage.disk import LOCAL, Disk
from tara.storage.files import list_paths, remove_if_there, remove_leftovers, set_aside, write_whole
from tara.storage.log import DecidedLog
from tara.storage.remote import RemoteFiles

FORMAT_VERSION = 3
_LENGTH = struct.Struct("<Q")
HEADER_BYTES_MAX = 4096
#: Checkpoints older than the stable one that are kept all the same.
KEEP_OLDER = 1
CHECKSUM_BYTES = 16
#: The pause before a failed write is tried again, and before it is looked again whether the log is durable.
RETRY_S = 1.0
LOG_S = 0.25
#: Whoever has nothing to do looks again after this long; he is woken when there is something.
IDLE_S = 60.0


class CheckpointHeader(Struct, frozen=True):
    version: int
    cluster: int
    era: int
    number: int


class StoreCounts(Struct):
    """What the store has done since it started."""

    checkpoints_saved: int = 0
    checkpoints_loaded: int = 0
    #: Copies that could not be used: damaged, foreign, or of another format.
    checkpoints_refused: int = 0
    store_errors: int = 0


class StoreError(Exception):
    """A checkpoint file that cannot be used; another copy may be."""


class ForeignCheckpoint(StoreError):
    """A checkpoint of another cluster, era or format: not ours, but not damaged."""


class StoreFailed(TaraError):
    """The store does not work any more."""


def pack_parts(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Each part after its length."""
    for part in parts:
        yield _LENGTH.pack(len(part))
        yield part


def unpack_parts(data: bytes, start: int, stop: int) -> list[bytes]:
    """The parts that fill data[start:stop]."""
    parts = []
    while start + _LENGTH.size <= stop:
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size + length
        parts.append(data[start - length : start])
    if start != stop:
        raise StoreError("the contents are damaged")
    return parts


def write_checkpoint(
    path: Path,
    cluster: int,
    era: int,
    checkpoint: t.CheckpointId,
    state: bytes,
    chunks: Iterable[bytes],
    disk: Disk = LOCAL,
) -> None:
    header = msgspec.json.encode(CheckpointHeader(FORMAT_VERSION, cluster, era, checkpoint.number)) + b"\n"
    parts = (state, *chunks)
    checksum = _checksum(header, map(len, parts), checkpoint.digest)
    write_whole(path, (header, *pack_parts(parts), checkpoint.digest, checksum), disk)


def _checksum(header: bytes, lengths: Iterable[int], digest: bytes) -> bytes:
    """Of everything that the digest does not cover."""
    checksum = blake2b(header, digest_size=CHECKSUM_BYTES)
    for length in lengths:
        checksum.update(_LENGTH.pack(length))
    checksum.update(digest)
    return checksum.digest()


def read_checkpoint(path: Path, cluster: int, era: int, disk: Disk = LOCAL) -> t.Loaded:
    """A checkpoint of this cluster and era that is intact and is what its name says; `StoreError` if it is not."""
    data = disk.read(path)
    header = _header(data[: data.find(b"\n")])
    start, stop = data.find(b"\n") + 1, len(data) - DIGEST_BYTES - CHECKSUM_BYTES
    digest, checksum = data[stop : stop + DIGEST_BYTES], data[stop + DIGEST_BYTES :]
    parts = unpack_parts(data, start, stop)
    intact = parts and digest_of(parts[0], parts[1:]) == digest
    if not intact or _checksum(data[:start], map(len, parts), digest) != checksum:
        raise StoreError("the contents are damaged")
    if (header.cluster, header.era) != (cluster, era):
        raise ForeignCheckpoint(f"belongs to cluster {header.cluster:x}, era {header.era}")
    if path.stem.isdigit() and int(path.stem) != header.number:
        raise StoreError(f"is checkpoint {header.number}")
    return t.Loaded(t.CheckpointId(header.number, digest), parts[0], parts[1:])


def _header(line: bytes) -> CheckpointHeader:
    try:
        version = msgspec.json.decode(line, type=dict[str, object]).get("version")
        if version != FORMAT_VERSION:
            raise ForeignCheckpoint(f"is of format version {version}; this Tara reads {FORMAT_VERSION}")
        return msgspec.json.decode(line, type=CheckpointHeader)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError("the header is damaged") from error


def checkpoint_directory(data_dir: Path, replica: int) -> Path:
    return data_dir / f"checkpoints-{replica}"


#: The names of checkpoints; what else is in their directory is not touched.
CHECKPOINT_FILES = "[0-9]" * 12 + ".checkpoint"


def checkpoint_path(directory: Path, number: int) -> Path:
    return directory / f"{number:012}.checkpoint"


class CheckpointStore:
    """The checkpoints of one executor in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        cluster: int,
        era: int,
        peers: list[Path],
        on_answer: Callable[[], None],
        log: DecidedLog | None = None,
        remote: RemoteFiles | None = None,
        disk: Disk = LOCAL,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._cluster = cluster
        self._era = era
        #: Directories of the other executors' stores, where this host can read them.
        self._peers = peers
        #: What other executors have where this host cannot read their directories.
        self._remote = remote
        #: Called when there is an answer; and when there is something to do.
        self._on_answer = on_answer
        self.wake: Callable[[], None] = lambda: None
        #: Where the executed commands go; a checkpoint is written when the log up to it is durable.
        self.log = log
        if log is not None:
            log.on_failure = self._fail
        disk.make_directory(directory)
        remove_leftovers(directory, disk)
        #: What ended the work, if anything did.
        self._failure: Exception | None = None
        self._jobs: deque[t.Save | t.Load | t.Discard] = deque()
        self._answers: deque[t.Tuple] = deque()
        #: Checkpoints with lower numbers need not be saved any more.
        self._below = 0
        self.errors: list[str] = []
        self.counts = StoreCounts()
        #: Told, by `work`, what happened: an event's name, and the number or message that belongs to it.
        self.on_event: Callable[[str, int | str], None] = lambda event, detail: None

    def submit(self, job: t.Save | t.Load | t.Discard | t.Executed) -> None:
        if isinstance(job, t.Executed):
            if self.log is not None:
                self.log.append(job)
            return
        if isinstance(job, t.Discard):
            self._below = max(self._below, job.below)
        elif isinstance(job, t.Save) and self.log is not None:
            self.log.checkpoint(job.number, job.state)
        self._jobs.append(job)
        self.wake()

    def take(self) -> Iterator[t.Tuple]:
        """The answers that have come since the last call. `StoreFailed` if there will be none any more."""
        if self._failure is not None:
            raise StoreFailed(f"{self._directory}: {self._failure!r}") from self._failure
        while self._answers:
            yield self._answers.popleft()

    def interrupt(self) -> None:
        """Whatever is being fetched from other hosts is not needed any more."""
        if self._remote is not None:
            self._remote.closing.set()
        if self.log is not None:
            self.log.interrupt()

    def work(self) -> float:
        """On the thread: do what was asked for, one after the other; returns after how many seconds to come again if
        nobody wakes it."""
        try:
            while self._jobs and self._failure is None:
                match self._jobs[0]:
                    case t.Save() as save:
                        pause_s = self._save(save)
                        if pause_s > 0.0:
                            return pause_s
                    case t.Load() as load:
                        self._load(load)
                    case t.Discard(below):
                        self._discard(below)
                self._jobs.popleft()
        except Exception as error:
            self._fail(error)
        return IDLE_S

    def _fail(self, error: Exception) -> None:
        """Without a store the executor would wait forever, and nobody would know why."""
        self._failure = error
        self._report("store_failed", repr(error))
        self._on_answer()

    def _save(self, save: t.Save) -> float:
        """Returns after how many seconds to try again; 0: it is done, or needless."""
        if save.number < self._below:
            return 0.0
        try:
            # An iterator can be drawn from once; this may have to be tried again.
            chunks = save.chunks if isinstance(save.chunks, list) else list(save.chunks)
            if any(type(chunk) is not bytes for chunk in chunks):
                raise TypeError("a chunk of a snapshot that is not bytes")
            self._jobs[0] = save = t.Save(save.number, save.state, chunks)
        except BaseException as error:
            # The application's doing, and nothing to try again.
            self._answer(t.Unsaved(save.number, raised(error)))
            return 0.0
        if self.log is not None and self.log.sealed < save.number:
            return LOG_S
        checkpoint = checkpoint_of(save)
        path = self._path(save.number)
        try:
            if self._has(path, checkpoint):
                # A crash may have come before its name was durable.
                self._disk.sync_directory(self._directory)
            else:
                write_checkpoint(path, self._cluster, self._era, checkpoint, save.state, chunks, self._disk)
                self.counts.checkpoints_saved += 1
                self.on_event("checkpoint_saved", save.number)
        except OSError as error:
            # A checkpoint is needed for the windows to move: keep trying until there is room again.
            self._on_disk_error(f"cannot write checkpoint {save.number}: {error}")
            return RETRY_S
        self._answer(t.Saved(checkpoint))
        return 0.0

    def _has(self, path: Path, checkpoint: t.CheckpointId) -> bool:
        """Whether this checkpoint is there, intact. A damaged copy is set aside."""
        if not self._disk.exists(path):
            return False
        loaded = self._read_or_refuse(path, str(path), own=True)
        return loaded is not None and loaded.checkpoint == checkpoint

    def _on_disk_error(self, message: str) -> None:
        self.counts.store_errors += 1
        self._report("store_error", message)

    def _load(self, load: t.Load) -> None:
        """The newest intact checkpoint that is new enough: our own, else that of a peer on this host, else of any."""
        loaded = self._find(load) or self._fetch(load)
        if loaded is not None:
            self.counts.checkpoints_loaded += 1
            if self.log is not None and loaded.checkpoint is not None:
                # The log has to reach that far; if it does not, something is missing.
                self.log.checkpoint(loaded.checkpoint.number, loaded.state)
        self._answer(loaded or t.Loaded(None, b"", []))

    def _find(self, load: t.Load) -> t.Loaded | None:
        directories = [self._directory, *(self._peers[holder] for holder in load.holders if holder < len(self._peers))]
        for directory in directories:
            for path in reversed(self._stored(directory)):
                if int(path.stem) < load.minimum:
                    break
                loaded = self._read_or_refuse(path, str(path), own=directory == self._directory)
                if loaded is not None:
                    self.on_event("checkpoint_loaded", str(path))
                    return loaded
        return None

    def _fetch(self, load: t.Load) -> t.Loaded | None:
        """From the hosts of those who have one."""
        known = [holder for holder in load.holders if holder < len(self._peers)]
        holders = [holder for holder in known if self._peers[holder] != self._directory]
        if self._remote is None or not holders:
            return None
        with self._remote as remote:
            for holder in holders:
                try:
                    names = [name for name in remote.names(holder) if int(Path(name).stem) >= load.minimum]
                    # What is left of former attempts, if nobody has that any more.
                    remote.forget_others(names)
                    for name in names:
                        path = remote.fetch(holder, name)
                        self.on_event("checkpoint_fetched", f"{name} of replica {holder}")
                        loaded = self._read_or_refuse(path, f"{name} of replica {holder}")
                        # The executor has it saved among its own.
                        remote.forget(name)
                        if loaded is not None:
                            self.on_event("checkpoint_loaded", f"{name} of replica {holder}")
                            return loaded
                except (TaraError, OSError) as error:
                    self._report("fetch_error", f"checkpoint {load.minimum} or newer: {error}")
        return None

    def _read_or_refuse(self, path: Path, label: str, own: bool = False) -> t.Loaded | None:
        """What the disk cannot read is refused like what is damaged, but stays: it may be able to, another time."""
        try:
            return self._read(path)
        except FileNotFoundError:
            return None
        except (OSError, StoreError) as error:
            self.counts.checkpoints_refused += 1
            damaged = own and isinstance(error, StoreError) and not isinstance(error, ForeignCheckpoint)
            self._report("checkpoint_refused", f"{label}: {error}{self._set_aside(path) if damaged else ''}")
            return None

    def _set_aside(self, path: Path) -> str:
        try:
            return f"; it is in {set_aside(path, self._disk)} now"
        except OSError as error:
            self._on_disk_error(f"{path}: cannot be set aside: {error}")
            return ""

    def _read(self, path: Path) -> t.Loaded:
        return read_checkpoint(path, self._cluster, self._era, self._disk)

    def _discard(self, below: int) -> None:
        # The newest stays in any case: a restart is quicker from an old one than from none.
        kept = self._stored(self._directory)[:-1]
        old = [path for path in kept if int(path.stem) < below]
        for path in old[: max(len(old) - KEEP_OLDER, 0)]:
            try:
                remove_if_there(path, self._disk)
            except OSError as error:
                self._on_disk_error(f"{path}: cannot be removed: {error}")

    def _stored(self, directory: Path) -> list[Path]:
        """The checkpoints in a directory; none if it cannot be read now."""
        try:
            return list_paths(directory, CHECKPOINT_FILES, self._disk)
        except OSError as error:
            self._on_disk_error(f"{directory}: cannot be listed: {error}")
            return []

    def _path(self, number: int) -> Path:
        return checkpoint_path(self._directory, number)

    def _answer(self, tuple_: t.Tuple) -> None:
        self._answers.append(tuple_)
        self._on_answer()

    def _report(self, event: str, message: str) -> None:
        self.on_event(event, message)
        self.errors.append(message)
        del self.errors[:-100]
