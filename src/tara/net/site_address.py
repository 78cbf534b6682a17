"""Addresses of sites that know each other from the configuration: a host, and four ports in a row.

Such a cluster has no common registry: each site has a driver of its own. The first port of a site is its front end's,
for clients; then come those for tuples and for files between containers; the last one is that of its driver's registry.
"""

from typing import NamedTuple

from tara.net.addresses import check_host
from tara.protocol.errors import ConfigurationError

PORTS = 4
#: Of a site's ports, the one of its registry.
REGISTRY_OFFSET = 3


class SiteAddress(NamedTuple):
    host: str
    port: int

    @property
    def clients(self) -> str:
        return self._at(0)

    @property
    def peers(self) -> str:
        return self._at(1)

    @property
    def files(self) -> str:
        return self._at(2)

    @property
    def registry(self) -> str:
        return self._at(REGISTRY_OFFSET)

    def _at(self, offset: int) -> str:
        return f"tcp://{self.host}:{self.port + offset}"


def parse_sites(text: str) -> list[SiteAddress]:
    """`host:port,host:port`, in the order of the sites."""
    sites = []
    for part in (part.strip() for part in text.split(",")):
        host, _, port = part.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) <= 65_535 - PORTS + 1:
            raise ConfigurationError(f"sites: {part!r} is not host:port, with {PORTS} ports from that one on")
        sites.append(SiteAddress(host, int(port)))
    return sites


def check_sites(text: str, count: int, keyed: bool) -> None:
    """Whether these can be the sites of a cluster."""
    sites = parse_sites(text)
    if len(sites) != count:
        raise ConfigurationError(f"sites: has {len(sites)} addresses; a cluster with this f has {count} sites")
    for index, site in enumerate(sites):
        check_host("sites", site.host, keyed)
        for other in sites[:index]:
            if other.host == site.host and abs(other.port - site.port) < PORTS:
                raise ConfigurationError(
                    f"sites: {other.host}:{other.port} and {site.host}:{site.port} overlap; each takes {PORTS} ports"
                )
