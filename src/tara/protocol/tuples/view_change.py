"""View change: who is watched, who is suspected, and what a new view starts from."""

from tara.protocol.tuples.base import Number, Reach, Tuple, Value
from tara.protocol.tuples.commands import Request


class Target(Tuple, frozen=True, tag=11):
    """request source → controllers of its partition: it has numbered this many requests in this epoch."""

    source: Number
    partition: Number
    reach: Reach
    #: Bytes of the oldest undecided requests: what has to travel before something is decided.
    bytes: Number


class Progress(Tuple, frozen=True, tag=12):
    """executor → controllers of a partition: what is decided there."""

    executor: Number
    partition: Number
    #: A restarted executor may be behind where its former life was.
    life: Number
    progress: list[Reach]
    position: Number
    #: The highest position of any partition: an idle partition has to skip up to it.
    frontier: Number
    #: The lowest position of any partition: the one that all others wait for.
    slowest: Number
    #: The first slot that does not fit the partition's window, as far as the executor knows.
    window_end: Number
    #: Bytes of requests that were decided in this life of the executor.
    bytes: Number


class Advance(Tuple, frozen=True, tag=23):
    """proposer → controllers of its partition: how far the beginning of its view is. Sent while that changes."""

    proposer: Number
    partition: Number
    view: Number
    #: Bytes of records that have come; then, of the slots that are proposed again, how many committers accepted, added
    #: up over the committers.
    records: Number
    slots: Number


class Vote(Tuple, frozen=True, tag=13):
    """controller → view sinks → view sources: the partition needs this view; 0: it needs none, whatever it said before.
    A vote counts for a while only, so a controller repeats it."""

    controller: Number
    partition: Number
    #: (life, round) orders the votes of one controller; a later one replaces an earlier one.
    life: Number
    round: Number
    view: Number


class Presence(Tuple, frozen=True, tag=14):
    """committer or proposer → view sinks → view sources: my incarnation, the view I know, and the incarnations
    under which it was entered. A restarted proposer joins with it, and a committer that lost its journal; any committer
    corrects a source that lags."""

    #: Index into `incarnations`: the proposers of the partition, then its committers.
    member: Number
    partition: Number
    incarnation: Number
    view: Number
    incarnations: list[Number]


class View(Tuple, frozen=True, tag=15):
    """view source → proposers, committers, controllers, request sources of its partition, and the queues of its other
    view sources."""

    source: Number
    partition: Number
    view: Number
    #: The highest incarnation known of each proposer, then of each committer.
    incarnations: list[Number]


class Accepted(Value, frozen=True):
    """One slot of a record: what was accepted there in the highest view, and that view."""

    view: Number
    request: Request


class Record(Tuple, frozen=True, tag=16):
    """committer → record sink → record source → the proposer of the view: part of what it had accepted when it
    entered the view. Frozen at that moment: re-sent, never changed."""

    committer: Number
    partition: Number
    view: Number
    incarnation: Number
    #: The incarnations that it knew when it entered the view.
    incarnations: list[Number]
    #: The record covers the slots [minimum, end); this part begins at `first`.
    minimum: Number
    end: Number
    first: Number
    slots: list[Accepted]


class Collecting(Tuple, frozen=True, tag=24):
    """proposer → committers of its partition: how far their records have come. Sent while it collects them."""

    proposer: Number
    partition: Number
    view: Number
    #: Committers whose record has begun to come, each with the first slot of it that is missing.
    missing: list[tuple[Number, Number]]


class Credential(Value, frozen=True):
    """Whose record a start was computed from, and which incarnations that record names."""

    committer: Number
    incarnation: Number
    incarnations: list[Number]


class Start(Tuple, frozen=True, tag=17):
    """proposer → committers of its partition: this view begins. The slots [first, next) are proposed again."""

    proposer: Number
    partition: Number
    view: Number
    #: The highest incarnations in the credentials; a committer votes only if its own is named.
    incarnations: list[Number]
    credentials: list[Credential]
    first: Number
    next: Number
