"""Ways to a checkpoint: a base to begin with, or the state that an executor has, and the segments that lead on from
there. Of the ways that lead furthest, the one that costs the fewest bytes is taken; but an executor that has no state
yet does not begin before its own newest base or, without one, the newest of the others.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tara.protocol import tuples as t
from tara.storage.base_format import StoredBase
from tara.storage.bases import Bases, Offer
from tara.storage.peer_segments import Offers
from tara.storage.segments import Segments


class Way(NamedTuple):
    #: None: from the state that the executor has.
    base: StoredBase | None
    #: The checkpoint that it begins at, and the one that it leads to.
    start: int
    until: int
    #: Who may have the segments that are not here.
    offers: Offers


class _Candidate(NamedTuple):
    start: int
    until: int
    cost: int
    base: Offer | None


def find_way(load: t.Load, bases: Bases, segments: Segments, own: int, interval: int) -> Way | None:
    """The best way; what it begins with is here, and intact. `own` is the replica that asks. If what it has leads to
    the checkpoint that is needed, others are not asked: some may not answer at once."""
    others = [holder for holder in load.holders if holder != own]
    usable = _usable(load, bases.own(), interval)
    reached = max((way.until for way in _candidates(load, usable, segments, None, interval)), default=0)
    if 0 < load.minimum <= reached:
        others = []
    offers = segments.offers(others)
    usable += _usable(load, bases.offers(others), interval) if others else []
    while True:
        candidates = list(_candidates(load, usable, segments, offers, interval))
        if not candidates:
            return None
        if load.next <= 0:
            # What that base has was executed by an earlier life, perhaps with another version of the application: an
            # operator who has had a base taken before he changes that relies on it.
            own_bases = [base for base in usable if base.path.parent == bases.directory]
            newest = max((base.number for base in own_bases or usable), default=0)
            candidates = [way for way in candidates if way.start >= newest]
        best = max(candidates, key=lambda way: (way.until, -way.cost))
        if best.base is None:
            return Way(None, best.start, best.until, offers) if best.until * interval > load.next else None
        base = bases.bring(best.base)
        if base is not None:
            return Way(base, best.start, best.until, offers)
        usable.remove(best.base)


def _usable(load: t.Load, offered: list[Offer], interval: int) -> list[Offer]:
    return [base for base in offered if base.number >= load.bases_from and base.number * interval > load.next]


def _candidates(
    load: t.Load, usable: list[Offer], segments: Segments, offers: Offers | None, interval: int
) -> Iterator[_Candidate]:
    if load.next >= 0:
        start = load.next // interval
        until, cost = _follow(start, segments, offers)
        yield _Candidate(start, until, cost, None)
    for base in usable:
        until, cost = _follow(base.number, segments, offers)
        yield _Candidate(base.number, until, cost + base.length, base)


def _follow(start: int, segments: Segments, offers: Offers | None) -> tuple[int, int]:
    """How far segments lead from a checkpoint, and their bytes. `offers`: what others have."""
    until, cost = start, 0
    while True:
        if until + 1 in segments:
            cost += segments.size(until + 1)
        elif offers is not None and until + 1 in offers:
            cost += offers.size(until + 1)
        else:
            return until, cost
        until += 1
