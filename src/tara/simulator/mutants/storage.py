"""Mutants of the storage: what is durable when, what is read back, and what is noticed."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from tara.host.strikes import Strikes
from tara.protocol import journal as format
from tara.protocol import tuples as t
from tara.protocol.sessions import SessionsState
from tara.simulator import eras, world
from tara.simulator.disk import VirtualFile
from tara.simulator.mutants.registry import mutant, nothing, replace
from tara.storage import site_storage, store
from tara.storage.disk import Disk, File
from tara.storage.execution_record import ExecutionRecord
from tara.storage.journal import FileJournal
from tara.storage.log_writer import EncodedRun, LogWriter, Tail
from tara.storage.new_era import Best, Copy
from tara.storage.new_era import best_checkpoint as newest_checkpoint
from tara.storage.new_era import first_sessions as sessions_of_next_era
from tara.storage.registration import Granted, Records, StartClaim, admit
from tara.storage.store import CheckpointStore


class _Otherwise:
    """What it stands for, but for one thing that it does."""

    def __init__(self, original: object, name: str, value: Callable[..., object]) -> None:
        self._original = original
        self._name = name
        self._value = value

    def __getattr__(self, name: str) -> object:
        return self._value if name == self._name else getattr(self._original, name)


def _syncing(sync: Callable[[File], None]) -> contextlib.AbstractContextManager[object]:
    """A journal whose records are synced like this."""
    original = FileJournal._append

    def append(self: FileJournal, entries: list[format.Written]) -> None:
        if self._file is None:
            self._begin_segment([])
        file = self._file
        assert file is not None
        self._file = _Otherwise(file, "sync", lambda: sync(file))  # type: ignore[assignment]
        try:
            original(self, entries)
        finally:
            self._file = file

    return replace(FileJournal, "_append", append)


@mutant("a record is durable before anything rests on it", durability="disk")
def journal_is_not_synced() -> Iterator[None]:
    with _syncing(nothing):
        yield


@mutant("the end marker is never newer than the journal", durability="disk")
def marker_before_the_record() -> Iterator[None]:
    original = FileJournal._append

    def append(self: FileJournal, entries: list[format.Written]) -> None:
        if self._file is not None:
            self._sequence += 1
            self._states = self.resumed()
            self._write_marker()
            self._sync_marker()
            self._sequence -= 1
        original(self, entries)

    with replace(FileJournal, "_append", append):
        yield


@mutant("nothing is acknowledged behind a partial record", durability="disk")
def partial_record_stays() -> Iterator[None]:
    """The next record would be written over it, if files were not appended to where they end."""

    def cut(self: FileJournal, file: File) -> None:
        with contextlib.suppress(OSError):
            file.truncate(self._end)

    def append(self: VirtualFile, data: bytes) -> None:
        self.write(len(self._inode.data), data)
        self._size = len(self._inode.data)

    with replace(FileJournal, "_cut", cut), replace(VirtualFile, "append", append):
        yield


@mutant("a torn tail is cut before anything follows it", durability="disk")
def torn_tail_stays() -> Iterator[None]:
    original = FileJournal._go_on

    def go_on(self: FileJournal, last: format.Scan, durable: int) -> None:
        # What follows is written behind it.
        original(self, last._replace(torn=False), durable)

    with replace(FileJournal, "_go_on", go_on):
        yield


@mutant("a segment is dropped when nothing in it is needed any more", durability="disk")
def segments_dropped_early() -> Iterator[None]:
    def obsolete(self: format.Segment, minimum: Callable[[int], int]) -> bool:
        return True

    with replace(format.Segment, "obsolete", obsolete):
        yield


@mutant("the end marker tells what has to be there", durability="disk")
def marker_is_not_compared() -> Iterator[None]:
    original = format.assemble

    def assemble(scans: dict[int, format.Scan], marker: format.Marker | None, exact: bool) -> format.Assembled:
        found = original(scans, None, exact)
        found.problems, found.broken = [], False
        return found

    with replace(format, "assemble", assemble):
        yield


@mutant("an end marker of another start of the machine does not tell the last promises", durability="disk")
def older_marker_is_believed() -> Iterator[None]:
    with replace(format, "is_exact", lambda marker, problems, boot: True):
        yield


@mutant("what is missing in a journal is told to its committers", durability="disk")
def losses_are_not_told() -> Iterator[None]:
    original = FileJournal.replay

    def replay(self: FileJournal) -> dict[int, list[t.ReplayedEntry]]:
        # Neither that something is missing, nor what the end marker has of it.
        return {
            number: entries[: entries.index(t.Lost())] if t.Lost() in entries else entries
            for number, entries in original(self).items()
        }

    with replace(FileJournal, "replay", replay):
        yield


@mutant("a restored journal begins with all that its committers know", durability="disk")
def restored_with_nothing() -> Iterator[None]:
    original = FileJournal.restore

    def restore(self: FileJournal, entries: list[format.Written]) -> Path | None:
        return original(self, entries[:0])

    with replace(FileJournal, "restore", restore):
        yield


@mutant("a segment begins with what its committers have promised", durability="disk")
def segment_without_a_head() -> Iterator[None]:
    with replace(site_storage, "segment_head", lambda committers: []):
        yield


@mutant("a sync that failed is final", durability="disk")
def failed_sync_is_ignored() -> Iterator[None]:
    def sync(file: File) -> None:
        with contextlib.suppress(OSError):
            file.sync()

    with _syncing(sync):
        yield


@mutant("a checkpoint is compared with its digest before it is used", durability="disk")
def checkpoints_are_not_compared() -> Iterator[None]:
    def read_checkpoint(path: Path, cluster: int, era: int, disk: Disk) -> t.Loaded:
        data = disk.read(path)
        start, stop = data.find(b"\n") + 1, len(data) - store.DIGEST_BYTES - store.CHECKSUM_BYTES
        parts = store.unpack_parts(data, start, stop)
        return t.Loaded(t.CheckpointId(int(path.stem), data[stop : stop + store.DIGEST_BYTES]), parts[0], parts[1:])

    with replace(store, "read_checkpoint", read_checkpoint):
        yield


@mutant("the newest checkpoint stays, however old it is")
def last_checkpoint_is_discarded() -> Iterator[None]:
    def discard(self: CheckpointStore, below: int) -> None:
        for path in store.list_paths(self._directory, store.CHECKPOINT_FILES, self._disk):
            if int(path.stem) <= below:
                self._disk.unlink(path)

    with replace(CheckpointStore, "_discard", discard):
        yield


@mutant("a checkpoint is there as a whole, or not at all", durability="disk")
def checkpoints_in_place() -> Iterator[None]:
    def write_whole(path: Path, parts: Iterable[bytes], disk: Disk) -> None:
        file = disk.create(path)
        for part in parts:
            file.append(part)

    with replace(store, "write_whole", write_whole):
        yield


@mutant("what the disk cannot read now is not thrown away", durability="disk")
def unreadable_is_thrown_away() -> Iterator[None]:
    original = CheckpointStore._read

    def read(self: CheckpointStore, path: Path) -> t.Loaded:
        try:
            return original(self, path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise store.StoreError(str(error)) from error

    with replace(CheckpointStore, "_read", read):
        yield


@mutant("a run that the log has in part is not passed over", durability="disk")
def rows_are_passed_over() -> Iterator[None]:
    original = LogWriter.take

    def take(self: LogWriter, run: EncodedRun) -> None:
        if run.counter < self.last < run.end:
            self._position, self._counter, self.last = run.position, run.end, run.end
            return
        original(self, run)

    with replace(LogWriter, "take", take):
        yield


@mutant("rows are in the log before the checkpoint behind them is announced", durability="disk")
def log_is_not_waited_for() -> Iterator[None]:
    original = CheckpointStore._save

    def save(self: CheckpointStore, job: t.Save) -> float:
        log, self.log = self.log, None
        try:
            return original(self, job)
        finally:
            self.log = log

    def seal(self: LogWriter, number: int, state: bytes) -> None:
        if number % 2:
            return
        sealed(self, number, state)

    sealed = LogWriter.seal
    with (
        replace(CheckpointStore, "_save", save),
        replace(LogWriter, "seal", seal),
        replace(LogWriter, "flush", nothing),
    ):
        yield


@mutant("a block that was written in part does not count", durability="disk")
def torn_block_counts() -> Iterator[None]:
    original = Tail.append

    def append(self: Tail, last: int, block: bytes) -> None:
        try:
            original(self, last, block)
        except OSError:
            self.last = last
            self._torn = False

    with replace(Tail, "append", append):
        yield


@mutant("a gap in a log is filled from its peers", durability="disk")
def gaps_stay() -> Iterator[None]:
    with replace(LogWriter, "_heal", nothing):
        yield


@mutant("an executor does not do again what has ended its process twice", kind="fatal", durability="disk")
def nothing_is_barred() -> Iterator[None]:
    original = ExecutionRecord._write

    def write(self: ExecutionRecord) -> None:
        self.strikes = Strikes(self.strikes.places, self.strikes.counts, [])
        original(self)

    with replace(ExecutionRecord, "_write", write):
        yield


@mutant("a directory is synced when a name in it has changed", durability="disk")
def names_are_not_durable() -> Iterator[None]:
    original = FileJournal._begin_segment

    def begin_segment(self: FileJournal, entries: list[format.Written], restored: bool = False) -> None:
        disk = self._disk
        self._disk = _Otherwise(disk, "sync_directory", nothing)  # type: ignore[assignment]
        try:
            original(self, entries, restored)
        finally:
            self._disk = disk

    with replace(FileJournal, "_begin_segment", begin_segment):
        yield


@mutant("the journal of a directory that is an older copy is set aside", durability="disk")
def older_directory_is_trusted() -> Iterator[None]:
    def trusting(records: Records, claim: StartClaim) -> Granted:
        records.begun[claim.container] = 0
        return admit(records, claim)

    with replace(world, "admit", trusting):
        yield


@mutant("a journal that has another name than the newest one is set aside", durability="disk")
def any_journal_is_trusted() -> Iterator[None]:
    def trusting(records: Records, claim: StartClaim) -> Granted:
        records.begun[claim.container] = 0
        if claim.journal:
            records.journals[claim.container] = claim.journal
        return admit(records, claim)

    with replace(world, "admit", trusting):
        yield


@mutant("the counter of a new era leaves out what the old one may have handed out")
def counter_goes_on() -> Iterator[None]:
    def first_sessions(old: SessionsState, now_ms: int) -> SessionsState:
        return msgspec.structs.replace(sessions_of_next_era(old, now_ms), counter=old.counter)

    with replace(eras, "first_sessions", first_sessions):
        yield


@mutant("a new era begins with the newest checkpoint that is left")
def older_checkpoint_is_taken() -> Iterator[None]:
    def best_checkpoint(copies: Sequence[Copy], cluster: int, era: int) -> Best:
        newest = max(int(copy.path.stem) for copy in copies)
        return newest_checkpoint([copy for copy in copies if int(copy.path.stem) < newest] or copies, cluster, era)

    with replace(eras, "best_checkpoint", best_checkpoint):
        yield
