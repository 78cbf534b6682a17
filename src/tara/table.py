"""A dictionary whose state can be captured at once and read while it changes: what a large application keeps its state
in, so that a base neither stops it nor needs its memory twice.

The entries are spread over pages, small dictionaries, by linear hashing: page after page is split as the table grows,
so that no insertion takes long. A page has the entries whose hashes lie in one interval, and the pages stand in the
order of their intervals. To capture the state is to copy the list of the pages. From then on, a page that is changed is
copied first, once per capture, and the capture lets go of each page as it is drawn.

Keys are hashed by CRC-32. Whoever chooses his keys on purpose can have all of them in one page: then that is copied and
drawn as a whole, as a dictionary would be.

All orders are those of (hash, kind of key, key). They depend on the entries alone, neither on how many pages there are
nor on what was in the table before: a replica that was restored and one that lived draw the same bytes.
"""

import struct
import weakref
from collections.abc import Callable, Generator, ItemsView, Iterable, Iterator, Mapping, MutableMapping, Sized
from itertools import chain
from types import GenericAlias
from typing import Any, Generic, TypeVar, cast, overload
from zlib import crc32

import msgspec

__all__ = ["CHUNK_BYTES_MAX", "Key", "Table"]

#: A chunk of a snapshot is not to become longer: encoding one stops whatever else the process does. Only an entry that
#: is longer is a longer chunk.
CHUNK_BYTES_MAX = 1 << 20
#: Likewise: a chunk of short entries.
CHUNK_ENTRIES_MAX = 1000
#: What is restored at once, in entries and bytes: some milliseconds of work.
SLICE_ENTRIES = 10_000
SLICE_BYTES = 256 << 10
#: Behind the chunks of a table, so that several tables can follow each other: a map of nothing.
END = b"\x80"

#: A split is due when there are more entries than this per page, and a page has half to twice as many. Copying such a
#: page takes less than a microsecond.
ENTRIES_PER_PAGE = 80
#: Two pages are merged when there are fewer. Far less than above, so that no entry that comes and goes splits and
#: merges all the time.
ENTRIES_PER_PAGE_MIN = 20
HASH_BITS = 32

Key = str | bytes | int
K = TypeVar("K", bound=Key)
V = TypeVar("V")
T = TypeVar("T")
Doubled = TypeVar("Doubled", list[Any], bytearray)

#: What is hashed of a key. The functions of C in which a whole page is hashed, without a call of Python in between.
_BYTES_OF: dict[type, Callable[[Any], bytes]] = {str: str.encode, bytes: bytes, int: struct.Struct("<q").pack}
#: Sets and dictionaries in a value are sorted: equal values have equal bytes.
_encode_value = msgspec.msgpack.Encoder(order="deterministic").encode
_encode = msgspec.msgpack.Encoder().encode
_NOTHING: Any = object()


class _Capture(list[dict[K, V]]):
    """The pages of one moment that are still to be drawn, the last one first. Lives as long as somebody can draw it."""

    __slots__ = ("__weakref__",)


class _Items(ItemsView[K, V]):
    """Without a look-up for each of them."""

    _mapping: "Table[K, V]"

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.captured()


class Table(MutableMapping[K, V], Generic[K, V]):
    """Behaves like a dictionary, but for its order. Keys are strings, bytes, or integers of 64 bits with a sign, and
    nothing else. Values must not be changed in place: a capture shares them."""

    __slots__ = ("__weakref__", "_captures", "_count", "_grow_at", "_own", "_pages", "_shift", "_shrink_at", "_whole")

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = (), /) -> None:
        self._reset(_pages_for(len(items)) if isinstance(items, Sized) else 1)
        self.update(items)

    def _reset(self, pages: int) -> None:
        """Nothing but so many pages."""
        level = pages.bit_length() - 1
        #: By the first level + 1 bits of a hash: where its entry is. Pages from the position _whole on have not been
        #: split since this list was doubled, and stand in it twice. Invariant: there are such pages.
        self._whole = 2 * (pages - (1 << level))
        self._pages: list[dict[K, V]] = [{} for _ in range(self._whole)]
        self._pages += _doubled([{} for _ in range(pages - self._whole)])
        #: What is left of a hash shifted by this is a position in the list.
        self._shift = HASH_BITS - 1 - level
        self._count = 0
        self._set_bounds()
        #: Captures that may still be drawn. If there are any, _own says by position which pages none of them needs.
        self._captures: list[weakref.ref[_Capture[K, V]]] = []
        self._own = bytearray()

    def _set_bounds(self) -> None:
        pages = (len(self._pages) + self._whole) // 2
        self._grow_at = pages * ENTRIES_PER_PAGE
        self._shrink_at = pages * ENTRIES_PER_PAGE_MIN if pages > 1 else 0

    # These are called all the time, mostly for strings: they find the page without another call.

    def __getitem__(self, key: K) -> V:
        return self._pages[(crc32(key.encode()) if type(key) is str else _hash(key)) >> self._shift][key]  # type: ignore[union-attr]

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T, /) -> V | T: ...
    def get(self, key: K, default: Any = None, /) -> Any:
        position = (crc32(key.encode()) if type(key) is str else _hash(key)) >> self._shift  # type: ignore[union-attr]
        return self._pages[position].get(key, default)

    def __setitem__(self, key: K, value: V) -> None:
        position = (crc32(key.encode()) if type(key) is str else _hash(key)) >> self._shift  # type: ignore[union-attr]
        page = self._pages[position]
        if self._captures and not self._own[position]:
            page = self._take(position)
        if key in page:
            page[key] = value
            return
        page[key] = value
        self._count += 1
        if self._count > self._grow_at:
            self._split()

    def __contains__(self, key: object) -> bool:
        return key in self._pages[_hash(key) >> self._shift]

    def __delitem__(self, key: K) -> None:
        del self._page_to_change(key)[key]
        self._removed()

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, default: V | T, /) -> V | T: ...
    def pop(self, key: K, default: Any = _NOTHING, /) -> Any:
        page = self._page_to_change(key)
        if key not in page and default is not _NOTHING:
            return default
        value = page.pop(key)
        self._removed()
        return value

    def setdefault(self, key: K, default: Any = None, /) -> Any:
        value = self.get(key, _NOTHING)
        if value is _NOTHING:
            self[key] = value = default
        return value

    def clear(self) -> None:
        self._reset(1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.captured())

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def __repr__(self) -> str:
        return f"Table({dict(self.captured())})"

    def __reduce__(self) -> tuple[object, ...]:
        """Copies of any kind have pages of their own."""
        return type(self), (dict(self.captured()),)

    def captured(self) -> Generator[tuple[K, V], None, None]:
        """The items of this moment, in the order of the table, to be drawn while it changes. Costs next to nothing
        per entry before it is drawn, and nothing after it has been drawn, closed or dropped."""
        capture = _Capture(self._each_page())
        capture.reverse()
        self._captures = [*self._open_captures(), weakref.ref(capture)]
        self._own = bytearray(len(self._pages))
        return _draw(capture)

    def unordered(self) -> Iterator[tuple[K, V]]:
        """The items, several times faster, in an order that differs from replica to replica: for a sum, or for
        whoever sorts what he takes. The table must not change meanwhile."""
        return chain.from_iterable(page.items() for page in self._each_page())

    def snapshot(self) -> Iterator[bytes]:
        """The state of this moment as chunks, for `StateMachine.snapshot`: may be drawn while the table changes. What
        MessagePack can encode can be a value."""
        return _chunks(self.captured())

    def restore(self, chunks: Iterable[bytes], value_type: Any = Any) -> None:
        """Replace the state by that of a snapshot. `value_type` says what the values are; without it, MessagePack
        gives a list where a tuple was, and a dictionary or a list for a struct. Of an iterator, it draws no more than
        the chunks of this table: those of another one may follow. What was there goes first, so that memory never has
        two states; if the snapshot is bad, the table is empty."""
        for _ in self.restore_slices(chunks, value_type):
            pass

    def restore_slices(self, chunks: Iterable[bytes], value_type: Any = Any) -> Iterator[None]:
        """The same, as `StateMachine.restore_slices` does it: yields after some milliseconds of work. The table is not
        to be used before its end."""
        # The type is known only when it runs.
        kind = cast(type[dict[K, V]], GenericAlias(dict, (Any, value_type)))
        decode = msgspec.msgpack.Decoder(kind).decode
        self._reset(1)
        parts: list[dict[K, V]] = []
        entries = size = 0
        for chunk in chunks:
            if chunk == END:
                break
            parts.append(decode(chunk))
            entries, size = entries + len(parts[-1]), size + len(chunk)
            if entries >= SLICE_ENTRIES or size >= SLICE_BYTES:
                entries = size = 0
                yield
        yield from self.fill_slices(parts)

    def fill_slices(self, parts: list[dict[K, V]]) -> Iterator[None]:
        """Replace the entries by those of these dictionaries, some at a time. They are taken from the list one by one,
        so that memory does not have them twice."""
        self._reset(_pages_for(sum(map(len, parts))))
        parts.reverse()
        entries = 0
        while parts:
            part = parts.pop()
            self.update(part)
            entries += len(part)
            if entries >= SLICE_ENTRIES:
                entries = 0
                yield

    def _each_page(self) -> list[dict[K, V]]:
        return self._pages[: self._whole] + self._pages[self._whole :: 2]

    def _page_to_change(self, key: K) -> dict[K, V]:
        position = _hash(key) >> self._shift
        if self._captures and not self._own[position]:
            return self._take(position)
        return self._pages[position]

    def _take(self, position: int) -> dict[K, V]:
        """The page, to change it: a copy of it if a capture may need it as it is."""
        self._captures = self._open_captures()
        page = self._pages[position]
        if self._captures:
            page = page.copy()
            if position < self._whole:
                self._pages[position], self._own[position] = page, True
            else:
                self._put_pages(position & ~1, page, page)
        return page

    def _put_pages(self, position: int, *pages: dict[K, V]) -> None:
        """Pages that no capture knows."""
        self._pages[position : position + 2] = pages
        if self._captures:
            self._own[position : position + 2] = b"\1\1"

    def _open_captures(self) -> list[weakref.ref[_Capture[K, V]]]:
        return [capture for capture in self._captures if capture() is not None]

    def _removed(self) -> None:
        self._count -= 1
        if self._count < self._shrink_at:
            self._merge()

    def _split(self) -> None:
        """Two pages instead of the first one that stands for two positions."""
        page = self._pages[self._whole]
        lower: dict[K, V] = {}
        upper: dict[K, V] = {}
        bit = 1 << self._shift
        for hash_, (key, value) in zip(_hashes(page), page.items(), strict=True):
            (upper if hash_ & bit else lower)[key] = value
        self._put_pages(self._whole, lower, upper)
        self._whole += 2
        if self._whole == len(self._pages):
            self._pages, self._own = _doubled(self._pages), _doubled(self._own)
            self._shift -= 1
            self._whole = 0
        self._set_bounds()

    def _merge(self) -> None:
        """Undo the last split."""
        if self._whole == 0:
            self._pages, self._own = self._pages[::2], self._own[::2]
            self._shift += 1
            self._whole = len(self._pages)
        self._whole -= 2
        page = self._pages[self._whole] | self._pages[self._whole + 1]
        self._put_pages(self._whole, page, page)
        self._set_bounds()


def _pages_for(entries: int) -> int:
    return max(-(-entries // ENTRIES_PER_PAGE), 1)


def _doubled(values: Doubled) -> Doubled:
    """Each one twice, side by side. By slices, which takes a tenth of the time of a loop."""
    twice = values + values
    twice[::2] = twice[1::2] = values
    return twice


def _hash(key: object) -> int:
    try:
        return crc32(_BYTES_OF[type(key)](key))
    except KeyError:
        raise TypeError(f"a key of a table is a string, bytes or an integer, and not {type(key).__name__}") from None
    except struct.error:
        raise OverflowError("a key of a table that is an integer has 64 bits, with a sign") from None


def _hashes(page: Iterable[Key]) -> Iterator[int]:
    kinds = set(map(type, page))
    # Nearly always one.
    return map(crc32, map(_BYTES_OF[kinds.pop()], page)) if len(kinds) == 1 else map(_hash, page)


def _in_order(page: dict[K, V]) -> list[K]:
    try:
        return [key for _, key in sorted(zip(_hashes(page), page, strict=True))]
    except TypeError:
        # Keys of different kinds with the same hash.
        return sorted(page, key=lambda key: (_hash(key), type(key).__name__, key))


def _draw(capture: _Capture[K, V]) -> Generator[tuple[K, V], None, None]:
    while capture:
        page = capture.pop()
        for key in _in_order(page):
            yield key, page[key]


def _chunks(items: Iterable[tuple[Key, object]]) -> Iterator[bytes]:
    """Where a chunk ends is a function of the items, as all of its bytes are."""
    chunk: dict[Key, object] = {}
    chunk_bytes = 0
    for key, value in items:
        if type(value) is bytes:
            entry_bytes = len(value)
        else:
            encoded = _encode_value(value)
            entry_bytes = len(encoded)
            value = msgspec.Raw(encoded)
        if not isinstance(key, int):
            entry_bytes += len(key)
        if chunk and (len(chunk) == CHUNK_ENTRIES_MAX or chunk_bytes + entry_bytes > CHUNK_BYTES_MAX):
            yield _encode(chunk)
            chunk, chunk_bytes = {}, 0
        chunk[key] = value
        chunk_bytes += entry_bytes
    if chunk:
        yield _encode(chunk)
    yield END
