"""Key files: who may read them, and what is not overwritten."""

import os
import pickle
import shutil
import socket
import ssl
import stat
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtensionOID

from tara.net import keygen
from tara.net.certificates import AuthorizedKeys, load_keys, load_member_keys
from tara.net.channel import Channel
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.net.principal import Kind, Principal
from tara.net.tls import Tls
from tara.protocol.errors import ConfigurationError
from tests.net.terms import serve
from tests.patience import await_condition


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_cluster_keys(tmp_path / "keys")
    return tmp_path / "keys"


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_secret_keys_are_for_their_owner_only(directory: Path) -> None:
    client = make_client_keys(directory, "alice")

    for secret in (directory / "authority.key", directory / "member.key", client / "client.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    names = ["authority.key", "authority.pem", "authorized", "clients", "member.key", "member.pem"]
    assert sorted(path.name for path in directory.iterdir()) == names
    assert sorted(path.name for path in client.iterdir()) == ["authority.pem", "client.key", "client.pem"]


def test_a_client_knows_its_authority_and_is_authorized(directory: Path) -> None:
    path = make_client_keys(directory, "alice")
    client, member = load_keys(path), load_keys(directory)

    assert member.is_member
    assert not client.is_member
    assert (path / "authority.pem").read_bytes() == (directory / "authority.pem").read_bytes()
    assert AuthorizedKeys(directory / "authorized").now() == {client.principal.digest}


def test_a_principal_is_the_key_and_not_the_certificate(directory: Path) -> None:
    """So that who renews a certificate stays who it was."""
    path = make_client_keys(directory, "alice")
    before = load_keys(path).principal
    authority_key = load_pem_private_key((directory / "authority.key").read_bytes(), None)
    old = certificate(path / "client.pem")
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), 7, old.not_valid_before_utc, old.not_valid_after_utc
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    renewed = builder.sign(authority_key, SHA256())
    (path / "client.pem").write_bytes(renewed.public_bytes(Encoding.PEM))

    assert renewed.serial_number != old.serial_number
    assert load_keys(path).principal == before
    assert before != load_keys(directory).principal


def test_keys_are_not_overwritten(directory: Path) -> None:
    make_client_keys(directory, "alice")
    before = load_keys(directory).principal

    with pytest.raises(ConfigurationError, match="exists"):
        make_cluster_keys(directory)
    with pytest.raises(ConfigurationError, match="exists"):
        make_client_keys(directory, "alice")
    assert load_keys(directory).principal == before


@pytest.mark.parametrize("missing", [["member.key"], ["member.key", "member.pem"], ["member.key", "authority.pem"]])
def test_a_half_made_directory_is_completed(directory: Path, missing: list[str]) -> None:
    """As a crash leaves it; or with an authority that was there before."""
    authority = (directory / "authority.key").read_bytes()
    for name in missing:
        (directory / name).unlink()

    make_cluster_keys(directory)

    assert (directory / "authority.key").read_bytes() == authority
    assert load_keys(directory).is_member
    assert not load_keys(make_client_keys(directory, "alice")).is_member


def test_an_authority_whose_key_is_elsewhere_is_not_replaced(directory: Path) -> None:
    for name in ("authority.key", "member.key"):
        (directory / name).unlink()

    with pytest.raises(ConfigurationError, match=r"authority\.pem: exists"):
        make_cluster_keys(directory)
    with pytest.raises(ConfigurationError, match="where the authority's key is"):
        make_client_keys(directory, "alice")


@pytest.mark.parametrize("name", ["", "../alice", "a/b", ".hidden", "a" * 65])
def test_a_clients_name_cannot_leave_the_directory(directory: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="a name has"):
        make_client_keys(directory, name)


@pytest.mark.parametrize("name", ["member.key", "authority.key"])
def test_a_secret_that_others_may_read_is_refused(directory: Path, name: str) -> None:
    (directory / name).chmod(0o640)

    with pytest.raises(ConfigurationError, match="others may read this secret key"):
        load_keys(directory)
        make_client_keys(directory, "alice")


@pytest.mark.parametrize("name", ["member.key", "member.pem", "authority.pem"])
def test_what_is_no_key_or_certificate_is_refused(directory: Path, tmp_path: Path, name: str) -> None:
    (directory / name).write_text("rubbish\n")

    with pytest.raises(ConfigurationError, match=name):
        load_keys(directory)
    with pytest.raises(ConfigurationError, match="tara keygen"):
        load_keys(tmp_path)


def test_a_key_of_another_certificate_is_refused(directory: Path, tmp_path: Path) -> None:
    make_cluster_keys(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "member.key", directory / "member.key")

    with pytest.raises(ConfigurationError, match="is not the key of member"):
        load_keys(directory)


def test_a_client_is_no_member(directory: Path) -> None:
    client = make_client_keys(directory, "alice")
    with pytest.raises(ConfigurationError, match="a client's keys"):
        load_member_keys(client)

    shutil.copy(client / "client.pem", directory / "member.pem")
    shutil.copy(client / "client.key", directory / "member.key")
    with pytest.raises(ConfigurationError, match="is a certificate of a client"):
        load_keys(directory)


def test_an_expired_certificate_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keygen, "VALID", timedelta(seconds=-1))
    make_cluster_keys(tmp_path / "keys")

    with pytest.raises(ConfigurationError, match="has expired"):
        load_keys(tmp_path / "keys")


@pytest.mark.parametrize("uris", [[], ["tara://member", "tara://client/x"], ["tara://client/"], ["tara://root"]])
def test_a_certificate_without_a_clear_mark_stands_for_nobody(directory: Path, uris: list[str]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = keygen._builder(x509.Name([]), x509.Name([]), key)
    names = x509.SubjectAlternativeName([x509.DNSName("x"), *map(x509.UniformResourceIdentifier, uris)])
    (directory / "member.pem").write_bytes(
        builder.add_extension(names, critical=False).sign(key, SHA256()).public_bytes(Encoding.PEM)
    )

    with pytest.raises(ConfigurationError, match="is not a certificate of a member or of a client"):
        load_keys(directory)


#: Subject alternative names that the library does not know: an x400Address, and an ediPartyName.
UNUSUAL_NAMES = {"x400Address": "3004a3023000", "ediPartyName": "3007a505a1030c0178"}


@pytest.mark.parametrize("name", UNUSUAL_NAMES)
def test_a_certificate_that_cannot_be_read_refuses_its_own_connection_only(directory: Path, name: str) -> None:
    client = make_client_keys(directory, "alice")
    authority_key = load_pem_private_key((directory / "authority.key").read_bytes(), None)
    old = certificate(client / "client.pem")
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), 7, old.not_valid_before_utc, old.not_valid_after_utc
    )
    names = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex(UNUSUAL_NAMES[name]))
    builder = builder.add_extension(names, critical=False)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    (client / "unusual.pem").write_bytes(builder.sign(authority_key, SHA256()).public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(client / "authority.pem")
    context.load_cert_chain(client / "unusual.pem", client / "client.key")
    refused: list[str] = []
    with closing(serve(guard=load_keys(directory).members_and_clients(), on_refused=refused.append)) as server:
        host, _, port = server.address.removeprefix("tcp://").rpartition(":")
        known = Channel(server.address, load_keys(client))
        with socket.create_connection((host, int(port))) as plain:
            stranger = Tls(context, server_side=False, admit=lambda certificate: Principal(Kind.MEMBER, b""))
            plain.setblocking(False)
            data = b""

            def done() -> bool:
                nonlocal data
                server.receive()
                known.receive()
                with suppress(BlockingIOError):
                    data = plain.recv(1 << 16)
                if not stranger.over:
                    stranger.shake(data)
                    plain.send(stranger.outgoing())
                    data = b""
                return bool(refused) and known.open

            await_condition(done, "the refusal of one, and the connection of the other")
        known.close()
    assert refused == ["the certificate is neither a member's nor a client's"]


def test_keys_do_not_travel_and_do_not_show(directory: Path) -> None:
    keys = load_keys(directory)
    secret = (directory / "member.key").read_text().splitlines()[1]

    assert secret not in repr(keys) + repr(vars(keys))
    with pytest.raises(TypeError, match="do not travel"):
        pickle.dumps(keys)


def test_what_lies_among_the_authorized_keys_and_is_none_harms_nobody(directory: Path) -> None:
    alice = load_keys(make_client_keys(directory, "alice")).principal.digest
    authorized = directory / "authorized"
    good = (authorized / "alice.pub").read_bytes()
    (authorized / "directory.pub").mkdir()
    (authorized / "dangling.pub").symlink_to("/nonexistent")
    (authorized / "loop.pub").symlink_to("loop.pub")
    os.mkfifo(authorized / "pipe.pub")
    rubbish = [b"", b"\0" * 40, b"\xff" * 40, "ü".encode() * 20, good[:60], good.replace(b"M", b"N"), good[::-1]]
    rubbish.append(b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 200_000)
    for number, content in enumerate(rubbish):
        (authorized / f"{number}.pub").write_bytes(content)

    assert AuthorizedKeys(authorized).now() == {alice}


def test_authorized_keys_are_read_again_when_they_change(directory: Path) -> None:
    authorized = AuthorizedKeys(directory / "authorized")
    assert authorized.now() == frozenset()
    alice = load_keys(make_client_keys(directory, "alice")).principal.digest
    assert authorized.now() == {alice}
    (directory / "authorized" / "alice.pub").unlink()
    assert authorized.now() == frozenset()
    shutil.rmtree(directory / "authorized")
    assert authorized.now() == frozenset()
