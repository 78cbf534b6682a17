"""Strikes: which places of the application have ended the process, and which of them are barred since.

A process that ends while the application runs may have been ended by it, or by an operator at a bad moment. One that
ends at the same place in two lives in a row was ended by it: from then on, that place is *barred*. An executor halts
before a barred command, snapshot or restoration, and refuses a barred read.
"""

from collections.abc import Sequence

from msgspec import Struct

STRIKES_MAX = 2
#: Barred places that are remembered; the newest ones.
BARRED_MAX = 32


class Strikes(Struct, frozen=True, forbid_unknown_fields=True):
    #: Per thread of the application, where it was when the last life ended (0: nowhere), and for how many lives in a
    #: row that has been the same place.
    places: list[int] = []
    counts: list[int] = []
    barred: list[int] = []


def next_life(before: Strikes, places: Sequence[int]) -> Strikes:
    """What is known when a life begins, if the one before ended at these places."""
    known = dict(zip(before.places, before.counts, strict=True))
    counts = [known.get(place, 0) + 1 if place else 0 for place in places]
    barred = [place for place in before.barred if place not in places]
    barred += [
        place
        for place, count in zip(places, counts, strict=True)
        if place and (count >= STRIKES_MAX or place in before.barred)
    ]
    return Strikes(list(places), counts, barred[-BARRED_MAX:])
