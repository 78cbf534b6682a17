"""What goes wrong in a streaming query."""

from tara.protocol.errors import TaraError


class StreamingError(TaraError):
    """The query cannot go on."""
