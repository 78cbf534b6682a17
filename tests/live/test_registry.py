"""The registry's side of the control plane, with real sockets and files: who may ask it, and what it survives."""

import io
import json
import os
import re
import socket as sockets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from tara.cli.listing import _alarms, status_tables
from tara.configuration.settings import load_settings, shape_of
from tara.configuration.state import StateFile
from tara.host.latency import BOUNDS_S
from tara.live import control
from tara.live import registry as registry_module
from tara.live.observability import prometheus
from tara.live.observability.prometheus import COUNTERS, HISTOGRAMS, READERS_MAX
from tara.live.recent_demand import RecentDemand
from tara.live.registry import Registry, RegistryFailed
from tara.live.spark import Cluster
from tara.operations.registry_client import NoRegistry, RegistryRefused, StillUp, ask, await_down
from tara.protocol.errors import ConfigurationError
from tests.frames import Frames
from tests.live.processes import settings_for
from tests.patience import DEADLINE_S, await_condition


class Member:
    """Plays a container."""

    def __init__(self, registry: Registry) -> None:
        self._frames = Frames(registry.address)
        self._registry = registry
        self.token = b""

    def send(self, data: bytes) -> None:
        self._frames.send(data)

    def say(self, message: control.Message) -> None:
        if isinstance(message, control.Founded | control.Heartbeat):
            message = msgspec.structs.replace(message, token=self.token)
        self.send(control.encode(message))

    def hear(self, kind: type[Any]) -> Any:
        while True:
            message = control.decode(self._frames.receive())
            if isinstance(message, control.Welcome):
                self.token = message.token
            if isinstance(message, kind):
                return message

    def register(self, container: int = 0, **changes: Any) -> None:
        state = self._registry.state
        address = f"tcp://127.0.0.1:{1000 + container}"
        usual = {"cluster": state.cluster, "era": state.era}
        self.say(control.Register(container, os.getpid(), address, address, **(usual | changes)))

    def close(self) -> None:
        self._frames.close()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    running = Registry(settings_for(tmp_path / "data"))
    yield running
    running.stop()


@pytest.fixture
def member(registry: Registry) -> Iterator[Member]:
    playing = Member(registry)
    yield playing
    playing.close()


def events(registry: Registry) -> list[str]:
    path = Path(registry.settings.data_dir) / "logs" / "registry.log"
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_lives_rise_and_genesis_happens_once(registry: Registry, member: Member) -> None:
    member.register()
    first = member.hear(control.Welcome)
    member.say(control.Founded(0, first.life))
    member.hear(control.Go)
    member.register()
    second = member.hear(control.Welcome)

    assert (first.life, first.genesis, first.short_lives) == (1, True, 0)
    assert (second.life, second.genesis, second.short_lives) == (2, False, 1)
    assert events(registry)[-2:] == ["registered", "restarted"]


def test_a_container_that_knows_more_than_the_registry_is_believed(registry: Registry, member: Member) -> None:
    """An older copy of `cluster.json` was put back: no life is handed out twice, and nobody is founded again."""
    member.register(life=17, begun=True, journal="its own", fresh_journal="fresh")
    welcome = member.hear(control.Welcome)

    assert (welcome.life, welcome.genesis) == (18, False)
    assert (welcome.keep_journal, welcome.journal) == (True, "its own")
    assert "older_state" in events(registry)
    member.register(life=18, begun=True, journal="its own", fresh_journal="fresh")
    assert member.hear(control.Welcome).life == 19
    assert events(registry).count("older_state") == 1


def test_nobody_speaks_for_a_container_and_hears_instead_of_it(registry: Registry, member: Member) -> None:
    """It would take its driver for gone, and end; and its journal would not be its journal any more."""
    # Nor before it has registered here: its life may be known from a former driver.
    member.say(control.Founded(0, registry.state.lives[0], "theirs"))
    member.register()
    life = member.hear(control.Welcome).life
    stranger = Member(registry)
    for token in (b"", bytes(16), os.urandom(16)):
        stranger.token = token
        stranger.say(control.Founded(0, life, "theirs"))
        stranger.say(control.Heartbeat(0, life, msgspec.json.encode(REPORT)))
    stranger.say(control.AskStatus())
    stranger.hear(control.Answer)
    assert registry.messages_bad == 7
    assert (registry.state.journals[0], registry.state.founded[0]) == ("", False)
    assert registry.members[0].status == {}
    for _ in range(2):
        member.hear(control.Addresses)
    stranger.close()


def test_a_first_start_that_was_not_complete_is_tried_again(registry: Registry, member: Member) -> None:
    member.register()
    member.hear(control.Welcome)
    member.register(life=1, begun=False, journal="half", fresh_journal="fresh")

    assert member.hear(control.Welcome).genesis
    assert "older_state" not in events(registry)


def _has_begun(registry: Registry, life: int) -> bool:
    return registry.state.begun[0] == life


def test_a_directory_that_does_not_know_a_life_that_ran_is_an_older_copy(registry: Registry, member: Member) -> None:
    """Put back from a snapshot, say: it lacks the votes that were cast since."""
    journal: dict[str, Any] = {"journal": "name", "fresh_journal": "fresh"}
    member.register(**journal)
    for life in (1, 2):
        welcome = member.hear(control.Welcome)
        assert (welcome.life, welcome.keep_journal) == (life, True)
        member.say(control.Founded(0, life, "name"))
        member.hear(control.Go)
        member.say(control.Heartbeat(0, life, msgspec.json.encode(REPORT)))
        await_condition(partial(_has_begun, registry, life), "the life to be on record")
        member.register(life=life, begun=True, **journal)
    member.hear(control.Welcome)
    member.register(life=1, begun=True, **journal)
    welcome = member.hear(control.Welcome)

    assert (welcome.keep_journal, welcome.journal) == (False, "fresh")
    assert "older_directory" in events(registry)


#: Of a container without a node, which has done nothing.
REPORT = {
    "partitions": {},
    "lives": [],
    "nodes": {},
    "process": {"rss_bytes": 1, "cpu_s": 0.1},
    "counters": {**dict.fromkeys((name for name, *_ in COUNTERS), 0), "halted": {}},
    "histograms": {name: {"counts": [0] * (len(BOUNDS_S) + 1), "sum_s": 0.0} for name, *_ in HISTOGRAMS},
}


def test_a_life_is_short_by_how_long_it_was_heard_of(
    registry: Registry, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by how soon the next one begins: a container that fails waits longer and longer before it ends."""
    monkeypatch.setattr(registry_module, "SHORT_LIFE_S", 0.1)
    member.register()
    member.hear(control.Welcome)
    await_condition(lambda: registry.silent_s()[0] > 0.1, "a silence that is longer than a short life")
    member.register()
    second = member.hear(control.Welcome)
    await_condition(lambda: registry.silent_s()[0] > 0.1, "a silence that is longer than a short life")
    member.say(control.Heartbeat(0, second.life, msgspec.json.encode(REPORT)))
    member.register()
    third = member.hear(control.Welcome)

    assert (second.short_lives, third.short_lives) == (1, 0)


@pytest.mark.parametrize(("container", "changes"), [(0, {"cluster": 5}), (99, {}), (-1, {})])
def test_a_container_of_another_cluster_is_refused(
    registry: Registry, member: Member, container: int, changes: dict[str, Any]
) -> None:
    member.register(container, **changes)

    assert f"cluster {registry.state.cluster:x}" in member.hear(control.Refuse).reason
    assert registry.state.lives == [0, 0, 0]


def test_nonsense_does_not_stop_the_registry(registry: Registry, member: Member) -> None:
    member.register()
    life = member.hear(control.Welcome).life
    for data in (b"", b"\xc1", b"\x93\x05\x00\x01", control.encode(control.Heartbeat(0, life, b"{"))):
        member.send(data)
    member.say(control.Heartbeat(77, 1, b"{}"))
    member.say(control.Founded(-5, 0))
    member.say(control.AskStatus())

    answer = member.hear(control.Answer)
    assert answer.ok
    assert msgspec.json.decode(answer.body)["cluster"] == f"{registry.state.cluster:x}"
    assert events(registry).count("bad_control_message") == 1


@pytest.mark.parametrize("report", [b"{", b"[]", b"{}", b'{"counters": {}}', b"\xff", b"[" * 100_000])
def test_a_report_that_makes_no_sense_is_not_believed(registry: Registry, member: Member, report: bytes) -> None:
    member.register()
    life = member.hear(control.Welcome).life
    member.say(control.Heartbeat(0, life, report))
    member.say(control.AskStatus())

    assert member.hear(control.Answer).ok
    assert registry.messages_bad == 1
    assert registry.members[0].status == {}
    assert not registry.down.is_set()


def test_a_question_for_another_cluster_is_refused(tmp_path: Path, registry: Registry) -> None:
    """A state file may name a port that another cluster's registry has got since."""
    other = StateFile(tmp_path / "other")
    state = other.open(load_settings(environment={}))
    state.registry = registry.address
    other.write(state)

    for question in (control.AskStatus(), control.AskKill("site-0"), control.AskDown()):
        with pytest.raises(RegistryRefused, match=f"registry of cluster {registry.state.cluster:x}"):
            ask(tmp_path / "other", question)
    assert not registry.down.is_set()


def test_a_state_that_cannot_be_written_is_not_handed_out(registry: Registry, member: Member) -> None:
    directory = Path(registry.settings.data_dir)
    blocker = directory / f"cluster.json.{os.getpid()}.tmp"
    blocker.mkdir()
    member.register()
    await_condition(lambda: "state_not_written" in events(registry), "the failed write to be told")
    blocker.rmdir()
    member.register()

    assert member.hear(control.Welcome).life == 2
    assert StateFile(directory).read().lives[0] == 2


def test_one_data_directory_has_one_cluster(tmp_path: Path, registry: Registry) -> None:
    with pytest.raises(ConfigurationError, match="a cluster runs here already"):
        Registry(registry.settings)
    registry.stop()
    Registry(registry.settings).stop()


def test_a_data_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(ConfigurationError, match=r"data_dir = .*file/data: cannot be used: Not a directory"):
        Registry(settings_for(tmp_path / "file" / "data"))


def test_a_metrics_port_in_use_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with sockets.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"metrics_port = {port}: cannot be bound"):
            Registry(settings_for(tmp_path, metrics_port=port))
    Registry(settings_for(tmp_path)).stop()


def test_the_metrics_answer_before_anybody_has_registered(registry: Registry) -> None:
    with urllib.request.urlopen(registry.metrics_address, timeout=DEADLINE_S) as answer:
        assert 'tara_up{container="site-2"} 0' in answer.read().decode()


def test_readers_of_the_metrics_are_bounded(registry: Registry) -> None:
    port = int(registry.metrics_address.split(":")[2].split("/")[0])
    idle = [sockets.create_connection(("127.0.0.1", port)) for _ in range(READERS_MAX)]
    with sockets.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as turned_away:
        assert turned_away.recv(1) == b""
    for connection in idle:
        connection.close()

    def answers() -> bool:
        try:
            with urllib.request.urlopen(registry.metrics_address, timeout=DEADLINE_S) as answer:
                return answer.status == 200
        except OSError:
            return False

    await_condition(answers, "room for a reader again")


def test_a_reader_that_sends_a_byte_now_and_then_is_given_up(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "READER_TIMEOUT_S", 1.0)
    port = int(registry.metrics_address.split(":")[2].split("/")[0])
    slow = [sockets.create_connection(("127.0.0.1", port), timeout=3) for _ in range(READERS_MAX)]

    def given_up() -> bool:
        for connection in slow:
            try:
                connection.sendall(b"G")
            except OSError:
                continue
        try:
            with urllib.request.urlopen(registry.metrics_address, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    await_condition(given_up, "room for a reader")
    for connection in slow:
        connection.close()


def test_a_cluster_that_does_not_run_is_told(tmp_path: Path) -> None:
    StateFile(tmp_path).open(load_settings(environment={}))

    with pytest.raises(NoRegistry, match="does not run"):
        ask(tmp_path, control.AskStatus())


def test_down_is_down_when_the_directory_is_free(registry: Registry) -> None:
    directory = Path(registry.settings.data_dir)
    with pytest.raises(StillUp, match="has not ended"):
        await_down(directory, timeout_s=0.3)
    registry.stop()
    await_down(directory, timeout_s=DEADLINE_S)
    await_down(directory, timeout_s=DEADLINE_S)


def test_warnings_of_containers_are_shown(tmp_path: Path) -> None:
    stderr = io.StringIO()
    registry = Registry(settings_for(tmp_path), stderr)
    member = Member(registry)
    member.say(control.Warned(0, [b'{"event":"halted"}']))
    await_condition(lambda: "halted" in stderr.getvalue(), "the warning")
    member.close()
    registry.stop()


def test_a_full_disk_under_stderr_does_not_end_the_registry(tmp_path: Path) -> None:
    with open("/dev/full", "w") as stderr:
        registry = Registry(settings_for(tmp_path), stderr)
        member = Member(registry)
        for life in (1, 2, 3):
            # Each one after the first is a restart, of which a warning is shown.
            member.register()
            assert member.hear(control.Welcome).life == life
        member.say(control.Warned(0, [b'{"event":"halted"}']))
        member.say(control.AskStatus())
        status = msgspec.json.decode(member.hear(control.Answer).body)

        assert not registry.down.is_set()
        assert status["log_errors"] == 3
        assert any("LOG the driver" in str(part) for part in status_tables(status))
        with urllib.request.urlopen(registry.metrics_address, timeout=DEADLINE_S) as answer:
            assert "\ntara_driver_log_errors_total 3\n" in answer.read().decode()
        member.close()
        registry.stop()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), MemoryError()])
def test_a_registry_whose_thread_ends_takes_the_cluster_down(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr(registry, "_announce", broken)
    cluster = Cluster(registry.settings, registry=registry)

    with pytest.raises(RegistryFailed, match=re.escape(f"the thread `registry` ended: {error!r}")):
        cluster.wait()
    # Nobody waits for it to be written down: that may fail, too.
    await_condition(lambda: "registry_failed" in events(registry), "the event")


def test_a_metrics_thread_that_ends_is_shown(registry: Registry, member: Member) -> None:
    registry._metrics._server.shutdown()
    await_condition(lambda: registry.threads_ended, "the end to be noticed")
    member.say(control.AskStatus())
    status = msgspec.json.decode(member.hear(control.Answer).body)

    assert any("ENDED in the driver: the thread `metrics`" in str(part) for part in status_tables(status))
    assert "thread_ended" in events(registry)
    assert not registry.down.is_set()


#: A driver whose registry fails after a while, with a stderr that takes nothing. (It needs no Spark for that.)
FAILING_DRIVER = """
import sys
from tara import cli
from tara.live.registry import Registry, RegistryFailed
from tara.live.spark import Cluster
from tara.live.spark import Cluster

Cluster.start = lambda self, began_s: setattr(self.registry, "_announce", lambda: 1 / 0)
sys.argv = ["tara", "up", "--data-dir", sys.argv[1]]
cli.main()
"""


@pytest.mark.parametrize("stderr", ["/dev/full", "/dev/null", "said"])
def test_a_driver_whose_registry_fails_ends_with_a_status(tmp_path: Path, stderr: str) -> None:
    with (tmp_path / stderr).open("w") as output:
        command = [sys.executable, "-c", FAILING_DRIVER, str(tmp_path / "data")]
        done = subprocess.run(command, stderr=output, stdout=output, timeout=DEADLINE_S, check=False)

    assert done.returncode == 2
    if stderr == "said":
        said = (tmp_path / stderr).read_text()
        assert "tara: the thread `registry` ended: ZeroDivisionError" in said


def test_the_shape_stands_for_what_must_agree() -> None:
    def shape(**flags: Any) -> int:
        return shape_of(load_settings(environment={}, flags=flags))

    same = shape()
    assert shape(data_dir="elsewhere", controller_timeout_ms=500, metrics_port=9, durability="memory") == same
    others: list[dict[str, Any]] = [
        {"f": 2},
        {"partitions": 2},
        {"packing": "node"},
        {"app": "m:C"},
        {"window": 99_999},
        {"batch_size": 2},
    ]
    assert len({same, *(shape(**flags) for flags in others)}) == len(others) + 1
    with mock.patch.object(sys, "version_info", (3, 99, 0)):
        assert shape() != same
    with mock.patch.object(msgspec, "__version__", "99"):
        assert shape() != same


def test_executors_tell_digests_for_a_while_after_they_were_asked_for(registry: Registry, member: Member) -> None:
    assert not registry.with_digests()
    with mock.patch.object(registry, "_digests", RecentDemand(0.5)):
        member.say(control.AskStatus(digests=True))
        member.hear(control.Answer)
        assert registry.with_digests()
        await_condition(lambda: not registry.with_digests(), "the end of it")


@pytest.mark.parametrize("seconds", [-3_600, 3_600, 10 * 365 * 86_400])
def test_a_cluster_is_not_founded_with_clocks_that_differ(registry: Registry, member: Member, seconds: int) -> None:
    """The first request would fix the agreed time, for years perhaps."""
    member.register(clock_ms=int((time.time() + seconds) * 1e3))
    refused = member.hear(control.Refuse)
    assert re.search(r"its clock is \d+ s (ahead of|behind) the driver's", refused.reason)
    assert registry.state.lives[0] == 0
    member.register(clock_ms=int(time.time() * 1e3))
    assert member.hear(control.Welcome).life == 1


def test_a_wrong_clock_keeps_nobody_out_of_a_cluster_that_was_founded(registry: Registry, member: Member) -> None:
    registry.state.founded[0] = True
    member.register(clock_ms=int((time.time() + 3_600) * 1e3))
    assert member.hear(control.Welcome).life == 1


def test_an_agreed_time_that_is_far_ahead_shows() -> None:
    container = {"container": "site-0", "executor": {"time_ahead_ms": 7_200_000}, "counters": {}}
    status = {"threads_ended": [], "log_errors": 0, "containers": [container]}
    (alarm,) = _alarms(status)
    assert "7200 s ahead of the clock of site-0" in alarm
    container["executor"] = {"time_ahead_ms": 500}
    assert _alarms(status) == []
