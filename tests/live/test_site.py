"""Sites with a driver each, without Spark: real registries that only know each other's addresses, real containers."""

import multiprocessing
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tara.configuration.settings import Settings
from tara.configuration.state import StateFile
from tara.live import control
from tara.live.container import ContainerSpec
from tara.live.hosting import run_container
from tara.live.observability.events import log_path
from tara.live.registry import Registry
from tara.live.sites.joining import FOUNDING_FILE
from tara.live.sites.other_sites import SiteCard
from tara.live.sites.site import SiteRegistry
from tara.net.addresses import free_row
from tara.net.keygen import make_cluster_keys
from tara.net.server import Address
from tara.net.site_address import PORTS, parse_sites
from tara.operations import health
from tara.operations.recovery import Recovery
from tara.operations.registry_client import ask
from tara.operations.running_states import compare_states
from tara.protocol.errors import ConfigurationError
from tara.storage.files import write_small
from tests.live.processes import Processes, settings_for
from tests.net.terms import serve
from tests.patience import DEADLINE_S, await_condition, patient

SITES = 3


class OneSite:
    """The driver of one site, in this process; its container in another one."""

    def __init__(self, settings: Settings, site: int, found: bool) -> None:
        self.registry = SiteRegistry(settings, site, found)
        self.settings = self.registry.settings
        self.site = site
        self.process = self._start()

    def _start(self) -> SpawnProcess:
        registry, state = self.registry, self.registry.state
        ports = registry.ports(self.site)
        spec = ContainerSpec(
            cluster=state.cluster,
            era=state.era,
            container=self.site,
            placement=registry.placement,
            limits=self.settings.limits,
            durability=self.settings.durability,
            data_dir=self.settings.data_dir,
            host=self.settings.host,
            keys=self.settings.keys,
            label=registry.label(self.site),
            shape=registry.shape,
            threshold=state.threshold,
            port=ports.clients,
            peer_port=ports.peers,
            files_port=ports.files,
        )
        arguments = (msgspec.json.encode(spec), self.settings.app, registry.address)
        process = multiprocessing.get_context("spawn").Process(target=run_container, args=arguments, daemon=True)
        process.start()
        return process

    def lose(self) -> None:
        """The driver and its container at once."""
        self.process.kill()
        self.process.join()
        self.registry.stop()

    def stop(self) -> None:
        self.registry.stop()
        self.process.join(timeout=10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    @property
    def status(self) -> dict[str, Any]:
        return self.registry.status()


class Sites:
    def __init__(self, directory: Path, **flags: Any) -> None:
        self.directory = directory
        hosts = [f"127.0.0.{site + 2}" for site in range(SITES)]
        self._flags: dict[str, Any] = {"sites": ",".join(f"{host}:{free_row(PORTS, host)}" for host in hosts), **flags}
        self.sites: dict[int, OneSite] = {}

    def data_dir(self, site: int) -> Path:
        return self.directory / f"site-{site}"

    def settings(self, site: int) -> Settings:
        return settings_for(self.data_dir(site), **self._flags)

    def start(self, *sites: int, found: bool = False) -> None:
        with ThreadPoolExecutor() as threads:
            starting = {site: threads.submit(OneSite, self.settings(site), site, found) for site in sites}
        self.sites.update({site: future.result() for site, future in starting.items()})
        running = [self.sites[site] for site in sites]
        await_condition(lambda: all(site.registry.ready() for site in running), "the containers to report")

    def await_strength(self) -> None:
        seen = [site.registry for site in self.sites.values()]
        await_condition(lambda: all(health.full_strength(registry.status()) for registry in seen), "full strength")

    def lose(self, site: int) -> None:
        self.sites.pop(site).lose()

    def events(self, site: int, who: str | None = None) -> list[dict[str, Any]]:
        path = log_path(str(self.data_dir(site)), who or f"site-{site}")
        return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]

    @property
    def endpoints(self) -> str:
        return ",".join(next(iter(self.sites.values())).registry.endpoints)

    def stop(self) -> None:
        for site in self.sites.values():
            site.stop()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    made = Sites(tmp_path)
    yield made
    made.stop()


def test_sites_found_a_cluster_lose_one_and_get_it_back(sites: Sites) -> None:
    sites.start(0, 1, 2, found=True)
    sites.await_strength()
    with patient(sites.endpoints) as client:
        client.put("city", b"Erlangen")
        assert len({sites.sites[site].registry.state.cluster for site in range(SITES)}) == 1
        assert not any((sites.data_dir(site) / FOUNDING_FILE).exists() for site in range(SITES))

        # With its disk: it goes on with what it promised.
        sites.lose(1)
        client.put("city", b"Bamberg")
        await_condition(lambda: not sites.sites[0].status["containers"][1]["up"], "the loss to show elsewhere")
        sites.start(1)
        sites.await_strength()
        assert sites.sites[1].registry.state.lives[1] == 2
        assert [event["event"] for event in sites.events(1)].count("rejoining") == 0

        # Without: it joins without a journal, although it is told to found a cluster.
        sites.lose(2)
        for number in range(150):
            client.put("number", str(number).encode())
        shutil.rmtree(sites.data_dir(2))
        sites.start(2, found=True)
        sites.await_strength()
        names = [event["event"] for event in sites.events(2)]
        assert names.index("rejoining") < names.index("rejoined")
        assert list(sites.data_dir(2).glob("log-2/*.segment")), "what it executed again, it has from the others"
        # Every driver tells its own containers.
        assert compare_states(sites.data_dir(0)).equal
        assert sites.sites[2].registry.state.lives[2] > 1_000_000_000_000
        assert client.get("city") == b"Bamberg"
        assert client.get("number") == b"149"
    equal = [registry for site in sites.sites.values() if (registry := site.registry)]
    equal[0].want_digests()
    await_condition(lambda: health.replicas_equal(equal[0].status()), "equal replicas")


def test_a_site_is_asked_and_killed_from_another_one(tmp_path: Path) -> None:
    """With keys, as between real servers."""
    make_cluster_keys(tmp_path / "keys")
    sites = Sites(tmp_path, keys=str(tmp_path / "keys"))
    try:
        sites.start(0, 1, 2, found=True)
        sites.await_strength()
        victim = sites.sites[2].process
        said = ask(sites.data_dir(0), control.AskKill("site-2"))
        assert b"gets SIGKILL" in said
        victim.join(timeout=DEADLINE_S)
        assert victim.exitcode == -9
        status = msgspec.json.decode(ask(sites.data_dir(1), control.AskStatus()))
        assert [container["container"] for container in status["containers"]] == ["site-0", "site-1", "site-2"]
        assert status["endpoints"] == sites.sites[0].registry.endpoints
        metrics = sites.sites[0].registry.own_status()["containers"]
        assert [container["container"] for container in metrics] == ["site-0"]
    finally:
        sites.stop()


def test_a_founding_that_was_interrupted_goes_on(sites: Sites) -> None:
    """One site dies when it has written who the cluster is; the others have their numbers still."""
    sites.start(0, 1, 2, found=True)
    state = sites.sites[1].registry.state
    sites.stop()
    sites.sites.clear()
    nonces = state.nonces
    for site in (0, 2):
        shutil.rmtree(sites.data_dir(site))
        sites.data_dir(site).mkdir()
        write_small(sites.data_dir(site) / FOUNDING_FILE, nonces[site].encode())
    sites.start(0, 1, 2, found=True)
    sites.await_strength()
    assert {sites.sites[site].registry.state.cluster for site in range(SITES)} == {state.cluster}
    started = [event["details"]["how"] for event in sites.events(0) if event["event"] == "started"]
    assert started == ["genesis"]


def test_a_site_with_other_settings_is_not_joined(sites: Sites) -> None:
    address = parse_sites(sites.settings(0).sites)[1].registry
    stranger = SiteCard(site=1, shape=1, durability="disk", nonce="n1")
    host, port = address.removeprefix("tcp://").split(":")
    with closing(serve(address=Address(host, int(port)))) as server, ThreadPoolExecutor() as threads:
        starting = threads.submit(SiteRegistry, sites.settings(0), 0, True)
        while not starting.done():
            server.wait(0.05)
            for identity, _ in server.receive():
                server.send(identity, control.encode(control.Answer(True, msgspec.json.encode(stranger))))
        with pytest.raises(ConfigurationError, match="site 1 has other settings than site 0"):
            starting.result()


def test_an_old_era_drops_out_when_the_others_have_begun_a_new_one(sites: Sites) -> None:
    sites.start(0, 1, 2, found=True)
    with patient(sites.endpoints) as client:
        for number in range(100):
            client.put("number", str(number).encode())
        first = sites.sites[0].registry
        await_condition(lambda: min(e["stable"] for e in health.executors(first.status())) >= 1, "a checkpoint")
    sites.stop()
    sites.sites.clear()
    # Site 0 and 1 lose their journals; what is left of the others is told to the recovery.
    for site in (0, 1):
        shutil.rmtree(sites.data_dir(site) / f"journal-{site}")
    others = [sites.data_dir(1), sites.data_dir(2)]
    with Recovery(sites.data_dir(0), others) as recovery:
        recovery.check()
        assert [bool(journal.problem) for journal in recovery.found.journals] == [True, True, False]
        recovery.begin()
    shutil.rmtree(sites.data_dir(1))
    shutil.copytree(sites.data_dir(0), sites.data_dir(1))
    sites.start(0, 1)
    # The third one still has its old directory.
    left = OneSite(sites.settings(2), 2, False)
    try:
        await_condition(left.registry.down.is_set, "the old era to drop out")
        assert "other sites are in era 2" in str(left.registry.failure)
    finally:
        left.stop()
    assert [event["event"] for event in sites.events(2, "registry")].count("newer_era") == 1
    shutil.rmtree(sites.data_dir(2))
    sites.start(2)
    sites.await_strength()
    with patient(sites.endpoints) as client:
        value = client.get("number")
        assert value is not None and 0 < int(value) < 100
    assert StateFile(sites.data_dir(2)).read().era == 2


def test_a_directory_is_of_one_site_and_not_of_a_whole_cluster(sites: Sites) -> None:
    """As another site, or as all of them, it would start full where it is not known what was promised."""
    sites.start(0, 1, 2, found=True)
    sites.stop()
    sites.sites.clear()
    settings = sites.settings(0)

    with pytest.raises(ConfigurationError, match=r"site = 1: .* is of site 0"):
        SiteRegistry(settings, 1)
    with pytest.raises(ConfigurationError, match="is of site 0 only: start it with `tara site`"):
        Registry(msgspec.structs.replace(settings, sites=""))


def test_the_directory_of_a_whole_cluster_may_be_given_to_its_sites(sites: Sites) -> None:
    whole = sites.directory / "whole"
    with Processes(settings_for(whole)) as cluster, patient(cluster.endpoints) as client:
        client.put("city", b"Erlangen")
    for site in range(SITES):
        shutil.copytree(whole, sites.data_dir(site))
    sites.start(0, 1, 2)
    sites.await_strength()
    with patient(sites.endpoints) as client:
        assert client.get("city") == b"Erlangen"
    assert [event["event"] for site in range(SITES) for event in sites.events(site)].count("rejoining") == 0


def test_one_driver_does_not_run_sites_that_have_their_own(sites: Sites) -> None:
    with pytest.raises(ConfigurationError, match="start it with `tara site`"):
        Registry(sites.settings(0))


def test_a_port_in_use_is_named(sites: Sites) -> None:
    import socket

    host, port = sites.settings(0).sites.split(",")[0].split(":")
    with socket.socket() as taken:
        taken.bind((host, int(port) + 3))
        taken.listen()
        with pytest.raises(ConfigurationError, match=r"sites: tcp://.* cannot be bound: Address already in use"):
            SiteRegistry(sites.settings(0), 0, True)
