"""Mutants of the client: its numbers, what it acknowledges, and what it does when a front end is silent."""

from collections import deque
from collections.abc import Iterator

from tara.client.reads import Reads, ReadSubmission
from tara.client.session import Session, Submission
from tara.protocol import tuples as t
from tara.simulator.mutants.registry import mutant, nothing, replace


@mutant("a command keeps its number when it goes to another front end")
def changes_front_ends_without_the_number() -> Iterator[None]:
    original = Session.take_back

    def take_back(self: Session) -> None:
        original(self)
        if self._name:
            return
        again = [call for call in self._in_flight.values() if call.kind != t.CLAIM]
        for call in again:
            del self._in_flight[call.number]
        self._unsent = deque()
        self._waiting.extendleft(reversed(again))

    with replace(Session, "take_back", take_back):
        yield


@mutant("a client acknowledges only what it has the results of")
def acknowledges_too_much() -> Iterator[None]:
    original = Session._command

    def command(self: Session, call: Submission, now_s: float) -> t.Command:
        made = original(self, call, now_s)
        return t.Command(made.session, made.number, self._number, made.payload, made.kind)

    with replace(Session, "_command", command):
        yield


@mutant("what a front end had no room for is sent again")
def refused_is_dropped() -> Iterator[None]:
    def refuse(self: Session, number: int, now_s: float, pause_s: float = 0.0) -> None:
        call = self._in_flight.get(number)
        if call is not None:
            call.heard_s = now_s + 1e6

    with replace(Session, "_refuse", refuse):
        yield


@mutant("what was on its way to a front end that is gone is sent to the next one")
def nothing_is_sent_again() -> Iterator[None]:
    original = Session.take_back

    def take_back(self: Session) -> None:
        original(self)
        self._unsent = deque()

    with replace(Session, "take_back", take_back):
        yield


@mutant("a session that has ended is followed by another one")
def ended_session_is_kept() -> Iterator[None]:
    with replace(Session, "lose", nothing):
        yield


@mutant("a claim has a number of its own, and not the next command's")
def claims_under_the_next_number() -> Iterator[None]:
    def number_it(self: Session, call: Submission) -> None:
        call.number = self._number
        self._number += call.kind != t.CLAIM
        self._in_flight[call.number] = call

    with replace(Session, "_number_it", number_it):
        yield


@mutant("commands behind a claim have the numbers that it says")
def claim_does_not_count() -> Iterator[None]:
    original = Session.hear

    def hear(self: Session, result: t.Result, now_s: float) -> None:
        number = self._number
        call = self._in_flight.get(result.number)
        original(self, result, now_s)
        if call is not None and call.kind == t.CLAIM:
            self._number = number

    with replace(Session, "hear", hear):
        yield


@mutant("a number of which the command was refused is not missing")
def refused_number_is_missing() -> Iterator[None]:
    original = Session._fill

    def fill(self: Session, refused: t.Result) -> None:
        call = self._in_flight.get(refused.number)
        original(self, refused)
        if call is not None and self._in_flight.pop(refused.number, None) is not None:
            self._unsent = deque(other for other in self._unsent if other is not call)

    with replace(Session, "_fill", fill):
        yield


@mutant("a read that is not answered in time is ordered")
def late_read_is_dropped() -> Iterator[None]:
    original = Reads.late

    def late(self: Reads, now_s: float) -> list[ReadSubmission]:
        original(self, now_s)
        return []

    with replace(Reads, "late", late):
        yield


@mutant("each read has a name of its own")
def reads_of_one_name() -> Iterator[None]:
    original = Reads.due

    def due(self: Reads, now_s: float) -> list[object]:
        self._id = -1 if self._id > 2 else self._id
        return original(self, now_s)  # type: ignore[return-value]

    with replace(Reads, "due", due):
        yield


@mutant("a client that has a session keeps it when another opening of it is answered late")
def opened_twice() -> Iterator[None]:
    original = Session.hear

    def hear(self: Session, result: t.Result, now_s: float) -> None:
        # The session is the newest that was answered, whatever was sent in the one before.
        if result.session == 0 and result.status == t.OK and self.id and result.number in self._openings:
            self.id = 0
        original(self, result, now_s)
        if result.session == 0 and result.status == t.OK:
            self._number = 0

    with replace(Session, "hear", hear):
        yield
