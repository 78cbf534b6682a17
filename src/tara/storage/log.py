"""The decided log of one executor, as its container sees it: takes what was executed, says when it is durable up to a
checkpoint, and leads an executor back to one.

The container encodes what it hands over, which takes about a microsecond per command and leaves nothing but bytes;
`work`, which a thread of the log's own calls a few times a second (`tara.storage.worker`), writes them as they are.
Nothing else is done per command: rows are made by readers, who see one about `FLUSH_S` after it was executed. What may
wait here is bounded by the executor, which does not go further ahead of its durable checkpoint than a window.

A checkpoint is said to be durable when files that this life has written or read lead to it: a base, and all segments
behind it. Where one is missing, those behind it wait until it was executed again, or fetched, or a newer base is here.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.storage.bases import Bases
from tara.storage.disk import LOCAL, Disk
from tara.storage.log_format import ForeignLog, LogFile, Run, SegmentEnd, encode_run, runs_of
from tara.storage.log_writer import EncodedRun, LogSettings, LogWriter, RowsLost
from tara.storage.peer_segments import PeerSegments
from tara.storage.remote import RemoteFiles
from tara.storage.ways import Way, find_way

#: How long a row may wait until readers see it.
FLUSH_S = 0.25
RETRY_S = 1.0
ERRORS_KEPT = 100
#: How often the look at the segments is put off, a `FLUSH_S` each time, because there is something else to do; and for
#: how many times as long as it took, the disk is left to others then.
PUT_OFF_MAX = 40
LEAVE_TIMES = 2
#: How long checkpoints may wait for a segment that is missing before a base is asked for; doubles, while there is none,
#: up to a maximum.
BASE_WAIT_S, BASE_WAIT_MAX_S = 2.0, 64.0
#: Bases of this life that are remembered; only the newest ones are kept on the disk.
ROOTS_KEPT = 4
#: Checkpoints that wait: what executors hand over is bounded by a window, but not what they execute again.
HELD_MAX = 1024
#: What an executor gets to execute again at once, in requests and bytes: until then its site does nothing else.
REPLAY_REQUESTS = 500
REPLAY_BYTES = 1 << 18


class NewBase(NamedTuple):
    """The store has written a base, durably."""

    number: int


Job = t.Mark | t.Load | t.More | t.Doubted | NewBase


def log_directory(data_dir: Path, replica: int) -> Path:
    return data_dir / f"log-{replica}"


class DecidedLog:
    def __init__(
        self,
        replica: int,
        directory: Path,
        settings: LogSettings,
        bases: Bases,
        peers: dict[int, Path],
        remote: RemoteFiles | None = None,
        disk: Disk = LOCAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`peers` are the directories of the other replicas' logs, as far as this host can read them."""
        self._replica = replica
        self._clock = clock
        #: When the segments are looked after next.
        self.look_due_s = clock()
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._bases = bases
        self._others = list(peers)
        self._remote = remote
        self._peers = PeerSegments(settings.identity, peers, remote, self._report, disk, bases.pacer)
        #: What the container handed over and the thread has not handled.
        self._queue: deque[EncodedRun | Job] = deque()
        #: Requests handed over (written by the container only) and handled (by the thread only).
        self._handed = self._handled = 0
        #: The newest checkpoint with a durable segment, or a base.
        self.sealed = -1
        #: Checkpoints that this life can come back to without the log: the beginning, and bases that it has read or
        #: written; oldest first.
        self._roots = [0]
        #: Checkpoints that nothing here leads to yet; and since then, how long they wait for a base to be asked for.
        self._held: dict[int, t.CheckpointId] = {}
        self._base_due_s = 0.0
        self._base_wait_s = BASE_WAIT_S
        self._writer: LogWriter | None = None
        #: What the executor is being led along; and whether it has asked for something of that lately.
        self._pieces: Iterator[_Piece] = iter(())
        self._leads = False
        self._put_off = 0
        self.errors: list[str] = []
        #: How long readers may have to wait for what nobody has hurried with, and a segment for the one before it to be
        #: looked after.
        self.pause_s = FLUSH_S
        #: Called when there is something to do at once.
        self.wake: Callable[[], None] = lambda: None
        #: Called by `work`: has an answer for the executor; is durable up to another checkpoint; cannot be written in
        #: this life: no checkpoint will ever be announced then; something is wrong.
        self.on_answer: Callable[[t.Tuple], None] = lambda answer: None
        self.on_sealed: Callable[[], None] = lambda: None
        self.on_failure: Callable[[Exception], None] = lambda error: None
        self.on_problem: Callable[[str], None] = lambda message: None
        self._failed = False

    def append(self, executed: t.Executed) -> None:
        """Take a run. This is the hot path: the run is encoded, and nothing else."""
        count, data = len(executed.requests), encode_run(executed)
        self._handed += count
        end = executed.counters[-1]
        self._queue.append(EncodedRun(executed.first, executed.first + count, executed.counter, end, data))

    def submit(self, job: Job) -> None:
        self._queue.append(job)
        self.wake()

    @property
    def waiting(self) -> int:
        """Requests that were handed over, and are in no file yet."""
        return self._handed - self._handled

    def status(self) -> dict[str, object]:
        writer = self._writer
        segments = None if writer is None else writer.segments
        return {
            "first": writer.first if writer is not None else None,
            "last": writer.last if writer is not None else None,
            "waiting": self.waiting,
            "unread": segments.unread if segments is not None else None,
            "gaps": len(segments.missing) if segments is not None else None,
            "error": self.errors[-1] if self.errors else None,
        }

    def interrupt(self) -> None:
        """Whatever is being fetched from other hosts is not needed any more."""
        if self._remote is not None:
            self._remote.closing.set()

    def work(self) -> float:
        """On the thread: do what was handed over; returns after how many seconds to come again."""
        if self._failed:
            return RETRY_S
        try:
            if self._writer is None:
                self._writer = LogWriter(self._directory, self._settings, self._peers, self._report, self._disk)
                self.sealed = self._writer.segments.sealed
            self._handle_all(self._writer)
            self._writer.flush()
            self._look_after(self._writer)
        except (ForeignLog, RowsLost) as error:
            self._fail(error)
        except (OSError, TaraError) as error:
            # A full disk, most likely. Nothing is lost: what was not handled is still in the queue.
            self._report(str(error))
            return RETRY_S
        except Exception as error:
            self._fail(error)
        return self.pause_s

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._report(f"{self._directory}: {error}")
        self.on_failure(error)

    def _handle_all(self, writer: LogWriter) -> None:
        queue = self._queue
        while queue:
            match queue[0]:
                case EncodedRun() as run:
                    writer.take(run)
                    self._handled += run.position - run.first
                case t.Mark() as mark:
                    writer.seal(mark)
                    self._hold(mark.checkpoint)
                    self._note_sealed(writer)
                    self._answer_held(writer)
                case t.Doubted() as doubted:
                    self._settle(writer, doubted)
                case NewBase(number):
                    self._add_root(number)
                    self._answer_held(writer)
                case t.Load() as load:
                    self._load(writer, load)
                case t.More():
                    self._lead_on(writer)
            queue.popleft()

    def _note_sealed(self, writer: LogWriter) -> None:
        try:
            writer.segments.retain(self._settings.retention_bytes, self._bases.needed_from)
        except OSError as error:
            # They go with the next ones.
            self._report(str(error))
        if writer.segments.sealed > self.sealed:
            self.sealed = writer.segments.sealed
            self.on_sealed()

    def _add_root(self, number: int) -> None:
        self._roots = sorted({*self._roots, number})[-ROOTS_KEPT:]

    def _reach(self, writer: LogWriter) -> int:
        """The newest checkpoint that what is here leads to."""
        there = {0, *self._bases.numbers}
        return writer.segments.reach(max((root for root in self._roots if root in there), default=0))

    def _hold(self, checkpoint: t.CheckpointId) -> None:
        if not self._held:
            self._base_wait_s = BASE_WAIT_S
            self._base_due_s = self._clock() + BASE_WAIT_S
        self._held[checkpoint.number] = checkpoint
        if len(self._held) > HELD_MAX:
            del self._held[min(self._held)]

    def _answer_held(self, writer: LogWriter) -> None:
        """Say what is durable now."""
        reach = self._reach(writer) if self._held else 0
        for number in sorted(number for number in self._held if number <= reach):
            self.on_answer(t.Saved(self._held.pop(number)))

    def _ask_for_base(self, writer: LogWriter) -> None:
        """Should nobody have what is missing, a base behind it leads on."""
        if self._held and self._clock() >= self._base_due_s:
            self._base_due_s = self._clock() + self._base_wait_s
            self._base_wait_s = min(2 * self._base_wait_s, BASE_WAIT_MAX_S)
            self.on_answer(t.TakeBase(writer.segments.whole_from(max(self._held))))

    def _look_after(self, writer: LogWriter) -> None:
        """Now and then, and at most one segment: the executor does not wait for what is only read or fetched so that it
        is there. But not never, however much there is to do."""
        started_s = self._clock()
        if started_s < self.look_due_s:
            return
        self.look_due_s = started_s + self.pause_s
        self._put_off += 1
        if self._put_off > PUT_OFF_MAX or not (self._queue or self._leads):
            # Who was led may have halted.
            self._put_off, self._leads = 0, False
            writer.segments.look_after(self._bases.newest, self._others)
            ended_s = self._clock()
            self.look_due_s = ended_s + max(self.pause_s, LEAVE_TIMES * (ended_s - started_s))
        self._answer_held(writer)
        self._ask_for_base(writer)

    def _load(self, writer: LogWriter, load: t.Load) -> None:
        way = find_way(load, self._bases, writer.segments, self._replica, self._settings.checkpoint_interval)
        if way is None:
            self.on_answer(t.Loaded(None, b"", (), b"", 0, 0))
            return
        base = way.base
        self._pieces, self._leads = self._follow(writer, way), way.until > way.start
        if base is None:
            self.on_answer(t.Loaded(None, b"", (), b"", 0, way.until))
            return
        self._bases.counts.bases_loaded += 1
        self._bases.on_event("base_loaded", f"{base.id.number}, and the log up to checkpoint {way.until}")
        writer.leap(base.id.number, self._begin_before(base.id.number, way))
        self._add_root(base.id.number)
        self._note_sealed(writer)
        self._answer_held(writer)
        self.on_answer(t.Loaded(base.id, base.state, base.chunks(), base.digest, base.length, way.until))

    def _begin_before(self, number: int, way: Way) -> int:
        """Where a log begins that has nothing: with what others have before the base, as far as there is room for it.
        That is fetched later, one segment after the other."""
        begin, total = number + 1, 0
        while begin - 1 in way.offers:
            total += way.offers.size(begin - 1)
            if total > self._settings.retention_bytes:
                break
            begin -= 1
        return begin

    def _lead_on(self, writer: LogWriter) -> None:
        """Some more of what the executor has to execute again."""
        count = size = 0
        asks = False
        while not asks:
            piece = next(self._pieces, None)
            self._leads = piece is not None
            if piece is None:
                self.on_answer(t.Replay(0, [], [], None, False, True))
                return
            count += len(piece.requests)
            size += piece.bytes
            asks = count >= REPLAY_REQUESTS or size >= REPLAY_BYTES
            checkpoint, durable = piece.checkpoint, True
            if checkpoint is not None and (durable := self._reach(writer) >= checkpoint.number) is False:
                self._hold(checkpoint)
            self.on_answer(t.Replay(piece.first, piece.requests, piece.skipped, checkpoint, asks, False, durable))

    def _settle(self, writer: LogWriter, doubted: t.Doubted) -> None:
        checkpoint = doubted.checkpoint
        again = writer.segments.doubt(checkpoint.number, checkpoint.digest, doubted.digest, self._others)
        # What led to it, or on from it, is not what it was.
        self._pieces, self._leads = iter(()), False
        for number in [number for number in self._held if number >= checkpoint.number]:
            del self._held[number]
        self.on_answer(t.Settled(checkpoint, again))

    def _follow(self, writer: LogWriter, way: Way) -> Iterator["_Piece"]:
        """The requests that lead to the end, as far as the segments can be had."""
        for number in range(way.start + 1, way.until + 1):
            found = self._segment(writer, number, way)
            if found is None:
                break
            writer.leap(number)
            self._note_sealed(writer)
            yield from _pieces_of(*found)

    def _segment(self, writer: LogWriter, number: int, way: Way) -> tuple[Iterator[Run], SegmentEnd] | None:
        """A segment that is here, or is brought here; None if it cannot be had."""
        segments = writer.segments
        for _ in range(2):
            if number in segments:
                found = segments.read(number)
                if found is not None:
                    file: LogFile = segments[number]
                    return runs_of(found[0], file.path), found[1]
            # Also one that cannot be read now: whoever asked for the way need not wait until it can.
            offers = way.offers if number in way.offers else segments.offers(self._others)
            try:
                if not segments.bring(number, offers):
                    return None
            except OSError as error:
                # No room, or no disk: the executor comes again.
                self._report(str(error))
                return None
        return None

    def _report(self, message: str) -> None:
        self.on_problem(message)
        self.errors.append(message)
        del self.errors[:-ERRORS_KEPT]


class _Piece(NamedTuple):
    first: int
    requests: list[t.Request]
    skipped: list[int]
    bytes: int = 0
    checkpoint: t.CheckpointId | None = None


def _pieces_of(runs: Iterator[Run], end: SegmentEnd) -> Iterator[_Piece]:
    for run in runs:
        requests, begin, size = run.requests(), 0, 0
        for index, request in enumerate(requests, 1):
            size += len(request.body)
            if index - begin >= REPLAY_REQUESTS or size >= REPLAY_BYTES or index == len(requests):
                yield _Piece(run.first + begin, requests[begin:index], run.skipped, size)
                begin, size = index, 0
    yield _Piece(0, [], [], checkpoint=t.CheckpointId(end.number, end.digest))
