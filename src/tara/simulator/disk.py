"""The virtual disk of a container: journals and checkpoints. It survives the container's process.

A journal is bytes in the real format. What is written is durable after `sync`; a crash before that leaves some
prefix of it, torn anywhere.
"""

import random
from collections.abc import Iterable
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
    #: Journal bytes after which a journal is compacted at the next garbage collection.
    COMPACT_BYTES = 2_000

    def __init__(self) -> None:
        self._journals: dict[int, bytes] = {}
        #: Per executor, by number.
        self.checkpoints: dict[int, dict[int, StoredCheckpoint]] = {}
        self.full = False

    def journal_of(self, node: int) -> list[t.JournalEntry]:
        """What is there after a restart; a torn tail is cut."""
        data = self._journals.get(node, b"")
        found = journal.scan(data)
        self._journals[node] = data[: found.valid_bytes]
        return found.entries

    def append(self, node: int, entries: list[t.JournalEntry]) -> None:
        self._journals[node] = self._journals.get(node, b"") + journal.pack(entries)

    def tear(self, node: int, entries: list[t.JournalEntry], draw: random.Random) -> journal.Scan:
        """The process died while it appended these. What survived, and what was cut, is
        in the scan of what was written."""
        data = journal.pack(entries)
        kept = data[: draw.randrange(len(data))]
        self._journals[node] = self._journals.get(node, b"") + kept
        return journal.scan(kept)

    def wants_compaction(self, node: int) -> bool:
        return len(self._journals.get(node, b"")) > self.COMPACT_BYTES

    def replace(self, node: int, entries: list[t.JournalEntry]) -> None:
        """A compaction: a new file, renamed over the old one."""
        self._journals[node] = journal.pack(entries)

    def checkpoints_of(self, executor: int) -> dict[int, StoredCheckpoint]:
        return self.checkpoints.setdefault(executor, {})
