"""What all tuples have in common."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from tara.protocol.principals import PRINCIPAL_BYTES_MAX

#: The version of the wire format; a frame of a newer one is refused.
FORMAT_VERSION = 3
#: What the protocol counts: views, slots, lives. Far beyond what is ever reached, and so far below what the wire format
#: can hold that sums of such numbers can be sent, too.
Number = Annotated[int, Meta(ge=0, lt=1 << 62)]
#: Checkpoints; a product with the checkpoint interval is still a number.
CheckpointNumber = Annotated[int, Meta(ge=0, lt=1 << 40)]
#: What clients choose: anything that the wire format holds.
ClientNumber = Annotated[int, Meta(ge=0)]
#: Who sends a command; see `tara.protocol.principals`.
Principal = Annotated[bytes, Meta(max_length=PRINCIPAL_BYTES_MAX)]
Reach = tuple[Number, Number]


class Value(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The common base of what tuples are made of, and of what is written to a journal."""


class Tuple(Value, frozen=True):
    """The common base of everything that a node processes or emits."""


encode = msgspec.msgpack.Encoder().encode
#: What decoding bytes that are not ours may raise.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
