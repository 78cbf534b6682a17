"""What a container knows of its own lives: the newest one, and whether it has ever begun, in a file of its own.

The registry hands lives out and keeps them in `cluster.json`. If an older copy of that is put back, it would hand the
same ones out again, or take a container that has promised something for a new one. The container tells it better.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from tara.storage.disk import LOCAL, Disk
from tara.storage.files import DamagedFile, read_small, write_small

FORMAT_VERSION = 1


class Lives(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = FORMAT_VERSION
    cluster: int
    era: int
    container: int
    #: The newest life; 0: none yet.
    life: int = 0
    #: Whether its first start was complete: whatever it has promised since is in its journal.
    begun: bool = False


def lives_path(data_dir: Path, container: int) -> Path:
    return data_dir / f"life-{container}"


def read_lives(data_dir: Path, cluster: int, era: int, container: int, disk: Disk = LOCAL) -> Lives:
    """What is known; nothing, if there is no such file or if it is of another cluster or era. `DamagedFile` if it is
    damaged."""
    unknown = Lives(cluster=cluster, era=era, container=container)
    path = lives_path(data_dir, container)
    try:
        known = msgspec.json.decode(read_small(path, disk), type=Lives)
    except FileNotFoundError:
        return unknown
    except msgspec.DecodeError as error:
        raise DamagedFile(f"{path}: {error}") from error
    if known.version != FORMAT_VERSION:
        raise DamagedFile(f"{path}: is of format version {known.version}; this Tara reads {FORMAT_VERSION}")
    return known if (known.cluster, known.era, known.container) == (cluster, era, container) else unknown


def write_lives(data_dir: Path, lives: Lives, disk: Disk = LOCAL) -> None:
    disk.make_directory(data_dir)
    write_small(lives_path(data_dir, lives.container), msgspec.json.encode(lives), disk)
