"""The scrub of a data directory; and the states of replicas that run, compared."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tara.application import KeyValueStore
from tara.cli import app
from tara.client.secrets import kept_secret
from tara.configuration.state import COPY_FILE, OPERATOR_SECRET, STATE_FILE, operator_secret
from tara.live.sites.joining import FOUNDING_FILE
from tara.operations.registry_client import NoRegistry
from tara.operations.running_states import compare_states
from tara.operations.verify import verify
from tara.protocol.errors import ConfigurationError
from tara.storage.files import write_small
from tara.storage.journal import MARKER_FILE
from tests.live.processes import Processes, settings_for
from tests.patience import await_condition, patient


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a cluster that has run, with checkpoints and a log."""
    directory = tmp_path_factory.mktemp("verify") / "data"
    settings = settings_for(directory, base_bytes_min=1_000)
    with Processes(settings, log=True) as cluster, patient(cluster.endpoints) as client:
        for number in range(200):
            client.put(f"key-{number}", b"value")
        await_condition(lambda: min(e["stable"] for e in cluster.registry.executors()) >= 2, "checkpoints")
        await_condition(lambda: all(e["bases"] for e in cluster.registry.executors()), "bases")
    # Of what not every cluster has.
    kept_secret(operator_secret(directory))
    write_small(directory / FOUNDING_FILE, b"ab" * 16)
    write_small(directory / "gateway-0.port", b"2181")
    return directory


def test_what_is_intact_is_found_so(data: Path) -> None:
    scrub = verify(data)
    assert scrub.damaged == []
    names = {Path(report.path).name.split("-")[0] for report in scrub.files}
    assert {STATE_FILE, COPY_FILE, "life", "journal", MARKER_FILE, "log", "begin"} <= names
    kinds = {Path(report.path).suffix for report in scrub.files}
    assert {".journal", ".base", ".segment"} <= kinds


PATTERNS = [
    STATE_FILE,
    COPY_FILE,
    "life-1",
    OPERATOR_SECRET,
    FOUNDING_FILE,
    "gateway-0.port",
    "journal-1/*.journal",
    f"journal-1/{MARKER_FILE}",
    "bases-1/*.base",
    "log-1/*.segment",
    "log-1/begin",
]
#: Nothing says that there was one.
UNKNOWN = ("life-1", OPERATOR_SECRET, FOUNDING_FILE, "gateway-0.port", "bases-1/*.base", "log-1/begin")


@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        (pattern, how)
        for pattern in PATTERNS
        for how in ("flip", "cut", "remove")
        if how != "remove" or pattern not in UNKNOWN
    ],
)
def test_what_is_damaged_is_named(data: Path, tmp_path: Path, pattern: str, how: str) -> None:
    directory = tmp_path / "data"
    shutil.copytree(data, directory)
    path = sorted(directory.glob(pattern))[0]
    whole = path.read_bytes()
    match how:
        case "flip":
            path.write_bytes(whole[:20] + bytes([whole[20 % len(whole)] ^ 1]) + whole[21:])
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "remove":
            path.unlink()
    damaged = [report.path for report in verify(directory).damaged]
    named = str(path) if how != "remove" else str(path if path.parent == directory else path.parent)
    assert named in damaged or str(path.parent) in damaged


def test_the_command_says_it_with_its_status(data: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(data, directory)
    found = CliRunner().invoke(app, ["verify", "--data-dir", str(directory), "--json"])
    assert (found.exit_code, json.loads(found.output)["damaged"]) == (0, 0)
    (directory / STATE_FILE).write_text("{}")
    found = CliRunner().invoke(app, ["verify", "--data-dir", str(directory)])
    assert found.exit_code == 1
    assert STATE_FILE in found.output


def test_a_directory_without_a_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no cluster here"):
        verify(tmp_path)
    with pytest.raises(ConfigurationError, match="no such directory"):
        verify(tmp_path / "nowhere")


class Different(KeyValueStore):
    """No replica holds what another one holds, and no answer shows it."""

    concurrent_snapshot = False

    def snapshot(self) -> Iterator[bytes]:
        yield b"%d" % os.getpid()
        yield from super().snapshot()


def test_equal_states_are_found_equal(tmp_path: Path) -> None:
    with Processes(settings_for(tmp_path)) as cluster, patient(cluster.endpoints) as client:
        client.put("city", b"Erlangen")
        first = compare_states(tmp_path)
        said = CliRunner().invoke(app, ["verify", "--running", "--data-dir", str(tmp_path), "--json"])

        assert first.equal
        assert set(first.digests) == {"executor-0", "executor-1", "executor-2"}
        again = json.loads(said.output)
        assert (said.exit_code, again["equal"]) == (0, True)
        assert again["checkpoint"] > first.checkpoint
        # Each was asked for once.
        assert [cluster.status(site)["counters"]["bases_saved"] for site in range(3)] == [2, 2, 2]


def test_states_that_differ_are_found_though_no_answer_does(tmp_path: Path) -> None:
    with (
        Processes(settings_for(tmp_path, app=f"{__name__}:Different")) as cluster,
        patient(cluster.endpoints) as client,
    ):
        client.put("city", b"Erlangen")
        said = CliRunner().invoke(app, ["verify", "--running", "--data-dir", str(tmp_path)])

        assert said.exit_code == 1
        *told, verdict = said.output.splitlines()
        assert len({line.split(": ")[1] for line in told}) == 3
        assert "NOT" in verdict


def test_a_replica_that_does_not_tell_is_missing(tmp_path: Path) -> None:
    with Processes(settings_for(tmp_path)) as cluster:
        cluster.kill(2)
        found = compare_states(tmp_path, timeout_s=10.0)

        assert not found.equal
        assert [label for label, digest in found.digests.items() if digest is None] == ["executor-2"]


def test_a_cluster_that_does_not_run_has_no_states_to_compare(data: Path) -> None:
    with pytest.raises(NoRegistry, match="does not run"):
        compare_states(data)
