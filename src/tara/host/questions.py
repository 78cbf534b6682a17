"""The questions of clients: who asked which one, and what each connection is to be told."""

from tara.host import client_wire
from tara.host.fair_table import FairTable
from tara.protocol import tuples as t

#: The number that a client gave its question, how it went, and the answer.
Answer = tuple[int, int, bytes]


class OpenQuestions:
    """Each question goes through the graph under a ticket. Beyond `capacity` the oldest one of the connection that has
    the most is forgotten; its client has it ordered.

    Tickets count from 1 in every life of the container, and an executor in another container outlives it: so an answer
    counts only if it is to a question of this life. Otherwise one client would get the answer to another's question."""

    def __init__(self, capacity: int) -> None:
        #: The container's; set before the first question.
        self.life = 0
        self._connections: FairTable[int, bytes] = FairTable(capacity, capacity)
        #: What the clients call the questions, by ticket.
        self._ids: dict[int, int] = {}
        self._ticket = 0
        self._asked: list[t.Question] = []
        #: For which any state will do.
        self._asked_here: list[t.Question] = []
        self._answers: dict[bytes, list[Answer]] = {}

    def ask(self, connection: bytes, principal: bytes, read: client_wire.Read) -> None:
        self._ticket += 1
        self._ids[self._ticket] = read.id
        stale = read.stale and read.subject == t.APPLICATION
        asked = self._asked_here if stale else self._asked
        asked.append(t.Question(self._ticket, read.question, self.life, principal, read.subject))
        forgotten = self._connections.put(self._ticket, connection)
        if forgotten is not None:
            del self._ids[forgotten]

    @property
    def asked(self) -> int:
        return self._ticket

    def take_asked(self) -> list[t.Question]:
        asked, self._asked = self._asked, []
        return asked

    def take_asked_here(self) -> list[t.Question]:
        asked, self._asked_here = self._asked_here, []
        return asked

    def answer(self, connection: bytes, answer: Answer) -> None:
        self._answers.setdefault(connection, []).append(answer)

    def route(self, answers: t.Answers) -> None:
        for answer in answers.answers:
            connection = self._connections.pop(answer.ticket) if answer.life == self.life else None
            if connection is not None:
                self.answer(connection, (self._ids.pop(answer.ticket), answer.status, answer.payload))

    def refuse(self, questions: list[t.Question]) -> None:
        """Nobody here can answer them now."""
        for question in questions:
            connection = self._connections.pop(question.ticket)
            if connection is not None:
                self.answer(connection, (self._ids.pop(question.ticket), t.OVERLOADED, b""))

    def forget(self, connection: bytes) -> None:
        """It is closed."""
        for ticket in self._connections.forget(connection):
            del self._ids[ticket]
        self._answers.pop(connection, None)

    def take_answers(self) -> dict[bytes, list[Answer]]:
        answers, self._answers = self._answers, {}
        return answers
