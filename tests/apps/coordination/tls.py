"""TLS for the tests of the ZooKeeper port: the options of a server, and what clients use."""

import ssl
from pathlib import Path

from tara.net.gateway import Options


def tls_options(certificates: Path) -> Options:
    return {
        "port": 0,
        "tls_certificate": str(certificates / "server.pem"),
        "tls_key": str(certificates / "server.key"),
        "tls_authorities": str(certificates / "client.pem"),
    }


def trusted_by(certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates / "server.pem"))
    context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    return context
