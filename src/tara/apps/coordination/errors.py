"""What can go wrong for a client of the coordination service; each error has ZooKeeper's number as `code`."""

from tara.apps.coordination.codes import Code
from tara.protocol.errors import TaraError


class CoordinationError(TaraError):
    """The family."""

    def __init__(self, code: int, path: str = "") -> None:
        self.code = code
        self.path = path
        try:
            name = Code(code).name.lower().replace("_", " ")
        except ValueError:
            name = f"error {code}"
        super().__init__(f"{path}: {name}" if path else name)


class NoNode(CoordinationError):
    """There is no such node."""


class NodeExists(CoordinationError):
    """There is such a node already."""


class NotEmpty(CoordinationError):
    """The node has children."""


class BadVersion(CoordinationError):
    """The node has another version than expected."""


class NoAuth(CoordinationError):
    """The node's access list does not allow it."""


class ConnectionLoss(CoordinationError):
    """The connection was lost on the way; a write may have happened, once, or not. The client reconnects by itself."""


class SessionLost(CoordinationError):
    """The session has ended, and its ephemeral nodes with it; the client opens a new one by itself."""


_BY_CODE: dict[int, type[CoordinationError]] = {
    Code.NO_NODE: NoNode,
    Code.NODE_EXISTS: NodeExists,
    Code.NOT_EMPTY: NotEmpty,
    Code.BAD_VERSION: BadVersion,
    Code.NO_AUTH: NoAuth,
    Code.CONNECTION_LOSS: ConnectionLoss,
    Code.SESSION_EXPIRED: SessionLost,
    Code.SESSION_MOVED: ConnectionLoss,
}


def error_of(code: int, path: str = "") -> CoordinationError:
    return _BY_CODE.get(code, CoordinationError)(code, path)
