"""Mutants of the storage: what is durable when, what is read back, and what is noticed."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from tara.host import strikes
from tara.host.bare_site import BareSite
from tara.host.strikes import Strikes
from tara.protocol import journal as format
from tara.protocol import tuples as t
from tara.protocol.sessions import SessionsState
from tara.protocol.state_digest import DIGEST_BYTES
from tara.simulator import eras, world
from tara.simulator.disk import VirtualFile
from tara.simulator.mutants.registry import mutant, nothing, replace
from tara.storage import base_format, bases, log_format, peer_segments, segments, ways
from tara.storage.bases import Bases
from tara.storage.disk import Disk, File
from tara.storage.execution_record import ExecutionRecord
from tara.storage.journal import FileJournal
from tara.storage.log import DecidedLog
from tara.storage.log_format import LogFile, LogIdentity
from tara.storage.log_writer import EncodedRun, LogWriter, Part, Tail
from tara.storage.new_era import first_sessions as sessions_of_next_era
from tara.storage.peer_segments import Offers
from tara.storage.rebuild import History, Rebuilt, Source, rebuild
from tara.storage.registration import Granted, Records, StartClaim, admit
from tara.storage.segments import Segments


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
            self._states = self.promised()
            self._write_marker()
            self._sync_marker()
            self._sequence -= 1
        original(self, entries)

    with replace(FileJournal, "_append", append):
        yield


@mutant(
    "the slot of the end marker that is durable stays until another one is",
    durability="disk",
    fault="damage_after_power_cut",
)
def durable_slot_is_written() -> Iterator[None]:
    original = FileJournal._write_marker

    def write_marker(self: FileJournal) -> None:
        self._durable_slot = self._slot
        original(self)

    with replace(FileJournal, "_write_marker", write_marker):
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
    with replace(BareSite, "promised", lambda site: []):
        yield


@mutant("a sync that failed is final", durability="disk")
def failed_sync_is_ignored() -> Iterator[None]:
    def sync(file: File) -> None:
        with contextlib.suppress(OSError):
            file.sync()

    with _syncing(sync):
        yield


@mutant("a base is compared with its digest before it is used", durability="disk", fault="rotten_checkpoint")
def bases_are_not_compared() -> Iterator[None]:
    def read(path: Path, cluster: int, era: int, disk: Disk) -> base_format.StoredBase:
        pieces = base_format._Pieces(path, disk)
        header = base_format._header(pieces.header)
        parts = list(base_format._parts(pieces))
        base = t.CheckpointId(int(path.stem), bytes.fromhex(header.digest))
        return base_format.StoredBase(base, parts[0], pieces.take(DIGEST_BYTES), sum(map(len, parts)), path, disk)

    with replace(bases, "read_base", read):
        yield


@mutant("a segment is compared with its checksum before it is used", durability="disk", fault="rotten_checkpoint")
def segments_are_not_compared() -> Iterator[None]:
    def contents(file: BinaryIO, path: Path, block: log_format.Block) -> bytes:
        file.seek(block.start)
        return file.read(block.end - block.start)

    def read(segment: LogFile, identity: LogIdentity, disk: Disk) -> tuple[io.BytesIO, log_format.SegmentEnd]:
        file = io.BytesIO(disk.read(segment.path))
        (end,) = [block for block in log_format.blocks(file, segment.path) if block.kind == log_format.CHECKPOINT]
        return file, log_format.read_end(file, segment.path, end)

    with (
        replace(log_format, "_read", contents),
        replace(segments, "read_segment", read),
        replace(peer_segments, "read_segment", read),
    ):
        yield


@mutant("the newest base stays, however old it is")
def last_base_is_removed() -> Iterator[None]:
    def retain(self: Bases) -> None:
        for offer in self.own():
            self.disk.unlink(offer.path)

    with replace(Bases, "retain", retain):
        yield


@mutant("what a base needs of the log is kept")
def log_is_cut_behind_no_base() -> Iterator[None]:
    original = Segments.retain

    def retain(self: Segments, bytes_: int, needed_from: int) -> None:
        original(self, 0, max(self.sealed - 1, 0))

    with replace(Segments, "retain", retain):
        yield


@mutant("a base that came from another executor is kept here, too")
def loaded_base_is_not_kept() -> Iterator[None]:
    def copy(self: Bases, number: int, source: Path) -> base_format.StoredBase | None:
        return self._read_or_refuse(source)

    def move_in(self: Bases, found: base_format.StoredBase) -> base_format.StoredBase | None:
        return found

    with replace(Bases, "_copy", copy), replace(Bases, "_move_in", move_in):
        yield


@mutant("what the disk cannot read now is not thrown away", durability="disk", fault="store_failing")
def unreadable_is_thrown_away() -> Iterator[None]:
    def read_later(self: Segments, file: LogFile) -> None:
        self._lose(file)

    def read(path: Path, cluster: int, era: int, disk: Disk) -> base_format.StoredBase:
        try:
            return base_format.read_base(path, cluster, era, disk)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise base_format.BaseError(str(error)) from error

    with replace(Segments, "_read_later", read_later), replace(bases, "read_base", read):
        yield


@mutant("a run that the log has in part is not passed over", durability="disk")
def runs_are_passed_over() -> Iterator[None]:
    original = Part.take

    def take(self: Part, run: EncodedRun) -> None:
        if run.first < self.position:
            self.position, self.last = run.position, run.end
            return
        original(self, run)

    with replace(Part, "take", take):
        yield


@mutant("a checkpoint that only a part of the log leads to is not announced", durability="disk", fault="log_gap")
def announced_over_a_gap() -> Iterator[None]:
    """And what is executed again is not written again."""

    def whatever_is_missing(self: DecidedLog, writer: LogWriter) -> int:
        return writer.segments.sealed

    def passed_over(self: LogWriter, number: int, run: EncodedRun) -> None:
        pass

    with replace(DecidedLog, "_reach", whatever_is_missing), replace(LogWriter, "_part_in_gap", passed_over):
        yield


@mutant("the log is durable before the checkpoint at its end is announced", durability="disk")
def log_is_not_synced() -> Iterator[None]:
    with replace(Tail, "_sync", nothing):
        yield


@mutant("a block that was written in part does not count", durability="disk")
def torn_block_counts() -> Iterator[None]:
    original = Tail.append

    def append(self: Tail, last: int, position: int, block: bytes) -> None:
        try:
            original(self, last, position, block)
        except OSError:
            self.last, self.position = last, position
            self._torn = False

    with replace(Tail, "append", append):
        yield


@mutant("what is missing in a log is fetched from its peers", durability="disk")
def gaps_stay() -> Iterator[None]:
    with replace(Segments, "_heal", nothing):
        yield


@mutant("a way ends where a segment is missing")
def way_ends_somewhere() -> Iterator[None]:
    def follow(start: int, segments: Segments, offers: Offers | None) -> tuple[int, int]:
        return max(segments.sealed, start), 0

    with replace(ways, "_follow", follow):
        yield


@mutant("an executor does not do again what has ended its process twice", kind="fatal", durability="disk")
def nothing_is_barred() -> Iterator[None]:
    original = ExecutionRecord._write

    def write(self: ExecutionRecord) -> None:
        self.strikes = Strikes(self.strikes.place, self.strikes.count, [])
        original(self)

    with replace(ExecutionRecord, "_write", write):
        yield


@mutant(
    "an executor does not ask for snapshots again that have ended its process twice",
    fault="fatal_snapshot",
    durability="disk",
)
def each_base_is_another_snapshot() -> Iterator[None]:
    with replace(strikes, "cause", lambda place: place):
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


@mutant("a new era begins with the furthest state that is left")
def log_is_left_behind() -> Iterator[None]:
    def furthest(sources: Sequence[Source], history: History, until: int | None = None, copies: int = 0) -> Rebuilt:
        # With a base, as it is.
        return rebuild([source._replace(log=source.log / "elsewhere") for source in sources], history, until, copies)

    with replace(eras, "rebuild", furthest):
        yield
