"""Fragments: tuples that are too long for one piece, on their way between containers. Pure.

The fragments of a tuple come in order, on one lane of one link, until the last one, or until the sender gives the tuple
up and begins another one. So there is at most one unfinished tuple per sender and lane, and it is never longer than a
frame may be. All of them together are bounded, too.
"""

from msgspec import Struct

from tara.host.outgoing import LANES, Piece
from tara.protocol.errors import MalformedTuple


class Fragment(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    #: The nodes that the tuple is for.
    numbers: list[int]
    lane: int
    #: The length of the tuple, and where in it the data belong.
    total: int
    offset: int
    data: bytes


def fragment_of(piece: Piece) -> Fragment:
    item = piece.item
    data = item.data[piece.offset : piece.offset + piece.length]
    return Fragment(list(item.numbers), item.lane, len(item.data), piece.offset, data)


class Assembly:
    """Puts the fragments of all peers together.

    Invariant: `kept_bytes` is what has come of unfinished tuples, and at most `kept_bytes_max`."""

    def __init__(self, bytes_max: int, kept_bytes_max: int) -> None:
        """`bytes_max` is for one tuple."""
        assert bytes_max <= kept_bytes_max
        self._bytes_max = bytes_max
        self._kept_bytes_max = kept_bytes_max
        self.kept_bytes = 0
        #: Per sender and lane, the life of the sender and what has come of a tuple; what was heard of last stands last.
        self._begun: dict[tuple[int, int], tuple[int, Fragment, bytearray]] = {}

    def add(self, sender: int, life: int, fragment: Fragment) -> bytes | None:
        """The tuple, when this was its last fragment. One that does not belong to what has come is passed over: what
        came before it may have been lost. One that can belong to nothing is refused."""
        key = (sender, fragment.lane)
        end = fragment.offset + len(fragment.data)
        if not (0 <= fragment.lane < LANES and 0 <= fragment.offset < end <= fragment.total <= self._bytes_max):
            raise MalformedTuple(
                f"fragment: the bytes [{fragment.offset}, {end}) of {fragment.total} on lane {fragment.lane}"
            )
        if fragment.offset == 0:
            self._forget(key)
            self._begun[key] = (life, fragment, bytearray())
        known = self._begun.get(key)
        if known is None:
            return None
        known_life, first, data = known
        same = (known_life, first.total, first.numbers) == (life, fragment.total, fragment.numbers)
        if not same or len(data) != fragment.offset:
            self._forget(key)
            return None
        data += fragment.data
        self.kept_bytes += len(fragment.data)
        self._begun[key] = self._begun.pop(key)
        if end == fragment.total:
            return bytes(self._forget(key))
        while self.kept_bytes > self._kept_bytes_max:
            # Nothing came of it for longest, so it will hardly be finished. Its sender sends it again.
            self._forget(next(iter(self._begun)))
        return None

    def _forget(self, key: tuple[int, int]) -> bytearray:
        _, _, data = self._begun.pop(key, (0, None, bytearray()))
        self.kept_bytes -= len(data)
        return data

    def recount(self) -> int:
        return sum([len(data) for _, _, data in self._begun.values()])
