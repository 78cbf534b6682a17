"""How a site without a common registry comes to its cluster: it founds it, goes on in it, or joins it without
a journal.

Who may start full, as a member that has promised nothing yet, is a question of safety: a site that has lost its data
directory has promised something, and does not know what. So:

- A site with `cluster.json` goes on with what is in it.
- A cluster is founded once, by all its sites together, each of them told so by its operator (`--found`). Each brings a
  number of its own, random, which is durable in its data directory before anybody hears of it; together they are the
  identity of the cluster. A site starts full only in a cluster that was founded with the number that is still in its
  directory, and the number goes when it has started. With the directory, the number is lost, too.
- Any other site joins without a journal, as soon as f+1 others agree which cluster and era that is; fewer could
  not restore it. Its next life is higher than any before: the time in milliseconds, or what others have heard of.

A forgotten `--found` does no harm. A site is of one cluster only, so of two clusters that a site is lost in between,
only one can have f+1 sites.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from tara.configuration.settings import Settings, shape_of
from tara.configuration.state import ClusterState, StateFile, new_state
from tara.live import control
from tara.live.registry import CLOCKS_DIFFER_S_MAX
from tara.live.sites.other_sites import OtherSites, SiteCard
from tara.net import bounds
from tara.net.certificates import Keys
from tara.net.port import Terms
from tara.net.server import Address, Server
from tara.net.site_address import REGISTRY_OFFSET, SiteAddress
from tara.protocol.errors import ConfigurationError, MalformedTuple
from tara.storage.disk import LOCAL
from tara.storage.files import DamagedFile, read_small, write_small

FOUNDING_FILE = "founding"
FIRST_ERA = 1
#: How often it says what it waits for.
SAY_S = 10.0
_POLL_S = 0.05


class Found(Struct, frozen=True):
    """Start full: this cluster begins, and this site has promised nothing."""

    cluster: int
    nonces: list[str]


class Join(Struct, frozen=True):
    """Start without a journal in this cluster and era."""

    cluster: int
    era: int


def ahead_s(card: SiteCard, now_ms: float) -> float:
    """By how much the clock of a site that waits, too, is ahead of ours, if that is too much for a founding; else 0."""
    found_s = (card.clock_ms - now_ms) / 1e3 if card.clock_ms else 0.0
    return found_s if abs(found_s) > CLOCKS_DIFFER_S_MAX else 0.0


def decide(site: int, f: int, nonce: str, cards: Mapping[int, SiteCard], now_ms: float = 0.0) -> Found | Join | None:
    """What a site without `cluster.json` may do, given what the others say; None: wait. No nonce: it may not found. Nor
    may anybody while clocks differ: the first request fixes the agreed time, which never falls."""
    for card in cards.values():
        if nonce and card.era == FIRST_ERA and card.nonces[site : site + 1] == [nonce]:
            return Found(card.cluster, card.nonces)
    agreed = Counter((card.cluster, card.era) for card in cards.values() if card.cluster)
    for (cluster, era), count in agreed.items():
        if count > f:
            return Join(cluster, era)
    differ = any(ahead_s(card, now_ms) for card in cards.values())
    if nonce and not differ and len(cards) == 2 * f and all(card.nonce and not card.cluster for card in cards.values()):
        nonces = [nonce if index == site else cards[index].nonce for index in range(2 * f + 1)]
        return Found(_identity(nonces), nonces)
    return None


def _identity(nonces: list[str]) -> int:
    return int.from_bytes(blake2b("/".join(nonces).encode(), digest_size=6).digest(), "big")


class Doorway:
    """A site that has no cluster yet: answers the others, asks them, and comes to a decision."""

    def __init__(
        self,
        settings: Settings,
        site: int,
        addresses: list[SiteAddress],
        keys: Keys | None,
        found: bool,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._directory = Path(settings.data_dir)
        self._site = site
        self._addresses = addresses
        self._keys = keys
        self._say = say
        self._shape = shape_of(settings)
        self._nonce = self._own_nonce() if found else ""

    def state(self) -> ClusterState:
        """Waits until it is clear how this site starts. What is returned has been written down."""
        others = OtherSites(self._site, self._addresses, self._keys)
        guard = None if self._keys is None else self._keys.members_only()
        server: Server | None = None
        try:
            terms = Terms(bounds.CONTROL_BYTES_MAX, bounds.CONTROLLERS_MAX, guard, self._say, self._say)
            server = bind(self._addresses[self._site], terms)
            decision = self._await(server, others)
            lives = [card.lives[self._site] for card in others.cards().values() if card.lives]
        finally:
            if server is not None:
                server.close()
            others.close()
        return self._write(decision, max(lives, default=0))

    def _await(self, server: Server, others: OtherSites) -> Found | Join:
        said_s = 0.0
        while True:
            server.wait(_POLL_S)
            server.tick()
            for identity, data in server.receive():
                self._answer(server, identity, data)
            others.look()
            cards = others.cards()
            self._check(cards)
            decision = decide(self._site, self._settings.limits.f, self._nonce, cards, time.time() * 1e3)
            if decision is not None:
                return decision
            if time.monotonic() - said_s > SAY_S:
                said_s = time.monotonic()
                self._say(self._reason(cards, others.problems))

    def _answer(self, server: Server, identity: bytes, data: bytes) -> None:
        try:
            question = control.decode(data)
        except MalformedTuple:
            return
        if isinstance(question, control.AskSite):
            card = SiteCard(
                site=self._site,
                shape=self._shape,
                durability=self._settings.durability,
                nonce=self._nonce,
                clock_ms=int(time.time() * 1e3),
            )
            answer = control.Answer(True, msgspec.json.encode(card))
        else:
            answer = control.Answer(False, f"site {self._site} waits for the other sites".encode())
        server.send(identity, control.encode(answer))

    def _check(self, cards: Mapping[int, SiteCard]) -> None:
        for other, card in cards.items():
            if (card.shape, card.durability) != (self._shape, self._settings.durability):
                raise ConfigurationError(
                    f"site {other} has other settings than site {self._site}: compare `tara config check` at both"
                )

    def _reason(self, cards: Mapping[int, SiteCard], problems: Mapping[int, str]) -> str:
        sites = [
            f"site {other} {self._what_of(other, cards, problems)}"
            for other in range(len(self._addresses))
            if other != self._site
        ]
        purpose = "to found a cluster or to join one" if self._nonce else "to join without a journal (no --found)"
        return f"site {self._site} waits {purpose}: {', '.join(sites)}"

    @staticmethod
    def _what_of(other: int, cards: Mapping[int, SiteCard], problems: Mapping[int, str]) -> str:
        card = cards.get(other)
        if card is None:
            return problems.get(other, "does not answer")
        if card.cluster:
            return f"is in cluster {card.cluster:x}, era {card.era}"
        if difference_s := ahead_s(card, time.time() * 1e3):
            where = "ahead of" if difference_s > 0 else "behind"
            return f"has a clock that is {abs(difference_s):.0f} s {where} ours: set the clocks first"
        return "waits, too" if card.nonce else "waits, too, without --found"

    def _own_nonce(self) -> str:
        """What this directory brings to a founding: the same at every attempt."""
        path = self._directory / FOUNDING_FILE
        try:
            return read_small(path).decode()
        except FileNotFoundError:
            pass
        except DamagedFile as error:
            raise ConfigurationError(
                f"{error}. This site has promised nothing yet: remove the file and start the site again with --found. "
                "It then brings a new number or, if the others have begun with the old one, joins without a journal"
            ) from error
        except OSError as error:
            raise ConfigurationError(f"{path}: {error}") from error
        nonce = secrets.token_hex(16)
        try:
            write_small(path, nonce.encode())
        except OSError as error:
            raise ConfigurationError(f"{path}: {error}") from error
        return nonce

    def _write(self, decision: Found | Join, heard: int) -> ClusterState:
        state = new_state(self._settings)
        state.cluster = decision.cluster
        match decision:
            case Found(_, nonces):
                state.nonces = nonces
            case Join(_, era):
                state.era = era
                state.founded[self._site] = True
                # No journal that may be lying here has this name: none of them is to be trusted.
                state.journals = [""] * len(state.lives)
                state.journals[self._site] = secrets.token_hex(8)
                state.lives[self._site] = max(int(time.time() * 1e3), heard)
        StateFile(self._directory).write(state)
        return state


def forget_founding(directory: Path) -> None:
    """Before anything starts: from now on only `cluster.json` says that this site was there at the founding."""
    path = directory / FOUNDING_FILE
    try:
        if path.exists():
            path.unlink()
            LOCAL.sync_directory(directory)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error


def bind(site: SiteAddress, terms: Terms) -> Server:
    """Where the others look for this site's registry."""
    try:
        return Server(Address(site.host, site.port + REGISTRY_OFFSET), terms)
    except OSError as error:
        raise ConfigurationError(f"sites: {site.registry} cannot be bound: {error.strerror}") from error
