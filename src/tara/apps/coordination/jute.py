"""Jute, ZooKeeper's serialisation: big-endian integers, and strings, buffers and vectors with a length in front.

A length of -1 stands for nothing. Reading checks every length against what is there: a client cannot make the reader
allocate more than it sent. Reading and writing are plain functions of bytes.
"""

import struct
from typing import NamedTuple

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
unpack_int = _INT.unpack_from
unpack_long = _LONG.unpack_from
pack_int = _INT.pack
pack_long = _LONG.pack
#: czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren, pzxid
STAT = struct.Struct(">qqqqiiiqiiq")
#: xid, zxid, error
REPLY_HEADER = struct.Struct(">iqi")
#: A reply's length, and its header.
FRAMED_REPLY_HEADER = struct.Struct(">iiqi")
REQUEST_HEADER = struct.Struct(">ii")
#: type, done, error
MULTI_HEADER = struct.Struct(">i?i")

Acl = tuple[tuple[int, str, str], ...]


class JuteError(ValueError):
    """Bytes that are not what the protocol says."""


class Reader:
    """Reads a record field by field."""

    __slots__ = ("_data", "_end", "_position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._end = len(data)
        self._position = position

    @property
    def rest(self) -> int:
        """Bytes that were not read."""
        return self._end - self._position

    def fork(self) -> "Reader":
        """Another reader of the same bytes, from here."""
        return Reader(self._data, self._position)

    def number(self) -> int:
        position = self._position
        if position + 4 > self._end:
            raise JuteError("the record ends inside a number")
        self._position = position + 4
        value: int = unpack_int(self._data, position)[0]
        return value

    def long(self) -> int:
        position = self._position
        if position + 8 > self._end:
            raise JuteError("the record ends inside a number")
        self._position = position + 8
        value: int = unpack_long(self._data, position)[0]
        return value

    def flag(self) -> bool:
        if self._position >= self._end:
            raise JuteError("the record ends before a truth value")
        self._position += 1
        return self._data[self._position - 1] != 0

    def buffer(self) -> bytes | None:
        length = self.number()
        if length == -1:
            return None
        if length < 0 or length > self._end - self._position:
            raise JuteError(f"a length of {length} where {self._end - self._position} bytes are left")
        begin = self._position
        self._position = begin + length
        return self._data[begin : self._position]

    def take(self, size: int) -> bytes:
        begin = self._position
        if size > self._end - begin:
            raise JuteError("the record ends too early")
        self._position = begin + size
        return self._data[begin : begin + size]

    def text(self) -> str:
        """A string; nothing reads as the empty one."""
        try:
            return (self.buffer() or b"").decode()
        except UnicodeDecodeError as error:
            raise JuteError("a string is not UTF-8") from error

    def count(self, size_min: int = 4) -> int:
        """The length of a vector whose items have at least `size_min` bytes; nothing reads as empty."""
        count = self.number()
        if count == -1:
            return 0
        if count < 0 or count * size_min > self._end - self._position:
            raise JuteError(f"a vector of {count} where {self._end - self._position} bytes are left")
        return count

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.count())]

    def acl(self) -> Acl:
        return tuple((self.number(), self.text(), self.text()) for _ in range(self.count(12)))


def pack_buffer(value: bytes | None) -> bytes:
    if value is None:
        return b"\xff\xff\xff\xff"
    return pack_int(len(value)) + value


def pack_text(value: str) -> bytes:
    data = value.encode()
    return pack_int(len(data)) + data


def pack_texts(values: list[str]) -> bytes:
    return b"".join((pack_int(len(values)), *(pack_text(value) for value in values)))


def pack_acl(acl: Acl) -> bytes:
    parts = [pack_int(len(acl))]
    for permissions, scheme, id_ in acl:
        parts += (pack_int(permissions), pack_text(scheme), pack_text(id_))
    return b"".join(parts)


class Stat(NamedTuple):
    """A stat record, read."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int

    @classmethod
    def read(cls, reader: Reader) -> "Stat":
        return cls(*STAT.unpack(reader.take(STAT.size)))
