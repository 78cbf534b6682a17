"""Fragments: tuples that are too long for one piece, on their way between containers. Pure.

The fragments of a tuple come in order, on one lane of one link, until the last one, or until the sender gives the tuple
up and begins another one. So there is at most one unfinished tuple per sender and lane, and it is never longer than a
frame may be.
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
    """Puts the fragments of all peers together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: Per sender, its life, and lane: what has come of a tuple.
        self._begun: dict[tuple[int, int], tuple[int, Fragment, bytearray]] = {}

    @property
    def kept_bytes(self) -> int:
        return sum([len(data) for _, _, data in self._begun.values()])

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
            self._begun[key] = (life, fragment, bytearray())
        known = self._begun.get(key)
        if known is None:
            return None
        known_life, first, data = known
        same = (known_life, first.total, first.numbers) == (life, fragment.total, fragment.numbers)
        if not same or len(data) != fragment.offset:
            del self._begun[key]
            return None
        data += fragment.data
        if end < fragment.total:
            return None
        del self._begun[key]
        return bytes(data)
