"""What can go wrong for a client. Each says whether the command may have executed."""

from tara.protocol.errors import TaraError


class ClientError(TaraError):
    """The family."""


class CommandFailed(ClientError):
    """The application refused the command, with this message. It executed, on every replica, with this result."""


class CommandTooLarge(ClientError):
    """The command exceeds the limit. It did not execute."""


def too_large(bytes_max: int) -> CommandTooLarge:
    return CommandTooLarge(f"a command may have {bytes_max} bytes")


class Overloaded(ClientError):
    """The service had no room for the command until the time was up. It did not execute and will not."""


class ServiceHalted(ClientError):
    """Every front end says that the replica of its site executes nothing any more; the message says why, and at which
    command. A command that one of them had passed on before may still execute, once, when an operator has acted."""


class NotReachable(ClientError):
    """No front end answered, from the first attempt on. The command did not execute."""


class Refused(NotReachable):
    """A front end was there, but the keys do not match, or one side has none. The command did not execute."""


class Forbidden(ClientError):
    """The session belongs to somebody else: it was opened with another secret, or another key. The command did not
    execute."""


class TimedOut(ClientError):
    """No answer in time. The outcome is unknown: the command may have executed, or still execute, once."""


class SessionExpired(ClientError):
    """The session ended while the command was on its way. The outcome is unknown, but it will not execute later."""


class ClientClosed(ClientError):
    """The client was closed, or failed, before the answer came. The command may have executed, or may still, once."""
