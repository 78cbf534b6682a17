"""The journal's format: entries in bytes, and back. Pure; files are the host's business.

A journal is a row of segments. Each begins with what every committer has promised so far, so that an old segment can
be dropped as a whole once a stable checkpoint covers every slot in it: nothing is ever rewritten.

A record is a header (length and checksum of the payload, checksum of those two) and the payload: everything that the
nodes of a host persisted at once, which is there as a whole or not at all. A host that dies while it appends leaves a
tail that is shorter than it says, or nothing but zeros: nothing of it was promised to anybody, so it is cut. A complete
header or payload with a bad checksum is different: it was synced once, so votes are lost, and the journal as a whole is
not to be trusted.
"""

import zlib
from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple

import msgspec

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError

#: The version of the format; a journal of a newer one is refused.
FORMAT_VERSION = 2
_FIELDS = Struct("<II")
_HEADER = Struct("<III")

Written = tuple[int, t.JournalEntry]  # a node's number, and what it persisted
_decode: Callable[[bytes], list[Written]] = msgspec.msgpack.Decoder(list[Written]).decode


class CorruptJournal(TaraError):
    """A complete record is damaged: what the node has promised is no longer known."""


class Scan(NamedTuple):
    entries: list[Written]
    #: The bytes that hold whole records; what follows is a torn tail.
    valid_bytes: int


def pack(entries: list[Written]) -> bytes:
    """One record."""
    payload = t.encode(entries)
    fields = _FIELDS.pack(len(payload), zlib.crc32(payload))
    return b"".join((fields, zlib.crc32(fields).to_bytes(4, "little"), payload))


def scan(data: bytes) -> Scan:
    """Read all whole records."""
    entries: list[Written] = []
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, checksum, header_checksum = _HEADER.unpack_from(data, offset)
        if zlib.crc32(data[offset : offset + _FIELDS.size]) != header_checksum:
            if not any(data[offset:]):
                break
            raise CorruptJournal(f"journal record at byte {offset}: bad header checksum")
        start = offset + _HEADER.size
        if start + length > len(data):
            break
        payload = data[start : start + length]
        if zlib.crc32(payload) != checksum:
            raise CorruptJournal(f"journal record at byte {offset}: bad checksum")
        try:
            entries.extend(_decode(payload))
        except t.DECODE_ERRORS as error:
            raise CorruptJournal(f"journal record at byte {offset}: {error}") from error
        offset = start + length
    return Scan(entries, offset)


class Segment:
    """What a host remembers of a segment: its size, and up to which slot each node has votes in it."""

    def __init__(self) -> None:
        self.size = 0
        self._ends: dict[int, int] = {}

    def note(self, entries: Iterable[Written], size: int) -> None:
        self.size += size
        for number, entry in entries:
            if isinstance(entry, t.Voted | t.Installed):
                end = entry.first + len(entry.requests)
                self._ends[number] = max(end, self._ends.get(number, 0))

    def obsolete(self, minimum: Callable[[int], int]) -> bool:
        """Whether every vote in it is below its node's window."""
        return all(end <= minimum(number) for number, end in self._ends.items())
