"""Frames: what travels between containers, and between a client and a front end.

A frame between containers carries all tuples of one loop turn for one peer, and says which cluster, era, container
and life it comes from; a receiver drops what is not of its cluster and era, or of a life older than one it has seen.
A bad frame is refused with a reason, counted by the receiver, and never kills it.
"""

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct

from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple

encode = t.encode


class Header(Struct, array_like=True, frozen=True):
    version: int
    cluster: int
    era: int
    container: int
    life: int


class OutgoingFrame(Struct, array_like=True, frozen=True):
    header: Header
    #: Node numbers, and the encoded tuple for them. A tuple for several peers is encoded once.
    parcels: list[tuple[tuple[int, ...], Raw]]


class Frame(Struct, array_like=True, frozen=True):
    header: Header
    parcels: list[tuple[list[int], t.WireTuple]]


class LocalRead(Struct, array_like=True, frozen=True):
    """A question to the local copy of the application: no order, possibly old."""

    id: int
    question: bytes


class ClientRequest(Struct, array_like=True, frozen=True):
    version: int
    commands: list[t.Command]
    reads: list[LocalRead] = []


class ClientReply(Struct, array_like=True, frozen=True):
    version: int
    results: list[t.Result]
    events: list[t.Event] = []
    #: Answers to local reads: id, status, payload.
    answers: list[tuple[int, int, bytes]] = []


_decode_frame: Callable[[bytes], Frame] = msgspec.msgpack.Decoder(Frame).decode
_decode_request: Callable[[bytes], ClientRequest] = msgspec.msgpack.Decoder(ClientRequest).decode
_decode_reply: Callable[[bytes], ClientReply] = msgspec.msgpack.Decoder(ClientReply).decode


def decode_frame(data: bytes) -> Frame:
    try:
        frame = _decode_frame(data)
    except msgspec.DecodeError as error:
        raise MalformedTuple(f"frame: {error}") from error
    _check_version(frame.header.version)
    return frame


def decode_request(data: bytes) -> ClientRequest:
    try:
        request = _decode_request(data)
    except msgspec.DecodeError as error:
        raise MalformedTuple(f"client request: {error}") from error
    _check_version(request.version)
    return request


def decode_reply(data: bytes) -> ClientReply:
    try:
        reply = _decode_reply(data)
    except msgspec.DecodeError as error:
        raise MalformedTuple(f"reply: {error}") from error
    _check_version(reply.version)
    return reply


def _check_version(version: int) -> None:
    if version != t.FORMAT_VERSION:
        raise MalformedTuple(f"frame of format version {version}, this is version {t.FORMAT_VERSION}")
