"""Frames: what travels between containers.

A frame between containers carries the tuples of one loop turn for one peer, and says which cluster, era, container
and life it comes from, and the shape of that cluster; a receiver drops what is not of its cluster, era and shape, or
of a life older than one it has seen.
A bad frame is refused with a reason, counted by the receiver, and never kills it.
"""

from collections.abc import Callable, Iterable
from functools import partial

import msgspec
from msgspec import Raw, Struct

from tara.host.client_wire import check_version, encode_in_pieces
from tara.host.fragments import Fragment, fragment_of
from tara.host.outgoing import Piece
from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple

encode = t.encode


class Header(Struct, array_like=True, frozen=True):
    version: int
    cluster: int
    era: int
    container: int
    life: int
    #: Stands for all settings that must agree; see `tara.configuration.settings.shape_of`.
    shape: int


class PackedCommit(Struct, array_like=True, frozen=True):
    """A commit that is not decoded before it is known to be needed: of 2f+1, an executor needs only the first f+1."""

    partition: int
    #: The slot behind its last one.
    end: int
    commit: Raw


class OutgoingFrame(Struct, array_like=True, frozen=True):
    header: Header
    #: Node numbers, and the encoded tuple for them. A tuple for several peers is encoded once.
    parcels: list[tuple[tuple[int, ...], Raw]]
    votes: list[tuple[tuple[int, ...], PackedCommit]]
    fragments: list[Fragment]


def frame_of(header: Header, pieces: Iterable[Piece]) -> OutgoingFrame:
    """What leaves together."""
    frame = OutgoingFrame(header, [], [], [])
    for piece in pieces:
        item = piece.item
        if not piece.is_whole:
            frame.fragments.append(fragment_of(piece))
        elif type(item.tuple_) is t.Commit:
            commit = item.tuple_
            vote = PackedCommit(commit.partition, commit.first + len(commit.requests), Raw(item.data))
            frame.votes.append((item.numbers, vote))
        else:
            frame.parcels.append((item.numbers, Raw(item.data)))
    return frame


def encode_frame(frame: OutgoingFrame, bytes_max: int) -> list[bytes]:
    """After a view change, say, there may be much to send at once. A tuple by itself is always short enough."""
    data = encode(frame)
    if len(data) <= bytes_max:
        return [data]
    lists = (frame.parcels, frame.votes, frame.fragments)
    return encode_in_pieces(partial(OutgoingFrame, frame.header), lists, bytes_max)


class Frame(Struct, array_like=True, frozen=True):
    header: Header
    parcels: list[tuple[list[int], t.WireTuple]]
    votes: list[tuple[list[int], PackedCommit]]
    fragments: list[Fragment]


class _Head(Struct, array_like=True, frozen=True):
    """A frame of which only the header is of interest."""

    header: Header
    parcels: Raw
    votes: Raw
    fragments: Raw


_decode_frame: Callable[[bytes], Frame] = msgspec.msgpack.Decoder(Frame).decode
_decode_head: Callable[[bytes], _Head] = msgspec.msgpack.Decoder(_Head).decode


def decode_frame(data: bytes) -> Frame:
    try:
        frame = _decode_frame(data)
    except t.DECODE_ERRORS as error:
        raise MalformedTuple(f"frame: {error}") from error
    check_version(frame.header.version)
    return frame


def decode_header(data: bytes) -> Header:
    """The header of a frame, without making anything of the rest: that of a stranger may be anything."""
    try:
        header = _decode_head(data).header
    except t.DECODE_ERRORS as error:
        raise MalformedTuple(f"frame: {error}") from error
    check_version(header.version)
    return header


def beginning(header: Header) -> bytes:
    """How the frames with this header begin."""
    return b"\x94" + encode(header)
