"""The bases of one executor, in a directory of its own, and those that other replicas offer.

A copy that is damaged, or is another base than its name says, is refused, reported and set aside; the next one is
tried: an older one of our own, or another replica's.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from tara.protocol.errors import TaraError
from tara.storage.base_format import (
    BaseError,
    BaseFile,
    ForeignBase,
    StoredBase,
    base_path,
    list_bases,
    number_of,
    read_base,
    read_header,
    reading_base,
)
from tara.storage.disk import LOCAL, Disk
from tara.storage.files import remove_if_there, remove_leftovers, set_aside, write_whole
from tara.storage.pacer import Pacer
from tara.storage.remote import RemoteFiles

#: Bases that are kept: should the newest one be damaged, the one before leads to the same state.
KEPT = 2
READ_BYTES = 1 << 20
#: What is read at once of a base that nobody needs now.
LOOK_BYTES = 512 << 10
#: What is told of a store and is no trouble.
GOOD_NEWS = ("base_saved", "base_loaded", "base_fetched")


class StoreCounts(Struct):
    """What a store has done since it started."""

    bases_saved: int = 0
    bases_loaded: int = 0
    #: Copies that could not be used: damaged, foreign, or of another format.
    bases_refused: int = 0
    bases_given_up: int = 0
    store_errors: int = 0


class Offer(NamedTuple):
    """A base that somebody has."""

    number: int
    length: int
    path: Path
    #: The replica on another host that has it; None: this host can read it.
    holder: int | None = None


class Bases:
    def __init__(
        self,
        directory: Path,
        cluster: int,
        era: int,
        peers: dict[int, Path],
        remote: RemoteFiles | None,
        disk: Disk = LOCAL,
        pacer: Pacer | None = None,
    ) -> None:
        """`peers` are the directories of the other replicas, as far as this host can read them. `pacer` is for all
        large files that are written for this executor."""
        self.directory = directory
        self.cluster = cluster
        self.era = era
        self.disk = disk
        self._peers = peers
        self._remote = remote
        self.pacer = Pacer() if pacer is None else pacer
        if remote is not None:
            remote.pacer = self.pacer
        self.counts = StoreCounts()
        #: Told what happened: an event's name, and the number or message that belongs to it. On any thread.
        self.on_event: Callable[[str, int | str], None] = lambda event, detail: None
        disk.make_directory(directory)
        remove_leftovers(directory, disk)
        # What the life before has renamed leads on from now on, whatever happens to the machine.
        disk.sync_directory(directory)
        #: Those in our directory that are of another cluster, era or format: the newest ones stay as they are, and
        #: count for nothing.
        self._foreign = {number_of(path) for path in list_bases(directory, disk) if self._is_foreign(path)}
        for number in sorted(self._foreign)[:-KEPT]:
            self._remove(base_path(directory, number))
        #: Those of former lives that were not compared with their digests yet; None: it is not known yet which. And
        #: the one that is being read.
        self._unread: list[Offer] | None = None
        self._reading: Generator[int, None, None] | None = None
        #: The numbers of those that this life has found to be intact.
        self._intact: set[int] = set()

    def _is_foreign(self, path: Path) -> bool:
        """What is damaged says nothing about whose it is."""
        try:
            header = read_header(path, self.disk)
        except ForeignBase:
            return True
        except (OSError, BaseError):
            return False
        return (header.cluster, header.era) != (self.cluster, self.era)

    @property
    def numbers(self) -> list[int]:
        """Of the bases that are here, oldest first."""
        return [offer.number for offer in self.own()]

    @property
    def newest(self) -> int:
        return max(self.numbers, default=0)

    @property
    def needed_from(self) -> int:
        """The log is needed from this checkpoint on."""
        numbers = self.numbers
        return numbers[-KEPT] if len(numbers) >= KEPT else 0

    def own(self) -> list[Offer]:
        return [offer for offer in self._offers_in(self.directory) if offer.number not in self._foreign]

    def finish(self, file: BaseFile) -> bytes:
        """A base that was written is durable on return. Returns its digest."""
        digest = file.finish()
        self._foreign.discard(file.number)
        return digest

    def offers(self, holders: Iterable[int]) -> list[Offer]:
        """What these replicas have."""
        holders = [holder for holder in holders if holder in self._peers]
        found = [offer for holder in holders for offer in self._offers_in(self._peers[holder])]
        if self._remote is not None:
            with self._remote as remote:
                for holder in holders:
                    try:
                        names = remote.names(holder)
                    except TaraError as error:
                        self.report("fetch_error", str(error))
                        continue
                    found += [Offer(int(Path(name).stem), size, Path(name), holder) for name, size in names.items()]
                # What is left of former attempts, if nobody has that any more.
                remote.forget_others([offer.path.name for offer in found])
        return found

    def _offers_in(self, directory: Path) -> list[Offer]:
        """The bases in a directory; none if it cannot be read now."""
        found = []
        try:
            for path in list_bases(directory, self.disk):
                # One may go meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    found.append(Offer(number_of(path), self.disk.size(path), path))
        except OSError as error:
            self.on_disk_error(f"{directory}: cannot be listed: {error}")
        return found

    def bring(self, offer: Offer) -> StoredBase | None:
        """Have this base here, durably and intact; None if that cannot be had."""
        if offer.path.parent == self.directory:
            return self._read_or_refuse(offer.path, own=True)
        if offer.holder is not None:
            return self._fetch(offer, offer.holder)
        found = self._read_or_refuse(offer.path)
        return None if found is None else self._copy(offer.number, offer.path)

    def _fetch(self, offer: Offer, holder: int) -> StoredBase | None:
        assert self._remote is not None
        with self._remote as remote:
            try:
                path = remote.fetch(holder, offer.path.name)
            except (TaraError, OSError) as error:
                self.report("fetch_error", f"base {offer.number} of replica {holder}: {error}")
                return None
            self.on_event("base_fetched", f"{offer.number} of replica {holder}")
            try:
                found = self._read_or_refuse(path)
                return None if found is None else self._move_in(found)
            finally:
                remote.forget(offer.path.name)

    def _move_in(self, found: StoredBase) -> StoredBase | None:
        """From where it has arrived to our own directory. It was found to be intact; whether all of it is on the disk,
        only a sync says."""
        target = base_path(self.directory, found.id.number)
        try:
            file = self.disk.open(found.path)
            try:
                file.sync()
            finally:
                file.close()
            self.disk.rename(found.path, target)
            self._sync_name(target)
        except OSError as error:
            self.on_disk_error(f"{target}: cannot be put in place: {error}")
            return None
        self._foreign.discard(found.id.number)
        self._intact.add(found.id.number)
        return found._replace(path=target)

    def _sync_name(self, path: Path) -> None:
        try:
            self.disk.sync_directory(self.directory)
        except OSError:
            # Nobody must come back to what a power cut may take.
            self._remove(path)
            raise

    def _copy(self, number: int, source: Path) -> StoredBase | None:
        """To our own directory."""
        target = base_path(self.directory, number)
        size = self.disk.size(source)
        pieces = (self.disk.read(source, offset, READ_BYTES) for offset in range(0, size, READ_BYTES))
        try:
            write_whole(target, pieces, self.disk, self.pacer)
        except OSError as error:
            self.on_disk_error(f"{target}: cannot be written: {error}")
            # Its name may be there, and gone after a power cut.
            self._remove(target)
            return None
        self._foreign.discard(number)
        return self._read_or_refuse(target, own=True)

    def _read_or_refuse(self, path: Path, own: bool = False) -> StoredBase | None:
        """What the disk cannot read is refused like what is damaged, but stays: it may be able to, another time."""
        try:
            found = read_base(path, self.cluster, self.era, self.disk)
        except FileNotFoundError:
            return None
        except (OSError, BaseError) as error:
            self._refuse(path, error, own)
            return None
        if own:
            self._intact.add(found.id.number)
        return found

    def _refuse(self, path: Path, error: Exception, own: bool) -> None:
        self.counts.bases_refused += 1
        damaged = own and isinstance(error, BaseError) and not isinstance(error, ForeignBase)
        self.report("base_refused", f"{path}: {error}{self._set_aside(path) if damaged else ''}")

    def _set_aside(self, path: Path) -> str:
        try:
            return f"; it is in {set_aside(path, self.disk)} now"
        except OSError as error:
            self.on_disk_error(f"{path}: cannot be set aside: {error}")
            return ""

    def look_after(self) -> bool:
        """Read some more of a base that this life has not read yet, the newest first: the older one may be needed, too.
        Whether there is more."""
        if self._unread is None:
            self._unread = self.own()
        while self._reading is None:
            if not self._unread:
                return False
            offer = self._unread.pop()
            if offer.number not in self._intact:
                self._reading = self._look_at(offer.path)
        size, began_s = 0, self.pacer.clock()
        for length in self._reading:
            size += length
            if size >= LOOK_BYTES:
                break
        else:
            self._reading = None
        self.pacer.note(size, self.pacer.clock() - began_s)
        return True

    def _look_at(self, path: Path) -> Generator[int, None, None]:
        try:
            yield from reading_base(path, self.cluster, self.era, self.disk)
        except FileNotFoundError:
            return
        except (OSError, BaseError) as error:
            self._refuse(path, error, own=True)

    def retain(self) -> None:
        """Remove all but the newest ones."""
        for offer in self.own()[:-KEPT]:
            self._remove(offer.path)

    def _remove(self, path: Path) -> None:
        try:
            remove_if_there(path, self.disk)
        except OSError as error:
            self.on_disk_error(f"{path}: cannot be removed: {error}")

    def on_disk_error(self, message: str) -> None:
        self.counts.store_errors += 1
        self.report("store_error", message)

    def report(self, event: str, message: str) -> None:
        self.on_event(event, message)
