"""The virtual disk of a container: journals and checkpoints. It survives the container's process.

A journal is bytes in the real format. What is written is durable after `sync`; a crash before that leaves some
prefix of it, torn anywhere.
"""

import random
from collections.abc import Callable, Iterable
from hashlib import blake2b

from tara.protocol import journal
from tara.protocol import tuples as t


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


class Disk:
    SEGMENT_BYTES = 2_000

    def __init__(self, generation: int = 0) -> None:
        #: Rises whenever the journal is lost.
        self.generation = generation
        #: The journal: the bytes of each segment, oldest first, and what is known about it.
        self._segments: list[tuple[bytearray, journal.Segment]] = []
        #: Per executor, by number.
        self.checkpoints: dict[int, dict[int, StoredCheckpoint]] = {}
        self.full = False
        #: Bytes after which a new segment begins, and how many have begun since the first one.
        self.segment_bytes = self.SEGMENT_BYTES
        self.rolled = 0

    def replay(self) -> dict[int, list[t.JournalEntry]]:
        """What is there after a restart, by node. A torn tail is cut; a segment whose head is torn was never used."""
        found: dict[int, list[t.JournalEntry]] = {}
        for data, _ in self._segments:
            whole = journal.scan(bytes(data))
            assert whole.valid_bytes == len(data) or data is self._segments[-1][0], "torn in the middle"
            del data[whole.valid_bytes :]
            for number, entry in whole.entries:
                found.setdefault(number, []).append(entry)
        if self._segments and not self._segments[-1][0]:
            self._segments.pop()
        return found

    def append(self, entries: list[journal.Written]) -> None:
        packed = journal.pack(entries)
        if not self._segments:
            self._segments.append((bytearray(), journal.Segment()))
        data, segment = self._segments[-1]
        data += packed
        segment.note(entries, len(packed))

    def tear(self, entries: list[journal.Written], draw: random.Random) -> None:
        """The process died while it appended these, or while it began a segment. Nothing of it survives whole."""
        packed = journal.pack(entries)
        if not self._segments or draw.random() < 0.2:
            self._segments.append((bytearray(), journal.Segment()))
        self._segments[-1][0].extend(packed[: draw.randrange(len(packed))])

    def forget_journal(self) -> None:
        self._segments = []
        self.generation += 1

    def roll(self, resumed: list[journal.Written], minimum: Callable[[int], int]) -> None:
        """Begin a new segment if the last one is full, and drop those that are not needed any more."""
        if self._segments and self._segments[-1][1].size > self.segment_bytes:
            self.rolled += 1
            self._segments.append((bytearray(), journal.Segment()))
            self.append(resumed)
        while len(self._segments) > 1 and self._segments[0][1].obsolete(minimum):
            del self._segments[0]

    def checkpoints_of(self, executor: int) -> dict[int, StoredCheckpoint]:
        return self.checkpoints.setdefault(executor, {})
