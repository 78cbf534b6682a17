"""What can go wrong with a connection."""

from tara.protocol.errors import TaraError


class Broken(TaraError):
    """The connection is gone, or has to be given up."""


class Closed(Broken):
    """The other side has ended it."""


class ConnectionRefused(Broken):
    """One side does not talk to the other: a key is missing, unknown or of the wrong kind."""


#: What both sides say when only one of them has keys.
REQUIRES_KEYS = "the other side requires keys"
HAS_NO_KEYS = "the other side has no keys"
NOT_AUTHORIZED = "the certificate is not authorized"
