"""Hostile frames and bad networks on real clusters; long ones: `make soak`."""

import time
from contextlib import closing
from pathlib import Path

from tara.client import KeyValueClient
from tara.drills.bad_network import Network, ProxiedRegistry, Weather, network
from tara.drills.fuzz import SHARES, fuzz
from tara.drills.process_cluster import ProcessCluster
from tara.net.links import Links
from tara.operations import health


def test_hostile_frames_at_every_port(tmp_path: Path) -> None:
    verdict = fuzz(tmp_path, print, frames=15_000, seed=1)

    # How much throughput is left says something on a quiet machine only.
    assert [failure for failure in verdict.failures if "throughput" not in failure] == []
    assert sum(verdict.frames.values()) > 12_000
    assert min(verdict.frames.values()) > 10
    assert len(verdict.frames) == 2 * len(SHARES)
    assert set(verdict.nuisances) >= {"silent", "half_open", "reset", "endless", "not_reading", "stranger", "flood"}
    assert set(verdict.nuisances) >= {"crowd_readers", "repeating", "long_readers"}
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
        ProcessCluster.whole(tmp_path / "data", {}, lambda settings: ProxiedRegistry(settings, links)) as cluster,
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


class End:
    """The links of one container, and what it heard."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.links = Links("127.0.0.1", 0, 2, 1 << 20, lambda _: None)

    def turn(self) -> None:
        self.links.tick()
        self.frames += self.links.receive()


def hears(here: End, there: End, frame: bytes, timeout_s: float) -> bool:
    """Whether a frame that is sent again and again arrives."""
    end_s = time.monotonic() + timeout_s
    there.frames.clear()
    while frame not in there.frames and time.monotonic() < end_s:
        here.links.send(1, frame)
        here.turn()
        there.turn()
        time.sleep(0.002)
    return frame in there.frames


def test_a_link_is_what_the_weather_says() -> None:
    here, there = End(), End()
    with Network(2) as links, closing(here.links), closing(there.links):
        here.links.connect(1, links.address(0, 1, there.links.address))
        assert hears(here, there, b"fine", 10)
        for weather in (Weather.CUT, Weather.STALLED):
            links.turn(weather, [(0, 1)])
            hears(here, there, b"on its way", 0.2)
            assert not hears(here, there, weather.encode(), 0.3)
            links.heal()
            assert hears(here, there, b"healed of " + weather.encode(), 10)
        for weather in (Weather.SLOW, Weather.LOSSY):
            links.turn(weather, [(0, 1)])
            assert hears(here, there, weather.encode(), 10)
