"""A bounded table in which nobody can push out what belongs to others.

Every entry has an owner. An owner who has as many entries as one may have loses its own oldest one to the next; and
when the table is full, an owner of the most entries does. So whoever has few keeps them, whatever the others do.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Owner = TypeVar("Owner", bound=Hashable)


class FairTable(Generic[Key, Owner]):
    def __init__(self, capacity: int, per_owner_max: int) -> None:
        self._capacity = capacity
        self._per_owner_max = per_owner_max
        self._owners: dict[Key, Owner] = {}
        #: The keys of each owner, oldest first.
        self._keys: dict[Owner, dict[Key, None]] = {}
        #: The owners with so many keys; `_most` is the highest number that any owner has.
        self._by_count: dict[int, dict[Owner, None]] = {}
        self._most = 0

    def __len__(self) -> int:
        return len(self._owners)

    def get(self, key: Key) -> Owner | None:
        return self._owners.get(key)

    def owners(self) -> set[Owner]:
        return set(self._keys)

    def put(self, key: Key, owner: Owner) -> Key | None:
        """Let the key belong to this owner from now on. The key that had to go for it, if one had to."""
        known = self._owners.get(key)
        if known is not None:
            if known == owner:
                return None
            self._remove(key, known)
        evicted = None
        keys = self._keys.get(owner)
        if keys is not None and len(keys) >= self._per_owner_max:
            evicted = next(iter(keys))
        elif len(self._owners) >= self._capacity:
            largest = next(iter(self._by_count[self._most]))
            evicted = next(iter(self._keys[largest]))
        if evicted is not None:
            self._remove(evicted, self._owners[evicted])
        self._owners[key] = owner
        keys = self._keys.setdefault(owner, {})
        self._count(owner, len(keys), len(keys) + 1)
        keys[key] = None
        return evicted

    def pop(self, key: Key) -> Owner | None:
        owner = self._owners.get(key)
        if owner is not None:
            self._remove(key, owner)
        return owner

    def forget(self, owner: Owner) -> list[Key]:
        """Remove what belongs to this owner; returns what that was."""
        keys = list(self._keys.get(owner, ()))
        for key in keys:
            self._remove(key, owner)
        return keys

    def _remove(self, key: Key, owner: Owner) -> None:
        del self._owners[key]
        keys = self._keys[owner]
        self._count(owner, len(keys), len(keys) - 1)
        del keys[key]
        if not keys:
            del self._keys[owner]

    def _count(self, owner: Owner, before: int, after: int) -> None:
        if before:
            owners = self._by_count[before]
            del owners[owner]
            if not owners:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[owner] = None
        self._most = max(self._most, after)
        while self._most and self._most not in self._by_count:
            self._most -= 1
