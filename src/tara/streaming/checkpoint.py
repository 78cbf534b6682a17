"""The checkpoint directory of a query: whose it is, and in which format.

Beside what Spark keeps in `spark/`, and the feedback queue in `queue/`, it has a file that says which format the nodes'
states have. It is there before the query's first micro-batch, so a directory that has micro-batches without such a file
is from before it, and nobody tries to read what its states are.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from tara.protocol.errors import ConfigurationError
from tara.storage.files import DamagedFile, read_small, write_small
from tara.streaming import seats
from tara.streaming.config import StreamingConfig
from tara.streaming.errors import NO_WAY_ON, StreamingError

FILE = "format"


class Format(Struct, frozen=True):
    """What must not change over the life of a checkpoint directory."""

    states: int
    f: int


def spark_directory(config: StreamingConfig) -> Path:
    return Path(config.checkpoint).absolute() / "spark"


def queue_directory(config: StreamingConfig) -> Path:
    return Path(config.checkpoint) / "queue"


def has_begun(config: StreamingConfig) -> bool:
    """Whether there is a micro-batch in it."""
    return any((spark_directory(config) / "offsets").glob("[0-9]*"))


def claim(config: StreamingConfig) -> None:
    """Refuse a directory of another format or with another f; note those of a new one."""
    path = Path(config.checkpoint) / FILE
    mine = Format(seats.FORMAT_VERSION, config.f)
    try:
        found = msgspec.json.decode(read_small(path), type=Format)
    except FileNotFoundError:
        if has_begun(config):
            raise ConfigurationError(
                f"{config.checkpoint}: is the checkpoint of an older version of Tara, whose states cannot be read any "
                "more: start with a new checkpoint directory and a new results directory"
            ) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        write_small(path, msgspec.json.encode(mine))
        return
    except (DamagedFile, msgspec.DecodeError) as error:
        raise StreamingError(f"{path}: damaged ({error}): {NO_WAY_ON}") from error
    if found.states != mine.states:
        raise ConfigurationError(
            f"{config.checkpoint}: its states have format version {found.states}, but this version of Tara has "
            f"{mine.states}: start with a new checkpoint directory and a new results directory"
        )
    if found.f != mine.f:
        raise ConfigurationError(
            f"{config.checkpoint}: was begun with f = {found.f}, not {mine.f}: go on with that, or start with a new "
            "checkpoint directory"
        )
