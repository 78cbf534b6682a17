"""Which checkpoint directories are taken, without Spark."""

from pathlib import Path

import msgspec
import pytest

from tara.protocol.errors import ConfigurationError
from tara.storage.files import write_small
from tara.streaming import checkpoint, seats
from tara.streaming.config import StreamingConfig
from tara.streaming.errors import StreamingError


@pytest.fixture
def config(tmp_path: Path) -> StreamingConfig:
    return StreamingConfig(checkpoint=str(tmp_path / "checkpoint"))


def begin(config: StreamingConfig) -> None:
    offsets = checkpoint.spark_directory(config) / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1")


def test_a_new_directory_is_taken_and_goes_on(config: StreamingConfig) -> None:
    checkpoint.claim(config)
    assert not checkpoint.has_begun(config)
    begin(config)
    checkpoint.claim(config)
    assert checkpoint.has_begun(config)


def test_a_directory_with_states_of_the_old_kind_is_refused(config: StreamingConfig) -> None:
    begin(config)
    with pytest.raises(ConfigurationError, match=r"older version of Tara.*start with a new checkpoint directory"):
        checkpoint.claim(config)
    with pytest.raises(ConfigurationError, match="older version"):
        checkpoint.claim(config)


def test_a_directory_of_another_format_is_refused(config: StreamingConfig) -> None:
    checkpoint.claim(config)
    path = Path(config.checkpoint) / checkpoint.FILE
    write_small(path, msgspec.json.encode(checkpoint.Format(seats.FORMAT_VERSION + 1, 1)))
    with pytest.raises(ConfigurationError, match=f"format version {seats.FORMAT_VERSION + 1}, but"):
        checkpoint.claim(config)


def test_a_directory_with_another_f_is_refused(config: StreamingConfig) -> None:
    checkpoint.claim(config)
    with pytest.raises(ConfigurationError, match="was begun with f = 1, not 2"):
        checkpoint.claim(msgspec.structs.replace(config, f=2))


def test_a_damaged_file_is_named(config: StreamingConfig) -> None:
    checkpoint.claim(config)
    path = Path(config.checkpoint) / checkpoint.FILE
    path.write_bytes(b"x" + path.read_bytes())
    with pytest.raises(StreamingError, match=f"{path}: damaged"):
        checkpoint.claim(config)
