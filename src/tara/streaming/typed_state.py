"""A strict, typed encoding of objects by declared fields.

`Fields` says of a class which of its attributes are state, with their types, and which are made anew with the object,
so that everything an object has is one or the other: an attribute that somebody adds, and does not declare, is an
error before anything is written. What is encoded is the state alone, as MessagePack arrays in the order of the
declaration, and decoding checks every type. Decoding fills objects that were made before, in place: what is made anew
(bounds, receivers, methods that are bound to a part) stays as it is.

Long byte strings are not written with the rest: they go to a store of their own, under a digest of their content. So
one that stays from version to version of a state is written once, however often the rest is.
"""

import types
import typing
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple, NewType, TypeVar

import msgspec

from tara.protocol import tuples as t
from tara.streaming.errors import StreamingError

#: A byte string that may be long, of a class that `Fields` describes.
Long = NewType("Long", bytes)
#: What is shorter stays where it is: a digest and an entry of a store cost more.
LONG_BYTES = 512
DIGEST_BYTES = 20
_HERE, _ELSEWHERE = b"\0", b"\1"


class Bodies:
    """The long byte strings of one state. A body that was met before is not hashed again."""

    def __init__(self, find: Callable[[bytes], bytes] | None = None) -> None:
        """`find` gives the body of a digest."""
        self._find = find
        self._digests: dict[bytes, bytes] = {}
        #: The bodies that the state refers to, by digest, as far as it was packed or unpacked.
        self.met: dict[bytes, bytes] = {}

    def put(self, body: bytes) -> bytes:
        """What stands in the state for a byte string."""
        if len(body) < LONG_BYTES:
            return _HERE + body
        digest = self._digests.get(body)
        if digest is None:
            digest = self._digests[body] = blake2b(body, digest_size=DIGEST_BYTES).digest()
        self.met[digest] = body
        return _ELSEWHERE + digest

    def get(self, stored: bytes) -> bytes:
        kind, content = stored[:1], stored[1:]
        if kind == _HERE:
            return content
        if kind != _ELSEWHERE or self._find is None:
            raise StreamingError(f"a byte string of the unknown kind {kind!r}")
        body = self.met.get(content)
        if body is None:
            body = self.met[content] = self._find(content)
            if blake2b(body, digest_size=DIGEST_BYTES).digest() != content:
                raise StreamingError(f"a body of {len(body)} bytes is not the one that was written")
            self._digests[body] = content
        return body

    def begin(self) -> None:
        """Another version of the state is about to be packed."""
        self.met = {}

    def end(self) -> None:
        """It was packed: forget what it does not refer to."""
        self._digests = {body: digest for digest, body in self.met.items()}


def put_back(stored: bytes, known: Mapping[bytes, bytes]) -> bytes:
    """The byte string for which this stands, of those whose digests are known. Raises KeyError."""
    return known[stored[1:]] if stored[:1] == _ELSEWHERE else stored[1:]


class Fields(NamedTuple):
    """What an object of a class consists of, without what its base classes declare."""

    #: Attributes that are state, with their types.
    state: dict[str, Any]
    #: Attributes that are made anew with the object.
    made: tuple[str, ...] = ()


class Codec(NamedTuple):
    #: What msgspec encodes and decodes.
    stored: Any
    #: None: the value itself is stored.
    pack: Callable[[Any, Bodies], Any] | None = None
    #: From what was stored, and the value that a new object has there.
    unpack: Callable[[Any, Any, Bodies], Any] | None = None


class TypedState:
    """Encodes and decodes objects of the declared classes."""

    def __init__(self, declared: Mapping[type, Fields]) -> None:
        self._declared = declared
        self._codecs: dict[Any, Codec] = {}
        self._checked: set[type] = set()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}

    def encode(self, value: object, bodies: Bodies, type_: Any = None) -> bytes:
        """`type_`: if it is not an object of a declared class."""
        codec = self._codec(type(value) if type_ is None else type_)
        return self._encode(value if codec.pack is None else codec.pack(value, bodies))

    def decode(self, value: Any, data: bytes, bodies: Bodies, type_: Any = None) -> Any:
        """Give a new object its state. Returns it."""
        kind = type(value) if type_ is None else type_
        codec = self._codec(kind)
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.msgpack.Decoder(codec.stored)
        stored = decoder.decode(data)
        return stored if codec.unpack is None else codec.unpack(stored, value, bodies)

    def check(self, value: object) -> None:
        """Raise unless all that this object has is declared."""
        kind = type(value)
        fields = self._fields(kind)
        declared = {*fields.state, *fields.made}
        names = {name for class_ in kind.__mro__ for name in class_.__dict__.get("__slots__", ())}
        found = {name for name in names if hasattr(value, name)} | set(getattr(value, "__dict__", ()))
        if found != declared:
            wrong = ", ".join(sorted(found ^ declared))
            raise StreamingError(f"{kind.__name__}: {wrong}: it is not declared whether that is state, or is not there")
        self._checked.add(kind)

    def _fields(self, kind: type) -> Fields:
        state: dict[str, Any] = {}
        made: list[str] = []
        for class_ in reversed(kind.__mro__):
            if class_ in self._declared:
                state.update(self._declared[class_].state)
                made += self._declared[class_].made
        return Fields({name: type_ for name, type_ in state.items() if name not in made}, tuple(made))

    def _codec(self, type_: Any) -> Codec:
        codec = self._codecs.get(type_)
        if codec is None:
            codec = self._codecs[type_] = self._make(type_)
        return codec

    def _make(self, type_: Any) -> Codec:
        if type_ in _LEAVES:
            return _LEAVES[type_]
        origin, args = typing.get_origin(type_), typing.get_args(type_)
        kind = origin if origin in self._declared else type_
        if isinstance(kind, type) and any(class_ in self._declared for class_ in kind.__mro__):
            return self._object(kind, args)
        if origin in (list, deque):
            return self._sequence(origin, self._codec(args[0]))
        if origin is set:
            return Codec(list[args[0]], _sorted, _to_set)  # type: ignore[valid-type]
        if origin is dict:
            return self._dictionary(args[0], self._codec(args[1]))
        if origin is types.UnionType or origin is typing.Union:
            return self._optional(type_, args)
        return Codec(type_)

    def _object(self, kind: type, args: tuple[Any, ...]) -> Codec:
        """An array of its fields."""
        fields = self._fields(kind)
        parameters = dict(zip(getattr(kind, "__parameters__", ()), args, strict=False))
        codecs = [(name, self._codec(_substituted(type_, parameters))) for name, type_ in fields.state.items()]
        stored = msgspec.defstruct(
            f"{kind.__name__}State",
            [(f"field_{place}", codec.stored) for place, (_, codec) in enumerate(codecs)],
            array_like=True,
            forbid_unknown_fields=True,
            gc=False,
        )

        def pack(value: Any, bodies: Bodies) -> Any:
            if type(value) not in self._checked:
                self.check(value)
            found = [
                getattr(value, name) if codec.pack is None else codec.pack(getattr(value, name), bodies)
                for name, codec in codecs
            ]
            return stored(*found)

        def unpack(found: Any, value: Any, bodies: Bodies) -> Any:
            if value is None:
                if fields.made:
                    raise StreamingError(f"{kind.__name__}: there is no object that has {', '.join(fields.made)}")
                value = kind() if issubclass(kind, msgspec.Struct) else kind.__new__(kind)
            for place, (name, codec) in enumerate(codecs):
                part = getattr(found, f"field_{place}")
                if codec.unpack is not None:
                    part = codec.unpack(part, getattr(value, name, None), bodies)
                setattr(value, name, part)
            return value

        return Codec(stored, pack, unpack)

    def _sequence(self, origin: Any, codec: Codec) -> Codec:
        stored = list[codec.stored]  # type: ignore[name-defined]
        if origin is list and codec.pack is None:
            return Codec(stored)
        pack_one, unpack_one = codec.pack, codec.unpack

        def pack(values: Any, bodies: Bodies) -> Any:
            return list(values) if pack_one is None else [pack_one(value, bodies) for value in values]

        def unpack(found: Any, values: Any, bodies: Bodies) -> Any:
            if unpack_one is not None:
                # Parts that are there from the beginning stay the objects that they are.
                former = values if values is not None and len(values) == len(found) else [None] * len(found)
                found = [unpack_one(part, value, bodies) for part, value in zip(found, former, strict=True)]
            return found if origin is list else deque(found, maxlen=values.maxlen)

        return Codec(stored, pack, unpack)

    def _dictionary(self, key: Any, codec: Codec) -> Codec:
        """In the order in which the keys came: those who go through it see the same order again."""
        stored = dict[key, codec.stored]  # type: ignore[name-defined]
        pack_one, unpack_one = codec.pack, codec.unpack
        if pack_one is None or unpack_one is None:
            return Codec(stored)
        return Codec(
            stored,
            lambda values, bodies: {key: pack_one(value, bodies) for key, value in values.items()},
            lambda found, values, bodies: {key: unpack_one(part, None, bodies) for key, part in found.items()},
        )

    def _optional(self, type_: Any, args: tuple[Any, ...]) -> Codec:
        codecs = [self._codec(arg) for arg in args if arg is not types.NoneType]
        (codec, *others) = codecs
        if others or codec.pack is None or codec.unpack is None:
            if any(codec.pack is not None for codec in codecs):
                raise TypeError(f"{type_}: only plain types can stand beside each other")
            return Codec(type_)
        pack_one, unpack_one = codec.pack, codec.unpack
        return Codec(
            codec.stored | None,
            lambda value, bodies: None if value is None else pack_one(value, bodies),
            lambda found, value, bodies: None if found is None else unpack_one(found, value, bodies),
        )


@cache
def _is_generic(type_: Any) -> bool:
    return bool(getattr(type_, "__parameters__", ()))


def _substituted(type_: Any, parameters: Mapping[Any, Any]) -> Any:
    """The type with what stands for its type variables."""
    if isinstance(type_, TypeVar):
        return parameters[type_]
    if not _is_generic(type_) or typing.get_origin(type_) is None:
        return type_
    return type_[tuple(parameters[parameter] for parameter in type_.__parameters__)]


def _sorted(values: Any, bodies: Bodies) -> Any:
    """A set has no order of its own."""
    return sorted(values)


def _to_set(found: Any, values: Any, bodies: Bodies) -> Any:
    return set(found)


def _shorten(request: t.Request, bodies: Bodies) -> t.Request:
    return t.Request(request.source, request.epoch, request.number, request.time, bodies.put(request.body))


def _complete(request: t.Request, value: object, bodies: Bodies) -> t.Request:
    return t.Request(request.source, request.epoch, request.number, request.time, bodies.get(request.body))


def _shorten_command(command: t.Command, bodies: Bodies) -> t.Command:
    return msgspec.structs.replace(command, payload=bodies.put(command.payload))


def _complete_command(command: t.Command, value: object, bodies: Bodies) -> t.Command:
    return msgspec.structs.replace(command, payload=bodies.get(command.payload))


_LEAVES: dict[Any, Codec] = {
    Long: Codec(bytes, lambda value, bodies: bodies.put(value), lambda found, value, bodies: bodies.get(found)),
    t.Request: Codec(t.Request, _shorten, _complete),
    t.Command: Codec(t.Command, _shorten_command, _complete_command),
    t.Accepted: Codec(
        t.Accepted,
        lambda accepted, bodies: t.Accepted(accepted.view, _shorten(accepted.request, bodies)),
        lambda found, value, bodies: t.Accepted(found.view, _complete(found.request, None, bodies)),
    ),
}
