"""How deep an application may recurse: as deep on every replica, however deep the stack is from which it is called.

Python bounds the depth of the whole stack, and decoders in C count it, too. A replica that executes right after it has
loaded a base is deeper in it than one that executes a commit. So a command that recurses almost to the bound
would fail here and succeed there, and the replicas would differ. Therefore the bound is set around every run of the
application, relative to the depth at which the run begins: then `RecursionError` is a result like any other.

This is the one module of the protocol that uses `sys`: it changes the bound, and changes it back. The bound is the
whole interpreter's; so an application that recurses deeply runs in one thread of a process, as containers do.
"""

import sys

from tara.protocol.errors import TaraError

#: Calls within each other that an application may make.
APPLICATION_DEPTH = 1000
_TOLD = "at the recursion depth "


def depth() -> int:
    """Of the stack, as the interpreter counts it for its bound. It tells when it is asked for a bound that is too low;
    counting frames would leave out what C code has called."""
    try:
        sys.setrecursionlimit(1)
    except RecursionError as error:
        told = error.args[0].partition(_TOLD)[2].partition(":")[0]
        if told:
            return int(told)
    raise TaraError(f"Python {sys.version}: does not tell the depth of its stack")


def enter() -> int:
    """Give what is called from where this is called exactly the room that an application has. Returns what `leave`
    needs."""
    former = sys.getrecursionlimit()
    sys.setrecursionlimit(depth() + APPLICATION_DEPTH)
    return former


def leave(former: int) -> None:
    sys.setrecursionlimit(former)
