"""The digest of a replicated state: equal states have equal ones on every replica, and in every base."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b

DIGEST_BYTES = 16


def digest_of(state: bytes, chunks: Iterable[bytes]) -> bytes:
    """Of the sessions' state, encoded, and the application's snapshot."""
    digest = blake2b(state, digest_size=DIGEST_BYTES)
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()


class DrawnDigest:
    """The same, of a state that was captured, some of it at a time."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        """The state, encoded, and the chunks."""
        self._pieces: Iterator[bytes] | None = pieces
        self._digest = blake2b(digest_size=DIGEST_BYTES)

    def go_on(self, size: int) -> bytes | None:
        """Draw about so many more bytes. None: there is more."""
        for piece in self._pieces or ():
            self._digest.update(piece)
            size -= len(piece)
            if size <= 0:
                return None
        self._pieces = None
        return self._digest.digest()
