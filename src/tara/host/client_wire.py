"""What travels between a client and a front end."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from tara.protocol import tuples as t
from tara.protocol.errors import MalformedTuple
from tara.protocol.principals import SECRET_BYTES_MAX

encode = t.encode


class ReadMessage(Struct, array_like=True, frozen=True):
    """A read: not ordered, but answered by the front end's replica."""

    id: int
    payload: bytes
    #: At once, from whatever state the replica has; else when it knows everything that was answered before.
    stale: bool = False
    #: Not the application, but what only an operator may ask for; never stale.
    subject: t.Subject = t.APPLICATION


#: Commands, and reads, in one message: a small one must not become much when it is taken apart.
MESSAGE_LENGTH_MAX = 1 << 16


class ClientRequest(Struct, array_like=True, frozen=True):
    version: int
    commands: Annotated[list[t.Command], Meta(max_length=MESSAGE_LENGTH_MAX)]
    reads: Annotated[list[ReadMessage], Meta(max_length=MESSAGE_LENGTH_MAX)] = []
    #: What only the owner of the commands' sessions knows, where no key of the connection tells who that is.
    secret: Annotated[bytes, Meta(max_length=SECRET_BYTES_MAX)] = b""


class ClientReply(Struct, array_like=True, frozen=True):
    version: int
    results: list[t.Result]
    events: list[t.Event] = []
    #: Answers to reads: id, status, payload.
    answers: list[tuple[int, int, bytes]] = []
    #: Where the front ends are now; said once to every connection, and again when it changes.
    endpoints: list[str] = []
    #: What a command, or a read, may have; said with the former. 0: not said here.
    command_bytes_max: int = 0


#: A message that would be longer leaves in pieces. Of a long reply, each piece is a sign that there is more to come.
REQUEST_BYTES_MAX = 64 << 10
REPLY_BYTES_MAX = 1 << 20


def encode_in_pieces(make: Callable[..., Struct], lists: Sequence[Sequence[object]], bytes_max: int) -> list[bytes]:
    """The message with these lists, as several with a part of them each if it would be too long: who receives a longer
    one than it takes hangs up, and would again when the same is sent again. What cannot be divided stays as it is."""
    data = t.encode(make(*lists))
    if len(data) <= bytes_max or (count := sum(map(len, lists))) <= 1:
        return [data]
    first: list[Sequence[object]] = []
    second: list[Sequence[object]] = []
    middle = count // 2
    for items in lists:
        first.append(items[:middle])
        second.append(items[middle:])
        middle = max(middle - len(items), 0)
    return encode_in_pieces(make, first, bytes_max) + encode_in_pieces(make, second, bytes_max)


def encode_request(commands: list[t.Command], reads: list[ReadMessage], secret: bytes) -> list[bytes]:
    make = partial(ClientRequest, t.FORMAT_VERSION, secret=secret)
    return encode_in_pieces(make, (commands, reads), REQUEST_BYTES_MAX)


def encode_reply(reply: ClientReply) -> Iterable[bytes]:
    """A message, or several."""
    if not reply.answers:
        data = t.encode(reply)
        if len(data) <= REPLY_BYTES_MAX:
            return (data,)
    return _encode_long_reply(reply)


def _encode_long_reply(reply: ClientReply) -> Iterator[bytes]:
    """One piece after the other: of long answers, there is never everything twice."""
    make = partial(ClientReply, reply.version, command_bytes_max=reply.command_bytes_max)
    answers = _in_portions(reply.answers)
    yield from encode_in_pieces(make, (reply.results, reply.events, answers[0], reply.endpoints), REPLY_BYTES_MAX)
    for portion in answers[1:]:
        yield from encode_in_pieces(make, ([], [], portion, []), REPLY_BYTES_MAX)


def _in_portions(answers: list[tuple[int, int, bytes]]) -> list[list[tuple[int, int, bytes]]]:
    """At least one. Long answers are not encoded all together first, to find out that they are too long."""
    if sum([len(payload) for _, _, payload in answers]) <= REPLY_BYTES_MAX:
        return [answers]
    portions: list[list[tuple[int, int, bytes]]] = [[]]
    size = 0
    for answer in answers:
        if portions[-1] and size + len(answer[2]) > REPLY_BYTES_MAX:
            portions.append([])
            size = 0
        portions[-1].append(answer)
        size += len(answer[2])
    return portions


_decode_request: Callable[[bytes], ClientRequest] = msgspec.msgpack.Decoder(ClientRequest).decode
_decode_reply: Callable[[bytes], ClientReply] = msgspec.msgpack.Decoder(ClientReply).decode


def decode_request(data: bytes) -> ClientRequest:
    try:
        request = _decode_request(data)
    except t.DECODE_ERRORS as error:
        raise MalformedTuple(f"client request: {error}") from error
    check_version(request.version)
    return request


def decode_reply(data: bytes) -> ClientReply:
    try:
        reply = _decode_reply(data)
    except t.DECODE_ERRORS as error:
        raise MalformedTuple(f"reply: {error}") from error
    check_version(reply.version)
    return reply


def check_version(version: int) -> None:
    if version != t.FORMAT_VERSION:
        raise MalformedTuple(f"format version {version}, this is version {t.FORMAT_VERSION}")
