"""Where a container is: variables, addresses, and what the registry makes of its journal and the others."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tara.live import control
from tara.live.registry import Registry
from tara.net.addresses import NeedsKeys, expand, here, is_loopback, same_everywhere
from tara.protocol.errors import ConfigurationError
from tests.frames import Frames
from tests.live.processes import settings_for


class Spec(msgspec.Struct):
    host: str = "127.0.0.1"
    data_dir: str = "/data"
    keys: str = ""


def test_each_host_has_values_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_ADDRESS", "127.0.0.9")
    monkeypatch.setenv("MY_DISK", "/disk7")

    found = here(Spec("$MY_ADDRESS", "${MY_DISK}/tara", "$MY_DISK/keys"), "tcp://127.0.0.1:5000")

    assert found == {"host": "127.0.0.9", "data_dir": "/disk7/tara", "keys": "/disk7/keys"}


def test_a_variable_that_a_host_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)

    with pytest.raises(
        ConfigurationError, match=r"container_dir = \$NOT_THERE/x: .* NOT_THERE is not set on this host"
    ):
        expand("container_dir", "$NOT_THERE/x")


def test_auto_is_the_address_that_faces_the_registry() -> None:
    assert here(Spec("auto"), "tcp://127.0.0.1:5000")["host"] == "127.0.0.1"


def test_an_open_address_without_keys_is_refused_on_the_host_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings could not know what the variable stands for there."""
    monkeypatch.setenv("MY_ADDRESS", "10.1.2.3")

    with pytest.raises(NeedsKeys, match=r"10\.1\.2\.3"):
        here(Spec("$MY_ADDRESS"), "tcp://127.0.0.1:5000")
    assert here(Spec("$MY_ADDRESS", keys="/keys"), "tcp://127.0.0.1:5000")["host"] == "10.1.2.3"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("127.0.0.1.example.org", False),
        ("", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_paths_travel_without_a_working_directory_but_with_their_variables() -> None:
    assert same_everywhere("data") == str(Path("data").resolve())
    assert same_everywhere("$DISK/data") == "$DISK/data"
    assert same_everywhere("") == ""


class Containers:
    """Plays containers that register from anywhere."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._frames = Frames(registry.address)

    def register(self, container: int, server: str, journal: str, fresh: str, starts: bool = True) -> control.Welcome:
        """Of one that does not start, nothing more is heard."""
        state, address = self._registry.state, f"tcp://{server}:{1000 + container}"
        register = control.Register(container, 1, address, address, state.cluster, state.era, "host")
        register.journal, register.fresh_journal = journal, fresh
        self._frames.send(control.encode(register))
        welcome: control.Welcome = self._hear(control.Welcome)
        if starts and (welcome.genesis or welcome.journal != journal):
            self._frames.send(control.encode(control.Founded(container, welcome.life, welcome.journal, welcome.token)))
            self._hear(control.Go)
        return welcome

    def _hear(self, kind: type[Any]) -> Any:
        while True:
            message = control.decode(self._frames.receive())
            if isinstance(message, kind):
                return message

    def close(self) -> None:
        self._frames.close()


@pytest.fixture
def stderr() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def registry(tmp_path: Path, stderr: io.StringIO) -> Iterator[Registry]:
    running = Registry(settings_for(tmp_path / "data", master="spark://127.0.0.1:7077"), stderr)
    yield running
    running.stop()


@pytest.fixture
def containers(registry: Registry) -> Iterator[Containers]:
    playing = Containers(registry)
    yield playing
    playing.close()


def test_a_journal_is_good_only_if_it_was_written_last(registry: Registry, containers: Containers) -> None:
    first = containers.register(0, "127.0.0.2", "", "a")
    again = containers.register(0, "127.0.0.2", "a", "b")
    moved = containers.register(0, "127.0.0.3", "", "c")
    stale = containers.register(0, "127.0.0.2", "a", "d")
    after = containers.register(0, "127.0.0.2", "d", "e")

    kept = [(welcome.keep_journal, welcome.journal) for welcome in (first, again, moved, stale, after)]
    assert kept == [(True, "a"), (True, "a"), (False, "c"), (False, "d"), (True, "d")]
    assert registry.state.servers[0] == "127.0.0.2"


def test_a_start_that_came_to_nothing_does_not_cost_a_journal(registry: Registry, containers: Containers) -> None:
    """The disk was not there for a moment, or the container was on another server, but could not begin there."""
    containers.register(0, "127.0.0.2", "", "a")
    failed = containers.register(0, "127.0.0.3", "", "b", starts=False)

    back = containers.register(0, "127.0.0.2", "a", "c")

    assert (failed.keep_journal, back.keep_journal, back.journal) == (False, True, "a")
    assert registry.state.servers[0] == "127.0.0.2"


def test_two_sites_on_one_server_show(registry: Registry, containers: Containers, stderr: io.StringIO) -> None:
    containers.register(0, "127.0.0.2", "", "a")
    containers.register(1, "127.0.0.3", "", "b")
    assert "shared_server" not in stderr.getvalue()

    containers.register(2, "127.0.0.3", "", "c")

    assert "shared_server" in stderr.getvalue()
    assert [registry.sharing(container) for container in range(3)] == [[], [2], [1]]
    assert [container["server"] for container in registry.status()["containers"]][1:] == ["127.0.0.3", "127.0.0.3"]
