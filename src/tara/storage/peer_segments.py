"""The segments of the decided log that other replicas have, at this host or at their own."""

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tara.protocol.errors import TaraError
from tara.storage.disk import LOCAL, Disk
from tara.storage.log_format import (
    LogError,
    LogFile,
    LogIdentity,
    SegmentEnd,
    list_segments,
    parse_segment,
    read_segment,
)
from tara.storage.pacer import Pacer
from tara.storage.remote import RemoteFiles

Report = Callable[[str], None]


class PeerSegments:
    """The segments that other replicas offer."""

    def __init__(
        self,
        identity: LogIdentity,
        directories: dict[int, Path],
        remote: RemoteFiles | None,
        report: Report,
        disk: Disk = LOCAL,
        pacer: Pacer | None = None,
    ) -> None:
        """`directories` are those of the other replicas' logs, as far as this host can read them."""
        #: For all that is brought here.
        self.pacer = Pacer() if pacer is None else pacer
        if remote is not None:
            remote.pacer = self.pacer
        self._identity = identity
        self._directories = directories
        self._remote = remote
        self._report = report
        self._disk = disk

    def offers(self, holders: Iterable[int]) -> "Offers":
        holders = [holder for holder in holders if holder in self._directories]
        offers = Offers(self)
        for holder in holders:
            try:
                for file in list_segments(self._directories[holder], self._disk):
                    offers.add(Copy(file, holder, remote=False), self._disk.size(file.path))
            except FileNotFoundError:
                # One went meanwhile.
                offers.silent = True
            except OSError as error:
                offers.silent = True
                self._report(f"{self._directories[holder]}: cannot be listed: {error}")
        if self._remote is not None:
            with self._remote as remote:
                for holder in holders:
                    self._add_remote(offers, remote, holder)
                # What is left of former attempts, if nobody has that any more.
                remote.forget_others(offers.names)
        return offers

    def _add_remote(self, offers: "Offers", remote: RemoteFiles, holder: int) -> None:
        try:
            for name, size in remote.names(holder).items():
                file = parse_segment(remote.path(name))
                if file is not None:
                    offers.add(Copy(file, holder, remote=True), size)
        except TaraError as error:
            offers.silent = True
            self._report(str(error))

    def read(self, copy: "Copy") -> tuple[bytes, SegmentEnd] | None:
        """What is in it; None if it cannot be had, or is damaged."""
        if not copy.remote:
            return self._intact(copy.file)
        assert self._remote is not None
        with self._remote as remote:
            try:
                remote.fetch(copy.holder, copy.file.path.name)
            except TaraError as error:
                self._report(str(error))
                return None
        found = self._intact(copy.file)
        remote.forget(copy.file.path.name)
        return found

    def _intact(self, file: LogFile) -> tuple[bytes, SegmentEnd] | None:
        try:
            found, end = read_segment(file, self._identity, self._disk)
        except (LogError, OSError) as error:
            self._report(str(error))
            return None
        return found.getvalue(), end


class Copy(NamedTuple):
    """A segment that another replica has, at this host or at its own."""

    #: Where it is, or will be.
    file: LogFile
    holder: int
    remote: bool


class Offers:
    """What some replicas have, as they said a moment ago."""

    def __init__(self, peers: PeerSegments) -> None:
        self._peers = peers
        #: Whether somebody could not be asked.
        self.silent = False
        self._copies: dict[int, list[Copy]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, copy: Copy, size: int) -> None:
        self._copies.setdefault(copy.file.number, []).append(copy)
        self._sizes[copy.file.number] = size

    def size(self, number: int) -> int:
        return self._sizes[number]

    def __contains__(self, number: int) -> bool:
        return number in self._copies

    @property
    def newest(self) -> int:
        return max(self._copies, default=0)

    @property
    def names(self) -> list[str]:
        return [copy.file.path.name for copies in self._copies.values() for copy in copies]

    def leave_out(self, holder: int, number: int) -> None:
        """What this replica has from this segment on."""
        for other in [other for other in self._copies if other >= number]:
            self._copies[other] = [copy for copy in self._copies[other] if copy.holder != holder]
            if not self._copies[other]:
                del self._copies[other]

    def intact(self, number: int, but: Collection[int] = ()) -> Iterator[tuple[Copy, bytes, SegmentEnd]]:
        """What replicas other than these have of this segment, one after the other."""
        for copy in self._copies.get(number, ()):
            found = None if copy.holder in but else self._peers.read(copy)
            if found is not None:
                yield copy, *found
