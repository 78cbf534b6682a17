"""The journal's format: entries in bytes, and back. Pure; files are the host's business.

A journal is a row of segments, numbered without gaps. A segment is a head and records. The head says whose journal it
is, which segment, and which record comes first; it has a fixed length and a checksum. A record is everything that the
nodes of a host persisted at once, which is there as a whole or not at all: the segment's sync word, the record's number
(they run on over segments), length and checksum of the payload, a checksum of all these, and the payload. The first
record of a segment states what every committer has promised so far (`Resumed`), so that an old segment can be dropped
as a whole once a stable checkpoint covers every slot in it: nothing is ever rewritten.

Beside the segments there is the end marker: the number of the last record that is durable, the first and the last
segment, and what every committer had promised by then. It is written after each sync, but not synced itself: it never
claims more than what is durable. After a crash of the process it is exact; after a power cut it may be older. So it
names the start of the machine (`boot`) in which it was written: one of another start, or with a slot that cannot be
read, says what was promised up to its record, and not that this was all.

So whoever reads a journal (`assemble`) knows what should be there:
- What follows the last whole record, at or behind the place that the marker names, was never promised to anybody: a
  host died while it appended. Such a torn tail is cut, whatever it looks like.
- Everything else that cannot be read, or is not there, is damage: a flipped bit, a cut, a segment that is missing, in
  another one's place or older than it was. The sync word, random and different for every segment, shows where the next
  whole record begins; no client can know it, so none can write a record into a command. Where records are missing,
  their committers are told so (`Lost`), and get what the next statement of promises says about the time after the gap.
  A marker that is not exact is no such statement if nothing follows it: newer promises may be among what is missing.
  Then nobody knows what was promised last.
"""

import re
import zlib
from collections.abc import Callable, Iterable
from struct import Struct as Layout
from typing import NamedTuple

import msgspec
from msgspec import Struct

from tara.protocol import tuples as t
from tara.protocol.errors import TaraError

#: The version of the format; another one is refused.
FORMAT_VERSION = 5
HEAD_BYTES = 256
SYNC_BYTES = 8
#: Of the head, behind its JSON: the checksum in hexadecimal, and the end of the line.
_CHECK_BYTES = 9
#: Sync word, number, length and checksum of the payload; and a checksum of those.
_FIELDS = Layout("<8sQII")
_HEADER = Layout("<8sQIII")
#: The end marker has three slots. One is durable, and is not written to before another one is; the others are written
#: in turn: whatever a torn write or a power cut does, an older one is left. A slot is so long, or a multiple of that
#: where there are many committers.
MARKER_SLOTS = 3
MARKER_SLOT_BYTES = 2048
_MARKER_HEADER = Layout("<II")

Written = tuple[int, t.JournalEntry]  # a node's number, and what it persisted
_decode: Callable[[bytes], list[Written]] = msgspec.msgpack.Decoder(list[Written]).decode


class ForeignJournal(TaraError):
    """A journal of another format."""


class Head(Struct, frozen=True, kw_only=True):
    """The beginning of a segment."""

    version: int = FORMAT_VERSION
    cluster: int
    era: int
    container: int
    #: The name of the journal.
    journal: str
    segment: int
    #: The number of its first record.
    first: int
    #: In hexadecimal.
    sync: str
    #: It begins with all that is known: the segments before it are void.
    restored: bool = False

    @property
    def owner(self) -> tuple[int, int, int]:
        return self.cluster, self.era, self.container


class Marker(Struct, frozen=True, kw_only=True, array_like=True):
    """What is durable."""

    version: int = FORMAT_VERSION
    cluster: int
    era: int
    container: int
    journal: str
    #: The first and the last segment that are there.
    first: int
    segment: int
    #: The number of the last record; 0: there is none yet.
    sequence: int
    #: What every committer that is not recovering had promised after it.
    states: list[Written]
    #: The start of the machine in which it was written; empty: not known.
    boot: str

    @property
    def owner(self) -> tuple[int, int, int]:
        return self.cluster, self.era, self.container


def pack_head(head: Head) -> bytes:
    body = msgspec.json.encode(head).ljust(HEAD_BYTES - _CHECK_BYTES)
    if len(body) + _CHECK_BYTES != HEAD_BYTES:
        raise ValueError(f"the head of a segment has {len(body)} bytes: {head}")
    return b"%b%08x\n" % (body, zlib.crc32(body))


def pack(entries: list[Written], sequence: int, sync: bytes) -> bytes:
    """One record."""
    payload = t.encode(entries)
    fields = _FIELDS.pack(sync, sequence, len(payload), zlib.crc32(payload))
    return b"".join((fields, zlib.crc32(fields).to_bytes(4, "little"), payload))


_encode_marker = msgspec.msgpack.Encoder().encode


def pack_marker(marker: Marker, slot_bytes: int = 0) -> bytes:
    """One slot, of that length or longer. Every byte of it is under the checksum."""
    payload = _encode_marker(marker)
    needed = -(-(_MARKER_HEADER.size + len(payload)) // MARKER_SLOT_BYTES) * MARKER_SLOT_BYTES
    body = (len(payload).to_bytes(4, "little") + payload).ljust(max(needed, slot_bytes) - 4, b"\0")
    return zlib.crc32(body).to_bytes(4, "little") + body


class JournalRecord(NamedTuple):
    sequence: int
    entries: list[Written]
    #: Where it ends in its segment.
    end: int


class Scan(NamedTuple):
    """What can be read of a segment."""

    #: None: damaged.
    head: Head | None
    records: list[JournalRecord]
    #: What cannot be read, in words, but for the end.
    damage: list[str]
    #: Where the last whole record ends; and whether something follows that is none.
    end: int
    torn: bool

    @property
    def entries(self) -> list[Written]:
        return [entry for record in self.records for entry in record.entries]


def read_head(data: bytes) -> Head | None:
    """None if it is damaged. `ForeignJournal` if this is a segment of another format."""
    body, check = data[: HEAD_BYTES - _CHECK_BYTES], data[HEAD_BYTES - _CHECK_BYTES : HEAD_BYTES]
    if check != b"%08x\n" % zlib.crc32(body):
        if old := re.match(rb'\{"version":(\d+),"cluster":\d+,"era":\d+,"container":\d+\}\n', data):
            raise ForeignJournal(f"is of format version {old[1].decode()}; this Tara reads {FORMAT_VERSION}")
        return None
    try:
        version = msgspec.json.decode(body, type=dict[str, object]).get("version")
        if version != FORMAT_VERSION:
            raise ForeignJournal(f"is of format version {version}; this Tara reads {FORMAT_VERSION}")
        return msgspec.json.decode(body, type=Head)
    except msgspec.DecodeError as error:
        raise ForeignJournal(f"has a head of another format: {error}") from error


def scan(data: bytes) -> Scan:
    """Read all whole records of a segment, also those behind damaged ones."""
    head = read_head(data)
    # Without a head, the first record shows the sync word, if it is whole.
    sync = bytes.fromhex(head.sync) if head is not None else data[HEAD_BYTES : HEAD_BYTES + SYNC_BYTES]
    records: list[JournalRecord] = []
    damage = [] if head is not None else ["the head is damaged"]
    offset = end = HEAD_BYTES
    broken = ""
    while offset < len(data):
        found = _read_record(data, offset, sync)
        if isinstance(found, JournalRecord):
            if broken:
                damage.append(broken)
                broken = ""
            records.append(found)
            offset = end = found.end
            continue
        broken = broken or f"record at byte {offset}: {found}"
        offset = data.find(sync, offset + 1) if len(sync) == SYNC_BYTES and any(sync) else -1
        if offset < 0:
            break
    return Scan(head, records, damage, min(end, len(data)), end != len(data))


def _read_record(data: bytes, offset: int, sync: bytes) -> JournalRecord | str:
    """The record that begins there, or why there is none."""
    start = offset + _HEADER.size
    if start > len(data):
        return "the end is missing"
    word, sequence, length, checksum, header_checksum = _HEADER.unpack_from(data, offset)
    if word != sync or zlib.crc32(data[offset : offset + _FIELDS.size]) != header_checksum:
        return "bad header checksum"
    if start + length > len(data):
        return "the end is missing"
    payload = data[start : start + length]
    if zlib.crc32(payload) != checksum:
        return "bad checksum"
    try:
        return JournalRecord(sequence, _decode(payload), start + length)
    except t.DECODE_ERRORS as error:
        return str(error)


_decode_marker = msgspec.msgpack.Decoder(Marker).decode


def read_marker(data: bytes) -> tuple[Marker | None, list[str]]:
    """The newest of the slots that is whole; and what is wrong with the file. Bad slots are nothing to worry about, as
    long as there is a good one: they are written in turn, and seldom synced."""
    found: list[Marker] = []
    problems: list[str] = []
    slot_bytes, rest = divmod(len(data), MARKER_SLOTS)
    if rest or not slot_bytes or slot_bytes % MARKER_SLOT_BYTES:
        problems.append(f"has {len(data)} bytes, which is not {MARKER_SLOTS} slots")
        slot_bytes = MARKER_SLOT_BYTES
    for start in range(0, MARKER_SLOTS * slot_bytes, slot_bytes):
        slot = data[start : start + slot_bytes]
        checksum, length = _MARKER_HEADER.unpack_from(slot) if len(slot) == slot_bytes else (0, 0)
        if len(slot) != slot_bytes or zlib.crc32(slot[4:]) != checksum:
            problems.append(f"slot at byte {start}: bad checksum")
            continue
        found.append(_unpack_marker(slot[_MARKER_HEADER.size : _MARKER_HEADER.size + length]))
    return max(found, key=lambda marker: (marker.sequence, marker.first, marker.segment), default=None), problems


def _unpack_marker(payload: bytes) -> Marker:
    try:
        version = msgspec.msgpack.decode(payload, type=list[object])[0]
        if version != FORMAT_VERSION:
            raise ForeignJournal(f"is of format version {version}; this Tara reads {FORMAT_VERSION}")
        return _decode_marker(payload)
    except (IndexError, *t.DECODE_ERRORS) as error:
        raise ForeignJournal(f"has an end marker of another format: {error}") from error


def is_exact(marker: Marker, problems: list[str], boot: str) -> bool:
    """Whether nothing was promised after what the marker says. A slot that cannot be read may have been the newest."""
    return not problems and marker.boot == boot != ""


class Assembled(Struct):
    """A journal as a whole."""

    #: What each node persisted, with `Lost` where something is missing.
    entries: dict[int, list[t.ReplayedEntry]]
    #: The number of the last record, as far as anybody knows.
    sequence: int
    #: What is damaged, in words. Empty: nothing.
    problems: list[str]
    #: The segments that count, in their order, by the numbers under which they were given.
    order: list[int]
    #: Segments that mean nothing: a later one begins with all that is known, or a host died while it made them.
    void: list[int]
    #: The segments cannot be gone on with as they are.
    broken: bool = False
    #: What a power cut leaves, and damage, too, but which costs nothing either way: half of an end marker.
    notes: list[str] = []


def assemble(scans: dict[int, Scan], marker: Marker | None, exact: bool) -> Assembled:
    """Put the segments of one journal together, given by the numbers in their names. They belong to the same owner.
    `exact`: nothing was promised after what the marker says."""
    assembly = _Assembly(scans, marker, exact)
    assembly.run()
    return assembly.result


class _Assembly:
    def __init__(self, scans: dict[int, Scan], marker: Marker | None, exact: bool) -> None:
        self._scans = scans
        self._marker = marker
        self._exact = exact
        self._pending = marker
        everybody = {number for scan in scans.values() for number, _ in scan.entries}
        everybody |= {number for number, _ in marker.states} if marker is not None else set()
        self.result = Assembled({number: [] for number in sorted(everybody)}, 0, [], [], [])
        #: Nodes of which something is missing, and no statement has come since.
        self._open: set[int] = set()
        self._last: int | None = None

    def run(self) -> None:
        result = self.result
        self._arrange()
        if self._marker is None and self._scans:
            result.problems.append("the end marker is missing or damaged")
        self._check_first()
        for number in result.order:
            self._take(number)
        if self._pending is not None:
            self._end_with_marker()
        if self._marker is None and result.order and self._scans[result.order[-1]].torn:
            # Torn or damaged: nobody can tell, nor what was promised there.
            self._gap(None)
        result.sequence = self._last or 0
        result.entries = {number: entries for number, entries in result.entries.items() if entries}

    def _arrange(self) -> None:
        """Where each segment belongs: where its head says, or else its name."""
        result = self.result
        place: dict[int, int] = {}
        for name, found in sorted(self._scans.items()):
            if found.head is not None and found.head.segment == name:
                place[name] = name
        for name, found in sorted(self._scans.items()):
            if name in place.values():
                continue
            wanted = name if found.head is None else found.head.segment
            if wanted in place:
                self._break(f"segment {name}: is a copy of segment {wanted}")
                continue
            if wanted != name:
                self._break(f"segment {name}: is segment {wanted}")
            place[wanted] = name
        newest = max(place, default=0)
        if newest > 0 and self._is_begun(newest, self._scans[place[newest]]):
            result.void.append(place.pop(newest))
        first = max((segment for segment, name in place.items() if self._is_restored(name)), default=0)
        result.order = [place[segment] for segment in sorted(place) if segment >= first]
        result.void += [place[segment] for segment in sorted(place) if segment < first]

    def _is_begun(self, number: int, found: Scan) -> bool:
        """Whether a host died while it made this segment: it comes after the last one that was promised, and is empty.
        Without a marker, that is known of one that was to take the place of others: it would have a record."""
        if found.records:
            return False
        if self._marker is None:
            return found.head is not None and found.head.restored
        return number > self._marker.segment

    def _break(self, problem: str) -> None:
        self.result.problems.append(problem)
        self.result.broken = True

    def _is_restored(self, name: int) -> bool:
        head = self._scans[name].head
        # One that was torn while it was written has taken nobody's place.
        return head is not None and head.restored and bool(self._scans[name].records)

    def _check_first(self) -> None:
        marker, order = self._marker, self.result.order
        if not order or marker is None:
            return
        first = self._segment_of(order[0])
        if first > marker.first and not self._is_restored(order[0]):
            self._break(f"segments {marker.first} to {first - 1} are missing")

    def _segment_of(self, name: int) -> int:
        head = self._scans[name].head
        return name if head is None else head.segment

    def _take(self, name: int) -> None:
        result, found = self.result, self._scans[name]
        for text in found.damage:
            self._break(f"segment {name}: {text}")
        if self._last is None:
            if found.head is not None:
                self._last = found.head.first - 1
            elif self._segment_of(name) == 1:
                self._last = 0
            if self._pending is not None and self._last is not None and self._pending.sequence < self._last:
                result.problems.append("the end marker is older than the journal")
                self._pending = None
        for index, record in enumerate(found.records):
            if self._last is not None and record.sequence <= self._last:
                self._break(f"segment {name}: record {record.sequence} is there twice")
                continue
            if self._pending is not None and self._pending.sequence < record.sequence:
                self._place_marker()
            if self._last is None or record.sequence != self._last + 1:
                self._gap(record.sequence)
            self._last = record.sequence
            states = all(isinstance(entry, t.Resumed | t.Restored) for _, entry in record.entries)
            if index == 0 and record.entries and states:
                self._state(record.entries)
            else:
                for number, entry in record.entries:
                    result.entries[number].append(entry)
        if found.torn and name != result.order[-1]:
            self._break(f"segment {name}: the end is missing, although a segment follows")
        elif found.torn and (self._marker is None or (self._last or 0) < self._marker.sequence):
            self._break(f"segment {name}: what follows record {self._last} is damaged")

    def _gap(self, sequence: int | None) -> None:
        """Records are missing between the last one and this one (None: behind the last one)."""
        after = "the beginning" if self._last is None else f"record {self._last}"
        self._break(f"records are missing after {after}" + ("" if sequence is None else f" and before {sequence}"))
        for number, entries in self.result.entries.items():
            entries.append(t.Lost())
            self._open.add(number)

    def _end_with_marker(self) -> None:
        """No record behind its place is left."""
        assert self._pending is not None
        if self._exact or self._pending.sequence <= (self._last or 0):
            self._place_marker()
            return
        self._gap(None)
        self.result.problems.append("the end marker may be older than what is missing")
        self._last = self._pending.sequence

    def _place_marker(self) -> None:
        marker, self._pending = self._pending, None
        assert marker is not None
        if marker.sequence > (self._last or 0):
            self._gap(marker.sequence + 1)
            self._last = marker.sequence
        if marker.sequence > 0:
            self._state(marker.states)

    def _state(self, states: list[Written]) -> None:
        """What every committer that is not recovering has promised by now."""
        for number, entry in states:
            self.result.entries[number].append(entry)
            self._open.discard(number)
        for number in self._open:
            self.result.entries[number].clear()
        self._open.clear()


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
            elif isinstance(entry, t.Restored):
                end = entry.minimum + max(len(entry.commits), len(entry.records))
            else:
                continue
            self._ends[number] = max(end, self._ends.get(number, 0))

    def obsolete(self, promised: Iterable[Written]) -> bool:
        """Whether every vote in it is below its node's window. `promised` is how the next segment would begin."""
        windows = {number: entry.minimum for number, entry in promised if isinstance(entry, t.Resumed)}
        return all(end <= windows.get(number, 0) for number, end in self._ends.items())
