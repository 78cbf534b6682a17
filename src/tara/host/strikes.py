"""Strikes: which places of the application have ended the process, and which of them are barred since.

A process that ends while the application runs may have been ended by it, or by an operator at a bad moment. One that
ends at the same place in two lives in a row was ended by it: from then on, that place is *barred*. An executor halts
before a barred command or restoration, gives up bases if snapshots are barred, and refuses a barred read. Snapshots are
all the same here: the process is started again at once, and comes to the base after the one that ended it.
"""

from msgspec import Struct

from tara.protocol.places import cause

STRIKES_MAX = 2
#: Barred places that are remembered; the newest ones.
BARRED_MAX = 32


class Strikes(Struct, frozen=True, forbid_unknown_fields=True):
    #: Where the application was when the last life ended (0: nowhere), and for how many lives in a row that has been
    #: the same place.
    place: int = 0
    count: int = 0
    barred: list[int] = []


def next_life(before: Strikes, place: int) -> Strikes:
    """What is known when a life begins, if the one before ended at this place."""
    if not place:
        return Strikes(barred=before.barred)
    count = before.count + 1 if cause(place) == cause(before.place) else 1
    barred = [known for known in before.barred if known != cause(place)]
    if count >= STRIKES_MAX or cause(place) in before.barred:
        barred.append(cause(place))
    return Strikes(place, count, barred[-BARRED_MAX:])
