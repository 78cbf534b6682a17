"""The front end: ZooKeeper's wire protocol on one side, one replica of the service on the other.

It lives in its site's container and is driven by the container's loop (`tara.net.gateway`). `listener.py` and
`stream.py` have the sockets, and decide nothing. The rest is pure, bytes and a time in, bytes out: `front_end.py` has
the order of requests and answers, `connection.py` one client's connection, `sessions.py` joining, pings and the time,
`reads.py` the answers of this replica, `watches.py` and `notifications.py` who is told of what.
"""

import os
import time

from tara.apps.coordination.gateway.front_end import FrontEnd
from tara.apps.coordination.gateway.listener import Listener
from tara.apps.coordination.service import CoordinationService
from tara.apps.coordination.settings import check_exposure, gateway_settings
from tara.net.gateway import GatewayHost, Options
from tara.protocol.errors import ConfigurationError


def check(host: str | None, options: Options) -> None:
    settings = gateway_settings(options)
    if host is not None:
        check_exposure(host, settings)


def make_gateway(site: GatewayHost, options: Options) -> Listener:
    if not isinstance(site.application, CoordinationService):
        raise ConfigurationError("this gateway serves the coordination service only")
    settings = gateway_settings(options)
    check_exposure(site.host, settings)
    return Listener(site, settings, FrontEnd(site, settings, time.monotonic, os.urandom))
