"""Keys: who may talk to a cluster, as files in a directory.

A cluster has an authority, which signs a certificate for its members (containers, drivers and operators share one), and
one for each client. `tara keygen` makes them (`tara.net.keygen`); an authority of one's own will do, too.

    DIR/authority.pem           the certificate of the authority: everybody has it
    DIR/authority.key           its secret key: only where `tara keygen` is run
    DIR/member.pem, member.key  a member's certificate and secret key
    DIR/authorized/NAME.pub     the public key of a client that may connect to the front ends
    DIR/observers/NAME.pub      the same of a client that may also read the decided log, which has everybody's commands
    DIR/clients/NAME/           what the client NAME gets: authority.pem, client.pem and client.key (secret)

Which principal a certificate stands for is in its subject alternative name, as a URI: `tara://member` or
`tara://client/NAME`. A certificate without one, or with two, stands for nobody.

A directory is named by its path everywhere: in settings, in Spark closures, on command lines. Keys themselves stay in
files that only their owner may read, and in the memory of the processes that use them.
"""

import os
import re
import ssl
import stat
import time
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from tara.net.errors import NOT_AUTHORIZED, ConnectionRefused
from tara.net.principal import Kind, Principal
from tara.net.tls import Tls
from tara.protocol.errors import ConfigurationError

AUTHORITY = "authority.pem"
AUTHORITY_KEY = "authority.key"
MEMBER = "member.pem"
MEMBER_KEY = "member.key"
CLIENT = "client.pem"
CLIENT_KEY = "client.key"
AUTHORIZED = "authorized"
OBSERVERS = "observers"
CLIENTS = "clients"

MEMBER_URI = "tara://member"
CLIENT_URI = "tara://client/"
_SCHEME = "tara://"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Longer than any file with a key.
_FILE_BYTES_MAX = 64 << 10
#: What is in a certificate that nobody here understands.
_UNREADABLE = (
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    x509.InvalidVersion,
    UnsupportedAlgorithm,
)
#: A directory that changed so recently may change again without showing it in its time.
_SETTLED_NS = 1_000_000_000


def digest_of_key(key: bytes) -> bytes:
    """Of a public key, as it is in a certificate (DER)."""
    return sha256(key).digest()


def principal_of(certificate: x509.Certificate) -> Principal:
    """Raises ValueError if it stands for nobody."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if uri.startswith(_SCHEME)]
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if found == [MEMBER_URI]:
        return Principal(Kind.MEMBER, digest_of_key(key))
    if len(found) == 1 and found[0].startswith(CLIENT_URI) and NAME.fullmatch(found[0].removeprefix(CLIENT_URI)):
        return Principal(Kind.CLIENT, digest_of_key(key))
    raise ValueError(f"no URI {MEMBER_URI} or {CLIENT_URI}NAME")


def _presented(certificate: bytes) -> Principal:
    """Who the other side is; its chain has been verified."""
    try:
        return principal_of(x509.load_der_x509_certificate(certificate))
    except Exception as error:
        # An authority signs what it likes: whatever cannot be read in it ends this connection, and nothing else.
        raise ConnectionRefused("the certificate is neither a member's nor a client's") from error


def _admit_member(certificate: bytes) -> Principal:
    principal = _presented(certificate)
    if principal.kind is not Kind.MEMBER:
        raise ConnectionRefused(f"{NOT_AUTHORIZED}: it is not a member's")
    return principal


class Keys:
    """A certificate with its secret key, and the authority. Cannot be pickled, and does not show its secret."""

    def __init__(self, directory: Path, certificate: Path, key: Path) -> None:
        self.directory = directory
        self._certificate = certificate
        self._key = key
        #: Whom the certificate stands for.
        self.principal = _own_principal(certificate)
        # Wrong files show now, and not at the first connection.
        self._connecting = self._context(ssl.PROTOCOL_TLS_CLIENT)

    def __repr__(self) -> str:
        return f"Keys({str(self.directory)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys do not travel: send the path of their directory")

    @property
    def is_member(self) -> bool:
        """Whether these are a member's, and not a client's."""
        return self.principal.kind is Kind.MEMBER

    @cached_property
    def _accepting(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        # Members are known by their mark: addresses change, and prove nothing.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_COMPRESSION
        if side == ssl.PROTOCOL_TLS_SERVER:
            # Nobody resumes a session: connections are few and long.
            context.num_tickets = 0
        authority = self.directory / AUTHORITY
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{self._key}: is not the key of {self._certificate.name}: {error}") from error
        try:
            context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{authority}: {_why(error)}") from error
        return context

    @property
    def blocking_context(self) -> ssl.SSLContext:
        """For those who have sockets that wait, and look themselves whom they talk to."""
        return self._connecting

    def connecting(self) -> Tls:
        """For a connection that we open: prove who we are, and talk to members only."""
        return Tls(self._connecting, server_side=False, admit=_admit_member)

    def members_only(self) -> "Guard":
        """For ports of the cluster's own: whoever connects has to be a member."""
        return Guard(self._accepting, None)

    def members_and_clients(self) -> "Guard":
        """For front ends: authorized clients are welcome, too."""
        return Guard(self._accepting, AuthorizedKeys(self.directory / AUTHORIZED))

    def observers(self) -> "AuthorizedKeys":
        """The clients that may read what all others have sent."""
        return AuthorizedKeys(self.directory / OBSERVERS)


class Guard:
    """Decides who may connect to a port."""

    def __init__(self, context: ssl.SSLContext, authorized: "AuthorizedKeys | None") -> None:
        self._context = context
        self._authorized = authorized

    def accepting(self) -> Tls:
        """For a connection that somebody opened to us."""
        return Tls(self._context, server_side=True, admit=_admit_member if self._authorized is None else self._admit)

    def _admit(self, certificate: bytes) -> Principal:
        principal = _presented(certificate)
        assert self._authorized is not None
        if principal.kind is Kind.CLIENT and principal.digest not in self._authorized.now():
            raise ConnectionRefused(NOT_AUTHORIZED)
        return principal


class AuthorizedKeys:
    """The digests of the public keys in a directory; read again when the directory has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._version: int | None = None
        self._digests: frozenset[bytes] = frozenset()

    def now(self) -> frozenset[bytes]:
        """What cannot be read authorizes nobody; whoever is refused for that shows."""
        try:
            version = self._directory.stat().st_mtime_ns
            if version != self._version:
                self._digests = frozenset(self._read())
                self._version = version if time.time_ns() - version > _SETTLED_NS else None
        except OSError:
            self._version, self._digests = None, frozenset()
        return self._digests

    def _read(self) -> list[bytes]:
        found = []
        for path in sorted(self._directory.glob("*.pub")):
            try:
                key = load_pem_public_key(read_file(path))
                found.append(digest_of_key(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)))
            except (ConfigurationError, ValueError, TypeError, UnsupportedAlgorithm):
                # A directory, a link to nowhere, rubbish: authorizes nobody, and is in nobody's way.
                continue
        return found


def load_keys(directory: str | Path) -> Keys:
    """The keys in a directory, of a member or of a client."""
    directory = Path(directory)
    for certificate, key, kind in ((MEMBER, MEMBER_KEY, Kind.MEMBER), (CLIENT, CLIENT_KEY, Kind.CLIENT)):
        if (directory / key).exists():
            _check_secret(directory / key)
            keys = Keys(directory, directory / certificate, directory / key)
            if keys.principal.kind is not kind:
                raise ConfigurationError(f"{directory / certificate}: is a certificate of a {keys.principal.kind}")
            return keys
    raise ConfigurationError(f"keys = {directory}: no {MEMBER_KEY} or {CLIENT_KEY} there (make one with `tara keygen`)")


def load_member_keys(directory: str | Path) -> Keys:
    """The keys of a member, for who is part of the cluster."""
    keys = load_keys(directory)
    if not keys.is_member:
        raise ConfigurationError(f"keys = {directory}: these are a client's keys, not a member's")
    return keys


def _own_principal(path: Path) -> Principal:
    try:
        certificate = x509.load_pem_x509_certificate(read_file(path))
        principal = principal_of(certificate)
    except (ValueError, TypeError, *_UNREADABLE) as error:
        raise ConfigurationError(f"{path}: is not a certificate of a member or of a client: {error}") from error
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise ConfigurationError(f"{path}: this certificate has expired ({certificate.not_valid_after_utc:%Y-%m-%d})")
    return principal


def _check_secret(path: Path) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigurationError(f"{path}: others may read this secret key (mode {mode:o}): chmod 600 {path}")


def read_secret(path: Path) -> bytes:
    """A secret key that nobody else may read."""
    _check_secret(path)
    return read_file(path)


def read_file(path: Path) -> bytes:
    """A small regular file; nothing else is waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigurationError(f"{path}: is not a file")
            return os.read(descriptor, _FILE_BYTES_MAX)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error


def _no_password() -> NoReturn:
    raise ValueError("it is encrypted; keys are protected by their mode")


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
