"""The digest of a replicated state: equal states have equal ones on every replica, and in every base."""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

DIGEST_BYTES = 16


class StateDigest:
    """Part by part: the protocol's part, encoded, and then the application's snapshot. It does not depend on how they
    were cut."""

    def __init__(self) -> None:
        hash_ = blake2b(digest_size=DIGEST_BYTES)
        self.add: Callable[[bytes], None] = hash_.update
        self.digest: Callable[[], bytes] = hash_.digest


def digest_of(state: bytes, chunks: Iterable[bytes]) -> bytes:
    digest = StateDigest()
    digest.add(state)
    for chunk in chunks:
        digest.add(chunk)
    return digest.digest()


class DrawnDigest:
    """The same, of a state that was captured, some of it at a time."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        """The state, encoded, and the chunks."""
        self._pieces = pieces
        self._digest = StateDigest()
        #: None: there is more to draw.
        self.drawn: bytes | None = None

    def go_on(self, size: int) -> None:
        """Draw about so many more bytes."""
        for piece in self._pieces:
            self._digest.add(piece)
            size -= len(piece)
            if size <= 0:
                return
        self.drawn = self._digest.digest()
