"""The numbers of the ZooKeeper protocol: operations, errors, permissions, events."""

import enum


class Op(enum.IntEnum):
    NOTIFICATION = 0
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CREATE_SESSION = -10
    CLOSE_SESSION = -11
    #: Not on the wire, only in ordered commands: a client comes back with its session.
    ATTACH = -1001
    #: Not on the wire, only in ordered commands: a front end renews sessions and lets time pass.
    TOUCH = -1002


class Code(enum.IntEnum):
    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NO_WATCHER = -121
    RECONFIG_DISABLED = -123
    #: Not executed: a bound of the front end is reached.
    THROTTLED_OP = -127


class Refusal(Exception):
    """A request that gets an error code for an answer; nothing has changed."""

    def __init__(self, code: Code, detail: str = "") -> None:
        super().__init__(code.name, detail)
        self.code = code


READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL = 31


class Mode(enum.IntEnum):
    """The flags of a create request."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4
    PERSISTENT_WITH_TTL = 5
    PERSISTENT_SEQUENTIAL_WITH_TTL = 6


class Event(enum.IntEnum):
    """What a watch tells."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


#: The owner of a container node.
CONTAINER_OWNER = -(1 << 63)
#: The owner of a node with a time to live has these bits, and the time in the low 40.
TTL_OWNER = -(1 << 56)
TTL_MS_MAX = (1 << 40) - 1


def ttl_of(owner: int) -> int | None:
    """The time to live that an owner field stands for, if it does."""
    if owner == CONTAINER_OWNER or owner >= 0 or owner < TTL_OWNER:
        return None
    return owner - TTL_OWNER
