"""The error family. A message says what was wrong, where, and what to do about it."""


class TaraError(Exception):
    """Everything that Tara raises on purpose."""


class ConfigurationError(TaraError):
    """Settings that contradict each other or a rule; the message names the setting."""


class MalformedTuple(TaraError):
    """A peer's mistake: bytes that are not a valid tuple. The receiver drops them; it never dies of them."""


class EdgeError(TaraError):
    """Our own mistake: a node emitted a tuple along an edge that the graph does not have."""


class NodeHalted(TaraError):
    """A broken invariant. The host stops this one node, as if it had crashed, and shows the reason."""


class BaseUnreadable(TaraError):
    """The disk does not give a base any more that was intact a moment ago. Nobody's fault who restores it."""
