"""A story: a committer is given up for lost and started again elsewhere, while its old process goes on.

1. The container of the *victim* starts on another host, with an empty disk; the old process hears everything, too. The
   next view names the victim's new incarnation, and the new committer is full again in it.
2. From now on the old process alone hears anything of the other containers, and f *stragglers* get no proposals.

If the old process took part in that view, it and f others could decide something there. The new one and the stragglers
do not know it, and make f+1: the next view would start without it. So it must not: the start names an incarnation
that is not its own (rule R3).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.simulator.stories.story import Condition, Story

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World


class GivenUpAlive(Story):
    kind = "given_up_alive"

    @classmethod
    def can_happen(cls, world: "World") -> bool:
        """What the old process of a container has executed, an operator does not know."""
        return world.fatal is None

    def choose(self, choice: int) -> None:
        # With a proposer on its site, it would be another view's proposer that starts anew.
        proposers = {self.site(Stage.PROPOSER, replica) for replica in range(self.graph.f + 1)}
        free = [site for site in range(self.graph.sites) if site not in proposers]
        self._home = free[choice % len(free)]
        self._container = self.world.host_of(self.number(Stage.COMMITTER, self.committer_at(self._home)))
        self._zombie: SimulatedContainer | None = None
        self._stragglers: set[int] = set()

    def delays(self, sender: "SimulatedContainer", peer: "SimulatedContainer", tuple_: t.Tuple, number: int) -> bool:
        if not isinstance(tuple_, t.Proposal) or peer.site not in self._stragglers:
            return False
        return number == self.number(Stage.COMMITTER, self.committer_at(peer.site))

    def tell(self) -> Iterator[Condition]:
        yield self._is_given_up
        yield self._is_full_again
        assert self._zombie is not None
        (committer,) = self.committers({self._home})
        others = set(range(self.graph.sites)) - {self._home, self.proposer_site(committer.acceptor.view)}
        self._stragglers = set(sorted(others)[: self.graph.f])
        self._zombie.known_until_ms = {container.index: float("inf") for container in self.world.containers}

    def end(self) -> None:
        if self._zombie in self.world.zombies:
            self.world.zombies.remove(self._zombie)
            self.world.crash(self._zombie)
        super().end()

    def _is_given_up(self) -> bool:
        if not self._container.alive or not self.world.may_fail([self._container]):
            return False
        self.world.split(self._container, copies_elsewhere=False)
        self._zombie = self.world.zombies[-1]
        self._zombie.known_until_ms = None
        return True

    def _is_full_again(self) -> bool:
        committers = self.committers({self._home})
        return bool(committers) and all(
            node.acceptor.started and node.acceptor.view > self.first_view for node in committers
        )
