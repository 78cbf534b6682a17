"""States rebuilt from what executors have left: any state that the decided log reaches can be had again.

It takes a base, or the very beginning of an era that began with nothing; then segment after segment, each from whoever
has it intact; and at last the longest intact piece of what would have been the next one: whatever stands in a log was
decided. The running digest at the end of every segment tells whether the application does again what it did.

Pure, over disks and an application. The logs may be written meanwhile.
"""

import io
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from tara.protocol import tuples as t
from tara.protocol.errors import BaseUnreadable, NodeHalted, TaraError
from tara.protocol.execution import Execution, ExecutionState
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.protocol.sessions import Application, raised
from tara.storage.base_format import BaseError, StoredBase, base_directory, list_bases, number_of, read_base
from tara.storage.disk import LOCAL, Disk
from tara.storage.log import log_directory
from tara.storage.log_format import (
    CHECKPOINT,
    LogError,
    LogFile,
    LogIdentity,
    Run,
    SegmentEnd,
    blocks,
    list_segments,
    list_tails,
    read_block,
    read_end,
    read_header,
    read_segment,
    runs_of,
)

_Known = TypeVar("_Known")
#: How often it begins again because files have gone meanwhile: executors that run seal and drop them.
LOOKS_MAX = 5


class RebuildError(TaraError):
    """A state that cannot be rebuilt."""


class NothingLeft(RebuildError):
    """There is nothing to begin with, or nothing of which there are enough copies."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class OutOfReach(RebuildError):
    """A command whose state cannot be had."""

    def __init__(self, counter: int, ranges: list[tuple[int, int]]) -> None:
        found = ", ".join(f"{first} to {last}" for first, last in ranges)
        there = f"the states of commands {found} can be rebuilt" if found else "no state can be rebuilt"
        super().__init__(f"command {counter}: out of range; {there}")
        #: The commands [first, last] whose states can be had.
        self.ranges = ranges


class _Unusable(Exception):
    """A base that cannot be begun with."""


class _Gone(Exception):
    """A file is not there any more."""


class Source(NamedTuple):
    """What is left of one executor."""

    bases: Path
    log: Path
    disk: Disk = LOCAL


class History(NamedTuple):
    """Whose states these are, and how they come about."""

    cluster: int
    era: int
    #: The checkpoint that the era began with; 0: with nothing.
    threshold: int
    limits: Limits
    make: Callable[[], Application]

    @property
    def interval(self) -> int:
        return self.limits.checkpoint_interval


class Rebuilt(NamedTuple):
    #: Of a point in time within a request, only sessions and application are as they were then.
    execution: Execution
    #: The last checkpoint on the way, and how many replicas have it.
    checkpoint: t.CheckpointId
    copies: int
    #: What it began with; None: nothing.
    base: StoredBase | None
    #: What was looked at, and is of no use.
    problems: list[str]

    @property
    def counter(self) -> int:
        """The last command in it."""
        return self.execution.sessions.counter


def source_of(data_dir: Path, replica: int, disk: Disk = LOCAL) -> Source:
    """What an executor has in a data directory."""
    return Source(base_directory(data_dir, replica), log_directory(data_dir, replica), disk)


def rebuild(sources: Sequence[Source], history: History, until: int | None = None, copies: int = 0) -> Rebuilt:
    """The state that reaches furthest; or the one as of command `until`, or one before it if that one was executed
    together with others and cannot be parted from them; or the one at the last checkpoint that at least so many
    replicas have. `RebuildError` if it cannot be had."""
    for _ in range(LOOKS_MAX):
        try:
            return _Rebuilding(sources, history).state(until, copies)
        except (_Gone, BaseUnreadable) as error:
            problem = str(error)
    raise RebuildError(f"{problem}: is not there any more")


def numbers_in(sources: Iterable[Source]) -> set[int]:
    """The checkpoints in the names of all files, whatever is in them."""
    remains = _Files(sources)
    return {*remains.bases, *remains.segments, *remains.tails}


class _File(NamedTuple):
    #: The place of the source among all sources.
    holder: int
    file: LogFile
    disk: Disk


class _BaseFile(NamedTuple):
    holder: int
    path: Path
    disk: Disk


class _Files:
    """What there is, by names, under the numbers of checkpoints."""

    def __init__(self, sources: Iterable[Source]) -> None:
        #: What is of no use, and why.
        self.problems: dict[Path, str] = {}
        self.bases: dict[int, list[_BaseFile]] = {}
        self.segments: dict[int, list[_File]] = {}
        self.tails: dict[int, list[_File]] = {}
        for holder, source in enumerate(sources):
            try:
                for path in list_bases(source.bases, source.disk):
                    self.bases.setdefault(number_of(path), []).append(_BaseFile(holder, path, source.disk))
                # Tails first: one that becomes a segment meanwhile is seen twice rather than not at all.
                for found, files in ((self.tails, list_tails), (self.segments, list_segments)):
                    for file in files(source.log, source.disk):
                        found.setdefault(file.number, []).append(_File(holder, file, source.disk))
            except OSError as error:
                self.problems[source.log] = str(error)


class _Whole(NamedTuple):
    """An interval of which there is an intact copy at least."""

    end: SegmentEnd
    copies: list[_File]
    #: Who has its end: also those that have a base there.
    holders: frozenset[int]


class _Piece(NamedTuple):
    """The requests of an interval, as far as a file has them without a gap."""

    runs: list[Run]
    position: int
    #: The last command.
    counter: int
    #: Why there are no more.
    problem: str
    end: SegmentEnd | None


class _Start(NamedTuple):
    number: int
    counter: int
    base: StoredBase | None
    state: ExecutionState | None
    holders: frozenset[int]


class _Rebuilding:
    """Everything is read when it is asked for. Copies of a checkpoint that differ are for an operator, unless most are
    equal."""

    def __init__(self, sources: Sequence[Source], history: History) -> None:
        self._history = history
        self._identity = LogIdentity(history.cluster, history.era)
        self._files = _Files(sources)
        self._problems = self._files.problems
        self._bases: dict[int, list[tuple[int, StoredBase]]] = {}
        self._wholes: dict[int, _Whole | None] = {}
        self._pieces: dict[int, _Piece | None] = {}

    def state(self, until: int | None, copies: int) -> Rebuilt:
        for start in self._starts():
            if until is not None and start.counter > until:
                continue
            way = self._way(start, until, copies)
            if way is None:
                continue
            last = way[-1].end.counter if way else start.counter
            piece = None
            if not copies and (until is None or last < until):
                piece = self._piece_behind(start, way)
            if until is not None and max(last, piece.counter if piece else 0) < until:
                break
            try:
                execution = self._begin(start)
            except _Unusable as error:
                self._note(start.base.path if start.base is not None else Path(), str(error))
                continue
            return self._follow(execution, start, way, piece, until)
        if until is not None:
            raise OutOfReach(until, self._ranges())
        raise NothingLeft(list(self._problems.values()))

    def _note(self, path: Path, problem: str) -> None:
        self._problems.setdefault(path, problem)

    def _starts(self) -> Iterator[_Start]:
        """What can be begun with, the newest first."""
        for number in sorted(self._files.bases, reverse=True):
            found = self._agreed_base(number)
            if found is None:
                continue
            base, holders = found
            try:
                state = msgspec.msgpack.decode(base.state, type=ExecutionState)
            except t.DECODE_ERRORS as error:
                self._note(base.path, f"{base.path}: {error}")
                continue
            if (state.next, state.digest) != (number * self._history.interval, base.id.digest):
                self._note(base.path, f"{base.path}: is of execution number {state.next}, or of another history")
                continue
            yield _Start(number, state.sessions.counter, base, state, holders)
        if not self._history.threshold:
            yield _Start(0, 0, None, None, frozenset())

    def _read_bases(self, number: int) -> list[tuple[int, StoredBase]]:
        """The intact ones, and who has them."""
        if number not in self._bases:
            found = self._bases[number] = []
            for holder, path, disk in self._files.bases.get(number, ()):
                try:
                    found.append((holder, read_base(path, self._history.cluster, self._history.era, disk)))
                except (OSError, BaseError) as error:
                    self._note(path, f"{path}: {error}")
        return self._bases[number]

    def _agreed_base(self, number: int) -> tuple[StoredBase, frozenset[int]] | None:
        bases, whole = self._read_bases(number), self.whole(number)
        states: dict[object, list[tuple[int, StoredBase]]] = {}
        for holder, base in bases:
            if whole is None or base.id.digest == whole.end.digest:
                states.setdefault((base.id.digest, base.digest), []).append((holder, base))
            else:
                self._note(base.path, f"{base.path}: is of another history than most")
        if not states:
            return None
        agreed = _most(number, states, lambda known: known[1].path)
        holders = frozenset(holder for holder, _ in agreed) | (whole.holders if whole is not None else frozenset())
        return agreed[0][1], holders

    def whole(self, number: int) -> _Whole | None:
        """The interval before this checkpoint."""
        if number not in self._wholes:
            self._wholes[number] = self._read_wholes(number)
        return self._wholes[number]

    def _read_wholes(self, number: int) -> _Whole | None:
        ends: dict[object, list[tuple[int, Path, _File | None, SegmentEnd | None]]] = {}
        for found in (*self._files.segments.get(number, ()), *self._files.tails.get(number, ())):
            end = self._end_of(found)
            if end is not None:
                ends.setdefault(end.digest, []).append((found.holder, found.file.path, found, end))
        if not ends:
            return None
        for holder, base in self._read_bases(number):
            ends.setdefault(base.id.digest, []).append((holder, base.path, None, None))
        agreed = _most(number, ends, lambda known: known[1])
        copies = [file for _, _, file, _ in agreed if file is not None]
        end = next((end for _, _, _, end in agreed if end is not None), None)
        return None if end is None else _Whole(end, copies, frozenset(holder for holder, *_ in agreed))

    def _end_of(self, found: _File) -> SegmentEnd | None:
        """The checkpoint at its end, if it is intact up to there."""
        file, disk = found.file, found.disk
        try:
            if file.sealed:
                return read_segment(file, self._identity, disk)[1]
            # One that was about to be sealed.
            return self._piece(found).end
        except FileNotFoundError as error:
            raise _Gone(str(file.path)) from error
        except (OSError, LogError) as error:
            self._note(file.path, str(error))
            return None

    def _piece(self, found: _File) -> _Piece:
        """What is intact of a file, from its beginning on. An error if that is nothing."""
        begin = (found.file.number - 1) * self._history.interval
        path, runs, position, last, end, problem = found.file.path, [], begin, found.file.first - 1, None, ""
        file = io.BytesIO(found.disk.read(path))
        if read_header(file, path).identity != self._identity:
            raise LogError(f"{path}: belongs to another cluster or era")
        try:
            for block in blocks(file, path):
                if block.kind == CHECKPOINT:
                    end = read_end(file, path, block)
                    break
                read = read_block(file, path, block)
                if not read or read[0].first > position or block.first > last + 1:
                    problem = f"{path}: requests are missing behind {position}"
                    break
                runs += read
                position, last = max(read[-1].end, position), max(block.last, last)
        except (LogError, *t.DECODE_ERRORS) as error:
            problem = str(error)
        expected = (found.file.number, last, found.file.number * self._history.interval)
        if end is not None and (end.number, end.counter, position) != expected:
            end = None
        return _Piece(runs, position, last, problem, end)

    def _piece_behind(self, start: _Start, way: list[_Whole]) -> _Piece | None:
        """The longest piece of the interval that is not whole any more, or not yet."""
        number = start.number + len(way) + 1
        if number not in self._pieces:
            self._pieces[number] = self._longest_piece(number)
        return self._pieces[number]

    def _longest_piece(self, number: int) -> _Piece | None:
        pieces = []
        for found in (*self._files.tails.get(number, ()), *self._files.segments.get(number, ())):
            try:
                piece = self._piece(found)
            except FileNotFoundError as error:
                raise _Gone(str(found.file.path)) from error
            except (OSError, LogError) as error:
                self._note(found.file.path, str(error))
            else:
                pieces.append(piece)
                if piece.problem:
                    self._note(found.file.path, piece.problem)
        return max(pieces, key=lambda piece: piece.position, default=None)

    def _way(self, start: _Start, until: int | None, copies: int) -> list[_Whole] | None:
        """The intervals that lead on from there, the last one with that command, or with so many copies; None if it is
        of no use to begin there."""
        way: list[_Whole] = []
        reached = start.counter
        while (until is None or reached < until) and (whole := self.whole(start.number + len(way) + 1)) is not None:
            way.append(whole)
            reached = whole.end.counter
        while way and len(way[-1].holders) < copies:
            way.pop()
        if not way and len(start.holders) < copies:
            return None
        if not way and start.base is None and until is None and self._piece_behind(start, way) is None:
            # Nothing is left, and that is not the same as nothing that was ever done.
            return None
        return way

    def _ranges(self) -> list[tuple[int, int]]:
        """The commands whose states can be had."""
        ranges: list[tuple[int, int]] = []
        for start in sorted(self._starts(), key=lambda start: start.number):
            way = self._way(start, None, 0)
            if way is None:
                continue
            piece = self._piece_behind(start, way)
            last = max(way[-1].end.counter if way else start.counter, piece.counter if piece else 0)
            if ranges and start.counter <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
            else:
                ranges.append((start.counter, last))
        return ranges

    def _begin(self, start: _Start) -> Execution:
        history = self._history
        graph = Graph(history.limits.f, history.limits.partitions)
        execution = Execution(history.make, history.limits, graph.replicas(Stage.REQUEST_SOURCE))
        if start.base is not None and start.state is not None:
            try:
                execution.application.restore(start.base.chunks())
            except BaseUnreadable:
                raise
            except Exception as error:
                raise _Unusable(f"{start.base.path}: {raised(error)} when it was to restore it") from error
            execution.restore(start.state)
        return execution

    def _follow(
        self, execution: Execution, start: _Start, way: list[_Whole], piece: _Piece | None, until: int | None
    ) -> Rebuilt:
        checkpoint, holders = _checkpoint_of(start), start.holders
        for whole in way:
            reached = any(_execute(execution, run, until) for run in self._runs(whole))
            at_end = (whole.end.number * self._history.interval, whole.end.counter)
            if not reached or (execution.next, execution.sessions.counter) == at_end:
                checkpoint, holders = self._check(execution, whole), whole.holders
            if reached:
                return Rebuilt(execution, checkpoint, len(holders), start.base, list(self._problems.values()))
        for run in piece.runs if piece is not None else ():
            if _execute(execution, run, until):
                break
        return Rebuilt(execution, checkpoint, len(holders), start.base, list(self._problems.values()))

    def _check(self, execution: Execution, whole: _Whole) -> t.CheckpointId:
        """It is at the end of an interval, and executed what was executed there."""
        own, agreed = execution.checkpoint, t.CheckpointId(whole.end.number, whole.end.digest)
        if execution.next != agreed.number * self._history.interval:
            raise RebuildError(f"{whole.copies[0].file.path}: does not lead to checkpoint {agreed.number}")
        if own != agreed:
            raise RebuildError(
                f"checkpoint {agreed.number}: executing the log again gives digest {own.digest.hex()}, but it was "
                f"{agreed.digest.hex()}: the application is not deterministic, or not the one that executed it"
            )
        return agreed

    def _runs(self, whole: _Whole) -> Iterator[Run]:
        """From the first copy that can be read."""
        for copy in whole.copies:
            try:
                file = io.BytesIO(copy.disk.read(copy.file.path))
            except OSError:
                continue
            yield from runs_of(file, copy.file.path)
            return
        raise _Gone(str(whole.copies[0].file.path))


def _checkpoint_of(start: _Start) -> t.CheckpointId:
    return start.base.id if start.base is not None else t.CheckpointId(0, b"")


def _most(number: int, groups: dict[object, list[_Known]], path_of: Callable[[_Known], Path]) -> list[_Known]:
    """What most copies of a checkpoint are."""
    first, *rest = sorted(groups.values(), key=len, reverse=True)
    if rest and len(rest[0]) == len(first):
        paths = ", ".join(str(path_of(group[0])) for group in (first, *rest))
        raise RebuildError(f"copies of checkpoint {number} differ: {paths}; move those away that are not to be used")
    return first


def _execute(execution: Execution, run: Run, until: int | None) -> bool:
    """Execute a run again; whether it came to that command."""
    if until is not None and execution.sessions.counter >= until:
        return True
    requests, reached = run.requests(), False
    if until is not None and run.counters[-1] >= until:
        place, reached = bisect_left(run.counters, until), True
        last = requests[place] if run.counters[place] == until else _part_of(run, requests[place], place, until)
        requests = [*requests[:place], *([last] if last is not None else [])]
    if run.first + len(requests) > execution.next:
        try:
            failure = execution.replay(run.first, requests, run.skipped).failure
        except NodeHalted as error:
            raise RebuildError(str(error)) from error
        if failure:
            raise RebuildError(f"command {execution.sessions.counter}: {failure}")
    return reached


def _part_of(run: Run, request: t.Request, place: int, until: int) -> t.Request | None:
    """The request with those of its commands that can be executed without going beyond command `until`; None: not even
    its time may pass."""
    begin = run.counters[place - 1] if place else run.counter
    commands = t.decode_commands(request.body)
    if run.commands is None:
        return msgspec.structs.replace(request, body=t.encode(commands[: until - begin]))
    before = sum(len(t.decode_commands(body)) for body in run.bodies[:place])
    # What the numbers up to the first one too many stand for. Before a command is executed that came with this request
    # itself, it has no number: so this is where to stop. What others waited for cannot be parted from them.
    taken = run.commands[begin - run.counter : until + 1 - run.counter]
    for known in reversed(taken):
        if isinstance(known, int) and known >= before:
            return msgspec.structs.replace(request, body=t.encode(commands[: known - before]))
    return None
