"""Key files: who may read them, and what is not overwritten."""

import pickle
import stat
from pathlib import Path

import pytest

from tara.client.keys import load_cluster_keys, load_keys, make_client_keys, make_cluster_keys
from tara.protocol.errors import ConfigurationError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_cluster_keys(tmp_path / "keys")
    return tmp_path / "keys"


def test_secret_keys_are_for_their_owner_only(directory: Path) -> None:
    client = make_client_keys(directory, "alice")

    for secret in (directory / "cluster.key", client / "client.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert sorted(path.name for path in directory.iterdir()) == ["authorized", "clients", "cluster.key", "cluster.pub"]
    assert sorted(path.name for path in client.iterdir()) == ["client.key", "cluster.pub"]


def test_a_client_knows_its_cluster_and_is_authorized(directory: Path) -> None:
    client = load_keys(make_client_keys(directory, "alice"))
    cluster = load_keys(directory)

    assert cluster.is_cluster
    assert not client.is_cluster
    assert client.cluster == cluster.public
    assert (directory / "authorized" / "alice.pub").read_bytes().strip() == client.public


def test_keys_are_not_overwritten(directory: Path) -> None:
    make_client_keys(directory, "alice")
    before = load_keys(directory).public

    with pytest.raises(ConfigurationError, match="exists"):
        make_cluster_keys(directory)
    with pytest.raises(ConfigurationError, match="exists"):
        make_client_keys(directory, "alice")
    assert load_keys(directory).public == before


def test_a_half_made_directory_is_completed(tmp_path: Path) -> None:
    """As a crash before the last step leaves it."""
    make_cluster_keys(tmp_path)
    (tmp_path / "cluster.key").unlink()

    make_cluster_keys(tmp_path)

    assert load_keys(tmp_path).public == (tmp_path / "cluster.pub").read_bytes().strip()


@pytest.mark.parametrize("name", ["", "../alice", "a/b", ".hidden", "a" * 65])
def test_a_clients_name_cannot_leave_the_directory(directory: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="a name has"):
        make_client_keys(directory, name)


def test_a_secret_that_others_may_read_is_refused(directory: Path) -> None:
    (directory / "cluster.key").chmod(0o640)

    with pytest.raises(ConfigurationError, match="others may read this secret key"):
        load_keys(directory)


def test_what_is_no_key_is_refused(directory: Path, tmp_path: Path) -> None:
    (directory / "cluster.key").write_text("rubbish\n")

    with pytest.raises(ConfigurationError, match="is not a key"):
        load_keys(directory)
    with pytest.raises(ConfigurationError, match="tara keygen"):
        load_keys(tmp_path)


def test_a_client_is_no_member(directory: Path) -> None:
    with pytest.raises(ConfigurationError, match="a client's keys"):
        load_cluster_keys(make_client_keys(directory, "alice"))


def test_keys_do_not_travel_and_do_not_show(directory: Path) -> None:
    keys = load_keys(directory)
    secret = (directory / "cluster.key").read_text().strip()

    assert secret not in repr(keys)
    with pytest.raises(TypeError, match="do not travel"):
        pickle.dumps(keys)
