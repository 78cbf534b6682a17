"""What a site has done since it started."""

from msgspec import Struct


class Counters(Struct):
    frames_in: int = 0
    frames_out: int = 0
    frames_bad: int = 0
    frames_foreign: int = 0
    frames_dropped: int = 0
    #: Requests for files that could not be read.
    asks_bad: int = 0
    tuples_in: int = 0
    tuples_out: int = 0
    commands: int = 0
    #: Commands that were refused because their source was full, or because they were too long.
    overloaded: int = 0
    too_large: int = 0
    results: int = 0
    #: Answers to reads that were not ordered.
    answers: int = 0
    #: Connections that did not come about: unknown keys, none, or handshakes that were given up.
    connections_refused: int = 0
    journal_syncs: int = 0
    journal_entries: int = 0
    journals_set_aside: int = 0
    journals_repaired: int = 0
    turns: int = 0
    halted: dict[str, str] = {}
