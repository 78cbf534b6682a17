"""Makes the authority of a cluster, and certificates for its members and clients; see `tara.net.certificates`."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tara.net.certificates import (
    AUTHORITY,
    AUTHORITY_KEY,
    AUTHORIZED,
    CLIENT,
    CLIENT_KEY,
    CLIENT_URI,
    CLIENTS,
    MEMBER,
    MEMBER_KEY,
    MEMBER_URI,
    NAME,
    OBSERVERS,
    read_file,
    read_secret,
)
from tara.protocol.errors import ConfigurationError

#: How long certificates are valid. Clocks of hosts may differ by some time.
VALID = timedelta(days=3650)
_CLOCKS_DIFFER = timedelta(days=1)

Secret = ec.EllipticCurvePrivateKey


def make_cluster_keys(directory: Path) -> None:
    """A certificate for the members, by the authority that is there, or by a new one. Overwrites nothing; what a crash
    left half-made is completed."""
    _refuse_existing(directory / MEMBER_KEY)
    if not (directory / AUTHORITY_KEY).exists():
        # An authority of one's own whose key is elsewhere.
        _refuse_existing(directory / AUTHORITY)
        _make_directory(directory)
        _write_secret(directory / AUTHORITY_KEY, ec.generate_private_key(ec.SECP256R1()))
    _make_directory(directory / AUTHORIZED)
    if not (directory / AUTHORITY).exists():
        authority_key = _load_secret(directory / AUTHORITY_KEY)
        _write_public(directory / AUTHORITY, _authority(authority_key).public_bytes(Encoding.PEM))
    authority, authority_key = _load_authority(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    _write_public(directory / MEMBER, _signed(authority, authority_key, key, "member", MEMBER_URI))
    # The secret comes last: without it there is no member.
    _write_secret(directory / MEMBER_KEY, key)


def make_client_keys(directory: Path, name: str, observer: bool = False) -> Path:
    """A new key and certificate for a client, which is authorized by that; as an observer also to read the decided log.
    Returns the directory for the client."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"client {name!r}: a name has up to 64 letters, digits, dots, dashes and underscores")
    authority, authority_key = _load_authority(directory)
    target = directory / CLIENTS / name
    _refuse_existing(target / CLIENT_KEY)
    key = ec.generate_private_key(ec.SECP256R1())
    lists = [directory / AUTHORIZED, *([directory / OBSERVERS] if observer else [])]
    for path in (*lists, directory / CLIENTS, target):
        _make_directory(path)
    _write_public(target / AUTHORITY, authority.public_bytes(Encoding.PEM))
    _write_public(target / CLIENT, _signed(authority, authority_key, key, name, CLIENT_URI + name))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for path in lists:
        _write_public(path / f"{name}.pub", public)
    _write_secret(target / CLIENT_KEY, key)
    return target


def _load_authority(directory: Path) -> tuple[x509.Certificate, Secret]:
    key = _load_secret(directory / AUTHORITY_KEY)
    try:
        authority = x509.load_pem_x509_certificate(read_file(directory / AUTHORITY))
    except ValueError as error:
        raise ConfigurationError(f"{directory / AUTHORITY}: is not a certificate: {error}") from error
    if key.public_key() != authority.public_key():
        raise ConfigurationError(f"{directory / AUTHORITY_KEY}: is not the key of {AUTHORITY}")
    return authority, key


def _load_secret(path: Path) -> Secret:
    if not path.exists():
        raise ConfigurationError(f"{path}: is not here; certificates are made where the authority's key is")
    try:
        key = load_pem_private_key(read_secret(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{path}: is not a key: {error}") from error
    if not isinstance(key, Secret):
        raise ConfigurationError(f"{path}: is no key on an elliptic curve; sign with the authority's own tools")
    return key


def _authority(key: Secret) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tara authority")])
    return (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )


def _signed(authority: x509.Certificate, authority_key: Secret, key: Secret, name: str, uri: str) -> bytes:
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if uri == MEMBER_URI:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(subject, authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(authority_key, SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def _builder(subject: x509.Name, issuer: x509.Name, key: Secret) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + VALID)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise ConfigurationError(f"{path}: exists; a new key in its place would lock out whoever uses this one")


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be made: {error.strerror}") from error


def _write_public(path: Path, data: bytes) -> None:
    temporary = _write_temporary(path, data, 0o644)
    try:
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from error


def _write_secret(path: Path, key: Secret) -> None:
    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    temporary = _write_temporary(path, data, 0o600)
    try:
        # Unlike a renaming, a link fails if the name is taken.
        os.link(temporary, path)
    except FileExistsError:
        _refuse_existing(path)
    finally:
        temporary.unlink()


def _write_temporary(path: Path, data: bytes, mode: int) -> Path:
    """In a file beside `path`, with no more permissions than it may have from the first moment on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigurationError(f"{temporary}: cannot be written: {error.strerror}") from error
    return temporary
