"""`tara sessions` and whose sessions are: real processes, with keys and without."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tara.application import Put
from tara.cli import app
from tara.client import Client, Forbidden, SessionExpired
from tara.configuration.state import operator_secret
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.operations.operator import Operator, OperatorError
from tara.operations.sessions import close_session, list_sessions
from tara.protocol import tuples as t
from tara.protocol.principals import describe
from tara.storage.files import write_small
from tests.live.processes import Processes, settings_for
from tests.patience import DEADLINE_S, await_condition, patient

SECRET = b"the secret of alice"
PUT = msgspec.msgpack.encode(Put("key", b"value"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sessions")
    make_cluster_keys(root / "keys")
    for name in ("alice", "mallory"):
        make_client_keys(root / "keys", name)
    return root


@pytest.fixture(scope="module")
def plain(root: Path) -> Iterator[Processes]:
    with Processes(settings_for(root / "plain")) as processes:
        yield processes


@pytest.fixture(scope="module")
def keyed(root: Path) -> Iterator[Processes]:
    with Processes(settings_for(root / "data", keys=str(root / "keys"))) as processes:
        yield processes


def operator(processes: Processes, keys: Path | None = None) -> Operator:
    return Operator(Path(processes.settings.data_dir), keys, timeout_s=DEADLINE_S)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_sessions_are_listed_with_their_owners(plain: Processes) -> None:
    with (
        Client(plain.endpoints, DEADLINE_S, name="listed", secret=SECRET) as named,
        patient(plain.endpoints) as unnamed,
    ):
        named.execute(PUT)
        unnamed.put("key", b"value")
        session = unnamed.client._conversation.session.id
        listed = json.loads(run("sessions", "--json", "--data-dir", plain.settings.data_dir))["sessions"]
        (found,) = [row for row in listed if row["name"] == "listed"]
        (other,) = [row for row in listed if row["session"] == session]
        assert (found["owner"], found["timeout_ms"], found["next"], found["results"]) == ("secret", 0, 1, 1)
        assert found["results_bytes"] > 0
        assert other["owner_digest"] != found["owner_digest"]
        assert other["name"] is None
        text = run("sessions", "--data-dir", plain.settings.data_dir)
        assert "listed" in text
        assert "never" in text


def test_an_operator_closes_a_session_that_never_expires(plain: Processes) -> None:
    with Client(plain.endpoints, DEADLINE_S, name="closed", secret=SECRET) as client:
        client.execute(PUT)
        assert "is closed" in run("sessions", "close", "closed", "--data-dir", plain.settings.data_dir)
        assert "closed" not in [row.name for row in list_sessions(operator(plain))]
        with pytest.raises(SessionExpired):
            client.execute(PUT)
        # A client that lives opens it again.
        client.execute(PUT)
    # When it is gone and its session closed, the name is free.
    close_session(operator(plain), "closed")
    with Client(plain.endpoints, DEADLINE_S, name="closed", secret=bytes(16)) as other:
        other.execute(PUT)


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_client_that_is_closed_ends_its_session(
    has_keys: bool, root: Path, plain: Processes, keyed: Processes
) -> None:
    processes, keys = (keyed, root / "keys" / "clients" / "alice") if has_keys else (plain, None)
    with patient(processes.endpoints, keys=keys) as client:
        client.put("key", b"value")
        session = client.client._conversation.session.id
        assert session in [row.id for row in list_sessions(operator(processes))]
    await_condition(lambda: session not in [row.id for row in list_sessions(operator(processes))], "no such session")


def test_a_session_that_is_not_there_is_told(plain: Processes) -> None:
    with pytest.raises(OperatorError, match="no session has the name or the id 'nobody'"):
        close_session(operator(plain), "nobody")
    assert CliRunner().invoke(app, ["sessions", "close"]).exit_code == 2


def test_who_cannot_read_the_data_directory_is_no_operator(plain: Processes, tmp_path: Path) -> None:
    """He knows everything but the secret."""
    directory = Path(plain.settings.data_dir)
    shutil.copy(directory / "cluster.json", tmp_path)
    secret = operator_secret(tmp_path)
    write_small(secret, b"00" * 16)
    secret.chmod(0o600)
    stranger = Operator(tmp_path, timeout_s=DEADLINE_S)
    with pytest.raises(OperatorError, match="does not know this operator"):
        list_sessions(stranger)
    with patient(plain.endpoints) as client:
        client.put("key", b"value")
        with pytest.raises(OperatorError, match="does not know this operator"):
            stranger.order(t.CLOSE, client.client._conversation.session.id)
        client.put("key", b"value")


def test_with_keys_a_session_belongs_to_the_key(keyed: Processes, root: Path) -> None:
    alice, mallory = (root / "keys" / "clients" / name for name in ("alice", "mallory"))
    with Client(keyed.endpoints, DEADLINE_S, name="hers", keys=alice, secret=SECRET) as client:
        client.execute(PUT)
    # Another process with the same key, and no secret at all.
    with Client(keyed.endpoints, DEADLINE_S, name="hers", keys=alice) as again:
        again.execute(PUT)
    with (
        Client(keyed.endpoints, DEADLINE_S, name="hers", keys=mallory, secret=SECRET) as stranger,
        pytest.raises(Forbidden),
    ):
        stranger.execute(PUT)
    rows = list_sessions(operator(keyed))
    (row,) = [row for row in rows if row.name == "hers"]
    assert describe(row.owner).startswith("key ")
    with pytest.raises(OperatorError):
        list_sessions(operator(keyed, alice))
    assert close_session(operator(keyed), "hers").id == row.id
