"""What a committer has promised and accepted: the Paxos acceptor of one partition. It says nothing to anybody.

The rules that make it safe:
- It votes only in the view it is in, and its view never falls; it enters a view before the view's first vote.
- Per slot it remembers the request that it accepted in the highest view; a newer one overwrites.
- What it had accepted when it entered a view is the record of that view, and never changes afterwards.
- Of a damaged journal it keeps what it has promised. It has *holes*: slots in which it accepted something that it does
  not know any more.
- Without its journal, unless it is the very first start, it has promised nothing: it is *recovering* until a view has
  told it everything that may have been decided before.
"""

from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.incarnations import FIRST_INCARNATION, newest
from tara.protocol.limits import Limits
from tara.protocol.window import Window


class Acceptor:
    def __init__(self, limits: Limits, member: int, members: int, incarnation: int) -> None:
        """`member` is its place among those that have incarnations."""
        self._member = member
        self._members = members
        #: What was accepted in the current view, in slot order.
        self.commits: Window[t.Request] = Window(0, limits.window)
        #: What was accepted in lower views: per slot, the newest. Same minimum as `commits`.
        self.records: Window[t.Accepted] = Window(0, limits.window)
        #: Slots of the window in which it accepted something newer than it knows; see above.
        self.holes: set[int] = set()
        #: The view it has promised; no vote in a lower one. Never falls.
        self.view = 0
        #: Whether the start of the current view has come: before that it cannot vote in it.
        self.started = False
        #: Names what it remembers; another one after every loss of the journal.
        self.incarnation = incarnation
        #: The incarnations under which it entered the current view.
        self.incarnations = [FIRST_INCARNATION] * members
        #: The highest incarnations it has heard of.
        self.known = self.incarnations
        #: It has lost its journal and is not restored.
        self.recovering = False

    def learn(self, incarnations: list[int]) -> None:
        self.known = newest((self.known, incarnations))

    def promise(self, view: int, incarnations: list[int]) -> None:
        """Enter a higher view: what it has accepted is the record of it."""
        if view <= self.view:
            raise NodeHalted(f"view {view} after view {self.view}")
        for slot in range(self.commits.min, self.commits.pos):
            self.records.put(slot, t.Accepted(self.view, self.commits[slot]))
        self.commits.clear()
        self.view, self.incarnations, self.started = view, incarnations, False

    def begin(self, next_: int) -> None:
        """The view has started: from f+1 records that have nothing from `next_` on. Whatever was accepted there in a
        lower view was not decided, and never will be."""
        self.started = True
        self.commits.clear()
        for slot in [slot for slot in self.holes if slot >= next_]:
            self.holes.remove(slot)
            self.records.put(slot, t.Accepted(0, t.NOOP))

    def vote(self, first: int, requests: list[t.Request]) -> None:
        if not self.started or first != self.commits.pos or len(requests) > self.commits.room:
            raise NodeHalted(
                f"votes from slot {first} on (started: {self.started}), but slot {self.commits.pos} is next"
            )
        self.commits.extend(requests)
        if self.holes:
            self.holes.difference_update(range(first, first + len(requests)))

    def move(self, slot: int) -> None:
        """Forget the slots below."""
        self.commits.move(slot)
        self.records.move(slot)
        if self.holes:
            self.holes = {hole for hole in self.holes if hole >= slot}

    def install(self, installed: t.Installed) -> None:
        """It has lost its journal, and knows again what it has to."""
        self._enter_as(installed.incarnation, installed.view, installed.incarnations, True, installed.first)
        self.commits.extend(installed.requests)

    def know_itself(self) -> None:
        own = [FIRST_INCARNATION] * self._members
        own[self._member] = self.incarnation
        self.learn(own)

    def replay(self, journal: list[t.ReplayedEntry]) -> None:
        """Redo what former lives wrote."""
        self.recovering = not journal
        if journal and not isinstance(journal[0], t.Resumed | t.Installed | t.Restored | t.Lost):
            raise NodeHalted(f"the journal begins with {type(journal[0]).__name__}: its head is missing")
        #: What follows a gap, up to the next statement of what it had promised.
        after_gap: list[t.JournalEntry] | None = None
        for position, entry in enumerate(journal):
            if isinstance(entry, t.Lost):
                after_gap = []
            elif isinstance(entry, t.Resumed) and after_gap is not None:
                self._bridge(after_gap, entry)
                after_gap = None
            elif isinstance(entry, t.Installed | t.Restored):
                after_gap = None
                self._redo(entry)
            elif after_gap is not None:
                after_gap.append(entry)
            elif not isinstance(entry, t.Resumed):
                self._redo(entry)
            elif position == 0:
                self._bridge([], entry)
            elif entry != self.resumed():
                raise NodeHalted(f"the journal says {entry}, but what stands before that comes to {self.resumed()}")
        if after_gap is not None:
            raise NodeHalted("the end of the journal is missing: nobody knows what it has promised")
        self.know_itself()

    def _redo(self, entry: t.JournalEntry) -> None:
        """Entries come in the order in which they were persisted."""
        match entry:
            case t.Promised(view, incarnations):
                self.promise(view, incarnations)
                self.learn(incarnations)
            case t.Installed():
                self.install(entry)
            case t.Restored():
                self._restore(entry)
            case t.Started(_, _, next_):
                self.begin(next_)
            case t.Voted(_, first, requests):
                self.vote(first, requests)
            case t.Collected(stable):
                self.move(stable)

    def _bridge(self, entries: list[t.JournalEntry], after: t.Resumed) -> None:
        """Entries are missing; then come these, and after them it had promised this. At the first segment that is left,
        what stood before it is missing, and stands for nothing unless slots of it are still in the window.

        Views only rise in a journal, and a view has one request per slot. So an accept that stands behind the gap is
        the newest of its slot, whatever is missing. One that stands before it is the newest only if there was no vote
        for its slot in the gap: if it was cast in the view in which the gap ends, because there its turn was over."""
        known = self._accepted_before(entries, after)
        for entry in entries:
            if isinstance(entry, t.Voted):
                for slot, request in enumerate(entry.requests, entry.first):
                    known[slot] = t.Accepted(entry.view, request)
        end = max(after.commits, after.records)
        holes = [slot for slot in range(after.minimum, end) if slot not in known]
        commits, records = [], []
        for slot in range(after.minimum, end):
            accepted = known.get(slot, t.Accepted(0, t.NOOP))
            if slot < after.commits:
                if slot in known and accepted.view != after.view:
                    # It accepted something else there since.
                    holes.append(slot)
                commits.append(accepted.request)
            if slot < after.records:
                records.append(accepted)
        self._restore(
            t.Restored(
                after.incarnation,
                after.view,
                after.incarnations,
                after.started,
                after.minimum,
                commits,
                records,
                sorted(holes),
            )
        )

    def _accepted_before(self, entries: list[t.JournalEntry], after: t.Resumed) -> dict[int, t.Accepted]:
        """What it knows from before a gap and can rely on."""
        first = next((entry for entry in entries if isinstance(entry, t.Voted | t.Started | t.Promised)), None)
        if isinstance(first, t.Promised) or self.incarnation != after.incarnation:
            # The gap ends in a view below, nobody knows which; or in another incarnation.
            return {}
        if (after.view if first is None else first.view) != self.view:
            return {}
        return {
            slot: t.Accepted(self.view, self.commits[slot])
            for slot in range(self.commits.min, self.commits.pos)
            if slot not in self.holes
        }

    def _restore(self, entry: t.Restored) -> None:
        """Go on with what is known."""
        self._enter_as(entry.incarnation, entry.view, entry.incarnations, entry.started, entry.minimum)
        self.commits.extend(entry.commits)
        self.records.extend(entry.records)
        self.holes = {slot for slot in entry.holes if slot >= self.commits.min}

    def _enter_as(self, incarnation: int, view: int, incarnations: list[int], started: bool, minimum: int) -> None:
        """Be in this view in this incarnation; what it had accepted is void."""
        self.recovering = False
        self.incarnation, self.view, self.incarnations, self.started = incarnation, view, incarnations, started
        self.learn(incarnations)
        self.commits.clear()
        self.records.clear()
        self.holes.clear()
        self.move(minimum)

    def resumed(self) -> t.Resumed:
        """What it has promised."""
        commits, records = self.commits, self.records
        return t.Resumed(
            self.incarnation, self.view, self.incarnations, self.started, commits.min, commits.pos, records.pos
        )

    def restored(self) -> t.Restored:
        """What it has promised, and what it knows of what it accepted."""
        commits, records = self.commits, self.records
        return t.Restored(
            self.incarnation,
            self.view,
            self.incarnations,
            self.started,
            commits.min,
            commits.slice(commits.min, commits.pos),
            records.slice(records.min, records.pos),
            sorted(self.holes),
        )
