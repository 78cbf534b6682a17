"""Frames: what travels between containers.

A frame between containers carries all tuples of one loop turn for one peer, and says which cluster, era, container
and life it comes from, and the shape of that cluster; a receiver drops what is not of its cluster, era and shape, or
of a life older than one it has seen.
A bad frame is refused with a reason, counted by the receiver, and never kills it.
"""

from collections.abc import Callable

import msgspec
import zmq
from msgspec import Raw, Struct

from tara.client.wire import check_version
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


class OutgoingFrame(Struct, array_like=True, frozen=True):
    header: Header
    #: Node numbers, and the encoded tuple for them. A tuple for several peers is encoded once.
    parcels: list[tuple[tuple[int, ...], Raw]]


class Frame(Struct, array_like=True, frozen=True):
    header: Header
    parcels: list[tuple[list[int], t.WireTuple]]


class _Head(Struct, array_like=True, frozen=True):
    """A frame of which only the header is of interest."""

    header: Header
    parcels: Raw


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
    return b"\x92" + encode(header)


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received at once."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
