"""What travels between a reader of the decided log and a site: bytes of its files, asked for by command counters.

A reader has one request on its way at a time. It is told where the log begins and ends, or gets a piece of a file from
the block on that has a command. Of a block that is longer than a piece it asks for the rest, with the block's checksum:
so what it puts together is one block, whatever became of the file. Blocks are as they are on the disk: damage that a
disk or a network has done shows to the reader. Replicas cut their logs into different blocks, but the rows are the
same: a reader goes on at any site with the command it needs next.

Its first request makes a connection to a front end one for reading: that gives it away (`tara.net.log_server`).
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

VERSION = 1
#: How a request begins: the head of the MessagePack array, the length of the tag, the tag. A request of a client has a
#: number in its place.
_MARK = b"\xa3log"

#: What is asked for: where the log begins and ends; a piece; up to which command blocks of so many bytes lead.
BOUNDS, PIECE, ADVANCE = 0, 1, 2
#: What came of it: it is in the reply; the log begins behind that command; it ends before it (a site may be behind), or
#: a gap of it is not filled yet; this reader may not read it; it cannot be read here now.
OK, TRUNCATED, NOT_YET, FORBIDDEN, FAILED = 0, 1, 2, 3, 4


class LogRequest(Struct, array_like=True, frozen=True, tag="log"):
    version: int
    ticket: int
    what: int
    counter: int = 1
    #: Of a block: the bytes that the reader has already, and its checksum.
    skip: Annotated[int, Meta(ge=0)] = 0
    checksum: int | None = None
    #: Where the block most likely begins; see `tara.storage.log_blocks.Place`.
    file: Annotated[str, Meta(max_length=255)] = ""
    offset: Annotated[int, Meta(ge=0)] = 0
    bytes_max: int = 0


class LogReply(Struct, array_like=True, frozen=True):
    version: int
    ticket: int
    status: int
    #: In words, where it is not OK.
    message: str = ""
    #: The commands [first, end) are there. Said unless a piece is.
    first: int = 1
    end: int = 1
    #: Where all front ends are; said with the former.
    endpoints: list[str] = []
    #: Whose log it is; no cluster: there is nothing yet.
    cluster: int = 0
    era: int = 0
    #: Of a piece: its partitions, and the block's file, beginning and checksum.
    partitions: int = 0
    file: str = ""
    offset: int = 0
    checksum: int = 0
    data: bytes = b""


encode = msgspec.msgpack.Encoder().encode
#: Whatever a decoder raises for bytes that are none of these.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
decode_request: Callable[[bytes], LogRequest] = msgspec.msgpack.Decoder(LogRequest).decode
decode_reply: Callable[[bytes], LogReply] = msgspec.msgpack.Decoder(LogReply).decode


def is_log_request(message: bytes) -> bool:
    """Whether a message to a front end is one of these."""
    return message[1:5] == _MARK
