"""A state store in memory."""

from tara.streaming.seats import Changes, Version


class MemoryStore:
    """The state of one key. Invariant: what a state refers to is there, and nothing else."""

    def __init__(self) -> None:
        self.version: Version | None = None
        self._node = b""
        self.bodies: dict[bytes, bytes] = {}
        self.pieces: list[bytes] = []
        self.runs: dict[int, bytes] = {}
        #: What was asked, for those who count.
        self.asked: list[str] = []
        #: Bytes written by the last change.
        self.written = 0

    @classmethod
    def of(cls, other: "MemoryStore", node: bytes | None = None) -> "MemoryStore":
        """A copy, as a version of Spark's state store is one."""
        copy = cls()
        copy.version, copy._node = other.version, other._node if node is None else node
        copy.bodies, copy.pieces, copy.runs = dict(other.bodies), list(other.pieces), dict(other.runs)
        return copy

    @property
    def content(self) -> tuple[object, ...]:
        assert self.version is not None
        return (self.version[1:], self._node, dict(self.bodies), list(self.pieces), dict(self.runs))

    @property
    def size(self) -> int:
        parts = [self._node, *self.bodies.values(), *self.pieces, *self.runs.values()]
        return sum(map(len, parts))

    def token(self) -> bytes | None:
        return None if self.version is None else self.version.token

    def node(self) -> bytes:
        self.asked.append("node")
        return self._node

    def body(self, digest: bytes) -> bytes:
        self.asked.append("body")
        return self.bodies[digest]

    def piece(self, number: int) -> bytes:
        self.asked.append("piece")
        return self.pieces[number]

    def run(self, number: int) -> bytes:
        self.asked.append("run")
        return self.runs[number]

    def write(self, changes: Changes) -> None:
        self.version, self._node = changes.version, changes.node
        assert not changes.bodies.keys() & self.bodies.keys()
        self.bodies.update(changes.bodies)
        for digest in changes.forgotten:
            del self.bodies[digest]
        assert sum(map(len, self.bodies.values())) == changes.version.body_bytes
        self.written = len(changes.node) + sum(map(len, changes.bodies.values()))
        if changes.base is not None:
            self.pieces, self.runs = changes.base, {}
            self.written += sum(map(len, changes.base))
        if changes.run is not None:
            number, run = changes.run
            assert number not in self.runs
            self.runs[number] = run
            self.written += len(run)
