"""Writes the decided log of one executor. One thread uses it; `tara.runtime.log` brings it what was executed.

Rows that no checkpoint covers yet become visible in tail files. When a checkpoint is taken, the rows up to it become a
sealed segment, cut exactly there: segments are the same on all replicas.

- The checkpoint store writes a checkpoint only when the log up to it is sealed. So after any crash the log is at least
  as far as the checkpoint that the executor starts from, and what is executed again is in the log already: rows that
  the log has are passed over. Rows are neither missing nor there twice.
- If the executor jumps ahead (to a peer's checkpoint), or the log fell so far behind that it had to let rows go, the
  segments in between are copied from peers. If no peer has them, the log begins anew after the gap, and what it had is
  set aside: a log has no gaps, only a beginning.
- Retention drops whole segments, the oldest first.
"""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from tara.protocol import tuples as t
from tara.protocol.nodes.executor import ExecutorState
from tara.runtime.exchange import ExchangeError, RemoteFiles
from tara.runtime.journal import sync_directory
from tara.runtime.log import LogIdentity, LogSettings
from tara.runtime.log_format import (
    CorruptLog,
    LogError,
    LogFile,
    identity_of,
    list_files,
    parse_name,
    put_file,
    read_file,
    rows_of,
    write_file,
)

#: A tail file is written anew, together with the new rows, unless it has more than so many times their number: few
#: files, and each row is written a few times only, however slowly rows come.
TAIL_FACTOR = 2
#: How often it is tried again to fill a gap that peers do not reach the end of yet.
WAITS_MAX = 5
#: Where a log goes that cannot be continued. One is kept.
ASIDE = "aside"


class LogWriter:
    """Invariants: the segments hold the rows up to `_sealed` without a gap, `_rows` those of (_sealed, last]."""

    def __init__(
        self,
        directory: Path,
        settings: LogSettings,
        peers: Sequence[Path],
        report: Callable[[str], None],
        remote: RemoteFiles | None = None,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._identity: LogIdentity = settings.identity
        #: Directories of the other replicas' logs, where this host can read them.
        self._peers = [peer for peer in peers if peer != directory]
        #: What the other replicas have on other hosts, and which replicas these are.
        self._remote = remote
        self._others = [replica for replica, peer in enumerate(peers) if peer != directory]
        self._report = report
        self._segments: list[LogFile] = []
        #: The bytes of each segment.
        self._sizes: dict[Path, int] = {}
        self._tails: list[LogFile] = []
        self._rows: list[pa.RecordBatch] = []
        self._sealed = 0
        #: The last command in the log.
        self.last = 0
        #: Where the executor is: the next execution number, and the command counter. None: not known, because there
        #: is a gap before what comes next.
        self._position: int | None = None
        self._counter = 0
        self._waits = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._open()

    @property
    def first(self) -> int:
        """The first command in the log, or the one that it will begin with."""
        return self._segments[0].first if self._segments else self._sealed + 1

    # Opening

    def _open(self) -> None:
        for leftover in self._directory.glob("*.tmp"):
            leftover.unlink(missing_ok=True)
        files = list_files(self._directory)
        if files and not all(map(self._is_ours, files)):
            self._set_aside("belongs to another cluster or era")
            files = []
        self._segments = [file for file in files if file.sealed]
        # Without a segment, the log begins where the rows begin that no checkpoint covers.
        self._sealed = _end_of_chain(self._segments) if self._segments or not files else files[0].first - 1
        kept = [file for file in self._segments if file.last <= self._sealed]
        for file in self._segments[len(kept) :]:
            self._report(f"{file.path}: follows a gap; it is dropped and written again")
            file.path.unlink(missing_ok=True)
        self._segments = kept
        self._sizes = {file.path: file.path.stat().st_size for file in kept}
        self.last = self._sealed
        self._open_tails([file for file in files if not file.sealed])

    def _is_ours(self, file: LogFile) -> bool:
        try:
            return identity_of(file) == self._identity
        except (CorruptLog, OSError):
            # What is damaged is found when it is read; it says nothing about whose it is. A newer format ends us here.
            return True

    def _open_tails(self, tails: list[LogFile]) -> None:
        """Take over the rows of a former life as far as they join what is sealed. Tails are not synced: a machine
        that went down may have left a damaged one, and its rows will be executed again."""
        for file in tails:
            table = None
            if file.first <= self.last + 1 and file.last > self.last:
                with contextlib.suppress(CorruptLog, OSError):
                    _, table = read_file(file, self._identity)
            if table is None:
                file.path.unlink(missing_ok=True)
                continue
            self._rows += table.slice(self.last + 1 - file.first).to_batches()
            self.last = file.last
            self._tails.append(file)

    # Rows

    def take(self, run: Sequence[t.Executed]) -> None:
        """Runs that follow each other. Rows that the log has already are passed over."""
        first, end = run[0].counter + 1, run[-1].counters[-1]
        if first > self.last + 1:
            self._position = None
            return
        self._position = run[-1].first + len(run[-1].requests)
        self._counter = end
        if end > self.last:
            self._rows.append(rows_of(run, self._settings.partitions).slice(self.last + 1 - first))
            self.last = end

    def give_up_rows(self) -> None:
        """Something is wrong with the rows at hand. The cluster must not stand still for its log, so this becomes a
        gap, which the next checkpoint closes."""
        for tail in self._tails:
            tail.path.unlink(missing_ok=True)
        self._tails, self._rows, self.last, self._position = [], [], self._sealed, None

    # Sealing

    def seal(self, number: int, state: bytes) -> None:
        """The executor has this checkpoint: make the log durable up to it."""
        if self._position != number * self._settings.checkpoint_interval:
            self._jump(number, state)
        if self._counter > self._sealed:
            self._adopt(write_file(self._directory, self._cut(self._counter), self._identity, sealed=True))
        self._retain()

    def _adopt(self, segment: LogFile) -> None:
        """A segment that follows what is sealed is in place; forget the rows and tails that it covers."""
        self._segments.append(segment)
        self._sizes[segment.path] = segment.path.stat().st_size
        covered = max(min(segment.last, self.last) - self._sealed, 0)
        self._rows = _slice(self._rows, covered, self.last - self._sealed)
        self._sealed = max(segment.last, self._sealed)
        self.last = max(self.last, self._sealed)
        for tail in [tail for tail in self._tails if tail.last <= self._sealed]:
            self._tails.remove(tail)
            tail.path.unlink(missing_ok=True)

    def _cut(self, counter: int) -> list[pa.RecordBatch]:
        """The rows of (_sealed, counter]."""
        return _slice(self._rows, 0, counter - self._sealed)

    def _retain(self) -> None:
        total = sum(self._sizes.values())
        while len(self._segments) > 1 and total > self._settings.retention_bytes:
            oldest = self._segments.pop(0).path
            total -= self._sizes.pop(oldest)
            oldest.unlink(missing_ok=True)

    # Filling gaps

    def _jump(self, number: int, state: bytes) -> None:
        """The executor came to its place by a checkpoint, whose state tells which commands are behind it."""
        counter = msgspec.msgpack.decode(state, type=ExecutorState).sessions.counter
        if counter > self.last:
            self._fill(counter)
        self._position, self._counter = number * self._settings.checkpoint_interval, counter

    def _fill(self, counter: int) -> None:
        """Get the segments up to this counter from peers; begin anew with what there is if it does not join."""
        missing = self._find_missing(counter)
        if self._remote is not None and (not missing or missing[0].first > self._sealed + 1):
            with self._remote as remote:
                missing = self._fetch_missing(remote, counter)
        if missing is None:
            self._waits += 1
            if self._waits <= WAITS_MAX:
                raise LogError(f"{self._directory}: waits for a peer to have the commands up to {counter}")
            missing = []
        self._waits = 0
        if not missing or missing[0].first > self._sealed + 1:
            if self._segments or self._tails:
                self._set_aside(f"no peer has all commands of [{self._sealed + 1}, {counter}]")
            self._segments, self._sizes, self._tails, self._rows = [], {}, [], []
            self._sealed = self.last = missing[0].first - 1 if missing else counter
        for file in missing:
            put_file(self._directory, file.path.name, file.path.read_bytes(), durable=True)
            self._adopt(file._replace(path=self._directory / file.path.name))
        if self._remote is not None:
            self._remote.forget_others(())

    def _find_missing(self, counter: int) -> list[LogFile] | None:
        """Intact segments of peers that lead to `counter`, from what we have on if possible. None if peers have not
        come that far yet."""
        return self._chain(self._offered(), counter, self._is_intact)

    def _offered(self) -> list[LogFile]:
        """The segments of peers whose directories this host can read."""
        return [file for peer in self._peers for file in list_files(peer) if file.sealed]

    def _fetch_missing(self, remote: RemoteFiles, counter: int) -> list[LogFile] | None:
        """The same with what is on other hosts. Peers that cannot be reached may have what is missing: that counts as
        not having come that far yet."""
        holders: dict[Path, list[int]] = {}
        silent = False
        for replica in self._others:
            try:
                for name in remote.names(replica):
                    holders.setdefault(remote.path(name), []).append(replica)
            except ExchangeError as error:
                silent = True
                self._report(str(error))

        def is_intact(file: LogFile) -> bool:
            return self._is_intact(file) if file.path not in holders else self._fetch(remote, file, holders[file.path])

        offered = self._offered() + sorted(filter(None, map(parse_name, holders)))
        chain = self._chain(offered, counter, is_intact)
        complete = chain is not None and bool(chain) and chain[0].first <= self._sealed + 1
        return None if silent and not complete else chain

    def _fetch(self, remote: RemoteFiles, file: LogFile, replicas: list[int]) -> bool:
        """Whether the segment arrived intact from one of these."""
        for replica in replicas:
            try:
                remote.fetch(replica, file.path.name)
            except ExchangeError as error:
                self._report(str(error))
                continue
            if self._is_intact(file):
                return True
            remote.forget(file.path.name)
        return False

    def _chain(
        self, offered: list[LogFile], counter: int, is_intact: Callable[[LogFile], bool]
    ) -> list[LogFile] | None:
        if offered and max(file.last for file in offered) < counter:
            return None
        chain: list[LogFile] = []
        wanted = counter
        while wanted > self._sealed:
            for file in offered:
                if file.first <= wanted <= file.last and is_intact(file):
                    chain.insert(0, file)
                    wanted = file.first - 1
                    break
            else:
                break
        return chain

    def _is_intact(self, file: LogFile) -> bool:
        try:
            read_file(file, self._identity)
        except (LogError, OSError) as error:
            self._report(str(error))
            return False
        return True

    def _set_aside(self, reason: str) -> None:
        self._report(f"{self._directory}: {reason}; what was here is in {ASIDE}")
        aside = self._directory / ASIDE
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for file in list_files(self._directory):
            file.path.rename(aside / file.path.name)
        sync_directory(self._directory)

    # Tails

    def flush(self) -> None:
        """Show readers what no segment has yet."""
        flushed = max([self._sealed, *(tail.last for tail in self._tails)])
        if self.last <= flushed:
            return
        first, merged = flushed + 1, []
        while self._tails and self._tails[-1].first > self._sealed:
            if self._tails[-1].rows > TAIL_FACTOR * (self.last - first + 1):
                break
            merged.append(self._tails.pop())
            first = merged[-1].first
        try:
            rows = _slice(self._rows, first - 1 - self._sealed, self.last - self._sealed)
            self._tails.append(write_file(self._directory, rows, self._identity, sealed=False))
        except OSError:
            self._tails += reversed(merged)
            raise
        for tail in merged:
            tail.path.unlink(missing_ok=True)


def _end_of_chain(segments: list[LogFile]) -> int:
    """Up to which row the segments are without a gap."""
    end = segments[0].first - 1 if segments else 0
    for file in segments:
        if file.first <= end + 1:
            end = max(end, file.last)
    return end


def _slice(batches: list[pa.RecordBatch], start: int, stop: int) -> list[pa.RecordBatch]:
    """The rows [start, stop) of batches that follow each other."""
    found = []
    offset = 0
    for batch in batches:
        first, last = max(start - offset, 0), min(stop - offset, batch.num_rows)
        if first < last:
            found.append(batch.slice(first, last - first))
        offset += batch.num_rows
    return found
