"""A story: a committer's record is used after the committer has forgotten that it gave it.

The sites are those of a *victim* (it has no proposer), f *voters*, among them the active proposer of view u, and f
*silent* ones, among them the proposer of view w = u + f + 2.

1. The voters hear nothing of new views, and the silent committers not enough. The others go through the views up to w,
   one after the other. So the victim enters w; its record waits on the way.
2. The victim loses its journal, and with it its promise of w. Voters and silent committers hear of that, and enter the
   view that brings the victim back, u + f + 1. It starts, but the silent ones miss that.
3. Victim and voters, f+1 in all, decide something in it.
4. The silent ones hear of w, and enter it. Their records and the victim's outdated one make f+1.

None of these knows what was decided. So the proposer of w must not start from them: a record of the silent ones names a
newer incarnation of the victim than the one under which it gave its own (rule R2).
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.simulator.stories.story import Condition, Story

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer


class OutdatedRecord(Story):
    kind = "outdated_record"

    def choose(self, choice: int) -> None:
        sites, f = range(self.graph.sites), self.graph.f
        self._last_view = self.first_view + f + 2
        proposers = {self.site(Stage.PROPOSER, replica) for replica in range(f + 1)}
        free = [site for site in sites if site not in proposers]
        self._home = free[choice % len(free)]
        active, last = self.proposer_site(self.first_view), self.proposer_site(self._last_view)
        others = [site for site in sites if site not in (self._home, active, last)]
        self._voters = {active, *others[: f - 1]}
        self._silent = set(sites) - self._voters - {self._home}
        self._victim = self.committer_at(self._home)
        self._member = self.graph.member(Stage.COMMITTER, self._victim)
        #: The victim's new incarnation; 0 before its loss.
        self._incarnation = 0

    def delays(self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, number: int) -> bool:
        stage = self.graph.names[number].stage
        home = sender.site == self._home
        match tuple_:
            case t.Record():
                return tuple_.committer == self._victim
            case t.Vote():
                return sender.site not in self._voters and peer.site in self._voters
            case t.View() if stage is Stage.VIEW_SOURCE:
                return sender.site not in self._voters and peer.site in self._voters
            case t.View() if self._incarnation and number == self.number(Stage.COMMITTER, self._victim):
                return True
            case t.View() if stage in (Stage.COMMITTER, Stage.PROPOSER):
                return home and peer.site != self._home
            case t.CommitterStatus() | t.Stable():
                # They tell the proposers which view the victim is in.
                return home and peer.site != self._home
            case t.Presence():
                return home and peer.site in self._silent
            case t.Start() | t.Proposal():
                return stage is Stage.COMMITTER and sender.site in self._voters and peer.site in self._silent
        return False

    def tell(self) -> Iterator[Condition]:
        others = self._silent | {self._home}
        for view in range(self.first_view + 1, self._last_view + 1):
            self.suspect(others)
            yield partial(self._have_entered, others, view)
        self._incarnation = self.forget(self._victim)
        yield self._victim_and_voters_have_decided
        self.let_through(lambda tuple_: self.is_view(tuple_, self._last_view), Stage.COMMITTER, self._silent)
        self.let_through(lambda tuple_: self.is_record(tuple_, self._last_view), Stage.PROPOSER, self._silent)

    def _have_entered(self, sites: set[int], view: int) -> bool:
        victim_has = any(node.acceptor.view >= view for node in self.committers({self._home}))
        return victim_has and self.in_view(sites, view)

    def _victim_and_voters_have_decided(self) -> bool:
        deciders, silent = self.committers(self._voters | {self._home}), self.committers(self._silent)
        if not self._incarnation or len(deciders) <= self.graph.f or not silent:
            return False
        end = max(node.acceptor.records.pos for node in silent)
        views = {node.acceptor.view for node in deciders}
        return (
            len(views) == 1
            and max(views) < self._last_view
            and all(node.acceptor.view == max(views) for node in silent)
            and all(node.acceptor.started and node.acceptor.commits.pos > end for node in deciders)
        )
