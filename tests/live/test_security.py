"""Who gets in: a cluster with keys, real processes and sockets, and everybody who should stay outside."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tara.client import KeyValueClient, NotReachable, Refused
from tara.configuration.settings import load_settings
from tara.live import control
from tara.net.certificates import load_keys
from tara.net.channel import Channel
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.operations import registry_client
from tara.operations.registry_client import ask
from tara.protocol.errors import ConfigurationError
from tests.live.processes import Processes, settings_for
from tests.patience import await_condition, patient

#: How long a client tries, until it has met a front end and been refused.
TIMEOUTS_S = (2.0, 10.0, 60.0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("security")
    make_cluster_keys(root / "keys")
    make_client_keys(root / "keys", "alice")
    make_cluster_keys(root / "other")
    make_client_keys(root / "other", "mallory")
    return root


@pytest.fixture(scope="module")
def keyed(root: Path) -> Iterator[Processes]:
    with Processes(settings_for(root / "data", keys=str(root / "keys"))) as processes:
        yield processes


@pytest.fixture(scope="module")
def plain(root: Path) -> Iterator[Processes]:
    with Processes(settings_for(root / "plain")) as processes:
        yield processes


def refused(processes: Processes) -> int:
    return sum(processes.status(container)["counters"]["connections_refused"] for container in range(3))


def assert_refused(processes: Processes, keys: Path | None, reason: str) -> None:
    for timeout_s in TIMEOUTS_S:
        with (
            KeyValueClient(processes.endpoints, timeout_s=timeout_s, keys=keys) as client,
            pytest.raises(NotReachable) as error,
        ):
            client.put("key", b"value")
        if isinstance(error.value, Refused):
            break
    assert isinstance(error.value, Refused)
    assert reason in str(error.value)


def assert_refused_and_counted(processes: Processes, keys: Path, reason: str) -> None:
    before = refused(processes)
    assert_refused(processes, keys, reason)
    await_condition(lambda: refused(processes) > before, "the refusal to be counted")


def test_a_client_with_the_right_key_is_served(keyed: Processes, root: Path) -> None:
    with patient(keyed.endpoints, keys=root / "keys" / "clients" / "alice") as client:
        client.put("key", b"value")
        assert client.get("key") == b"value"


def test_a_member_is_served_too(keyed: Processes, root: Path) -> None:
    with patient(keyed.endpoints, keys=root / "keys") as client:
        assert client.compare_and_set("member", None, b"value")


def test_a_client_without_a_key_is_told_that_it_needs_one(keyed: Processes) -> None:
    assert_refused(keyed, None, "requires keys")


def test_a_client_that_nobody_authorized_is_refused(keyed: Processes, root: Path) -> None:
    stranger = make_client_keys(root / "keys", "stranger")
    (root / "keys" / "authorized" / "stranger.pub").unlink()

    assert_refused_and_counted(keyed, stranger, "not authorized")


def test_a_client_of_another_authority_is_refused_even_if_it_knows_ours(keyed: Processes, root: Path) -> None:
    forged = root / "forged"
    shutil.copytree(root / "other" / "clients" / "mallory", forged)
    shutil.copy(root / "keys" / "authority.pem", forged / "authority.pem")

    assert_refused_and_counted(keyed, forged, "does not know the authority of our certificate")


def test_a_client_of_another_cluster_does_not_talk_to_this_one(keyed: Processes, root: Path) -> None:
    assert_refused_and_counted(keyed, root / "other" / "clients" / "mallory", "unknown authority")


def test_a_client_with_keys_does_not_talk_to_a_service_without(plain: Processes, root: Path) -> None:
    assert_refused(plain, root / "keys" / "clients" / "alice", "has no keys")


def test_a_key_counts_from_the_moment_it_is_authorized_to_the_moment_it_is_not(keyed: Processes, root: Path) -> None:
    directory = make_client_keys(root / "keys", "guest")
    with patient(keyed.endpoints, keys=directory) as client:
        client.put("guest", b"was here")
    (root / "keys" / "authorized" / "guest.pub").unlink()

    assert_refused_and_counted(keyed, directory, "not authorized")


def test_nobody_is_there_is_still_another_error(root: Path) -> None:
    with (
        KeyValueClient("127.0.0.1:1", timeout_s=0.5, keys=root / "keys") as client,
        pytest.raises(NotReachable) as error,
    ):
        client.put("key", b"value")
    assert not isinstance(error.value, Refused)


def test_the_command_line_finds_the_keys_and_others_are_refused(keyed: Processes, root: Path) -> None:
    data_dir = Path(keyed.settings.data_dir)
    assert ask(data_dir, control.AskStatus())
    before = keyed.registry.connections_refused

    with pytest.raises(registry_client.RegistryRefused, match="unknown authority"):
        ask(data_dir, control.AskStatus(), root / "other")
    with pytest.raises(ConfigurationError, match="a client's keys"):
        ask(data_dir, control.AskDown(), root / "keys" / "clients" / "alice")
    await_condition(lambda: keyed.registry.connections_refused > before, "the refusal to be counted")


def test_a_clients_key_opens_neither_registry_nor_peers(keyed: Processes, root: Path) -> None:
    """An authorized client speaks to front ends only: it can neither kill nodes nor forge votes."""
    alice = load_keys(root / "keys" / "clients" / "alice")
    member = keyed.registry.members[0]
    assert member.peer_address
    assert member.files_address
    frames = keyed.status(0)["counters"]["frames_bad"]
    for address in (keyed.registry.address, member.peer_address, member.files_address):
        channel = Channel(address, alice)
        channel.send(control.encode(control.AskStatus()))

        def is_refused(channel: Channel = channel) -> bool:
            assert channel.receive() == []
            return channel.broken

        await_condition(is_refused, "the connection to end")
        assert channel.refusal == "the certificate is not authorized: it is not a member's"
        channel.close()
    assert keyed.status(0)["counters"]["frames_bad"] == frames


def test_a_restarted_container_rejoins_behind_its_keys(keyed: Processes, root: Path) -> None:
    keyed.kill(2)
    keyed.restart(2)
    with patient(keyed.endpoints, keys=root / "keys" / "clients" / "alice") as client:
        client.put("after", b"restart")
    await_condition(lambda: keyed.node(2, "committer-2").get("state") == "voting", "the committer to vote")


@pytest.mark.parametrize("host", ["192.168.1.7", "10.0.0.1", "example.org", "127.example.org"])
@pytest.mark.parametrize("key", ["host", "container_host"])
def test_an_open_address_needs_keys(host: str, key: str, root: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{key} = {host}: only loopback addresses .*`tara keygen"):
        load_settings(environment={}, flags={key: host})

    load_settings(environment={}, flags={key: host, "keys": str(root / "keys")})


@pytest.mark.parametrize("key", ["host", "container_host"])
def test_a_wildcard_cannot_be_told_to_others(key: str, root: Path) -> None:
    with pytest.raises(ConfigurationError, match="others can connect to"):
        load_settings(environment={}, flags={key: "0.0.0.0", "keys": str(root / "keys")})
