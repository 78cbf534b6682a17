"""The cluster's identity on disk."""

import shutil
import stat
from pathlib import Path

import pytest

from tara.configuration.settings import Settings, load_settings
from tara.configuration.state import COPY_FILE, STATE_FILE, ClusterState, StateFile, new_state, unpack_state
from tara.protocol.errors import ConfigurationError


def settings_for(directory: Path) -> Settings:
    return load_settings(environment={}, flags={"data_dir": str(directory)})


def written(directory: Path) -> ClusterState:
    state = new_state(settings_for(directory))
    state.lives, state.founded = [17, 16, 18], [True] * 3
    StateFile(directory).write(state)
    return state


def test_every_bit_is_under_the_checksum(tmp_path: Path) -> None:
    written(tmp_path)
    whole = (tmp_path / STATE_FILE).read_bytes()
    assert unpack_state(whole).state.lives == [17, 16, 18]
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ConfigurationError):
            unpack_state(bytes(changed))


@pytest.mark.parametrize("name", [STATE_FILE, COPY_FILE])
@pytest.mark.parametrize("contents", [None, b"", b"{}", b"damaged"])
def test_one_damaged_file_costs_nothing(tmp_path: Path, name: str, contents: bytes | None) -> None:
    state = written(tmp_path)
    path = tmp_path / name
    if contents is None:
        path.unlink()
    else:
        path.write_bytes(contents)
    file = StateFile(tmp_path)
    assert file.read() == state
    assert [name in problem for problem in file.problems] == [True]
    file = StateFile(tmp_path)
    assert file.open(settings_for(tmp_path)).lives == [17, 16, 18]
    assert len(file.problems) == 1
    again = StateFile(tmp_path)
    again.read()
    assert again.problems == []
    kept = list((tmp_path / "damaged").iterdir()) if (tmp_path / "damaged").exists() else []
    assert [path.read_bytes() for path in kept] == ([] if contents is None else [contents])


def test_an_older_copy_is_noticed_and_does_not_count(tmp_path: Path) -> None:
    state = written(tmp_path)
    shutil.copy(tmp_path / STATE_FILE, tmp_path / "older")
    state.lives = [20, 20, 20]
    StateFile(tmp_path).write(state)
    StateFile(tmp_path).write(state)
    for name in (STATE_FILE, COPY_FILE):
        shutil.copy(tmp_path / name, tmp_path / "newer")
        shutil.copy(tmp_path / "older", tmp_path / name)
        file = StateFile(tmp_path)
        assert file.read().lives == [20, 20, 20]
        assert file.problems == [f"{tmp_path / name}: is older than it was"]
        shutil.copy(tmp_path / "newer", tmp_path / name)


def test_with_both_files_damaged_it_says_what_to_do(tmp_path: Path) -> None:
    written(tmp_path)
    for name in (STATE_FILE, COPY_FILE):
        (tmp_path / name).write_bytes(b"{")
    with pytest.raises(ConfigurationError, match=r"Put any older copy of cluster\.json back"):
        StateFile(tmp_path).read()


def test_files_are_for_their_user_only(tmp_path: Path) -> None:
    written(tmp_path / "data")
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").iterdir()} == {0o600}


def test_an_older_format_is_refused_clearly(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text('{"cluster": 7, "era": 1}')
    with pytest.raises(ConfigurationError, match="is of format version 1; this Tara reads 3"):
        StateFile(tmp_path).read()


def test_nothing_is_founded_in_a_directory_that_is_there_without_being_told(tmp_path: Path) -> None:
    """It may be the place where a disk should be mounted."""
    with pytest.raises(ConfigurationError, match="--found"):
        StateFile(tmp_path).require_founding(False)
    assert list(tmp_path.iterdir()) == []
    StateFile(tmp_path).require_founding(True)
    StateFile(tmp_path / "new").require_founding(False)
    written(tmp_path)
    StateFile(tmp_path).require_founding(False)


@pytest.mark.parametrize("trace", ["journal-0/0000000001.journal", "bases-1/000000000001.base", "life-2"])
def test_nothing_is_founded_beside_what_a_cluster_has_left(tmp_path: Path, trace: str) -> None:
    (tmp_path / trace).parent.mkdir(exist_ok=True)
    (tmp_path / trace).write_bytes(b"something")
    with pytest.raises(ConfigurationError, match=r"cluster\.json is missing, but .* is here"):
        StateFile(tmp_path).open(settings_for(tmp_path))
