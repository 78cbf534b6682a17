"""What containers are told when they register: which life this is, whether it is the very first one, and whether the
journal that they have found is the newest one. Pure: the registry of a driver asks here, and so does the simulator.

A driver keeps what it has handed out (`Records`) and writes it down before it answers. A container keeps its own lives
(`tara.storage.lives`). Each of the two may be an older copy: then the other one knows better.
"""

from typing import Protocol

from msgspec import Struct


class Records(Protocol):
    """What was handed out; by container."""

    #: The newest life.
    lives: list[int]
    #: Whether its first start is complete: its journal exists.
    founded: list[bool]
    #: The name of its current journal: one that is found under another name, where the container once was, lacks the
    #: votes that were cast elsewhere since. Empty: it keeps none.
    journals: list[str]
    #: The newest life that has run: a directory that knows an older one only is an older copy.
    begun: list[int]


class HandedOut(Struct):
    """Such records, and nothing else."""

    lives: list[int]
    founded: list[bool]
    journals: list[str]
    begun: list[int]


def none_handed_out(containers: int) -> HandedOut:
    return HandedOut([0] * containers, [False] * containers, [""] * containers, [0] * containers)


def of_next_era(records: Records) -> HandedOut:
    """Nothing has happened in it, and no life of the era before is ever current again."""
    fresh = none_handed_out(len(records.lives))
    fresh.lives = [life + 1 for life in records.lives]
    return fresh


class StartClaim(Struct, frozen=True, kw_only=True):
    """What a container says of itself when it starts."""

    container: int
    #: The newest life that its directory knows of; 0: none. And whether its first start was complete.
    life: int
    begun: bool
    #: The name of the journal that is there; and one that no journal had before, if it has to begin another one.
    journal: str
    fresh_journal: str


class Granted(Struct, frozen=True, kw_only=True):
    """What it is told. With the last two, an operator is told of it, too."""

    life: int
    genesis: bool
    keep_journal: bool
    #: The name of its journal from now on.
    journal: str
    #: It knows more than the records: an older copy of them was put back.
    older_records: bool
    #: The records know of lives that have run since: its directory is an older copy, and lacks their votes.
    older_directory: bool


def admit(records: Records, claim: StartClaim) -> Granted:
    """Give the container its next life. The records have to be written before anybody is told."""
    older_records = _correct(records, claim)
    container = claim.container
    records.lives[container] += 1
    known, begun = records.journals[container], records.begun[container]
    keep = not records.founded[container] or not known or claim.journal == known
    older_directory = keep and 0 < claim.life < begun
    keep = keep and not older_directory
    return Granted(
        life=records.lives[container],
        genesis=not records.founded[container],
        keep_journal=keep,
        journal=(claim.journal if keep else "") or claim.fresh_journal,
        older_records=older_records,
        older_directory=older_directory,
    )


def _correct(records: Records, claim: StartClaim) -> bool:
    """No life is handed out twice, and whoever has promised something does not start as if it had not."""
    container = claim.container
    begun = claim.begun and not records.founded[container]
    older = claim.life > records.lives[container] or begun
    records.lives[container] = max(records.lives[container], claim.life)
    if begun:
        records.founded[container], records.journals[container] = True, claim.journal
    return older


def must_be_founded(genesis: bool, journal: str, found_journal: str) -> bool:
    """Whether the container has a journal that is not on record: it may begin only when it is. A start that does not
    get so far changes nothing, so a disk that is missing for a moment costs nobody its journal."""
    return genesis or journal != found_journal


def found(records: Records, container: int, journal: str) -> None:
    """The container has a new journal, and no other one counts any more."""
    records.founded[container], records.journals[container] = True, journal
