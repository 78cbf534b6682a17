"""Who asked what, and what each connection is told."""

from tara.client import wire
from tara.protocol import tuples as t
from tara.transport.questions import OpenQuestions


def test_an_answer_goes_to_who_asked_under_the_number_that_they_gave_it() -> None:
    questions = OpenQuestions(10)
    questions.ask(b"a", wire.Read(5, b"x"))
    questions.ask(b"b", wire.Read(5, b"y"))
    first, second = questions.take_asked()
    questions.route(t.Answers(0, [t.Answer(second.ticket, t.OK, b"Y"), t.Answer(first.ticket, t.OK, b"X")]))

    assert (first.payload, second.payload) == (b"x", b"y")
    assert questions.take_answers() == {b"a": [(5, t.OK, b"X")], b"b": [(5, t.OK, b"Y")]}
    assert questions.take_asked() == []
    assert questions.take_answers() == {}


def test_a_question_is_answered_once() -> None:
    questions = OpenQuestions(10)
    questions.ask(b"a", wire.Read(5, b"x"))
    (asked,) = questions.take_asked()
    answers = t.Answers(0, [t.Answer(asked.ticket, t.OK, b"X")])
    questions.route(answers)
    questions.route(answers)

    assert questions.take_answers() == {b"a": [(5, t.OK, b"X")]}


def test_beyond_its_capacity_the_oldest_question_is_forgotten() -> None:
    questions = OpenQuestions(2)
    for number in range(3):
        questions.ask(b"a", wire.Read(number, b""))
    asked = questions.take_asked()
    questions.route(t.Answers(0, [t.Answer(question.ticket, t.OK, b"") for question in asked]))

    assert [id_ for id_, _, _ in questions.take_answers()[b"a"]] == [1, 2]
