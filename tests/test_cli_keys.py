"""Keys on the command line: making them, and using them against a cluster that has some."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tara import Forbidden, cli
from tara.protocol.errors import ConfigurationError
from tests.live.processes import Processes, settings_for
from tests.patience import await_condition


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), prog_name="tara")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli")
    assert invoke("keygen", str(root / "keys")).exit_code == 0
    assert invoke("keygen", str(root / "keys"), "--client", "alice").exit_code == 0
    return root


@pytest.fixture(scope="module")
def cluster(root: Path) -> Iterator[Processes]:
    with Processes(settings_for(root / "data", keys=str(root / "keys"))) as processes:
        yield processes


def test_keygen_makes_files_for_their_owner_and_never_overwrites(root: Path) -> None:
    assert (root / "keys" / "member.key").stat().st_mode & 0o777 == 0o600
    assert (root / "keys" / "clients" / "alice" / "client.key").stat().st_mode & 0o777 == 0o600

    again = invoke("keygen", str(root / "keys"))

    assert isinstance(again.exception, ConfigurationError)
    assert "exists" in str(again.exception)


def test_the_driver_host_needs_no_flag(cluster: Processes) -> None:
    data_dir = cluster.settings.data_dir

    assert invoke("put", "city", "Erlangen", "--data-dir", data_dir).exit_code == 0
    assert invoke("get", "city", "--data-dir", data_dir).stdout == "Erlangen\n"
    assert json.loads(invoke("status", "--data-dir", data_dir, "--json").stdout)["f"] == 1


def test_a_client_elsewhere_names_its_keys(cluster: Processes, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("--endpoints", cluster.endpoints)
    alice = str(root / "keys" / "clients" / "alice")

    assert invoke("put", "town", "Fürth", *where, "--keys", alice).exit_code == 0
    monkeypatch.setenv("TARA_KEYS", alice)
    assert invoke("get", "town", *where).stdout == "Fürth\n"


def test_a_clients_key_does_not_take_a_cluster_down(cluster: Processes, root: Path) -> None:
    result = invoke("down", "--data-dir", cluster.settings.data_dir, "--keys", str(root / "keys" / "clients" / "alice"))

    assert "a client's keys" in str(result.exception)
    assert cluster.registry.ready()


def test_an_observer_reads_the_log_and_a_client_does_not(cluster: Processes, root: Path) -> None:
    assert invoke("keygen", str(root / "keys"), "--observer").exit_code == 2
    assert invoke("keygen", str(root / "keys"), "--client", "audit", "--observer").exit_code == 0
    where = ("--endpoints", cluster.endpoints)
    clients = root / "keys" / "clients"
    assert invoke("put", "river", "Regnitz", *where, "--keys", str(clients / "alice")).exit_code == 0

    def read() -> str:
        result = invoke("log", *where, "--keys", str(clients / "audit"))
        assert result.exit_code == 0
        return result.stdout

    # An answer does not wait for the log.
    await_condition(lambda: "put river Regnitz" in read(), "the command is in the log")
    assert isinstance(invoke("log", *where, "--keys", str(clients / "alice")).exception, Forbidden)
    assert invoke("log", *where, "--keys", str(clients / "audit"), "--replica", "0").exit_code == 2
