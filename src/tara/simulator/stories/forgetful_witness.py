"""A story: something is read where little is known, and the only witness of the rest has lost its journal.

The sites are those of a *victim*, of f *voters*, among them the active proposer, and of f *laggards*:

1. The laggards hear no proposals and no votes. Victim and voters, f+1 in all, decide something without them.
2. The victim loses its journal, and does not hear of a view that would bring it back.
3. Something is read at a laggard's site. What the voters' committers say about it is delayed. The committers of the
   laggards and of the victim make f+1.

None of these knows what was decided. So the victim must not say how far the log goes: it has forgotten.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor
from tara.simulator.stories.story import Condition, Story

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer

#: How long an answer takes at most.
_ANSWERED_MS = 100


class ForgetfulWitness(Story):
    kind = "forgetful_witness"

    def choose(self, choice: int) -> None:
        active = self.proposer_site(self.first_view)
        others = [site for site in range(self.graph.sites) if site != active]
        turn = choice % len(others)
        others = others[turn:] + others[:turn]
        self._home, rest = others[0], others[1:]
        self._voters = {active, *rest[: self.graph.f - 1]}
        self._laggards = set(rest[self.graph.f - 1 :])
        self._victim = self.committer_at(self._home)
        #: The victim's new incarnation; 0 before its loss.
        self._incarnation = 0

    def delays(self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, number: int) -> bool:
        inward = sender.site not in self._laggards and peer.site in self._laggards
        match tuple_:
            case t.ReadIndex():
                return inward and sender.site in self._voters
            case t.Commit():
                return inward
            case t.Proposal() | t.Start():
                return inward or self._is_lost_on(number)
            case t.View():
                return self._is_lost_on(number)
        return False

    def _is_lost_on(self, number: int) -> bool:
        return self._incarnation > 0 and number == self.number(Stage.COMMITTER, self._victim)

    def tell(self) -> Iterator[Condition]:
        yield self._others_are_ahead
        self._incarnation = self.forget(self._victim)
        if self._incarnation:
            self._ask(min(self._laggards))
        asked_ms = self.world.now_ms
        yield lambda: self.world.now_ms > asked_ms + _ANSWERED_MS

    def _ask(self, site: int) -> None:
        number = self.graph.number(Stage.REQUEST_SOURCE, site)
        read = t.ReadRequest(self.world.next_unique(), b"")
        self.world.deliver(self.world.host_of(number), [(t.SubmitReads([read]), number)])

    def _others_are_ahead(self) -> bool:
        reached = {
            name.replica: node.next
            for name, node in self.world.nodes_of(Stage.EXECUTOR)
            if isinstance(node, Executor) and node.restored
        }
        behind = [next_ for site, next_ in reached.items() if site in self._laggards]
        ahead = [next_ for site, next_ in reached.items() if site in self._voters]
        return bool(behind and ahead) and max(ahead) > max(behind)
