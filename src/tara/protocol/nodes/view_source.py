"""The view source: publishes the view of a partition.

Votes of controllers and presences of proposers and committers come through the queue of its view sink, and so does
what the other view sources publish. A view that f+1 controllers ask for at the same time is published; so is a view
that a committer is in already; and a higher view when the active proposer has restarted, because in the current one it
may not become active again (rule R1), or when a committer has lost its journal, because it needs a view that knows of
that. With the view go the highest incarnations of the partition's proposers and committers.
"""

from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Name, Stage
from tara.protocol.incarnations import FIRST_INCARNATION, newest
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.opinions import highest

#: An unchanged view is announced every so many report rounds.
_QUIET_ROUNDS = 4


class ViewSource(Node):
    def __init__(self, name: Name, graph: Graph, limits: Limits, boot: Boot, outbox: Outbox) -> None:
        super().__init__(name, graph, limits, boot, outbox)
        self.handlers = {t.Vote: self._on_vote, t.Presence: self._on_presence, t.View: self._on_view}
        #: The view it publishes; 0 until it has learned one. Never falls.
        self.view = 1 if boot.genesis else 0
        self.incarnations = [FIRST_INCARNATION] * graph.members
        #: The incarnations under which the current view was entered, as far as this source can tell.
        self._entered = self.incarnations
        #: By committer: the incarnations under which it says that it entered the current view.
        self._entries: dict[int, list[int]] = {}
        #: What each controller said last, and when that came.
        self._votes: list[t.Vote | None] = [None] * limits.replicas
        self._heard_ms = [boot.now_ms] * limits.replicas
        #: The highest view that it has published because controllers asked for it. For those who watch.
        self.voted = 0
        self._round = 0
        self._receivers = [graph.others(Stage.VIEW_SOURCE, name.replica, name.partition)]
        self._receivers += [
            graph.all(stage, name.partition)
            for stage in (Stage.PROPOSER, Stage.COMMITTER, Stage.CONTROLLER, Stage.REQUEST_SOURCE)
        ]

    def _on_vote(self, vote: t.Vote) -> None:
        known = self._votes[vote.controller]
        if known is not None and (vote.life, vote.round) <= (known.life, known.round):
            return
        self._votes[vote.controller], self._heard_ms[vote.controller] = vote, self.now_ms
        asked = highest(self._asked(), self.limits.quorum)
        if asked > self.view:
            self.voted = asked
            self._raise(asked, self.incarnations)

    def _asked(self) -> list[int]:
        """What each controller asks for; 0 if nothing. One that has not repeated its vote for the shortest time-out has
        changed its mind, or is gone."""
        since_ms = self.now_ms - self.limits.controller_timeout_ms
        return [
            vote.view if vote is not None and heard_ms >= since_ms else 0
            for vote, heard_ms in zip(self._votes, self._heard_ms, strict=True)
        ]

    def _on_presence(self, presence: t.Presence) -> None:
        member, known = presence.member, self.incarnations[presence.member]
        entered = presence.incarnations
        if member <= self.graph.f:
            # A proposer does not know how the view was entered, only that a new life of it came later.
            entered = self.incarnations.copy()
            entered[member] = known if presence.incarnation > known else presence.incarnation
        elif presence.view == self.view:
            entered = self._entered.copy()
            entered[member] = min(entered[member], presence.incarnations[member])
        incarnations = newest((self.incarnations, presence.incarnations))
        incarnations[member] = max(incarnations[member], presence.incarnation)
        if presence.view == self.view:
            self._entered = list(map(min, self._entered, entered))
        entries = {member: presence.incarnations} if member > self.graph.f else {}
        self._learn(presence.view, incarnations, entered, entries)

    def _on_view(self, view: t.View) -> None:
        """What another source publishes: it may have heard what our sink missed while it was down."""
        self._learn(view.view, newest((self.incarnations, view.incarnations)), view.incarnations, {})

    def _learn(self, view: int, incarnations: list[int], entered: list[int], entries: dict[int, list[int]]) -> None:
        changed = incarnations != self.incarnations
        self.incarnations = incarnations
        if view > self.view:
            self._raise(view, entered)
        elif changed:
            self._publish()
        if view == self.view:
            self._entries.update(entries)
        self._welcome()

    def _welcome(self) -> None:
        """Move on to a view that knows the joiners, if the current one does not. When a committer lost its journal the
        same proposer stays: its rejoining is not to become an outage."""
        active = self.graph.proposer_of(self.view)
        if active is None:
            return
        if self.incarnations[active] > self._entered[active] or self._is_left_out(active):
            self._raise(self.view + 1, self.incarnations)
        elif any(map(int.__gt__, self.incarnations[self.graph.f + 1 :], self._entered[self.graph.f + 1 :])):
            self._raise(self.view + self.graph.f + 1, self.incarnations)

    def _is_left_out(self, active: int) -> bool:
        """Whether f+1 committers entered the current view before this life of its proposer: it never gets f+1 records
        that name it (rule R1). After the loss of every process nobody but the committers knows that: this source may
        have learned the view from somebody who could not tell how it was entered."""
        before = [entry for entry in self._entries.values() if entry[active] < self.incarnations[active]]
        return len(before) >= self.limits.quorum

    def _raise(self, view: int, entered: list[int]) -> None:
        if view > self.view:
            self.view, self._entered, self._entries = view, entered, {}
            self._publish()

    def report(self) -> None:
        self._round += 1
        if self._round % _QUIET_ROUNDS == 1:
            self._publish()

    def _publish(self) -> None:
        view = t.View(self.index, self.partition, self.view, self.incarnations)
        for receivers in self._receivers:
            if receivers.numbers:
                self.emit(view, receivers)
