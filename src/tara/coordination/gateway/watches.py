"""The watches of one front end's connections, and who is told of a change.

One-shot data and child watches, persistent ones (data and children of one node) and recursive ones (a node and all
below). A connection that has several watches on a path is told once, as in ZooKeeper; its client knows whom to call.
"""

import enum
from collections.abc import Iterator
from typing import Generic, TypeVar

from tara.coordination.codes import Event
from tara.coordination.paths import ancestors, parent_of

Watcher = TypeVar("Watcher")


class Kind(enum.Enum):
    DATA = "data"
    CHILD = "child"
    PERSISTENT = "persistent"
    RECURSIVE = "recursive"


_ONE_SHOT = (Kind.DATA, Kind.CHILD)
#: What the numbers in a request to remove or check watches stand for.
REMOVABLE = {1: (Kind.CHILD,), 2: (Kind.DATA,), 3: tuple(Kind)}


class Watches(Generic[Watcher]):
    def __init__(self) -> None:
        #: Kind and path to watchers, in the order in which they came; no entry is empty.
        self._watchers: dict[Kind, dict[str, dict[Watcher, None]]] = {kind: {} for kind in Kind}
        self._by_watcher: dict[Watcher, dict[tuple[Kind, str], None]] = {}

    def __len__(self) -> int:
        return sum(len(owned) for owned in self._by_watcher.values())

    @property
    def paths(self) -> int:
        return len({path for table in self._watchers.values() for path in table})

    @property
    def watchers(self) -> int:
        return len(self._by_watcher)

    def add(self, kind: Kind, path: str, watcher: Watcher) -> None:
        self._watchers[kind].setdefault(path, {})[watcher] = None
        self._by_watcher.setdefault(watcher, {})[kind, path] = None

    def has(self, kind: Kind, path: str, watcher: Watcher) -> bool:
        return (kind, path) in self._by_watcher.get(watcher, ())

    def remove(self, kind: Kind, path: str, watcher: Watcher) -> bool:
        """Whether there was such a watch."""
        if not self.has(kind, path, watcher):
            return False
        owned = self._by_watcher[watcher]
        del owned[kind, path]
        if not owned:
            del self._by_watcher[watcher]
        table = self._watchers[kind]
        del table[path][watcher]
        if not table[path]:
            del table[path]
        return True

    def drop(self, watcher: Watcher) -> None:
        """All watches of somebody who is gone."""
        for kind, path in list(self._by_watcher.get(watcher, ())):
            self.remove(kind, path, watcher)

    def trigger(self, event: Event, path: str) -> Iterator[tuple[Watcher, Event, str]]:
        """Whom a change has to be told to, as what, and about which node; one-shot watches are used up."""
        if not self._by_watcher:
            return
        kinds = (Kind.DATA, Kind.CHILD) if event is Event.DELETED else (Kind.DATA,)
        found = self._pick(path, (*kinds, Kind.PERSISTENT))
        if self._watchers[Kind.RECURSIVE]:
            for ancestor in ancestors(path):
                found.update(self._watchers[Kind.RECURSIVE].get(ancestor, ()))
        for watcher in found:
            yield watcher, event, path
        if event is not Event.DATA_CHANGED:
            parent = parent_of(path)
            for watcher in self._pick(parent, (Kind.CHILD, Kind.PERSISTENT)):
                yield watcher, Event.CHILDREN_CHANGED, parent

    def _pick(self, path: str, kinds: tuple[Kind, ...]) -> dict[Watcher, None]:
        found: dict[Watcher, None] = {}
        for kind in kinds:
            watchers = self._watchers[kind].get(path)
            if watchers is not None:
                found.update(watchers)
                if kind in _ONE_SHOT:
                    for watcher in list(watchers):
                        self.remove(kind, path, watcher)
        return found
