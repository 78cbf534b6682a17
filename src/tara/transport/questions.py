"""The questions of clients: who asked which one, and what each connection is to be told."""

from tara.client import wire as client_wire
from tara.protocol import tuples as t

#: The number that a client gave its question, how it went, and the answer.
Answer = tuple[int, int, bytes]


class OpenQuestions:
    """Each question goes through the graph under a ticket. Beyond `capacity` the oldest one is forgotten; its client
    has it ordered."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tickets: dict[int, tuple[bytes, int]] = {}
        self._ticket = 0
        self._asked: list[t.Question] = []
        self._answers: dict[bytes, list[Answer]] = {}

    def ask(self, connection: bytes, read: client_wire.Read) -> None:
        self._ticket += 1
        self._tickets[self._ticket] = (connection, read.id)
        self._asked.append(t.Question(self._ticket, read.question))
        if len(self._tickets) > self._capacity:
            del self._tickets[next(iter(self._tickets))]

    def take_asked(self) -> list[t.Question]:
        asked, self._asked = self._asked, []
        return asked

    def answer(self, connection: bytes, answer: Answer) -> None:
        self._answers.setdefault(connection, []).append(answer)

    def route(self, answers: t.Answers) -> None:
        for answer in answers.answers:
            connection, id_ = self._tickets.pop(answer.ticket, (b"", 0))
            if connection:
                self._answers.setdefault(connection, []).append((id_, answer.status, answer.payload))

    def take_answers(self) -> dict[bytes, list[Answer]]:
        answers, self._answers = self._answers, {}
        return answers
