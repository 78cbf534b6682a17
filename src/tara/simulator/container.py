"""A simulated process: a site, its storage and its disk, and what will happen to it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tara.host.effects import Effect, Inputs
from tara.host.site import Site
from tara.protocol import tuples as t
from tara.protocol.journal import Written
from tara.protocol.node import Node, Outbox
from tara.simulator.disk import VirtualDisk
from tara.simulator.gateways import WireGateway
from tara.storage.site_storage import SiteStorage

#: Where every container has its files, on its own disk.
DATA = Path("/data")
CLUSTER = 1
#: Bytes after which journals begin a new segment.
SEGMENT_BYTES = 2_000
Parcel = tuple[t.Tuple, int]  # a tuple, and the number of the node that it is for


class Emission(NamedTuple):
    """What a node has said; when, and what anybody had executed then."""

    number: int
    tuple: t.Tuple
    at_ms: float
    executed: int


class Said:
    """What the nodes of a process have said in this step: what is about to leave, and what waits for the sync."""

    def __init__(self) -> None:
        self.leaving: list[Emission] = []
        self._held: list[Emission] = []
        self._unsynced: set[int] = set()

    def note(self, number: int, outbox: Outbox, now_ms: float, executed: int) -> None:
        if outbox.persisted:
            self._unsynced.add(number)
        emitted = self._held if number in self._unsynced else self.leaving
        emitted.extend([Emission(number, said, now_ms, executed) for said, _ in outbox.emitted])
        self.leaving.extend([Emission(number, said, now_ms, executed) for said, _ in outbox.told])

    def synced(self) -> None:
        self.leaving.extend(self._held)
        self._held.clear()
        self._unsynced.clear()

    def take(self) -> list[Emission]:
        leaving, self.leaving = self.leaving, []
        return leaving


class SimulatedContainer:
    """A process that hosts nodes. Its disk survives it; a new life is a new process."""

    def __init__(self, index: int, site: int, numbers: list[int], disk: VirtualDisk) -> None:
        self.index = index
        self.site = site
        self.numbers = numbers
        self.disk = disk
        self.life = 0
        self.alive = False
        self.host: Site | None = None
        self.storage: SiteStorage | None = None
        self.gateway: WireGateway | None = None
        #: Rises whenever its journal is lost.
        self.generation = 0
        #: It comes back to a disk that lacks what was written elsewhere since.
        self.on_old_disk = False
        #: It has begun a journal that is not on record yet: whatever it wrote, nobody has heard of it. And whether the
        #: life before ended like that.
        self.founding = self.was_founding = False
        #: After how many operations on its disk its next start ends; None: it does not.
        self.start_ends_in: int | None = None
        self.segment_bytes = SEGMENT_BYTES
        #: When its stores and logs work next.
        self.due_ms: dict[object, float] = {}
        #: Until when each is at work.
        self.busy_ms: dict[object, float] = {}
        #: The rest of a step that waits for the disk, and what has to be tried again before.
        self.rest: Iterator[Effect] | None = None
        self.again: Effect | None = None
        #: What it was writing to its journal when it ended: it may be there, or not.
        self.uncertain: list[Written] = []
        #: What its nodes have said in this step that has not been seen to.
        self.said = Said()
        #: Where in its next step it will crash, if it will.
        self.doom: str | None = None
        self.paused_until_ms = 0.0
        #: What came while it stood still.
        self.waiting = Inputs()
        #: It has begun to send, in the step in which it is to crash.
        self.sending = False
        self.clock_offset_ms = 0.0
        self.label = ""
        #: How fast its clock runs.
        self.clock_rate = 1.0
        #: By how much the clock was set back; shows in the next life.
        self.next_clock_offset_ms = 0.0
        #: Of a zombie: until when each container still sends to its address, and not to that of the new life; None:
        #: both get everything.
        self.known_until_ms: dict[int, float] | None = None
        #: Gone, disk and all; never to be started again.
        self.lost = False
        #: Where the application has ended the process (`tara.protocol.places`); 0: it has not.
        self.ended_at = 0
        #: How many lives before this one have ended in a snapshot, one right after the other.
        self.snapshot_ends = 0

    @property
    def nodes(self) -> Mapping[int, Node]:
        return {} if self.host is None else self.host.nodes

    @property
    def running(self) -> Site:
        assert self.host is not None
        return self.host

    @property
    def kept(self) -> SiteStorage:
        assert self.storage is not None
        return self.storage


class ProcessEnded(Exception):
    """The application has taken its process with it."""
