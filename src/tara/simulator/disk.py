"""The virtual disk of a container: journals and checkpoints. It survives the container's process.

A journal is bytes in the real format, with an end marker. What is written is durable after `sync`; a crash before that
leaves some part of it, torn anywhere; after a power cut the end marker may be older than the journal.
"""

import random
from array import array
from collections.abc import Callable, Iterable
from hashlib import blake2b

from tara.host.strikes import Strikes
from tara.protocol import journal
from tara.protocol import tuples as t
from tara.protocol.places import CELLS
from tara.simulator.violation import Violation


class StoredCheckpoint:
    def __init__(self, number: int, state: bytes, chunks: Iterable[bytes]) -> None:
        self.state = state
        self.chunks = list(chunks)
        self.id = t.CheckpointId(number, self._digest())

    def _digest(self) -> bytes:
        digest = blake2b(self.state, digest_size=16)
        for chunk in self.chunks:
            digest.update(chunk)
        return digest.digest()

    @property
    def intact(self) -> bool:
        return self._digest() == self.id.digest

    def damage(self) -> None:
        """Flip one bit."""
        self.state = bytes([self.state[0] ^ 1]) + self.state[1:]


#: What may happen to a journal.
DAMAGES = ("flip", "zero", "cut", "remove", "swap", "stale", "marker")


class Disk:
    SEGMENT_BYTES = 2_000

    def __init__(self, generation: int = 0) -> None:
        #: Rises whenever the journal is lost.
        self.generation = generation
        #: The journal: the bytes of each segment by number, and what is known about it.
        self._segments: dict[int, bytearray] = {}
        self._known: dict[int, journal.Segment] = {}
        self._sequence = 0
        #: The end marker, and what the disk itself has of it; each with the one before it.
        self._marker = b""
        self._synced_marker = b""
        #: What it has promised, for the end marker.
        self.resumed: Callable[[], list[journal.Written]] = list
        #: What the last `replay` found damaged.
        self.problems: list[str] = []
        self.broken = False
        #: Older contents of the newest segment.
        self._stale: dict[int, bytes] = {}
        #: Per executor, by number.
        self.checkpoints: dict[int, dict[int, StoredCheckpoint]] = {}
        self.full = False
        #: The execution record of its executor: what it is doing, and what is concluded from that at a start.
        self.cell = array("Q", [0] * CELLS)
        self.strikes = Strikes()
        #: Bytes after which a new segment begins, and how many have begun since the first one.
        self.segment_bytes = self.SEGMENT_BYTES
        self.rolled = 0

    def replay(self) -> dict[int, list[t.ReplayedEntry]]:
        """What is there after a restart, by node. A torn tail is cut; a segment whose head is torn was never used."""
        marker, problems = journal.read_marker(self._marker) if self._marker else (None, [])
        scans = {number: journal.scan(bytes(data)) for number, data in self._segments.items()}
        found = journal.assemble(scans, marker)
        self.problems, self.broken, self._sequence = problems + found.problems, found.broken, found.sequence
        if not self.broken:
            for number in found.void:
                del self._segments[number]
                self._known.pop(number, None)
            if found.order:
                last = found.order[-1]
                del self._segments[last][scans[last].end :]
        return found.entries

    def append(self, entries: list[journal.Written]) -> None:
        if self.broken:
            raise Violation("halted", "a damaged journal was not restored before it was written")
        if not self._segments:
            self._begin(restored=False)
        self._write(entries)
        self._mark()

    def _write(self, entries: list[journal.Written]) -> None:
        last = max(self._segments)
        packed = journal.pack(entries, self._sequence + 1, self._sync_word(last))
        self._stale[last] = bytes(self._segments[last])
        self._segments[last] += packed
        self._known[last].note(entries, len(packed))
        self._sequence += 1

    def _sync_word(self, segment: int) -> bytes:
        return blake2b(f"{self.generation}/{segment}".encode(), digest_size=journal.SYNC_BYTES).digest()

    def _begin(self, restored: bool) -> None:
        number = max(self._segments, default=0) + 1
        head = self._head(number, restored)
        self._segments[number], self._known[number] = bytearray(journal.pack_head(head)), journal.Segment()

    def _head(self, number: int, restored: bool = False) -> journal.Head:
        return journal.Head(
            cluster=1,
            era=1,
            container=1,
            journal="virtual",
            segment=number,
            first=self._sequence + 1,
            sync=self._sync_word(number).hex(),
            restored=restored,
        )

    def _mark(self, both: bool = False) -> None:
        slot = journal.pack_marker(
            journal.Marker(
                cluster=1,
                era=1,
                container=1,
                journal="virtual",
                first=min(self._segments),
                segment=max(self._segments),
                sequence=self._sequence,
                states=self.resumed(),
            )
        )
        self._marker = slot + (self._marker[: journal.MARKER_SLOT_BYTES] if self._marker and not both else slot)
        if both or not self._synced_marker:
            self._synced_marker = self._marker

    def mark(self) -> None:
        """At the start of a life: the end marker is as new as the journal."""
        if self._segments:
            self._mark(both=True)

    def restore(self, entries: list[journal.Written]) -> None:
        """A new segment with all that the committers know takes the place of the damaged journal."""
        old = list(self._segments)
        self._begin(restored=True)
        self._write(entries)
        for number in old:
            del self._segments[number]
            self._known.pop(number, None)
        self._stale.clear()
        self.broken = False
        self._mark(both=True)

    def tear(self, entries: list[journal.Written], draw: random.Random) -> None:
        """The process died while it appended these, or while it began a segment; perhaps the power failed. Nothing of
        it survives whole."""
        begins = not self._segments or draw.random() < 0.2
        number = max(self._segments, default=0) + begins
        torn = bytearray(journal.pack(entries, self._sequence + 1, self._sync_word(number)))
        if draw.random() < 0.5:
            del torn[draw.randrange(len(torn)) :]
        else:
            # The file has its length, but not all of its pages.
            first, end = sorted((draw.randrange(len(torn)), draw.randrange(len(torn))))
            torn[first : end + 1] = bytes(end + 1 - first)
            torn[-1] ^= 1
        if begins:
            self._segments[number] = bytearray(journal.pack_head(self._head(number)))
            del self._segments[number][draw.randrange(journal.HEAD_BYTES) :]
            torn = torn if len(self._segments[number]) == journal.HEAD_BYTES else bytearray()
        self._segments[number] += torn
        if self._synced_marker and draw.random() < 0.5:
            self._marker = self._synced_marker

    def damage(self, draw: random.Random) -> str | None:
        """Harm one thing of the journal that was durable; returns what. None: there is nothing to harm."""
        kind = draw.choice(DAMAGES)
        if not self._segments or (kind == "swap" and len(self._segments) < 2):
            return None
        number = draw.choice(sorted(self._segments))
        data = self._segments[number]
        match kind:
            case "flip":
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            case "zero":
                first = draw.randrange(len(data))
                data[first : first + 200] = bytes(len(data[first : first + 200]))
            case "cut":
                del data[draw.randrange(len(data)) :]
            case "remove":
                del self._segments[number]
            case "swap":
                other = draw.choice([known for known in sorted(self._segments) if known != number])
                self._segments[number], self._segments[other] = self._segments[other], data
            case "stale":
                if number not in self._stale:
                    return None
                self._segments[number] = bytearray(self._stale[number])
            case "marker":
                self._marker = b"" if draw.random() < 0.5 else bytes(draw.randrange(256) for _ in range(40))
        return kind

    def forget_journal(self) -> None:
        self._segments, self._known, self._stale = {}, {}, {}
        self._sequence, self._marker, self._synced_marker = 0, b"", b""
        self.problems, self.broken = [], False
        self.generation += 1

    def roll(self, minimum: Callable[[int], int]) -> None:
        """Begin a new segment if the last one is full, and drop those that are not needed any more."""
        if self._segments and self._known[max(self._segments)].size > self.segment_bytes:
            self.rolled += 1
            self._begin(restored=False)
            self._write(self.resumed())
        order = sorted(self._segments)
        while len(order) > 1 and self._known[order[0]].obsolete(minimum):
            number = order.pop(0)
            del self._segments[number], self._known[number]
            self._stale.pop(number, None)
        self._mark(both=True)

    def checkpoints_of(self, executor: int) -> dict[int, StoredCheckpoint]:
        return self.checkpoints.setdefault(executor, {})
