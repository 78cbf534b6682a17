"""How a site comes to its cluster: who may start full, and who has to join without a journal."""

from pathlib import Path
from typing import Any

import pytest

from tara.configuration.settings import Settings, load_settings
from tara.live.sites.joining import FOUNDING_FILE, Doorway, Found, Join, decide
from tara.live.sites.other_sites import SiteCard
from tara.live.sites.site import site_settings
from tara.protocol.errors import ConfigurationError

CLUSTER = 77
NONCES = ["n0", "n1", "n2"]


def card(site: int, **fields: Any) -> SiteCard:
    return SiteCard(site=site, shape=1, durability="disk", **fields)


def founding(site: int, nonce: str | None = None) -> SiteCard:
    return card(site, nonce=nonce or NONCES[site])


def running(site: int, era: int = 1, nonces: list[str] = NONCES, cluster: int = CLUSTER) -> SiteCard:
    return card(site, cluster=cluster, era=era, nonces=nonces)


def cards(*some: SiteCard) -> dict[int, SiteCard]:
    return {each.site: each for each in some}


def test_a_cluster_is_founded_when_all_sites_are_there_to_found_it() -> None:
    decisions = [
        decide(site, 1, NONCES[site], cards(*(founding(other) for other in range(3) if other != site)))
        for site in range(3)
    ]

    assert isinstance(decisions[0], Found)
    assert decisions[0].nonces == NONCES
    assert decisions[1] == decisions[2] == decisions[0]


def test_other_numbers_are_another_cluster() -> None:
    first = decide(0, 1, "n0", cards(founding(1), founding(2)))
    second = decide(0, 1, "n0", cards(founding(1), founding(2, "another")))
    assert isinstance(first, Found)
    assert isinstance(second, Found)
    assert first.cluster != second.cluster


def test_nobody_founds_while_one_is_missing_or_was_not_told_to() -> None:
    assert decide(0, 1, "n0", cards(founding(1))) is None
    assert decide(0, 1, "n0", cards(founding(1), card(2))) is None
    assert decide(0, 1, "", cards(founding(1), founding(2))) is None


@pytest.mark.parametrize("seconds", [-3_600, 3_600])
def test_nobody_founds_while_clocks_differ(seconds: int) -> None:
    now_ms = 1_800_000_000_000

    def waiting(site: int, ahead_s: float) -> SiteCard:
        return card(site, nonce=NONCES[site], clock_ms=int(now_ms + ahead_s * 1e3))

    assert decide(0, 1, "n0", cards(waiting(1, 2.0), waiting(2, seconds)), now_ms) is None
    assert isinstance(decide(0, 1, "n0", cards(waiting(1, 2.0), waiting(2, -2.0)), now_ms), Found)
    # What has begun is not stopped: a founder that is late goes on.
    assert decide(1, 1, "n1", cards(running(0), waiting(2, seconds)), now_ms) == Found(CLUSTER, NONCES)


def test_a_founder_that_was_late_starts_full_in_the_cluster_of_its_number() -> None:
    """One of the others has seen all the numbers, and has begun."""
    assert decide(1, 1, "n1", cards(running(0), founding(2))) == Found(CLUSTER, NONCES)
    assert decide(1, 1, "n1", cards(running(0))) == Found(CLUSTER, NONCES)


def test_a_site_that_lost_its_number_joins_without_a_journal_when_enough_others_agree() -> None:
    """Whether it is told to found or not: its directory is not the one that was there."""
    for nonce in ("new", ""):
        assert decide(1, 1, nonce, cards(running(0))) is None
        assert decide(1, 1, nonce, cards(running(0), founding(2, "other"))) is None
        assert decide(1, 1, nonce, cards(running(0), running(2))) == Join(CLUSTER, 1)


def test_no_site_starts_full_in_a_later_era() -> None:
    assert decide(1, 1, "n1", cards(running(0, era=2), running(2, era=2))) == Join(CLUSTER, 2)
    assert decide(1, 1, "n1", cards(running(0, era=2))) is None


def test_sites_that_disagree_are_not_joined() -> None:
    assert decide(1, 1, "", cards(running(0, era=1), running(2, era=2))) is None
    assert decide(1, 1, "", cards(running(0), running(2, cluster=78))) is None


def test_a_joiner_may_have_founded_with_others() -> None:
    """Of f = 2: three others that agree are enough, whatever the fourth says."""
    others = cards(running(0), running(1), running(2), founding(3, "n3"))
    assert decide(4, 2, "", others) == Join(CLUSTER, 1)
    assert decide(4, 2, "", cards(running(0), running(1), founding(3, "n3"))) is None


def test_the_number_of_a_founding_is_the_same_at_every_attempt_and_never_a_damaged_one(tmp_path: Path) -> None:
    settings, addresses = site_settings(settings_with(data_dir=str(tmp_path)), 0)

    def attempt() -> bytes:
        Doorway(settings, 0, addresses, None, True, print)
        return (tmp_path / FOUNDING_FILE).read_bytes()

    first = attempt()
    assert attempt() == first
    (tmp_path / FOUNDING_FILE).write_bytes(bytes([first[0] ^ 1]) + first[1:])
    with pytest.raises(ConfigurationError, match=f"{tmp_path / FOUNDING_FILE}: is damaged: .*: remove the file and"):
        attempt()


SITES = "127.0.0.2:7400,127.0.0.3:7400,127.0.0.4:7400"


def settings_with(**flags: Any) -> Settings:
    return load_settings(environment={}, flags={"sites": SITES, **flags})


def test_a_site_binds_the_address_that_others_know() -> None:
    settings, addresses = site_settings(settings_with(), 1)

    assert settings.host == "127.0.0.3"
    assert (addresses[1].clients, addresses[1].registry) == ("tcp://127.0.0.3:7400", "tcp://127.0.0.3:7403")
    assert (addresses[2].peers, addresses[2].files) == ("tcp://127.0.0.4:7401", "tcp://127.0.0.4:7402")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"sites": "127.0.0.1:7400"}, "has 1 addresses; a cluster with this f has 3"),
        ({"f": 2}, "has 3 addresses; a cluster with this f has 5"),
        ({"sites": "127.0.0.1:7400,127.0.0.1:7403,127.0.0.1:7410"}, "overlap"),
        ({"sites": "127.0.0.1,b:1,c:1"}, "'127.0.0.1' is not host:port"),
        ({"sites": "127.0.0.1:65533,b:1,c:1"}, "is not host:port, with 4 ports"),
        ({"sites": "10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400"}, "only loopback addresses"),
        ({"sites": "0.0.0.0:7400,10.0.0.2:7400,10.0.0.3:7400"}, "others can connect to"),
        ({"packing": "node"}, "packing = node"),
        ({"port": 9000}, "port = 9000"),
    ],
)
def test_contradictions_are_named(flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        settings_with(**flags)


def test_a_site_must_be_one_of_them() -> None:
    with pytest.raises(ConfigurationError, match="site = 3: there are sites 0 to 2"):
        site_settings(settings_with(), 3)
    with pytest.raises(ConfigurationError, match="sites: not set"):
        site_settings(load_settings(environment={}), 0)
