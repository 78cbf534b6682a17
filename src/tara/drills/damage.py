"""Damages to the files of a data directory: what disks, file systems and operators do to them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from msgspec import Struct

from tara.configuration.state import COPY_FILE, STATE_FILE
from tara.storage.journal import MARKER_FILE

PAGE_BYTES = 4096

#: The kinds of files, by patterns below the data directory, in which {} is the site; and how often each is chosen.
KINDS: dict[str, tuple[str, int]] = {
    "journal": ("journal-{}/*.journal", 50),
    "end marker": (f"journal-{{}}/{MARKER_FILE}", 10),
    "base": ("bases-{}/*.base", 12),
    "log segment": ("log-{}/*.segment", 14),
    "log tail": ("log-{}/*.tail", 4),
    "log begin": ("log-{}/begin", 2),
    "life": ("life-{}", 3),
    "execution": ("execution-{}", 2),
    "cluster": (STATE_FILE, 5),
    "cluster copy": (COPY_FILE, 2),
}
#: Those that are a part of a journal.
JOURNAL_KINDS = ("journal", "end marker")


class Damage(Struct, frozen=True, kw_only=True):
    """One of them, as data."""

    number: int
    site: int
    kind: str
    how: str
    #: Below the data directory.
    path: str
    #: What else it needs: the seed of where it strikes, and the other file of a swap.
    seed: int
    other: str = ""

    def __str__(self) -> str:
        return f"{self.how} {self.path}{f' and {self.other}' if self.other else ''}"


def files_of(data_dir: Path, site: int) -> dict[str, list[str]]:
    """The files of a site that may be damaged, by kind, below the data directory."""
    found = {
        kind: sorted(str(path.relative_to(data_dir)) for path in data_dir.glob(pattern.format(site)))
        for kind, (pattern, _) in KINDS.items()
    }
    return {kind: paths for kind, paths in found.items() if paths}


def draw(number: int, files: dict[str, list[str]], site: int, older: Path, data_dir: Path, random: Random) -> Damage:
    """The next damage. `older` has the files as they were some time before."""
    kind = random.choices(list(files), weights=[KINDS[kind][1] for kind in files])[0]
    path = random.choice(files[kind])
    possible = ["flip", "flip", "cut", "zero", "remove"]
    if len(files[kind]) > 1:
        possible.append("swap")
    if _older_copy(older, data_dir, path) is not None:
        possible.append("older")
    how = random.choice(possible)
    other = random.choice([name for name in files[kind] if name != path]) if how == "swap" else ""
    return Damage(number=number, site=site, kind=kind, how=how, path=path, seed=random.randrange(1 << 30), other=other)


def _older_copy(older: Path, data_dir: Path, path: str) -> Path | None:
    """The file as it was: under its name, if it was another one then."""
    copy = older / path
    if copy.exists() and copy.read_bytes() != (data_dir / path).read_bytes():
        return copy
    return None


def inflict(damage: Damage, data_dir: Path, older: Path) -> bool:
    """Do it; whether that changed anything."""
    path, random = data_dir / damage.path, Random(damage.seed)
    before = path.read_bytes()
    _HOW[damage.how](path, data_dir / damage.other, older / damage.path, random)
    return not path.exists() or path.read_bytes() != before


def _flip(path: Path, other: Path, older: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(bytes(data))


def _cut(path: Path, other: Path, older: Path, random: Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def _zero(path: Path, other: Path, older: Path, random: Random) -> None:
    """A page, or as much of it as there is."""
    data = bytearray(path.read_bytes())
    first = random.randrange(0, len(data), PAGE_BYTES)
    data[first : first + PAGE_BYTES] = bytes(len(data[first : first + PAGE_BYTES]))
    path.write_bytes(bytes(data))


def _remove(path: Path, other: Path, older: Path, random: Random) -> None:
    path.unlink()


def _swap(path: Path, other: Path, older: Path, random: Random) -> None:
    aside = path.with_name("swapped")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def _older(path: Path, other: Path, older: Path, random: Random) -> None:
    shutil.copy(older, path)


_HOW: dict[str, Callable[[Path, Path, Path, Random], None]] = {
    "flip": _flip,
    "cut": _cut,
    "zero": _zero,
    "remove": _remove,
    "swap": _swap,
    "older": _older,
}
