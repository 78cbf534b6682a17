"""What goes wrong in a streaming query."""

from tara.protocol.errors import TaraError

#: What to do when something of the checkpoint directory cannot be read.
NO_WAY_ON = "put a copy of the whole checkpoint directory back, or start with a new one"


class StreamingError(TaraError):
    """The query cannot go on."""
