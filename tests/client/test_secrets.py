"""Secrets in files: made once, for their owner only."""

from pathlib import Path

import pytest

from tara.client.secrets import kept_secret, read_secret
from tara.protocol.errors import ConfigurationError
from tara.storage.files import pack_small


def test_a_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = kept_secret(path)
    assert len(made) == 16
    assert kept_secret(path) == read_secret(path) == made
    assert kept_secret(tmp_path / "other") != made
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(found.name for found in tmp_path.iterdir()) == ["other", "secret"]


def test_two_who_make_it_at_once_have_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    first = kept_secret(path)
    # The other one had looked before the file was there.
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert kept_secret(path) == first
    assert [found.name for found in tmp_path.iterdir()] == ["secret"]


def test_a_secret_that_others_can_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    kept_secret(path)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="mode 0640"):
        read_secret(path)


@pytest.mark.parametrize("content", [b"", b"abcd", b"no hexadecimal digits here, but long enough", b"ab" * 65])
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(pack_small(content))
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="is no secret"):
        read_secret(path)


@pytest.mark.parametrize("place", [0, 31, 32, -1])
def test_a_damaged_secret_is_named(tmp_path: Path, place: int) -> None:
    path = tmp_path / "secret"
    kept_secret(path)
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ConfigurationError, match=f"{path}: is damaged: .* Put a copy of it back"):
        kept_secret(path)


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be made"):
        kept_secret(tmp_path / "nowhere" / "secret")
