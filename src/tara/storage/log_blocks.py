"""Where commands are in the files of a decided log, also while they are written. Looks at names and heads of blocks,
and makes no rows of what is in them.

Nothing is locked and no file stays open; see `tara.storage.log_reader`.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tara.storage.log_format import (
    Block,
    CorruptLog,
    LogFile,
    LogHeader,
    LogIdentity,
    blocks,
    list_segments,
    list_tails,
    parse_segment,
    parse_tail,
    read_header,
)


class LogBounds(NamedTuple):
    """The commands [first, end) are there."""

    first: int
    end: int


class Place(NamedTuple):
    """Where somebody guesses that a block begins: the name of a file, and an offset. An empty name: anywhere."""

    file: str = ""
    offset: int = 0


ANYWHERE = Place()


class Piece(NamedTuple):
    """Bytes of a file as they are: the block that somebody asked for, from some byte on, and what follows it."""

    header: LogHeader
    #: The block, and where it begins.
    block: Block
    place: Place
    data: bytes


class LogBlocks:
    """The files of one log. One thread uses it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        #: How far the tail had been looked at: its path, where its next block begins, and its last command.
        self._tail: tuple[Path, int, int] | None = None

    def bounds(self) -> LogBounds:
        """What is there now. To ask again costs what was written meanwhile, and a look at the directory."""
        tails = []
        for tail in list_tails(self.directory):
            last = self._end_of_tail(tail)
            if last is not None:
                tails.append(tail._replace(last=last))
        return bounds_of(sorted([*list_segments(self.directory), *tails]))

    def identity(self) -> LogIdentity | None:
        """Whose log it is; None if there is no file yet that says so."""
        for path in (file.path for file in (*list_segments(self.directory), *list_tails(self.directory))):
            try:
                with path.open("rb") as file:
                    return read_header(file, path).identity
            except (FileNotFoundError, CorruptLog):
                continue
        return None

    def _end_of_tail(self, tail: LogFile) -> int | None:
        offset, last = 0, tail.first - 1
        if self._tail is not None and self._tail[0] == tail.path:
            _, offset, last = self._tail
        try:
            with tail.path.open("rb") as file:
                if (
                    offset
                    and file.seek(0, os.SEEK_END) > offset
                    and next(blocks(file, tail.path, offset), None) is None
                ):
                    # Half a block, or another tail of that name, which a former life had begun.
                    offset, last = 0, tail.first - 1
                for block in blocks(file, tail.path, offset):
                    offset, last = block.end, max(last, block.last)
        except FileNotFoundError:
            return None
        except CorruptLog:
            # See `end_of_tail`.
            return None
        self._tail = (tail.path, offset, last)
        return last if offset else None

    def piece(
        self, counter: int, bytes_max: int, guess: Place = ANYWHERE, skip: int = 0, checksum: int | None = None
    ) -> Piece | None:
        """The block with this command, from its byte `skip` on; None if it is not there now. A block that is shorter,
        or has another checksum than the one that is given, comes from its beginning."""
        for file, path, block in self._holders(counter, guess):
            header = read_header(file, path)
            if skip > block.end - block.head or (checksum is not None and block.checksum != checksum):
                skip = 0
            file.seek(block.head + skip)
            return Piece(header, block, Place(path.name, block.head), file.read(bytes_max))
        return None

    def advance(self, counter: int, bytes_max: int, blocks_max: int = sys.maxsize) -> int:
        """Up to which command, exclusively, blocks of so many bytes lead from this one on: at least one block, at most
        `blocks_max`."""
        total = looked = 0
        while True:
            found = False
            for file, path, block in self._holders(counter, ANYWHERE):
                for follower in blocks(file, path, block.head):
                    looked += 1
                    if not follower.first <= counter <= follower.last:
                        continue
                    found, counter = True, follower.last + 1
                    total += follower.end - follower.head
                    if total >= bytes_max or looked >= blocks_max:
                        return counter
            if not found:
                return counter

    def _holders(self, counter: int, guess: Place) -> Iterator[tuple[BinaryIO, Path, Block]]:
        """The block with this command, and the file that has it, open; nothing if there is none."""
        for path, offset in self._candidates(counter, guess):
            try:
                with path.open("rb") as file:
                    for block in blocks(file, path, offset):
                        if block.first <= counter <= block.last:
                            yield file, path, block
                            return
                        if offset and block.first > counter:
                            break
            except FileNotFoundError:
                continue

    def _candidates(self, counter: int, guess: Place) -> Iterator[tuple[Path, int]]:
        """Where it may be, the likeliest place first."""
        path = self.directory / guess.file
        if guess.offset > 0 and path.name == guess.file and (parse_segment(path) or parse_tail(path)):
            yield path, guess.offset
        segments = list_segments(self.directory)
        for segment in reversed([segment for segment in segments if segment.first <= counter <= segment.last]):
            yield segment.path, 0
        for tail in list_tails(self.directory):
            yield tail.path, 0


def bounds_of(files: list[LogFile]) -> LogBounds:
    """What sorted files have, from the first one on without a gap."""
    if not files:
        return LogBounds(1, 1)
    end = files[0].first
    for file in files:
        if file.first <= end:
            end = max(end, file.last + 1)
    return LogBounds(files[0].first, end)


def list_files(directory: Path) -> list[LogFile]:
    """Segments and tails with what they hold now, sorted. Tails first: one that becomes a segment meanwhile is then
    seen twice rather than not at all."""
    tails = []
    for tail in list_tails(directory):
        last = end_of_tail(tail.path)
        if last is not None:
            tails.append(tail._replace(last=last))
    return sorted([*list_segments(directory), *tails])


def end_of_tail(path: Path) -> int | None:
    """The last command in a tail; None if it is gone, or has none."""
    try:
        with path.open("rb") as file:
            return max((block.last for block in blocks(file, path)), default=None)
    except FileNotFoundError:
        return None
    except CorruptLog:
        # A crash has cut its header off, or is doing so: whoever writes it removes it.
        return None
