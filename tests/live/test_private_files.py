"""What a cluster keeps is for its user only, whatever the umask: the state of its clients, and their passwords."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tara.configuration.settings import load_settings
from tara.live.spark import Cluster
from tara.operations.backup import back_up, restore
from tests.live.test_backup import cluster_with_checkpoints, settings_for
from tests.patience import await_condition, patient

pytestmark = pytest.mark.spark


@pytest.fixture
def _generous() -> Iterator[None]:
    """Without precautions, everybody could read what is made."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, str]:
    """What others may do something with."""
    found = [directory, *directory.rglob("*")]
    return {
        str(path.relative_to(directory.parent)): oct(stat.S_IMODE(path.lstat().st_mode))
        for path in found
        if path.lstat().st_mode & 0o077
    }


@pytest.mark.usefixtures("_generous")
def test_what_a_cluster_keeps_is_private(tmp_path: Path) -> None:
    data, disk = tmp_path / "data", tmp_path / "a" / "disk"
    flags = {"data_dir": str(data), "container_dir": str(disk), "checkpoint_interval": 64, "window": 512}
    flags["base_bytes_min"] = 1_000
    cluster = Cluster(load_settings(environment={}, flags=flags))
    cluster.start()
    try:
        with patient(",".join(cluster.registry.endpoints)) as client:
            for number in range(200):
                client.put(f"key-{number}", b"value")
        await_condition(lambda: len(list(disk.glob("bases-*/*.base"))) >= 2, "bases")
    finally:
        cluster.stop()
    assert len(list(disk.rglob("*"))) > 10
    assert len(list(data.rglob("*"))) > 3
    assert modes(data) == {}
    assert modes(tmp_path / "a") == {}


@pytest.mark.usefixtures("_generous")
def test_a_backup_and_a_restored_directory_are_private(tmp_path: Path) -> None:
    cluster_with_checkpoints(tmp_path / "data")
    file, restored = tmp_path / "file.backup", tmp_path / "restored"
    back_up(tmp_path / "data", file)
    restore(file, settings_for(restored))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(list(restored.rglob("*"))) > 6
    assert modes(restored) == {}
