"""The watches of one front end's connections, and who is told of a change.

One-shot data and child watches, persistent ones (data and children of one node) and recursive ones (a node and all
below). A connection that has several watches on a path is told once, as in ZooKeeper; its client knows whom to call.

Their number and the bytes of their paths are bounded, of one watcher and of all. A watch costs one entry in each of two
dictionaries and a share of a string. A watcher that goes is forgotten at once; what is left of its watches is taken
away in slices (`sweep`), and counts until then.
"""

import enum
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from tara.apps.coordination import limits
from tara.apps.coordination.codes import Code, Event, Refusal
from tara.apps.coordination.paths import ancestors, parent_of

Watcher = TypeVar("Watcher")


class Kind(enum.IntEnum):
    """Bits: what a watcher has on a path is their sum."""

    DATA = 1
    CHILD = 2
    PERSISTENT = 4
    RECURSIVE = 8


_ONE_SHOT = Kind.DATA | Kind.CHILD
#: What the numbers in a request to remove or check watches stand for.
REMOVABLE = {1: (Kind.CHILD,), 2: (Kind.DATA,), 3: tuple(Kind)}


class _Owned:
    """The watches of one watcher."""

    __slots__ = ("bytes", "count", "kinds")

    def __init__(self) -> None:
        #: Path to the sum of kinds; none is 0.
        self.kinds: dict[str, int] = {}
        self.count = 0
        self.bytes = 0


class Watches(Generic[Watcher]):
    def __init__(
        self, count_max: int = limits.WATCHES_MAX, own_count_max: int = limits.WATCHES_PER_CONNECTION_MAX
    ) -> None:
        self._count_max = count_max
        self._bytes_max = count_max * limits.WATCH_BYTES
        self._own_count_max = own_count_max
        self._own_bytes_max = own_count_max * limits.WATCH_BYTES
        #: Path to its watcher, or to all of them in the order in which they came if there are several.
        self._watchers: dict[str, Watcher | dict[Watcher, None]] = {}
        #: Those who are there; in `_watchers` may be others, who are gone.
        self._owned: dict[Watcher, _Owned] = {}
        self._leaving: deque[tuple[Watcher, _Owned]] = deque()
        self._count = 0
        self.bytes = 0
        #: Recursive watches: without any, nobody looks at the ancestors of a node.
        self._recursive = 0

    def __len__(self) -> int:
        return self._count

    @property
    def paths(self) -> int:
        return len(self._watchers)

    @property
    def watchers(self) -> int:
        return len(self._owned)

    @property
    def leaving(self) -> bool:
        """Whether there is something to sweep."""
        return bool(self._leaving)

    def add(self, kind: Kind, path: str, watcher: Watcher) -> None:
        """Raises `Refusal` at a bound."""
        owned = self._owned.get(watcher)
        kinds = 0 if owned is None else owned.kinds.get(path, 0)
        if kinds & kind:
            return
        size = 0 if kinds else _size(path)
        if len(path) > limits.PATH_CHARACTERS_MAX:
            raise Refusal(Code.BAD_ARGUMENTS)
        if owned is None:
            owned = _Owned()
        if owned.count >= self._own_count_max or owned.bytes + size > self._own_bytes_max:
            raise Refusal(Code.THROTTLED_OP)
        if self._count >= self._count_max or self.bytes + size > self._bytes_max:
            raise Refusal(Code.THROTTLED_OP)
        self._owned[watcher] = owned
        if not kinds:
            self._enter(path, watcher)
        owned.kinds[path] = kinds | kind
        owned.count += 1
        owned.bytes += size
        self._count += 1
        self.bytes += size
        self._recursive += kind == Kind.RECURSIVE

    def _enter(self, path: str, watcher: Watcher) -> None:
        others = self._watchers.get(path)
        if others is None:
            self._watchers[path] = watcher
        elif isinstance(others, dict):
            others[watcher] = None
        elif others != watcher:
            self._watchers[path] = {others: None, watcher: None}

    def has(self, kind: Kind, path: str, watcher: Watcher) -> bool:
        owned = self._owned.get(watcher)
        return owned is not None and bool(owned.kinds.get(path, 0) & kind)

    def remove(self, kind: Kind, path: str, watcher: Watcher) -> bool:
        """Whether there was such a watch."""
        if not self.has(kind, path, watcher):
            return False
        self._take(watcher, self._owned[watcher], path, kind)
        return True

    def _take(self, watcher: Watcher, owned: _Owned, path: str, kinds: int) -> None:
        """Take some kinds away that are there."""
        rest = owned.kinds[path] & ~kinds
        owned.count -= kinds.bit_count()
        if rest:
            owned.kinds[path] = rest
        else:
            del owned.kinds[path]
            owned.bytes -= _size(path)
            if not owned.kinds:
                del self._owned[watcher]
        self._uncount(watcher, path, kinds, rest)

    def _uncount(self, watcher: Watcher, path: str, kinds: int, rest: int) -> None:
        self._count -= kinds.bit_count()
        self._recursive -= bool(kinds & Kind.RECURSIVE)
        if not rest:
            self.bytes -= _size(path)
            self._leave(path, watcher)

    def _leave(self, path: str, watcher: Watcher) -> None:
        others = self._watchers[path]
        if not isinstance(others, dict):
            del self._watchers[path]
            return
        del others[watcher]
        if len(others) == 1:
            self._watchers[path] = next(iter(others))

    def drop(self, watcher: Watcher) -> None:
        """Forget somebody who is gone, and does not come back."""
        owned = self._owned.pop(watcher, None)
        if owned is not None:
            self._leaving.append((watcher, owned))

    def sweep(self, count: int) -> None:
        """Take away up to so many watches of those who are gone."""
        while self._leaving:
            watcher, owned = self._leaving[0]
            while owned.kinds:
                if count <= 0:
                    return
                count -= 1
                path, kinds = owned.kinds.popitem()
                self._uncount(watcher, path, kinds, rest=0)
            self._leaving.popleft()

    def trigger(self, event: Event, path: str) -> Iterator[tuple[Watcher, Event, str]]:
        """Whom a change has to be told to, as what, and about which node; one-shot watches are used up."""
        if not self._owned:
            return
        found: dict[Watcher, None] = {}
        children = Kind.CHILD if event is Event.DELETED else 0
        self._pick(path, Kind.DATA | Kind.PERSISTENT | children, found)
        if self._recursive:
            for ancestor in ancestors(path):
                self._pick(ancestor, Kind.RECURSIVE, found)
        for watcher in found:
            yield watcher, event, path
        if event is not Event.DATA_CHANGED:
            parent = parent_of(path)
            found = {}
            self._pick(parent, Kind.CHILD | Kind.PERSISTENT, found)
            for watcher in found:
                yield watcher, Event.CHILDREN_CHANGED, parent

    def _pick(self, path: str, kinds: int, found: dict[Watcher, None]) -> None:
        watchers = self._watchers.get(path)
        if watchers is None:
            return
        for watcher in list(watchers) if isinstance(watchers, dict) else (watchers,):
            owned = self._owned.get(watcher)
            own = owned.kinds.get(path, 0) & kinds if owned is not None else 0
            if owned is None or not own:
                continue
            found[watcher] = None
            if own & _ONE_SHOT:
                self._take(watcher, owned, path, own & _ONE_SHOT)


def _size(path: str) -> int:
    """Bytes that a path takes, at most."""
    return len(path) if path.isascii() else 4 * len(path)
