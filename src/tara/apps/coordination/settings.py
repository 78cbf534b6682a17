"""The options of a front end; most have ZooKeeper's names and values."""

import msgspec
from msgspec import Struct

from tara.apps.coordination import limits
from tara.net.addresses import is_loopback
from tara.net.gateway import Options
from tara.protocol.errors import ConfigurationError


class GatewaySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Site i listens at port + i. 0: any free port, the same one at every start.
    port: int = 2181
    #: The unit of time-outs.
    tick_time_ms: int = 2_000
    #: The shortest and longest time-out of a session; 0: 2 and 20 ticks.
    session_timeout_ms_min: int = 0
    session_timeout_ms_max: int = 0
    #: Watches at one front end, and of one connection.
    watches_max: int = limits.WATCHES_MAX
    watches_per_connection_max: int = limits.WATCHES_PER_CONNECTION_MAX
    #: Connections from one address; 0: any number.
    max_client_connections: int = 60
    #: Bytes of a request.
    jute_max_buffer: int = 0xFFFFF
    #: How often containers and nodes with a time to live are looked at.
    collect_interval_ms: int = 60_000
    #: Files: with a certificate and its key, the port speaks TLS; with authorities, clients need certificates, too.
    tls_certificate: str = ""
    tls_key: str = ""
    tls_authorities: str = ""
    #: The four-letter words that are answered, with commas; *: all. Those that name clients, sessions or nodes are not
    #: among them: whoever can connect can ask.
    four_letter_words: str = "ruok,srvr,isro,mntr,conf,envi,wchs"
    #: Serve whoever connects, also beyond loopback.
    open: bool = False

    def __post_init__(self) -> None:
        positive = (
            "tick_time_ms",
            "jute_max_buffer",
            "collect_interval_ms",
            "watches_max",
            "watches_per_connection_max",
        )
        for name in positive:
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"gateway.{name} = {getattr(self, name)}: must be positive")
        if not 0 <= self.port < 65_000:
            raise ConfigurationError(f"gateway.port = {self.port}: must be below 65000")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigurationError("gateway.tls_certificate and gateway.tls_key: needed both, or neither")
        if self.tls_authorities and not self.tls_certificate:
            raise ConfigurationError("gateway.tls_authorities: needs gateway.tls_certificate")
        low, high = self.timeouts_ms
        if low > high:
            raise ConfigurationError(f"gateway.session_timeout_ms_min = {low}: above session_timeout_ms_max ({high})")

    @property
    def timeouts_ms(self) -> tuple[int, int]:
        return (
            self.session_timeout_ms_min or 2 * self.tick_time_ms,
            self.session_timeout_ms_max or 20 * self.tick_time_ms,
        )


def check_exposure(host: str, settings: GatewaySettings) -> None:
    """Clients that prove nothing are served on loopback addresses only, unless somebody wants it so."""
    if not (is_loopback(host) or settings.tls_authorities or settings.open):
        raise ConfigurationError(
            f"gateway: {host} is not a loopback address, so clients need certificates (gateway.tls_authorities); "
            "gateway.open = true serves whoever connects"
        )


def gateway_settings(options: Options) -> GatewaySettings:
    try:
        return msgspec.convert(options, GatewaySettings, strict=False)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, ConfigurationError):
            raise cause from None
        raise ConfigurationError(f"gateway: {error}") from error
