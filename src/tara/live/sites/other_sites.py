"""What the driver of one site knows of the others: it asks their registries, again and again.

Only between sites that each have a driver of their own. Nothing on the request path depends on it: containers talk to
each other directly, at addresses from the configuration.
"""

import time
from typing import Any

import msgspec
from msgspec import Struct

from tara.live import control
from tara.net import bounds
from tara.net.certificates import Keys
from tara.net.channel import SteadyChannel
from tara.net.site_address import SiteAddress
from tara.protocol.errors import MalformedTuple

#: How often each is asked.
ASK_S = 0.5
#: One that has been silent for so long is not known to run.
SILENT_S = 3.0


class SiteCard(Struct, kw_only=True):
    """What a site's registry says of its site."""

    site: int
    #: Stands for everything that must agree; see `tara.configuration.settings.shape_of`.
    shape: int
    durability: str
    #: The cluster that it belongs to; 0: none yet.
    cluster: int = 0
    era: int = 0
    #: What it brings to the founding of a cluster, while it waits for the others.
    nonce: str = ""
    #: What all sites had brought when its cluster was founded, if it was there.
    nonces: list[str] = []
    #: The newest lives of all containers that it has heard of.
    lives: list[int] = []
    #: Its clock, milliseconds since 1970, while it waits for the others.
    clock_ms: int = 0
    #: The containers of the site, as in `tara status`.
    containers: list[dict[str, Any]] = []


class Heard(Struct):
    card: SiteCard
    at_s: float


_decode_card = msgspec.json.Decoder(SiteCard).decode


class OtherSites:
    """One thread uses it, from its making to `close`."""

    def __init__(self, site: int, addresses: list[SiteAddress], keys: Keys | None) -> None:
        self._channels: dict[int, SteadyChannel] = {}
        self._asked_s: dict[int, float] = {}
        #: The newest card of each other site. Others may look at it; entries are replaced as a whole.
        self.heard: dict[int, Heard] = {}
        #: Sites that said something that makes no sense, and what.
        self.problems: dict[int, str] = {}
        for other, address in enumerate(addresses):
            if other != site:
                self._channels[other] = SteadyChannel(address.registry, keys, bounds.CONTROL_BYTES_MAX)

    def look(self, digests: bool = False, base: int = 0) -> None:
        """Ask who is due, and take the answers that are there. Does not wait. `base` is a checkpoint at which an
        operator wants bases, which all sites tell each other."""
        now_s = time.monotonic()
        for site, channel in self._channels.items():
            messages = channel.receive()
            if channel.refusal is not None:
                self.problems[site] = channel.refusal
            # Questions do not pile up for one that is not there.
            if channel.open and now_s - self._asked_s.get(site, 0.0) >= ASK_S:
                self._asked_s[site] = now_s
                channel.send(control.encode(control.AskSite(digests=digests, base=base)))
            for data in messages:
                self._take(site, data)

    def _take(self, site: int, data: bytes) -> None:
        try:
            answer = control.decode(data)
            if not isinstance(answer, control.Answer) or not answer.ok:
                return
            card = _decode_card(answer.body)
        except (MalformedTuple, msgspec.DecodeError) as error:
            self.problems[site] = str(error)
            return
        if card.site != site:
            self.problems[site] = f"it says that it is site {card.site}: the settings of the sites differ"
            return
        self.problems.pop(site, None)
        self.heard[site] = Heard(card, time.monotonic())

    def cards(self) -> dict[int, SiteCard]:
        """Of those that run."""
        now_s = time.monotonic()
        return {site: heard.card for site, heard in list(self.heard.items()) if now_s - heard.at_s < SILENT_S}

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
