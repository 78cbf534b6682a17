"""A story: a committer forgets that it has left a view, and is offered that view once more.

With v the next view of a partition:

1. f sites, the *stragglers*, among them that of v's proposer, hear nothing from the other sites. These enter v; their
   records wait on the way to v's proposer.
2. They give v up. The next view starts among them, and they decide something in it: all f+1 of them vote.
3. One of them, the *victim*, loses its journal, and with it the promise not to vote in v any more.
4. The stragglers hear of that loss, and then of v, and of v only. Their records name the victim's new incarnation;
   together with one of step 1, which does not, they make f+1: v starts.

If the victim took part in v now, f+1 committers could decide in v what contradicts the decision of step 2. So it must
not: the start is not from f+1 others who all knew of its loss.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.simulator.stories.story import Condition, Story

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer

#: Requests are not delayed: proposers must have something to propose.
_NOT_DELAYED = (t.Requests, t.Submit)


class ForgottenPromise(Story):
    kind = "forgotten_promise"

    def choose(self, choice: int) -> None:
        self._view = self.first_view + 1
        first, successor = self.proposer_site(self._view), self.proposer_site(self._view + 1)
        others = [site for site in range(self.graph.sites) if site not in (first, successor)]
        self._stragglers = {first, *others[: self.graph.f - 1]}
        self._rest = set(range(self.graph.sites)) - self._stragglers
        self._victim = self.committer_at(sorted(self._rest)[choice % len(self._rest)])
        self._member = self.graph.member(Stage.COMMITTER, self._victim)
        #: The victim's new incarnation; 0 before its loss.
        self._incarnation = 0

    def delays(self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, number: int) -> bool:
        if isinstance(tuple_, _NOT_DELAYED):
            return False
        if self._incarnation and isinstance(tuple_, t.View) and number == self.number(Stage.COMMITTER, self._victim):
            return True
        return sender.site in self._rest and peer.site in self._stragglers

    def tell(self) -> Iterator[Condition]:
        self.suspect(self._rest)
        yield self._others_have_entered
        self.suspect(self._rest)
        yield self._others_have_decided
        self._incarnation = self.forget(self._victim)
        yield self._stragglers_are_told
        yield self._stragglers_know
        self.let_through(lambda tuple_: self.is_view(tuple_, self._view), Stage.COMMITTER, self._stragglers)
        self.let_through(self._is_record_of_others, Stage.PROPOSER, self._stragglers)

    def _others_have_entered(self) -> bool:
        entered = all(node.acceptor.view >= self._view for node in self.committers(self._rest))
        return entered and self.in_view(self._rest, self._view)

    def _others_have_decided(self) -> bool:
        others = self.committers(self._rest)
        ends = [tuple_.end for tuple_ in self.delayed() if isinstance(tuple_, t.Record)]
        if len(others) <= self.graph.f or not any(map(self._is_record_of_others, self.delayed())):
            return False
        return all(
            node.acceptor.view > self._view and node.acceptor.started and node.acceptor.commits.pos > max(ends)
            for node in others
        )

    def _stragglers_are_told(self) -> bool:
        return self._incarnation > 0 and self.let_through(self._is_news, Stage.VIEW_SOURCE, self._stragglers)

    def _stragglers_know(self) -> bool:
        return all(node.acceptor.known[self._member] == self._incarnation for node in self.committers(self._stragglers))

    def _is_news(self, tuple_: t.Tuple) -> bool:
        if not isinstance(tuple_, t.View) or tuple_.partition != self.partition:
            return False
        return tuple_.incarnations[self._member] == self._incarnation

    def _is_record_of_others(self, tuple_: t.Tuple) -> bool:
        mine = isinstance(tuple_, t.Record) and tuple_.committer == self._victim
        return self.is_record(tuple_, self._view) and not mine
