"""The journal's format: entries in bytes, and back. Pure; files are the host's business.

A record is its length, the checksum of its payload, and the payload. A host that dies while it appends leaves a
tail that is shorter than it says: nothing of it was promised to anybody, so it is cut. A complete record with a bad
checksum is different: it was synced once, so votes are lost, and the journal as a whole is not to be trusted.
"""

import zlib
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError

_HEADER = Struct("<II")


class CorruptJournal(TaraError):
    """A complete record is damaged: what the node has promised is no longer known."""


class Scan(NamedTuple):
    entries: list[t.JournalEntry]
    #: The bytes that hold whole records; what follows is a torn tail.
    valid_bytes: int


def pack(entries: Iterable[t.JournalEntry]) -> bytes:
    packed = bytearray()
    for entry in entries:
        payload = t.encode(entry)
        packed += _HEADER.pack(len(payload), zlib.crc32(payload))
        packed += payload
    return bytes(packed)


def scan(data: bytes) -> Scan:
    """Read all whole records."""
    entries: list[t.JournalEntry] = []
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, offset)
        start = offset + _HEADER.size
        if start + length > len(data):
            break
        payload = data[start : start + length]
        if zlib.crc32(payload) != checksum:
            raise CorruptJournal(f"journal record at byte {offset}: bad checksum")
        entries.append(t.decode_entry(payload))
        offset = start + length
    return Scan(entries, offset)
