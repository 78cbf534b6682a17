"""Hostile frames and bad networks on real clusters; long ones: `make soak`."""

from pathlib import Path

from tara.client import KeyValueClient
from tara.experiments.bad_network import Network, ProxiedRegistry, Weather, network
from tara.experiments.contained import Contained
from tara.experiments.fuzz import fuzz
from tara.operations import health


def test_hostile_frames_at_every_port(tmp_path: Path) -> None:
    verdict = fuzz(tmp_path, print, frames=30_000, seed=1)

    assert verdict.failures == []
    assert sum(verdict.frames.values()) > 25_000
    assert min(verdict.frames.values()) > 10
    assert verdict.recorded > 100
    assert verdict.increments > 10


def test_a_bad_network(tmp_path: Path) -> None:
    verdict = network(tmp_path, print, seconds=10.0, seed=2)

    assert verdict.failures == []
    assert verdict.faults >= 2
    assert verdict.recorded > 100


def test_a_leader_that_is_heard_but_hears_nothing_is_replaced_and_comes_back(tmp_path: Path) -> None:
    with (
        Network(3) as links,
        Contained.whole(tmp_path / "data", {}, lambda settings: ProxiedRegistry(settings, links)) as cluster,
        KeyValueClient(cluster.endpoints, timeout_s=20.0) as client,
    ):
        client.put("city", b"Erlangen")
        leader = health.leader(cluster.status())
        assert leader is not None
        (site,) = leader["sites"]
        for weather in (Weather.CUT, Weather.STALLED):
            links.turn(weather, links.isolated(site, outward=False))
            client.put("city", weather.encode())
            links.heal()
            cluster.await_status(health.full_strength, "full strength")
            assert client.get("city") == weather.encode()
        assert cluster.halted == {}
        assert cluster.died == []
