"""One site of a cluster whose sites each have a driver: its registry, and what it knows of the others.

The registry hands out lives and first starts for the containers of its own site, as that of a whole cluster does. The
addresses of the others come from the configuration and never change, so nobody needs to be told them. `tara status`
at any site shows all of them, because the registries ask each other (`tara.live.sites.other_sites`). How the site came
to its cluster is in `tara.live.sites.joining`.
"""

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import msgspec

from tara.configuration.settings import Settings
from tara.configuration.state import ANY_SITE, ClusterState
from tara.live import control
from tara.live.observability.events import show
from tara.live.observability.metrics import recent_report
from tara.live.recent_demand import RecentDemand
from tara.live.registry import DIGESTS_S, Ports, Registry
from tara.live.sites.joining import Doorway, bind, forget_founding
from tara.live.sites.other_sites import OtherSites, SiteCard
from tara.net.addresses import expand, same_everywhere
from tara.net.certificates import load_member_keys
from tara.net.port import Terms
from tara.net.server import Server
from tara.net.site_address import SiteAddress, parse_sites
from tara.protocol.errors import ConfigurationError

LOOK_S = 0.1


def site_settings(settings: Settings, site: int) -> tuple[Settings, list[SiteAddress]]:
    """What holds at one site: it binds the address that the others know."""
    if not settings.sites:
        raise ConfigurationError("sites: not set; `tara site` needs the addresses of all sites")
    addresses = parse_sites(settings.sites)
    if not 0 <= site < len(addresses):
        raise ConfigurationError(f"site = {site}: there are sites 0 to {len(addresses) - 1}")
    return msgspec.structs.replace(settings, host=addresses[site].host), addresses


class SiteRegistry(Registry):
    def __init__(self, settings: Settings, site: int, found: bool = False, stderr: TextIO | None = None) -> None:
        """`found`: the operator says that the cluster is to be founded, if it has not been yet."""
        settings, self._addresses = site_settings(settings, site)
        self._site = site
        self._may_found = found
        self._stderr = stderr
        self._others: OtherSites | None = None
        #: Whether another site wants to know the digests of the executor here.
        self._others_digests = RecentDemand(DIGESTS_S)
        super().__init__(settings, stderr)
        self._watcher = self.thread("other_sites", self._look_around)
        self._watcher.start()

    @property
    def hosted(self) -> list[int]:
        return [self._site]

    @property
    def endpoints(self) -> list[str]:
        return [address.clients for address in self._addresses]

    def ports(self, container: int) -> Ports:
        port = self._addresses[container].port
        return Ports(port, port + 1, port + 2)

    def tell_stop(self) -> None:
        super().tell_stop()
        self._watcher.join(timeout=5)

    def _load_state(self) -> ClusterState:
        directory = Path(self.settings.data_dir)
        if self._file.exists():
            state = self._file.check(self.settings)
            if state.site not in (ANY_SITE, self._site):
                raise ConfigurationError(f"site = {self._site}: {directory} is of site {state.site}")
        else:
            keys = load_member_keys(expand("keys", self.settings.keys)) if self.settings.keys else None
            doorway = Doorway(self.settings, self._site, self._addresses, keys, self._may_found, self._say)
            state = doorway.state()
        forget_founding(directory)
        state.site = self._site
        # Known beforehand, so that nobody has to wait for the container to ask for them.
        state.app, state.keys = self.settings.app, same_everywhere(self.settings.keys)
        state.registry, state.endpoints = self._addresses[self._site].registry, self.endpoints
        self._file.write(state)
        return state

    def _say(self, line: str) -> None:
        if self._stderr is not None:
            # There is no log yet, and a site that cannot say what it waits for waits all the same.
            with contextlib.suppress(OSError, ValueError):
                show(self._stderr, f"tara: {line}\n".encode())

    def _bind(self, terms: Terms) -> Server:
        return bind(self._addresses[self._site], terms)

    def _peers_and_files(self) -> tuple[list[str | None], list[str | None]]:
        return [address.peers for address in self._addresses], [address.files for address in self._addresses]

    def _look_around(self) -> None:
        """On a thread of its own: ask the others, until the end."""
        keys = load_member_keys(expand("keys", self.settings.keys)) if self.settings.keys else None
        others = self._others = OtherSites(self._site, self._addresses, keys)
        while not self.down.wait(LOOK_S):
            # Only what was asked for here: others would ask back for what they are asked for, and so on.
            others.look(super().with_digests(), self.base_wanted())
            for site, problem in others.problems.items():
                self.events.flood("site_differs", site=site, reason=problem)
            self._compare(others.cards())
        others.close()

    def _compare(self, cards: dict[int, SiteCard]) -> None:
        state = self.state
        for site, card in cards.items():
            if card.cluster not in (0, state.cluster):
                self.events.flood("site_differs", site=site, reason=f"it is in cluster {card.cluster:x}")
            elif card.shape != self.shape:
                self.events.flood("site_differs", site=site, reason="it has other settings")
        eras = Counter(card.era for card in cards.values() if card.cluster == state.cluster)
        for era, count in eras.items():
            if era > state.era and count > state.f:
                # Nothing can be decided in the old era any more; whoever waits for it waits in vain.
                self.failure = ConfigurationError(
                    f"{self.settings.data_dir} is of era {state.era}, but the other sites are in era {era}: move it "
                    "away, and start this site again; it joins without a journal"
                )
                self.events.error("newer_era", era=era)
                self.down.set()

    def with_digests(self) -> bool:
        return super().with_digests() or self._others_digests.holds(time.monotonic())

    def _card(self) -> bytes:
        lives = self.members[self._site].status.get("lives", [])
        card = SiteCard(
            site=self._site,
            shape=self.shape,
            durability=self.settings.durability,
            cluster=self.state.cluster,
            era=self.state.era,
            nonces=self.state.nonces,
            lives=lives,
            containers=[self._container_status(container) for container in self.hosted],
        )
        return msgspec.json.encode(card)

    def _answer(self, identity: bytes, question: control.Question) -> None:
        match question:
            case control.AskSite(digests=digests, base=base):
                if digests:
                    self._others_digests.renew(time.monotonic())
                self._want_base(base)
                self._send(identity, control.Answer(True, self._card()))
            case control.AskKill(target) if (at := self.container_of(target)) is not None and at not in self.hosted:
                self._send(identity, control.Elsewhere(self._addresses[at].registry))
            case _:
                super()._answer(identity, question)

    def status(self) -> dict[str, Any]:
        """Of all sites, as far as their registries answer."""
        others = self._others
        cards = {} if others is None else others.cards()
        elsewhere = [
            cards[site].containers if site in cards else [self._unknown(site)]
            for site in range(len(self._addresses))
            if site != self._site
        ]
        mine = super().status()
        containers = [*mine["containers"], *(container for some in elsewhere for container in some)]
        return {**mine, "containers": sorted(containers, key=lambda container: min(container["sites"]))}

    def own_status(self) -> dict[str, Any]:
        """Of this site only: what its metrics are made of."""
        return super().status()

    def _unknown(self, site: int) -> dict[str, Any]:
        """A site whose registry does not answer. Its container may run all the same."""
        return {
            "container": self.label(site),
            "host": "",
            "server": self._addresses[site].host,
            "sites": [site],
            "pid": 0,
            "life": 0,
            "restarts": 0,
            "up": False,
            "endpoint": self._addresses[site].clients,
            "hosted": [self.graph.label(number) for number in self.placement[site]],
            "recent": recent_report([]),
        }
