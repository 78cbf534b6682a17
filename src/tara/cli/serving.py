"""A driver's process from its settings to its end: what `tara up` and `tara site` have in common."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tara.cli.application_path import look_here
from tara.cli.output import say

if TYPE_CHECKING:
    from tara.configuration.settings import Settings
    from tara.live.spark import Cluster


def gateway_options(pairs: list[str] | None) -> dict[str, str] | None:
    """KEY=VALUE, several times."""
    if not pairs:
        return None
    for pair in pairs:
        if "=" not in pair:
            raise typer.BadParameter(f"{pair}: must be KEY=VALUE", param_hint="--gateway")
    return dict(pair.split("=", 1) for pair in pairs)


def serve_cluster(config: Path | None, flags: Mapping[str, object], found: bool) -> None:
    """A cluster with one driver, this process."""
    from tara.configuration.settings import load_settings
    from tara.configuration.state import StateFile
    from tara.live.spark import Cluster

    look_here()
    settings = load_settings(config, flags=flags)
    _check_gateway(settings)
    StateFile(Path(settings.data_dir)).require_founding(found)
    _serve(Cluster(settings, sys.stderr))


def serve_site(config: Path | None, flags: Mapping[str, object], number: int, found: bool) -> None:
    """One site of a cluster whose sites each have a driver; this process is one of them."""
    from tara.configuration.settings import load_settings
    from tara.live.sites.site import SiteRegistry
    from tara.live.spark import Cluster
    from tara.live.spark_session import check_java

    look_here()
    settings = load_settings(config, flags=flags)
    # Before it says to others that it is there.
    _check_gateway(settings)
    check_java()
    try:
        registry = SiteRegistry(settings, number, found, sys.stderr)
    except KeyboardInterrupt:
        raise typer.Exit(1) from None
    _serve(Cluster(settings, sys.stderr, registry))


def _check_gateway(settings: "Settings") -> None:
    from tara.named import application_of
    from tara.net.addresses import is_fixed
    from tara.net.gateway import check_gateway

    gateway, host = application_of(settings.app).gateway, settings.container_host or settings.host
    if gateway is not None:
        check_gateway(gateway, host if is_fixed(host) else None, settings.gateway)


def _serve(cluster: "Cluster") -> None:
    """Until it is interrupted, or told to go down."""
    from tara.live.start_phases import process_began_s
    from tara.named import application_of
    from tara.net.allocator import give_memory_back

    give_memory_back()
    try:
        cluster.start(process_began_s())
        if application_of(cluster.settings.app).gateway is not None:
            cluster.await_gateways()
        say(f"endpoints  {','.join(plain(cluster.registry.endpoints))}")
        if cluster.registry.gateways:
            say(f"ZooKeeper  {','.join(cluster.registry.gateways)}")
        say(f"Spark UI   {cluster.ui}")
        say(f"metrics    {cluster.registry.metrics_address}")
        cluster.wait()
    except KeyboardInterrupt:
        say("going down", err=True)
    finally:
        cluster.stop()


def plain(endpoints: list[str]) -> list[str]:
    """As clients want them."""
    return [endpoint.removeprefix("tcp://") for endpoint in endpoints]
