"""Request handling: from the client through request source, proposer, committers and executors, and back."""

from typing import Annotated

from msgspec import Meta

from tara.protocol.tuples.base import Number, Tuple
from tara.protocol.tuples.commands import Command, Event, Request, Result


class Submit(Tuple, frozen=True, tag=1):
    """client → request source: commands to be ordered. Those that there is no room for come back as `Refused`."""

    commands: list[Command]
    #: How many bytes may wait before more are refused; 0: any number.
    bytes_max: Number = 0


class Requests(Tuple, frozen=True, tag=2):
    """request source → proposers of its partition: numbered requests."""

    requests: list[Request]


class Proposal(Tuple, frozen=True, tag=3):
    """proposer → committers of its partition: the requests of a run of slots, valid in one view."""

    proposer: Number
    partition: Number
    view: Number
    first: Number
    #: The proposer's stability threshold, as a slot; teaches a committer that missed it.
    stable: Number
    requests: list[Request]


class Commit(Tuple, frozen=True, tag=4):
    """committer → executors: it has accepted the requests of a run of slots in this view."""

    committer: Number
    partition: Number
    view: Number
    first: Number
    requests: list[Request]


class Results(Tuple, frozen=True, tag=5):
    """executor → reply sink of its site → client."""

    executor: Number
    results: list[Result]
    events: list[Event]


#: Characters of a reason; it is shown to operators and to clients.
REASON_LENGTH_MAX = 1000


class Halted(Tuple, frozen=True, tag=21):
    """executor → reply sink of its site → client → request source, and → store: this replica does not execute any more,
    although all others may; said again and again. Without a reason: it executes again, or is about to, with another
    copy of the application."""

    executor: Number
    #: The command that it could not execute, by its counter; or the base that it could not restore.
    counter: Number
    checkpoint: Number
    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)]


class Refused(Tuple, frozen=True, tag=109):
    """request source → client: there is no room for these commands."""

    commands: list[Command]


class Waiting(Tuple, frozen=True, tag=110):
    """request source → client: these commands wait for their turn or for their answer behind much else, while the
    queue moves. Without their payload."""

    commands: list[Command]


class Unkept(Tuple, frozen=True, tag=111):
    """client → request source: the replicas did not keep a command that went through here, and it will come again."""

    session: int
    number: int
    principal: bytes
