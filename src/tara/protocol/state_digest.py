"""The digest of a replicated state: equal states have equal ones on every replica, and in every base."""

from collections.abc import Iterable
from hashlib import blake2b

DIGEST_BYTES = 16


def digest_of(state: bytes, chunks: Iterable[bytes]) -> bytes:
    """Of the sessions' state, encoded, and the application's snapshot."""
    digest = blake2b(state, digest_size=DIGEST_BYTES)
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()
