"""Files that are there as a whole or not at all, and what becomes of damaged ones."""

import os
import stat
from pathlib import Path

import pytest

from tara.storage import files
from tara.storage.disk import LOCAL, LocalDisk
from tara.storage.lives import Lives, lives_path, read_lives, write_lives
from tara.storage.pacer import UNSYNCED_BYTES_MAX


def test_a_file_is_written_as_a_whole_and_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "made" / "for" / "it"
    LOCAL.make_directory(path.parent)
    files.write_whole(path, [b"a", b"b" * (UNSYNCED_BYTES_MAX + 1), b"c"])
    assert path.stat().st_size == UNSYNCED_BYTES_MAX + 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(parent.stat().st_mode) for parent in (path.parent, path.parent.parent)} == {0o700}


def test_directories_that_are_made_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut takes all that was synced in them."""
    synced: list[Path] = []
    monkeypatch.setattr(LocalDisk, "sync_directory", lambda disk, directory: synced.append(directory))
    for _ in range(2):
        LOCAL.make_directory(tmp_path / "data" / "log-0")
    assert synced == [tmp_path, tmp_path / "data"]


def test_what_could_not_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.write_whole(path, [b"after"])
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("file", b"before")]


def test_what_is_set_aside_is_kept_in_a_bounded_number(tmp_path: Path) -> None:
    for number in range(files.DAMAGED_KEPT + 3):
        (tmp_path / "file").write_text(str(number))
        target = files.set_aside(tmp_path / "file")
        assert target.read_text() == str(number)
    kept = sorted((tmp_path / files.DAMAGED).iterdir())
    assert [path.read_text() for path in kept] == ["3", "4", "5", "6"]


LIVES = Lives(cluster=7, era=1, container=2, life=17, begun=True)


def test_lives_come_back(tmp_path: Path) -> None:
    write_lives(tmp_path, LIVES)
    assert read_lives(tmp_path, 7, 1, 2) == LIVES
    assert read_lives(tmp_path, 7, 2, 2) == Lives(cluster=7, era=2, container=2)
    assert read_lives(tmp_path, 7, 1, 1) == Lives(cluster=7, era=1, container=1)


def test_every_bit_of_a_small_file_is_under_its_checksum(tmp_path: Path) -> None:
    write_lives(tmp_path, LIVES)
    path = lives_path(tmp_path, 2)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(files.DamagedFile):
            read_lives(tmp_path, 7, 1, 2)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(files.DamagedFile):
            read_lives(tmp_path, 7, 1, 2)
