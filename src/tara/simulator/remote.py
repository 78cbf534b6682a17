"""What other hosts have, in the virtual world: files come whole, or not, or break off in the middle."""

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType

from tara.protocol.errors import TaraError
from tara.simulator.disk import VirtualDisk
from tara.storage.pacer import PacedFile, Pacer
from tara.storage.remote import INCOMING


class NotThere(TaraError):
    """Nobody answers, or not to the end."""


class VirtualRemote:
    def __init__(
        self,
        disk: VirtualDisk,
        directory: Path,
        suffix: str,
        source: Callable[[int], tuple[VirtualDisk, Path] | None],
        breaks_off: Callable[[], bool],
    ) -> None:
        """`source` gives a replica's disk and directory, or None if it cannot be reached."""
        self._disk = disk
        self._incoming = directory / INCOMING
        self._suffix = suffix
        self._source = source
        self._breaks_off = breaks_off
        self.closing = threading.Event()
        self.pacer = Pacer(lambda: 0.0, lambda seconds: None)

    def __enter__(self) -> "VirtualRemote":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def names(self, replica: int) -> dict[str, int]:
        disk, directory = self._find(replica)
        found = [path for path in disk.paths(directory, (self._suffix,)) if path.parent == directory]
        return {path.name: disk.size(path) for path in sorted(found, reverse=True)}

    def path(self, name: str) -> Path:
        return self._incoming / name

    def fetch(self, replica: int, name: str) -> Path:
        disk, directory = self._find(replica)
        try:
            data = disk.read(directory / name)
        except FileNotFoundError as error:
            raise NotThere(f"replica {replica} has no {name}") from error
        self._disk.make_directory(self._incoming)
        file = PacedFile(self._disk.create(self.path(name)), self.pacer)
        if self._breaks_off():
            file.append(data[: len(data) // 2])
            raise NotThere(f"{name} of replica {replica}: broke off")
        file.append(data)
        return self.path(name)

    def forget(self, name: str) -> None:
        if self._disk.exists(self.path(name)):
            self._disk.unlink(self.path(name))

    def forget_others(self, names: Collection[str]) -> None:
        for path in self._disk.paths(self._incoming):
            if path.name not in names:
                self._disk.unlink(path)

    def _find(self, replica: int) -> tuple[VirtualDisk, Path]:
        found = self._source(replica)
        if found is None:
            raise NotThere(f"replica {replica} cannot be reached")
        return found
