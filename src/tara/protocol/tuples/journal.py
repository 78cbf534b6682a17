"""What a committer writes to its journal."""

from msgspec import Struct

from tara.protocol.tuples.base import Number, Value
from tara.protocol.tuples.commands import Request
from tara.protocol.tuples.view_change import Accepted


class Promised(Value, frozen=True, tag=1):
    """It entered this view, under these incarnations; it will not vote in a lower one."""

    view: Number
    incarnations: list[Number]


class Started(Value, frozen=True, tag=2):
    """The view began: it proposes the slots [first, next) again, and nothing was decided from `next` on before it."""

    view: Number
    first: Number
    next: Number


class Voted(Value, frozen=True, tag=3):
    """It accepted these requests in this view."""

    view: Number
    first: Number
    requests: list[Request]


class Resumed(Value, frozen=True, tag=4):
    """The first entry of a journal segment: what it had promised by then. The requests that it had accepted are in
    older segments; where those were dropped, a later entry says that a stable checkpoint covers them."""

    incarnation: Number
    view: Number
    incarnations: list[Number]
    started: bool
    #: The slots [minimum, commits) were accepted in this view, [minimum, records) in lower ones.
    minimum: Number
    commits: Number
    records: Number


class Installed(Value, frozen=True, tag=6):
    """It had lost its journal, and is restored: all that could have been decided before this view, as accepted in it.
    One record, so that it is there as a whole or not at all; whatever stands before it in the journal is void."""

    incarnation: Number
    view: Number
    incarnations: list[Number]
    first: Number
    requests: list[Request]


class Collected(Value, frozen=True, tag=5):
    """The slots below are in a stable checkpoint; what was said of them is void."""

    stable: Number


class Restored(Value, frozen=True, tag=7):
    """What could be saved of a damaged journal: everything that it has promised, and what it knows of what it accepted.
    Whatever stands before it in the journal is void."""

    incarnation: Number
    view: Number
    incarnations: list[Number]
    started: bool
    minimum: Number
    #: From `minimum` on: accepted in this view, and in lower ones.
    commits: list[Request]
    records: list[Accepted]
    #: Slots in which it accepted something newer than it knows: what the lists have there means nothing.
    holes: list[Number]


JournalEntry = Promised | Started | Voted | Resumed | Collected | Installed | Restored


class Lost(Struct, frozen=True):
    """Entries are missing here, nobody knows how many. In no journal: who reads one puts it where the gap is."""


#: A journal as it was read.
ReplayedEntry = JournalEntry | Lost
