"""The sealed part of an executor's log: segments that never change. What is there, what is damaged or missing, and
what is kept.

- After a start, every segment is read once, one at a time, and compared with its checksum. One that is damaged is set
  aside. What is missing is fetched from other replicas; a small file, `begin`, says where the log begins.
- If nobody has what is missing any more, and a newer base is there, the log begins behind the gap, and what stands
  before it is set aside.
- Retention drops segments, the oldest first, but none that a base still needs.
"""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tara.storage.disk import LOCAL, Disk
from tara.storage.files import (
    DamagedFile,
    bound,
    next_aside,
    read_small,
    remove_if_there,
    set_aside,
    write_small,
    write_whole,
)
from tara.storage.log_format import (
    LogError,
    LogFile,
    LogIdentity,
    SegmentEnd,
    list_segments,
    read_segment,
)
from tara.storage.peer_segments import Copy, Offers, PeerSegments, Report

#: How often it is tried again to fetch what is missing while somebody may have it: about as many quarters of a minute.
WAITS_MAX = 20
#: How often it is tried to read a segment that the disk cannot read before it is given up: for some ten seconds.
READS_MAX = 40
#: Where logs go that cannot be continued, each in a directory of its own.
ASIDE = "aside"
#: The file that says which segment is the first that should be there.
BEGIN_FILE = "begin"
#: Calls of `look_after` between two attempts to fetch what is missing: doubles up to a maximum.
HEAL_PAUSE_MAX = 64


class Segments:
    """Invariant: the files in `_files` are all segments in the directory, and those numbers in [_begin, sealed] that
    are not among them are missing."""

    def __init__(
        self, directory: Path, identity: LogIdentity, peers: PeerSegments, report: Report, disk: Disk = LOCAL
    ) -> None:
        self.directory = directory
        self._identity = identity
        self._peers = peers
        self._report = report
        self._disk = disk
        self._files = {file.number: file for file in list_segments(directory, disk)}
        self._sizes = {number: disk.size(file.path) for number, file in self._files.items()}
        #: Those that this life has neither written nor read yet, oldest first; and how often one could not be read.
        self._unread: dict[int, LogFile] = {}
        #: The digests of the checkpoints at the ends of those that were read or written.
        self._digests: dict[int, bytes] = {}
        #: Checkpoints between which nothing is missing or unread.
        self._whole = (0, 0)
        self._unreadable: dict[int, int] = {}
        self._heal_attempts = self._heal_due = 0
        #: From which replicas the segments are that this life has brought; and, by replica, the digests to which copies
        #: did not lead, though they name them.
        self._origins: dict[int, int] = {}
        self._doubted: dict[int, dict[int, bytes]] = {}
        #: What others had when something was fetched from them: there is more of that, most likely.
        self._offers: Offers | None = None
        #: The newest checkpoint that the log, or a base beside it, leads to.
        self.sealed = max(self._files, default=0)
        #: The first segment that should be there; None: not known.
        self._begin = self._read_begin()
        if self._files and (self._begin is None or self._begin > min(self._files)):
            self.set_begin(min(self._files))
        self.look_at_all()

    def look_at_all(self) -> None:
        """Compare all segments with their checksums, one after the other."""
        self._unread = dict(sorted(self._files.items()))
        self._whole = (0, 0)

    def __contains__(self, number: int) -> bool:
        return number in self._files

    def __getitem__(self, number: int) -> LogFile:
        return self._files[number]

    @property
    def first(self) -> LogFile | None:
        return self._files[min(self._files)] if self._files else None

    @property
    def unread(self) -> int:
        """Segments that were not compared with their checksums yet."""
        return len(self._unread)

    @property
    def missing(self) -> list[int]:
        """Segments that should be there."""
        begin = self.sealed + 1 if self._begin is None else self._begin
        return [number for number in range(begin, self.sealed + 1) if number not in self._files]

    def size(self, number: int) -> int:
        return self._sizes[number]

    def holds(self, number: int) -> bool:
        """Whether this segment is here, and intact: one that this life has not read yet is read now."""
        if number in self._unread:
            self.read(number)
        return number in self._files and number not in self._unread

    def reach(self, start: int) -> int:
        """The checkpoint that segments lead to from this one. Those that this life has not read do not count."""
        begin, end = self._whole
        if not begin <= start <= end:
            begin = end = start
        while end + 1 in self._files and end + 1 not in self._unread:
            end += 1
        self._whole = (begin, end)
        return end

    def whole_from(self, end: int) -> int:
        """The checkpoint from which on segments lead to this one."""
        begin = end
        while begin in self._files and begin not in self._unread:
            begin -= 1
        return begin

    def adopt(self, file: LogFile, digest: bytes) -> None:
        """A segment is in place, instead of another copy if there is one. `digest` is that of the checkpoint at its
        end."""
        if self._begin is None or file.number < self._begin:
            self.set_begin(file.number)
        size, former = self._disk.size(file.path), self._files.get(file.number)
        if former is not None and former.path != file.path:
            remove_if_there(former.path, self._disk)
        self._files[file.number], self._sizes[file.number] = file, size
        self._digests[file.number] = digest
        self._unread.pop(file.number, None)
        self._origins.pop(file.number, None)

    def compare(self, number: int, digest: bytes) -> None:
        """The executor is at this checkpoint: a segment that says something else does not lead there."""
        if self._digests.get(number, digest) != digest:
            self._report(f"{self._files[number].path}: does not lead to the checkpoint that the executor has come to")
            self._lose(self._files[number])

    def jump(self, number: int, begin: int | None = None) -> None:
        """The log leads to this checkpoint, by its segment or by a base: it goes on behind it, and what lies between is
        missing. If it has nothing, it begins behind it, or with `begin`."""
        if self._begin is None:
            self.set_begin(number + 1 if begin is None else begin)
        self.sealed = max(number, self.sealed)

    def read(self, number: int) -> tuple[io.BytesIO, SegmentEnd] | None:
        """The contents of a segment that is here, and its end; None if it is damaged: then it is set aside, and
        missing."""
        file = self._files[number]
        try:
            found = read_segment(file, self._identity, self._disk)
            self._unread.pop(number, None)
            self._digests[number] = found[1].digest
            return found
        except (LogError, FileNotFoundError) as error:
            self._report(str(error))
            self._lose(file)
        except OSError as error:
            self._report(f"{file.path}: {error.strerror}")
            self._read_later(file)
        return None

    def offers(self, holders: Iterable[int]) -> Offers:
        """What these replicas have and nobody doubts."""
        offers = self._peers.offers(holders)
        for number, doubted in self._doubted.items():
            for holder in doubted:
                offers.leave_out(holder, number)
        return offers

    def bring(self, number: int, offers: Offers) -> bool:
        """Fetch a segment from those who offer it."""
        for copy, data, end in offers.intact(number):
            self._put(copy, data, end)
            return True
        return False

    def _put(self, copy: Copy, data: bytes, end: SegmentEnd, instead: bool = False) -> None:
        number, path = copy.file.number, self.directory / copy.file.path.name
        write_whole(path, (data,), self._disk, self._peers.pacer)
        if instead:
            self._give_way(number)
        self.adopt(copy.file._replace(path=path), end.digest)
        self._origins[number] = copy.holder

    def doubt(self, number: int, claimed: bytes, found: bytes, holders: Sequence[int]) -> bool:
        """Executing this segment again led to a checkpoint with the digest `found`, and it says `claimed`. Either it is
        not what was decided, or the application that is here does not do again what it did. Put another replica's copy
        in its place; or at least do not keep one that came from elsewhere. Whether it is worth another attempt.

        A segment of our own gives way only to what was found; one that was brought here, to whatever says something
        else, unless two replicas say the same."""
        origin = self._origins.get(number)
        same = self._doubted.setdefault(number, {})
        if origin is not None:
            same[origin] = claimed
            # What follows rests on it.
            for other in [other for other, holder in self._origins.items() if holder == origin and other > number]:
                self._give_way(other)
                del self._origins[other]
        for copy, data, end in self._peers.offers(holders).intact(number, same):
            if end.digest == claimed:
                same[copy.holder] = claimed
            elif origin is not None or end.digest == found:
                self._put(copy, data, end, instead=True)
                return True
        if origin is None:
            return False
        self._give_way(number)
        del self._origins[number]
        return list(same.values()).count(claimed) < 2

    def _give_way(self, number: int) -> None:
        if number in self._files:
            self._lose(self._files[number])

    def look_after(self, base: int, holders: Sequence[int]) -> None:
        """Read one segment that was not read yet, or else try to fetch one that is missing; the newest first. `base` is
        the newest base that is here."""
        if self._unread:
            self._look_at(next(reversed(self._unread.values())))
        elif missing := self.missing:
            self._heal_due -= 1
            if self._heal_due <= 0:
                self._heal(missing[-1], base, holders)

    def _look_at(self, file: LogFile) -> None:
        try:
            found = self.read(file.number)
        except OSError:
            # It is damaged, and cannot be set aside now.
            self._read_later(file)
            raise
        if found is None and file.number in self._files:
            self._unreadable[file.number] = self._unreadable.get(file.number, 0) + 1
            if self._unreadable[file.number] >= READS_MAX:
                self._lose(file)

    def _heal(self, number: int, base: int, holders: Sequence[int]) -> None:
        known, self._offers = self._offers, None
        offers = self.offers(holders) if known is None else known
        self._heal_attempts += 1
        self._heal_due = min(1 << self._heal_attempts, HEAL_PAUSE_MAX)
        if self.bring(number, offers):
            self._report(f"{self._files[number].path}: is here again")
            self._heal_attempts = self._heal_due = 0
            self._offers = offers
        elif known is not None:
            # That may be outdated.
            self._heal_attempts = self._heal_due = 0
        elif number <= base and (not (offers.silent or offers.newest < number) or self._heal_attempts > WAITS_MAX):
            self._begin_behind(number)

    def _begin_behind(self, number: int) -> None:
        self.set_begin(number + 1)
        before = [file for file in self._files.values() if file.number <= number]
        self._set_aside(f"no replica offers segment {number}; the log begins behind it", before)
        for file in before:
            self._forget(file)

    def _read_later(self, file: LogFile) -> None:
        """What cannot be read now may be intact all the same; what can never be read is as good as damaged."""
        self._unread = {file.number: file} | {n: other for n, other in self._unread.items() if n != file.number}
        self._whole = (0, 0)

    def _lose(self, file: LogFile) -> None:
        if self._disk.exists(file.path):
            self._report(f"{file.path}: is in {set_aside(file.path, self._disk)} now, and fetched again")
        self._forget(file)

    def _forget(self, file: LogFile) -> None:
        del self._files[file.number], self._sizes[file.number]
        self._unread.pop(file.number, None)
        self._digests.pop(file.number, None)
        self._whole = (0, 0)

    def _set_aside(self, reason: str, files: list[LogFile]) -> None:
        """Together, so that they can be read like a log. Of former times, the newest are kept."""
        paths = [file.path for file in files if self._disk.exists(file.path)]
        if not paths:
            self._report(f"{self.directory}: {reason}")
            return
        set_all_aside(
            self.directory, paths, lambda name: self._report(f"{reason}; what was here is in {name}"), self._disk
        )

    def retain(self, bytes_: int, needed_from: int) -> None:
        """Drop the oldest segments beyond so many bytes, but none behind the checkpoint `needed_from`. Whatever fails
        is done the next time: a segment is forgotten when it is gone."""
        total, dropped = sum(self._sizes.values()), []
        for number in sorted(self._files):
            if total <= bytes_ or number > needed_from:
                break
            total -= self._sizes[number]
            dropped.append(self._files[number])
        if dropped:
            self.set_begin(dropped[-1].number + 1)
        for file in dropped:
            remove_if_there(file.path, self._disk)
            self._forget(file)

    def set_begin(self, number: int) -> None:
        """Before anything goes: what is missing behind it is a gap."""
        if number != self._begin:
            write_small(self.directory / BEGIN_FILE, msgspec.json.encode(number), self._disk)
            self._begin = number

    def _read_begin(self) -> int | None:
        try:
            return msgspec.json.decode(read_small(self.directory / BEGIN_FILE, self._disk), type=int)
        except FileNotFoundError:
            return None
        except (DamagedFile, msgspec.DecodeError, OSError) as error:
            self._report(str(error))
            return None


def set_all_aside(directory: Path, paths: Sequence[Path], report: Report, disk: Disk) -> None:
    """Move files of a log to a directory of their own."""
    root = directory / ASIDE
    disk.make_directory(root)
    aside = next_aside(root, disk)
    report(f"{ASIDE}/{aside.name}")
    disk.make_directory(aside)
    for path in paths:
        disk.rename(path, aside / path.name)
    for changed in (aside, root, directory):
        disk.sync_directory(changed)
    bound(root, disk)
