"""What other hosts have, as the storage sees it; `tara.net.file_exchange` brings it here."""

import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Protocol

from tara.storage.pacer import Pacer

#: The kinds of files; and the directory for what arrives, beside the files of the replica that asked for it.
BASES = "bases"
LOG = "log"
INCOMING = "incoming"


class RemoteFiles(Protocol):
    """The files of one kind that other replicas have. One thread uses it, between `with` and its end. What it cannot
    get is a `TaraError`."""

    #: Set when whoever waits for the files has to end.
    closing: threading.Event
    #: How fast they are written here.
    pacer: Pacer

    def __enter__(self) -> "RemoteFiles": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def names(self, replica: int) -> dict[str, int]:
        """The names of this replica's files, the newest first, and how long they are."""
        ...

    def path(self, name: str) -> Path:
        """Where a file will be that is fetched."""
        ...

    def fetch(self, replica: int, name: str) -> Path:
        """Bring the file here; it has still to be verified, and to be synced as a whole. If it is no good: `forget`."""
        ...

    def forget(self, name: str) -> None:
        """Remove what has come of this file."""
        ...

    def forget_others(self, names: Collection[str]) -> None:
        """Remove what has come of files that are none of these."""
        ...
